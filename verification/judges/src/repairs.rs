//! Promises about the repair queue, as predicates over observed facts.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use madako_domain::keys;
use madako_domain::machine::MachineState;
use madako_domain::reboot::{RebootQueueEntry, RebootStatus};
use madako_domain::repair::kept::KeptEntry;
use madako_domain::repair::{RepairQueueEntry, RepairStatus, RepairStepStatus};

use crate::exemptions::Exemption;
use crate::fact::{Command, Fact, FactTime, FaultPlace, RegistryQuestion};
use crate::liveness::Waiting;
use crate::observed_world::{BegunWork, ObservedWorld, QueueItem, WrittenKey};
use crate::oracle::{Context, FactJudgement, Predicate};
use crate::terms::FRESH_INTERVALS;

/// Entries have times in whole seconds: rounding may hide this much, over both ends of a span.
const SECONDS: Duration = Duration::from_secs(2);

pub(crate) struct QueueDisabled;

impl Predicate for QueueDisabled {
    fn observe(
        &mut self,
        Context { at, fact, now, terms, .. }: &Context<'_>,
        ruling: &mut FactJudgement<'_>,
    ) {
        let Some(since) = now.switched_on_since(keys::REPAIRS_DISABLED) else { return };
        for begun in &now.begun {
            let BegunWork { entry, .. } = begun;
            ruling.report_broken(format_args!(
                "entry {} becomes {}, and the queue is disabled since {since:?}",
                entry.index, entry.step_status
            ));
        }
        match fact {
            Fact::Began { command: Command::Repair, instance, address } if *at > since + terms.tolerance => {
                if now.is_leading_troubled(since) {
                    ruling.exemptions.record_use(Exemption::UnderWay, *at - since);
                } else {
                    ruling.report_broken(format_args!(
                        "{instance} runs a command for {address}, and the queue is disabled since {since:?}"
                    ));
                }
            }
            // An entry that would be begun.
            Fact::Ended { command: Command::HealthCheck, address, good: false, .. } => {
                let waits = |item: &QueueItem| {
                    item.entry.address == *address && item.entry.step_status == RepairStepStatus::Waiting
                };
                if !now.holds_a_rack() && now.entries.values().any(waits) {
                    ruling.count_test();
                }
            }
            _ => {}
        }
    }
}

/// Entries that have not begun, and that only the leader keeps from beginning.
fn entries_ready_to_begin(now: &ObservedWorld, at: FactTime, slack: Duration) -> BTreeSet<i64> {
    let nodes = |address: &str| {
        now.cluster
            .iter()
            .flat_map(|cluster| &cluster.nodes)
            .any(|node| node.control_plane && node.address == address)
    };
    let under_way = now.entries.values().filter(|item| now.is_under_way(item, at, slack)).count() as u64;
    let is_queued = |item: &QueueItem| {
        let entry = &item.entry;
        let alone = now.entries.values().filter(|other| other.entry.address == entry.address).count() == 1;
        entry.status == RepairStatus::Queued
            && !entry.deleted
            && alone
            && now.rules.steps_of_entry(entry).is_some()
            && !nodes(&entry.address)
    };
    let hindered = now.switched_on_since(keys::REPAIRS_DISABLED).is_some()
        || now.is_operation_due()
        || now.holds_a_rack()
        || !now.is_quiet(&[FaultPlace::Hosts, FaultPlace::Kubernetes])
        || under_way >= now.rules.max_concurrent
        // A running command delays the others.
        || now.running.keys().any(|(_, command)| *command != Command::HealthCheck);
    if hindered {
        return BTreeSet::new();
    }
    now.entries.iter().filter(|(_, item)| is_queued(item)).map(|(index, _)| *index).collect()
}

#[derive(Default)]
pub(crate) struct QueueResumes {
    /// Entries that waited when the queue was enabled.
    waited: BTreeSet<i64>,
    waiting: Waiting<i64>,
}

