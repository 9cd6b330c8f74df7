//! Tests of the demo on paused time, in memory, with its real data center, faults and instance.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use madako_datacenter_sim::host::SimulatedHost;
use madako_datacenter_sim::{
    Datacenter, DatacenterConfig, InMemoryHttp, SimulatedPrometheus, SimulatedRegistry,
};
use madako_domain::placement::decision::{Move, Outcome};
use madako_domain::plan::Action;
use madako_embedded_etcd::{Backend, Commit, EmbeddedEtcd, Options};
use madako_http::placement::{PlacementApi, Settings, StaticUser, UidSource, router};
use madako_metrics_providers::Providers;
use madako_protocol::event::{Event, EventSink};
use madako_protocol::host::Host;
use madako_protocol::placement::objects::Objects;
use madako_protocol::ports::{Clock, HttpTransport};
use madako_protocol::store::Store;
use madako_sabakan::SabakanRegistry;
use madako_store::{CachedObjects, EtcdStore, StoreConfig};
use madako_supervisor::config::DEFAULT_PREFIX;
use madako_supervisor::instance::{Instance, PlacementPorts, Ports};
use madako_supervisor::journal::Journal;
use madako_supervisor::service::ServedStore;
use time::OffsetDateTime;
use time::macros::datetime;
use tokio::time::{Instant, timeout_at};

use super::demo_faults::DemoFaults;
use super::ended_repairs;
use super::picture::ScreenState;
use super::placement::{self, DemoApi, PlacementDemo};
use super::world;

/// A wall clock that follows tokio's paused time.
struct PausedClock(Instant);

impl Clock for PausedClock {
    fn now(&self) -> OffsetDateTime {
        datetime!(2026-01-01 00:00 UTC) + self.0.elapsed()
    }
}

/// Observations with the time of the first one.
struct DemoHistory {
    picture: ScreenState,
    first: BTreeMap<&'static str, Duration>,
    /// Moves with time and reason.
    moves: Vec<(Duration, Move)>,
}

impl DemoHistory {
    fn counts(&self, action: Action) -> u64 {
        self.picture.tally.plans.get(action.name()).copied().unwrap_or(0)
    }

    fn matches_its_announcement(&self) -> bool {
        let left = self.counts(Action::DecreaseWorkers) + self.counts(Action::RemoveNonExistentNodes);
        self.counts(Action::TaintNodes) > 0 && left > 0
    }
}

enum Next {
    Event(Arc<Event>),
    Line(String),
    Fault,
    Look,
}

/// Base URL of everything in memory.
const URL: &str = "http://demo.invalid";

/// The placement of the demo's service, and HTTP to its API and to the metrics.
fn placement_on(
    store: &EtcdStore,
    clock: &Arc<dyn Clock>,
    prometheus: &SimulatedPrometheus,
) -> (PlacementPorts, Arc<dyn HttpTransport>) {
    let settings = placement::placement_settings();
    let objects: Arc<dyn Objects> = Arc::new(CachedObjects::start(store));
    let api = router(PlacementApi {
        objects: Arc::clone(&objects),
        clock: Arc::clone(clock),
        uids: UidSource::from_seed([7; 32]),
        explainer: None,
        authenticators: vec![Arc::new(StaticUser(placement::USER.to_owned()))],
        settings: Settings { version: "test".to_owned(), ..settings.api.settings },
    });
    let transport = Arc::new(InMemoryHttp::for_router(prometheus.router().merge(api)));
    let ports = PlacementPorts {
        root: Arc::new(store.with_absolute_keys()),
        prefix: store.prefix().to_owned(),
        objects,
        providers: Arc::new(Providers::new(Arc::clone(&transport))),
        metrics: settings.metrics,
        scheduler: Arc::new(settings.scheduler),
    };
    (ports, transport)
}

