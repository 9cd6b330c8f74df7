//! The planner's actor around the pure [`plan`](crate::plan): it plans when the store's state and the observations
//! allow it, and asks the leader to commit the plan.

mod noting;
mod taints;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use madako_domain::canary::{Canary, is_planted};
use madako_domain::cluster::Cluster;
use madako_domain::invariants::quorum_of_plan;
use madako_domain::keys;
use madako_domain::observation::{Observation, TaintsPoll};
use madako_domain::plan::{Plan, PlanError};
use madako_domain::state::ClusterState;
use madako_protocol::actors::{ClusterMutation, Evidence, Failure, Mutation, PlannerMessage};
use madako_protocol::event::{Event, EventSink, PlanBlockedBy};
use madako_protocol::feed::{Task, forward_values, send_later};
use madako_protocol::kubernetes::Kubernetes;
use madako_protocol::latest::Subscriber;
use madako_protocol::leader::commit;
use madako_protocol::mailbox::Envelope;
use madako_protocol::operations::OperationsState;
use madako_protocol::ports::Clock;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{Instrument, info_span};

use self::noting::registry_query;
use self::taints::NodeTaints;
use crate::limits::{JUST_AFTER, RETRY_FIRST, RETRY_MOST, STALE_AFTER_POLLS};
use crate::{LeaderStage, PlanInput, plan};

#[derive(Clone)]
pub struct PlannerArguments {
    pub epoch: i64,
    /// Registered name of the leader actor.
    pub leader: String,
    pub interval: Duration,
    /// Minimum time in the retired state before a worker is removed.
    pub retire_wait: Duration,
    pub clock: Arc<dyn Clock>,
    pub events: Arc<dyn EventSink>,
    pub state: Subscriber<Arc<ClusterState>>,
    pub observations: Subscriber<Arc<Observation>>,
    /// Findings of the operation runner; `None`: operations on nodes are off.
    pub operations: Option<Subscriber<Arc<OperationsState>>>,
    /// API server of the cluster; `None`: node taints are unknown.
    pub kubernetes: Option<Arc<dyn Kubernetes>>,
    /// The first plan of this epoch, which only applies a changed template, was made.
    pub begun: watch::Sender<bool>,
}

pub struct Planner;

/// A cache: a new actor rebuilds all of it.
pub struct PlannerState {
    given: PlannerArguments,
    state: Option<Arc<ClusterState>>,
    observation: Option<Arc<Observation>>,
    taints: NodeTaints,
    /// Revision of the last commit: older states are not planned on.
    committed: i64,
    /// Pause before the next attempt to commit, and its timer.
    retry: Option<(Duration, Task)>,
    last_event: Option<LastEvent>,
    /// Name of the reason that blocks planning, and the Unix time since which it does.
    blocked: Option<(&'static str, i64)>,
    /// Start of the current question to the registry: its URL, its variables, and the integration being enabled.
    asked_since: Instant,
    /// Timer for the age limit of the observation.
    aging: Option<Task>,
    _feeds: Vec<Task>,
}

/// The last event: each is emitted once, not at every poll.
#[derive(Debug, PartialEq)]
enum LastEvent {
    Blocked(PlanBlockedBy),
    Calm,
    Failed(String),
}

enum InputEvaluation {
    Blocked(PlanBlockedBy),
    /// The state is older than the last commit, or the first taints are awaited: the missing input is on its way.
    Behind,
    Planned(Box<Decision>),
}

struct Decision {
    inputs: Inputs,
    /// Error of the first plan, which applies a changed template before the rules.
    not_applied: Option<PlanError>,
    result: Result<Plan, PlanError>,
    took: Duration,
}

struct Inputs {
    state: Arc<ClusterState>,
    observation: Arc<Observation>,
    /// The plan only applies the changed template that this epoch found.
    first: bool,
}

madako_protocol::declare_metrics! {
    "Planning":
    counter madako_plans_total(action)
        "Plans by action: `none` if nothing is to do, `failed` if no plan is possible.";
    histogram madako_plan_seconds() in Seconds "Duration of making a plan.";
    gauge madako_planner_blocked(reason)
        "1 for the reason that blocks planning now. The guide (\"When nothing happens\") has the remedy for each \
         reason.";
    gauge madako_planner_blocked_since_timestamp_seconds(reason) in Seconds
        "Unix time since which the reason blocks planning; 0 for other reasons.";
    gauge madako_plan_timestamp_seconds() in Seconds "Unix time of the last plan.";
    gauge cke_sabakan_integration_successful() "1 if the last plan satisfies the constraints.";
    gauge cke_sabakan_integration_timestamp_seconds() in Seconds
        "Unix time of the last update of `cke_sabakan_integration_successful`.";
    gauge cke_sabakan_workers(role) "Workers of each role.";
    gauge cke_sabakan_unused_machines() "Healthy machines outside the cluster.";

    "Kubernetes":
    gauge madako_node_taints_known()
        "1 while the known taints of the Kubernetes nodes are recent enough to plan with.";
    gauge madako_node_taints_timestamp_seconds() in Seconds
        "Unix time of the API server's last good answer about the taints of nodes.";
}

impl Actor for Planner {
    type Msg = Envelope<PlannerMessage>;
    type State = PlannerState;
    type Arguments = PlannerArguments;

