//! The world of a simulated run: one store, one data center, the instances, and the network links between them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use madako_app_scheduler::{MaxMoves, SchedulerConfig};
use madako_datacenter_sim::SimulatedRegistry;
use madako_datacenter_sim::host::SimulatedHost;
use madako_datacenter_sim::kubernetes::SimulatedKubernetes;
use madako_domain::reboot::RebootSettings;
use madako_domain::repair::hold::HoldSettings;
use madako_http::Limits;
use madako_http::placement::{Authorization, PlacementApi, Settings, StaticUser, UidSource, router};
use madako_judges::FaultPlace as Part;
use madako_metrics_providers::Providers;
use madako_protocol::event::{Event, EventSink};
use madako_protocol::host::Host;
use madako_protocol::kubernetes::Kubernetes;
use madako_protocol::placement::objects::Objects;
use madako_protocol::placement::providers::MetricsProviders;
use madako_protocol::ports::Clock;
use madako_protocol::store::Store;
use madako_sabakan::SabakanRegistry;
use madako_store::{CachedObjects, Encryption, EtcdStore, StoreConfig};
use madako_supervisor::config::Metrics;
use madako_supervisor::http::{HTTP, HttpSettings, LeaseWait, MetricsText, PLACEMENT_API, page_routes};
use madako_supervisor::instance::{Instance, InstanceOptions, InstanceView, PlacementPorts, Ports};
use madako_supervisor::nodes::OperationsPorts;

use crate::cancels::Cancels;
use crate::checker::{Checker, ReportingRegistry};
use crate::corruption::Corruption;
use crate::effects::JudgedKubernetes;
use crate::facts::{AtProviders, Facts, LastAnswers, ToProviders, ToRegistry};
use crate::history::{History, event_line};
use crate::link::Link;
use crate::network::{Endpoint, Network};
use crate::nodes::{EffectObserver, Nodes, link_ports};
use crate::placement::PlacementChecker;
use crate::planted::{InstanceClock, MessageCounter, PLANTED};
use crate::prometheus::Prometheus;
use crate::repair::{JudgedHost, RepairJudge};
use crate::rivals::Rivals;
use crate::routed::LinkedTransport;
use crate::serving::{LinkedDialers, ServedRouter, http_child};
use crate::store_process::StoreProcess;
use crate::walk::RandomWalk;

/// Prefix of the service's keys.
pub const PREFIX: &str = "/cke/";
pub const INTERVAL: Duration = Duration::from_secs(60);
/// Time to live of the leader's lease.
pub const SESSION_TTL: Duration = Duration::from_secs(60);
/// Time that a worker stays retired before the planner removes it.
pub const RETIRE_WAIT: Duration = Duration::from_secs(300);
/// Time between two passes of the metrics fetcher.
pub const METRICS_INTERVAL: Duration = Duration::from_secs(15);
/// Time that a cluster stays offline before applications leave it.
pub const RESCHEDULE_AFTER: Duration = Duration::from_secs(60);
/// A low limit, so that moves wait in some passes.
pub const MAX_MOVES: MaxMoves = MaxMoves { percent: 10, at_least: 2 };

/// Names of instances; the first one has the number 1.
pub const NAMES: [&str; 9] = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota"];
/// Time-out of the pages' request to the store, after which they report the instance as unhealthy (the configuration's
/// default).
const PAGES_TIMEOUT: Duration = Duration::from_secs(2);

/// Error of an actor that a test killed.
const KILLED: &str = "killed";

/// Part of the actors' names, because tests run in parallel and actor names are unique per process.
static RUNS: AtomicU64 = AtomicU64::new(0);

#[derive(Clone)]
pub struct ServiceSettings {
    /// Time between two polls of the registry.
    pub interval: Duration,
    /// Time to live of the leader's lease.
    pub session_ttl: Duration,
    /// Time that a worker stays retired before the planner removes it.
    pub retire_wait: Duration,
    /// Rule that combines the failures of a rack into one event.
    pub hold: Option<HoldSettings>,
    pub metrics: Metrics,
    pub scheduler: SchedulerConfig,
    /// Encryption of the secrets of placement's resources.
    pub encryption: Encryption,
}

impl Default for ServiceSettings {
    fn default() -> Self {
        Self {
            interval: INTERVAL,
            session_ttl: SESSION_TTL,
            retire_wait: RETIRE_WAIT,
            hold: Some(HoldSettings::default()),
            metrics: Metrics::with_interval(METRICS_INTERVAL),
            scheduler: SchedulerConfig {
                reschedule_after: RESCHEDULE_AFTER,
                max_moves: MAX_MOVES,
                ..SchedulerConfig::default()
            },
            encryption: Encryption::default(),
        }
    }
}

