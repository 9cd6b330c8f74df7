//! Shell of the reboot queue: drains, boot checks, the reboot command, and decisions on the newest state.
//!
//! As in the repair queue, a pass sends at most one change, and the watch brings its result before the next pass. The
//! workflow of `madako-effects` commits a change, and asks permission for, starts and records the reboot command that
//! the change announces. Everything that takes time runs in its own task, which ends with this actor.

mod command;
mod etcd;
mod telemetry;
#[cfg(test)]
mod tests;
mod work;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use madako_domain::reboot::RebootSettings;
use madako_domain::repair::change::RepairChange;
use madako_domain::repair::command::{CommandEnd, CommandOutcome};
use madako_domain::state::ClusterState;
use madako_effects::{
    Action as Does, EffectEvent, EffectRunner, Evidence, Permits, RemainingEffect, Workflow, command_end,
};
use madako_protocol::actors::{Failure, Mutation, RebootMessage};
use madako_protocol::event::{Event, EventSink};
use madako_protocol::feed::{Task, forward_values, send_later};
use madako_protocol::first_seen::FirstSeenTimes;
use madako_protocol::host::Host;
use madako_protocol::kubernetes::Kubernetes;
use madako_protocol::latest::{Publisher, Subscriber};
use madako_protocol::mailbox::Envelope;
use madako_protocol::operations::OperationsState;
use madako_protocol::ports::Clock;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use tokio::time::Instant;

use self::command::{RebootCommand, Stage};
use self::etcd::EtcdAnswers;
pub use self::telemetry::METRICS;
use self::work::{BootChecks, Draining};
use crate::explain::config;
use crate::limits::JUST_AFTER;
use crate::next_action::{Action, BlockedBy, Explained, NextAction};
use crate::page::RebootsPage;
use crate::pass::{Live, View, maximum_unreachable, next_actions, nodes};
use crate::transition::{self, Transition};

#[derive(Clone)]
pub struct RebootArguments {
    pub epoch: i64,
    /// Registered name of the leader actor.
    pub leader: String,
    /// Interval of boot checks and of passes.
    pub interval: Duration,
    /// Seed of the back-off jitter.
    pub seed: u64,
    pub settings: RebootSettings,
    pub clock: Arc<dyn Clock>,
    pub events: Arc<dyn EventSink>,
    pub state: Subscriber<Arc<ClusterState>>,
    /// Findings of the operation runner; `None`: operations on nodes are off, so nothing is known of etcd.
    pub operations: Option<Subscriber<Arc<OperationsState>>>,
    /// Registered name of the operation runner; `None`: operations on nodes are off.
    pub runner: Option<String>,
    /// `None`: this instance runs no commands.
    pub host: Option<Arc<dyn Host>>,
    /// `None`: Kubernetes is not configured.
    pub kubernetes: Option<Arc<dyn Kubernetes>>,
    pub page: Publisher<Arc<RebootsPage>>,
}

pub struct RebootQueueActor;

/// A cache: a new actor rebuilds all of it.
pub struct RebootState {
    given: RebootArguments,
    myself: ActorRef<Envelope<RebootMessage>>,
    /// Start of this actor.
    began: Instant,
    state: Option<Arc<ClusterState>>,
    effects: Workflow<RepairChange, RebootCommand>,
    runner: EffectRunner<RebootMessage, CommandEnd>,
    /// Details of the change in flight.
    writing: Option<ChangeInFlight>,
    /// Entries whose change was rejected. They wait until the next tick, so that other entries proceed.
    suspended: BTreeSet<i64>,
    checks: BootChecks,
    drains: BTreeMap<i64, Draining>,
    /// Drains that this actor began. All others began under an earlier leader.
    begun: BTreeSet<i64>,
    answers: EtcdAnswers,
    reported: BTreeMap<i64, BlockedBy>,
    waiting_since: FirstSeenTimes<&'static str>,
    chance: ChaCha8Rng,
    /// Counter that identifies checks and drains.
    next: u64,
    timer: Option<Task>,
    wake: Option<Task>,
    _feed: Task,
}