    async fn pre_start(
        &self,
        myself: ActorRef<Envelope<PlannerMessage>>,
        given: PlannerArguments,
    ) -> Result<PlannerState, ActorProcessingErr> {
        let mut feeds = vec![
            forward_values(given.state.clone(), myself.clone(), PlannerMessage::State),
            forward_values(given.observations.clone(), myself.clone(), PlannerMessage::Observed),
        ];
        let operations = given.operations.clone();
        feeds.extend(operations.map(|it| forward_values(it, myself.clone(), PlannerMessage::Operations)));
        let taints = NodeTaints::start(given.kubernetes.clone(), given.interval, myself);
        Ok(PlannerState {
            given,
            state: None,
            observation: None,
            taints,
            committed: 0,
            retry: None,
            last_event: None,
            blocked: None,
            asked_since: Instant::now(),
            aging: None,
            _feeds: feeds,
        })
    }

    async fn handle(
        &self,
        myself: ActorRef<Envelope<PlannerMessage>>,
        envelope: Envelope<PlannerMessage>,
        state: &mut PlannerState,
    ) -> Result<(), ActorProcessingErr> {
        // The mark is dropped at the end of this handler; only then does the feed send the next value.
        let _handled = match envelope.open() {
            PlannerMessage::State(new, handled) => {
                if state.state.as_deref().map(registry_query) != Some(registry_query(&new)) {
                    state.asked_since = Instant::now();
                    state.wake_when_stale(&myself, state.asked_since);
                }
                state.state = Some(new);
                Some(handled)
            }
            PlannerMessage::Observed(new, handled) => {
                state.wake_when_stale(&myself, new.received);
                state.observation = Some(new);
                Some(handled)
            }
            PlannerMessage::Taints(polled, handled) => {
                if !state.take_taints(&polled) {
                    return Ok(());
                }
                Some(handled)
            }
            PlannerMessage::Operations(_, handled) => Some(handled),
            PlannerMessage::Reconcile => None,
        };
        state.plan(&myself).await;
        Ok(())
    }
}

impl PlannerState {
    async fn plan(&mut self, myself: &ActorRef<Envelope<PlannerMessage>>) {
        let considered = self.evaluate_inputs();
        let obstacles = self.new_obstacles(&considered);
        self.handle_evaluation(myself, considered).await;
        if let Some(mutation) = obstacles {
            self.note(myself, mutation).await;
        }
    }

    async fn handle_evaluation(
        &mut self,
        myself: &ActorRef<Envelope<PlannerMessage>>,
        considered: InputEvaluation,
    ) {
        match considered {
            InputEvaluation::Behind => {}
            InputEvaluation::Blocked(why) => {
                self.show_blocked(Some(&why));
                self.emit_once(LastEvent::Blocked(why.clone()), || Event::Blocked(why));
            }
            InputEvaluation::Planned(decision) => {
                let Decision { inputs, not_applied, result, took } = *decision;
                self.show_blocked(None);
                if let Some(error) = not_applied {
                    self.given.events.emit(Event::PlanFailed(Arc::new(error)));
                }
                if !inputs.first {
                    self.given.begun.send_replace(true);
                }
                self.show(&result, took);
                match result {
                    Err(error) => {
                        let text = error.to_string();
                        self.emit_once(LastEvent::Failed(text), || Event::PlanFailed(Arc::new(error)));
                    }
                    Ok(plan) if plan.action.is_none() => {
                        let plan = Arc::new(plan);
                        self.emit_once(LastEvent::Calm, || Event::Calm { plan });
                    }
                    Ok(plan) => {
                        self.last_event = None;
                        let plan = Arc::new(plan);
                        let span = info_span!("plan", action = plan.action.map(|action| action.name()));
                        let carried_out = async {
                            self.given.events.emit(Event::Planned { plan: Arc::clone(&plan), took });
                            self.commit(myself, &inputs, plan).await;
                        };
                        carried_out.instrument(span).await;
                    }
                }
            }
        }
    }

