//! One instance of the service: its tree, wired to the ports that it is given.
//!
//! ```text
//! root
//! ├─ http, placement-api     as it is given them
//! ├─ leader
//! └─ reign                   while this instance leads
//!    ├─ sabakan-poller
//!    ├─ cluster-planner
//!    ├─ repair-queue
//!    ├─ metrics-fetcher      where placement is on and this instance decides about it
//!    └─ app-scheduler
//! ```
//!
//! Guarantees: a reign exists only between [`ReignControl::begin`] and `end` of its epoch, and ends when
//! the leader fails; a reign that fails too often makes the instance give up leadership for a while.
//! Several instances can live in one process: names carry the instance's id.
//! Assumes a tokio runtime with time. Does no I/O of its own: ports do.

use std::sync::Arc;
use std::time::Duration;

use madako_app_scheduler::{Scheduler, SchedulerArguments, SchedulerConfig};
use madako_cluster_planner::{Planner, PlannerArguments};
use madako_domain::placement::ownership::Ownership;
use madako_domain::repair::hold::HoldSettings;
use madako_domain::settings::{RepairSettings, Settings};
use madako_domain::state::ClusterState;
use madako_domain::store::Epoch;
use madako_leader::{Leader, LeaderArguments, PlacementGate, ReignControl};
use madako_metrics_fetcher::{Fetcher, FetcherArguments};
use madako_protocol::actors::LeaderMessage;
use madako_protocol::event::{Event, EventSink};
use madako_protocol::host::Host;
use madako_protocol::kubernetes::Kubernetes;
use madako_protocol::latest::{self, Subscriber};
use madako_protocol::mailbox::Letter;
use madako_protocol::placement::objects::Objects;
use madako_protocol::placement::providers::MetricsProviders;
use madako_protocol::ports::{Clock, Registry};
use madako_protocol::store::{CampaignOptions, Store};
use madako_repair_queue::{Repair, RepairArguments};
use madako_sabakan_poller::{Poller, PollerArguments};
use ractor::{Actor, ActorRef, registry};
use tokio::sync::{mpsc, watch};

use crate::config::Metrics;
use crate::limits::{INSTANCE_STOP_DEADLINE, PAUSE_AFTER_MELTDOWN};
use crate::measured::{self, Measured};
use crate::tree::{
    Budget, ChildExit, ChildSpec, Exceeded, Mode, StopOutcome, SupervisorRef, SupervisorSpec, Tree,
    TreeEvent, TreeStatus, actor_name,
};

/// The leader's id in the tree.
pub const LEADER: &str = "leader";
/// The reign's id in the tree.
pub const REIGN: &str = "reign";
/// The poller's id in the tree.
pub const POLLER: &str = "sabakan-poller";
/// The planner's id in the tree.
pub const PLANNER: &str = "cluster-planner";
/// The repair queue's id in the tree.
pub const REPAIR: &str = "repair-queue";
/// The id in the tree of what fetches metrics.
pub const FETCHER: &str = "metrics-fetcher";
/// The scheduler's id in the tree.
pub const SCHEDULER: &str = "app-scheduler";

/// How often a reign that melted down is started anew before the instance gives up leadership.
/// Three meltdowns take at least a minute with the tree's own backoff.
const REIGN_BUDGET: Budget = Budget { restarts: 2, window: Duration::from_secs(600) };

/// What an instance is wired to.
#[derive(Clone)]
pub struct Ports {
    /// The store.
    pub store: Arc<dyn Store>,
    /// The registry.
    pub registry: Arc<dyn Registry>,
    /// The wall clock.
    pub clock: Arc<dyn Clock>,
    /// Where events go.
    pub events: Arc<dyn EventSink>,
    /// What deciding about placement needs; `None`: this instance decides nothing about it.
    pub placement: Option<PlacementPorts>,
    /// The API server of the cluster; `None`: it is not configured.
    pub kubernetes: Option<Arc<dyn Kubernetes>>,
    /// Runs commands on the instance's host; `None`: this instance runs none, and says so where one is due.
    pub host: Option<Arc<dyn Host>>,
}

/// What deciding about placement needs.
#[derive(Clone)]
pub struct PlacementPorts {
    /// The store at its root.
    pub root: Arc<dyn Store>,
    /// What the keys of this instance begin with, such as `/cke/`.
    pub prefix: String,
    /// Placement's resources.
    pub objects: Arc<dyn Objects>,
    /// Where values of metrics come from.
    pub providers: Arc<dyn MetricsProviders>,
    /// How they are fetched.
    pub metrics: Metrics,
    /// How the scheduler decides.
    pub scheduler: Arc<SchedulerConfig>,
}

