//! The world of a run: one store, one data center, its instances, and the ways between them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use madako_app_scheduler::{MaxMoves, SchedulerConfig};
use madako_datacenter_sim::host::SimulatedHost;
use madako_datacenter_sim::kubernetes::SimulatedKubernetes;
use madako_datacenter_sim::{InMemoryHttp, SimulatedRegistry};
use madako_domain::repair::hold::HoldSettings;
use madako_http::Limits;
use madako_http::placement::{Authorization, PlacementApi, Settings, StaticUser, Uids, router};
use madako_judges::Place as Part;
use madako_metrics_providers::Providers;
use madako_protocol::event::{Event, EventSink};
use madako_protocol::host::Host;
use madako_protocol::kubernetes::Kubernetes;
use madako_protocol::placement::objects::Objects;
use madako_protocol::placement::providers::MetricsProviders;
use madako_protocol::ports::Clock;
use madako_protocol::store::Store;
use madako_sabakan::SabakanRegistry;
use madako_store::{CachedObjects, EtcdStore, Sealing, StoreConfig};
use madako_supervisor::config::Metrics;
use madako_supervisor::http::{HTTP, HttpSettings, MetricsText, PLACEMENT_API, pages};
use madako_supervisor::instance::{Instance, InstanceOptions, InstanceView, PlacementPorts, Ports};

use crate::checker::{Checker, Overheard};
use crate::corruption::Corruption;
use crate::effects::JudgedKubernetes;
use crate::facts::{AtProviders, Facts, LastAnswers, ToProviders, ToRegistry};
use crate::history::{History, line};
use crate::link::Link;
use crate::network::{Network, Place};
use crate::placement::PlacementChecker;
use crate::planted::{Handling, InstanceClock, PLANTED};
use crate::prometheus::Prometheus;
use crate::repair::{JudgedHost, RepairJudge};
use crate::rivals::Rivals;
use crate::routed::Routed;
use crate::serving::{Doors, Served, child};
use crate::store_process::StoreProcess;
use crate::walk::Walk;

/// What the keys of the service begin with.
pub const PREFIX: &str = "/cke/";
/// Time between polls of the registry.
pub const INTERVAL: Duration = Duration::from_secs(60);
/// Time to live of a leader's lease.
pub const SESSION_TTL: Duration = Duration::from_secs(60);
/// How long a worker must have been retired before it is removed.
pub const RETIRE_WAIT: Duration = Duration::from_secs(300);
/// Time between rounds of metrics.
pub const METRICS_INTERVAL: Duration = Duration::from_secs(15);
/// How long a cluster may be offline before applications leave it.
pub const RESCHEDULE_AFTER: Duration = Duration::from_secs(60);
/// So few that what waits is seen.
pub const MAX_MOVES: MaxMoves = MaxMoves { percent: 10, at_least: 2 };

/// Names of instances, in the order of their numbers.
pub const NAMES: [&str; 9] = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota"];
/// How long a look at the store may take before an instance is called unhealthy (the configuration's default).
const PAGES_TIMEOUT: Duration = Duration::from_secs(2);

/// Why an actor failed that somebody killed.
const KILLED: &str = "killed";

/// Actors' names are one namespace a process, and tests run beside each other.
static RUNS: AtomicU64 = AtomicU64::new(0);

/// How the instances of a world work.
#[derive(Clone)]
pub struct Working {
    /// Time between polls of the registry.
    pub interval: Duration,
    /// Time to live of a leader's lease.
    pub session_ttl: Duration,
    /// How long a worker must have been retired before it is removed.
    pub retire_wait: Duration,
    /// When failures of a rack are one event.
    pub hold: Option<HoldSettings>,
    /// How metrics are fetched.
    pub metrics: Metrics,
    /// How the scheduler decides.
    pub scheduler: SchedulerConfig,
    /// How secrets of placement's resources are kept.
    pub sealing: Sealing,
}

