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

mod places;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use madako_domain::canary::{Canary, is_planted};
use madako_domain::keys;
use madako_domain::repair::config::{RepairConfig, RepairOperation};
use madako_domain::repair::queue::RepairQueue;
use madako_domain::repair::{RepairQueueEntry, RepairStatus, RepairStepStatus};
use madako_domain::state::ClusterState;
use time::OffsetDateTime;

pub use self::places::{Place, Places, places, places_of};
use crate::ahead::Ahead;
use crate::outlook::{Abandoned, Failure, Next, Obstacle, Outlook};
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

/// State that only the leader has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Live {
    /// Valid health of the machines of unfinished entries, by index.
    pub health: BTreeMap<i64, Health>,
    pub drains: BTreeMap<i64, Drain>,
    /// This instance runs commands.
    pub host: bool,
    pub kubernetes: bool,
    /// No step and no command begins before this time: the registry's first reports to this leader may show that a
    /// rack failed.
    pub reports_awaited: Option<OffsetDateTime>,
    /// Corrected times of last transitions that a wrong clock wrote.
    pub counted: Ahead,
}

#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    pub queue: &'a RepairQueue,
    pub places: &'a Places<'a>,
    /// The repair configuration, or the obstacle in its place.
    pub config: Result<&'a RepairConfig, &'a Obstacle>,
    /// Machines in held racks.
    pub held: &'a HeldBack,
    pub live: &'a Live,
    pub now: OffsetDateTime,
}

/// The repair configuration of a state.
///
/// # Errors
/// There is no cluster, or its section cannot be used.
pub fn config(state: &ClusterState) -> Result<&RepairConfig, Obstacle> {
    match (&state.repair_config, &state.repair_fault) {
        (Some(config), _) => Ok(config),
        (None, Some(why)) => Err(Obstacle::Unusable { why: why.clone() }),
        (None, None) => Err(Obstacle::NoCluster),
    }
}

/// Priority of an entry: a smaller value is served earlier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    /// The entry holds a slot, whatever else applies.
    UnderWay,
    /// The health watch after its command is over.
    GoesOn,
    /// The repair began, its next step did not.
    Waits,
    /// The repair did not begin.
    Queued,
}

/// An entry and the inputs of its decision.
struct Case<'a> {
    index: i64,
    entry: &'a RepairQueueEntry,
    place: Option<Place<'a>>,
    operation: Result<&'a RepairOperation, Obstacle>,
    /// Record number of its running command.
    command: Option<i64>,
    stage: Stage,
}

impl Case<'_> {
    /// Sort key: stage, then control plane nodes first, then index.
    fn rank(&self) -> (Stage, bool, i64) {
        (self.stage, !self.place.is_some_and(|place| place.control_plane), self.index)
    }
}

/// Resources that entries occupy.
struct Taken<'a> {
    slots: u32,
    /// The entry that occupies each machine.
    machines: BTreeMap<&'a str, i64>,
    /// The entry of each machine whose repair began and has not ended, even if it waits.
    processed: BTreeMap<&'a str, i64>,
    api_server: Option<&'a str>,
    /// Record of a command whose entry does not show it: the entry is deleted, unreadable, or overwritten with an
    /// older state. Nothing begins until that command ends, as the entry does not tell which machine it runs on.
    stray: Option<i64>,
}

/// Next action of every entry, in the order of service; entries that need no slot come first.
#[must_use]
pub fn look(view: &View<'_>) -> Vec<Outlook> {
    let rebooting: BTreeSet<&str> = view
        .queue
        .rebooting()
        .map(|(node, _)| node)
        .filter(|node| view.places.get(node).is_some_and(|place| place.control_plane))
        .collect();
    let mut outlooks = Vec::with_capacity(view.queue.entries.len());
    let mut cases = Vec::new();
    for (index, item) in &view.queue.entries {
        let entry = &item.value;
        match view.at_once(*index, entry) {
            Some((next, obstacle)) => {
                outlooks.push(Outlook { index: *index, address: entry.address.clone(), next, obstacle });
            }
            None => cases.push(view.case(*index, entry)),
        }
    }
    cases.sort_by_key(Case::rank);
    let mut processed = BTreeMap::new();
    for case in cases.iter().filter(|case| case.entry.status == RepairStatus::Processing) {
        processed.entry(case.entry.address.as_str()).or_insert(case.index);
    }
    let stray = view.queue.kept.keys().find_map(|index| {
        let record = view.queue.command_of(*index)?;
        cases.iter().all(|case| case.command != Some(record)).then_some(record)
    });
    let mut taken = Taken { slots: 0, machines: BTreeMap::new(), processed, api_server: None, stray };
    for case in &cases {
        let (next, obstacle) = view.turn(case, &mut taken, &rebooting);
        let obstacle = if view.queue.records.next.is_none() { Some(Obstacle::NoRecords) } else { obstacle };
        outlooks.push(Outlook { index: case.index, address: case.entry.address.clone(), next, obstacle });
    }
    outlooks
}

