//! What runs beside the mailbox, health checks aside: the command and the drains.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use madako_messages::actors::RepairMessage;
use madako_messages::feed::Task;
use madako_messages::invariants::repair::is_active;
use madako_messages::kubernetes::drain::DrainNews;
use madako_messages::repair::command::CommandEnd;
use madako_messages::repair::config::RepairOperation;
use madako_messages::repair::kept::Kept;
use madako_messages::repair::queue::Item;
use madako_messages::repair::{RepairQueueEntry, RepairStepStatus};
use madako_messages::state::ClusterState;
use time::OffsetDateTime;
use tokio::sync::SetOnce;
use tokio::time::Instant;
use tracing::{Instrument as _, Span, info_span};

use super::{FIRST_LOOK, REPAIR, RepairState, SUCCESS, command, drain, telemetry};
use crate::round::{Drain, Health, later, places_of};

/// A command whose start is announced in the store.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Announced {
    pub(super) index: i64,
    pub(super) record: i64,
    pub(super) words: Vec<String>,
    pub(super) deadline: Duration,
    pub(super) attempts: u32,
    pub(super) interval: Duration,
    /// Words and deadline of the health check that is asked between its attempts.
    pub(super) health: Option<(Vec<String>, Duration)>,
    pub(super) kind: &'static str,
}

impl Announced {
    /// Whether what is kept of its entry names its record as the one of such a command.
    fn is_kept_as(&self, kept: &Kept) -> bool {
        let record = match self.kind {
            SUCCESS => kept.finishing,
            _ => kept.started.as_ref().map(|started| started.record),
        };
        record == Some(self.record)
    }
}

/// The command that runs.
pub(super) struct Running {
    pub(super) announced: Announced,
    /// Set to the reason when it is not to be tried again.
    stop: Arc<SetOnce<String>>,
    since: Instant,
    _task: Task,
}

/// A drain that runs.
pub(super) struct Draining {
    number: u64,
    pub(super) node: String,
    state: Progress,
    /// How long what comes to a drained node may take to go.
    limit: Duration,
    /// What it is told in.
    span: Span,
    _task: Task,
}

/// How far a drain is.
enum Progress {
    /// An earlier leader began it.
    Unseen,
    Runs {
        waits: Option<String>,
    },
    Done,
    /// It was done until then.
    Undone {
        since: Instant,
        waits: String,
    },
    Failed {
        why: String,
    },
}

impl RepairState {
    /// Ends what the store says is not to go on.
    pub(super) fn clear(&mut self, state: &ClusterState) {
        let queue = &state.repair;
        self.checks.clear(queue, self.given.interval);
        let draining = |index: i64| queue.entries.get(&index).is_some_and(|item| is_drained(&item.value));
        let over: Vec<i64> = self.drains.keys().copied().filter(|index| !draining(*index)).collect();
        for drain in over.iter().filter_map(|index| self.drains.remove(index)) {
            self.cordons.left(drain.node, drain.span);
        }
        self.begun.retain(|index, _| draining(*index));
        if !over.is_empty() {
            self.look_at_nodes();
        }
        let runs = self.running.as_ref().map(|running| running.announced.index);
        let ended = self.ended.as_ref().map(|(index, ..)| *index);
        self.traces.retain(|index| {
            let unfinished = queue.entries.get(&index).is_some_and(|item| !item.value.is_finished());
            unfinished || runs == Some(index) || ended == Some(index)
        });
        if let Some(running) = self.running.as_ref().filter(|running| running.announced.kind == REPAIR)
            && let Some(why) = self.against(state, running.announced.index)
        {
            // What stood in the way first is told, also when that is over before the next attempt was due.
            let _ = running.stop.set(why);
        }
    }