impl Default for Working {
    /// Those of the project's own worlds.
    fn default() -> Self {
        Self {
            interval: INTERVAL,
            session_ttl: SESSION_TTL,
            retire_wait: RETIRE_WAIT,
            hold: Some(HoldSettings::default()),
            metrics: Metrics::every(METRICS_INTERVAL),
            scheduler: SchedulerConfig {
                reschedule_after: RESCHEDULE_AFTER,
                max_moves: MAX_MOVES,
                ..SchedulerConfig::default()
            },
            sealing: Sealing::default(),
        }
    }
}

/// What instances act on where nobody judges each act.
#[derive(Clone)]
pub struct Effects {
    /// Runs their commands.
    pub host: Arc<dyn Host>,
    /// Its nodes are drained; `None`: they know no API server.
    pub kubernetes: Option<Arc<dyn Kubernetes>>,
}

/// What a run is made of.
pub struct World {
    /// The store.
    pub store: StoreProcess,
    /// The registry of machines.
    pub registry: SimulatedRegistry,
    /// The wall clock.
    pub clock: Arc<dyn Clock>,
    /// What happened.
    pub history: History,
    /// Who judges clusters and leaders.
    pub checker: Checker,
    /// Who judges placement.
    pub placement: PlacementChecker,
    /// Where repair commands run, if machines are repaired.
    pub hosts: Option<Hosts>,
    /// What is acted on instead, in a world that was copied.
    pub effects: Option<Effects>,
    /// Who is told what happens, beside the judges.
    pub listener: Option<Arc<dyn EventSink>>,
    /// Where the oracle is told what happens.
    pub facts: Facts,
    /// Others that write just before the service does, if there are any.
    pub rivals: Option<Rivals>,
    /// What ended though nobody planted that.
    pub unplanted: Arc<Mutex<Vec<String>>>,
    /// How instances work.
    pub working: Working,
    /// The providers of a world that was copied, instead of the project's own.
    pub walk: Option<Walk>,
    /// The providers of metrics.
    pub prometheus: Prometheus,
    /// The ways to the APIs of the instances.
    pub doors: Doors,
    /// The ways to their pages.
    pub pages: Doors,
    /// What instances that are started from now on show at `/metrics`. All of them count in one recorder.
    pub metrics: MetricsText,
    /// How often things happened.
    pub counts: Arc<Mutex<Counts>>,
    /// Who talks to whom.
    pub network: Network,
    /// Who handles messages.
    pub handling: Handling,
    /// Whether the registry's answers are wrong.
    pub corruption: Corruption,
    /// Requests that the registry and the providers answered.
    pub requests: Requests,
    /// Who led last.
    last_leader: Arc<Mutex<Option<String>>>,
    places: bool,
    run: u64,
    seed: u64,
    started: u64,
}

/// The hosts that instances run repair commands on, the API server of the nodes that they drain, and who judges this.
#[derive(Clone)]
pub struct Hosts {
    /// Runs commands.
    pub host: SimulatedHost,
    /// Its nodes are drained.
    pub kubernetes: SimulatedKubernetes,
    /// Who judges repairs.
    pub judge: RepairJudge,
}

/// How many requests were answered over HTTP, by what answered them.
#[derive(Debug, Clone, Default)]
pub struct Requests {
    /// The registry's GraphQL.
    pub registry: Arc<AtomicU64>,
    /// The providers of metrics.
    pub providers: Arc<AtomicU64>,
}

/// How often things happened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Actors that failed.
    pub actor_failures: u64,
    /// Polls that failed anew.
    pub failed_polls: u64,
    /// Reigns that failed too often.
    pub meltdowns: u64,
    /// Commits that failed, whatever became of them.
    pub failed_commits: u64,
    /// Observations that were held.
    pub held: u64,
    /// Elections of an instance that did not lead before.
    pub leader_changes: u64,
    /// Writes of leaders that were acknowledged.
    pub commits: u64,
    /// Commits that were refused because they break an invariant.
    pub violations: u64,
}

/// A running instance and its links.
pub struct Running {
    /// The instance.
    pub instance: Instance,
    /// Its way to the store.
    pub link: Link,
    /// Its way to the registry.
    pub http: Arc<InMemoryHttp>,
    /// What makes its actors panic.
    pub bomb: Bomb,
    /// Its clock.
    pub clock: InstanceClock,
}

