//! The writes of actions on entries: the entry and its operation record, in one transaction that compares the entry and
//! the counter of records with the decided state.
//!
//! An action that takes no time has a record that is complete at once. Operations and commands have CKE's names.

use std::time::Duration;

use madako_domain::canary::{Canary, is_planted};
use madako_domain::invariants::repair::is_active;
use madako_domain::keys;
use madako_domain::reboot::{RebootQueueEntry, RebootStatus};
use madako_domain::record::{Record, whole_second};
use madako_domain::repair::change::{RepairChange, RepairWrite};
use madako_domain::repair::command::{CommandEnd, CommandOutcome};
pub use madako_domain::repair::queue::REBOOT;
use madako_domain::repair::queue::RepairQueue;
use madako_domain::state::ClusterState;
use madako_domain::store::Condition;
use time::OffsetDateTime;

use crate::limits::{BACK_OFF_BASE, BACK_OFF_MOST};
use crate::next_action::Removal;

pub const CANCEL: &str = "reboot-cancel";
pub const DEQUEUE: &str = "reboot-dequeue";
pub const DRAIN_START: &str = "reboot-drain-start";
pub const DRAIN_TIMEOUT: &str = "reboot-drain-timeout";
/// The preparation of a control plane node for its reboot command, which CKE does not have.
pub const PREPARE: &str = "reboot-prepare";
/// The end of a drain for an upgrade, which CKE does not have.
pub(crate) const DRAINED: &str = "upgrade-drained";
/// Finding in the record of a removal without a boot.
pub(crate) const LEFT: &str = "the node left the cluster";
/// The reboot queue's operations that have records.
pub const OPERATIONS: [&str; 6] = [CANCEL, DEQUEUE, DRAIN_START, DRAIN_TIMEOUT, PREPARE, REBOOT];

/// Time until the next drain after `count` aborted ones: 300 s, twice as long each further time, at most 1200 s, and a
/// random part below 300 s (CKE). `draw` is a number from 0 to below 1.
#[must_use]
pub fn back_off(count: u32, draw: f64) -> Duration {
    let doubled = BACK_OFF_BASE.saturating_mul(1 << count.saturating_sub(1).min(16)).min(BACK_OFF_MOST);
    let random = (BACK_OFF_BASE.as_secs_f64() * draw.clamp(0.0, 1.0)).floor();
    doubled + Duration::try_from_secs_f64(random).unwrap_or_default()
}

/// An entry at the revision of a decision.
#[derive(Debug, Clone)]
pub struct Transition<'a> {
    state: &'a ClusterState,
    index: i64,
    entry: RebootQueueEntry,
    /// Id of the next record.
    id: i64,
    now: OffsetDateTime,
}

impl<'a> Transition<'a> {
    /// `None`: the entry does not exist, or records cannot be written.
    #[must_use]
    pub fn new(state: &'a ClusterState, index: i64, now: OffsetDateTime) -> Option<Self> {
        let entry = state.repair.reboots.get(&index)?.value.clone();
        let (id, _) = state.repair.records.next?;
        Some(Self { state, index, entry, id, now: whole_second(now) })
    }

    /// The drain begins after the commit.
    #[must_use]
    pub fn drain(mut self) -> RepairChange {
        self.become_status(RebootStatus::Draining);
        let record = self.completed_record(DRAIN_START, String::new());
        let conditions = self.begin_conditions();
        self.into_change(DRAIN_START, conditions, record)
    }

    /// Announces the reboot command. Also returns the id of its record.
    #[must_use]
    pub fn reboot(mut self) -> (RepairChange, i64) {
        self.become_status(RebootStatus::Rebooting);
        let id = self.id;
        let record = RepairWrite::Record(self.begin_record(REBOOT));
        let conditions = self.begin_conditions();
        (self.into_change(REBOOT, conditions, record), id)
    }

    /// Announces the preparation of an empty node, whose entry stays as it is: the drain goes on after any end of the record. Also
    /// returns the id of the record.
    #[must_use]
    pub fn prepare(self) -> (RepairChange, i64) {
        let (id, record) = (self.id, self.begin_record(PREPARE));
        let conditions = self.begin_conditions();
        (RepairChange { what: PREPARE, conditions, writes: vec![RepairWrite::Record(record)] }, id)
    }

    /// Ends the record of a preparation, and announces the command. `None`: the record has ended already.
    #[must_use]
    pub fn reboot_prepared(self, prepared: i64) -> Option<(RepairChange, i64)> {
        let item = self.state.repair.records.unfinished.get(&prepared)?;
        let mut record = item.value.clone();
        record.complete(self.now);
        let unchanged = Condition::Unchanged { key: keys::record(prepared), revision: item.revision };
        let (mut change, id) = self.reboot();
        change.conditions.push(unchanged);
        change.writes.push(RepairWrite::Record(record));
        Some((change, id))
    }

