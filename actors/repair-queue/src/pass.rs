//! Computes the next action of every entry (CKE's `repairOps`; choices that CKE leaves to chance are deterministic
//! here).
//!
//! Guarantees: whatever the queue holds, new work begins for at most one entry of a machine, one control plane node,
//! and as many entries as the configuration allows. Entries under way count first, so that neither an older index nor
//! a lowered limit leads to more. A decision costs `n log n` of the entries.
//!
//! # Slots
//! An entry holds one of the `max_concurrent_repairs` slots while its node is drained, its command runs, or its
//! health watch lasts. After the watch it keeps the slot before all waiting entries, unless waiting cannot clear its
//! obstacle (a held rack, a missing operation, no Kubernetes). Then other entries may take the slot, and it continues
//! when a slot is free. It keeps its machine, and its place as the one control plane node: the machine is in the
//! middle of a repair, and its node stays cordoned. None of this is written, as it follows from the entry.

mod nodes;
mod occupied;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use madako_domain::canary::{Canary, is_planted};
use madako_domain::keys;
use madako_domain::reboot::RebootStatus;
use madako_domain::repair::config::{RepairConfig, RepairOperation};
use madako_domain::repair::queue::RepairQueue;
use madako_domain::repair::{RepairQueueEntry, RepairStatus, RepairStepStatus};
use madako_domain::state::ClusterState;
use time::OffsetDateTime;

pub use self::nodes::{NodeRole, NodesByAddress, nodes_by_address, nodes_of_queue};
use self::occupied::OccupiedResources;
use crate::future_transitions::FutureTransitions;
use crate::next_action::{Abandoned, Action, BlockedBy, Failure, NextAction};
use crate::racks::HeldBack;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    Healthy,
    /// The check reported an unhealthy machine, or failed.
    Unhealthy,
}

/// Progress of the drain of an entry's node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Drain {
    /// An earlier leader began the drain, and it was not checked yet: it may have ended long ago.
    Unseen {
        /// No time-out before this.
        until: OffsetDateTime,
    },
    Runs {
        waits: Option<String>,
    },
    /// Only pods that a drain leaves in place are left.
    Done,
    /// The drain was done and no longer is: an operator uncordoned the node, pods arrived, or the API does not
    /// answer.
    Undone {
        /// No time-out before this: new pods get as much time as the first ones.
        until: OffsetDateTime,
        waits: String,
    },
    Failed {
        why: String,
    },
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeaderState {
    /// Valid health of the machines of unfinished entries, by index.
    pub health: BTreeMap<i64, Health>,
    pub drains: BTreeMap<i64, Drain>,
    /// This instance runs commands.
    pub host: bool,
    pub kubernetes: bool,
    /// No step and no command begins before this time: the registry's first reports to this leader may show that a
    /// rack failed.
    pub reports_awaited: Option<OffsetDateTime>,
    /// An operation on nodes is due or runs.
    pub operation_due: bool,
    /// Control plane nodes whose repair would break invariant I2 or I13, with the violation.
    pub quorum: BTreeMap<String, String>,
    /// Corrected times of last transitions that a wrong clock wrote.
    pub counted: FutureTransitions,
}

#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    pub queue: &'a RepairQueue,
    pub nodes: &'a NodesByAddress<'a>,
    /// The repair configuration, or the obstacle in its place.
    pub config: Result<&'a RepairConfig, &'a BlockedBy>,
    pub held: &'a HeldBack,
    pub live: &'a LeaderState,
    pub now: OffsetDateTime,
}

/// The repair configuration of a state.
///
/// # Errors
/// There is no cluster, or its section cannot be used.
pub fn config(state: &ClusterState) -> Result<&RepairConfig, BlockedBy> {
    match (&state.repair_config, &state.repair_fault) {
        (Some(config), _) => Ok(config),
        (None, Some(why)) => Err(BlockedBy::Unusable { why: why.clone() }),
        (None, None) => Err(BlockedBy::NoCluster),
    }
}