/// Makes the actor that emits a certain event panic, once.
#[derive(Clone, Default)]
pub struct Bomb(Arc<Mutex<Option<Trigger>>>);

/// The actor that is to panic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trigger {
    /// The leader, when it was elected or has committed.
    Leader,
    /// The poller, when it observed or failed to.
    Poller,
    /// The planner, when it planned or did not.
    Planner,
    /// The scheduler, when it was refused a commit.
    Scheduler,
    /// The repair queue, when it did something or waits.
    Repair,
}

impl Bomb {
    /// The next such event is the end of the actor.
    pub fn arm(&self, trigger: Trigger) {
        *self.0.lock().unwrap() = Some(trigger);
    }

    /// Nothing will happen.
    pub fn disarm(&self) {
        *self.0.lock().unwrap() = None;
    }

    fn goes_off(&self, event: &Event) -> bool {
        let emitter = match event {
            Event::Repaired { .. } | Event::RepairWaits { .. } => Trigger::Repair,
            Event::CommitFailed { what: "placement", .. } => Trigger::Scheduler,
            Event::Committed { .. } | Event::Elected { .. } => Trigger::Leader,
            Event::Observed { .. } | Event::PollFailed { .. } | Event::Held(_) => Trigger::Poller,
            Event::Planned { .. } | Event::PlanFailed(_) | Event::Calm { .. } => Trigger::Planner,
            _ => return false,
        };
        let mut armed = self.0.lock().unwrap();
        let now = *armed == Some(emitter);
        if now {
            *armed = None;
        }
        now
    }
}

struct Sink {
    name: String,
    history: History,
    checker: Checker,
    placement: PlacementChecker,
    repairs: Option<RepairJudge>,
    counts: Arc<Mutex<Counts>>,
    last_leader: Arc<Mutex<Option<String>>>,
    bomb: Bomb,
    listener: Option<Arc<dyn EventSink>>,
    facts: Facts,
    unplanted: Arc<Mutex<Vec<String>>>,
}

impl EventSink for Sink {
    fn emit(&self, event: Event) {
        self.history.note(&self.name, line(&event));
        if let Some(judge) = &self.repairs {
            judge.heard(&self.name, &event);
        }
        if matches!(event, Event::ActorFailed { .. } | Event::Meltdown { .. }) {
            self.facts.struck(&Part::Instance(self.name.clone()));
        }
        if let Event::ActorFailed { actor, why, .. } = &event
            && why != KILLED
            && !why.contains(PLANTED)
        {
            self.unplanted.lock().unwrap().push(format!("{actor} of {} failed: {why}", self.name));
        }
        {
            let mut counts = self.counts.lock().unwrap();
            match &event {
                Event::ActorFailed { .. } => counts.actor_failures += 1,
                Event::PollFailed { .. } => counts.failed_polls += 1,
                Event::Meltdown { .. } => counts.meltdowns += 1,
                Event::CommitFailed { .. } => counts.failed_commits += 1,
                Event::Held(_) => counts.held += 1,
                Event::Committed { .. } => counts.commits += 1,
                Event::Violated(_) => counts.violations += 1,
                Event::Elected { .. } => {
                    let mut last = self.last_leader.lock().unwrap();
                    if last.as_ref() != Some(&self.name) {
                        counts.leader_changes += 1;
                        *last = Some(self.name.clone());
                    }
                }
                _ => {}
            }
        }
        if let Event::Violated(violations) = &event {
            self.checker.refused(&self.name, violations);
        }
        if let Event::Committed { what, revision, epoch, .. } = &event {
            self.checker.acknowledge(what, *revision, *epoch);
            if *what == "placement" {
                self.placement.committed(*revision);
            }
        }
        assert!(!self.bomb.goes_off(&event), "{PLANTED}");
        if let Some(listener) = &self.listener {
            listener.emit(event);
        }
    }
}

