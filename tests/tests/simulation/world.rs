//! The world of a run: one store, one data center, three instances, and the ways between them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use madako_app_scheduler::{MaxMoves, SchedulerConfig};
use madako_datacenter_sim::host::SimulatedHost;
use madako_datacenter_sim::kubernetes::SimulatedKubernetes;
use madako_datacenter_sim::{InMemoryHttp, SimulatedRegistry};
use madako_embedded_etcd::EmbeddedEtcd;
use madako_http::placement::{Authorization, PlacementApi, Settings, StaticUser, Uids, router};
use madako_http::{Limits, memory, nobody, serve};
use madako_messages::event::{Event, EventSink};
use madako_messages::feed::Task;
use madako_messages::host::Host;
use madako_messages::kubernetes::Kubernetes;
use madako_messages::placement::objects::Objects;
use madako_messages::ports::Clock;
use madako_metrics_providers::Providers;
use madako_sabakan::SabakanRegistry;
use madako_store::{CachedObjects, EtcdStore, StoreConfig};
use madako_supervisor::config::Metrics;
use madako_supervisor::instance::{Instance, InstanceOptions, PlacementPorts, Ports};

use crate::checker::{Checker, Overheard};
use crate::history::{History, line};
use crate::link::Link;
use crate::placement::PlacementChecker;
use crate::prometheus::Prometheus;
use crate::repair::{JudgedHost, RepairJudge};
use crate::user::Doors;

pub const PREFIX: &str = "/cke/";
pub const INTERVAL: Duration = Duration::from_secs(60);
pub const SESSION_TTL: Duration = Duration::from_secs(60);
pub const RETIRE_WAIT: Duration = Duration::from_secs(300);
pub const METRICS_INTERVAL: Duration = Duration::from_secs(15);
pub const RESCHEDULE_AFTER: Duration = Duration::from_secs(60);
/// So few that what waits is seen.
pub const MAX_MOVES: MaxMoves = MaxMoves { percent: 10, at_least: 2 };

/// Actors' names are one namespace a process, and tests run beside each other.
static RUNS: AtomicU64 = AtomicU64::new(0);

/// What a run is made of.
pub struct World {
    pub store: Arc<EmbeddedEtcd>,
    pub registry: SimulatedRegistry,
    pub clock: Arc<dyn Clock>,
    pub history: History,
    pub checker: Checker,
    pub placement: PlacementChecker,
    pub hosts: Option<Hosts>,
    pub prometheus: Prometheus,
    pub doors: Doors,
    pub counts: Arc<Mutex<Counts>>,
    halves: Halves,
    run: u64,
    seed: u64,
    started: u64,
}

/// The hosts that instances run repair commands on, the API server of the nodes that they drain, and who judges this.
#[derive(Clone)]
pub struct Hosts {
    pub host: SimulatedHost,
    pub kubernetes: SimulatedKubernetes,
    pub judge: RepairJudge,
}

/// Which halves of the service run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Halves {
    /// That which keeps a cluster of machines.
    Machines,
    /// Placement as well.
    Both,
    /// Machines that are repaired: commands on hosts, and users of the repair queue.
    Repairs,
}

/// How often things happened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    pub actor_failures: u64,
    pub failed_polls: u64,
    pub meltdowns: u64,
    pub refused_commits: u64,
    pub held: u64,
}

/// A running instance and its links.
pub struct Running {
    pub instance: Instance,
    pub link: Link,
    pub http: Arc<InMemoryHttp>,
    pub bomb: Bomb,
    _api: Option<Task>,
}

/// Makes the actor that emits a certain event panic, once.
#[derive(Clone, Default)]
pub struct Bomb(Arc<Mutex<Option<Trigger>>>);

/// The actor that is to panic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trigger {
    Leader,
    Poller,
    Planner,
    Scheduler,
    Repair,
}

impl Bomb {
    pub fn arm(&self, trigger: Trigger) {
        *self.0.lock().unwrap() = Some(trigger);
    }

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
    bomb: Bomb,
}

impl EventSink for Sink {
    fn emit(&self, event: Event) {
        self.history.note(&self.name, &line(&event));
        if let Some(judge) = &self.repairs {
            judge.heard(&self.name, &event);
        }
        {
            let mut counts = self.counts.lock().unwrap();
            match &event {
                Event::ActorFailed { .. } => counts.actor_failures += 1,
                Event::PollFailed { .. } => counts.failed_polls += 1,
                Event::Meltdown { .. } => counts.meltdowns += 1,
                Event::CommitFailed { .. } => counts.refused_commits += 1,
                Event::Held(_) => counts.held += 1,
                _ => {}
            }
        }
        if let Event::Committed { what, revision, epoch, .. } = &event {
            self.checker.acknowledge(what, *revision, *epoch);
            if *what == "placement" {
                self.placement.committed(*revision);
            }
        }
        assert!(!self.bomb.goes_off(&event), "a planted panic");
    }
}

