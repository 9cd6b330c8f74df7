//! Measures panicking and killed actors: time until the restart and until the actor works again; and a reign whose
//! actors fail too often.
//!
//! Runs the tree and the actors of the service in this process, where an actor can be made to panic, on a real etcd,
//! with the registry over TCP. An actor panics in the middle of its work, when it reports an event; the actors of
//! placement report no events, or only about resources, and are killed.

use std::panic;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use madako_app_scheduler::SchedulerConfig;
use madako_domain::keys;
use madako_domain::repair::RepairQueueEntry;
use madako_http::Limits;
use madako_http_client::ReqwestTransport;
use madako_metrics_providers::Providers;
use madako_protocol::event::{Event, EventSink};
use madako_protocol::ports::HttpTransport;
use madako_protocol::store::Store;
use madako_sabakan::SabakanRegistry;
use madako_store::{CachedObjects, EtcdStore, StoreConfig};
use madako_supervisor::clock::SystemClock;
use madako_supervisor::config::Metrics;
use madako_supervisor::http::{
    BoundListener, HTTP, HttpSettings, LeaseWait, PLACEMENT_API, ServedRouter, http_child, page_routes,
};
use madako_supervisor::instance::{
    FETCHER, Instance, InstanceOptions, InstanceView, LEADER, PLANNER, POLLER, PlacementPorts, Ports, REIGN,
    REPAIR, SCHEDULER,
};
use madako_supervisor::tree::{ChildSpec, SupervisorRef};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};

use crate::processes::PATIENCE;
use crate::scene::Scene;
use crate::table::{Table, Times};

/// Few enough not to exceed a supervisor's budget, or to lengthen the back-off.
const ROUNDS: usize = 3;
const INSTANCES: usize = 6;
/// Rounds with killed actors, and of meltdowns.
const FEWER: usize = 3;
/// Meltdowns in one instance: with one more within ten minutes, it resigns leadership.
const MELTDOWNS: usize = 2;
const AIM: Duration = Duration::from_millis(50);
/// Time limit for a reign to work again after a meltdown.
const REIGN_AIM: Duration = Duration::from_secs(1);
/// Actors that are killed, as they cannot be made to panic.
const KILLED: [&str; 4] = [FETCHER, SCHEDULER, HTTP, PLACEMENT_API];
/// Of these, the HTTP servers, which are not part of a reign.
const SERVING: [&str; 2] = [HTTP, PLACEMENT_API];
/// Children of a reign that fail until it melts down.
const MELTING: [&str; 3] = [POLLER, PLANNER, REPAIR];
/// Pause between checks of the running actors.
const GLANCE: Duration = Duration::from_millis(1);
const PLANTED: &str = "a planted panic";
/// Time between polls: each poll can make the poller panic.
const INTERVAL: Duration = Duration::from_millis(100);

/// An actor that is made to panic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Leader,
    Poller,
    Planner,
    Repair,
}

impl Victim {
    /// The leader last: it begins a new reign, so that no actor exceeds its budget.
    const ALL: [Self; 4] = [Self::Poller, Self::Planner, Self::Repair, Self::Leader];

    fn name(self) -> &'static str {
        match self {
            Self::Leader => LEADER,
            Self::Poller => POLLER,
            Self::Planner => PLANNER,
            Self::Repair => REPAIR,
        }
    }

    /// The event in the middle of the actor's work.
    fn is_moment_to_panic(self, event: &Event) -> bool {
        match self {
            Self::Leader => matches!(event, Event::Committed { what: "cluster", .. }),
            Self::Poller => matches!(event, Event::Observed { .. }),
            Self::Planner => matches!(event, Event::Planned { .. }),
            Self::Repair => matches!(event, Event::RepairWaits { .. }),
        }
    }

    /// The event that shows that the actor works again; for the leader, that its whole reign does.
    fn shows_recovery(self, event: &Event) -> bool {
        match self {
            Self::Leader => matches!(event, Event::Calm { .. }),
            Self::Poller => matches!(event, Event::Observed { .. }),
            Self::Planner => matches!(event, Event::Committed { what: "cluster", .. }),
            // The actor reads the queue again, and reports the obstacle.
            Self::Repair => matches!(event, Event::RepairWaits { .. }),
        }
    }
}

/// An event of an instance.
struct TimedEvent {
    at: Instant,
    event: Event,
    /// True if the reporting actor panicked.
    panics: bool,
}

