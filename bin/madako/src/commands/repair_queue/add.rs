//! `madako repair-queue add`: CKE's transaction.

use std::net::IpAddr;

use madako_domain::cluster::Cluster;
use madako_domain::keys;
use madako_domain::repair::RepairQueueEntry;
use madako_domain::repair::config::RepairConfig;
use madako_domain::store::{Condition, Outcome, Transaction, Write};
use madako_json::go::escaped;
use madako_protocol::store::Store;

use crate::access::{changed_meanwhile, decode, get, unchanged};
use crate::failure::Failure;
use crate::limits::MAX_ADD_TRIES;
use crate::output::warn;

/// Adds an entry if the configuration has its operation for its machine type.
pub(super) async fn run(mut entry: RepairQueueEntry, store: &dyn Store) -> Result<(), Failure> {
    if entry.address.parse::<IpAddr>().is_err() {
        warn(format_args!("{:?} is not an IP address", entry.address));
    }
    let stored = get(store, keys::CLUSTER).await?.ok_or_else(|| {
        Failure::failed("no cluster configuration is stored, so there is no repair procedure")
    })?;
    let cluster: Cluster = decode(keys::CLUSTER, &stored)?;
    let config = RepairConfig::read(&cluster.repair).map_err(|error| {
        Failure::failed(format_args!("the cluster configuration cannot be used: {error}"))
    })?;
    config.of(&entry).map_err(Failure::failed)?;
    for _ in 0..MAX_ADD_TRIES {
        let counter = get(store, keys::REPAIRS_WRITE_INDEX).await?;
        entry.index = match &counter {
            None => 0,
            Some(counter) => std::str::from_utf8(&counter.value)
                .ok()
                .and_then(|text| text.parse().ok())
                .filter(|index: &i64| (0..i64::MAX).contains(index))
                .ok_or_else(|| {
                    Failure::failed(format_args!(
                        "the stored value of {} is not a number",
                        keys::REPAIRS_WRITE_INDEX
                    ))
                })?,
        };
        let key = keys::repair(entry.index);
        let put =
            |key: &str, value: Vec<u8>| Write::Put { key: key.to_owned(), value: value.into(), lease: 0 };
        let transaction = Transaction {
            conditions: vec![
                unchanged(keys::REPAIRS_WRITE_INDEX, counter.as_ref()),
                // An existing entry is not overwritten, whatever the counter says.
                Condition::Unchanged { key: key.clone(), revision: 0 },
            ],
            writes: vec![
                put(&key, escaped(serde_json::to_string(&entry)?).into_bytes()),
                put(keys::REPAIRS_WRITE_INDEX, (entry.index + 1).to_string().into_bytes()),
            ],
        };
        if let Outcome::Committed { .. } = store.commit(transaction).await? {
            return Ok(());
        }
    }
    Err(changed_meanwhile("the repair queue"))
}