    /// The node is empty, and the operation runner updates its kubelet. No record: the update has one.
    #[must_use]
    pub fn leave_to_update(mut self) -> RepairChange {
        self.become_status(RebootStatus::Drained);
        let conditions = self.entry_conditions();
        RepairChange { what: DRAINED, conditions, writes: vec![RepairWrite::Reboot(self.entry)] }
    }

    /// The drain was aborted. `draw` as of [`back_off`].
    #[must_use]
    pub fn back_off(mut self, why: &str, draw: f64) -> RepairChange {
        give_up_drain(&mut self.entry, self.now, draw);
        if self.entry.is_upgrade() {
            why.clone_into(&mut self.entry.abort_reason);
        }
        let record = self.completed_record(DRAIN_TIMEOUT, why.to_owned());
        let conditions = self.entry_conditions();
        self.into_change(DRAIN_TIMEOUT, conditions, record)
    }

    /// Removes the entry.
    #[must_use]
    pub fn remove(&self, removal: Removal) -> RepairChange {
        let (what, info) = match removal {
            Removal::Cancelled => (CANCEL, ""),
            Removal::Left => (DEQUEUE, LEFT),
            Removal::NoUpdate => (CANCEL, "operations do not update the kubelet at present"),
            Removal::Booted => (DEQUEUE, "the node has booted"),
        };
        let writes = vec![
            RepairWrite::RebootRemoved { index: self.index },
            self.completed_record(what, info.to_owned()),
        ];
        RepairChange { what, conditions: self.entry_conditions(), writes }
    }

    fn become_status(&mut self, status: RebootStatus) {
        self.entry.status = status;
        self.entry.last_transition_time = Some(self.now);
    }

    fn begin_record(&self, operation: &'static str) -> Record {
        Record::of_command(self.id, operation, command_name(operation), &self.entry.node, self.now)
    }

    fn completed_record(&self, operation: &'static str, info: String) -> RepairWrite {
        let mut record = self.begin_record(operation);
        record.complete(self.now);
        record.info = info;
        RepairWrite::Record(record)
    }

    fn into_change(
        self,
        what: &'static str,
        conditions: Vec<Condition>,
        record: RepairWrite,
    ) -> RepairChange {
        RepairChange { what, conditions, writes: vec![RepairWrite::Reboot(self.entry), record] }
    }

    /// An entry that a client cancelled meanwhile is not overwritten.
    fn entry_conditions(&self) -> Vec<Condition> {
        let queue = &self.state.repair;
        let unchanged = Some(queue.require_unchanged_reboot(self.index))
            .filter(|_| !is_planted(Canary::RebootCancelOverwritten));
        unchanged.into_iter().chain(queue.require_unchanged_records()).collect()
    }

    /// Conditions of an announcement: the queue is enabled, and the cluster is unchanged.
    fn begin_conditions(&self) -> Vec<Condition> {
        let mut conditions = self.entry_conditions();
        conditions
            .extend([keys::REBOOTS_DISABLED, keys::CLUSTER].map(|key| self.state.require_unchanged(key)));
        conditions
    }
}

fn give_up_drain(entry: &mut RebootQueueEntry, now: OffsetDateTime, draw: f64) {
    entry.status = RebootStatus::Queued;
    entry.last_transition_time = Some(now);
    entry.drain_backoff_count = entry.drain_backoff_count.saturating_add(1);
    entry.drain_backoff_expire = Some(now + back_off(entry.drain_backoff_count, draw));
}

