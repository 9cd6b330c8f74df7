//! The actor of the repair queue: health checks, drains, and decisions on the newest state.
//!
//! A reconcile pass sends at most one change; the watch brings its result before the next pass. The workflow of
//! `madako-effects` (`actor/effects.rs`) commits a change, and asks permission for, starts and records the command
//! that the change announces. Everything that takes time runs in its own task, which ends with this actor.

mod checks;
mod command;
mod effects;
mod nodes;
mod quorum;
mod requests;
mod telemetry;
mod traces;
mod work;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use madako_domain::observation::Observation;
use madako_domain::repair::RepairStatus;
use madako_domain::repair::change::RepairChange;
use madako_domain::repair::command::CommandEnd;
use madako_domain::repair::hold::HoldSettings;
use madako_domain::repair::report::Reports;
use madako_domain::state::ClusterState;
use madako_effects::{EffectEvent, EffectRunner, Permits, Workflow, command_end};
use madako_protocol::actors::RepairMessage;
use madako_protocol::event::{Event, EventSink};
use madako_protocol::feed::{Task, forward_values, send_later};
use madako_protocol::host::Host;
use madako_protocol::kubernetes::Kubernetes;
use madako_protocol::latest::Subscriber;
use madako_protocol::mailbox::Envelope;
use madako_protocol::operations::OperationsState;
use madako_protocol::ports::Clock;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use time::OffsetDateTime;
use tokio::time::Instant;
use tracing::Span;

use self::checks::Checks;
use self::command::AnnouncedCommand;
use self::effects::{AfterCommit, ChangeInFlight, DecidedChange, Subject};
use self::nodes::Cordons;
use self::quorum::EtcdAnswers;
use self::requests::Requests;
pub use self::telemetry::METRICS;
use self::telemetry::ShownValues;
use self::traces::Traces;
use self::work::Draining;
use crate::future_transitions::FutureTransitions;
use crate::limits::{FIRST_DRAIN_CHECK, FIRST_REPORTS_POLLS, JUST_AFTER};
use crate::next_action::{Action, BlockedBy, NextAction};
use crate::pass::{LeaderState, View, config, next_actions, nodes_of_queue};
use crate::racks::HeldBack;
use crate::transition::{self, Transition};

#[derive(Clone)]
pub struct RepairArguments {
    pub epoch: i64,
    /// Registered name of the leader actor.
    pub leader: String,
    /// Interval of health checks and of reconcile passes.
    pub interval: Duration,
    /// Seed of the back-off jitter.
    pub seed: u64,
    pub clock: Arc<dyn Clock>,
    pub events: Arc<dyn EventSink>,
    pub state: Subscriber<Arc<ClusterState>>,
    pub reports: Subscriber<Arc<Reports>>,
    /// Observations of every machine, which give each machine's rack.
    pub observations: Subscriber<Arc<Observation>>,
    /// Settings for holding a rack in which several machines fail together; `None`: no rack is held.
    pub hold: Option<HoldSettings>,
    /// Findings of the operation runner; `None`: operations on nodes are off.
    pub operations: Option<Subscriber<Arc<OperationsState>>>,
    /// `None`: this instance runs no commands.
    pub host: Option<Arc<dyn Host>>,
    /// `None`: Kubernetes is not configured.
    pub kubernetes: Option<Arc<dyn Kubernetes>>,
}

pub struct RepairQueueActor;

