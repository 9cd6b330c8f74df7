//! The state of operations on nodes, for the actors that wait for them or check etcd's quorum.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use madako_domain::node_status::EtcdStatus;
use tokio::time::Instant;

/// The newest finding of the operation runner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperationsState {
    /// An operation is due or runs: it goes before the next repair command.
    pub is_due: bool,
    /// Operations give kubelets another minor version after the drain of their nodes.
    pub updates_kubelets: bool,
    /// etcd has data on a node, so that I2 applies.
    pub has_data: bool,
    /// Addresses of the nodes whose state could not be read at the last collection.
    pub unreachable: BTreeSet<String>,
    /// The newest answer of etcd; `None` if it did not answer.
    pub etcd: Option<Arc<EtcdStatus>>,
    /// The configured API servers by address, and whether they are healthy; empty if they were not asked.
    pub api_servers: BTreeMap<String, bool>,
    /// Begin of the collection with this answer.
    pub read_at: Instant,
}