impl<'a> View<'a> {
    /// Actions that need no slot: removals, ended entries, and entries overwritten with an older state.
    fn at_once(&self, index: i64, entry: &RepairQueueEntry) -> Option<(Next, Option<Obstacle>)> {
        let runs = self.command_runs(index);
        if entry.deleted {
            let records = self.queue.records.next.is_none().then_some(Obstacle::NoRecords);
            return Some((Next::Remove, runs.or(records)));
        }
        if entry.is_finished() {
            return Some((Next::Nothing, None));
        }
        self.queue.kept_of(index)?.behind(entry).map(|_| (Next::Restore, runs))
    }

    /// Obstacle of an entry whose command runs.
    fn command_runs(&self, index: i64) -> Option<Obstacle> {
        if let Some(record) = self.queue.repair_of(index) {
            return Some(Obstacle::CommandRuns { record });
        }
        self.queue.command_of(index).map(|record| Obstacle::SuccessCommandRuns { record })
    }

    /// Time of the entry's last transition, corrected for wrong clocks.
    fn since(&self, entry: &RepairQueueEntry) -> OffsetDateTime {
        self.live.counted.since(entry)
    }

    fn case(&self, index: i64, entry: &'a RepairQueueEntry) -> Case<'a> {
        let place = self.places.get(entry.address.as_str()).copied();
        let operation = match self.config {
            Ok(config) => config.of(entry).map_err(Obstacle::Missing),
            Err(obstacle) => Err(obstacle.clone()),
        };
        let command = self.queue.command_of(index);
        let stage = match (&entry.status, &entry.step_status) {
            _ if command.is_some() => Stage::UnderWay,
            (RepairStatus::Processing, RepairStepStatus::Draining) => Stage::UnderWay,
            (RepairStatus::Processing, RepairStepStatus::Watching) => {
                let watched =
                    operation.as_ref().is_ok_and(|operation| self.watched(entry, operation).is_some());
                if watched { Stage::UnderWay } else { Stage::GoesOn }
            }
            (RepairStatus::Processing, _) => Stage::Waits,
            _ => Stage::Queued,
        };
        Case { index, entry, place, operation, command, stage }
    }

    /// End of the health watch after a command; `None`: it is over.
    fn watched(&self, entry: &RepairQueueEntry, operation: &RepairOperation) -> Option<OffsetDateTime> {
        let watch = operation.step(entry.step).map_or(Duration::ZERO, |step| step.watch);
        let until = later(self.since(entry), watch);
        // As in CKE, a zero watch ends with the first health check; a longer watch ends once its time has passed.
        let skipped = is_planted(Canary::WatchSkipped);
        (!watch.is_zero() && until >= self.now && !skipped).then_some(until)
    }

    fn turn(
        &self,
        case: &Case<'a>,
        taken: &mut Taken<'a>,
        rebooting: &BTreeSet<&str>,
    ) -> (Next, Option<Obstacle>) {
        let rival = taken.rival(case, rebooting);
        match case.stage {
            Stage::UnderWay => taken.take(case),
            Stage::GoesOn => taken.occupy(case),
            Stage::Waits | Stage::Queued => {}
        }
        if let Some(runs) = self.command_runs(case.index) {
            let next = match runs {
                Obstacle::SuccessCommandRuns { .. } => Next::Succeed { command: true },
                _ => Next::Execute { step: case.entry.step },
            };
            return (next, Some(runs));
        }
        if self.queue.unreadable.kept.contains_key(&case.index) {
            // An untracked command may have run.
            let key = keys::repair_kept(case.index);
            return (Next::Execute { step: case.entry.step }, Some(Obstacle::KeptUnreadable { key }));
        }
        let operation = match &case.operation {
            Ok(operation) => *operation,
            Err(obstacle) => return without_operation(case, obstacle),
        };
        if self.health(case, operation) == Some(Health::Healthy) {
            return self.succeed(case.index, operation);
        }
        match (&case.entry.status, &case.entry.step_status) {
            (RepairStatus::Processing, RepairStepStatus::Draining) => self.draining(case, operation, rival),
            (RepairStatus::Processing, RepairStepStatus::Watching) => {
                self.watching(case, operation, rival, taken)
            }
            _ => self.waiting(case, operation, rival, taken),
        }
    }

    fn health(&self, case: &Case<'_>, operation: &RepairOperation) -> Option<Health> {
        match operation.health_check {
            Some(_) => self.live.health.get(&case.index).copied(),
            None => Some(Health::Unhealthy),
        }
    }

    fn succeed(&self, index: i64, operation: &RepairOperation) -> (Next, Option<Obstacle>) {
        // A success command whose end was not seen is not run again.
        let begun = self.queue.kept_of(index).is_some_and(|kept| kept.finishing.is_some());
        let command = operation.success.is_some() && !begun;
        let obstacle = if command { self.no_command() } else { None };
        (Next::Succeed { command }, obstacle)
    }

    /// Obstacle to running any command now.
    fn no_command(&self) -> Option<Obstacle> {
        if !self.live.host {
            return Some(Obstacle::NoHost);
        }
        let record = *self.queue.records.unfinished.first_key_value()?.0;
        Some(Obstacle::CommandRuns { record })
    }

    fn draining(
        &self,
        case: &Case<'a>,
        operation: &RepairOperation,
        rival: Option<Obstacle>,
    ) -> (Next, Option<Obstacle>) {
        let abandon = |why| (Next::Abandon(why), None);
        if self.queue.disabled {
            return abandon(Abandoned::Disabled);
        }
        if let Some(rack) = self.held.racks.get(&case.entry.address) {
            return abandon(Abandoned::Held { rack: rack.clone() });
        }
        match rival {
            Some(Obstacle::SameMachine { index }) => return abandon(Abandoned::SameMachine { index }),
            Some(Obstacle::ApiServerRepaired { address } | Obstacle::ApiServerRebooted { address }) => {
                return abandon(Abandoned::ApiServer { address });
            }
            _ => {}
        }
        let step = case.entry.step;
        if operation.step(step).is_none() {
            let unasked = self.unasked(case, operation);
            return (Next::Fail(Failure::NoStepLeft { step }), unasked.or_else(|| self.reports_awaited()));
        }
        let next = Next::Execute { step };
        let limit = self.config.map_or(Duration::ZERO, |config| config.eviction_timeout);
        let until = later(self.since(case.entry), limit);
        // A machine that left the cluster needs no drain.
        let is_drained = case.place.is_none()
            || (self.live.kubernetes && self.live.drains.get(&case.index) == Some(&Drain::Done));
        // An unavailable registry must not keep the node empty.
        if is_drained && until < self.now && self.held.unplaced.contains(&case.entry.address) {
            return abandon(Abandoned::Timeout { waits: Some(Obstacle::RackUnknown.to_string()) });
        }
        if is_drained {
            return self.drained(case, operation, step);
        }
        if !self.live.kubernetes {
            return abandon(Abandoned::Impossible { why: Obstacle::NoKubernetes.to_string() });
        }
        let (until, waits) = match self.live.drains.get(&case.index) {
            Some(Drain::Failed { why }) => return abandon(Abandoned::Impossible { why: why.clone() }),
            Some(Drain::Unseen { until: looked }) => (until.max(*looked), None),
            Some(Drain::Undone { until: again, waits }) => (until.max(*again), Some(waits.clone())),
            Some(Drain::Runs { waits }) => (until, waits.clone()),
            Some(Drain::Done) | None => (until, None),
        };
        if until < self.now {
            return abandon(Abandoned::Timeout { waits });
        }
        (next, Some(Obstacle::Draining { until, waits }))
    }

    /// The command of a step whose drain is done.
    fn drained(&self, case: &Case<'a>, operation: &RepairOperation, step: u32) -> (Next, Option<Obstacle>) {
        let (next, obstacle) = self.execute(case, operation, step);
        (next, obstacle.or_else(|| self.reports_awaited()))
    }

    fn watching(
        &self,
        case: &Case<'a>,
        operation: &RepairOperation,
        rival: Option<Obstacle>,
        taken: &mut Taken<'a>,
    ) -> (Next, Option<Obstacle>) {
        let (next, obstacle) = self.begin(case, operation, case.entry.step + 1);
        if let Some(until) = self.watched(case.entry, operation) {
            return (next, Some(Obstacle::Watching { until }));
        }
        let awaited = self.reports_awaited();
        if matches!(next, Next::Fail(_)) {
            let obstacle = obstacle.or(awaited);
            // Until the failure is written, the entry keeps its slot, unless waiting cannot clear the obstacle.
            if !obstacle.as_ref().is_some_and(frees_slot) {
                taken.take(case);
            }
            return (next, obstacle);
        }
        self.go_on(case, (next, obstacle), awaited.or(rival), taken)
    }

    fn waiting(
        &self,
        case: &Case<'a>,
        operation: &RepairOperation,
        rival: Option<Obstacle>,
        taken: &mut Taken<'a>,
    ) -> (Next, Option<Obstacle>) {
        let (next, obstacle) = self.begin(case, operation, case.entry.step);
        let awaited = self.reports_awaited();
        if matches!(next, Next::Fail(_)) {
            return (next, obstacle.or(awaited));
        }
        let back_off = case
            .entry
            .drain_backoff_expire
            // The back-off counts from the entry's last transition.
            .map(|until| until.saturating_add(self.since(case.entry) - since(case.entry)))
            .filter(|until| case.entry.status == RepairStatus::Processing && *until > self.now);
        if let Some(until) = back_off {
            let why = self.queue.kept_of(case.index).and_then(|kept| kept.drain.clone());
            return (next, Some(Obstacle::BackOff { until, count: case.entry.drain_backoff_count, why }));
        }
        self.go_on(case, (next, obstacle), awaited.or(rival), taken)
    }

    /// Takes a slot for the next step of an entry that holds none.
    fn go_on(
        &self,
        case: &Case<'a>,
        (next, obstacle): (Next, Option<Obstacle>),
        rival: Option<Obstacle>,
        taken: &mut Taken<'a>,
    ) -> (Next, Option<Obstacle>) {
        if obstacle.as_ref().is_some_and(frees_slot) {
            return (next, obstacle);
        }
        if let Some(rival) = rival {
            return (next, Some(rival));
        }
        let maximum = self.config.map_or(0, |config| config.max_concurrent);
        if taken.slots >= maximum + u32::from(is_planted(Canary::OneRepairMore)) {
            return (next, Some(Obstacle::Slots { maximum }));
        }
        taken.take(case);
        (next, obstacle)
    }

    /// First action of a step, and the entry's own obstacle to it.
    fn begin(&self, case: &Case<'a>, operation: &RepairOperation, number: u32) -> (Next, Option<Obstacle>) {
        let skipped = number > 0 && is_planted(Canary::SecondStepSkipped);
        let Some(step) = operation.step(number).filter(|_| !skipped) else {
            return (Next::Fail(Failure::NoStepLeft { step: number }), self.unfailed(case, operation));
        };
        if step.need_drain && case.place.is_some() {
            let obstacle = self
                .kept_back(case)
                .or_else(|| (!self.live.kubernetes).then_some(Obstacle::NoKubernetes))
                .or_else(|| (!self.live.host).then_some(Obstacle::NoHost))
                .or_else(|| self.unasked(case, operation));
            return (Next::Drain { step: number }, obstacle);
        }
        self.execute(case, operation, number)
    }

    /// The command of a step, and its obstacle.
    fn execute(&self, case: &Case<'a>, operation: &RepairOperation, step: u32) -> (Next, Option<Obstacle>) {
        if operation.step(step).is_some_and(|step| step.command.is_none()) {
            return (Next::Fail(Failure::NoCommand { step }), self.unfailed(case, operation));
        }
        let obstacle =
            self.kept_back(case).or_else(|| self.unasked(case, operation)).or_else(|| self.no_command());
        (Next::Execute { step }, obstacle)
    }

    /// No step or command begins and no entry fails before a new leader can know which racks failed while there was
    /// none.
    fn reports_awaited(&self) -> Option<Obstacle> {
        self.live.reports_awaited.map(|until| Obstacle::ReportsAwaited { until })
    }

    fn held_by(&self, case: &Case<'_>) -> Option<Obstacle> {
        if self.held.unplaced.contains(&case.entry.address) {
            return Some(Obstacle::RackUnknown);
        }
        let rack = self.held.racks.get(&case.entry.address)?.clone();
        let unreadable = self.held.unreadable.contains(&rack);
        Some(if unreadable { Obstacle::HoldUnreadable { rack } } else { Obstacle::Held { rack } })
    }

    fn kept_back(&self, case: &Case<'_>) -> Option<Obstacle> {
        let disabled = self.queue.disabled.then_some(Obstacle::Disabled);
        disabled.or_else(|| self.held_by(case))
    }

    /// Obstacle to failing an entry: a rack without power does not make its machines unrepairable, and a machine may
    /// have become healthy.
    fn unfailed(&self, case: &Case<'_>, operation: &RepairOperation) -> Option<Obstacle> {
        self.held_by(case).or_else(|| self.unasked(case, operation))
    }

    /// Nothing begins for a machine that may have become healthy meanwhile.
    fn unasked(&self, case: &Case<'_>, operation: &RepairOperation) -> Option<Obstacle> {
        let unknown = self.health(case, operation).is_none();
        unknown.then_some(if self.live.host { Obstacle::HealthUnknown } else { Obstacle::NoHost })
    }
}

impl<'a> Taken<'a> {
    /// Occupies a slot, at most once an entry.
    fn take(&mut self, case: &Case<'a>) {
        self.slots = self.slots.saturating_add(1);
        self.occupy(case);
    }