/// A cache: a new actor rebuilds all of it.
pub struct RepairState {
    given: RepairArguments,
    myself: ActorRef<Envelope<RepairMessage>>,
    /// Start of this actor, by the wall clock and the monotonic clock.
    began: (OffsetDateTime, Instant),
    state: Option<Arc<ClusterState>>,
    requests: Requests,
    held: HeldBack,
    effects: Workflow<RepairChange, AnnouncedCommand>,
    runner: EffectRunner<RepairMessage, CommandEnd>,
    writing: Option<ChangeInFlight>,
    /// Subjects of rejected changes. They wait until the next tick, so that other entries proceed.
    suspended: BTreeSet<Subject>,
    checks: Checks,
    drains: BTreeMap<i64, Draining>,
    /// Drains that this actor began, with the spans of their decisions. All others began under an earlier leader.
    begun: BTreeMap<i64, Span>,
    cordons: Cordons,
    answers: EtcdAnswers,
    traces: Traces,
    ahead: FutureTransitions,
    reported: BTreeMap<i64, BlockedBy>,
    shown: ShownValues,
    chance: ChaCha8Rng,
    /// Counter that identifies checks and drains.
    next: u64,
    timer: Option<Task>,
    wake: Option<Task>,
    _feeds: [Task; 2],
}

impl Actor for RepairQueueActor {
    type Msg = Envelope<RepairMessage>;
    type State = RepairState;
    type Arguments = RepairArguments;

    async fn pre_start(
        &self,
        myself: ActorRef<Envelope<RepairMessage>>,
        given: RepairArguments,
    ) -> Result<RepairState, ActorProcessingErr> {
        let feeds = [
            forward_values(given.state.clone(), myself.clone(), RepairMessage::State),
            forward_values(given.reports.clone(), myself.clone(), RepairMessage::Reported),
        ];
        myself.cast(RepairMessage::Tick.into())?;
        let permits = Permits { leader: given.leader.clone(), epoch: given.epoch };
        let hands = EffectRunner::new(myself.clone(), permits, RepairMessage::Effect);
        Ok(RepairState {
            chance: ChaCha8Rng::seed_from_u64(given.seed),
            began: (given.clock.now(), Instant::now()),
            given,
            myself,
            state: None,
            requests: Requests::default(),
            held: HeldBack::default(),
            effects: Workflow::default(),
            runner: hands,
            writing: None,
            suspended: BTreeSet::new(),
            checks: Checks::default(),
            drains: BTreeMap::new(),
            begun: BTreeMap::new(),
            cordons: Cordons::default(),
            answers: EtcdAnswers::default(),
            traces: Traces::default(),
            ahead: FutureTransitions::default(),
            reported: BTreeMap::new(),
            shown: ShownValues::default(),
            next: 0,
            timer: None,
            wake: None,
            _feeds: feeds,
        })
    }

    async fn handle(
        &self,
        _: ActorRef<Envelope<RepairMessage>>,
        envelope: Envelope<RepairMessage>,
        state: &mut RepairState,
    ) -> Result<(), ActorProcessingErr> {
        // The mark is dropped at the end of this handler; only then does the feed send the next value.
        let _handled = match envelope.open() {
            RepairMessage::State(new, handled) => {
                let frees_node = state.state.as_ref().is_some_and(|old| nodes::frees_node(old, &new));
                state.state = Some(new);
                if frees_node {
                    state.check_nodes();
                }
                Some(handled)
            }
            RepairMessage::Reported(reports, handled) => {
                state.requests.newest = Some(reports);
                state.traces.note_report();
                Some(handled)
            }
            RepairMessage::Tick => {
                state.tick();
                None
            }
            RepairMessage::Reconcile => {
                state.effects.allow_refused_states(Instant::now());
                None
            }
            RepairMessage::Effect(event) => {
                let actions = state.effects.handle_event(event, Instant::now());
                if !state.perform(actions) {
                    return Ok(());
                }
                None
            }
            RepairMessage::Checked { index, check, health } => {
                state.note_health_check(index, check, health.as_ref());
                None
            }
            RepairMessage::Drained { index, drain, news } => {
                state.note_drain_news(index, drain, news);
                None
            }
            RepairMessage::Cordoned(nodes) => {
                state.note_cordoned(nodes);
                None
            }
            RepairMessage::Uncordoned { node, failed } => {
                state.note_uncordoned(&node, failed);
                None
            }
        };
        state.reconcile();
        Ok(())
    }

