//! Actors that panic: how soon they are back, and work again.
//!
//! In this process, where an actor can be made to panic: the tree and the actors of the service, on a real
//! etcd, with the registry over TCP.

use std::panic;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use madako_messages::event::{Event, EventSink};
use madako_sabakan::{ReqwestTransport, SabakanRegistry};
use madako_store::{EtcdStore, StoreConfig};
use madako_supervisor::clock::SystemClock;
use madako_supervisor::instance::{Instance, InstanceOptions, LEADER, PLANNER, POLLER, Ports};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

use crate::processes::PATIENCE;
use crate::scene::Scene;
use crate::table::{Table, Times};

/// So few that no supervisor's budget is used up, and no backoff gets long.
const ROUNDS: usize = 3;
const INSTANCES: usize = 6;
const AIM: Duration = Duration::from_millis(50);
const PLANTED: &str = "a planted panic";
/// Time between polls: each poll can make the poller panic.
const INTERVAL: Duration = Duration::from_millis(100);

/// Who is to panic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Leader,
    Poller,
    Planner,
}

impl Victim {
    const ALL: [Self; 3] = [Self::Poller, Self::Planner, Self::Leader];

    fn name(self) -> &'static str {
        match self {
            Self::Leader => LEADER,
            Self::Poller => POLLER,
            Self::Planner => PLANNER,
        }
    }

    /// What it tells in the middle of its work.
    fn panics_at(self, event: &Event) -> bool {
        match self {
            Self::Leader => matches!(event, Event::Committed { what: "cluster", .. }),
            Self::Poller => matches!(event, Event::Observed { .. }),
            Self::Planner => matches!(event, Event::Planned { .. }),
        }
    }

    /// What shows that it works again, and for the leader all that it begins anew.
    fn works_at(self, event: &Event) -> bool {
        match self {
            Self::Leader => matches!(event, Event::Calm { .. }),
            Self::Poller => matches!(event, Event::Observed { .. }),
            Self::Planner => matches!(event, Event::Committed { what: "cluster", .. }),
        }
    }
}

/// What an instance told.
struct Told {
    at: Instant,
    event: Event,
    /// Whether whoever told it panicked.
    panics: bool,
}

/// Takes what an instance tells, and lets the actor panic that is to.
struct Sink {
    told: mpsc::UnboundedSender<Told>,
    victim: Mutex<Option<Victim>>,
}

impl Sink {
    fn arm(&self, victim: Victim) {
        *self.victim.lock().unwrap_or_else(PoisonError::into_inner) = Some(victim);
    }
}

impl EventSink for Sink {
    fn emit(&self, event: Event) {
        let panics = {
            let mut victim = self.victim.lock().unwrap_or_else(PoisonError::into_inner);
            victim.take_if(|victim| victim.panics_at(&event)).is_some()
        };
        // An error means that the measurement ended.
        let _ = self.told.send(Told { at: Instant::now(), event, panics });
        assert!(!panics, "{PLANTED}");
    }
}

/// An instance in this process, and what it tells.
struct Running {
    instance: Instance,
    sink: Arc<Sink>,
    told: mpsc::UnboundedReceiver<Told>,
}

impl Running {
    async fn start(endpoint: &str, number: usize) -> anyhow::Result<Self> {
        let seed = u64::try_from(number)?;
        let settings = StoreConfig {
            endpoints: vec![endpoint.to_owned()],
            prefix: "/cke/".to_owned(),
            ..StoreConfig::default()
        };
        let (sender, told) = mpsc::unbounded_channel();
        let sink = Arc::new(Sink { told: sender, victim: Mutex::new(None) });
        let ports = Ports {
            store: Arc::new(EtcdStore::open(&settings, seed)?),
            registry: Arc::new(SabakanRegistry::new(Arc::new(ReqwestTransport::new()?))),
            clock: Arc::new(SystemClock),
            events: Arc::clone(&sink) as Arc<dyn EventSink>,
            placement: None,
            host: None,
        };
        let options = InstanceOptions {
            id: format!("bench-{number}"),
            host: "bench".to_owned(),
            interval: INTERVAL,
            session_ttl: Duration::from_secs(60),
            retire_wait: madako_cluster_planner::DEFAULT_RETIRE_WAIT,
            seed,
        };
        let instance = Instance::start(options, ports, |_| Vec::new()).await?;
        Ok(Self { instance, sink, told })
    }

