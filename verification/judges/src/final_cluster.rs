//! Judges the cluster of a system that has come to rest, by the states of the machines.

use std::collections::{BTreeMap, BTreeSet};

use madako_domain::cluster::{Cluster, Node};
use madako_domain::machine::MachineState;

/// Nodes that do not belong in the cluster at the end: their machine is missing, has retired, or is unhealthy in the
/// control plane. `states` has the machines of the registry by address.
#[must_use]
pub fn misplaced_nodes(cluster: &Cluster, states: &BTreeMap<&str, MachineState>) -> Vec<String> {
    let unfit = |node: &Node| {
        let Some(state) = states.get(&*node.address) else {
            return Some(format!("the node {} is not a machine of the registry", node.address));
        };
        let fits = match state {
            MachineState::Healthy => true,
            MachineState::Retired => false,
            _ => !node.control_plane,
        };
        (!fits).then(|| format!("the node {} is {}", node.address, state.name()))
    };
    let mut found: Vec<String> = cluster.nodes.iter().filter_map(unfit).collect();
    let addresses: BTreeSet<&str> = cluster.nodes.iter().map(|node| &*node.address).collect();
    if addresses.len() < cluster.nodes.len() {
        found.push("a machine is two nodes".to_owned());
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(address: &str, control_plane: bool) -> Node {
        Node { address: address.to_owned(), control_plane, ..Node::default() }
    }

    #[test]
    fn node_without_a_fitting_machine_is_reported() {
        use MachineState::{Healthy, Retired, Unreachable, Updating};
        let cluster = Cluster { nodes: vec![node("a", true), node("b", false)], ..Cluster::default() };
        let states =
            |first, second| misplaced_nodes(&cluster, &BTreeMap::from([("a", first), ("b", second)])).len();
        assert_eq!(states(Healthy, Updating), 0);
        assert_eq!(states(Unreachable, Retired), 2);
        assert_eq!(states(Healthy, Healthy), 0);
        assert_eq!(misplaced_nodes(&cluster, &BTreeMap::new()).len(), 2);
        let twice = Cluster { nodes: vec![node("a", true), node("a", true)], ..Cluster::default() };
        assert_eq!(misplaced_nodes(&twice, &BTreeMap::from([("a", Healthy)])).len(), 1);
    }
}
