//! Computes the writes of each repair action: the entry, its operation record, and the data kept for the entry.
//!
//! Each is one transaction that compares the entry, its kept data and the counter of records with the decided state,
//! so that it fails if any of them changed. An action that takes no time has a record that is complete at once.

use std::time::Duration;

use madako_domain::canary::{Canary, is_planted};
use madako_domain::keys;
use madako_domain::record::{Record, whole_second};
use madako_domain::repair::change::{RepairChange, RepairWrite};
use madako_domain::repair::command::{CommandEnd, CommandOutcome};
use madako_domain::repair::kept::{EntryEnd, KeptEntry, MissingProgress, StartedRepairCommand};
use madako_domain::repair::queue::RepairQueue;
use madako_domain::repair::{RepairQueueEntry, RepairStatus, RepairStepStatus};
use madako_domain::state::ClusterState;
use madako_domain::store::Condition;
use time::OffsetDateTime;

pub use crate::limits::BACK_OFF_BASE;
use crate::pass::add_duration;

pub const DEQUEUE: &str = "repair-dequeue";
pub const DRAIN_START: &str = "repair-drain-start";
pub const DRAIN_TIMEOUT: &str = "repair-drain-timeout";
pub const EXECUTE: &str = "repair-execute";
pub const FINISH: &str = "repair-finish";
/// CKE's names of the repair queue's operations.
pub const OPERATIONS: [&str; 5] = [DEQUEUE, DRAIN_START, DRAIN_TIMEOUT, EXECUTE, FINISH];

/// Pause after `count` drains were given up: from 300 s to 300 s × (`count` + 1), by `draw` in 0..1.
#[must_use]
pub fn back_off(count: u32, draw: f64) -> Duration {
    let most = BACK_OFF_BASE.as_secs_f64() * f64::from(count);
    BACK_OFF_BASE + Duration::try_from_secs_f64((most * draw).floor()).unwrap_or(BACK_OFF_BASE)
}

pub struct Transition<'a> {
    state: &'a ClusterState,
    index: i64,
    entry: RepairQueueEntry,
    kept: KeptEntry,
    id: i64,
    now: OffsetDateTime,
}

impl<'a> Transition<'a> {
    /// `None`: the entry is gone, or records cannot be written. `nodename` is the node's present name.
    #[must_use]
    pub fn new(state: &'a ClusterState, index: i64, nodename: &str, now: OffsetDateTime) -> Option<Self> {
        let queue = &state.repair;
        let item = queue.entries.get(&index)?;
        let (id, _) = queue.records.next?;
        let kept = queue.kept_state_of(index).cloned().unwrap_or_default();
        let kept = KeptEntry { entry: item.created, ..kept };
        let entry = RepairQueueEntry { nodename: nodename.to_owned(), ..item.value.clone() };
        Some(Self { state, index, entry, kept, id, now: whole_second(now) })
    }

    /// Removes the entry and all data kept for it.
    #[must_use]
    pub fn remove(self) -> RepairChange {
        let record = self.completed_record(DEQUEUE, String::new());
        let kept = RepairWrite::Kept { index: self.index, kept: None };
        let writes = vec![RepairWrite::Removed { index: self.index }, kept, record];
        RepairChange { what: DEQUEUE, conditions: self.entry_conditions(), writes }
    }

    #[must_use]
    pub fn drain(mut self, step: u32) -> RepairChange {
        self.enter(step, RepairStepStatus::Draining);
        let record = self.completed_record(
            DRAIN_START,
            format!("the node {} is drained for step {step}", self.entry.nodename),
        );
        let conditions = self.effect_conditions();
        self.into_change(DRAIN_START, conditions, record)
    }

    /// Gives a drain up; `draw` is in 0..1.
    #[must_use]
    pub fn abandon(mut self, why: &str, draw: f64) -> RepairChange {
        self.enter(self.entry.step, RepairStepStatus::Waiting);
        let count = self.entry.drain_backoff_count.saturating_add(1);
        self.entry.drain_backoff_count = count;
        self.entry.drain_backoff_expire = Some(add_duration(self.now, back_off(count, draw)));
        self.kept.drain = Some(why.to_owned());
        let record = self.completed_record(DRAIN_TIMEOUT, why.to_owned());
        let conditions = self.entry_conditions();
        self.into_change(DRAIN_TIMEOUT, conditions, record)
    }