/// Targets of the instances' effects in a world without judges of effects.
#[derive(Clone)]
pub struct Effects {
    /// Runs commands on nodes.
    pub host: Arc<dyn Host>,
    /// API server of the cluster; `None` if the instances have none.
    pub kubernetes: Option<Arc<dyn Kubernetes>>,
}

pub struct World {
    pub store: StoreProcess,
    pub registry: SimulatedRegistry,
    /// Wall clock of all instances.
    pub clock: Arc<dyn Clock>,
    pub history: History,
    /// Judge of clusters and leaders.
    pub checker: Checker,
    pub placement: PlacementChecker,
    /// Targets of repairs and drains; `None` without repairs.
    pub hosts: Option<CommandHosts>,
    /// Targets of effects in a copied world, instead of `hosts`.
    pub effects: Option<Effects>,
    /// Operations on nodes, without the links of the instances; `None`: off.
    pub operations: Option<OperationsPorts>,
    /// The nodes, whose facts are reported.
    pub nodes: Option<Nodes>,
    /// Receiver of all events beside the judges.
    pub listener: Option<Arc<dyn EventSink>>,
    /// Receiver of the facts by which promises are judged.
    pub facts: Facts,
    /// Clients that write just before a transaction of the service.
    pub rivals: Option<Rivals>,
    /// Cancels of reboots just before a transaction of the service.
    pub cancels: Option<Cancels>,
    /// Instances and actors that failed without a planted fault.
    pub unplanted: Arc<Mutex<Vec<String>>>,
    pub working: ServiceSettings,
    /// Metrics providers of a copied world, instead of `prometheus`.
    pub walk: Option<RandomWalk>,
    pub prometheus: Prometheus,
    /// Dialers to the APIs of the instances, by name.
    pub dialers: LinkedDialers,
    pub pages: LinkedDialers,
    /// Page `/metrics` of instances that start from now on. All instances share one recorder.
    pub metrics: MetricsText,
    pub counts: Arc<Mutex<Counts>>,
    pub network: Network,
    /// Counts messages of actors, and plants panics.
    pub handling: MessageCounter,
    /// Switch for wrong answers of the registry.
    pub corruption: Corruption,
    pub requests: Requests,
    last_leader: Arc<Mutex<Option<String>>>,
    places: bool,
    run: u64,
    seed: u64,
    started: u64,
}

/// The hosts for repair commands, the API server for drains, and the judge of both.
#[derive(Clone)]
pub struct CommandHosts {
    pub host: SimulatedHost,
    /// API server of the nodes that the instances drain.
    pub kubernetes: SimulatedKubernetes,
    pub judge: RepairJudge,
}

/// Number of answered HTTP requests, by the server.
#[derive(Debug, Clone, Default)]
pub struct Requests {
    /// Requests to the registry's GraphQL.
    pub registry: Arc<AtomicU64>,
    pub providers: Arc<AtomicU64>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Elections of an instance other than the last leader.
    pub leader_changes: u64,
    /// Acknowledged writes of leaders.
    pub commits: u64,
    pub failed_operations: u64,
}

pub struct RunningInstance {
    pub instance: Instance,
    pub link: Link,
    pub clock: InstanceClock,
}

struct Sink {
    name: String,
    history: History,
    checker: Checker,
    placement: PlacementChecker,
    repairs: Option<RepairJudge>,
    counts: Arc<Mutex<Counts>>,
    last_leader: Arc<Mutex<Option<String>>>,
    listener: Option<Arc<dyn EventSink>>,
    facts: Facts,
    unplanted: Arc<Mutex<Vec<String>>>,
}

impl EventSink for Sink {
    fn emit(&self, event: Event) {
        self.history.note(&self.name, event_line(&event));
        if let Some(judge) = &self.repairs {
            judge.take_event(&self.name, &event);
        }
        if matches!(event, Event::ActorFailed { .. } | Event::Meltdown { .. }) {
            self.facts.report_strike(&Part::Instance(self.name.clone()));
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
                Event::Committed { .. } => counts.commits += 1,
                Event::Operation { failed: true, .. } => counts.failed_operations += 1,
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
            self.checker.record_refusal(&self.name, violations);
        }
        if let Event::Committed { what, revision, epoch, .. } = &event {
            self.checker.note_acknowledged_write(what, *revision, *epoch);
            if *what == "placement" {
                self.placement.note_commit(*revision);
            }
        }
        if let Some(listener) = &self.listener {
            listener.emit(event);
        }
    }
}