    /// Evaluates the inputs, and plans if they allow it.
    fn evaluate_inputs(&self) -> InputEvaluation {
        let Some(state) = &self.state else { return InputEvaluation::Blocked(PlanBlockedBy::NoState) };
        if state.revision < self.committed || self.taints.is_awaiting_first_poll() {
            return InputEvaluation::Behind;
        }
        if let Some(blocked) = blocked_by_state(state) {
            return InputEvaluation::Blocked(blocked);
        }
        let Some(observation) = &self.observation else {
            return InputEvaluation::Blocked(PlanBlockedBy::NoObservation);
        };
        if let Some(blocked) = self.find_unsuitable_observation(state, observation) {
            return InputEvaluation::Blocked(blocked);
        }
        let operations = self.given.operations.as_ref().map(|operations| operations.newest());
        match &operations {
            // The runner has not read the nodes of this cluster yet.
            Some(None) if state.cluster.is_some() => return InputEvaluation::Behind,
            Some(Some(found)) if found.is_due => {
                return InputEvaluation::Blocked(PlanBlockedBy::OperationDue);
            }
            _ => {}
        }
        let (Some(template), Some(constraints)) = (&state.template, &state.constraints) else {
            return InputEvaluation::Blocked(PlanBlockedBy::NoTemplate);
        };
        let under_repair = state.repair.machines_under_way().map(str::to_owned).collect();
        let input = |moment| PlanInput {
            template: &template.value,
            constraints: &constraints.value,
            machines: &observation.machines,
            current: state.cluster.as_ref().map(|cluster| &*cluster.value),
            node_taints: self.taints.known(),
            under_repair: &under_repair,
            now: self.given.clock.now(),
            retire_wait: self.given.retire_wait,
            template_changed: state.has_changed_template(),
            moment,
        };
        let started = Instant::now();
        let begun = *self.given.begun.borrow();
        let at_start = (!begun && state.cluster.is_some()).then(|| plan(&input(LeaderStage::LeaderStart)));
        // As in CKE, the rules are tried even if the first plan fails.
        let (first, not_applied) = match at_start {
            Some(Ok(plan)) => (Some(plan).filter(|plan| plan.action.is_some()), None),
            Some(Err(error)) => (None, Some(error)),
            None => (None, None),
        };
        let inputs =
            Inputs { state: Arc::clone(state), observation: Arc::clone(observation), first: first.is_some() };
        let result = first.map_or_else(|| plan(&input(LeaderStage::Running)), Ok);
        let planned = result.as_ref().ok().and_then(|plan| plan.cluster.as_ref());
        let found = operations.flatten().filter(|found| found.has_data);
        if let (Some(after), Some(before), Some(found)) = (planned, &state.cluster, found) {
            let (before, after) = (control_plane(&before.value), control_plane(after));
            if let Some(violation) = quorum_of_plan(found.etcd.as_deref(), &before, &after) {
                return InputEvaluation::Blocked(PlanBlockedBy::Quorum { violation: violation.to_string() });
            }
        }
        InputEvaluation::Planned(Box::new(Decision { inputs, not_applied, result, took: started.elapsed() }))
    }

    /// Accepts a read of taints. Returns whether plans may change.
    fn take_taints(&mut self, polled: &TaintsPoll) -> bool {
        let unix = self.given.clock.now().unix_timestamp() as f64;
        let (changed, event) = self.taints.update(polled, self.given.interval * STALE_AFTER_POLLS, unix);
        if let Some(event) = event {
            self.given.events.emit(event);
        }
        changed
    }

    fn find_unsuitable_observation(
        &self,
        state: &ClusterState,
        observation: &Observation,
    ) -> Option<PlanBlockedBy> {
        let query = observation.query;
        if state.revision_of(keys::SABAKAN_URL) != query.url
            || state.revision_of(keys::SABAKAN_VARIABLES) != query.variables
        {
            return Some(PlanBlockedBy::OtherQuery);
        }
        if let Some(guard) = &observation.held {
            return Some(PlanBlockedBy::Held(guard.clone()));
        }
        let age = observation.received.elapsed();
        let stale = age > self.given.interval * STALE_AFTER_POLLS;
        (stale && !is_planted(Canary::StaleObservationPlanned)).then_some(PlanBlockedBy::Stale { age })
    }

    async fn commit(
        &mut self,
        myself: &ActorRef<Envelope<PlannerMessage>>,
        inputs: &Inputs,
        plan: Arc<Plan>,
    ) {
        let (Some(template), Some(constraints)) = (&inputs.state.template, &inputs.state.constraints) else {
            return;
        };
        let mutation = Mutation::Cluster(ClusterMutation {
            plan,
            template_revision: template.revision - i64::from(is_planted(Canary::TemplateNotedEarly)),
            basis: inputs.state.plan_basis(),
            evidence: Evidence {
                before: inputs.state.cluster.as_ref().map(|cluster| Arc::clone(&cluster.value)),
                constraints: Arc::clone(&constraints.value),
                observed: Arc::clone(&inputs.observation.addresses),
                template_changed: inputs.state.has_changed_template(),
            },
        });
        match commit(&self.given.leader, self.given.epoch, mutation).await {
            Ok(committed) => {
                self.committed = committed.revision;
                self.given.begun.send_replace(true);
                self.retry = None;
            }
            Err(error) => {
                self.given.events.emit(Event::CommitFailed { what: "cluster", why: error.to_string() });
                match error.failure_class() {
                    // The watch brings a state for the next plan, or this epoch is over.
                    Failure::Outdated => {}
                    // Equal inputs would be rejected again: wait for new ones.
                    Failure::Rejected => {}
                    Failure::Unknown => self.retry_later(myself),
                }
            }
        }
    }