/// Observes a demo for some simulated time.
async fn watch(seed: u64, length: Duration) -> DemoHistory {
    let began = Instant::now();
    let clock: Arc<dyn Clock> = Arc::new(PausedClock(began));
    let datacenter = Datacenter::new(DatacenterConfig::for_demo(seed, clock.now())).unwrap();
    let registry = SimulatedRegistry::new(datacenter, Arc::clone(&clock));
    let host: Arc<dyn Host> = Arc::new(SimulatedHost::new(registry.clone(), world::COMMANDS));
    let etcd = EmbeddedEtcd::open(Options::new(Backend::Memory, Commit::Inline, seed)).unwrap();
    let clients = StoreConfig { prefix: DEFAULT_PREFIX.to_owned(), ..StoreConfig::default() };
    let served = ServedStore::without_server(etcd);
    let store = Arc::new(served.connect_client(&clients, seed).await.unwrap());
    world::install(&store, "http://registry.invalid/graphql").await.unwrap();
    let journal = Journal::new("demo");
    let mut events = journal.listen();
    let prometheus = SimulatedPrometheus::new(seed, Arc::clone(&clock), placement::simulated_metrics());
    let (placement, transport) = placement_on(&store, &clock, &prometheus);
    let operator = Arc::clone(&store);
    let ports = Ports {
        operations: None,
        store: store as Arc<dyn Store>,
        registry: Arc::new(SabakanRegistry::new(Arc::new(registry.open_in_memory_transport()))),
        clock,
        events: Arc::new(journal) as Arc<dyn EventSink>,
        placement: Some(placement),
        kubernetes: None,
        findings: None,
        host: Some(host),
    };
    // Names of actors are one namespace a process.
    let options = world::instance_options(&format!("demo-{seed}"), "host".to_owned(), seed);
    let instance = Instance::start(options, ports, |_| Vec::new()).await.unwrap();
    let mut placing =
        PlacementDemo::start(DemoApi::new(transport, URL.to_owned()), prometheus, URL, seed).await.unwrap();
    let mut observed =
        DemoHistory { picture: ScreenState::default(), first: BTreeMap::new(), moves: Vec::new() };
    let mut mischief = DemoFaults::new(seed);
    let mut looks = tokio::time::interval(ended_repairs::PAUSE);
    loop {
        let next = async {
            tokio::select! {
                biased;
                event = events.recv() => Next::Event(event.unwrap()),
                line = placing.next_outage_line() => Next::Line(line),
                () = mischief.wait_until_due() => Next::Fault,
                _ = looks.tick() => Next::Look,
            }
        };
        let Ok(next) = timeout_at(began + length, next).await else { break };
        observed.picture.elapsed = began.elapsed();
        match next {
            Next::Event(event) => {
                if let Event::Decided { decision, .. } = &*event
                    && let Outcome::Moved { why, .. } = &decision.outcome
                {
                    observed.moves.push((began.elapsed(), why.clone()));
                }
                drop(observed.picture.take(&event));
            }
            Next::Line(line) => observed.picture.remember(line),
            Next::Fault => {
                if let Some(actor) = mischief.inject_fault(&instance).await {
                    observed.picture.note_fault(actor);
                }
            }
            Next::Look => {
                if let Some(state) = instance.view().state.newest() {
                    observed
                        .picture
                        .tally
                        .note_repairs(state.repair.entries.values().map(|item| &item.value));
                }
                if let Some(line) = ended_repairs::delete_ended_repairs(&*operator).await {
                    observed.picture.remember(line);
                }
            }
        }
        let tally = &observed.picture.tally;
        let restart = (tally.actor_restarts > 0).then_some("restart");
        for what in tally.plans.keys().copied().chain(restart) {
            observed.first.entry(what).or_insert_with(|| began.elapsed());
        }
    }
    observed.picture.landscape = placing.current_landscape();
    let state = instance.view().state.newest().unwrap();
    observed.picture.tally.note_repairs(state.repair.entries.values().map(|item| &item.value));
    drop(placing);
    drop(operator);
    instance.stop().await;
    served.shutdown().await;
    observed
}