/// How an instance works.
#[derive(Clone)]
pub struct InstanceOptions {
    /// Names its actors within the process.
    pub id: String,
    /// Value of its leader key.
    pub host: String,
    /// Time between polls of the registry.
    pub interval: Duration,
    /// Time to live of the session lease.
    pub session_ttl: Duration,
    /// How long a worker must have been retired before it is removed.
    pub retire_wait: Duration,
    /// When failures of a rack are one event that holds its repairs back; `None`: never.
    pub hold: Option<HoldSettings>,
    /// Seed of the jitter of its restarts.
    pub seed: u64,
}

/// Why an instance was not started.
#[derive(Debug, thiserror::Error)]
pub enum InstanceError {
    /// The root could not be started.
    #[error("instance {id} could not be started: {why}")]
    Root {
        /// Its id.
        id: String,
        /// Why.
        why: String,
    },
}

/// What an instance tells about itself.
#[derive(Clone)]
pub struct InstanceView {
    /// The store's state; `None` before it was read.
    pub state: Subscriber<Arc<ClusterState>>,
    /// The epoch while this instance leads.
    pub reign: watch::Receiver<Option<Epoch>>,
    /// Whether its reign failed too often and has not begun again.
    pub melted: watch::Receiver<bool>,
    /// Who decides about placement, as far as this instance needs to know.
    pub placement: watch::Receiver<Ownership>,
    /// Whether the instance is being stopped.
    pub closing: watch::Receiver<bool>,
}

/// A running instance. Dropping it without [`Instance::stop`] leaves its tree running.
pub struct Instance {
    tree: Tree,
    view: InstanceView,
    closing: watch::Sender<bool>,
    director: madako_protocol::feed::Task,
}

impl Instance {
    /// Starts the tree. The children that `http` makes are started before the leader.
    ///
    /// # Errors
    /// The id is taken in this process.
    pub async fn start(
        options: InstanceOptions,
        ports: Ports,
        http: impl FnOnce(&InstanceView) -> Vec<ChildSpec>,
    ) -> Result<Self, InstanceError> {
        let (wanted, reign) = watch::channel(None);
        let (state_sender, state) = latest::channel();
        let (melted_sender, melted) = watch::channel(false);
        let (ownership, owner) = watch::channel(Ownership::Unknown);
        let (closing, closes) = watch::channel(false);
        let (given_up, gave_up) = mpsc::channel(1);
        let wanted = Arc::new(Wanted(wanted));

        let leader = LeaderArguments {
            store: Arc::clone(&ports.store),
            campaign: CampaignOptions { host: options.host.clone(), ttl: options.session_ttl },
            settings: Settings {
                interval: options.interval,
                session_ttl: options.session_ttl,
                retire_wait: options.retire_wait,
                repair: Some(RepairSettings { hold: options.hold.clone() }),
                placement: ports
                    .placement
                    .as_ref()
                    .map(|placement| crate::placement::kept(&placement.metrics, &placement.scheduler)),
            },
            clock: Arc::clone(&ports.clock),
            events: Arc::clone(&ports.events),
            state: state_sender,
            reign: Arc::clone(&wanted) as Arc<dyn ReignControl>,
            placement: ports.placement.as_ref().map(|placement| PlacementGate {
                root: Arc::clone(&placement.root),
                objects: Arc::clone(&placement.objects),
                prefix: placement.prefix.clone(),
                ownership,
            }),
        };
        let sink = sink(Arc::clone(&ports.events), Arc::clone(&ports.clock), Arc::clone(&wanted));
        let clock = Arc::clone(&ports.clock);
        let mut root = SupervisorSpec::new(options.id.as_str(), "root", options.seed, Arc::clone(&sink));
        let view = InstanceView {
            state: state.clone(),
            reign: reign.clone(),
            melted,
            placement: owner,
            closing: closes,
        };
        for http in http(&view) {
            root = root.child(http);
        }
        root = root.child(ChildSpec::actor(&options.id, LEADER, move || {
            (Measured::new(Leader, LEADER, &clock), leader.clone())
        }));
        let tree = Tree::start(root)
            .await
            .map_err(|error| InstanceError::Root { id: options.id.clone(), why: error.to_string() })?;
        let director = Director {
            root: tree.root().clone(),
            options,
            ports,
            state,
            wanted: reign,
            melted: melted_sender,
            given_up,
            sink,
            owner: view.placement.clone(),
        };
        let director = madako_protocol::feed::Task::start(director.run(gave_up));
        Ok(Self { tree, view, closing, director })
    }