impl Predicate for QueueResumes {
    fn observe(
        &mut self,
        Context { at, written, now, terms, fact }: &Context<'_>,
        ruling: &mut FactJudgement<'_>,
    ) {
        if written.iter().any(|written| written.key == keys::REPAIRS_DISABLED) {
            self.waiting.interrupt(*at, ruling);
            let queued = now.entries.iter().filter(|(_, item)| item.entry.status == RepairStatus::Queued);
            self.waited = match now.switched_on_since(keys::REPAIRS_DISABLED) {
                None => queued.map(|(index, _)| *index).collect(),
                Some(_) => BTreeSet::new(),
            };
        }
        for begun in &now.begun {
            if self.waited.remove(&begun.entry.index) {
                ruling.count_test();
            }
        }
        self.waited.retain(|index| {
            now.entries.get(index).is_some_and(|item| item.entry.status == RepairStatus::Queued)
        });
        // A new leader waits for the registry's first answer, or for three polls.
        let settled = now.leader.as_ref().is_some_and(|leader| leader.since + terms.stale_after() < *at);
        let trouble = matches!(fact, Fact::Troubled { .. });
        if !settled || trouble {
            self.waiting.interrupt(*at, ruling);
            return;
        }
        let mut wrong = entries_ready_to_begin(now, *at, SECONDS);
        wrong.retain(|index| self.waited.contains(index));
        self.waiting.update(wrong, *at);
        for index in self.waiting.report_overdue(*at, terms.reaction_time()) {
            ruling.report_broken(format_args!("entry {index} is not begun, and the queue was enabled"));
        }
    }
}

#[derive(Default)]
pub(crate) struct AutoRepairDisabled;

impl Predicate for AutoRepairDisabled {
    fn observe(
        &mut self,
        Context { at, fact, written, now, terms }: &Context<'_>,
        ruling: &mut FactJudgement<'_>,
    ) {
        let Some(since) = now.switched_on_since(keys::AUTO_REPAIR_DISABLED) else { return };
        match fact {
            Fact::Stored { revision, .. } => {
                let new = |written: &&WrittenKey| {
                    written.key.starts_with(keys::REPAIRS)
                        && written.before.is_none()
                        && written.after.is_some()
                };
                for added in written.iter().filter(new) {
                    ruling.report_broken(format_args!(
                        "revision {revision} adds {}, and auto-repair is disabled",
                        added.key
                    ));
                }
            }
            // A report that would become an entry.
            Fact::Answered { question: RegistryQuestion::Machines, machines, .. } => {
                let is_broken = |state| matches!(state, MachineState::Unhealthy | MachineState::Unreachable);
                let has_entry =
                    |address: &str| now.entries.values().any(|item| item.entry.address == address);
                let broken = machines.iter().filter(|machine| is_broken(machine.state));
                if *at > since + terms.interval && broken.clone().any(|machine| !has_entry(&machine.address))
                {
                    ruling.count_test();
                }
            }
            _ => {}
        }
    }
}

pub(crate) struct ConcurrentRepairs;

impl Predicate for ConcurrentRepairs {
    fn observe(&mut self, Context { at, now, .. }: &Context<'_>, ruling: &mut FactJudgement<'_>) {
        for BegunWork { entry, .. } in &now.begun {
            let others: Vec<&QueueItem> = now
                .entries
                .iter()
                .filter(|(index, item)| **index != entry.index && now.is_under_way(item, *at, SECONDS))
                .map(|(_, item)| item)
                .collect();
            let (count, most) = (others.len() as u64, now.rules.max_concurrent);
            if count + 1 == most {
                ruling.count_test();
            }
            if count < most {
                continue;
            }
            match count_hidden_by_clock(now, &others, *at) {
                Some((hidden, rest)) if count - hidden < most => {
                    ruling.exemptions.record_use(Exemption::WrongClock, rest);
                }
                _ => ruling.report_broken(format_args!(
                    "entry {} becomes {} beside {count}, of at most {most}",
                    entry.index, entry.step_status
                )),
            }
        }
    }
}