impl World {
    /// Nobody runs yet.
    pub fn new(
        (seed, places): (u64, bool),
        store: StoreProcess,
        registry: SimulatedRegistry,
        clock: Arc<dyn Clock>,
        (history, checker, placement): (History, Checker, PlacementChecker),
        hosts: Option<Hosts>,
    ) -> Self {
        let run = RUNS.fetch_add(1, Ordering::Relaxed);
        Self {
            prometheus: Prometheus::new(placement.clone()),
            corruption: Corruption::new(registry.faults().clone(), seed),
            network: Network::new(seed),
            store,
            registry,
            clock,
            history,
            checker,
            placement,
            hosts,
            effects: None,
            listener: None,
            facts: Facts::default(),
            rivals: None,
            unplanted: Arc::default(),
            working: Working::default(),
            walk: None,
            doors: Doors::default(),
            pages: Doors::default(),
            metrics: Arc::new(String::new),
            counts: Arc::default(),
            handling: Handling::default(),
            requests: Requests::default(),
            last_leader: Arc::default(),
            places,
            run,
            seed,
            started: 0,
        }
    }

    /// Over a link of an instance's own.
    fn placement(
        &self,
        store: &EtcdStore,
        objects: &Arc<dyn Objects>,
        (instance, place): (&'static str, Place),
    ) -> PlacementPorts {
        let requests = Arc::clone(&self.requests.providers);
        let providers: Arc<dyn MetricsProviders> = match &self.walk {
            Some(walk) => Arc::new(walk.over(&self.network, place, &requests)),
            None => {
                let link = self.network.link(place, Place::Provider);
                let (providers, facts) = (self.prometheus.clone(), self.facts.clone());
                let inner = AtProviders { inner: providers.clone(), instance, facts: facts.clone() };
                let inner = Routed::new(inner, link, requests);
                Arc::new(Providers::new(Arc::new(ToProviders { inner, providers, facts })))
            }
        };
        PlacementPorts {
            root: self.contended(Arc::new(store.at_root()), ""),
            prefix: PREFIX.to_owned(),
            objects: Arc::clone(objects),
            providers,
            metrics: self.working.metrics,
            scheduler: Arc::new(self.working.scheduler.clone()),
        }
    }

    /// A store of an instance, or one whose transactions meet rivals.
    fn contended(&self, store: Arc<dyn Store>, base: &'static str) -> Arc<dyn Store> {
        match &self.rivals {
            Some(rivals) => rivals.before(store, base),
            None => store,
        }
    }

    /// Serves placement's API at a door of the instance's name.
    fn api(&self, name: &'static str, objects: Arc<dyn Objects>, clock: &InstanceClock, seed: u64) -> Served {
        let objects = match &self.rivals {
            Some(rivals) => rivals.before_objects(objects),
            None => objects,
        };
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        let router = router(PlacementApi {
            objects,
            clock: Arc::new(clock.clone()),
            uids: Uids::seeded(bytes),
            explainer: None,
            authenticators: vec![Arc::new(StaticUser("system".to_owned()))],
            settings: Settings { authorization: Authorization::AlwaysAllow, ..Settings::new("simulated") },
        });
        let link = self.network.link(Place::People, Place::Instance(number(name)));
        Served { name, router, limits: Limits::PLACEMENT, doors: Arc::clone(&self.doors), link }
    }

    fn host(&self, name: &str) -> Option<Arc<dyn Host>> {
        if let Some(effects) = &self.effects {
            return Some(Arc::clone(&effects.host));
        }
        let hosts = self.hosts.as_ref()?;
        Some(Arc::new(JudgedHost {
            host: hosts.host.named(name),
            judge: hosts.judge.clone(),
            store: self.store.clone(),
            told: (name.to_owned(), self.facts.clone()),
        }))
    }

    fn kubernetes(&self, name: &str) -> Option<Arc<dyn Kubernetes>> {
        if let Some(effects) = &self.effects {
            return effects.kubernetes.clone();
        }
        let Hosts { kubernetes, judge, .. } = self.hosts.clone()?;
        let told = (name.to_owned(), self.facts.clone());
        Some(Arc::new(JudgedKubernetes { kubernetes, judge, store: self.store.clone(), told }))
    }

    /// Starts an instance under one of [`NAMES`].
    ///
    /// # Panics
    /// The name is none of them.
    pub async fn start(&mut self, name: &'static str) -> Running {
        self.started += 1;
        let seed = self.seed.wrapping_mul(1_000_003).wrapping_add(self.started);
        let place = Place::Instance(number(name));
        let clock = InstanceClock::new(number(name), Arc::clone(&self.clock), self.handling.clone());
        let link = self.network.link(place, Place::Store);
        let sealing = self.working.sealing.clone();
        let config = StoreConfig { prefix: PREFIX.to_owned(), sealing, ..StoreConfig::default() };
        let store = EtcdStore::over(link.connector(self.store.clone()), &config, seed).unwrap();
        let store = store.with_clock(Arc::new(clock.clone()));
        let objects = self.places.then(|| Arc::new(CachedObjects::start(&store)) as Arc<dyn Objects>);
        let placement = objects.as_ref().map(|objects| self.placement(&store, objects, (name, place)));
        let kubernetes = self.kubernetes(name);
        let http = Arc::new(self.registry.in_memory());
        let asked = Arc::clone(&self.requests.registry);
        let transport = self.corruption.spoiling(Arc::clone(&http));
        let answers = LastAnswers::default();
        let transport = ToRegistry {
            inner: transport,
            instance: name,
            facts: self.facts.clone(),
            answers: answers.clone(),
        };
        let transport = Routed::new(transport, self.network.link(place, Place::Registry), asked);
        let bomb = Bomb::default();
        let judge = self.hosts.as_ref().map(|hosts| hosts.judge.clone());
        let store = self.contended(Arc::new(store), PREFIX);
        let ports = Ports {
            store: Arc::clone(&store),
            registry: Arc::new(Overheard {
                registry: SabakanRegistry::new(Arc::new(transport)),
                heard: (name, answers, self.facts.clone()),
                checker: self.checker.clone(),
                repairs: judge.clone().map(|judge| (name, judge, self.registry.faults().clone())),
            }),
            clock: Arc::new(clock.clone()),
            events: Arc::new(Sink {
                name: name.to_owned(),
                history: self.history.clone(),
                checker: self.checker.clone(),
                placement: self.placement.clone(),
                repairs: judge,
                counts: Arc::clone(&self.counts),
                last_leader: Arc::clone(&self.last_leader),
                bomb: bomb.clone(),
                listener: self.listener.clone(),
                facts: self.facts.clone(),
                unplanted: Arc::clone(&self.unplanted),
            }),
            placement,
            kubernetes,
            host: self.host(name),
        };
        let options = InstanceOptions {
            // A former instance of this name may still be ending.
            id: format!("run{}-{name}-{}", self.run, self.started),
            host: name.to_owned(),
            interval: self.working.interval,
            session_ttl: self.working.session_ttl,
            retire_wait: self.working.retire_wait,
            hold: self.working.hold.clone(),
            seed,
        };
        self.history.note(name, "starts");
        let id = options.id.clone();
        let served = |view: &InstanceView| {
            let metrics = Arc::clone(&self.metrics);
            let settings = HttpSettings { store, timeout: PAGES_TIMEOUT, metrics, version: "simulated" };
            let router = pages(settings, view, None);
            let link = self.network.link(Place::People, place);
            let doors = Arc::clone(&self.pages);
            let pages = Served { name, router, limits: Limits::DEFAULT, doors, link };
            let api = objects.map(|objects| self.api(name, objects, &clock, seed));
            let api = api.map(|api| child(&id, PLACEMENT_API, api));
            std::iter::once(child(&id, HTTP, pages)).chain(api).collect()
        };
        let instance = Instance::start(options, ports, served).await.unwrap();
        Running { instance, link, http, bomb, clock }
    }
}

/// The number of an instance, counted from 1.
///
/// # Panics
/// The name is none of [`NAMES`].
#[must_use]
pub fn number(name: &str) -> u32 {
    (1..).zip(NAMES).find(|(_, other)| *other == name).expect("an instance has one of these names").0
}
