//! The changes of a plan, node by node: the difference between current and new configuration.

use madako_domain::cluster::{Node, TAINT_STATE};
use madako_domain::plan::{Change, ChangeKind, Part};

use crate::draft::ClusterDraft;
use crate::inventory::{Inventory, MachineId};

/// Leaving nodes first, control plane first and in the order of the current configuration; then the others in the
/// order of the new one. `part_after` has the part of each id, and `nodes` the new configuration.
pub(crate) fn list_changes(
    inventory: &Inventory<'_>,
    draft: &ClusterDraft<'_>,
    part_after: &[Option<Part>],
    nodes: &[Node],
) -> Vec<Change> {
    let leaving =
        draft.nodes_before().iter().filter(|(_, id)| id.is_none_or(|id: MachineId| part_after[id].is_none()));
    let mut changes: Vec<Change> =
        leaving.map(|(node, _)| change_of(ChangeKind::Remove, &node.address, part_of(node))).collect();
    let ids = draft.control_plane().iter().chain(draft.workers());
    for (id, after) in ids.zip(nodes) {
        let kind = match draft.node_before(*id) {
            None => Some(ChangeKind::Add),
            // The node of an address that was listed twice and is now listed once changes in nothing else.
            Some(before) => classify_change(before, after)
                .or_else(|| draft.is_listed_again(*id).then_some(ChangeKind::Update)),
        };
        changes.extend(kind.map(|kind| change_of(kind, inventory.entry(*id).address, part_of(after))));
    }
    changes
}

fn classify_change(before: &Node, after: &Node) -> Option<ChangeKind> {
    match (part_of(before), part_of(after)) {
        (Part::Worker, Part::ControlPlane) => return Some(ChangeKind::Promote),
        (Part::ControlPlane, Part::Worker) => return Some(ChangeKind::Demote),
        _ => {}
    }
    let had = state_taint(before);
    let has = state_taint(after);
    match has {
        Some(_) if had != has => Some(ChangeKind::Taint),
        None if had.is_some() => Some(ChangeKind::Untaint),
        _ if before != after => Some(ChangeKind::Update),
        _ => None,
    }
}

fn state_taint(node: &Node) -> Option<(&str, &str)> {
    let taint = node.taints.iter().find(|taint| taint.key == TAINT_STATE)?;
    Some((&taint.value, &taint.effect))
}

fn part_of(node: &Node) -> Part {
    if node.control_plane { Part::ControlPlane } else { Part::Worker }
}

fn change_of(change: ChangeKind, address: &str, part: Part) -> Change {
    Change { change, address: address.to_owned(), part }
}