/// Of these entries under way, the number of those whose watch a clock that was wrong meanwhile may have ended, and
/// the longest rest of these watches. `None`: there are none.
fn count_hidden_by_clock(
    now: &ObservedWorld,
    others: &[&QueueItem],
    at: FactTime,
) -> Option<(u64, Duration)> {
    let watches = others
        .iter()
        .filter(|item| !now.is_certainly_under_way(item))
        .filter_map(|item| now.watched_until(item))
        .filter(|(since, _)| now.is_clock_wrong(*since));
    let rests: Vec<Duration> = watches.map(|(_, end)| end.saturating_sub(at)).collect();
    Some((rests.len() as u64, *rests.iter().max()?))
}

#[derive(Default)]
pub(crate) struct WatchLasts {
    /// Time of the last repair command's end for each machine, and whether it succeeded.
    commands: BTreeMap<String, (FactTime, bool)>,
}

/// Entries that a revision marks as failed after their last command succeeded, as they were before.
fn fails_after_command<'a>(
    written: &'a [WrittenKey],
    commands: &'a BTreeMap<String, (FactTime, bool)>,
    now: &'a ObservedWorld,
) -> impl Iterator<Item = RepairQueueEntry> + 'a {
    let entries = written.iter().filter(|written| written.key.starts_with(keys::REPAIRS));
    // An entry that had failed before and was overwritten fails once more; so may the entry of a success command.
    let again = written.iter().filter(|written| written.key.starts_with(keys::REPAIR_KEPT)).any(|written| {
        let kept = written.read::<KeptEntry>().0;
        kept.is_some_and(|kept| kept.ended.is_some() || kept.finishing.is_some())
    });
    entries.filter_map(move |written| {
        let (Some(before), Some(after)) = written.read::<RepairQueueEntry>() else { return None };
        let fails = before.status == RepairStatus::Processing
            && before.step_status == RepairStepStatus::Watching
            && after.status == RepairStatus::Failed;
        // A command that could not begin is not observable: then the observed end belongs to another entry.
        let announced = now.entries.get(&before.index).and_then(|item| item.commanded);
        let of_this = |at: FactTime| announced.is_some_and(|(_, since)| at >= since);
        let ended_well = commands.get(&before.address).is_some_and(|(at, good)| *good && of_this(*at));
        (fails && ended_well && !again).then_some(before)
    })
}

fn record_command(commands: &mut BTreeMap<String, (FactTime, bool)>, at: FactTime, fact: &Fact) {
    match fact {
        // The outcome is unknown until the command ends.
        Fact::Began { command: Command::Repair, address, .. } => {
            commands.remove(address);
        }
        Fact::Ended { command: Command::Repair, address, good, .. } => {
            commands.insert(address.clone(), (at, *good));
        }
        _ => {}
    }
}

impl Predicate for WatchLasts {
    fn observe(
        &mut self,
        Context { at, fact, written, now, .. }: &Context<'_>,
        ruling: &mut FactJudgement<'_>,
    ) {
        record_command(&mut self.commands, *at, fact);
        let next = now.begun.iter().filter_map(|begun| {
            let (step, since) = begun.commanded?;
            let before = &begun.before;
            (begun.entry.step > step && before.step_status == RepairStepStatus::Watching)
                .then(|| (before.clone(), step, since))
        });
        let failed = fails_after_command(written, &self.commands, now).filter_map(|before| {
            let (step, since) = now.entries.get(&before.index)?.commanded?;
            Some((before, step, since))
        });
        for (entry, step, since) in next.chain(failed) {
            let Some(steps) = now.rules.steps_of_entry(&entry) else { continue };
            let watch = steps.get(step as usize).map_or(Duration::ZERO, |step| step.watch);
            let lasted = *at - since;
            ruling.count_test();
            if lasted + SECONDS >= watch {
                continue;
            }
            if now.is_clock_wrong(since) {
                ruling.exemptions.record_use(Exemption::WrongClock, watch - lasted);
            } else {
                ruling.report_broken(format_args!(
                    "entry {} goes on {lasted:?} after the command of step {step}, which is watched for {watch:?}",
                    entry.index
                ));
            }
        }
    }
}

#[derive(Default)]
pub(crate) struct NextStep {
    commands: BTreeMap<String, (FactTime, bool)>,
    waiting: Waiting<i64>,
}