#[tokio::test(start_paused = true)]
async fn the_default_demo_shows_a_taint_a_node_that_leaves_and_an_actor_that_comes_back() {
    let observed = watch(crate::demo_args::SEED, Duration::from_secs(90)).await;
    assert!(observed.matches_its_announcement(), "{:?}", observed.picture.tally);
    assert!(observed.picture.tally.actor_restarts > 0, "{:?}", observed.picture.tally);
    assert_eq!(observed.picture.tally.violations, 0);
    let first = |action: Action| observed.first.get(action.name()).copied();
    let taint = first(Action::TaintNodes);
    assert!(taint.is_some_and(|at| at < Duration::from_secs(60)), "first seen: {:?}", observed.first);
    let is_reported =
        |what: &str| observed.picture.happenings.all_lines().any(|line| line.text.contains(what));
    assert!(is_reported(": an injected fault to show the restart; "), "{:?}", observed.picture.happenings);
    assert!(is_reported(" runs again (restart "), "{:?}", observed.picture.happenings);
    // A plan and its commit are one line, and machines are repaired.
    let is_whole = |text: &str| {
        text.starts_with("planned initialize in ") && text.contains("; committed cluster at revision ")
    };
    assert!(
        observed.picture.happenings.all_lines().any(|line| is_whole(&line.text)),
        "{:?}",
        observed.picture.happenings
    );
    assert!(observed.picture.tally.count_repairs().0 > 0, "{:?}", observed.picture.tally);
}

#[tokio::test(start_paused = true)]
async fn machines_are_repaired_after_the_queue_has_been_full() {
    let seen = watch(crate::demo_args::SEED, Duration::from_secs(300)).await;
    let (succeeded, failed) = seen.picture.tally.count_repairs();
    assert!(succeeded + failed > world::REPAIRS as usize + 2, "{succeeded} good, {failed} failed");
    let is_told = |line: &str| line.starts_with("the demo deletes ") && line.contains(" from the queue");
    assert!(
        seen.picture.happenings.all_lines().any(|line| is_told(&line.text)),
        "{:?}",
        seen.picture.happenings
    );
}

#[tokio::test(start_paused = true)]
async fn demo_of_other_seeds_restarts_an_actor_within_two_minutes() {
    for seed in 2..7 {
        let observed = watch(seed, Duration::from_secs(120)).await;
        assert!(observed.matches_its_announcement(), "seed {seed}: {:?}", observed.picture.tally);
        assert!(observed.picture.tally.actor_restarts > 0, "seed {seed}: {:?}", observed.picture.tally);
        // Lively, but slow enough to follow.
        assert!(observed.picture.tally.commits <= 30, "seed {seed}: {:?}", observed.picture.tally);
    }
}

#[tokio::test(start_paused = true)]
async fn default_demo_moves_an_application_within_a_minute_and_names_the_reason() {
    let observed = watch(crate::demo_args::SEED, Duration::from_secs(90)).await;
    let DemoHistory { picture, moves, .. } = &observed;
    assert_eq!((picture.landscape.places.len(), picture.landscape.count_applications()), (5, 10));
    assert!(picture.tally.bindings >= 10, "{:?}", picture.tally);
    assert_eq!(picture.tally.violations, 0);
    let better = moves.iter().find(|(_, why)| *why == Move::Better);
    assert!(better.is_some_and(|(at, _)| *at < Duration::from_secs(60)), "{moves:?}");
    assert!(moves.iter().any(|(_, why)| *why == Move::NotOnline), "nothing left a cluster: {moves:?}");
    for expected in [
        " is bound to ",
        ": better by 0.",
        "more than the stickiness of 0.",
        "the demo takes ",
        " back online",
    ] {
        let is_shown = picture.happenings.all_lines().any(|line| line.text.contains(expected));
        assert!(is_shown, "{expected:?}: {:?}", picture.happenings);
    }
    // It may not move.
    let ledger = picture.happenings.all_lines().find(|line| line.text.starts_with("ledger moves"));
    assert!(ledger.is_none(), "{ledger:?}");
    // Lively, but slow enough to follow.
    assert!(moves.len() <= 60, "{} moves", moves.len());
    assert_eq!(picture.tally.moves, moves.len() as u64);
}