impl World {
    pub fn new(
        (seed, halves): (u64, Halves),
        store: Arc<EmbeddedEtcd>,
        registry: SimulatedRegistry,
        clock: Arc<dyn Clock>,
        (history, checker, placement): (History, Checker, PlacementChecker),
        hosts: Option<Hosts>,
    ) -> Self {
        let run = RUNS.fetch_add(1, Ordering::Relaxed);
        let prometheus = Prometheus::new(placement.clone());
        let (doors, counts, started) = (Doors::default(), Arc::default(), 0);
        Self {
            store,
            registry,
            clock,
            history,
            checker,
            placement,
            hosts,
            prometheus,
            doors,
            counts,
            halves,
            run,
            seed,
            started,
        }
    }

    fn placement(&self, store: &EtcdStore, objects: &Arc<dyn Objects>) -> PlacementPorts {
        PlacementPorts {
            root: Arc::new(store.at_root()),
            prefix: PREFIX.to_owned(),
            objects: Arc::clone(objects),
            providers: Arc::new(Providers::new(Arc::new(self.prometheus.clone()))),
            metrics: Metrics::every(METRICS_INTERVAL),
            scheduler: Arc::new(SchedulerConfig {
                reschedule_after: RESCHEDULE_AFTER,
                max_moves: MAX_MOVES,
                ..SchedulerConfig::default()
            }),
        }
    }

    /// Serves placement's API at a door of the instance's name.
    fn api(&self, name: &'static str, objects: Arc<dyn Objects>, seed: u64) -> Task {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        let router = router(PlacementApi {
            objects,
            clock: Arc::clone(&self.clock),
            uids: Uids::seeded(bytes),
            explainer: None,
            authenticators: vec![Arc::new(StaticUser("system".to_owned()))],
            settings: Settings { authorization: Authorization::AlwaysAllow, ..Settings::new("simulated") },
        });
        let (dialer, listener) = memory::listener();
        self.doors.lock().unwrap().insert(name, dialer);
        Task::start(async move {
            serve(listener, router, Limits::PLACEMENT, nobody, std::future::pending()).await;
        })
    }

    async fn host(&self, name: &str) -> Option<Arc<dyn Host>> {
        let hosts = self.hosts.as_ref()?;
        Some(Arc::new(JudgedHost {
            host: hosts.host.named(name),
            judge: hosts.judge.clone(),
            client: self.store.client().await.unwrap(),
        }))
    }

    /// Starts an instance under a name.
    pub async fn start(&mut self, name: &'static str) -> Running {
        self.started += 1;
        let seed = self.seed.wrapping_mul(1_000_003).wrapping_add(self.started);
        let link = Link::new();
        let config = StoreConfig { prefix: PREFIX.to_owned(), ..StoreConfig::default() };
        let store = EtcdStore::over(link.connector(Arc::clone(&self.store)), &config, seed).unwrap();
        let objects =
            (self.halves == Halves::Both).then(|| Arc::new(CachedObjects::start(&store)) as Arc<dyn Objects>);
        let placement = objects.as_ref().map(|objects| self.placement(&store, objects));
        let kubernetes = self.hosts.as_ref().map(|hosts| hosts.kubernetes.clone());
        let kubernetes = kubernetes.map(|kubernetes| Arc::new(kubernetes) as Arc<dyn Kubernetes>);
        let http = Arc::new(self.registry.in_memory());
        let bomb = Bomb::default();
        let judge = self.hosts.as_ref().map(|hosts| hosts.judge.clone());
        let ports = Ports {
            store: Arc::new(store),
            registry: Arc::new(Overheard {
                registry: SabakanRegistry::new(Arc::clone(&http)),
                checker: self.checker.clone(),
                repairs: judge.clone().map(|judge| (name, judge, self.registry.faults().clone())),
            }),
            clock: Arc::clone(&self.clock),
            events: Arc::new(Sink {
                name: name.to_owned(),
                history: self.history.clone(),
                checker: self.checker.clone(),
                placement: self.placement.clone(),
                repairs: judge,
                counts: Arc::clone(&self.counts),
                bomb: bomb.clone(),
            }),
            placement,
            kubernetes,
            host: self.host(name).await,
        };
        let options = InstanceOptions {
            // A former instance of this name may still be ending.
            id: format!("run{}-{name}-{}", self.run, self.started),
            host: name.to_owned(),
            interval: INTERVAL,
            session_ttl: SESSION_TTL,
            retire_wait: RETIRE_WAIT,
            hold: Some(madako_messages::repair::hold::HoldSettings::default()),
            seed,
        };
        self.history.note(name, "starts");
        let instance = Instance::start(options, ports, |_| Vec::new()).await.unwrap();
        let api = objects.map(|objects| self.api(name, objects, seed));
        Running { instance, link, http, bomb, _api: api }
    }
}