    /// Announces a step's command. Also returns the number of its record.
    #[must_use]
    pub fn execute(mut self, step: u32) -> (RepairChange, i64) {
        self.enter(step, RepairStepStatus::Watching);
        let id = self.id;
        self.kept.started = Some(StartedRepairCommand { step, at: self.now, record: id });
        let record = RepairWrite::Record(self.begin_record(EXECUTE));
        let conditions = self.effect_conditions();
        (self.into_change(EXECUTE, conditions, record), id)
    }

    /// Announces the success command. Also returns the number of its record.
    #[must_use]
    pub fn finish_with_command(mut self) -> (RepairChange, i64) {
        let id = self.id;
        self.kept.finishing = Some(id);
        let record = RepairWrite::Record(self.begin_record(FINISH));
        let conditions = self.entry_conditions();
        (self.into_change(FINISH, conditions, record), id)
    }

    /// Ends the entry without a command.
    #[must_use]
    pub fn finish(mut self, status: RepairStatus, step: u32, why: &str) -> RepairChange {
        self.end_step(status, step, why);
        let record = self.completed_record(FINISH, format!("{}{why}", outcome_prefix(&self.entry.status)));
        let conditions = self.entry_conditions();
        self.into_change(FINISH, conditions, record)
    }

    /// Restores an overwritten entry; `None`: nothing is missing in it.
    #[must_use]
    pub fn restore(mut self) -> Option<RepairChange> {
        let was = format!("{} (step {}, {})", self.entry.status, self.entry.step, self.entry.step_status);
        let what = match self.kept.find_missing_progress(&self.entry)? {
            MissingProgress::Started(started) => {
                let started = started.clone();
                self.entry.status = RepairStatus::Processing;
                self.entry.step_status = RepairStepStatus::Watching;
                self.entry.step = started.step;
                self.entry.last_transition_time = Some(started.at);
                EXECUTE
            }
            MissingProgress::Ended(ended) => {
                let ended = ended.clone();
                self.entry.status = ended.status;
                self.entry.step = ended.step;
                self.entry.last_transition_time = Some(ended.at);
                FINISH
            }
        };
        let info =
            format!("another writer replaced the entry by an older state, {was}; no command runs again");
        let record = self.completed_record(what, info);
        let conditions = self.entry_conditions();
        Some(self.into_change(what, conditions, record))
    }

    fn enter(&mut self, step: u32, step_status: RepairStepStatus) {
        self.entry.status = RepairStatus::Processing;
        self.entry.step = step;
        self.entry.step_status = step_status;
        self.entry.last_transition_time = Some(self.now);
    }

    fn end_step(&mut self, status: RepairStatus, step: u32, why: &str) {
        self.entry.status = status.clone();
        self.entry.step = step;
        self.entry.last_transition_time = Some(self.now);
        self.kept.ended = Some(EntryEnd { status, step, at: self.now, why: why.to_owned() });
    }

    fn begin_record(&self, operation: &'static str) -> Record {
        Record::of_command(self.id, operation, command_name(operation), &self.entry.address, self.now)
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
        let kept = RepairWrite::Kept { index: self.index, kept: Some(self.kept) };
        RepairChange { what, conditions, writes: vec![RepairWrite::Entry(self.entry), kept, record] }
    }

    fn entry_conditions(&self) -> Vec<Condition> {
        let queue = &self.state.repair;
        let mut conditions = vec![queue.require_unchanged_state(self.index)];
        conditions.extend(
            Some(queue.require_unchanged_entry(self.index)).filter(|_| !is_planted(Canary::EntryNotCompared)),
        );
        conditions.extend(queue.require_unchanged_records());
        conditions
    }

    /// Conditions of an announcement: the queue is enabled, and the cluster is unchanged.
    fn effect_conditions(&self) -> Vec<Condition> {
        let mut conditions = self.entry_conditions();
        let revision = self.state.repair.disabled_revision;
        conditions.push(Condition::Unchanged { key: keys::REPAIRS_DISABLED.to_owned(), revision });
        conditions.push(self.state.require_unchanged(keys::CLUSTER));
        conditions
    }
}

/// Prefix of the info of a record that ends a repair without a command.
fn outcome_prefix(status: &RepairStatus) -> String {
    format!("{status}: ")
}

/// True if the record ends a repair in failure; without a command CKE's status of the record is `completed`.
#[must_use]
pub fn ends_in_failure(record: &Record) -> bool {
    record.operation == FINISH && record.info.starts_with(&outcome_prefix(&RepairStatus::Failed))
}