    /// Waits until it tells such a thing.
    async fn until<T>(
        &mut self,
        what: &str,
        is: impl Fn(&Told) -> Option<T>,
    ) -> anyhow::Result<(Instant, T)> {
        let told = async {
            loop {
                let told = self.told.recv().await.context("the instance is gone")?;
                if let Some(found) = is(&told) {
                    return anyhow::Ok((told.at, found));
                }
            }
        };
        timeout(PATIENCE, told).await.with_context(|| format!("did not happen: {what}"))?
    }
}

/// Fills in its rows.
pub(crate) async fn measure(table: &mut Table) -> anyhow::Result<()> {
    // Those that are planted need no message each.
    let shows = panic::take_hook();
    panic::set_hook(Box::new(move |panicked| {
        if panicked.payload_as_str() != Some(PLANTED) {
            shows(panicked);
        }
    }));
    let mut scene = Scene::on_etcd(60, "60s").await?;
    scene.store_wishes(20).await?;
    let mut back = Times::default();
    let mut works = Victim::ALL.map(|victim| (victim, Times::default()));
    for number in 0..INSTANCES {
        let mut running = Running::start(&scene.endpoint, number).await?;
        running.until("calm", |told| Victim::Leader.works_at(&told.event).then_some(())).await?;
        for _ in 0..ROUNDS {
            for (victim, works) in &mut works {
                let (returned, worked) = panics(&mut scene, &mut running, *victim).await?;
                back.add(returned);
                works.add(worked);
            }
        }
        running.instance.stop().await;
    }
    // One for the first cluster, and one for each worker more.
    let wanted = 1 + INSTANCES * ROUNDS * 2;
    scene.witness.until_workers(scene.workers).await?;
    scene.witness.catch_up();
    anyhow::ensure!(
        scene.witness.commits == wanted,
        "{} commits of {wanted} changes: something was written twice",
        scene.witness.commits
    );
    table.times("an actor that panicked is back, beyond its backoff", AIM, &back);
    for (victim, times) in &works {
        table.times(format!("of this {}, until it works again", victim.name()), AIM, times);
    }
    Ok(())
}

/// Lets an actor panic. Returns when it was back, and when it worked again, each from its end and
/// without its backoff.
async fn panics(
    scene: &mut Scene,
    running: &mut Running,
    victim: Victim,
) -> anyhow::Result<(Duration, Duration)> {
    let name = victim.name();
    running.sink.arm(victim);
    if victim != Victim::Poller {
        scene.want_one_more().await?;
    }
    let (failed, ()) = running.until("a panic", |told| told.panics.then_some(())).await?;
    let (_, backoff) = running
        .until("a failure", |told| match &told.event {
            Event::ActorFailed { actor, restart_in, .. } if actor == name => Some(*restart_in),
            _ => None,
        })
        .await?;
    let backoff = backoff.context("it is given up")?;
    // What it tells at once can be heard before its supervisor tells of the restart. Before the leader is back
    // others may still tell what its former reign found.
    let (mut back, mut works) = (None, None);
    while back.is_none() || works.is_none() {
        let seeks_work = works.is_none() && (back.is_some() || victim != Victim::Leader);
        let is = |told: &Told| match &told.event {
            Event::ActorRestarted { actor, .. } if actor == name => Some(false),
            event if seeks_work && victim.works_at(event) => Some(true),
            _ => None,
        };
        let (at, is_work) = running.until("its return to work", is).await?;
        *(if is_work { &mut works } else { &mut back }) = Some(at);
    }
    let (back, works) = back.zip(works).context("both were found")?;
    let beyond = |at: Instant| (at - failed).saturating_sub(backoff);
    Ok((beyond(back), beyond(works)))
}
