//! The repair queue's shell: rounds of health checks, one command at a time, drains, and one transaction after another.
//!
//! Each wake looks at the newest state once and sends at most one transaction; what that led to comes back with the watch
//! before the next. Everything that takes time is a task of its own, which ends with this actor.

mod checks;
mod command;
mod drain;
mod nodes;
mod permits;
mod requests;
mod telemetry;
mod traces;
mod work;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use madako_messages::actors::{CommitError, Committed, Mutation, RepairMessage};
use madako_messages::canary::{Canary, is_planted};
use madako_messages::event::{Event, EventSink};
use madako_messages::feed::{Task, forward, later};
use madako_messages::gate::commit;
use madako_messages::host::Host;
use madako_messages::kubernetes::Kubernetes;
use madako_messages::latest::Subscriber;
use madako_messages::mailbox::Letter;
use madako_messages::observation::Observation;
use madako_messages::ports::Clock;
use madako_messages::repair::RepairStatus;
use madako_messages::repair::change::{RepairChange, RepairWrite};
use madako_messages::repair::command::CommandEnd;
use madako_messages::repair::hold::HoldSettings;
use madako_messages::repair::report::Reports;
use madako_messages::state::ClusterState;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use time::OffsetDateTime;
use tokio::time::Instant;
use tracing::Span;

use self::checks::Checks;
use self::nodes::Cordons;
use self::permits::Permits;
use self::requests::Requests;
use self::telemetry::Shown;
pub use self::telemetry::describe_metrics;
use self::traces::Traces;
use self::work::{Announced, Draining, Running};
use crate::ahead::Ahead;
use crate::outlook::{Next, Obstacle, Outlook};
use crate::racks::HeldBack;
use crate::round::{Live, View, config, look, places_of};
use crate::transition::{self, Transition};

/// Pause before a transaction that failed is tried again; doubled up to [`RETRY_MOST`].
const RETRY_FIRST: Duration = Duration::from_millis(500);

/// Longest pause between tries.
const RETRY_MOST: Duration = Duration::from_secs(30);

/// A time that is this much past is past on every clock's granularity.
const JUST_AFTER: Duration = Duration::from_millis(1);

/// How long a drain that was taken over is not given up for its time-out while Kubernetes was not seen yet: two reads, each
/// with the 30 s that its port gives it.
const FIRST_LOOK: Duration = Duration::from_secs(60);

/// Polls of the registry that its first reports are waited for: as many as after which reports are too old to be acted on.
const FIRST_REPORTS_POLLS: u32 = 3;

/// What a repair command is called in metrics.
const REPAIR: &str = "repair";

/// What a success command is called in metrics.
const SUCCESS: &str = "success";

/// Stands for an entry where a change is of none.
const NOBODY: i64 = -1;

/// Stands for an entry where a change is of what the registry reports.
const REQUESTS: i64 = -2;

/// What the repair queue is given.
#[derive(Clone)]
pub struct RepairArguments {
    /// Number of the epoch that it works in.
    pub epoch: i64,
    /// Registered name of the leader.
    pub leader: String,
    /// Time between rounds of health checks.
    pub interval: Duration,
    /// Seed of its draws.
    pub seed: u64,
    /// The wall clock.
    pub clock: Arc<dyn Clock>,
    /// Where events go.
    pub events: Arc<dyn EventSink>,
    /// The store's state.
    pub state: Subscriber<Arc<ClusterState>>,
    /// What the registry reports for repair.
    pub reports: Subscriber<Arc<Reports>>,
    /// What polls of the registry returned for the cluster: every machine, which says who stands in which rack.
    pub observations: Subscriber<Arc<Observation>>,
    /// When failures of a rack are one event that holds its repairs back; `None`: never.
    pub hold: Option<HoldSettings>,
    /// Runs commands; `None`: this instance runs none.
    pub host: Option<Arc<dyn Host>>,
    /// Kubernetes; `None`: no way there is configured.
    pub kubernetes: Option<Arc<dyn Kubernetes>>,
}

