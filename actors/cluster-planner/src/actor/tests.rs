//! Tests of the planner's actor with a scripted leader, on paused time.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use madako_domain::observation::Query;
use madako_domain::obstacle::REGISTRY_SILENT;
use madako_domain::state::RevisedValue;
use madako_protocol::actors::{CommitError, Committed, LeaderMessage};
use madako_protocol::latest::{self, Publisher};
use madako_protocol::limits::COMMIT_DEADLINE;
use time::OffsetDateTime;

use super::*;
use crate::testing::{Site, machine, now};

const EPOCH: i64 = 7;
const INTERVAL: Duration = Duration::from_secs(60);
const QUERY: Query = Query { url: 5, variables: 0 };

struct TestClock(Instant);

impl Clock for TestClock {
    fn now(&self) -> OffsetDateTime {
        now() + self.0.elapsed()
    }
}

#[derive(Default)]
struct Events(Mutex<Vec<(Instant, Event)>>);

impl EventSink for Events {
    fn emit(&self, event: Event) {
        self.0.lock().unwrap().push((Instant::now(), event));
    }
}

/// The requested commits with their times, and the number of commits that remain without an answer.
#[derive(Default)]
struct LeaderState {
    mutations: Vec<(Instant, Mutation)>,
    unanswered: usize,
}

struct Leader;

impl Actor for Leader {
    type Msg = Envelope<LeaderMessage>;
    type State = Arc<Mutex<LeaderState>>;
    type Arguments = Arc<Mutex<LeaderState>>;

    async fn pre_start(
        &self,
        _: ActorRef<Self::Msg>,
        leader_state: Arc<Mutex<LeaderState>>,
    ) -> Result<Arc<Mutex<LeaderState>>, ActorProcessingErr> {
        Ok(leader_state)
    }

    async fn handle(
        &self,
        _: ActorRef<Self::Msg>,
        envelope: Envelope<LeaderMessage>,
        leader_state: &mut Arc<Mutex<LeaderState>>,
    ) -> Result<(), ActorProcessingErr> {
        let LeaderMessage::Commit { mutation, reply, .. } = envelope.open() else {
            panic!("the planner only commits")
        };
        let mut leader_state = leader_state.lock().unwrap();
        leader_state.mutations.push((Instant::now(), mutation));
        let unanswered = leader_state.unanswered > 0;
        leader_state.unanswered = leader_state.unanswered.saturating_sub(1);
        let revision = 100 + i64::try_from(leader_state.mutations.len()).unwrap();
        let error = CommitError::Unanswered { deadline: COMMIT_DEADLINE };
        let _ = reply.send(if unanswered { Err(error) } else { Ok(Committed { revision }) });
        Ok(())
    }
}

struct World {
    site: Site,
    begun: Instant,
    leader_state: Arc<Mutex<LeaderState>>,
    events: Arc<Events>,
    given: PlannerArguments,
    state: Publisher<Arc<ClusterState>>,
    observations: Publisher<Arc<Observation>>,
}

impl World {
    async fn new() -> Self {
        static WORLDS: AtomicU64 = AtomicU64::new(0);
        let leader = format!("planner-world-{}/leader", WORLDS.fetch_add(1, Ordering::Relaxed));
        let leader_state = Arc::new(Mutex::new(LeaderState::default()));
        Actor::spawn(Some(leader.clone()), Leader, Arc::clone(&leader_state)).await.unwrap();
        let (state, states) = latest::channel();
        let (observations, observed) = latest::channel();
        let (begun, events) = (Instant::now(), Arc::new(Events::default()));
        let given = PlannerArguments {
            epoch: EPOCH,
            leader,
            interval: INTERVAL,
            retire_wait: Duration::from_secs(300),
            clock: Arc::new(TestClock(begun)),
            events: Arc::clone(&events) as Arc<dyn EventSink>,
            state: states,
            observations: observed,
            operations: None,
            kubernetes: None,
            begun: watch::channel(true).0,
        };
        let site = Site::new(vec![machine("10.0.0.1", 0, "a"), machine("10.0.0.2", 0, "a")]);
        Self { site, begun, leader_state, events, given, state, observations }
    }