/// Receives the events of an instance, and makes the chosen actor panic.
struct Sink {
    received: mpsc::UnboundedSender<TimedEvent>,
    victim: Mutex<Option<Victim>>,
}

impl Sink {
    fn arm_failure(&self, victim: Victim) {
        *self.victim.lock().unwrap_or_else(PoisonError::into_inner) = Some(victim);
    }
}

impl EventSink for Sink {
    fn emit(&self, event: Event) {
        let panics = {
            let mut victim = self.victim.lock().unwrap_or_else(PoisonError::into_inner);
            victim.take_if(|victim| victim.is_moment_to_panic(&event)).is_some()
        };
        // An error means that the measurement has ended.
        let _ = self.received.send(TimedEvent { at: Instant::now(), event, panics });
        assert!(!panics, "{PLANTED}");
    }
}

/// An instance in this process with its events.
struct Running {
    instance: Instance,
    sink: Arc<Sink>,
    received: mpsc::UnboundedReceiver<TimedEvent>,
}

impl Running {
    async fn start(endpoint: &str, number: usize, with_placement: bool) -> anyhow::Result<Self> {
        let seed = u64::try_from(number)?;
        let settings = StoreConfig {
            endpoints: vec![endpoint.to_owned()],
            prefix: "/cke/".to_owned(),
            ..StoreConfig::default()
        };
        let (sender, received) = mpsc::unbounded_channel();
        let sink = Arc::new(Sink { received: sender, victim: Mutex::new(None) });
        let store = EtcdStore::open(&settings, seed)?;
        let transport: Arc<dyn HttpTransport> = Arc::new(ReqwestTransport::new()?);
        let placement = with_placement.then(|| PlacementPorts {
            root: Arc::new(store.with_absolute_keys()),
            prefix: settings.prefix.clone(),
            objects: Arc::new(CachedObjects::start(&store)),
            providers: Arc::new(Providers::new(Arc::clone(&transport))),
            metrics: Metrics::with_interval(Duration::from_secs(60)),
            scheduler: Arc::new(SchedulerConfig::default()),
        });
        let store: Arc<dyn Store> = Arc::new(store);
        let (id, http) = (format!("bench-{number}"), if with_placement { SERVING.len() } else { 0 });
        let mut served = Vec::with_capacity(http);
        for name in &SERVING[..http] {
            served.push((*name, BoundListener::new("127.0.0.1:0").await?));
        }
        let serves = |view: &InstanceView| http_servers(&id, &store, served, view);
        let ports = Ports {
            operations: None,
            store: Arc::clone(&store),
            registry: Arc::new(SabakanRegistry::new(transport)),
            clock: Arc::new(SystemClock),
            events: Arc::clone(&sink) as Arc<dyn EventSink>,
            placement,
            kubernetes: None,
            findings: None,
            host: None,
        };
        let options = InstanceOptions {
            url: String::new(),
            id: id.clone(),
            host: "bench".to_owned(),
            interval: INTERVAL,
            session_ttl: Duration::from_secs(60),
            retire_wait: madako_cluster_planner::DEFAULT_RETIRE_WAIT,
            hold: Some(madako_domain::repair::hold::HoldSettings::default()),
            reboots: madako_domain::reboot::RebootSettings::default(),
            seed,
        };
        let instance = Instance::start(options, ports, serves).await?;
        Ok(Self { instance, sink, received })
    }

    /// Kills an actor of the reign, or an HTTP server, if it runs; returns the time.
    async fn kill_now(&self, name: &str) -> Option<Instant> {
        let root = self.instance.root();
        let parent = if SERVING.contains(&name) {
            root.clone()
        } else {
            SupervisorRef::from_cell(root.find_child(REIGN).await.ok().flatten()?)?
        };
        // An ended actor has no children.
        let cell = parent.find_child(name).await.ok().flatten()?;
        let now = Instant::now();
        cell.kill();
        Some(now)
    }

    /// Waits for the event of the back-off before an actor's restart.
    async fn wait_for_backoff(&mut self, name: &str) -> anyhow::Result<Duration> {
        let is = |received: &TimedEvent| match &received.event {
            Event::ActorFailed { actor, restart_in, .. } if actor == name => Some(*restart_in),
            _ => None,
        };
        let (_, backoff) = self.wait_for_event("a failure", is).await?;
        backoff.context("it is given up")
    }