    fn retry_later(&mut self, myself: &ActorRef<Envelope<PlannerMessage>>) {
        let pause = self.retry.take().map_or(RETRY_FIRST, |(pause, _)| (pause * 2).min(RETRY_MOST));
        self.retry = Some((pause, send_later(myself.clone(), pause, PlannerMessage::Reconcile)));
    }

    /// Reports the end of planning when the observation becomes stale, not at the next event.
    fn wake_when_stale(&mut self, myself: &ActorRef<Envelope<PlannerMessage>>, heard: Instant) {
        let stale = heard + self.given.interval * STALE_AFTER_POLLS + JUST_AFTER;
        let rest = stale.saturating_duration_since(Instant::now());
        self.aging = Some(send_later(myself.clone(), rest, PlannerMessage::Reconcile));
    }

    /// Emits an event unless it equals the last one.
    fn emit_once(&mut self, new: LastEvent, event: impl FnOnce() -> Event) {
        if !self.last_event.as_ref().is_some_and(|last| last.is_same_event(&new)) {
            self.given.events.emit(event());
        }
        self.last_event = Some(new);
    }

    fn show_blocked(&mut self, blocked: Option<&PlanBlockedBy>) {
        let before = self.blocked.take();
        self.blocked = blocked.map(|blocked| {
            let name = blocked.name();
            let begun = || self.given.clock.now().unix_timestamp();
            (name, before.filter(|(other, _)| *other == name).map_or_else(begun, |(_, since)| since))
        });
        for &name in PlanBlockedBy::NAMES {
            let since = self.blocked.and_then(|(reason, since)| (reason == name).then_some(since));
            madako_planner_blocked(name).set(f64::from(since.is_some()));
            madako_planner_blocked_since_timestamp_seconds(name).set(since.unwrap_or(0) as f64);
        }
    }

    fn show(&self, result: &Result<Plan, PlanError>, took: Duration) {
        let action = match result {
            Ok(plan) => plan.action.map_or("none", |action| action.name()),
            Err(_) => "failed",
        };
        madako_plans_total(action).increment(1);
        madako_plan_seconds().record(took);
        let now = self.given.clock.now().unix_timestamp() as f64;
        madako_plan_timestamp_seconds().set(now);
        cke_sabakan_integration_successful().set(f64::from(result.is_ok()));
        cke_sabakan_integration_timestamp_seconds().set(now);
        if let Ok(plan) = result {
            cke_sabakan_unused_machines().set(plan.unused_machines as f64);
            for (role, workers) in &plan.workers_by_role {
                cke_sabakan_workers(role.clone()).set(*workers as f64);
            }
        }
    }
}

impl LastEvent {
    fn is_same_event(&self, other: &Self) -> bool {
        match (self, other) {
            // A growing age is not news.
            (Self::Blocked(PlanBlockedBy::Stale { .. }), Self::Blocked(PlanBlockedBy::Stale { .. })) => true,
            (one, other) => one == other,
        }
    }
}

fn control_plane(cluster: &Cluster) -> BTreeSet<&str> {
    cluster.control_plane().map(|node| node.address.as_str()).collect()
}

/// Reason in the state against planning, independent of the registry.
fn blocked_by_state(state: &ClusterState) -> Option<PlanBlockedBy> {
    if state.disabled && !is_planted(Canary::PlannedWhileDisabled) {
        return Some(PlanBlockedBy::Disabled);
    }
    // Unreadable values must not count as absent, which has another meaning.
    for key in [
        keys::SABAKAN_TEMPLATE,
        keys::CLUSTER,
        keys::CLUSTER_REVISION,
        keys::CONSTRAINTS,
        keys::SABAKAN_URL,
        keys::SABAKAN_VARIABLES,
        keys::REMOVAL_GUARD,
    ] {
        if let Some(why) = state.fault_of(key) {
            return Some(PlanBlockedBy::Unusable { key: key.to_owned(), why: why.to_owned() });
        }
    }
    if state.template.is_none() {
        return Some(PlanBlockedBy::NoTemplate);
    }
    state.url.is_none().then_some(PlanBlockedBy::NoUrl)
}

#[cfg(test)]
mod tests;
