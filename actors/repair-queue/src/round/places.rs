//! Maps machine addresses to nodes of the cluster.

use std::collections::{BTreeMap, BTreeSet};

use madako_domain::cluster::{Cluster, Node};
use madako_domain::repair::queue::RepairQueue;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place<'a> {
    pub name: &'a str,
    pub control_plane: bool,
}

pub type Places<'a> = BTreeMap<&'a str, Place<'a>>;

/// Of two nodes with one address the first counts, as in CKE.
#[must_use]
pub fn places(cluster: Option<&Cluster>) -> Places<'_> {
    places_among(cluster.into_iter().flat_map(|cluster| &cluster.nodes))
}

fn places_among<'a>(nodes: impl Iterator<Item = &'a Node>) -> Places<'a> {
    let mut places = Places::new();
    for node in nodes {
        let place = Place { name: node.name(), control_plane: node.control_plane };
        let known = places.entry(&node.address).or_insert(place);
        known.control_plane |= node.control_plane;
    }
    places
}

/// The nodes that the queue or a reboot names, which are few of a large cluster.
#[must_use]
pub fn places_of<'a>(cluster: Option<&'a Cluster>, queue: &RepairQueue) -> Places<'a> {
    let entries = queue.entries.values().map(|item| item.value.address.as_str());
    let wanted: BTreeSet<&str> = entries.chain(queue.rebooting().map(|(node, _)| node)).collect();
    let nodes = cluster.into_iter().flat_map(|cluster| &cluster.nodes);
    places_among(nodes.filter(|node| wanted.contains(node.address.as_str())))
}