    /// Kills an actor; returns the time until its restart, without the back-off.
    async fn kill(&mut self, name: &str) -> anyhow::Result<Duration> {
        let killing = async {
            loop {
                match self.kill_now(name).await {
                    Some(killed) => return killed,
                    None => sleep(GLANCE).await,
                }
            }
        };
        let killed = timeout(PATIENCE, killing).await.with_context(|| format!("{name} does not run"))?;
        let backoff = self.wait_for_backoff(name).await?;
        let is = |received: &TimedEvent| {
            matches!(&received.event, Event::ActorRestarted { actor, .. } if actor == name).then_some(())
        };
        let (back, ()) = self.wait_for_event("its return", is).await?;
        Ok((back - killed).saturating_sub(backoff))
    }

    /// Kills children of the reign until it melts down; returns the time of the event.
    async fn provoke_meltdown(&mut self) -> anyhow::Result<Instant> {
        let melting = async {
            loop {
                for name in MELTING {
                    while let Ok(received) = self.received.try_recv() {
                        if let Event::ActorFailed { actor, restart_in, .. } = &received.event
                            && actor == REIGN
                        {
                            restart_in.context("the reign is given up")?;
                            return anyhow::Ok(received.at);
                        }
                    }
                    self.kill_now(name).await;
                }
                sleep(GLANCE).await;
            }
        };
        timeout(PATIENCE, melting).await.context("the reign does not melt down")?
    }

    /// Waits for a matching event.
    async fn wait_for_event<T>(
        &mut self,
        what: &str,
        is: impl Fn(&TimedEvent) -> Option<T>,
    ) -> anyhow::Result<(Instant, T)> {
        let received = async {
            loop {
                let received = self.received.recv().await.context("the instance is gone")?;
                if let Some(found) = is(&received) {
                    return anyhow::Ok((received.at, found));
                }
            }
        };
        timeout(PATIENCE, received).await.with_context(|| format!("did not happen: {what}"))?
    }
}

pub(crate) async fn measure_actors(table: &mut Table) -> anyhow::Result<()> {
    // Suppresses the messages of deliberate panics.
    let shows = panic::take_hook();
    panic::set_hook(Box::new(move |panicked| {
        if panicked.payload_as_str() != Some(PLANTED) {
            shows(panicked);
        }
    }));
    let mut scene = Scene::with_etcd(60, "60s").await?;
    scene.store_settings(20).await?;
    let mut back = Times::default();
    let mut works = Victim::ALL.map(|victim| (victim, Times::default()));
    for number in 0..INSTANCES {
        let mut running = Running::start(&scene.endpoint, number, false).await?;
        running
            .wait_for_event("calm", |received| Victim::Leader.shows_recovery(&received.event).then_some(()))
            .await?;
        for _ in 0..ROUNDS {
            for (victim, works) in &mut works {
                let (returned, worked) = measure_panics(&mut scene, &mut running, *victim).await?;
                back.add(returned);
                works.add(worked);
            }
        }
        running.instance.stop().await;
    }
    // One commit for the first cluster, and one for each additional worker.
    let wanted = 1 + INSTANCES * ROUNDS * 2;
    scene.witness.wait_until_workers(scene.workers).await?;
    scene.witness.catch_up();
    anyhow::ensure!(
        scene.witness.commits == wanted,
        "{} commits of {wanted} changes: something was written twice",
        scene.witness.commits
    );
    table.add_times("restart of an actor after a panic, beyond its back-off", AIM, &back);
    for (victim, times) in &works {
        table.add_times(format!("part of this: {}, until it works", victim.name()), AIM, times);
    }
    for (name, times) in measure_kills(&scene.endpoint).await? {
        table.add_times(format!("restart of the killed {name}, beyond its back-off"), AIM, &times);
    }
    table.add_times(
        "restart of a reign after a meltdown, until it has polled and planned, with its back-off",
        REIGN_AIM,
        &measure_meltdowns(&scene.endpoint).await?,
    );
    Ok(())
}