/// RepairQueue.
pub struct Repair;

/// What the repair queue knows. All of it can be rebuilt.
pub struct RepairState {
    given: RepairArguments,
    myself: ActorRef<Letter<RepairMessage>>,
    /// When this began, by both clocks.
    began: (OffsetDateTime, Instant),
    state: Option<Arc<ClusterState>>,
    requests: Requests,
    /// What holds entries back because a rack is held.
    held: HeldBack,
    /// Revision of the last commit: an older state is not decided on.
    committed: i64,
    /// Revision of the state that a refused transaction was decided on: it is not decided on again.
    refused: Option<i64>,
    /// Entries whose change breaks an invariant: they are left alone until the next round, so that others go on.
    shunned: BTreeSet<i64>,
    writing: Option<(Writing, Task)>,
    /// A command that was announced by a transaction whose end is not known.
    unsure: Option<(Announced, Span)>,
    /// The next try of a transaction that failed.
    retry: Option<Retry>,
    running: Option<Running>,
    /// A command that ended, and whose end is to be written: entry and record.
    ended: Option<(i64, i64, CommandEnd)>,
    checks: Checks,
    drains: BTreeMap<i64, Draining>,
    /// Drains that were begun by this actor, each with its decision; others were by an earlier leader.
    begun: BTreeMap<i64, Span>,
    cordons: Cordons,
    traces: Traces,
    ahead: Ahead,
    told: BTreeMap<i64, Obstacle>,
    shown: Shown,
    chance: ChaCha8Rng,
    /// Numbers checks and drains.
    next: u64,
    timer: Option<Task>,
    wake: Option<Task>,
    _feeds: [Task; 2],
}

/// What a transaction in flight is for.
struct Writing {
    what: &'static str,
    index: i64,
    address: String,
    /// What is told of it when it is committed.
    told: String,
    then: Then,
    /// Revision of the state that it was decided on.
    decided_on: i64,
    /// Entries that it adds.
    added: Vec<i64>,
    /// What the decision is told in.
    span: Span,
}

/// A try that is to come.
struct Retry {
    pause: Duration,
    at: Instant,
    _timer: Task,
}

/// What follows a commit.
enum Then {
    Nothing,
    /// The end of a command is written.
    Ended,
    /// A drain was begun here.
    Drain,
    /// A command is started.
    Run(Announced),
}

impl Actor for Repair {
    type Msg = Letter<RepairMessage>;
    type State = RepairState;
    type Arguments = RepairArguments;

    async fn pre_start(
        &self,
        myself: ActorRef<Letter<RepairMessage>>,
        given: RepairArguments,
    ) -> Result<RepairState, ActorProcessingErr> {
        let feeds = [
            forward(given.state.clone(), myself.clone(), RepairMessage::State),
            forward(given.reports.clone(), myself.clone(), RepairMessage::Reported),
        ];
        myself.cast(RepairMessage::Tick.into())?;
        Ok(RepairState {
            chance: ChaCha8Rng::seed_from_u64(given.seed),
            began: (given.clock.now(), Instant::now()),
            given,
            myself,
            state: None,
            requests: Requests::default(),
            held: HeldBack::default(),
            committed: 0,
            refused: None,
            shunned: BTreeSet::new(),
            writing: None,
            unsure: None,
            retry: None,
            running: None,
            ended: None,
            checks: Checks::default(),
            drains: BTreeMap::new(),
            begun: BTreeMap::new(),
            cordons: Cordons::default(),
            traces: Traces::default(),
            ahead: Ahead::default(),
            told: BTreeMap::new(),
            shown: Shown::default(),
            next: 0,
            timer: None,
            wake: None,
            _feeds: feeds,
        })
    }