impl World {
    /// A world without running instances.
    pub fn new(
        (seed, places): (u64, bool),
        store: StoreProcess,
        registry: SimulatedRegistry,
        clock: Arc<dyn Clock>,
        (history, checker, placement): (History, Checker, PlacementChecker),
        hosts: Option<CommandHosts>,
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
            operations: None,
            nodes: None,
            listener: None,
            facts: Facts::default(),
            rivals: None,
            cancels: None,
            unplanted: Arc::default(),
            working: ServiceSettings::default(),
            walk: None,
            dialers: LinkedDialers::default(),
            pages: LinkedDialers::default(),
            metrics: Arc::new(|_| String::new()),
            counts: Arc::default(),
            handling: MessageCounter::default(),
            requests: Requests::default(),
            last_leader: Arc::default(),
            places,
            run,
            seed,
            started: 0,
        }
    }

    /// The ports of placement, over links of the instance.
    fn placement_ports(
        &self,
        store: &EtcdStore,
        objects: &Arc<dyn Objects>,
        (instance, place): (&'static str, Endpoint),
    ) -> PlacementPorts {
        let requests = Arc::clone(&self.requests.providers);
        let providers: Arc<dyn MetricsProviders> = match &self.walk {
            Some(walk) => Arc::new(walk.linked_providers(&self.network, place, &requests)),
            None => {
                let link = self.network.link(place, Endpoint::Provider);
                let (providers, facts) = (self.prometheus.clone(), self.facts.clone());
                let inner = AtProviders { inner: providers.clone(), instance, facts: facts.clone() };
                let inner = LinkedTransport::new(inner, link, requests);
                Arc::new(Providers::new(Arc::new(ToProviders { inner, providers, facts })))
            }
        };
        PlacementPorts {
            root: self.contend_store(Arc::new(store.with_absolute_keys()), ""),
            prefix: PREFIX.to_owned(),
            objects: Arc::clone(objects),
            providers,
            metrics: self.working.metrics,
            scheduler: Arc::new(self.working.scheduler.clone()),
        }
    }

    /// The store, with rivals and the operator before its transactions if the world has them.
    fn contend_store(&self, store: Arc<dyn Store>, base: &'static str) -> Arc<dyn Store> {
        // The root has no reboots.
        let store = match self.cancels.as_ref().filter(|_| !base.is_empty()) {
            Some(cancels) => cancels.wrap_store(store),
            None => store,
        };
        match &self.rivals {
            Some(rivals) => rivals.wrap_store(store, base),
            None => store,
        }
    }

    /// Serves placement's API as the instance `name`.
    fn placement_api(
        &self,
        name: &'static str,
        objects: Arc<dyn Objects>,
        clock: &InstanceClock,
        seed: u64,
    ) -> ServedRouter {
        let objects = match &self.rivals {
            Some(rivals) => rivals.wrap_objects(objects),
            None => objects,
        };
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        let router = router(PlacementApi {
            objects,
            clock: Arc::new(clock.clone()),
            uids: UidSource::from_seed(bytes),
            explainer: None,
            authenticators: vec![Arc::new(StaticUser("system".to_owned()))],
            settings: Settings { authorization: Authorization::AlwaysAllow, ..Settings::new("simulated") },
        });
        let link = self.network.link(Endpoint::People, Endpoint::Instance(instance_number(name)));
        ServedRouter { name, router, limits: Limits::PLACEMENT, dialers: Arc::clone(&self.dialers), link }
    }

    fn host_of_instance(&self, name: &str) -> Option<Arc<dyn Host>> {
        if let Some(effects) = &self.effects {
            return Some(Arc::clone(&effects.host));
        }
        let hosts = self.hosts.as_ref()?;
        Some(Arc::new(JudgedHost {
            host: hosts.host.named(name),
            judge: hosts.judge.clone(),
            store: self.store.clone(),
            fact_sink: (name.to_owned(), self.facts.clone()),
        }))
    }

    fn kubernetes_port(&self, name: &str) -> Option<Arc<dyn Kubernetes>> {
        if let Some(effects) = &self.effects {
            return effects.kubernetes.clone();
        }
        let CommandHosts { kubernetes, judge, .. } = self.hosts.clone()?;
        let fact_sink = (name.to_owned(), self.facts.clone());
        Some(Arc::new(JudgedKubernetes { kubernetes, judge, store: self.store.clone(), fact_sink }))
    }

    /// The ports of operations, over a link of the instance.
    fn operations_ports(&self, name: &str, place: Endpoint) -> Option<OperationsPorts> {
        let ports = self.operations.as_ref()?;
        let describe = |CommandHosts { judge, .. }: &CommandHosts| {
            (name.to_owned(), judge.clone(), self.facts.clone(), self.store.clone())
        };
        let witness = EffectObserver { judges: self.hosts.as_ref().map(describe), nodes: self.nodes.clone() };
        Some(link_ports(ports, &self.network.link(place, Endpoint::Nodes), &witness))
    }

    /// Starts an instance under one of [`NAMES`].
    ///
    /// # Panics
    /// The name is not in [`NAMES`].
    pub async fn start(&mut self, name: &'static str) -> RunningInstance {
        self.started += 1;
        let seed = self.seed.wrapping_mul(1_000_003).wrapping_add(self.started);
        let place = Endpoint::Instance(instance_number(name));
        let clock = InstanceClock::new(instance_number(name), Arc::clone(&self.clock), self.handling.clone());
        let link = self.network.link(place, Endpoint::Store);
        let encryption = self.working.encryption.clone();
        let config = StoreConfig { prefix: PREFIX.to_owned(), encryption, ..StoreConfig::default() };
        let store =
            EtcdStore::with_connector(link.make_connector(self.store.clone()), &config, seed).unwrap();
        let store = store.with_clock(Arc::new(clock.clone()));
        let objects = self.places.then(|| Arc::new(CachedObjects::start(&store)) as Arc<dyn Objects>);
        let placement = objects.as_ref().map(|objects| self.placement_ports(&store, objects, (name, place)));
        let kubernetes = self.kubernetes_port(name);
        let registry_requests = Arc::clone(&self.requests.registry);
        let transport = self.corruption.spoil_transport(Arc::new(self.registry.open_in_memory_transport()));
        let answers = LastAnswers::default();
        let transport = ToRegistry {
            inner: transport,
            instance: name,
            facts: self.facts.clone(),
            answers: answers.clone(),
        };
        let transport =
            LinkedTransport::new(transport, self.network.link(place, Endpoint::Registry), registry_requests);
        let judge = self.hosts.as_ref().map(|hosts| hosts.judge.clone());
        let store = self.contend_store(Arc::new(store), PREFIX);
        let ports = Ports {
            operations: self.operations_ports(name, place),
            store: Arc::clone(&store),
            registry: Arc::new(ReportingRegistry {
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
                listener: self.listener.clone(),
                facts: self.facts.clone(),
                unplanted: Arc::clone(&self.unplanted),
            }),
            placement,
            kubernetes,
            findings: None,
            host: self.host_of_instance(name),
        };
        let options = InstanceOptions {
            // Simulated instances serve no pages to other hosts.
            url: String::new(),
            // A former instance of this name may not have ended yet.
            id: format!("run{}-{name}-{}", self.run, self.started),
            host: name.to_owned(),
            interval: self.working.interval,
            session_ttl: self.working.session_ttl,
            retire_wait: self.working.retire_wait,
            hold: self.working.hold.clone(),
            reboots: RebootSettings::default(),
            seed,
        };
        self.history.note(name, "starts");
        let id = options.id.clone();
        let served = |view: &InstanceView| {
            let metrics = Arc::clone(&self.metrics);
            let lease_wait = LeaseWait::default();
            let settings = HttpSettings {
                store,
                timeout: PAGES_TIMEOUT,
                metrics,
                version: "simulated",
                lease_wait,
                operates: self.operations.is_some(),
            };
            let router = page_routes(settings, view, None);
            let link = self.network.link(Endpoint::People, place);
            let dialers = Arc::clone(&self.pages);
            let pages = ServedRouter { name, router, limits: Limits::DEFAULT, dialers, link };
            let api = objects.map(|objects| self.placement_api(name, objects, &clock, seed));
            let api = api.map(|api| http_child(&id, PLACEMENT_API, api));
            std::iter::once(http_child(&id, HTTP, pages)).chain(api).collect()
        };
        let instance = Instance::start(options, ports, served).await.unwrap();
        RunningInstance { instance, link, clock }
    }
}

/// The number of an instance, counted from 1.
///
/// # Panics
/// The name is not in [`NAMES`].
#[must_use]
pub fn instance_number(name: &str) -> u32 {
    (1..).zip(NAMES).find(|(_, other)| *other == name).expect("an instance has one of these names").0
}