/// The HTTP servers, each on its own port.
fn http_servers(
    id: &str,
    store: &Arc<dyn Store>,
    served: Vec<(&'static str, BoundListener)>,
    view: &InstanceView,
) -> Vec<ChildSpec> {
    let settings = HttpSettings {
        store: Arc::clone(store),
        timeout: PATIENCE,
        metrics: Arc::new(|_| String::new()),
        version: "bench",
        lease_wait: LeaseWait::default(),
        operates: false,
    };
    let serves = |(name, bound)| {
        let router = page_routes(settings.clone(), view, None);
        http_child(id, name, ServedRouter { bound, router, limits: Limits::DEFAULT, tls: None }, view)
    };
    served.into_iter().map(serves).collect()
}

/// Times until killed actors of placement and HTTP servers were back, without the back-off.
async fn measure_kills(endpoint: &str) -> anyhow::Result<[(&'static str, Times); KILLED.len()]> {
    let mut found = KILLED.map(|name| (name, Times::default()));
    for number in 0..FEWER {
        let mut running = Running::start(endpoint, number, true).await?;
        running
            .wait_for_event("calm", |received| Victim::Leader.shows_recovery(&received.event).then_some(()))
            .await?;
        for _ in 0..ROUNDS {
            for (name, times) in &mut found {
                times.add(running.kill(name).await?);
            }
        }
        running.instance.stop().await;
    }
    Ok(found)
}

/// Times from a reign's meltdown until the next reign has polled and planned.
async fn measure_meltdowns(endpoint: &str) -> anyhow::Result<Times> {
    let mut times = Times::default();
    for number in 0..FEWER {
        let mut running = Running::start(endpoint, number, false).await?;
        running
            .wait_for_event("calm", |received| Victim::Leader.shows_recovery(&received.event).then_some(()))
            .await?;
        for _ in 0..MELTDOWNS {
            let melted = running.provoke_meltdown().await?;
            // No actor of the old reign is left to report an event.
            let (mut polled, mut planned) = (None, None);
            while polled.is_none() || planned.is_none() {
                let is = |received: &TimedEvent| match &received.event {
                    Event::Observed { .. } => Some(true),
                    Event::Calm { .. } => Some(false),
                    _ => None,
                };
                let (at, is_poll) = running.wait_for_event("its return to work", is).await?;
                (if is_poll { &mut polled } else { &mut planned }).get_or_insert(at);
            }
            let (polled, planned) = polled.zip(planned).context("both were found")?;
            times.add(polled.max(planned) - melted);
        }
        running.instance.stop().await;
    }
    Ok(times)
}

/// Adds an entry for a machine type without repair procedure to the repair queue.
async fn queue_repair_entry(scene: &Scene) -> anyhow::Result<()> {
    let stored = scene.witness.list().await?.entries;
    let next = stored.get(keys::REPAIRS_WRITE_INDEX).map(|entry| std::str::from_utf8(&entry.value));
    let index: i64 = next.transpose()?.map_or(Ok(0), str::parse)?;
    let entry = RepairQueueEntry { index, ..RepairQueueEntry::new("unreachable", "bench", "10.255.0.1") };
    scene.witness.put(keys::REPAIRS_WRITE_INDEX, (index + 1).to_string()).await?;
    scene.witness.put(&keys::repair(index), serde_json::to_vec(&entry)?).await
}

/// Makes an actor panic. Returns the times until it was back, and until it worked again, both from its end and without
/// the back-off.
async fn measure_panics(
    scene: &mut Scene,
    running: &mut Running,
    victim: Victim,
) -> anyhow::Result<(Duration, Duration)> {
    let name = victim.name();
    running.sink.arm_failure(victim);
    match victim {
        // It polls all the time.
        Victim::Poller => {}
        Victim::Repair => queue_repair_entry(scene).await?,
        Victim::Planner | Victim::Leader => drop(scene.request_one_more_worker().await?),
    }
    let (failed, ()) = running.wait_for_event("a panic", |received| received.panics.then_some(())).await?;
    let backoff = running.wait_for_backoff(name).await?;
    // The actor's first event may arrive before its supervisor's event of the restart. Before the leader is back, other
    // actors may still report events of the former reign.
    let (mut back, mut works) = (None, None);
    while back.is_none() || works.is_none() {
        let seeks_work = works.is_none() && (back.is_some() || victim != Victim::Leader);
        let is = |received: &TimedEvent| match &received.event {
            Event::ActorRestarted { actor, .. } if actor == name => Some(false),
            event if seeks_work && victim.shows_recovery(event) => Some(true),
            _ => None,
        };
        let (at, is_work) = running.wait_for_event("its return to work", is).await?;
        *(if is_work { &mut works } else { &mut back }) = Some(at);
    }
    let (back, works) = back.zip(works).context("both were found")?;
    let beyond = |at: Instant| (at - failed).saturating_sub(backoff);
    Ok((beyond(back), beyond(works)))
}