    async fn handle(
        &self,
        _: ActorRef<Letter<RepairMessage>>,
        letter: Letter<RepairMessage>,
        state: &mut RepairState,
    ) -> Result<(), ActorProcessingErr> {
        // The mark is dropped when this handler ends: the feed brings the next value after that.
        let _handled = match letter.open() {
            RepairMessage::State(new, handled) => {
                state.state = Some(new);
                Some(handled)
            }
            RepairMessage::Reported(reports, handled) => {
                state.requests.newest = Some(reports);
                state.traces.reported();
                Some(handled)
            }
            RepairMessage::Tick => {
                state.tick();
                None
            }
            RepairMessage::Look => {
                // A look for another reason does not try sooner what failed.
                if state.retry.as_ref().is_none_or(|retry| retry.at <= Instant::now()) {
                    state.refused = None;
                }
                None
            }
            RepairMessage::Written(result) => {
                state.written(result);
                None
            }
            RepairMessage::Checked { index, check, health } => {
                state.checked(index, check, health.as_ref());
                None
            }
            RepairMessage::Ran { record, end } => {
                state.ran(record, end);
                None
            }
            RepairMessage::Drained { index, drain, news } => {
                state.drained(index, drain, news);
                None
            }
            RepairMessage::Cordoned(nodes) => {
                state.cordoned(nodes);
                None
            }
            RepairMessage::Uncordoned { node, failed } => {
                state.uncordoned(&node, failed);
                None
            }
        };
        state.look();
        Ok(())
    }
}

impl RepairState {
    fn tick(&mut self) {
        self.timer = Some(later(self.myself.clone(), self.given.interval, RepairMessage::Tick));
        self.refused = None;
        self.shunned.clear();
        self.look_at_nodes();
    }

    fn permits(&self) -> Permits {
        Permits { leader: self.given.leader.clone(), epoch: self.given.epoch }
    }

    fn take_number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// The state to decide on: the newest, unless it is older than what this actor wrote or was refused.
    fn newest(&self) -> Option<Arc<ClusterState>> {
        let state = self.state.as_ref()?;
        let fresh = state.revision >= self.committed && self.refused.is_none_or(|old| state.revision > old);
        (fresh && self.writing.is_none()).then(|| Arc::clone(state))
    }

    /// Looks at everything once, sends at most one transaction, and starts what is to be started.
    fn look(&mut self) {
        let Some(state) = self.newest() else { return };
        self.know_held(&state);
        self.clear(&state);
        self.uncordon_idle(&state);
        if self.settle(&state) || self.request(&state) {
            return;
        }
        let started = Instant::now();
        let now = self.given.clock.now();
        self.ahead.follow(&state.repair, now, self.began.1.elapsed());
        let outlooks = self.outlooks(&state);
        telemetry::looked(started.elapsed());
        self.tell(&state, &outlooks);
        if !outlooks.iter().any(|outlook| self.act(&state, outlook))
            && let Some(change) = transition::forget(&state.repair)
        {
            self.write(&state, change, NOBODY, String::new(), String::new(), Then::Nothing);
        }
        self.start_checks(&state, &outlooks);
        self.start_drains(&state);
        let wake = outlooks.iter().filter_map(|outlook| outlook.obstacle.as_ref()?.until()).min();
        // The wall clock may be set: it is asked again at least once a round.
        let wake = wake.map(|at| Duration::try_from(at - now).unwrap_or(Duration::ZERO) + JUST_AFTER);
        let wake = wake.into_iter().chain(self.checks.next(self.given.interval)).min();
        self.wake =
            wake.map(|pause| later(self.myself.clone(), pause.min(self.given.interval), RepairMessage::Look));
    }

    fn outlooks(&self, state: &ClusterState) -> Vec<Outlook> {
        let places = places_of(state.cluster.as_ref().map(|cluster| &*cluster.value), &state.repair);
        let config = config(state);
        let live = Live {
            health: self.checks.believed(),
            drains: self.drains_seen(state),
            reports_awaited: self.reports_awaited(state),
            host: self.given.host.is_some(),
            kubernetes: self.given.kubernetes.is_some(),
            counted: self.ahead.clone(),
        };
        look(&View {
            queue: &state.repair,
            places: &places,
            config: config.as_ref().map(|config| *config),
            held: &self.held,
            live: &live,
            now: self.given.clock.now(),
        })
    }