/// Priority of an entry: a smaller value is served earlier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Priority {
    /// The entry holds a slot, whatever else applies.
    UnderWay,
    /// The health watch after its command is over.
    Continues,
    /// The repair began, its next step did not.
    Waits,
    /// The repair did not begin.
    Queued,
}

/// An entry and the inputs of its decision.
struct Candidate<'a> {
    index: i64,
    entry: &'a RepairQueueEntry,
    node: Option<NodeRole<'a>>,
    operation: Result<&'a RepairOperation, BlockedBy>,
    /// Record number of its running command.
    command: Option<i64>,
    priority: Priority,
}

impl Candidate<'_> {
    /// Sort key: stage, then control plane nodes first, then index.
    fn rank(&self) -> (Priority, bool, i64) {
        (self.priority, !self.node.is_some_and(|node| node.control_plane), self.index)
    }
}

/// Next action of every entry, in the order of service; entries that need no slot come first.
#[must_use]
pub fn next_actions(view: &View<'_>) -> Vec<NextAction> {
    let rebooting: BTreeSet<&str> = view
        .queue
        .rebooting_nodes()
        .map(|(node, _)| node)
        .filter(|node| view.nodes.get(node).is_some_and(|node| node.control_plane))
        .collect();
    let mut actions = Vec::with_capacity(view.queue.entries.len());
    let mut candidates = Vec::new();
    for (index, item) in &view.queue.entries {
        let entry = &item.value;
        match view.immediate_action(*index, entry) {
            Some((action, blocked_by)) => {
                actions.push(NextAction {
                    index: *index,
                    address: entry.address.clone(),
                    action,
                    blocked_by,
                });
            }
            None => candidates.push(view.make_candidate(*index, entry)),
        }
    }
    candidates.sort_by_key(Candidate::rank);
    let mut processed = BTreeMap::new();
    for candidate in candidates.iter().filter(|candidate| candidate.entry.status == RepairStatus::Processing)
    {
        processed.entry(candidate.entry.address.as_str()).or_insert(candidate.index);
    }
    let stray = view.queue.kept.keys().find_map(|index| {
        let record = view.queue.unfinished_command_of(*index)?;
        candidates.iter().all(|candidate| candidate.command != Some(record)).then_some(record)
    });
    let drained = view.queue.rebooting_nodes().filter(|(_, entry)| entry.status == RebootStatus::Draining);
    let drained = drained.map(|(node, _)| node).collect();
    let mut occupied = OccupiedResources {
        slots: 0,
        machines: BTreeMap::new(),
        processed,
        api_server: None,
        drained,
        stray,
    };
    for candidate in &candidates {
        let (action, blocked_by) = view.decide_entry(candidate, &mut occupied, &rebooting);
        let blocked_by =
            if view.queue.records.next.is_none() { Some(BlockedBy::NoRecords) } else { blocked_by };
        actions.push(NextAction {
            index: candidate.index,
            address: candidate.entry.address.clone(),
            action,
            blocked_by,
        });
    }
    actions
}

impl<'a> View<'a> {
    /// Actions that need no slot: removals, ended entries, and entries overwritten with an older state.
    fn immediate_action(&self, index: i64, entry: &RepairQueueEntry) -> Option<(Action, Option<BlockedBy>)> {
        let runs = self.command_runs(index);
        if entry.deleted {
            let records = self.queue.records.next.is_none().then_some(BlockedBy::NoRecords);
            return Some((Action::Remove, runs.or(records)));
        }
        if entry.is_finished() {
            return Some((Action::Nothing, None));
        }
        self.queue.kept_state_of(index)?.find_missing_progress(entry).map(|_| (Action::Restore, runs))
    }

    /// Obstacle of an entry whose command runs.
    fn command_runs(&self, index: i64) -> Option<BlockedBy> {
        if let Some(record) = self.queue.running_repair_of(index) {
            return Some(BlockedBy::CommandRuns { record });
        }
        self.queue.unfinished_command_of(index).map(|record| BlockedBy::SuccessCommandRuns { record })
    }

    /// Time of the entry's last transition, corrected for wrong clocks.
    fn transition_time(&self, entry: &RepairQueueEntry) -> OffsetDateTime {
        self.live.counted.transition_time(entry)
    }