    /// What it tells about itself.
    #[must_use]
    pub fn view(&self) -> &InstanceView {
        &self.view
    }

    /// The tree's root, to look at its children.
    #[must_use]
    pub fn root(&self) -> &SupervisorRef {
        self.tree.root()
    }

    /// Waits until the tree ended by itself: its root melted down. Says why.
    pub async fn ended(&self) -> Option<String> {
        self.tree.ended().await.map(|meltdown| meltdown.to_string())
    }

    /// Stops the tree in reverse order, and gives leadership back. Its servers take nothing new from the beginning, so that
    /// the answers under way and the way out of leadership have the same time.
    pub async fn stop(self) -> StopOutcome {
        drop(self.director);
        self.closing.send_replace(true);
        self.tree.stop(INSTANCE_STOP_DEADLINE).await
    }

    /// Ends the tree at once, as a crash would: nothing is given back.
    pub async fn kill(self) -> StopOutcome {
        drop(self.director);
        self.tree.kill().await
    }

    /// What its actors do.
    ///
    /// # Errors
    /// The tree has ended.
    pub async fn status(&self) -> Result<TreeStatus, crate::tree::Ended> {
        self.tree.root().status().await
    }
}

/// The epoch whose reign should exist. Latest wins, so that the leader never waits.
struct Wanted(watch::Sender<Option<Epoch>>);

impl ReignControl for Wanted {
    fn begin(&self, epoch: &Epoch) {
        self.0.send_replace(Some(epoch.clone()));
    }

    fn end(&self, epoch: &Epoch) {
        self.0.send_if_modified(|wanted| {
            let ends = wanted.as_ref() == Some(epoch);
            if ends {
                *wanted = None;
            }
            ends
        });
    }
}

/// Turns the tree's events into the instance's, and ends the reign with a leader that failed.
fn sink(events: Arc<dyn EventSink>, clock: Arc<dyn Clock>, wanted: Arc<Wanted>) -> crate::tree::EventSink {
    Arc::new(move |event| match event {
        TreeEvent::ChildFailed { child, reason, restart_in, .. } => {
            measured::failed(child, &*clock);
            if &**child == LEADER {
                wanted.0.send_replace(None);
            }
            let why = match reason {
                ChildExit::Meltdown(meltdown) => meltdown.to_string(),
                other => other.to_string(),
            };
            events.emit(Event::ActorFailed { actor: child.to_string(), why, restart_in: *restart_in });
        }
        TreeEvent::ChildRestarted { child, restarts, .. } => {
            events.emit(Event::ActorRestarted { actor: child.to_string(), restarts: *restarts });
        }
        TreeEvent::Meltdown(meltdown) => tracing::error!(%meltdown, "a supervisor melted down"),
        TreeEvent::ChildStarted { .. }
        | TreeEvent::ChildEnded { .. }
        | TreeEvent::ChildStopped { .. }
        | TreeEvent::ChildGivenUp { .. }
        | TreeEvent::Stopped { .. } => {}
    })
}

/// Makes the reign that exists be the one that is wanted.
struct Director {
    root: SupervisorRef,
    options: InstanceOptions,
    ports: Ports,
    state: Subscriber<Arc<ClusterState>>,
    wanted: watch::Receiver<Option<Epoch>>,
    melted: watch::Sender<bool>,
    given_up: mpsc::Sender<()>,
    sink: crate::tree::EventSink,
    owner: watch::Receiver<Ownership>,
}

impl Director {
    async fn run(mut self, mut gave_up: mpsc::Receiver<()>) {
        let mut running: Option<Epoch> = None;
        loop {
            let wanted = self.wanted.borrow_and_update().clone();
            if running != wanted {
                if running.take().is_some() {
                    // Losing leadership stops the reign at once: handlers are cancelled in mid-await.
                    if let Err(error) = self.root.stop_child(REIGN, Mode::Now).await {
                        tracing::debug!(%error, "the reign had ended already");
                    }
                }
                // What was wanted may have changed while the old reign ended.
                if wanted == *self.wanted.borrow() {
                    if let Some(epoch) = &wanted {
                        self.melted.send_replace(false);
                        if let Err(error) = self.root.add_child(self.reign(epoch)).await {
                            tracing::error!(%error, "the reign could not be started");
                        }
                    }
                    running = wanted;
                }
                continue;
            }
            tokio::select! {
                biased;
                changed = self.wanted.changed() => {
                    if changed.is_err() {
                        return;
                    }
                }
                given_up = gave_up.recv() => {
                    if given_up.is_none() {
                        return;
                    }
                    self.give_up();
                }
            }
        }
    }