    /// Brings what ran to its end in the store before anything else. Whether that takes this look.
    fn settle(&mut self, state: &Arc<ClusterState>) -> bool {
        self.resolve(state);
        let now = self.given.clock.now();
        if let Some((index, record, end)) = &self.ended {
            match transition::ended(state, *index, *record, end, now) {
                Some(change) => {
                    let (index, told) = (*index, end.text.clone());
                    self.write(state, change, index, self.address(state, index), told, Then::Ended);
                    return true;
                }
                None => self.ended = None,
            }
        }
        let runs = self.running.as_ref().map(|running| running.announced.record);
        if let Some(change) = transition::disown(&state.repair, runs, now) {
            let told = "outcome unknown".to_owned();
            self.write(state, change, NOBODY, String::new(), told, Then::Nothing);
            return true;
        }
        false
    }

    fn address(&self, state: &ClusterState, index: i64) -> String {
        state.repair.entries.get(&index).map_or_else(String::new, |item| item.value.address.clone())
    }

    /// Does what is due for an entry. Whether there was something.
    fn act(&mut self, state: &Arc<ClusterState>, outlook: &Outlook) -> bool {
        let Some(next) = outlook.due().filter(|_| !self.shunned.contains(&outlook.index)) else {
            return false;
        };
        let (index, now) = (outlook.index, self.given.clock.now());
        let places = places_of(state.cluster.as_ref().map(|cluster| &*cluster.value), &state.repair);
        let node = places.get(outlook.address.as_str()).map_or("", |place| place.name);
        let Some(transition) = Transition::new(state, index, node, now) else { return false };
        let step = state.repair.entries.get(&index).map_or(0, |item| item.value.step);
        let succeeds = "the health check says that the machine is healthy";
        let (change, then) = match next {
            Next::Nothing => return false,
            Next::Remove => (transition.remove(), Then::Nothing),
            Next::Restore => match transition.restore() {
                Some(change) => (change, Then::Nothing),
                None => return false,
            },
            Next::Succeed { command: false } => {
                (transition.finish(RepairStatus::Succeeded, step, succeeds), Then::Nothing)
            }
            Next::Succeed { command: true } => {
                let (change, record) = transition.finish_with_command();
                let Some(announced) = self.success_command(state, index, record) else { return false };
                (change, Then::Run(announced))
            }
            Next::Fail(why) => {
                let step = match why {
                    crate::outlook::Failure::NoStepLeft { step }
                    | crate::outlook::Failure::NoCommand { step } => *step,
                };
                (transition.finish(RepairStatus::Failed, step, &why.to_string()), Then::Nothing)
            }
            Next::Drain { step } => {
                // A node that is being uncordoned is not drained at the same time.
                if self.cordons.is_uncordoned(node) {
                    return false;
                }
                (transition.drain(*step), Then::Drain)
            }
            Next::Abandon(why) => {
                (transition.abandon(&why.to_string(), self.chance.random_range(0.0..1.0)), Then::Nothing)
            }
            Next::Execute { step } => {
                let (change, record) = transition.execute(*step);
                let Some(announced) = self.repair_command(state, index, *step, record) else { return false };
                (change, Then::Run(announced))
            }
        };
        self.write(state, change, index, outlook.address.clone(), next.to_string(), then);
        true
    }