    /// Starts the command whose announcement was not known to be written, once the store shows that it was.
    ///
    /// The number of the record does not say so: of two transactions in a row whose ends are unknown both have the same, and
    /// the first may be the one that was written. What is kept beside the entry says whose record it is. A command that is not
    /// started here never is: its record ends as one that nobody runs.
    pub(super) fn resolve(&mut self, state: &ClusterState) {
        let Some((announced, span)) = &self.unsure else { return };
        let queue = &state.repair;
        if queue.records.unfinished.contains_key(&announced.record)
            && queue.kept_of(announced.index).is_some_and(|kept| announced.is_kept_as(kept))
        {
            let (announced, span) = (announced.clone(), span.clone());
            // What came meanwhile would have kept it from being announced.
            match self.against_start(state, &announced) {
                None => self.run(announced, &span),
                Some(why) => {
                    self.unsure = None;
                    self.ended = Some((announced.index, announced.record, command::stopped(&why, None)));
                }
            }
        } else if queue.records.known.contains_key(&announced.record) {
            self.unsure = None;
        }
    }

    /// Why a command that was announced some time ago is not started any more. A success command follows from the machine's
    /// health, which is asked whatever else is.
    pub(super) fn against_start(&self, state: &ClusterState, announced: &Announced) -> Option<String> {
        if announced.kind != REPAIR {
            return None;
        }
        let healthy = self.checks.believed().get(&announced.index) == Some(&Health::Healthy);
        self.against(state, announced.index).or_else(|| healthy.then(|| command::HEALTHY.to_owned()))
    }

    /// Why no attempt of a repair's command begins.
    fn against(&self, state: &ClusterState, index: i64) -> Option<String> {
        if state.repair.disabled {
            return Some("the repair queue was disabled".to_owned());
        }
        let Some(item) = state.repair.entries.get(&index).filter(|item| !item.value.deleted) else {
            return Some("the entry was deleted".to_owned());
        };
        if self.held.unplaced.contains(&item.value.address) {
            return Some("a rack is held, and nobody knows whether the machine stands in it".to_owned());
        }
        self.held.racks.get(&item.value.address).map(|rack| format!("the rack {rack} is held"))
    }