    /// The reign failed too often: unhealthy until the next one begins, and others may lead.
    fn give_up(&self) {
        self.melted.send_replace(true);
        self.ports.events.emit(Event::Meltdown { pause: PAUSE_AFTER_MELTDOWN });
        if let Some(leader) = registry::where_is(actor_name(&self.options.id, LEADER)) {
            let yielded = ActorRef::<Letter<LeaderMessage>>::from(leader)
                .cast(LeaderMessage::Yield { pause: PAUSE_AFTER_MELTDOWN }.into());
            if let Err(error) = yielded {
                tracing::error!(%error, "the leader could not be told to give up leadership");
            }
        }
    }

    fn placement(
        &self,
        placement: &PlacementPorts,
        epoch: &Epoch,
        seed: u64,
    ) -> (FetcherArguments, SchedulerArguments) {
        let (observed, metrics) = latest::channel();
        let fetcher = FetcherArguments {
            interval: placement.metrics.interval,
            max_age: placement.metrics.max_age,
            objects: Arc::clone(&placement.objects),
            providers: Arc::clone(&placement.providers),
            clock: Arc::clone(&self.ports.clock),
            observed,
            ownership: self.owner.clone(),
        };
        let scheduler = SchedulerArguments {
            epoch: epoch.number,
            leader: actor_name(&self.options.id, LEADER),
            objects: Arc::clone(&placement.objects),
            store: Arc::clone(&self.ports.store),
            metrics,
            clock: Arc::clone(&self.ports.clock),
            events: Arc::clone(&self.ports.events),
            seed,
            config: Arc::clone(&placement.scheduler),
            ownership: self.owner.clone(),
        };
        (fetcher, scheduler)
    }

    /// An actor of the reign, measured.
    fn child<A: Actor>(&self, name: &'static str, actor: fn() -> A, given: A::Arguments) -> ChildSpec
    where
        A::Arguments: Clone + Sync,
    {
        let clock = Arc::clone(&self.ports.clock);
        ChildSpec::actor(&self.options.id, name, move || {
            (Measured::new(actor(), name, &clock), given.clone())
        })
    }

    fn reign(&self, epoch: &Epoch) -> ChildSpec {
        let (observations, observed) = latest::channel();
        let (reports, reported) = latest::channel();
        let (begun, _) = watch::channel(false);
        let leader = actor_name(&self.options.id, LEADER);
        let poller = PollerArguments {
            epoch: epoch.number,
            leader: leader.clone(),
            interval: self.options.interval,
            registry: Arc::clone(&self.ports.registry),
            clock: Arc::clone(&self.ports.clock),
            events: Arc::clone(&self.ports.events),
            state: self.state.clone(),
            observations,
            reports,
        };
        // Each epoch draws its own jitter.
        let seed = self.options.seed ^ epoch.number.unsigned_abs().rotate_left(32);
        let repair = RepairArguments {
            epoch: epoch.number,
            leader: leader.clone(),
            interval: self.options.interval,
            seed,
            clock: Arc::clone(&self.ports.clock),
            events: Arc::clone(&self.ports.events),
            state: self.state.clone(),
            reports: reported,
            observations: observed.clone(),
            hold: self.options.hold.clone(),
            host: self.ports.host.clone(),
            kubernetes: self.ports.kubernetes.clone(),
        };
        let planner = PlannerArguments {
            epoch: epoch.number,
            leader,
            interval: self.options.interval,
            retire_wait: self.options.retire_wait,
            clock: Arc::clone(&self.ports.clock),
            events: Arc::clone(&self.ports.events),
            state: self.state.clone(),
            observations: observed,
            kubernetes: self.ports.kubernetes.clone(),
            begun,
        };
        let id = &self.options.id;
        let given_up = self.given_up.clone();
        let mut spec = SupervisorSpec::new(id.as_str(), REIGN, seed, Arc::clone(&self.sink))
            .child(self.child(POLLER, || Poller, poller))
            .child(self.child(PLANNER, || Planner, planner))
            .child(self.child(REPAIR, || Repair, repair));
        if let Some(placement) = &self.ports.placement {
            let (fetcher, scheduler) = self.placement(placement, epoch, seed);
            spec = spec.child(self.child(FETCHER, || Fetcher, fetcher)).child(self.child(
                SCHEDULER,
                || Scheduler,
                scheduler,
            ));
        }
        ChildSpec::supervisor(spec).own_budget(
            REIGN_BUDGET,
            Exceeded::Report(Arc::new(move |exceeded| {
                tracing::error!(%exceeded, "the reign is given up");
                // Full: it is told already.
                let _ = given_up.try_send(());
            })),
        )
    }
}