/// Ends the record of the reboot command of the entry `index`, or of its preparation. The entry stays, and the boot check decides;
/// after a command that did not begin, the drain goes on. It is given up (`draw` as of [`back_off`]) after a refusal, and if a
/// repair drains the node meanwhile. `None`: the record has ended already.
#[must_use]
pub fn end_command(
    queue: &RepairQueue,
    index: i64,
    id: i64,
    end: &CommandEnd,
    now: OffsetDateTime,
    draw: f64,
) -> Option<RepairChange> {
    let now = whole_second(now);
    let item = queue.records.unfinished.get(&id)?;
    let mut record = item.value.clone();
    end.end_record(&mut record, now);
    let is_preparation = record.operation == PREPARE;
    let mut change = record_alone(if is_preparation { PREPARE } else { REBOOT }, record, item.revision);
    let status = if is_preparation { RebootStatus::Draining } else { RebootStatus::Rebooting };
    let Some(item) = queue.reboots.get(&index).filter(|item| item.value.status == status) else {
        return Some(change);
    };
    let mut entry = item.value.clone();
    let is_repaired = || {
        let mut repairs = queue.entries.values().map(|item| &item.value);
        repairs.any(|repair| repair.address == entry.node && is_active(repair))
    };
    match end.how {
        CommandOutcome::Refused => give_up_drain(&mut entry, now, draw),
        CommandOutcome::NotBegun if is_preparation => return Some(change),
        CommandOutcome::NotBegun if is_repaired() => give_up_drain(&mut entry, now, draw),
        CommandOutcome::NotBegun => {
            entry.status = RebootStatus::Draining;
            entry.last_transition_time = Some(now);
        }
        _ => return Some(change),
    }
    change.conditions.push(queue.require_unchanged_reboot(index));
    change.writes.push(RepairWrite::Reboot(entry));
    Some(change)
}

/// Ends an unfinished record of this queue that has no running command here: its outcome is unknown.
#[must_use]
pub fn cancel_unfinished(
    queue: &RepairQueue,
    runs: Option<i64>,
    now: OffsetDateTime,
) -> Option<RepairChange> {
    let (_, item) = queue
        .records
        .unfinished
        .iter()
        .find(|(id, item)| Some(**id) != runs && OPERATIONS.contains(&item.value.operation.as_str()))?;
    let mut record = item.value.clone();
    record.cancel(whole_second(now), "outcome unknown: the actor that ran it is gone");
    Some(record_alone("reboot-disown", record, item.revision))
}

fn record_alone(what: &'static str, record: Record, revision: i64) -> RepairChange {
    let conditions = vec![Condition::Unchanged { key: keys::record(record.id), revision }];
    RepairChange { what, conditions, writes: vec![RepairWrite::Record(record)] }
}

/// Updates `reboots/running` (CKE): true while the queue is enabled and has entries. `None`: the value is right.
#[must_use]
pub fn show_running(state: &ClusterState) -> Option<RepairChange> {
    let queue = &state.repair;
    let runs = !queue.reboots_disabled && queue.requested_reboots().next().is_some();
    (runs != queue.reboots_running).then(|| RepairChange {
        what: "reboot-running",
        conditions: vec![state.require_unchanged(keys::REBOOTS_RUNNING)],
        writes: vec![RepairWrite::RebootsRunning(runs)],
    })
}

