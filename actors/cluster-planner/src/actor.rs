//! The planner's shell: it waits for state and observations, plans when both allow it, and asks the
//! leader to commit.

mod noting;
mod taints;

use std::sync::Arc;
use std::time::Duration;

use madako_domain::canary::{Canary, is_planted};
use madako_domain::keys;
use madako_domain::observation::{Observation, TaintsLook};
use madako_domain::plan::{Plan, PlanError};
use madako_domain::state::ClusterState;
use madako_protocol::actors::{ClusterMutation, Evidence, Failure, Mutation, PlannerMessage};
use madako_protocol::event::{Blocked, Event, EventSink};
use madako_protocol::feed::{Task, forward, later};
use madako_protocol::gate::commit;
use madako_protocol::kubernetes::Kubernetes;
use madako_protocol::latest::Subscriber;
use madako_protocol::mailbox::Letter;
use madako_protocol::ports::Clock;
use metrics::{counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{Instrument, info_span};

use self::noting::asked;
use self::taints::NodeTaints;
use crate::limits::{JUST_AFTER, RETRY_FIRST, RETRY_MOST, STALE_AFTER_POLLS};
use crate::{Moment, PlanInput, plan};

/// What the planner is given.
#[derive(Clone)]
pub struct PlannerArguments {
    /// Number of the epoch that it works in.
    pub epoch: i64,
    /// Registered name of the leader.
    pub leader: String,
    /// Time between polls of the registry.
    pub interval: Duration,
    /// How long a worker must have been retired before it is removed.
    pub retire_wait: Duration,
    /// The wall clock.
    pub clock: Arc<dyn Clock>,
    /// Where events go.
    pub events: Arc<dyn EventSink>,
    /// The store's state.
    pub state: Subscriber<Arc<ClusterState>>,
    /// What polls of the registry returned.
    pub observations: Subscriber<Arc<Observation>>,
    /// The API server of the cluster; without it taints of nodes are not known.
    pub kubernetes: Option<Arc<dyn Kubernetes>>,
    /// Whether this epoch's first plan, which only applies a changed template, was made already.
    pub begun: watch::Sender<bool>,
}

/// ClusterPlanner.
pub struct Planner;

/// What the planner knows. All of it can be rebuilt.
pub struct PlannerState {
    given: PlannerArguments,
    state: Option<Arc<ClusterState>>,
    observation: Option<Arc<Observation>>,
    taints: NodeTaints,
    /// Revision of the last commit: an older state is not planned on.
    committed: i64,
    /// Pause before the next try of a commit, and the timer of that try.
    retry: Option<(Duration, Task)>,
    told: Option<Told>,
    /// Name of the reason why nothing is planned, and the Unix time since which that is so.
    blocked: Option<(&'static str, i64)>,
    /// Start of the current question to the registry: its URL, its variables, and that it is asked at all.
    asked_since: Instant,
    /// Looks again when the observation gets too old.
    aging: Option<Task>,
    _feeds: [Task; 2],
}

/// What was told last, so that each thing is told once and not at every poll.
#[derive(Debug, PartialEq)]
enum Told {
    Blocked(Blocked),
    Calm,
    Failed(String),
}

/// What a look at the inputs led to.
enum Considered {
    Blocked(Blocked),
    /// The state is older than the last commit, or taints were asked for and not told: what is missing is on its way.
    Behind,
    Planned(Box<Decision>),
}

/// A plan, or why there is none, and what it was made from.
struct Decision {
    inputs: Inputs,
    /// Why the changed template that this epoch found cannot be applied before the rules.
    not_applied: Option<PlanError>,
    result: Result<Plan, PlanError>,
    took: Duration,
}

/// The inputs that a plan was made from.
struct Inputs {
    state: Arc<ClusterState>,
    observation: Arc<Observation>,
    /// Whether the plan only applies the changed template that this epoch found.
    first: bool,
}

/// Registers the help texts of the planner's metrics.
pub fn describe_metrics() {
    taints::describe_metrics();
    describe_counter!(
        "madako_plans_total",
        "Plans by action; nothing to do is \"none\", a failure \"failed\"."
    );
    describe_histogram!("madako_plan_seconds", "Time to make a plan.");
    describe_gauge!("madako_planner_blocked", "1 for the reason why nothing is planned at the moment.");
    describe_gauge!(
        "madako_planner_blocked_since_timestamp_seconds",
        "Unix time since which nothing is planned for the reason; 0 for every other one."
    );
    describe_gauge!("madako_plan_timestamp_seconds", "Unix time of the last plan that was made.");
    describe_gauge!("cke_sabakan_integration_successful", "1 if the last plan satisfies the constraints.");
    describe_gauge!(
        "cke_sabakan_integration_timestamp_seconds",
        "Unix time at which sabakan_integration_successful was last set."
    );
    describe_gauge!("cke_sabakan_workers", "Workers of each role.");
    describe_gauge!("cke_sabakan_unused_machines", "Healthy machines that are not part of the cluster.");
}

impl Actor for Planner {
    type Msg = Letter<PlannerMessage>;
    type State = PlannerState;
    type Arguments = PlannerArguments;

    async fn pre_start(
        &self,
        myself: ActorRef<Letter<PlannerMessage>>,
        given: PlannerArguments,
    ) -> Result<PlannerState, ActorProcessingErr> {
        let feeds = [
            forward(given.state.clone(), myself.clone(), PlannerMessage::State),
            forward(given.observations.clone(), myself.clone(), PlannerMessage::Observed),
        ];
        let taints = NodeTaints::start(given.kubernetes.clone(), given.interval, myself);
        Ok(PlannerState {
            given,
            state: None,
            observation: None,
            taints,
            committed: 0,
            retry: None,
            told: None,
            blocked: None,
            asked_since: Instant::now(),
            aging: None,
            _feeds: feeds,
        })
    }

    async fn handle(
        &self,
        myself: ActorRef<Letter<PlannerMessage>>,
        letter: Letter<PlannerMessage>,
        state: &mut PlannerState,
    ) -> Result<(), ActorProcessingErr> {
        // The mark is dropped when this handler ends: the feed brings the next value after that.
        let _handled = match letter.open() {
            PlannerMessage::State(new, handled) => {
                if state.state.as_deref().map(asked) != Some(asked(&new)) {
                    state.asked_since = Instant::now();
                    state.look_when_stale(&myself, state.asked_since);
                }
                state.state = Some(new);
                Some(handled)
            }
            PlannerMessage::Observed(new, handled) => {
                state.look_when_stale(&myself, new.seen);
                state.observation = Some(new);
                Some(handled)
            }
            PlannerMessage::Taints(look, handled) => {
                if !state.take_taints(&look) {
                    return Ok(());
                }
                Some(handled)
            }
            PlannerMessage::LookAgain => None,
        };
        state.plan(&myself).await;
        Ok(())
    }
}

impl PlannerState {
    async fn plan(&mut self, myself: &ActorRef<Letter<PlannerMessage>>) {
        let considered = self.consider();
        let obstacles = self.new_obstacles(&considered);
        self.act(myself, considered).await;
        if let Some(mutation) = obstacles {
            self.note(myself, mutation).await;
        }
    }

    /// Carries out the result of a look at the inputs.
    async fn act(&mut self, myself: &ActorRef<Letter<PlannerMessage>>, considered: Considered) {
        match considered {
            Considered::Behind => {}
            Considered::Blocked(why) => {
                self.show_blocked(Some(&why));
                self.tell(Told::Blocked(why.clone()), || Event::Blocked(why));
            }
            Considered::Planned(decision) => {
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
                        self.tell(Told::Failed(text), || Event::PlanFailed(Arc::new(error)));
                    }
                    Ok(plan) if plan.action.is_none() => {
                        let plan = Arc::new(plan);
                        self.tell(Told::Calm, || Event::Calm { plan });
                    }
                    Ok(plan) => {
                        self.told = None;
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

    /// Looks at the inputs and plans when they allow it.
    fn consider(&self) -> Considered {
        let Some(state) = &self.state else { return Considered::Blocked(Blocked::NoState) };
        if state.revision < self.committed || self.taints.awaited() {
            return Considered::Behind;
        }
        if let Some(blocked) = blocked_by_state(state) {
            return Considered::Blocked(blocked);
        }
        let Some(observation) = &self.observation else {
            return Considered::Blocked(Blocked::NoObservation);
        };
        if let Some(blocked) = self.blocked_by_observation(state, observation) {
            return Considered::Blocked(blocked);
        }
        let (Some(template), Some(constraints)) = (&state.template, &state.constraints) else {
            return Considered::Blocked(Blocked::NoTemplate);
        };
        let under_repair = state.repair.under_way().map(str::to_owned).collect();
        let input = |moment| PlanInput {
            template: &template.value,
            constraints: &constraints.value,
            machines: &observation.machines,
            current: state.cluster.as_ref().map(|cluster| &*cluster.value),
            node_taints: self.taints.known(),
            under_repair: &under_repair,
            now: self.given.clock.now(),
            retire_wait: self.given.retire_wait,
            template_changed: state.template_changed(),
            moment,
        };
        let started = Instant::now();
        let begun = *self.given.begun.borrow();
        let at_start = (!begun && state.cluster.is_some()).then(|| plan(&input(Moment::LeaderStart)));
        // As CKE does, a failure of the first plan does not keep the rules from being tried.
        let (first, not_applied) = match at_start {
            Some(Ok(plan)) => (Some(plan).filter(|plan| plan.action.is_some()), None),
            Some(Err(error)) => (None, Some(error)),
            None => (None, None),
        };
        let inputs =
            Inputs { state: Arc::clone(state), observation: Arc::clone(observation), first: first.is_some() };
        let result = first.map_or_else(|| plan(&input(Moment::Running)), Ok);
        Considered::Planned(Box::new(Decision { inputs, not_applied, result, took: started.elapsed() }))
    }

    /// Takes what is known of taints now; whether plans may come out otherwise.
    fn take_taints(&mut self, look: &TaintsLook) -> bool {
        #[allow(clippy::cast_precision_loss, reason = "seconds are far below 2^52")]
        let unix = self.given.clock.now().unix_timestamp() as f64;
        let (changed, event) = self.taints.take(look, self.given.interval * STALE_AFTER_POLLS, unix);
        if let Some(event) = event {
            self.given.events.emit(event);
        }
        changed
    }

    fn blocked_by_observation(&self, state: &ClusterState, observation: &Observation) -> Option<Blocked> {
        let asked = observation.query;
        if state.revision_of(keys::SABAKAN_URL) != asked.url
            || state.revision_of(keys::SABAKAN_VARIABLES) != asked.variables
        {
            return Some(Blocked::OtherQuery);
        }
        if let Some(guard) = &observation.held {
            return Some(Blocked::Held(guard.clone()));
        }
        let age = observation.seen.elapsed();
        let stale = age > self.given.interval * STALE_AFTER_POLLS;
        (stale && !is_planted(Canary::StaleObservationPlanned)).then_some(Blocked::Stale { age })
    }

    async fn commit(&mut self, myself: &ActorRef<Letter<PlannerMessage>>, inputs: &Inputs, plan: Arc<Plan>) {
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
                template_changed: inputs.state.template_changed(),
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
                match error.failure() {
                    // The state that the watch brings leads to the next plan; or this reign is over.
                    Failure::Outdated => {}
                    // The same inputs would be refused again: wait for others.
                    Failure::Rejected => {}
                    Failure::Unknown => self.retry_later(myself),
                }
            }
        }
    }

    fn retry_later(&mut self, myself: &ActorRef<Letter<PlannerMessage>>) {
        let pause = self.retry.take().map_or(RETRY_FIRST, |(pause, _)| (pause * 2).min(RETRY_MOST));
        self.retry = Some((pause, later(myself.clone(), pause, PlannerMessage::LookAgain)));
    }

    /// That nothing is planned any more is to be told when it begins, not when something else happens.
    fn look_when_stale(&mut self, myself: &ActorRef<Letter<PlannerMessage>>, heard: Instant) {
        let stale = heard + self.given.interval * STALE_AFTER_POLLS + JUST_AFTER;
        let rest = stale.saturating_duration_since(Instant::now());
        self.aging = Some(later(myself.clone(), rest, PlannerMessage::LookAgain));
    }

    /// Emits an event unless the same was told last.
    fn tell(&mut self, told: Told, event: impl FnOnce() -> Event) {
        if !self.told.as_ref().is_some_and(|last| last.says_the_same(&told)) {
            self.given.events.emit(event());
        }
        self.told = Some(told);
    }

    #[allow(clippy::cast_precision_loss, reason = "seconds are far below 2^52")]
    fn show_blocked(&mut self, blocked: Option<&Blocked>) {
        let before = self.blocked.take();
        self.blocked = blocked.map(|blocked| {
            let name = blocked.name();
            let begun = || self.given.clock.now().unix_timestamp();
            (name, before.filter(|(other, _)| *other == name).map_or_else(begun, |(_, since)| since))
        });
        for name in Blocked::NAMES {
            let since = self.blocked.and_then(|(reason, since)| (reason == name).then_some(since));
            gauge!("madako_planner_blocked", "reason" => name).set(if since.is_some() { 1.0 } else { 0.0 });
            gauge!("madako_planner_blocked_since_timestamp_seconds", "reason" => name)
                .set(since.unwrap_or(0) as f64);
        }
    }

    #[allow(clippy::cast_precision_loss, reason = "counts and seconds are far below 2^52")]
    fn show(&self, result: &Result<Plan, PlanError>, took: Duration) {
        let action = match result {
            Ok(plan) => plan.action.map_or("none", |action| action.name()),
            Err(_) => "failed",
        };
        counter!("madako_plans_total", "action" => action).increment(1);
        histogram!("madako_plan_seconds").record(took.as_secs_f64());
        let now = self.given.clock.now().unix_timestamp() as f64;
        gauge!("madako_plan_timestamp_seconds").set(now);
        gauge!("cke_sabakan_integration_successful").set(if result.is_ok() { 1.0 } else { 0.0 });
        gauge!("cke_sabakan_integration_timestamp_seconds").set(now);
        if let Ok(plan) = result {
            gauge!("cke_sabakan_unused_machines").set(plan.unused_machines as f64);
            for (role, workers) in &plan.workers_by_role {
                gauge!("cke_sabakan_workers", "role" => role.clone()).set(*workers as f64);
            }
        }
    }
}

impl Told {
    fn says_the_same(&self, other: &Self) -> bool {
        match (self, other) {
            // An age that grows says nothing new.
            (Self::Blocked(Blocked::Stale { .. }), Self::Blocked(Blocked::Stale { .. })) => true,
            (one, other) => one == other,
        }
    }
}

/// What keeps a state from being planned on, whatever the registry says.
fn blocked_by_state(state: &ClusterState) -> Option<Blocked> {
    if state.disabled && !is_planted(Canary::PlannedWhileDisabled) {
        return Some(Blocked::Disabled);
    }
    // Values that cannot be read must never be taken for absent ones: those mean something else.
    for key in [
        keys::SABAKAN_TEMPLATE,
        keys::CLUSTER,
        keys::CLUSTER_REVISION,
        keys::CONSTRAINTS,
        keys::SABAKAN_URL,
        keys::SABAKAN_VARIABLES,
        keys::REMOVAL_GUARD,
    ] {
        if let Some(why) = state.fault(key) {
            return Some(Blocked::Unusable { key: key.to_owned(), why: why.to_owned() });
        }
    }
    if state.template.is_none() {
        return Some(Blocked::NoTemplate);
    }
    state.url.is_none().then_some(Blocked::NoUrl)
}