struct ChangeInFlight {
    operation: &'static str,
    /// Index and node of the entry; `None`: the change belongs to no entry.
    entry: Option<(i64, String)>,
    text: String,
    is_drain: bool,
    failed: bool,
}

impl Actor for RebootQueueActor {
    type Msg = Envelope<RebootMessage>;
    type State = RebootState;
    type Arguments = RebootArguments;

    async fn pre_start(
        &self,
        myself: ActorRef<Envelope<RebootMessage>>,
        given: RebootArguments,
    ) -> Result<RebootState, ActorProcessingErr> {
        let feed = forward_values(given.state.clone(), myself.clone(), RebootMessage::State);
        myself.cast(RebootMessage::Tick.into())?;
        let permits = Permits { leader: given.leader.clone(), epoch: given.epoch };
        let runner = EffectRunner::new(myself.clone(), permits, RebootMessage::Effect);
        Ok(RebootState {
            chance: ChaCha8Rng::seed_from_u64(given.seed),
            began: Instant::now(),
            given,
            myself,
            state: None,
            effects: Workflow::default(),
            runner,
            writing: None,
            suspended: BTreeSet::new(),
            checks: BootChecks::default(),
            drains: BTreeMap::new(),
            begun: BTreeSet::new(),
            answers: EtcdAnswers::default(),
            reported: BTreeMap::new(),
            waiting_since: FirstSeenTimes::default(),
            next: 0,
            timer: None,
            wake: None,
            _feed: feed,
        })
    }

    async fn handle(
        &self,
        _: ActorRef<Envelope<RebootMessage>>,
        envelope: Envelope<RebootMessage>,
        state: &mut RebootState,
    ) -> Result<(), ActorProcessingErr> {
        // The mark is dropped at the end of this handler; only then does the feed send the next value.
        let _handled = match envelope.open() {
            RebootMessage::State(new, handled) => {
                state.state = Some(new);
                Some(handled)
            }
            RebootMessage::Tick => {
                state.tick();
                None
            }
            RebootMessage::Reconcile => {
                state.effects.allow_refused_states(Instant::now());
                None
            }
            RebootMessage::Effect(event) => {
                let actions = state.effects.handle_event(event, Instant::now());
                if !state.perform(actions) {
                    return Ok(());
                }
                None
            }
            RebootMessage::Checked { index, check, answer } => {
                state.checks.note_answer(index, check, answer.as_ref());
                None
            }
            RebootMessage::Drained { index, drain, news } => {
                state.note_drain_news(index, drain, news);
                None
            }
        };
        state.reconcile();
        Ok(())
    }

    async fn post_stop(
        &self,
        _: ActorRef<Envelope<RebootMessage>>,
        state: &mut RebootState,
    ) -> Result<(), ActorProcessingErr> {
        let actions = state.effects.handle_event(EffectEvent::Lost, Instant::now());
        state.perform(actions);
        Ok(())
    }
}

impl RebootState {
    fn tick(&mut self) {
        self.timer = Some(send_later(self.myself.clone(), self.given.interval, RebootMessage::Tick));
        let actions = self.effects.handle_event(EffectEvent::Passed, Instant::now());
        self.perform(actions);
        self.effects.clear_refusal();
        self.suspended.clear();
    }

    fn take_number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Runs one pass: sends at most one change, and starts due drains and boot checks.
    fn reconcile(&mut self) {
        // No decision on a state that is older than this actor's last write or rejected change.
        let newest = self.state.clone().filter(|state| self.effects.may_decide_on(state.revision));
        let Some(state) = newest else { return };
        self.answers.follow(&state);
        self.clear(&state);
        if self.record_conclusion(&state) {
            return;
        }
        let actions = self.next_actions(&state);
        self.report_obstacles(&actions);
        self.publish_page(&actions);
        if !actions.iter().any(|next| self.perform_due_action(&state, next))
            && let Some(change) = transition::show_running(&state)
        {
            self.write(&state, change, None, String::new(), None);
        }
        self.start_checks(&state);
        self.start_drains(&state);
        let now = self.given.clock.now();
        let wake = actions.iter().filter_map(|next| next.blocked_by.as_ref()?.until()).min();
        // The wall clock may be set: read it again at least once an interval.
        self.wake = wake.map(|at| {
            let pause = Duration::try_from(at - now).unwrap_or(Duration::ZERO) + JUST_AFTER;
            send_later(self.myself.clone(), pause.min(self.given.interval), RebootMessage::Reconcile)
        });
    }

