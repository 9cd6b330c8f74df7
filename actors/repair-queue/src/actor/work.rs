//! Tasks of the repair queue that run beside its mailbox: the running command, and the drains.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use madako_domain::invariants::check_cordon;
use madako_domain::invariants::repair::is_active;
use madako_domain::kubernetes::drain::{DrainNews, DrainPurpose};
use madako_domain::repair::config::RepairOperation;
use madako_domain::repair::queue::Item;
use madako_domain::repair::{RepairQueueEntry, RepairStepStatus};
use madako_domain::state::ClusterState;
use madako_effects::{CordonCheck, DrainOrder, DrainRules, Evidence};
use madako_protocol::actors::RepairMessage;
use madako_protocol::feed::Task;
use time::OffsetDateTime;
use tokio::time::Instant;
use tracing::{Instrument as _, Span, info_span};

use super::command::{self, AnnouncedCommand, Command, CommandKind};
use super::{FIRST_DRAIN_CHECK, RepairState};
use crate::pass::{Drain, Health, add_duration, nodes_of_queue};

pub(super) struct Draining {
    number: u64,
    pub(super) node: String,
    state: Progress,
    /// Time limit for pods that appear on a drained node.
    limit: Duration,
    span: Span,
    _task: Task,
}

enum Progress {
    /// An earlier leader began the drain.
    Unseen,
    Runs {
        waits: Option<String>,
    },
    Done,
    /// The node was drained until `since`.
    Undone {
        since: Instant,
        waits: String,
    },
    Failed {
        why: String,
    },
}

impl RepairState {
    /// Ends work that the store no longer asks for.
    pub(super) fn clear(&mut self, state: &ClusterState) {
        let queue = &state.repair;
        self.checks.clear(queue, self.given.interval);
        let draining = |index: i64| queue.entries.get(&index).is_some_and(|item| is_drained(&item.value));
        let over: Vec<i64> = self.drains.keys().copied().filter(|index| !draining(*index)).collect();
        for drain in over.iter().filter_map(|index| self.drains.remove(index)) {
            self.cordons.keep_span(drain.node, drain.span);
        }
        self.begun.retain(|index, _| draining(*index));
        if !over.is_empty() {
            self.check_nodes();
        }
        let ended = self.effects.conclusion().map(|(announced, _)| announced);
        let commanded = self.effects.announced_effect().or(ended).map(|announced| announced.command.index);
        self.traces.retain(|index| {
            let unfinished = queue.entries.get(&index).is_some_and(|item| !item.value.is_finished());
            unfinished || commanded == Some(index)
        });
        let runs = self.effects.announced_effect().map(|announced| &announced.command);
        let repairs = runs.filter(|command| command.kind == CommandKind::Repair);
        if let Some(why) = repairs.and_then(|command| self.obstacle_to_effect(state, command.index)) {
            let actions = self.effects.withdraw(&why, Instant::now());
            self.perform(actions);
        }
    }

    /// Tells the workflow whether the store shows an announcement whose commit has an unknown result.
    ///
    /// The record's number does not show it: two consecutive changes with unknown results have the same number, and
    /// the first may be the one that was written. The data kept for the entry names the owner of the record. A
    /// command that is not started here never starts: its record ends without one.
    pub(super) fn resolve(&mut self, state: &ClusterState) {
        let Some(AnnouncedCommand { command, .. }) = self.effects.unconfirmed_announcement() else { return };
        let queue = &state.repair;
        let kept = queue.kept_state_of(command.index);
        let is_kept = kept.is_some_and(|kept| command.is_kept_as(kept));
        let evidence = if queue.records.unfinished.contains_key(&command.record) && is_kept {
            // A change in the meantime may forbid the start.
            match self.reason_against_start(state, command) {
                None => Evidence::Announced,
                Some(why) => Evidence::AnnouncedInVain { why },
            }
        } else if queue.records.known.contains_key(&command.record) {
            Evidence::Never
        } else {
            Evidence::NotYet
        };
        let actions = self.effects.observe(evidence, Instant::now());
        self.perform(actions);
    }