    fn write(
        &mut self,
        state: &ClusterState,
        change: RepairChange,
        index: i64,
        address: String,
        told: String,
        then: Then,
    ) {
        let (leader, epoch, actor) = (self.given.leader.clone(), self.given.epoch, self.myself.clone());
        let decided_on = state.revision;
        let added = |write: &RepairWrite| match write {
            RepairWrite::Added(entry) => Some(entry.index),
            _ => None,
        };
        let added = change.writes.iter().filter_map(added).collect();
        let span = self.traces.decision(index, change.what);
        let _decision = span.clone().entered();
        let writing = Writing { what: change.what, index, address, told, then, decided_on, added, span };
        let mutation = Mutation::Repair(Box::new(change));
        let task = Task::start(async move {
            let result = commit(&leader, epoch, mutation).await;
            // The actor is gone: its successor looks at the store.
            let _ = actor.cast(RepairMessage::Written(result).into());
        });
        self.writing = Some((writing, task));
    }

    fn written(&mut self, result: Result<Committed, CommitError>) {
        let Some((writing, _)) = self.writing.take() else { return };
        match result {
            Ok(committed) => {
                self.committed = committed.revision;
                self.retry = None;
                self.committed_as(writing);
            }
            Err(error) => {
                self.given.events.emit(Event::CommitFailed { what: writing.what, why: error.to_string() });
                match error {
                    // A newer state leads to another decision, or this reign is over.
                    CommitError::Conflict { .. } | CommitError::NotLeader { .. } => {
                        self.refused = Some(writing.decided_on);
                    }
                    CommitError::Invariant { .. } | CommitError::Encoding { .. } => {
                        if writing.index == NOBODY || matches!(writing.then, Then::Ended) {
                            self.refused = Some(writing.decided_on);
                        } else {
                            self.shunned.insert(writing.index);
                        }
                    }
                    CommitError::Unanswered { .. } | CommitError::Store(_) => {
                        match writing.then {
                            Then::Run(announced) if is_planted(Canary::UnannouncedCommand) => {
                                self.run(announced, &writing.span);
                            }
                            Then::Run(announced) => self.unsure = Some((announced, writing.span)),
                            _ => {}
                        }
                        self.refused = Some(writing.decided_on);
                        self.retry_later();
                    }
                }
            }
        }
    }

    fn committed_as(&mut self, writing: Writing) {
        let Writing { what, index, address, told, then, added, span, .. } = writing;
        telemetry::done(what);
        self.traces.committed(added.into_iter().chain((index >= 0).then_some(index)), &span);
        if !address.is_empty() {
            self.given.events.emit(Event::Repaired { index, address, operation: what, what: told });
        }
        match then {
            Then::Nothing => {}
            Then::Ended => self.ended = None,
            Then::Drain => {
                self.begun.insert(index, span);
            }
            Then::Run(announced) => self.run(announced, &span),
        }
    }

    /// The state may not change any more, so that the same is tried again after a pause.
    fn retry_later(&mut self) {
        let pause = self.retry.take().map_or(RETRY_FIRST, |retry| (retry.pause * 2).min(RETRY_MOST));
        let at = Instant::now() + pause;
        self.retry =
            Some(Retry { pause, at, _timer: later(self.myself.clone(), pause, RepairMessage::Look) });
    }

    /// Tells what stands in the way of each entry, once.
    fn tell(&mut self, state: &ClusterState, outlooks: &[Outlook]) {
        let mut told = BTreeMap::new();
        for outlook in outlooks {
            let (index, address) = (outlook.index, outlook.address.clone());
            let before = self.told.get(&index);
            match outlook.obstacle.as_ref().filter(|obstacle| !obstacle.is_ordinary()) {
                Some(obstacle) => {
                    if before != Some(obstacle) {
                        let why = format!("next, {}; but {obstacle}", outlook.next);
                        let reason = obstacle.name();
                        self.given.events.emit(Event::RepairWaits { index, address, reason, why });
                    }
                    told.insert(index, obstacle.clone());
                }
                None if before.is_some() => {
                    let why = format!("next, {}", outlook.next);
                    self.given.events.emit(Event::RepairWaits { index, address, reason: "", why });
                }
                None => {}
            }
        }
        self.told = told;
        self.shown.show(state, outlooks, self.given.clock.now());
    }
}

#[cfg(test)]
mod tests;