    fn next_actions(&self, state: &ClusterState) -> Vec<NextAction> {
        let nodes = nodes(state.cluster.as_ref().map(|cluster| &*cluster.value));
        let config = config(state);
        let found = self.given.operations.as_ref().and_then(|operations| operations.newest());
        let live = Live {
            drains: self.drain_progress(state),
            booted: self.checks.booted_entries(),
            unreachable: found.as_ref().map(|found| found.unreachable.clone()).unwrap_or_default(),
            etcd: self.answers.fault(self.given.operations.is_some(), found.as_deref(), self.given.interval),
            api: self.answers.api_gaps(found.as_deref()),
            // Nothing is known before the first collection of a leader.
            leaves_kubelets: self.given.operations.is_none()
                || found.as_ref().is_some_and(|found| !found.updates_kubelets),
            operation_due: found.as_ref().is_none_or(|found| found.is_due),
            host: self.given.host.is_some(),
            kubernetes: self.given.kubernetes.is_some(),
        };
        next_actions(&View {
            queue: &state.repair,
            nodes: &nodes,
            config: config.as_ref(),
            settings: self.given.settings,
            maximum_unreachable: maximum_unreachable(state),
            live: &live,
            now: self.given.clock.now(),
        })
    }

    /// Records ended commands before any other decision. Returns whether that used this pass's transaction.
    fn record_conclusion(&mut self, state: &Arc<ClusterState>) -> bool {
        self.resolve(state);
        let now = self.given.clock.now();
        if let Some((command, conclusion)) = self.effects.conclusion() {
            let (command, mut end) = (command.clone(), command_end(conclusion));
            if let Some((change, record)) = self.begin_prepared(state, &command, &mut end) {
                self.record_end(state, change, &command, &end, Some(command.prepared(record)));
                return true;
            }
            let is_refused = end.how == CommandOutcome::Refused;
            let draw = if is_refused { self.chance.random_range(0.0..1.0) } else { 0.0 };
            match transition::end_command(&state.repair, command.index, command.record, &end, now, draw) {
                Some(change) => {
                    self.record_end(state, change, &command, &end, None);
                    return true;
                }
                None => self.effects.is_recorded(),
            }
        }
        let runs = self.effects.announced_effect().map(|command| command.record);
        if let Some(change) = transition::cancel_unfinished(&state.repair, runs, now) {
            self.write(state, change, None, String::new(), None);
            return true;
        }
        false
    }

    /// The announcement of the command after its preparation, unless a client cancelled the reboot meanwhile. A preparation
    /// without its command is a command that did not begin.
    fn begin_prepared(
        &self,
        state: &ClusterState,
        command: &RebootCommand,
        end: &mut CommandEnd,
    ) -> Option<(RepairChange, i64)> {
        if matches!(command.stage, Stage::Command) || end.how == CommandOutcome::Refused {
            return None;
        }
        let obstacle = command.find_obstacle(state);
        let begins = || {
            let transition = Transition::new(state, command.index, self.given.clock.now())?;
            transition.reboot_prepared(command.record)
        };
        let is_prepared = end.how == CommandOutcome::Succeeded && obstacle.is_none();
        let begun = is_prepared.then(begins).flatten();
        if begun.is_none() {
            end.how = CommandOutcome::NotBegun;
            end.text = obstacle.map_or(std::mem::take(&mut end.text), |why| format!("not started, {why}"));
        }
        begun
    }

