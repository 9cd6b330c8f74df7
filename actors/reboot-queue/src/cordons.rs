//! The cordons of the service that have no reason any more (CKE's phase `uncordon-nodes`).

use std::collections::{BTreeMap, BTreeSet};

use madako_domain::invariants::repair::is_active;
use madako_domain::kubernetes::KubeNode;
use madako_domain::repair::queue::RepairQueue;

/// Names of the nodes to uncordon: the service or CKE cordoned them, and no entry of either queue drains, reboots or
/// repairs them. `names` are the names of the cluster's Node objects by address. While the reboot queue is disabled, its
/// entries do not count (CKE). A cordon of an operator has no annotation, and stays.
#[must_use]
pub fn idle_cordons(queue: &RepairQueue, names: &BTreeMap<&str, &str>, nodes: &[KubeNode]) -> Vec<String> {
    let name = |address: &str| names.get(address).copied().unwrap_or(address).to_owned();
    let mut busy: BTreeSet<String> = BTreeSet::new();
    if !queue.reboots_disabled {
        busy.extend(queue.rebooting_nodes().map(|(address, _)| name(address)));
    }
    for (index, item) in &queue.entries {
        if is_active(&item.value) || queue.command_of(*index).is_some() {
            busy.insert(item.value.nodename.clone());
            busy.insert(name(&item.value.address));
        }
    }
    let idle = nodes.iter().filter(|node| node.unschedulable && node.is_cordoned_by_us());
    idle.map(|node| node.name.clone()).filter(|name| !busy.contains(name)).collect()
}

#[cfg(test)]
mod tests {
    use madako_domain::keys;
    use madako_domain::kubernetes::ANNOTATION_REBOOT;
    use madako_domain::reboot::RebootStatus;

    use super::*;
    use crate::testing::Store;

    fn node(name: &str, ours: bool, unschedulable: bool) -> KubeNode {
        let annotations = ours.then(|| (ANNOTATION_REBOOT.to_owned(), "true".to_owned()));
        KubeNode {
            name: name.to_owned(),
            unschedulable,
            annotations: annotations.into_iter().collect(),
            ..KubeNode::default()
        }
    }

    #[test]
    fn only_own_cordons_without_an_entry_under_way_are_taken_back() {
        let mut store = Store::new(&["a"], &["v", "w", "x", "y", "z"]);
        store.reboot(0, "v", RebootStatus::Draining);
        store.reboot(1, "w", RebootStatus::Rebooting);
        store.reboot(2, "x", RebootStatus::Queued);
        store.reboot(3, "y", RebootStatus::Cancelled);
        store.repair(0, "a");
        let names = BTreeMap::from([("v", "node-v"), ("a", "node-a")]);
        let nodes = [
            node("node-v", true, true),
            node("node-a", true, true),
            node("w", true, true),
            node("x", true, true),
            node("y", true, true),
            node("z", false, true),
            node("u", true, false),
            node("gone", true, true),
        ];
        let idle = |store: &Store| idle_cordons(&store.state().repair, &names, &nodes);
        assert_eq!(idle(&store), ["x", "y", "gone"]);
        store.text(keys::REBOOTS_DISABLED, "true");
        assert_eq!(idle(&store), ["node-v", "w", "x", "y", "gone"], "the repair goes on");
    }
}