impl NextStep {
    /// Entries whose watch is over, and that only the leader keeps from their next step.
    fn wait(now: &ObservedWorld, at: FactTime) -> BTreeSet<i64> {
        let under_way =
            now.entries.values().filter(|item| now.is_under_way(item, at, SECONDS)).count() as u64;
        let runs = now.running.keys().any(|(_, command)| *command != Command::HealthCheck);
        if !now.is_quiet(&[FaultPlace::Hosts, FaultPlace::Kubernetes])
            || now.switched_on_since(keys::REPAIRS_DISABLED).is_some()
            || now.is_operation_due()
            || now.holds_a_rack()
            || under_way >= now.rules.max_concurrent
            || runs
        {
            return BTreeSet::new();
        }
        let is_over = |item: &QueueItem| {
            let entry = &item.entry;
            let Some((step, _)) = item.commanded else { return false };
            let last = now.rules.steps_of_entry(entry).is_none_or(|steps| step as usize + 1 >= steps.len());
            entry.status == RepairStatus::Processing
                && entry.step_status == RepairStepStatus::Watching
                && !entry.deleted
                && !last
                && !now.is_under_way(item, at, SECONDS)
        };
        now.entries.iter().filter(|(_, item)| is_over(item)).map(|(index, _)| *index).collect()
    }
}

impl Predicate for NextStep {
    fn observe(
        &mut self,
        Context { at, fact, written, now, terms }: &Context<'_>,
        ruling: &mut FactJudgement<'_>,
    ) {
        record_command(&mut self.commands, *at, fact);
        if now.begun.iter().any(|begun| begun.commanded.is_some_and(|(step, _)| begun.entry.step > step)) {
            ruling.count_test();
        }
        for before in fails_after_command(written, &self.commands, now) {
            let left = now.rules.steps_of_entry(&before).map_or(0, <[_]>::len);
            if before.step as usize + 1 < left {
                ruling.report_broken(format_args!(
                    "entry {} fails after step {}, and has {left} steps",
                    before.index, before.step
                ));
            }
        }
        let settled = now.leader.as_ref().is_some_and(|leader| leader.since + terms.stale_after() < *at);
        if !settled || matches!(fact, Fact::Troubled { .. }) {
            self.waiting.interrupt(*at, ruling);
            return;
        }
        self.waiting.update(Self::wait(now, *at), *at);
        for index in self.waiting.report_overdue(*at, terms.reaction_time()) {
            ruling.report_broken(format_args!("entry {index} does not go on to its next step"));
        }
    }
}

/// Remembered health checks of a machine: those of two intervals, for several entries.
const CHECKS: usize = 16;

/// Results of the last health checks of each machine. Several entries may concern one machine; each relies on its own
/// checks.
#[derive(Default)]
struct Health(BTreeMap<String, VecDeque<(FactTime, bool)>>);

impl Health {
    fn last_check(&self, address: &str) -> Option<(FactTime, bool)> {
        self.0.get(address).and_then(|checks| checks.back()).copied()
    }

    /// True if a check since the given time had this result.
    fn has_result(&self, address: &str, healthy: bool, since: FactTime) -> bool {
        let checks = self.0.get(address).into_iter().flatten();
        checks.rev().any(|(at, answer)| *answer == healthy && *at >= since)
    }

    fn observe(&mut self, at: FactTime, fact: &Fact) {
        if let Fact::Ended { command: Command::HealthCheck, address, good, .. } = fact {
            let checks = self.0.entry(address.clone()).or_default();
            checks.push_back((at, *good));
            if checks.len() > CHECKS {
                checks.pop_front();
            }
        }
    }
}

#[derive(Default)]
pub(crate) struct FreshHealth(Health);