    /// Records the end of a command or of a preparation, and announces the next effect.
    fn record_end(
        &mut self,
        state: &ClusterState,
        change: RepairChange,
        command: &RebootCommand,
        end: &CommandEnd,
        next: Option<RebootCommand>,
    ) {
        let operation = change.what;
        let Some(action) = self.effects.record(change, next, state.revision, Instant::now()) else { return };
        self.writing = Some(ChangeInFlight {
            operation,
            entry: Some((command.index, command.node.clone())),
            text: end.text.clone(),
            is_drain: false,
            failed: end.how != CommandOutcome::Succeeded,
        });
        self.perform(vec![action]);
    }

    /// Tells the workflow whether the store shows an announcement whose commit has an unknown result: the unfinished
    /// record with its number is of its operation and its node, and no client cancelled the entry.
    fn resolve(&mut self, state: &ClusterState) {
        let Some(command) = self.effects.unconfirmed_announcement() else { return };
        let records = &state.repair.records;
        let is_of_command = |record: &madako_domain::record::Record| {
            record.operation == command.stage.operation() && record.targets == [command.node.as_str()]
        };
        let is_announced =
            records.unfinished.get(&command.record).is_some_and(|item| is_of_command(&item.value));
        let evidence = match (is_announced, command.find_obstacle(state)) {
            (true, None) => Evidence::Announced,
            (true, Some(why)) => Evidence::AnnouncedInVain { why },
            (false, _) if records.known.contains_key(&command.record) => Evidence::Never,
            (false, _) => Evidence::NotYet,
        };
        let actions = self.effects.observe(evidence, Instant::now());
        self.perform(actions);
    }

    /// Performs the due action of an entry. Returns whether there was one.
    fn perform_due_action(&mut self, state: &Arc<ClusterState>, next: &NextAction) -> bool {
        if next.blocked_by.is_some() || self.suspended.contains(&next.index) {
            return false;
        }
        let now = self.given.clock.now();
        let Some(transition) = Transition::new(state, next.index, now) else { return false };
        let (change, command) = match &next.action {
            Action::Remove(removal) => (transition.remove(*removal), None),
            Action::Drain => (transition.drain(), None),
            Action::BackOff(why) => {
                (transition.back_off(&why.to_string(), self.chance.random_range(0.0..1.0)), None)
            }
            Action::Reboot => {
                let stage = self.first_stage(state, &next.node);
                let (change, record) = match stage {
                    Stage::Prepare { .. } => transition.prepare(),
                    Stage::Command => transition.reboot(),
                };
                let Some(command) = self.reboot_command(state, next, stage, record) else { return false };
                (change, Some(command))
            }
            Action::LeaveToUpdate => (transition.leave_to_update(), None),
            Action::AwaitBoot | Action::AwaitUpdate => return false,
        };
        self.write(state, change, Some(next), next.action.to_string(), command);
        true
    }

    fn write(
        &mut self,
        state: &ClusterState,
        change: RepairChange,
        next: Option<&NextAction>,
        text: String,
        command: Option<RebootCommand>,
    ) {
        let operation = change.what;
        let (on, now) = (state.revision, Instant::now());
        let action = match command {
            Some(command) => self.effects.announce(change, command, on, now),
            None => self.effects.send_change(change, on, now),
        };
        // Only states that allow decisions come here, and only one command is announced at a time.
        let Some(action) = action else { return };
        self.writing = Some(ChangeInFlight {
            operation,
            entry: next.map(|next| (next.index, next.node.clone())),
            text,
            is_drain: operation == transition::DRAIN_START,
            failed: operation == transition::DRAIN_TIMEOUT,
        });
        self.perform(vec![action]);
    }