    async fn post_stop(
        &self,
        _: ActorRef<Envelope<RepairMessage>>,
        state: &mut RepairState,
    ) -> Result<(), ActorProcessingErr> {
        let actions = state.effects.handle_event(EffectEvent::Lost, Instant::now());
        state.perform(actions);
        Ok(())
    }
}

impl RepairState {
    fn tick(&mut self) {
        self.timer = Some(send_later(self.myself.clone(), self.given.interval, RepairMessage::Tick));
        let actions = self.effects.handle_event(EffectEvent::Passed, Instant::now());
        self.perform(actions);
        self.effects.clear_refusal();
        self.suspended.clear();
        self.check_nodes();
    }

    fn take_number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Newest state; `None` while it is older than this actor's last write or rejected change.
    fn newest_state(&self) -> Option<Arc<ClusterState>> {
        self.state.clone().filter(|state| self.effects.may_decide_on(state.revision))
    }

    /// Runs one reconcile pass: sends at most one transaction and starts due checks and drains.
    fn reconcile(&mut self) {
        let Some(state) = self.newest_state() else { return };
        self.answers.follow(&state);
        self.update_held(&state);
        self.clear(&state);
        self.uncordon_idle(&state);
        if self.record_conclusion(&state) || self.request_repairs(&state) {
            return;
        }
        let started = Instant::now();
        let now = self.given.clock.now();
        self.ahead.follow(&state.repair, now, self.began.1.elapsed());
        let next_actions = self.next_actions(&state);
        telemetry::madako_repair_look_seconds().record(started.elapsed());
        self.report_obstacles(&state, &next_actions);
        if !next_actions.iter().any(|next| self.perform_due_action(&state, next))
            && let Some(change) = transition::forget_kept_state(&state.repair)
        {
            self.write(&state, DecidedChange::change_without_event(change));
        }
        self.start_checks(&state, &next_actions);
        self.start_drains(&state);
        let wake = next_actions.iter().filter_map(|next| next.blocked_by.as_ref()?.until()).min();
        // The wall clock may be set: read it again at least once an interval.
        let wake = wake.map(|at| Duration::try_from(at - now).unwrap_or(Duration::ZERO) + JUST_AFTER);
        let wake = wake.into_iter().chain(self.checks.next(self.given.interval)).min();
        self.wake = wake.map(|pause| {
            send_later(self.myself.clone(), pause.min(self.given.interval), RepairMessage::Reconcile)
        });
    }

    fn next_actions(&self, state: &ClusterState) -> Vec<NextAction> {
        let nodes = nodes_of_queue(state.cluster.as_ref().map(|cluster| &*cluster.value), &state.repair);
        let config = config(state);
        let operations = self.given.operations.as_ref().map(|operations| operations.newest());
        let live = LeaderState {
            health: self.checks.valid_health(),
            drains: self.progress_of_drains(state),
            reports_awaited: self.reports_awaited(state),
            host: self.given.host.is_some(),
            kubernetes: self.given.kubernetes.is_some(),
            operation_due: operations.as_ref().is_some_and(is_due),
            quorum: operations
                .map(|found| self.answers.find_violations(state, found.as_deref(), self.given.interval))
                .unwrap_or_default(),
            counted: self.ahead.clone(),
        };
        next_actions(&View {
            queue: &state.repair,
            nodes: &nodes,
            config: config.as_ref().map(|config| *config),
            held: &self.held,
            live: &live,
            now: self.given.clock.now(),
        })
    }

    /// Records ended commands before any other decision. Returns whether that used this pass's transaction.
    fn record_conclusion(&mut self, state: &Arc<ClusterState>) -> bool {
        self.resolve(state);
        let now = self.given.clock.now();
        if let Some((AnnouncedCommand { command, .. }, conclusion)) = self.effects.conclusion() {
            let (index, end) = (command.index, command_end(conclusion));
            match transition::end_command(state, index, command.record, &end, now) {
                Some(change) => {
                    let subject = Subject::Entry(index);
                    self.write(
                        state,
                        DecidedChange { change, subject, event_text: end.text, then: AfterCommit::Record },
                    );
                    return true;
                }
                None => self.effects.is_recorded(),
            }
        }
        let runs = self.effects.announced_effect().map(|announced| announced.command.record);
        if let Some(change) = transition::cancel_unfinished(&state.repair, runs, now) {
            self.write(state, DecidedChange::change_without_event(change));
            return true;
        }
        false
    }