    fn make_candidate(&self, index: i64, entry: &'a RepairQueueEntry) -> Candidate<'a> {
        let node = self.nodes.get(entry.address.as_str()).copied();
        let operation = match self.config {
            Ok(config) => config.operation_for(entry).map_err(BlockedBy::Missing),
            Err(blocked_by) => Err(blocked_by.clone()),
        };
        let command = self.queue.unfinished_command_of(index);
        let priority = match (&entry.status, &entry.step_status) {
            _ if command.is_some() => Priority::UnderWay,
            (RepairStatus::Processing, RepairStepStatus::Draining) => Priority::UnderWay,
            (RepairStatus::Processing, RepairStepStatus::Watching) => {
                let watched =
                    operation.as_ref().is_ok_and(|operation| self.watched_since(entry, operation).is_some());
                if watched { Priority::UnderWay } else { Priority::Continues }
            }
            (RepairStatus::Processing, _) => Priority::Waits,
            _ => Priority::Queued,
        };
        Candidate { index, entry, node, operation, command, priority }
    }

    /// End of the health watch after a command; `None`: it is over.
    fn watched_since(&self, entry: &RepairQueueEntry, operation: &RepairOperation) -> Option<OffsetDateTime> {
        let watch = operation.step(entry.step).map_or(Duration::ZERO, |step| step.watch);
        let until = add_duration(self.transition_time(entry), watch);
        // As in CKE, a zero watch ends with the first health check; a longer watch ends once its time has passed.
        let skipped = is_planted(Canary::WatchSkipped);
        (!watch.is_zero() && until >= self.now && !skipped).then_some(until)
    }

    fn decide_entry(
        &self,
        candidate: &Candidate<'a>,
        occupied: &mut OccupiedResources<'a>,
        rebooting: &BTreeSet<&str>,
    ) -> (Action, Option<BlockedBy>) {
        let rival = occupied.find_rival(candidate, rebooting);
        match candidate.priority {
            Priority::UnderWay => occupied.take(candidate),
            Priority::Continues => occupied.occupy(candidate),
            Priority::Waits | Priority::Queued => {}
        }
        if let Some(runs) = self.command_runs(candidate.index) {
            let action = match runs {
                BlockedBy::SuccessCommandRuns { .. } => Action::Succeed { command: true },
                _ => Action::Execute { step: candidate.entry.step },
            };
            return (action, Some(runs));
        }
        if self.queue.unreadable.kept.contains_key(&candidate.index) {
            // An untracked command may have run.
            let key = keys::repair_state_key(candidate.index);
            return (Action::Execute { step: candidate.entry.step }, Some(BlockedBy::KeptUnreadable { key }));
        }
        let operation = match &candidate.operation {
            Ok(operation) => *operation,
            Err(blocked_by) => return without_operation(candidate, blocked_by),
        };
        if self.health_of(candidate, operation) == Some(Health::Healthy) {
            return self.next_of_healthy(candidate.index, operation);
        }
        match (&candidate.entry.status, &candidate.entry.step_status) {
            (RepairStatus::Processing, RepairStepStatus::Draining) => {
                self.next_of_draining(candidate, operation, rival)
            }
            (RepairStatus::Processing, RepairStepStatus::Watching) => {
                self.next_of_watched(candidate, operation, rival, occupied)
            }
            _ => self.next_of_waiting(candidate, operation, rival, occupied),
        }
    }

    fn health_of(&self, candidate: &Candidate<'_>, operation: &RepairOperation) -> Option<Health> {
        match operation.health_check {
            Some(_) => self.live.health.get(&candidate.index).copied(),
            None => Some(Health::Unhealthy),
        }
    }

    fn next_of_healthy(&self, index: i64, operation: &RepairOperation) -> (Action, Option<BlockedBy>) {
        // A success command whose end was not seen is not run again.
        let begun = self.queue.kept_state_of(index).is_some_and(|kept| kept.finishing.is_some());
        let command = operation.success.is_some() && !begun;
        let blocked_by = if command { self.no_command_because() } else { None };
        (Action::Succeed { command }, blocked_by)
    }

    /// Obstacle to running any command now.
    fn no_command_because(&self) -> Option<BlockedBy> {
        if !self.live.host {
            return Some(BlockedBy::NoHost);
        }
        match self.queue.records.unfinished.first_key_value() {
            Some((record, _)) => Some(BlockedBy::CommandRuns { record: *record }),
            None => self.live.operation_due.then_some(BlockedBy::OperationDue),
        }
    }

    fn next_of_draining(
        &self,
        candidate: &Candidate<'a>,
        operation: &RepairOperation,
        rival: Option<BlockedBy>,
    ) -> (Action, Option<BlockedBy>) {
        let abandon = |why| (Action::Abandon(why), None);
        if self.queue.disabled {
            return abandon(Abandoned::Disabled);
        }
        if let Some(rack) = self.held.racks.get(&candidate.entry.address) {
            return abandon(Abandoned::Held { rack: rack.clone() });
        }
        match rival {
            Some(BlockedBy::SameMachine { index }) => return abandon(Abandoned::SameMachine { index }),
            Some(BlockedBy::ApiServerRepaired { address } | BlockedBy::ApiServerRebooted { address }) => {
                return abandon(Abandoned::ApiServer { address });
            }
            _ => {}
        }
        let step = candidate.entry.step;
        if operation.step(step).is_none() {
            let unasked = self.health_unknown(candidate, operation);
            return (Action::Fail(Failure::NoStepLeft { step }), unasked.or_else(|| self.reports_awaited()));
        }
        let action = Action::Execute { step };
        let limit = self.config.map_or(Duration::ZERO, |config| config.eviction_timeout);
        let until = add_duration(self.transition_time(candidate.entry), limit);
        // A machine that left the cluster needs no drain.
        let is_drained = candidate.node.is_none()
            || (self.live.kubernetes && self.live.drains.get(&candidate.index) == Some(&Drain::Done));
        if is_drained && until < self.now {
            // An unavailable registry must not keep the node empty. The member that etcd lacks may need a repair, too,
            // and control plane nodes are repaired one at a time.
            let unplaced = self.held.unplaced.contains(&candidate.entry.address);
            let waits =
                if unplaced { Some(BlockedBy::RackUnknown) } else { self.find_quorum_obstacle(candidate) };
            if let Some(waits) = waits {
                return abandon(Abandoned::Timeout { waits: Some(waits.to_string()) });
            }
        }
        if is_drained {
            return self.next_of_drained(candidate, operation, step);
        }
        if !self.live.kubernetes {
            return abandon(Abandoned::Impossible { why: BlockedBy::NoKubernetes.to_string() });
        }
        let (until, waits) = match self.live.drains.get(&candidate.index) {
            Some(Drain::Failed { why }) => return abandon(Abandoned::Impossible { why: why.clone() }),
            Some(Drain::Unseen { until: looked }) => (until.max(*looked), None),
            Some(Drain::Undone { until: again, waits }) => (until.max(*again), Some(waits.clone())),
            Some(Drain::Runs { waits }) => (until, waits.clone()),
            Some(Drain::Done) | None => (until, None),
        };
        if until < self.now {
            return abandon(Abandoned::Timeout { waits });
        }
        (action, Some(BlockedBy::Draining { until, waits }))
    }

    /// The command of a step whose drain is done.
    fn next_of_drained(
        &self,
        candidate: &Candidate<'a>,
        operation: &RepairOperation,
        step: u32,
    ) -> (Action, Option<BlockedBy>) {
        let (action, blocked_by) = self.execute(candidate, operation, step);
        (action, blocked_by.or_else(|| self.reports_awaited()))
    }

    fn next_of_watched(
        &self,
        candidate: &Candidate<'a>,
        operation: &RepairOperation,
        rival: Option<BlockedBy>,
        occupied: &mut OccupiedResources<'a>,
    ) -> (Action, Option<BlockedBy>) {
        let (action, blocked_by) = self.begin(candidate, operation, candidate.entry.step + 1);
        if let Some(until) = self.watched_since(candidate.entry, operation) {
            return (action, Some(BlockedBy::Watching { until }));
        }
        let awaited = self.reports_awaited();
        if matches!(action, Action::Fail(_)) {
            let blocked_by = blocked_by.or(awaited);
            // Until the failure is written, the entry keeps its slot, unless waiting cannot clear the obstacle.
            if !blocked_by.as_ref().is_some_and(frees_slot) {
                occupied.take(candidate);
            }
            return (action, blocked_by);
        }
        self.take_slot(candidate, (action, blocked_by), awaited.or(rival), occupied)
    }

    fn next_of_waiting(
        &self,
        candidate: &Candidate<'a>,
        operation: &RepairOperation,
        rival: Option<BlockedBy>,
        occupied: &mut OccupiedResources<'a>,
    ) -> (Action, Option<BlockedBy>) {
        let (action, blocked_by) = self.begin(candidate, operation, candidate.entry.step);
        let awaited = self.reports_awaited();
        if matches!(action, Action::Fail(_)) {
            return (action, blocked_by.or(awaited));
        }
        let back_off = candidate
            .entry
            .drain_backoff_expire
            // The back-off counts from the entry's last transition.
            .map(|until| {
                until.saturating_add(
                    self.transition_time(candidate.entry) - last_transition_of(candidate.entry),
                )
            })
            .filter(|until| candidate.entry.status == RepairStatus::Processing && *until > self.now);
        if let Some(until) = back_off {
            let why = self.queue.kept_state_of(candidate.index).and_then(|kept| kept.drain.clone());
            return (
                action,
                Some(BlockedBy::BackOff { until, count: candidate.entry.drain_backoff_count, why }),
            );
        }
        self.take_slot(candidate, (action, blocked_by), awaited.or(rival), occupied)
    }

    /// Takes a slot for the next step of an entry that holds none.
    fn take_slot(
        &self,
        candidate: &Candidate<'a>,
        (action, blocked_by): (Action, Option<BlockedBy>),
        rival: Option<BlockedBy>,
        occupied: &mut OccupiedResources<'a>,
    ) -> (Action, Option<BlockedBy>) {
        if blocked_by.as_ref().is_some_and(frees_slot) {
            return (action, blocked_by);
        }
        if let Some(violation) = self.find_quorum_obstacle(candidate) {
            return (action, Some(violation));
        }
        if let Some(rival) = rival {
            return (action, Some(rival));
        }
        let maximum = self.config.map_or(0, |config| config.max_concurrent);
        if occupied.slots >= maximum + u32::from(is_planted(Canary::OneRepairMore)) {
            return (action, Some(BlockedBy::Slots { maximum }));
        }
        occupied.take(candidate);
        (action, blocked_by)
    }

    /// First action of a step, and the entry's own obstacle to it.
    fn begin(
        &self,
        candidate: &Candidate<'a>,
        operation: &RepairOperation,
        number: u32,
    ) -> (Action, Option<BlockedBy>) {
        let skipped = number > 0 && is_planted(Canary::SecondStepSkipped);
        let Some(step) = operation.step(number).filter(|_| !skipped) else {
            return (
                Action::Fail(Failure::NoStepLeft { step: number }),
                self.not_failed_because(candidate, operation),
            );
        };
        if step.need_drain && candidate.node.is_some() {
            let blocked_by = self
                .disabled_or_held(candidate)
                .or_else(|| (!self.live.kubernetes).then_some(BlockedBy::NoKubernetes))
                .or_else(|| (!self.live.host).then_some(BlockedBy::NoHost))
                .or_else(|| self.health_unknown(candidate, operation));
            return (Action::Drain { step: number }, blocked_by);
        }
        self.execute(candidate, operation, number)
    }

    /// The command of a step, and its obstacle.
    fn execute(
        &self,
        candidate: &Candidate<'a>,
        operation: &RepairOperation,
        step: u32,
    ) -> (Action, Option<BlockedBy>) {
        if operation.step(step).is_some_and(|step| step.command.is_none()) {
            return (
                Action::Fail(Failure::NoCommand { step }),
                self.not_failed_because(candidate, operation),
            );
        }
        let blocked_by = self
            .disabled_or_held(candidate)
            .or_else(|| self.health_unknown(candidate, operation))
            // Another member may have failed since the drain began.
            .or_else(|| self.find_quorum_obstacle(candidate))
            .or_else(|| self.no_command_because());
        (Action::Execute { step }, blocked_by)
    }

    /// Obstacle to a drain or command of a control plane node: it would break invariant I2 or I13.
    fn find_quorum_obstacle(&self, candidate: &Candidate<'_>) -> Option<BlockedBy> {
        let violation = self.live.quorum.get(&candidate.entry.address)?.clone();
        Some(BlockedBy::Quorum { violation })
    }

    /// No step or command begins and no entry fails before a new leader can know which racks failed while there was
    /// none.
    fn reports_awaited(&self) -> Option<BlockedBy> {
        self.live.reports_awaited.map(|until| BlockedBy::ReportsAwaited { until })
    }

    fn held_by(&self, candidate: &Candidate<'_>) -> Option<BlockedBy> {
        if self.held.unplaced.contains(&candidate.entry.address) {
            return Some(BlockedBy::RackUnknown);
        }
        let rack = self.held.racks.get(&candidate.entry.address)?.clone();
        let unreadable = self.held.unreadable.contains(&rack);
        Some(if unreadable { BlockedBy::HoldUnreadable { rack } } else { BlockedBy::Held { rack } })
    }

    fn disabled_or_held(&self, candidate: &Candidate<'_>) -> Option<BlockedBy> {
        let disabled = self.queue.disabled.then_some(BlockedBy::Disabled);
        disabled.or_else(|| self.held_by(candidate))
    }

    /// Obstacle to failing an entry: a rack without power does not make its machines unrepairable, and a machine may
    /// have become healthy.
    fn not_failed_because(
        &self,
        candidate: &Candidate<'_>,
        operation: &RepairOperation,
    ) -> Option<BlockedBy> {
        self.held_by(candidate).or_else(|| self.health_unknown(candidate, operation))
    }

    /// Nothing begins for a machine that may have become healthy meanwhile.
    fn health_unknown(&self, candidate: &Candidate<'_>, operation: &RepairOperation) -> Option<BlockedBy> {
        let unknown = self.health_of(candidate, operation).is_none();
        unknown.then_some(if self.live.host { BlockedBy::HealthUnknown } else { BlockedBy::NoHost })
    }
}

/// Next action of an entry whose operation is not configured: it holds no slot.
fn without_operation(candidate: &Candidate<'_>, blocked_by: &BlockedBy) -> (Action, Option<BlockedBy>) {
    let step = match (&candidate.entry.status, &candidate.entry.step_status) {
        (RepairStatus::Processing, RepairStepStatus::Draining) => {
            let why = match blocked_by {
                BlockedBy::Missing(missing) => Abandoned::Missing(missing.clone()),
                other => Abandoned::Unusable { why: other.to_string() },
            };
            return (Action::Abandon(why), None);
        }
        // The current step was done.
        (RepairStatus::Processing, RepairStepStatus::Watching) => candidate.entry.step + 1,
        _ => candidate.entry.step,
    };
    (Action::Execute { step }, Some(blocked_by.clone()))
}

/// True if waiting cannot clear this obstacle, so that its slot is freed.
fn frees_slot(blocked_by: &BlockedBy) -> bool {
    use BlockedBy::{Disabled, Held, HoldUnreadable, NoHost, NoKubernetes, RackUnknown};
    matches!(blocked_by, Disabled | Held { .. } | HoldUnreadable { .. } | RackUnknown | NoKubernetes | NoHost)
}

/// Adds a duration, up to the end of time.
pub(crate) fn add_duration(time: OffsetDateTime, by: Duration) -> OffsetDateTime {
    time.saturating_add(by.try_into().unwrap_or(time::Duration::MAX))
}

/// Time of the entry's last transition; the Unix epoch when it is missing.
pub(crate) fn last_transition_of(entry: &RepairQueueEntry) -> OffsetDateTime {
    entry.last_transition_time.unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

#[cfg(test)]
mod tests;
