//! Maps machine addresses to nodes of the cluster.

use std::collections::{BTreeMap, BTreeSet};

use madako_domain::cluster::{Cluster, Node};
use madako_domain::repair::queue::RepairQueue;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeRole<'a> {
    pub name: &'a str,
    pub control_plane: bool,
}

pub type NodesByAddress<'a> = BTreeMap<&'a str, NodeRole<'a>>;

/// Of two nodes with one address the first counts, as in CKE.
#[must_use]
pub fn nodes_by_address(cluster: Option<&Cluster>) -> NodesByAddress<'_> {
    nodes_among(cluster.into_iter().flat_map(|cluster| &cluster.nodes))
}

fn nodes_among<'a>(nodes: impl Iterator<Item = &'a Node>) -> NodesByAddress<'a> {
    let mut nodes_found = NodesByAddress::new();
    for node in nodes {
        let role = NodeRole { name: node.name(), control_plane: node.control_plane };
        let known = nodes_found.entry(&node.address).or_insert(role);
        known.control_plane |= node.control_plane;
    }
    nodes_found
}

/// The nodes that the queue or a reboot names, which are few of a large cluster.
#[must_use]
pub fn nodes_of_queue<'a>(cluster: Option<&'a Cluster>, queue: &RepairQueue) -> NodesByAddress<'a> {
    let entries = queue.entries.values().map(|item| item.value.address.as_str());
    let wanted: BTreeSet<&str> = entries.chain(queue.rebooting_nodes().map(|(node, _)| node)).collect();
    let nodes = cluster.into_iter().flat_map(|cluster| &cluster.nodes);
    nodes_among(nodes.filter(|node| wanted.contains(node.address.as_str())))
}