    /// Performs the due action of an entry. Returns whether there was one.
    fn perform_due_action(&mut self, state: &Arc<ClusterState>, next: &NextAction) -> bool {
        let subject = Subject::Entry(next.index);
        let Some(action) = next.due().filter(|_| !self.suspended.contains(&subject)) else {
            return false;
        };
        let (index, now) = (next.index, self.given.clock.now());
        let nodes = nodes_of_queue(state.cluster.as_ref().map(|cluster| &*cluster.value), &state.repair);
        let node = nodes.get(next.address.as_str()).map_or("", |node| node.name);
        let Some(transition) = Transition::new(state, index, node, now) else { return false };
        let step = state.repair.entries.get(&index).map_or(0, |item| item.value.step);
        let succeeds = "the health check reports a healthy machine";
        let (change, then) = match action {
            Action::Nothing => return false,
            Action::Remove => (transition.remove(), AfterCommit::Nothing),
            Action::Restore => match transition.restore() {
                Some(change) => (change, AfterCommit::Nothing),
                None => return false,
            },
            Action::Succeed { command: false } => {
                (transition.finish(RepairStatus::Succeeded, step, succeeds), AfterCommit::Nothing)
            }
            Action::Succeed { command: true } => {
                let (change, record) = transition.finish_with_command();
                let Some(command) = self.success_command(state, index, record) else { return false };
                (change, AfterCommit::Run(command))
            }
            Action::Fail(why) => {
                let step = match why {
                    crate::next_action::Failure::NoStepLeft { step }
                    | crate::next_action::Failure::NoCommand { step } => *step,
                };
                (transition.finish(RepairStatus::Failed, step, &why.to_string()), AfterCommit::Nothing)
            }
            Action::Drain { step } => {
                // Draining and uncordoning of one node must not overlap.
                if self.cordons.is_uncordoned(node) {
                    return false;
                }
                (transition.drain(*step), AfterCommit::Drain)
            }
            Action::Abandon(why) => (
                transition.abandon(&why.to_string(), self.chance.random_range(0.0..1.0)),
                AfterCommit::Nothing,
            ),
            Action::Execute { step } => {
                let (change, record) = transition.execute(*step);
                let Some(command) = self.repair_command(state, index, *step, record) else { return false };
                (change, AfterCommit::Run(command))
            }
        };
        self.write(state, DecidedChange { change, subject, event_text: action.to_string(), then });
        true
    }

    /// Emits an event for each obstacle that appeared or disappeared.
    fn report_obstacles(&mut self, state: &ClusterState, next_actions: &[NextAction]) {
        let mut reported = BTreeMap::new();
        for next in next_actions {
            let (index, address) = (next.index, next.address.clone());
            let before = self.reported.get(&index);
            match next.blocked_by.as_ref().filter(|blocked_by| !blocked_by.is_part_of_every_repair()) {
                Some(blocked_by) => {
                    if before != Some(blocked_by) {
                        let why = format!("next, {}; but {blocked_by}", next.action);
                        let reason = blocked_by.name();
                        self.given.events.emit(Event::RepairWaits { index, address, reason, why });
                    }
                    reported.insert(index, blocked_by.clone());
                }
                None if before.is_some() => {
                    let why = format!("next, {}", next.action);
                    self.given.events.emit(Event::RepairWaits { index, address, reason: "", why });
                }
                None => {}
            }
        }
        self.reported = reported;
        self.shown.show(state, next_actions, self.given.clock.now());
    }
}

/// True if an operation on nodes is due, or if that is unknown yet.
fn is_due(found: &Option<Arc<OperationsState>>) -> bool {
    found.as_ref().is_none_or(|found| found.is_due)
}

#[cfg(test)]
mod tests;