    /// Reason not to start a command that was announced some time ago. A success command follows from the machine's
    /// health alone, and always starts.
    fn reason_against_start(&self, state: &ClusterState, command: &Command) -> Option<String> {
        if command.kind != CommandKind::Repair {
            return None;
        }
        let healthy = self.checks.valid_health().get(&command.index) == Some(&Health::Healthy);
        self.obstacle_to_effect(state, command.index).or_else(|| healthy.then(|| command::HEALTHY.to_owned()))
    }

    /// Reason not to begin an attempt of a repair command.
    fn obstacle_to_effect(&self, state: &ClusterState, index: i64) -> Option<String> {
        if state.repair.disabled {
            return Some("the repair queue was disabled".to_owned());
        }
        let Some(item) = state.repair.entries.get(&index).filter(|item| !item.value.deleted) else {
            return Some("the entry was deleted".to_owned());
        };
        if self.held.unplaced.contains(&item.value.address) {
            return Some("a rack is held, and the rack of the machine is unknown".to_owned());
        }
        self.held.racks.get(&item.value.address).map(|rack| format!("the rack {rack} is held"))
    }

    pub(super) fn configured_operation<'s>(
        &self,
        state: &'s ClusterState,
        index: i64,
    ) -> Option<(&'s RepairOperation, &'s str)> {
        let entry = &state.repair.entries.get(&index)?.value;
        let operation = state.repair_config.as_ref()?.operation_for(entry).ok()?;
        Some((operation, &entry.address))
    }

    pub(super) fn success_command(&self, state: &ClusterState, index: i64, record: i64) -> Option<Command> {
        let (operation, address) = self.configured_operation(state, index)?;
        let command = operation.success.as_ref()?;
        Some(Command {
            index,
            record,
            kind: CommandKind::Success,
            words: command.for_machine(address),
            deadline: command.timeout,
            attempts: 1,
            interval: Duration::ZERO,
            health: None,
        })
    }

    pub(super) fn repair_command(
        &self,
        state: &ClusterState,
        index: i64,
        step: u32,
        record: i64,
    ) -> Option<Command> {
        let (operation, address) = self.configured_operation(state, index)?;
        let step = operation.step(step)?;
        let command = step.command.as_ref()?;
        Some(Command {
            index,
            record,
            kind: CommandKind::Repair,
            words: command.for_machine(address),
            deadline: command.timeout,
            attempts: step.attempts,
            interval: step.interval,
            health: operation.health_check.as_ref().map(|check| (check.for_machine(address), check.timeout)),
        })
    }

    /// Progress of all drains, including those not checked yet.
    pub(super) fn progress_of_drains(&self, state: &ClusterState) -> BTreeMap<i64, Drain> {
        let mut drains: BTreeMap<i64, Drain> =
            self.drains.iter().map(|(index, drain)| (*index, self.progress_of_drain(drain))).collect();
        let entries = state.repair.entries.iter();
        let taken_over =
            entries.filter(|(index, item)| is_drained(&item.value) && !self.begun.contains_key(index));
        for (index, _) in taken_over {
            drains.entry(*index).or_insert_with(|| self.unknown_drain());
        }
        drains
    }

    fn progress_of_drain(&self, drain: &Draining) -> Drain {
        match &drain.state {
            Progress::Unseen => self.unknown_drain(),
            Progress::Runs { waits } => Drain::Runs { waits: waits.clone() },
            Progress::Done => Drain::Done,
            Progress::Undone { since, waits } => {
                Drain::Undone { until: self.ends_after(drain.limit, *since), waits: waits.clone() }
            }
            Progress::Failed { why } => Drain::Failed { why: why.clone() },
        }
    }

    /// Progress of a drain that an earlier leader began.
    fn unknown_drain(&self) -> Drain {
        Drain::Unseen { until: self.ends_after(FIRST_DRAIN_CHECK, self.began.1) }
    }

    /// End of a pause that began at `since` on the monotonic clock, in present wall-clock time.
    fn ends_after(&self, pause: Duration, since: Instant) -> OffsetDateTime {
        add_duration(self.given.clock.now(), pause) - since.elapsed()
    }

    /// I17 of a cordon, by the newest state.
    fn cordon_check(&self, node: String) -> CordonCheck {
        let newest = self.given.state.clone();
        Arc::new(move |_| check_cordon(&node, &*newest.newest()?))
    }

    /// Starts the drains that the store announces and that do not run yet.
    pub(super) fn start_drains(&mut self, state: &ClusterState) {
        let (Some(kubernetes), Some(config)) = (self.given.kubernetes.clone(), state.repair_config.clone())
        else {
            return;
        };
        let draining: Vec<(i64, Arc<Item<RepairQueueEntry>>)> = state
            .repair
            .entries
            .iter()
            .filter(|(index, item)| is_drained(&item.value) && !self.drains.contains_key(index))
            // No drain for an entry that is about to be removed or restored from an overwritten state.
            .filter(|(index, item)| {
                !item.value.deleted
                    && state
                        .repair
                        .kept_state_of(**index)
                        .is_none_or(|kept| kept.find_missing_progress(&item.value).is_none())
            })
            .map(|(index, item)| (*index, Arc::clone(item)))
            .collect();
        if draining.is_empty() {
            return;
        }
        let roles = nodes_of_queue(state.cluster.as_ref().map(|cluster| &*cluster.value), &state.repair);
        let nodes: BTreeSet<String> = self.drains.values().map(|drain| drain.node.clone()).collect();
        let now = self.given.clock.now();
        for (index, item) in draining {
            let Some(role) = roles.get(item.value.address.as_str()) else { continue };
            let node = role.name.to_owned();
            if nodes.contains(&node) || self.cordons.is_uncordoned(&node) {
                continue;
            }
            let number = self.take_number();
            // A drain of an earlier leader has a trace of its own.
            let decision = self.begun.get(&index);
            let resumed = decision.is_none();
            let span = info_span!(parent: decision.and_then(Span::id), "drain", entry = index, node);
            let order = DrainOrder {
                kubernetes: Arc::clone(&kubernetes),
                permits: self.runner.permits().clone(),
                node: node.clone(),
                rules: DrainRules {
                    purpose: DrainPurpose::Repair,
                    protected_namespaces: config.protected_namespaces.clone(),
                    evict_attempts: config.evict_attempts,
                    evict_interval: config.evict_interval,
                    cordon_first: false,
                },
                resumed,
                late: resumed
                    && add_duration(self.ahead.transition_time(&item.value), config.eviction_timeout) < now,
                check: self.cordon_check(node.clone()),
            };
            let actor = self.myself.clone();
            let carried_out = async move {
                let tell = |news| {
                    // The actor is gone: its successor drains.
                    let _ = actor.cast(RepairMessage::Drained { index, drain: number, news }.into());
                };
                order.carry_out(tell).await;
            };
            let task = Task::start_anew(carried_out.instrument(span.clone()));
            let state = if resumed { Progress::Unseen } else { Progress::Runs { waits: None } };
            let limit = config.eviction_timeout;
            self.drains.insert(index, Draining { number, node, state, limit, span, _task: task });
        }
    }

    pub(super) fn note_drain_news(&mut self, index: i64, number: u64, news: DrainNews) {
        let Some(drain) = self.drains.get_mut(&index).filter(|drain| drain.number == number) else { return };
        drain.state = match (news, &drain.state) {
            (DrainNews::Waits(waits), Progress::Done) => Progress::Undone { since: Instant::now(), waits },
            (DrainNews::Waits(waits), Progress::Undone { since, .. }) => {
                Progress::Undone { since: *since, waits }
            }
            (DrainNews::Waits(waits), _) => Progress::Runs { waits: Some(waits) },
            (DrainNews::Done, _) => Progress::Done,
            (DrainNews::Failed(why), _) => Progress::Failed { why },
            // Drains for repairs do not read whether the node reports.
            (DrainNews::Unreachable(_), _) => return,
        };
    }
}

fn is_drained(entry: &RepairQueueEntry) -> bool {
    is_active(entry) && entry.step_status == RepairStepStatus::Draining
}