fn command_name(operation: &str) -> &'static str {
    match operation {
        CANCEL => "rebootCancelCommand",
        DEQUEUE => "rebootDequeueCommand",
        DRAIN_START => "rebootDrainStartCommand",
        DRAIN_TIMEOUT => "rebootDrainTimeoutCommand",
        PREPARE => "rebootPrepareCommand",
        _ => "rebootRebootCommand",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{NOW, Store};

    #[test]
    fn back_offs_are_ckes() {
        let seconds = |count, draw| back_off(count, draw).as_secs();
        assert_eq!(
            [1, 2, 3, 4, 9, u32::MAX].map(|count| seconds(count, 0.0)),
            [300, 600, 1200, 1200, 1200, 1200]
        );
        assert_eq!((seconds(1, 0.5), seconds(1, 0.999_999)), (450, 599));
    }

    #[test]
    fn entries_have_ckes_bytes() {
        let mut store = Store::new(&["a"], &["w"]);
        store.reboot(0, "w", RebootStatus::Queued);
        let now = NOW + Duration::from_millis(700);
        let state = store.state();
        let transition = Transition::new(&state, 0, now).unwrap();
        let mut bytes = |change: RepairChange| {
            assert!(store.commit(&change));
            String::from_utf8(store.entries[&keys::reboot(0)].value.to_vec()).unwrap()
        };
        assert_eq!(
            bytes(transition.drain()),
            r#"{"index":"0","node":"w","status":"draining","last_transition_time":"2026-01-02T03:04:05Z","drain_backoff_expire":"0001-01-01T00:00:00Z"}"#
        );
        let state = store.state();
        let transition = Transition::new(&state, 0, now).unwrap();
        assert!(store.commit(&transition.back_off("draining timed out", 0.1)));
        let stored = String::from_utf8(store.entries[&keys::reboot(0)].value.to_vec()).unwrap();
        assert_eq!(
            stored,
            r#"{"index":"0","node":"w","status":"queued","last_transition_time":"2026-01-02T03:04:05Z","drain_backoff_count":1,"drain_backoff_expire":"2026-01-02T03:09:35Z"}"#
        );
        let records: Vec<Record> =
            [1, 2].map(|id| serde_json::from_slice(&store.entries[&keys::record(id)].value).unwrap()).into();
        assert_eq!(
            (&*records[0].operation, &*records[0].command.name),
            (DRAIN_START, "rebootDrainStartCommand")
        );
        assert_eq!((&*records[1].operation, &*records[1].info), (DRAIN_TIMEOUT, "draining timed out"));
        assert!(records.iter().all(|record| !record.is_unfinished() && record.targets == ["w"]));
    }

    #[test]
    fn drain_for_an_upgrade_keeps_the_reason_for_which_it_was_given_up() {
        let mut store = Store::new(&["a"], &["w"]);
        store.reboot(-1, "w", RebootStatus::Draining);
        let state = store.state();
        assert!(store.commit(&Transition::new(&state, -1, NOW).unwrap().leave_to_update()));
        assert_eq!(store.state().repair.reboots[&-1].value.status, RebootStatus::Drained);
        let state = store.state();
        assert!(store.commit(&Transition::new(&state, -1, NOW).unwrap().back_off("a job runs", 0.0)));
        let stored = String::from_utf8(store.entries[&keys::reboot(-1)].value.to_vec()).unwrap();
        assert_eq!(
            stored,
            r#"{"index":"-1","node":"w","status":"queued","last_transition_time":"2026-01-02T03:04:05Z","drain_backoff_count":1,"drain_backoff_expire":"2026-01-02T03:09:05Z","abort_reason":"a job runs"}"#
        );
        assert_eq!(show_running(&store.state()), None, "CKE's queue has no entry");
    }

    #[test]
    fn cancelled_entry_is_not_overwritten() {
        let mut store = Store::new(&["a"], &["w"]);
        store.reboot(0, "w", RebootStatus::Draining);
        let state = store.state();
        let transition = || Transition::new(&state, 0, NOW).unwrap();
        store.reboot(0, "w", RebootStatus::Cancelled);
        for late in
            [transition().reboot().0, transition().back_off("", 0.0), transition().remove(Removal::Booted)]
        {
            assert!(!store.commit(&late), "{late:?}");
        }
        assert_eq!(store.state().repair.reboots[&0].value.status, RebootStatus::Cancelled);
    }

    #[test]
    fn drain_that_was_decided_before_the_queue_was_disabled_is_refused() {
        let mut store = Store::new(&["a"], &["w"]);
        store.reboot(0, "w", RebootStatus::Queued);
        let state = store.state();
        let drain = Transition::new(&state, 0, NOW).unwrap().drain();
        store.text(keys::REBOOTS_DISABLED, "true");
        assert!(!store.commit(&drain));
    }

    #[test]
    fn a_reboot_command_has_one_record_from_its_announcement_to_its_end() {
        let mut store = Store::new(&["a"], &["w"]);
        store.reboot(0, "w", RebootStatus::Draining);
        let state = store.state();
        let (change, id) = Transition::new(&state, 0, NOW).unwrap().reboot();
        assert!(store.commit(&change));
        let end = CommandEnd { how: CommandOutcome::Failed, text: "exit code 1".to_owned() };
        let queue = store.state().repair;
        assert_eq!(queue.reboots[&0].value.status, RebootStatus::Rebooting);
        assert!(cancel_unfinished(&queue, Some(id), NOW).is_none(), "it runs here");
        assert!(cancel_unfinished(&queue, None, NOW).is_some());
        assert!(store.commit(&end_command(&queue, 0, id, &end, NOW, 0.0).unwrap()));
        let queue = store.state().repair;
        assert_eq!(queue.reboots[&0].value.status, RebootStatus::Rebooting, "the boot check decides");
        assert!(end_command(&queue, 0, id, &end, NOW, 0.0).is_none());
        let record: Record = serde_json::from_slice(&store.entries[&keys::record(id)].value).unwrap();
        assert_eq!((record.status.as_str(), &*record.error), ("cancelled", "exit code 1"));
    }

    #[test]
    fn a_prepared_reboot_begins_its_command_and_an_abandoned_preparation_leaves_the_drain() {
        for abandoned in [false, true] {
            let mut store = Store::new(&["a"], &["w"]);
            store.reboot(0, "a", RebootStatus::Draining);
            let (change, prepared) = Transition::new(&store.state(), 0, NOW).unwrap().prepare();
            assert!(store.commit(&change));
            if abandoned {
                assert!(store.commit(&cancel_unfinished(&store.state().repair, None, NOW).unwrap()));
            }
            let state = store.state();
            assert_eq!(state.repair.reboots[&0].value.status, RebootStatus::Draining);
            let begun = Transition::new(&state, 0, NOW).unwrap().reboot_prepared(prepared);
            assert_eq!(begun.is_none(), abandoned);
            let Some((change, id)) = begun else { continue };
            assert!(store.commit(&change));
            let queue = store.state().repair;
            assert_eq!(queue.reboots[&0].value.status, RebootStatus::Rebooting);
            let unfinished: Vec<(i64, &str)> =
                queue.records.unfinished.iter().map(|(id, item)| (*id, &*item.value.operation)).collect();
            assert_eq!(unfinished, [(id, REBOOT)]);
            assert!(store.commit(&cancel_unfinished(&queue, None, NOW).unwrap()));
            let status = store.state().repair.reboots[&0].value.status.clone();
            assert_eq!(status, RebootStatus::Rebooting, "the boot check decides");
        }
    }

    #[test]
    fn a_preparation_that_does_not_begin_the_command_leaves_the_drain_and_a_refused_one_gives_it_up() {
        use CommandOutcome::{NotBegun, Refused};
        for (how, then) in [(NotBegun, RebootStatus::Draining), (Refused, RebootStatus::Queued)] {
            let mut store = Store::new(&["a"], &["w"]);
            store.reboot(0, "a", RebootStatus::Draining);
            let (change, id) = Transition::new(&store.state(), 0, NOW).unwrap().prepare();
            assert!(store.commit(&change));
            let end = CommandEnd { how, text: "x".to_owned() };
            assert!(store.commit(&end_command(&store.state().repair, 0, id, &end, NOW, 0.0).unwrap()));
            let queue = store.state().repair;
            assert_eq!((&queue.reboots[&0].value.status, queue.records.unfinished.len()), (&then, 0));
        }
    }

    #[test]
    fn a_command_that_did_not_begin_gives_way_to_a_repair_of_its_node() {
        let mut store = Store::new(&["a"], &["w"]);
        store.reboot(0, "w", RebootStatus::Draining);
        let (change, id) = Transition::new(&store.state(), 0, NOW).unwrap().reboot();
        assert!(store.commit(&change));
        store.repair(0, "w");
        let end = CommandEnd { how: CommandOutcome::NotBegun, text: "a pod".to_owned() };
        assert!(store.commit(&end_command(&store.state().repair, 0, id, &end, NOW, 0.0).unwrap()));
        assert_eq!(store.state().repair.reboots[&0].value.status, RebootStatus::Queued);
    }

    #[test]
    fn drain_goes_on_after_a_command_that_did_not_begin_unless_the_entry_is_cancelled() {
        use CommandOutcome::{NotBegun, Refused};
        for (meanwhile, how, then) in [
            (None, NotBegun, RebootStatus::Draining),
            (None, Refused, RebootStatus::Queued),
            (Some(RebootStatus::Cancelled), NotBegun, RebootStatus::Cancelled),
            (Some(RebootStatus::Cancelled), Refused, RebootStatus::Cancelled),
        ] {
            let mut store = Store::new(&["a"], &["w"]);
            store.reboot(0, "w", RebootStatus::Draining);
            let (change, id) = Transition::new(&store.state(), 0, NOW).unwrap().reboot();
            assert!(store.commit(&change));
            if let Some(status) = meanwhile {
                store.reboot(0, "w", status);
            }
            let end = CommandEnd { how, text: "a pod".to_owned() };
            assert!(store.commit(&end_command(&store.state().repair, 0, id, &end, NOW, 0.0).unwrap()));
            let queue = store.state().repair;
            let entry = &queue.reboots[&0].value;
            assert_eq!((&entry.status, queue.records.unfinished.len()), (&then, 0));
            assert_eq!(entry.drain_backoff_expire.is_some(), then == RebootStatus::Queued);
        }
    }

    #[test]
    fn queue_runs_while_it_is_enabled_and_has_entries() {
        let mut store = Store::new(&["a"], &["w"]);
        assert_eq!(show_running(&store.state()), None);
        store.reboot(0, "w", RebootStatus::Cancelled);
        let change = show_running(&store.state()).unwrap();
        assert!(store.commit(&change));
        assert_eq!(store.entries[keys::REBOOTS_RUNNING].value, "true");
        assert_eq!(show_running(&store.state()), None);
        store.text(keys::REBOOTS_DISABLED, "true");
        assert!(store.commit(&show_running(&store.state()).unwrap()));
        assert_eq!(store.entries[keys::REBOOTS_RUNNING].value, "false");
    }
}
