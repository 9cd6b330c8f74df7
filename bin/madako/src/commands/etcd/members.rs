//! Connects commands to the members of the cluster's etcd, with a certificate that the cluster's authority issues.

use madako_domain::cluster::Cluster;
use madako_domain::keys;
use madako_etcd_members::{CLIENT_PORT, EtcdMembers};
use madako_protocol::permit::Permit;
use tokio::time::Instant;

use crate::access::{decode, get_entry, open_store};
use crate::cli::Global;
use crate::commands::ca::issuing_authorities;
use crate::failure::Failure;
use crate::limits::OPERATOR_ACTS;

/// The cluster's etcd, and the addresses of the nodes with its members.
pub(super) async fn open_members(global: &Global) -> Result<(EtcdMembers, Vec<String>), Failure> {
    let stored = get_entry(&open_store(global)?, keys::CLUSTER).await?;
    let stored = stored.ok_or_else(|| {
        Failure::failed(
            "no cluster configuration is stored, so there is no etcd (madako cluster set stores one)",
        )
    })?;
    let cluster: Cluster = decode(keys::CLUSTER, &stored)?;
    let addresses: Vec<String> = cluster.control_plane().map(|node| node.address.clone()).collect();
    if addresses.is_empty() {
        return Err(Failure::failed(
            "the stored cluster has no control plane node, so there is no etcd to connect to",
        ));
    }
    Ok((EtcdMembers::new(issuing_authorities(global)?, CLIENT_PORT), addresses))
}

/// An operator acts without an epoch: the command itself is the permission.
pub(crate) fn command_permit() -> Permit {
    Permit::give(0, Instant::now() + OPERATOR_ACTS)
}