impl Predicate for FreshHealth {
    fn observe(
        &mut self,
        Context { at, fact, now, terms, .. }: &Context<'_>,
        ruling: &mut FactJudgement<'_>,
    ) {
        for BegunWork { entry, .. } in &now.begun {
            let fresh = terms.interval * FRESH_INTERVALS + terms.tolerance;
            let last_check = self.0.last_check(&entry.address);
            ruling.count_test();
            let is_healthy = last_check.is_some_and(|(_, healthy)| healthy);
            match last_check {
                _ if !is_healthy && self.0.has_result(&entry.address, false, at.saturating_sub(fresh)) => {}
                // The decision was made before the answer came.
                Some((last_check, true)) if *at <= last_check + terms.tolerance => {}
                Some((last_check, _)) if now.is_leading_troubled(last_check) => {
                    ruling.exemptions.record_use(Exemption::UnderWay, *at - last_check);
                }
                _ if now.is_troubled(&FaultPlace::Hosts, at.saturating_sub(fresh)) => {
                    let unseen = at.saturating_sub(now.note_trouble_change(&FaultPlace::Hosts));
                    ruling.exemptions.record_use(Exemption::UnseenCheck, unseen);
                }
                _ => ruling.report_broken(format_args!(
                    "entry {} becomes {}, and its machine's health was asked at {last_check:?}",
                    entry.index, entry.step_status
                )),
            }
        }
        self.0.observe(*at, fact);
    }
}

#[derive(Default)]
pub(crate) struct HealthySucceeds(Health);

impl Predicate for HealthySucceeds {
    fn observe(
        &mut self,
        Context { at, fact, written, now, terms }: &Context<'_>,
        ruling: &mut FactJudgement<'_>,
    ) {
        self.0.observe(*at, fact);
        let again =
            written.iter().filter(|written| written.key.starts_with(keys::REPAIR_KEPT)).any(|written| {
                let kept = written.read::<KeptEntry>().0;
                kept.is_some_and(|kept| kept.ended.is_some() || kept.finishing.is_some())
            });
        for written in written.iter().filter(|written| written.key.starts_with(keys::REPAIRS)) {
            let (Some(before), Some(after)) = written.read::<RepairQueueEntry>() else { continue };
            let succeeds =
                before.status != RepairStatus::Succeeded && after.status == RepairStatus::Succeeded;
            // The health was judged at the beginning of the success command.
            if !succeeds || again {
                continue;
            }
            let last_check = self.0.last_check(&after.address);
            let fresh = terms.interval * FRESH_INTERVALS + terms.tolerance;
            let healthy = self.0.has_result(&after.address, true, at.saturating_sub(fresh));
            if !healthy && last_check.is_some_and(|(last_check, _)| now.is_leading_troubled(last_check)) {
                ruling.exemptions.record_use(
                    Exemption::UnderWay,
                    *at - last_check.map_or(*at, |(last_check, _)| last_check),
                );
                continue;
            }
            ruling.require(healthy, || {
                format!("entry {} succeeds, and its machine's health was asked: {last_check:?}", after.index)
            });
        }
        if let Fact::Began { command: Command::Success, address, .. } = fact {
            let last_check = self.0.last_check(address);
            let fresh = terms.interval * FRESH_INTERVALS + terms.tolerance;
            ruling.require(self.0.has_result(address, true, at.saturating_sub(fresh)), || {
                format!("the success command runs for {address}, whose health was asked: {last_check:?}")
            });
        }
    }
}

pub(crate) struct DeletionKept;

impl Predicate for DeletionKept {
    fn observe(&mut self, Context { written, .. }: &Context<'_>, ruling: &mut FactJudgement<'_>) {
        for written in written.iter() {
            let (ends, returns) = if written.key.starts_with(keys::REPAIRS) {
                let (before, after) = written.read::<RepairQueueEntry>();
                (before.is_some_and(|entry| entry.deleted), after.is_some_and(|entry| !entry.deleted))
            } else if keys::is_reboot(&written.key) {
                let (before, after) = written.read::<RebootQueueEntry>();
                let is_cancelled = |entry: &RebootQueueEntry| entry.status == RebootStatus::Cancelled;
                (before.as_ref().is_some_and(is_cancelled), after.is_some_and(|entry| !is_cancelled(&entry)))
            } else {
                continue;
            };
            if ends {
                ruling
                    .require(!returns, || format!("{} was to be removed, and is not any more", written.key));
            }
        }
    }
}
