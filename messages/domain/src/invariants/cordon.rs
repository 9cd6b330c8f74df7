//! I17: each cordon of this system belongs to a repair, a reboot or the upgrade of a kubelet.

use std::collections::{BTreeMap, BTreeSet};

use super::repair::is_active;
use super::{Id, Violation};
use crate::reboot::{RebootQueueEntry, RebootStatus};
use crate::state::ClusterState;

/// I17 of a cordon of the Node object `node`, by the newest state.
#[must_use]
pub fn check_cordon(node: &str, state: &ClusterState) -> Option<Violation> {
    let has_owner = cordoned_nodes(state).contains(node);
    let what = || format!("the cordon of {node} would belong to no repair, reboot or upgrade");
    (!has_owner).then(|| Violation { invariant: Id::I17, what: what() })
}

/// Names of the Node objects that this system may keep cordoned: those under repair or reboot.
#[must_use]
pub fn cordoned_nodes(state: &ClusterState) -> BTreeSet<&str> {
    let nodes = state.cluster.iter().flat_map(|cluster| &cluster.value.nodes);
    let names: BTreeMap<&str, &str> = nodes.map(|node| (node.address.as_str(), node.name())).collect();
    let repaired = state.repair.entries.values().filter(|item| is_active(&item.value));
    // An entry whose machine left the cluster keeps the node name that it had.
    let repaired = repaired.filter_map(|item| {
        let kept = Some(item.value.nodename.as_str()).filter(|name| !name.is_empty());
        names.get(item.value.address.as_str()).copied().or(kept)
    });
    // A reboot entry names its node by address; CKE compares names. While the reboot queue is disabled, none counts (CKE), but
    // a kubelet whose node is drained may be replaced at this moment.
    let counts =
        |entry: &RebootQueueEntry| !state.repair.reboots_disabled || entry.status == RebootStatus::Drained;
    let rebooted = state.repair.rebooting_nodes().filter(|(_, entry)| counts(entry));
    let rebooted = rebooted.flat_map(|(node, _)| [names.get(node).copied(), Some(node)]).flatten();
    repaired.chain(rebooted).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::repair::queue::{Item, RepairQueue};
    use crate::repair::{RepairQueueEntry, RepairStatus, RepairStepStatus};

    fn state(reboot: RebootStatus, step: RepairStepStatus, disabled: bool) -> ClusterState {
        let reboot = RebootQueueEntry { status: reboot, ..RebootQueueEntry::new("10.0.0.1") };
        let repair = RepairQueueEntry {
            status: RepairStatus::Processing,
            step_status: step,
            nodename: "b".to_owned(),
            ..RepairQueueEntry::new("o", "t", "10.0.0.2")
        };
        let queue = RepairQueue {
            entries: [(0, Arc::new(Item { value: repair, created: 1, revision: 1 }))].into(),
            reboots: [(0, Arc::new(Item { value: reboot, created: 1, revision: 1 }))].into(),
            reboots_disabled: disabled,
            ..RepairQueue::default()
        };
        ClusterState { repair: Arc::new(queue), ..ClusterState::default() }
    }

    #[test]
    fn a_cordon_belongs_to_a_repair_a_reboot_or_an_upgrade() {
        use RebootStatus::{Drained, Draining, Queued, Rebooting};
        let check = |node, reboot, disabled| {
            check_cordon(node, &state(reboot, RepairStepStatus::Waiting, disabled)).is_none()
        };
        for (reboot, disabled, is_owned) in [
            (Queued, false, false),
            (Draining, false, true),
            (Draining, true, false),
            (Rebooting, false, true),
            (Drained, true, true),
        ] {
            let what = format!("{reboot:?}, disabled: {disabled}");
            assert_eq!(check("10.0.0.1", reboot, disabled), is_owned, "{what}");
        }
        assert!(!check("10.0.0.3", Draining, false), "another node");
        for (step, is_owned) in [(RepairStepStatus::Draining, true), (RepairStepStatus::Waiting, false)] {
            let what = format!("{step:?}");
            assert_eq!(check_cordon("b", &state(Queued, step, false)).is_none(), is_owned, "{what}");
        }
        let violation = check_cordon("b", &ClusterState::default()).unwrap().to_string();
        assert_eq!(violation, "I17: the cordon of b would belong to no repair, reboot or upgrade");
    }
}
