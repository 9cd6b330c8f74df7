//! `madako repair-queue add`: adds an entry with the transaction that ckecli sends.

use std::net::IpAddr;

use madako_domain::cluster::Cluster;
use madako_domain::keys;
use madako_domain::repair::RepairQueueEntry;
use madako_domain::repair::config::RepairConfig;
use madako_protocol::store::Store;

use crate::access::{decode, get_entry};
use crate::commands::queue::append;
use crate::failure::Failure;
use crate::output::print_warning;

/// Adds an entry if the configuration has its operation for its machine type.
pub(super) async fn run(mut entry: RepairQueueEntry, store: &dyn Store) -> Result<(), Failure> {
    if entry.address.parse::<IpAddr>().is_err() {
        print_warning(format_args!("{:?} is not an IP address", entry.address));
    }
    let stored = get_entry(store, keys::CLUSTER).await?.ok_or_else(|| {
        Failure::failed("no cluster configuration is stored, so there is no repair procedure (madako cluster set stores one)")
    })?;
    let cluster: Cluster = decode(keys::CLUSTER, &stored)?;
    let config = RepairConfig::read(&cluster.repair).map_err(|error| {
        Failure::failed(format_args!("the cluster configuration cannot be used: {error}"))
    })?;
    config.operation_for(&entry).map_err(Failure::failed)?;
    let number = |entry: &mut RepairQueueEntry, index| entry.index = index;
    append(store, keys::REPAIRS_WRITE_INDEX, keys::repair, std::slice::from_mut(&mut entry), number).await
}
