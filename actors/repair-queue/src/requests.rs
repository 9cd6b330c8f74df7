//! From the registry's reports and the store's state to a change of the queue.
//!
//! Racks come first: what is kept of them is durable before anything is added, so that whoever looks at an entry, a new
//! leader too, knows which racks are held.
//!
//! # Guarantees
//! Nothing is decided on reports that are too old or answer another question, nor while something that a limiter asks
//! for cannot be read. A change compares all that it was decided on and somebody else may write.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use madako_messages::cluster::Node;
use madako_messages::keys;
use madako_messages::machine::Machine;
use madako_messages::repair::RepairQueueEntry;
use madako_messages::repair::change::{RepairChange, RepairWrite};
use madako_messages::repair::hold::{Hold, HoldSettings, Holds, Label};
use madako_messages::repair::report::{Reports, Seen};
use madako_messages::state::{ClusterState, Revised};
use time::OffsetDateTime;

use crate::hold::holds_followed;
use crate::limiter::{Decision, Input, limit};

/// Racks, or entries, of one change: etcd takes 128 operations. The rest follows when that is done.
const MOST: usize = 50;

/// Label of a node that has the number of its rack (CKE).
const NODE_RACK: &str = "cke.cybozu.com/rack";
/// What the labels of a machine begin with on its node (CKE).
const NODE_LABELS: &str = "sabakan.cke.cybozu.com/";

/// What becomes of the newest reports. `None`: nothing is decided on them now, see [`obstacle`].
#[must_use]
pub fn decide(
    state: &ClusterState,
    reports: &Reports,
    hold: Option<&HoldSettings>,
    interval: Duration,
    now: Seen,
) -> Option<Decision> {
    if !reports.are_good(state.reports_query(), interval, now) {
        return None;
    }
    judge(state, &reports.machines, hold, reports.at)
}

/// What becomes of reports that came at `at`, by what the store holds; `None`: something there cannot be read.
///
/// While auto-repair is switched off they add nothing, but still say which racks have recovered.
#[must_use]
pub fn judge(
    state: &ClusterState,
    machines: &[Machine],
    hold: Option<&HoldSettings>,
    at: OffsetDateTime,
) -> Option<Decision> {
    if unreadable(state).is_some() {
        return None;
    }
    let constraints = state.constraints.as_ref()?;
    if state.auto_repair_disabled {
        let holds = holds_followed(machines, hold, &kept(state), at);
        return Some(Decision { holds, ..Decision::default() });
    }
    let entries: Vec<&RepairQueueEntry> = state.repair.entries.values().map(|item| &item.value).collect();
    let reboots: Vec<_> = state.repair.reboots.values().map(|item| &item.value).collect();
    let nodes: BTreeSet<&str> = nodes(state).map(|node| node.address.as_str()).collect();
    Some(limit(&Input {
        reports: machines,
        at,
        entries: &entries,
        reboots: &reboots,
        nodes: &nodes,
        constraints: &constraints.value,
        hold,
        holds: &kept(state),
    }))
}

/// The first key that limiters ask for and that cannot be read: an entry that nobody understands may be for any machine.
#[must_use]
pub fn unreadable(state: &ClusterState) -> Option<&str> {
    let asked = |key: &str| {
        matches!(key, keys::CLUSTER | keys::CONSTRAINTS | keys::REPAIRS_WRITE_INDEX)
            || [keys::REPAIRS, keys::REBOOTS, keys::REPAIR_HOLDS].iter().any(|prefix| key.starts_with(prefix))
    };
    state.faults.iter().map(|fault| fault.key.as_str()).find(|key| asked(key))
}

fn nodes(state: &ClusterState) -> impl Iterator<Item = &Node> {
    state.cluster.iter().flat_map(|cluster| &cluster.value.nodes)
}

fn kept(state: &ClusterState) -> Holds {
    state.holds.iter().map(|(rack, hold)| (rack.clone(), hold.value.clone())).collect()
}

/// What is to be written of a decision next; `None`: nothing.
#[must_use]
pub fn change(state: &ClusterState, decision: &Decision) -> Option<RepairChange> {
    let kept = kept(state);
    let racks = decision.changed_holds(&kept);
    // What is decided while it is switched off must not be carried out after that.
    let mut conditions = vec![state.unchanged(keys::AUTO_REPAIR_DISABLED)];
    if !racks.is_empty() {
        let mut writes = Vec::new();
        for (rack, hold) in racks.into_iter().take(MOST) {
            conditions.push(state.unchanged(&keys::repair_hold(rack)));
            writes.push(RepairWrite::Hold { rack: rack.to_owned(), hold: hold.cloned() });
        }
        return Some(RepairChange { what: "repair-hold", conditions, writes });
    }
    if decision.add.is_empty() {
        return None;
    }
    let (next, _) = state.repair.write_index?;
    let write_index = state.repair.write_index_unchanged()?;
    conditions.extend([write_index, state.unchanged(keys::CONSTRAINTS)]);
    let entries = (next..).zip(decision.add.iter().take(MOST));
    let writes =
        entries.map(|(index, entry)| RepairWrite::Added(RepairQueueEntry { index, ..entry.clone() }));
    Some(RepairChange { what: "repair-request", conditions, writes: writes.collect() })
}

/// Which addresses stand in a held rack, and in which: of machines that hold it, of those that are reported, and of nodes
/// of the cluster. What is kept for another label than the one of the settings holds nothing.
#[must_use]
pub fn held_addresses(
    state: &ClusterState,
    reports: &[Machine],
    hold: Option<&HoldSettings>,
) -> BTreeMap<String, String> {
    let Some(settings) = hold else { return BTreeMap::new() };
    let mut held = BTreeMap::new();
    let racks: BTreeMap<&str, _> = state
        .holds
        .iter()
        .filter(|(_, hold)| hold.value.is_held() && hold.value.label == settings.label)
        .map(|(rack, hold)| (rack.as_str(), &hold.value))
        .collect();
    if racks.is_empty() {
        return held;
    }
    for (rack, hold) in &racks {
        for machine in hold.machines().into_values().filter(|machine| !machine.address.is_empty()) {
            held.insert(machine.address.clone(), (*rack).to_owned());
        }
    }
    for machine in reports {
        if let Some(rack) = settings.label.value(machine).filter(|rack| racks.contains_key(&**rack)) {
            held.extend(machine.spec.ipv4.iter().map(|address| (address.clone(), rack.to_string())));
        }
    }
    let label = match &settings.label {
        Label::Rack => NODE_RACK.to_owned(),
        Label::Named(name) => format!("{NODE_LABELS}{name}"),
    };
    for node in nodes(state) {
        if let Some(rack) = node.labels.get(&label).filter(|rack| racks.contains_key(rack.as_str())) {
            held.insert(node.address.clone(), rack.clone());
        }
    }
    held
}

/// How many racks are held.
#[must_use]
pub fn racks_held(state: &ClusterState, hold: Option<&HoldSettings>) -> usize {
    let Some(settings) = hold else { return 0 };
    let held = |hold: &&Revised<Hold>| hold.value.is_held() && hold.value.label == settings.label;
    state.holds.values().filter(held).count()
}

#[cfg(test)]
mod tests;