    /// Performs actions of the workflow. Returns whether the newest state is to be evaluated.
    fn perform(&mut self, actions: Vec<Does<RepairChange, RebootCommand>>) -> bool {
        let mut decides = false;
        for action in actions {
            match action {
                Does::Commit { number, change } => {
                    self.runner.commit(number, Mutation::Repair(Box::new(change)));
                }
                Does::Answered { result } => self.note_commit_result(result),
                Does::Ask { number, .. } => self.runner.ask(number),
                Does::Start { number, attempt, effect, permit } => {
                    let Some(host) = self.given.host.clone() else { continue };
                    let (kubernetes, permits) =
                        (self.given.kubernetes.clone(), self.runner.permits().clone());
                    let newest = self.given.state.clone();
                    self.runner.carry_out(async move {
                        let kubernetes = kubernetes.as_deref();
                        let end = effect.run_attempt(&*host, kubernetes, newest, permits, permit, attempt);
                        EffectEvent::Ended { number, end: end.await }
                    });
                }
                Does::Pause { number, effect } => self.runner.carry_out(async move {
                    tokio::time::sleep(effect.interval).await;
                    EffectEvent::Paused { number, against: None }
                }),
                Does::Abort => self.runner.abort(),
                Does::Record { took, effect } => {
                    if let (Stage::Command, Some((_, conclusion))) = (effect.stage, self.effects.conclusion())
                    {
                        let how = command_end(conclusion).how.name();
                        telemetry::madako_reboot_command_seconds(how).record(took);
                    }
                }
                Does::Decide => decides = true,
                Does::Report { effect, left } => {
                    let left = match left {
                        RemainingEffect::NotBegun => "the command did not begin",
                        RemainingEffect::Unknown => "the command was ended; its effect is unknown",
                        RemainingEffect::NotRecorded => "the command ended; its end is not recorded",
                    };
                    let (entry, record) = (effect.index, effect.record);
                    tracing::warn!(
                        entry,
                        record,
                        left,
                        "the next leader cancels the record of a reboot command"
                    );
                }
            }
        }
        self.runner.wake_at(self.effects.wake());
        decides
    }

    fn note_commit_result(
        &mut self,
        result: Result<madako_protocol::actors::Committed, madako_protocol::actors::CommitError>,
    ) {
        let Some(writing) = self.writing.take() else { return };
        match result {
            Ok(_) => {
                telemetry::madako_reboot_operations_total(writing.operation).increment(1);
                let Some((index, node)) = writing.entry else { return };
                if writing.is_drain {
                    self.begun.insert(index);
                }
                let ChangeInFlight { operation, text: what, failed, .. } = writing;
                self.given.events.emit(Event::Rebooted { index, node, operation, what, failed });
            }
            Err(error) => {
                let (what, why) = (writing.operation, error.to_string());
                self.given.events.emit(Event::CommitFailed { what, why });
                if let Some((index, _)) = writing.entry
                    && error.failure_class() == Failure::Rejected
                    && self.effects.conclusion().is_none()
                {
                    self.suspended.insert(index);
                    self.effects.clear_refusal();
                }
            }
        }
    }

    fn publish_page(&self, actions: &[NextAction]) {
        let entries = actions.iter().map(Explained::from).collect();
        self.given.page.publish(Arc::new(RebootsPage { epoch: self.given.epoch, entries }));
    }

    /// Emits an event for each obstacle that appeared or disappeared, and shows their numbers.
    fn report_obstacles(&mut self, actions: &[NextAction]) {
        let mut reported = BTreeMap::new();
        for next in actions {
            let (index, node) = (next.index, next.node.clone());
            let before = self.reported.get(&index);
            match next.blocked_by.as_ref().filter(|blocked_by| !blocked_by.is_ordinary()) {
                Some(blocked_by) => {
                    if before != Some(blocked_by) {
                        let why = format!("next, {}; but {blocked_by}", next.action);
                        let reason = blocked_by.name();
                        self.given.events.emit(Event::RebootWaits { index, node, reason, why });
                    }
                    reported.insert(index, blocked_by.clone());
                }
                None if before.is_some() => {
                    let why = format!("next, {}", next.action);
                    self.given.events.emit(Event::RebootWaits { index, node, reason: "", why });
                }
                None => {}
            }
        }
        self.reported = reported;
        let now = self.given.clock.now().unix_timestamp();
        telemetry::show_waiting(actions, &mut self.waiting_since, now);
    }
}