/// True if a change fails a step or the whole repair.
#[must_use]
pub fn is_failure(change: &RepairChange) -> bool {
    let fails = |write: &RepairWrite| matches!(write, RepairWrite::Entry(entry) if entry.status == RepairStatus::Failed);
    change.what == DRAIN_TIMEOUT || change.writes.iter().any(fails)
}

/// Ends a command's record and applies the result to the entry. `None`: the record has ended already.
#[must_use]
pub fn end_command(
    state: &ClusterState,
    index: i64,
    id: i64,
    end: &CommandEnd,
    now: OffsetDateTime,
) -> Option<RepairChange> {
    let now = whole_second(now);
    let queue = &state.repair;
    let item = queue.records.unfinished.get(&id)?;
    let mut record = item.value.clone();
    let succeeded = end.how == CommandOutcome::Succeeded;
    end.end_record(&mut record, now);
    let finishing = record.operation == FINISH;
    let what = if finishing { FINISH } else { EXECUTE };
    let mut conditions = vec![Condition::Unchanged { key: keys::record(id), revision: item.revision }];
    let record = RepairWrite::Record(record);
    // If a repair command succeeded or its outcome is unknown, the health check decides the rest.
    let decides = match end.how {
        CommandOutcome::Succeeded => finishing,
        CommandOutcome::Failed => true,
        CommandOutcome::NotBegun
        | CommandOutcome::Refused
        | CommandOutcome::Stopped
        | CommandOutcome::Unknown => false,
    };
    let entry = queue.entries.get(&index).filter(|item| decides && !item.value.is_finished());
    let Some(item) = entry else { return Some(RepairChange { what, conditions, writes: vec![record] }) };
    conditions.extend([queue.require_unchanged_entry(index), queue.require_unchanged_state(index)]);
    let status = if succeeded { RepairStatus::Succeeded } else { RepairStatus::Failed };
    let kept = queue.kept_state_of(index).cloned().unwrap_or_default();
    let step = kept.started.as_ref().map_or(item.value.step, |started| started.step.max(item.value.step));
    let why = match (finishing, succeeded) {
        (true, true) => "the machine is healthy",
        (true, false) => "the success command failed",
        (false, _) => "the repair command failed",
    };
    let ended = EntryEnd { status: status.clone(), step, at: now, why: why.to_owned() };
    let entry = RepairQueueEntry { status, step, last_transition_time: Some(now), ..item.value.clone() };
    let kept = KeptEntry { entry: item.created, ended: Some(ended), ..kept };
    let kept = RepairWrite::Kept { index, kept: Some(kept) };
    Some(RepairChange { what, conditions, writes: vec![RepairWrite::Entry(entry), kept, record] })
}

/// Ends an unfinished record of this queue that has no running command here: its outcome is unknown.
#[must_use]
pub fn cancel_unfinished(
    queue: &RepairQueue,
    runs: Option<i64>,
    now: OffsetDateTime,
) -> Option<RepairChange> {
    let (id, item) = queue
        .records
        .unfinished
        .iter()
        .find(|(id, item)| Some(**id) != runs && OPERATIONS.contains(&item.value.operation.as_str()))?;
    let mut record = item.value.clone();
    record.cancel(whole_second(now), "outcome unknown: the actor that ran it is gone");
    Some(RepairChange {
        what: "repair-disown",
        conditions: vec![Condition::Unchanged { key: keys::record(*id), revision: item.revision }],
        writes: vec![RepairWrite::Record(record)],
    })
}

/// Deletes data kept for an entry that is gone or was replaced.
#[must_use]
pub fn forget_kept_state(queue: &RepairQueue) -> Option<RepairChange> {
    // An unreadable entry exists.
    let gone =
        |index: &&i64| !queue.entries.contains_key(*index) && !queue.unreadable.entries.contains_key(*index);
    // While its command runs, the kept data is the only trace of that command.
    let index =
        queue.kept.keys().filter(|index| queue.unfinished_command_of(**index).is_none()).find(gone)?;
    Some(RepairChange {
        what: "repair-forget",
        conditions: vec![queue.require_unchanged_entry(*index), queue.require_unchanged_state(*index)],
        writes: vec![RepairWrite::Kept { index: *index, kept: None }],
    })
}

fn command_name(operation: &str) -> &'static str {
    match operation {
        DEQUEUE => "repairDequeueCommand",
        DRAIN_START => "repairDrainStartCommand",
        DRAIN_TIMEOUT => "repairDrainTimeoutCommand",
        EXECUTE => "repairExecuteCommand",
        _ => "repairFinishCommand",
    }
}