    /// A state with all inputs of a plan, and without a cluster. The leader's commits have revisions above 100.
    fn publish_state(&self, revision: i64) {
        let state = ClusterState {
            revision,
            template: Some(RevisedValue { value: Arc::new(self.site.template.clone()), revision: 3 }),
            constraints: Some(RevisedValue { value: Arc::new(self.site.constraints.clone()), revision: 4 }),
            url: Some(RevisedValue { value: "http://registry".to_owned(), revision: QUERY.url }),
            revisions: BTreeMap::from([(keys::SABAKAN_URL.to_owned(), QUERY.url)]),
            ..ClusterState::default()
        };
        self.state.publish(Arc::new(state));
    }

    fn answer(&self) {
        let addresses = self.site.machines.iter().filter_map(|machine| machine.address());
        self.observations.publish(Arc::new(Observation {
            machines: Arc::new(self.site.machines.clone()),
            addresses: Arc::new(addresses.map(str::to_owned).collect()),
            left_out: Vec::new(),
            at: self.given.clock.now(),
            received: Instant::now(),
            query: QUERY,
            held: None,
        }));
    }

    async fn begin(&self) {
        Actor::spawn(None, Planner, self.given.clone()).await.unwrap();
    }

    fn stale_at(&self) -> Vec<Duration> {
        let events = self.events.0.lock().unwrap();
        let is_stale = |event: &Event| matches!(event, Event::Blocked(PlanBlockedBy::Stale { .. }));
        events.iter().filter(|(_, event)| is_stale(event)).map(|(at, _)| *at - self.begun).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_becomes_stale_blocks_at_its_limit_and_not_at_the_next_event() {
    let world = World::new().await;
    world.publish_state(1_000);
    world.answer();
    world.begin().await;
    tokio::time::sleep(INTERVAL * STALE_AFTER_POLLS).await;
    assert_eq!(world.stale_at(), [Duration::ZERO; 0]);
    tokio::time::sleep(INTERVAL * 100).await;
    assert_eq!(world.stale_at(), [INTERVAL * STALE_AFTER_POLLS + JUST_AFTER]);
}

#[tokio::test(start_paused = true)]
async fn the_registry_is_noted_as_silent_since_its_last_answer() {
    let world = World::new().await;
    world.publish_state(1_000);
    world.begin().await;
    tokio::time::sleep(INTERVAL * 2).await;
    world.answer();
    tokio::time::sleep(INTERVAL * 100).await;
    let leader_state = world.leader_state.lock().unwrap();
    let noted = leader_state.mutations.iter().find_map(|(at, mutation)| match mutation {
        Mutation::Obstacles { noted, .. } => Some((*at - world.begun, noted[REGISTRY_SILENT].since)),
        _ => None,
    });
    let answered = INTERVAL * 2;
    let stale = answered + INTERVAL * STALE_AFTER_POLLS + JUST_AFTER;
    assert_eq!(noted, Some((stale, now() + answered)));
}

#[tokio::test(start_paused = true)]
async fn a_commit_of_unknown_outcome_is_tried_again_after_growing_pauses() {
    let world = World::new().await;
    world.leader_state.lock().unwrap().unanswered = 3;
    world.publish_state(10);
    world.answer();
    world.begin().await;
    tokio::time::sleep(INTERVAL).await;
    let leader_state = world.leader_state.lock().unwrap();
    let tried: Vec<Duration> = leader_state.mutations.iter().map(|(at, _)| *at - world.begun).collect();
    // The fourth succeeds, and no state shows the cluster yet.
    assert_eq!(tried, [0, 1, 3, 7].map(|pauses| RETRY_FIRST * pauses));
}

#[tokio::test(start_paused = true)]
async fn a_reason_is_shown_with_the_time_since_which_it_blocks() {
    let world = World::new().await;
    let (actor, _) = Actor::spawn(None, Planner, world.given.clone()).await.unwrap();
    let mut state = Planner.pre_start(actor, world.given.clone()).await.unwrap();
    let begun = now().unix_timestamp();
    let mut shown = Vec::new();
    for why in
        [&PlanBlockedBy::NoUrl, &PlanBlockedBy::NoUrl, &PlanBlockedBy::NoTemplate, &PlanBlockedBy::NoUrl]
    {
        state.show_blocked(Some(why));
        shown.extend(state.blocked.map(|(name, since)| (name, since - begun)));
        tokio::time::sleep(Duration::from_secs(10)).await;
    }
    assert_eq!(shown, [("no-url", 0), ("no-url", 0), ("no-template", 20), ("no-url", 30)]);
    state.show_blocked(None);
    assert_eq!(state.blocked, None);
}