    /// Occupies the machine, and the place of the one control plane node.
    fn occupy(&mut self, case: &Case<'a>) {
        self.machines.entry(&case.entry.address).or_insert(case.index);
        if case.place.is_some_and(|place| place.control_plane) && self.api_server.is_none() {
            self.api_server = Some(&case.entry.address);
        }
    }

    /// Conflict with another entry of this machine or another API server.
    fn rival(&self, case: &Case<'_>, rebooting: &BTreeSet<&str>) -> Option<Obstacle> {
        if let Some(record) = self.stray {
            return Some(Obstacle::CommandRuns { record });
        }
        let address = case.entry.address.as_str();
        let begun = self.processed.get(address).filter(|_| case.entry.status != RepairStatus::Processing);
        if let Some(index) = self.machines.get(address).or(begun) {
            return Some(Obstacle::SameMachine { index: *index });
        }
        if !case.place.is_some_and(|place| place.control_plane) || is_planted(Canary::ApiServersTogether) {
            return None;
        }
        if let Some(other) = self.api_server.filter(|other| *other != address) {
            return Some(Obstacle::ApiServerRepaired { address: other.to_owned() });
        }
        let other = rebooting
            .iter()
            .filter(|_| !is_planted(Canary::RebootIgnored))
            .find(|other| **other != address)?;
        Some(Obstacle::ApiServerRebooted { address: (*other).to_owned() })
    }
}

/// Next action of an entry whose operation is not configured: it holds no slot.
fn without_operation(case: &Case<'_>, obstacle: &Obstacle) -> (Next, Option<Obstacle>) {
    let step = match (&case.entry.status, &case.entry.step_status) {
        (RepairStatus::Processing, RepairStepStatus::Draining) => {
            let why = match obstacle {
                Obstacle::Missing(missing) => Abandoned::Missing(missing.clone()),
                other => Abandoned::Unusable { why: other.to_string() },
            };
            return (Next::Abandon(why), None);
        }
        // The current step was done.
        (RepairStatus::Processing, RepairStepStatus::Watching) => case.entry.step + 1,
        _ => case.entry.step,
    };
    (Next::Execute { step }, Some(obstacle.clone()))
}

/// Whether waiting cannot clear this obstacle, so that its slot is freed.
fn frees_slot(obstacle: &Obstacle) -> bool {
    use Obstacle::{Disabled, Held, HoldUnreadable, NoHost, NoKubernetes, RackUnknown};
    matches!(obstacle, Disabled | Held { .. } | HoldUnreadable { .. } | RackUnknown | NoKubernetes | NoHost)
}

/// Adds a duration, up to the end of time.
pub(crate) fn later(time: OffsetDateTime, by: Duration) -> OffsetDateTime {
    time.saturating_add(by.try_into().unwrap_or(time::Duration::MAX))
}

/// Time of the entry's last transition; the Unix epoch when it is missing.
pub(crate) fn since(entry: &RepairQueueEntry) -> OffsetDateTime {
    entry.last_transition_time.unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

#[cfg(test)]
mod tests;