    pub(super) fn operation<'s>(
        &self,
        state: &'s ClusterState,
        index: i64,
    ) -> Option<(&'s RepairOperation, &'s str)> {
        let entry = &state.repair.entries.get(&index)?.value;
        let operation = state.repair_config.as_ref()?.of(entry).ok()?;
        Some((operation, &entry.address))
    }

    pub(super) fn success_command(&self, state: &ClusterState, index: i64, record: i64) -> Option<Announced> {
        let (operation, address) = self.operation(state, index)?;
        let command = operation.success.as_ref()?;
        Some(Announced {
            index,
            record,
            words: command.for_machine(address),
            deadline: command.timeout,
            attempts: 1,
            interval: Duration::ZERO,
            health: None,
            kind: SUCCESS,
        })
    }

    pub(super) fn repair_command(
        &self,
        state: &ClusterState,
        index: i64,
        step: u32,
        record: i64,
    ) -> Option<Announced> {
        let (operation, address) = self.operation(state, index)?;
        let step = operation.step(step)?;
        let command = step.command.as_ref()?;
        Some(Announced {
            index,
            record,
            words: command.for_machine(address),
            deadline: command.timeout,
            attempts: step.attempts,
            interval: step.interval,
            health: operation.health_check.as_ref().map(|check| (check.for_machine(address), check.timeout)),
            kind: REPAIR,
        })
    }

    /// Starts a command that was announced by a decision, in whose span it is told.
    pub(super) fn run(&mut self, announced: Announced, decision: &Span) {
        self.unsure = None;
        let Some(host) = self.given.host.clone() else { return };
        let stop = Arc::new(SetOnce::new());
        let order = command::Order {
            host,
            permits: self.permits(),
            kind: announced.kind,
            words: announced.words.clone(),
            deadline: announced.deadline,
            attempts: announced.attempts,
            interval: announced.interval,
            health: announced.health.clone().map(|(words, deadline)| command::HealthCheck {
                words,
                deadline,
                round: self.given.interval,
            }),
            stop: Arc::clone(&stop),
        };
        let (actor, record) = (self.myself.clone(), announced.record);
        let _decision = decision.enter();
        let task = Task::start(async move {
            let end = order.carry_out().await;
            // The actor is gone: its successor finds the record unfinished.
            let _ = actor.cast(RepairMessage::Ran { record, end }.into());
        });
        self.running = Some(Running { announced, stop, since: Instant::now(), _task: task });
    }

    pub(super) fn ran(&mut self, record: i64, end: CommandEnd) {
        let Some(running) = self.running.take_if(|running| running.announced.record == record) else {
            return;
        };
        telemetry::ran(running.announced.kind, end.how.name(), running.since.elapsed());
        self.ended = Some((running.announced.index, record, end));
    }

    /// How far drains are, those too that nobody looked at yet.
    pub(super) fn drains_seen(&self, state: &ClusterState) -> BTreeMap<i64, Drain> {
        let mut seen: BTreeMap<i64, Drain> =
            self.drains.iter().map(|(index, drain)| (*index, self.drain_seen(drain))).collect();
        let entries = state.repair.entries.iter();
        let taken_over =
            entries.filter(|(index, item)| is_drained(&item.value) && !self.begun.contains_key(index));
        for (index, _) in taken_over {
            seen.entry(*index).or_insert_with(|| self.unseen());
        }
        seen
    }

    fn drain_seen(&self, drain: &Draining) -> Drain {
        match &drain.state {
            Progress::Unseen => self.unseen(),
            Progress::Runs { waits } => Drain::Runs { waits: waits.clone() },
            Progress::Done => Drain::Done,
            Progress::Undone { since, waits } => {
                Drain::Undone { until: self.ends_after(drain.limit, *since), waits: waits.clone() }
            }
            Progress::Failed { why } => Drain::Failed { why: why.clone() },
        }
    }

    /// A drain that was taken over from an earlier leader.
    fn unseen(&self) -> Drain {
        Drain::Unseen { until: self.ends_after(FIRST_LOOK, self.began.1) }
    }

    /// When so much time will have passed, or had passed, since then, whatever became of the wall clock meanwhile.
    fn ends_after(&self, pause: Duration, since: Instant) -> OffsetDateTime {
        later(self.given.clock.now(), pause) - since.elapsed()
    }

    /// Starts the drains that the store announces and nobody carries out.
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
            // What is removed next, or written over an entry that is further on, is drained no more.
            .filter(|(index, item)| {
                !item.value.deleted
                    && state.repair.kept_of(**index).is_none_or(|kept| kept.behind(&item.value).is_none())
            })
            .map(|(index, item)| (*index, Arc::clone(item)))
            .collect();
        if draining.is_empty() {
            return;
        }
        let places = places_of(state.cluster.as_ref().map(|cluster| &*cluster.value), &state.repair);
        let nodes: BTreeSet<String> = self.drains.values().map(|drain| drain.node.clone()).collect();
        let now = self.given.clock.now();
        for (index, item) in draining {
            let Some(place) = places.get(item.value.address.as_str()) else { continue };
            let node = place.name.to_owned();
            if nodes.contains(&node) || self.cordons.is_uncordoned(&node) {
                continue;
            }
            let number = self.take_number();
            // One that an earlier leader began is told in a trace of its own.
            let decision = self.begun.get(&index);
            let resumed = decision.is_none();
            let span = info_span!(parent: decision.and_then(Span::id), "drain", entry = index, node);
            let order = drain::Order {
                kubernetes: Arc::clone(&kubernetes),
                permits: self.permits(),
                node: node.clone(),
                config: Arc::clone(&config),
                resumed,
                late: resumed && later(self.ahead.since(&item.value), config.eviction_timeout) < now,
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

    pub(super) fn drained(&mut self, index: i64, number: u64, news: DrainNews) {
        let Some(drain) = self.drains.get_mut(&index).filter(|drain| drain.number == number) else { return };
        drain.state = match (news, &drain.state) {
            (DrainNews::Waits(waits), Progress::Done) => Progress::Undone { since: Instant::now(), waits },
            (DrainNews::Waits(waits), Progress::Undone { since, .. }) => {
                Progress::Undone { since: *since, waits }
            }
            (DrainNews::Waits(waits), _) => Progress::Runs { waits: Some(waits) },
            (DrainNews::Done, _) => Progress::Done,
            (DrainNews::Failed(why), _) => Progress::Failed { why },
        };
    }
}

/// Whether an entry says that its node is being drained.
fn is_drained(entry: &RepairQueueEntry) -> bool {
    is_active(entry) && entry.step_status == RepairStepStatus::Draining
}
