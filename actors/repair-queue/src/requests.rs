//! Derives a change of the queue from the registry's reports and the store's state.
//!
//! Holds are written before entries: readers of an entry, including a new leader, then know which racks are held.
//!
//! # Guarantees
//! Reports that are too old or answer another query decide nothing. Nothing is added while a key that a limiter needs
//! cannot be read, nor from an answer older than the removal of the machine's last entry ([`removals`]). Racks are
//! evaluated nevertheless, except racks whose hold cannot be read. A change compares every key that it depends on and
//! that another client may write.

pub mod removals;

use std::sync::Arc;
use std::time::Duration;

use madako_domain::cluster::Node;
use madako_domain::constraints::Constraints;
use madako_domain::keys;
use madako_domain::machine::Machine;
use madako_domain::repair::RepairQueueEntry;
use madako_domain::repair::change::{RepairChange, RepairWrite};
use madako_domain::repair::hold::{Hold, HoldSettings, Holds};
use madako_domain::repair::refusal::AdditionStop;
use madako_domain::repair::report::{Monotonic, Reports};
use madako_domain::state::{ClusterState, RevisedValue};
use time::OffsetDateTime;

use crate::hold::holds_followed;
use crate::hold::times::Times;
use crate::limiter::{Decision, LimiterInput, RemovedEntries, limit};
use crate::limits::MOST_REQUESTS;
use crate::racks::KeptRacks;

#[derive(Debug, Clone, Copy)]
pub struct RegistryAnswer<'a> {
    pub machines: &'a [Machine],
    /// Arrival of the answer.
    pub at: OffsetDateTime,
    /// Change times of its machines.
    pub times: &'a Times,
    /// Machines whose entries were removed after the registry was asked.
    pub removed: &'a RemovedEntries,
}

/// Evaluates the newest reports. `None`: they are too old or answer another query.
///
/// While auto-repair is off, nothing is added and nothing is refused.
#[must_use]
pub fn decide(
    state: &ClusterState,
    reports: &Reports,
    (times, removed): (&Times, &RemovedEntries),
    hold: Option<&HoldSettings>,
    (interval, now): (Duration, Monotonic),
) -> Option<Decision> {
    if !reports.are_good(state.reports_query(), interval, now) {
        return None;
    }
    let mut decision = evaluate(
        state,
        &RegistryAnswer { machines: &reports.machines, at: reports.at, times, removed },
        hold,
    );
    if decision.stop.is_some() {
        decision.add.clear();
        decision.refused.clear();
    }
    Some(decision)
}

/// Evaluates reports against the store. If [`Decision::stop`] says why nothing is added, the decision still shows
/// what the limiters would do, as far as it can be known.
///
/// While auto-repair is off, reports add nothing, but still show which racks have recovered.
#[must_use]
pub fn evaluate(state: &ClusterState, answer: &RegistryAnswer<'_>, hold: Option<&HoldSettings>) -> Decision {
    let entries: Vec<&RepairQueueEntry> = state.repair.entries.values().map(|item| &item.value).collect();
    let reboots: Vec<_> = state.repair.reboots.values().map(|item| &item.value).collect();
    let addresses: Vec<&str> = nodes(state).map(|node| node.address.as_str()).collect();
    let none = Constraints::default();
    let mut decision = limit(&LimiterInput {
        reports: answer.machines,
        at: answer.at,
        times: answer.times,
        entries: &entries,
        reboots: &reboots,
        removed: answer.removed,
        nodes: &addresses,
        constraints: state.constraints.as_ref().map_or(&none, |constraints| &constraints.value),
        hold,
        holds: &state.holds,
    });
    decision.stop = if state.auto_repair_disabled {
        decision.holds = holds_followed(answer.machines, answer.times, hold, &state.holds, answer.at);
        Some(AdditionStop::Disabled)
    } else {
        first_unreadable_key(state).map(|key| AdditionStop::Unreadable { key: key.to_owned() })
    };
    // The present content of an unreadable hold is unknown: do not overwrite it.
    for rack in state.unreadable_holds() {
        decision.holds.remove(rack);
    }
    decision
}

/// The first key that limiters need and that cannot be read: an unreadable entry may be for any machine.
#[must_use]
pub fn first_unreadable_key(state: &ClusterState) -> Option<&str> {
    let is_needed = |key: &str| {
        matches!(key, keys::CLUSTER | keys::CONSTRAINTS | keys::REPAIRS_WRITE_INDEX)
            || [keys::REPAIRS, keys::REBOOTS, keys::REPAIR_HOLDS].iter().any(|prefix| key.starts_with(prefix))
    };
    state.faults.iter().map(|fault| fault.key.as_str()).find(|key| is_needed(key))
}

/// Addresses of all entries.
pub fn queried_machines(state: &ClusterState) -> impl Iterator<Item = &str> {
    state.repair.entries.values().map(|item| item.value.address.as_str())
}

pub fn nodes(state: &ClusterState) -> impl Iterator<Item = &Node> {
    state.cluster.iter().flat_map(|cluster| &cluster.value.nodes)
}

#[must_use]
pub fn kept_racks(state: &ClusterState) -> KeptRacks<'_> {
    let holds = state.holds.iter().map(|(rack, hold)| (rack.as_str(), &*hold.value));
    KeptRacks { holds: holds.collect(), unreadable: state.unreadable_holds().collect() }
}

/// Readable holds, for [`holds_after`](crate::hold::holds_after).
#[must_use]
pub fn readable_holds(state: &ClusterState) -> Holds {
    state.holds.iter().map(|(rack, hold)| (rack.clone(), Arc::clone(&hold.value))).collect()
}

/// The next change to write for a decision; `None`: nothing to write.
#[must_use]
pub fn change(state: &ClusterState, decision: &Decision) -> Option<RepairChange> {
    let racks = decision.changed_holds(&state.holds);
    // A decision made while auto-repair is off must not be committed after it is on.
    let mut conditions = vec![state.require_unchanged(keys::AUTO_REPAIR_DISABLED)];
    if !racks.is_empty() {
        let mut writes = Vec::new();
        for (rack, hold) in racks.into_iter().take(MOST_REQUESTS) {
            conditions.push(state.require_unchanged(&keys::repair_hold_key(rack)));
            writes
                .push(RepairWrite::Hold { rack: rack.to_owned(), hold: hold.map(|hold| Hold::clone(hold)) });
        }
        return Some(RepairChange { what: "repair-hold", conditions, writes });
    }
    if decision.add.is_empty() || decision.stop.is_some() {
        return None;
    }
    let (next, _) = state.repair.write_index?;
    let write_index = state.repair.write_index_unchanged()?;
    conditions.extend([write_index, state.require_unchanged(keys::CONSTRAINTS)]);
    let entries = (next..).zip(decision.add.iter().take(MOST_REQUESTS));
    let writes =
        entries.map(|(index, entry)| RepairWrite::Added(RepairQueueEntry { index, ..entry.clone() }));
    Some(RepairChange { what: "repair-request", conditions, writes: writes.collect() })
}

/// Number of held racks, including racks whose hold cannot be read.
#[must_use]
pub fn racks_held(state: &ClusterState, hold: Option<&HoldSettings>) -> usize {
    let Some(settings) = hold else { return 0 };
    let held = |hold: &&RevisedValue<Arc<Hold>>| hold.value.is_held() && hold.value.label == settings.label;
    state.holds.values().filter(held).count() + state.unreadable_holds().count()
}

#[cfg(test)]
mod tests;
