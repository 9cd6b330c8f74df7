//! One instance of the service: its tree, connected to the given ports.
//!
//! ```text
//! root
//! ├─ http, placement-api     as it is given them
//! ├─ leader
//! └─ reign                   while this instance leads
//!    ├─ sabakan-poller
//!    ├─ cluster-planner
//!    ├─ repair-queue
//!    ├─ reboot-queue
//!    ├─ nodes                where operations on nodes are on: a roster, and an actor for each node
//!    ├─ operation-runner
//!    ├─ etcd-backup          where a schedule of backups is configured
//!    ├─ metrics-fetcher      where placement is on and this instance decides about it
//!    └─ app-scheduler
//! ```
//!
//! Guarantees: the reign exists only between [`EpochActorsControl::begin`] and `end` of its epoch, and ends when the leader
//! fails. A reign that fails too often makes the instance resign leadership for a while. Several instances can run in
//! one process: names contain the instance's id. Assumes a tokio runtime with time. Does no I/O of its own: ports do.

use std::sync::Arc;
use std::time::Duration;

use madako_app_scheduler::{Scheduler, SchedulerArguments, SchedulerConfig};
use madako_cluster_planner::{Planner, PlannerArguments};
use madako_domain::placement::ownership::Ownership;
use madako_domain::reboot::RebootSettings;
use madako_domain::repair::hold::HoldSettings;
use madako_domain::settings::{RepairSettings, Settings};
use madako_domain::state::ClusterState;
use madako_domain::store::Epoch;
use madako_etcd_backup::{Backups, BackupsArguments};
use madako_leader::{EpochActorsControl, Leader, LeaderArguments, PlacementAccess};
use madako_metrics_fetcher::{Fetcher, FetcherArguments};
use madako_node::PinnedKeyWriter;
use madako_operation_runner::page::{Mode as OperationsMode, OpsPage};
use madako_protocol::actors::LeaderMessage;
use madako_protocol::event::{Event, EventSink};
use madako_protocol::host::Host;
use madako_protocol::kubernetes::Kubernetes;
use madako_protocol::latest::{self, Publisher, Subscriber};
use madako_protocol::mailbox::Envelope;
use madako_protocol::operations::OperationsState;
use madako_protocol::placement::objects::Objects;
use madako_protocol::placement::providers::MetricsProviders;
use madako_protocol::ports::{Clock, Registry};
use madako_protocol::store::{CampaignOptions, Store};
use madako_reboot_queue::page::RebootsPage;
use madako_reboot_queue::{RebootArguments, RebootQueueActor};
use madako_repair_queue::{RepairArguments, RepairQueueActor};
use madako_sabakan_poller::{Poller, PollerArguments};
use ractor::{Actor, ActorRef, registry};
use tokio::sync::{mpsc, watch};

use crate::config::Metrics;
use crate::limits::{INSTANCE_STOP_DEADLINE, PAUSE_AFTER_MELTDOWN};
use crate::measured::{self, Measured};
use crate::nodes::{self, NodeActorsContext, OperationsPorts};
use crate::tree::{
    Budget, BudgetAction, ChildExit, ChildSpec, Mode, StopOutcome, SupervisorRef, SupervisorSpec, Tree,
    TreeEvent, TreeStatus, actor_name,
};

// Ids of children in the tree.
pub const LEADER: &str = "leader";
pub const REIGN: &str = "reign";
pub const POLLER: &str = "sabakan-poller";
pub const PLANNER: &str = "cluster-planner";
pub const REPAIR: &str = "repair-queue";
pub const REBOOT: &str = "reboot-queue";
pub const BACKUP: &str = "etcd-backup";
pub const FETCHER: &str = "metrics-fetcher";
pub const SCHEDULER: &str = "app-scheduler";

/// Restarts of a melted-down reign before the instance resigns leadership. Three meltdowns take at least a minute
/// with the tree's own back-off.
const REIGN_BUDGET: Budget = Budget { restarts: 2, window: Duration::from_secs(600) };

#[derive(Clone)]
pub struct Ports {
    pub store: Arc<dyn Store>,
    pub registry: Arc<dyn Registry>,
    pub clock: Arc<dyn Clock>,
    pub events: Arc<dyn EventSink>,
    /// `None`: this instance does not decide about placement.
    pub placement: Option<PlacementPorts>,
    /// Operations on nodes; `None`: off.
    pub operations: Option<OperationsPorts>,
    /// API server of the cluster; `None`: not configured.
    pub kubernetes: Option<Arc<dyn Kubernetes>>,
    /// The state of etcd and of the nodes for reboots, where no operation runner reads it, as on simulated machines.
    pub findings: Option<Subscriber<Arc<OperationsState>>>,
    /// `None`: this instance runs no commands, and reports it where one is due.
    pub host: Option<Arc<dyn Host>>,
}

#[derive(Clone)]
pub struct PlacementPorts {
    /// The store without this instance's prefix.
    pub root: Arc<dyn Store>,
    /// Key prefix of this instance, such as `/cke/`.
    pub prefix: String,
    pub objects: Arc<dyn Objects>,
    pub providers: Arc<dyn MetricsProviders>,
    pub metrics: Metrics,
    pub scheduler: Arc<SchedulerConfig>,
}

#[derive(Clone)]
pub struct InstanceOptions {
    /// Prefix of its actors' names in the process.
    pub id: String,
    /// Value of its leader key.
    pub host: String,
    /// URL of its pages for other hosts; empty without a page.
    pub url: String,
    pub interval: Duration,
    /// Time to live of the session lease.
    pub session_ttl: Duration,
    /// Minimum time in the retired state before a worker is removed.
    pub retire_wait: Duration,
    /// Settings for holding a rack in which several machines fail together; `None`: no rack is held.
    pub hold: Option<HoldSettings>,
    pub reboots: RebootSettings,
    /// Seed of its restarts' jitter.
    pub seed: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum InstanceError {
    /// The root supervisor could not be started.
    #[error("cannot start instance {id}: {why}")]
    Root { id: String, why: String },
}

#[derive(Clone)]
pub struct InstanceView {
    /// `None`: the store was not read yet.
    pub state: Subscriber<Arc<ClusterState>>,
    /// The epoch while this instance leads.
    pub reign: watch::Receiver<Option<Epoch>>,
    /// The reign failed too often and has not begun again.
    pub melted: watch::Receiver<bool>,
    pub placement: watch::Receiver<Ownership>,
    pub closing: watch::Receiver<bool>,
    pub operations: Subscriber<Arc<OpsPage>>,
    /// The page of the newest epoch in which this instance led.
    pub reboots: Subscriber<Arc<RebootsPage>>,
}

/// A running instance. Dropping it without [`Instance::stop`] leaves its tree running.
pub struct Instance {
    tree: Tree,
    view: InstanceView,
    closing: watch::Sender<bool>,
    director: madako_protocol::feed::Task,
}

impl Instance {
    /// Starts the tree. The children from `http` start before the leader.
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
        let (page, operations) = latest::channel();
        let (reboots_page, reboots) = latest::channel();
        let wanted = Arc::new(WantedEpoch(wanted));

        let observed = |it: &&OperationsPorts| it.mode == OperationsMode::Observe;
        let observes = ports.operations.as_ref().filter(observed).is_some();
        let leader = LeaderArguments {
            store: Arc::clone(&ports.store),
            campaign: (!observes)
                .then(|| CampaignOptions { host: options.host.clone(), ttl: options.session_ttl }),
            settings: Settings {
                interval: options.interval,
                session_ttl: options.session_ttl,
                retire_wait: options.retire_wait,
                repair: Some(RepairSettings { hold: options.hold.clone() }),
                placement: ports.placement.as_ref().map(|placement| {
                    crate::placement::placement_settings(&placement.metrics, &placement.scheduler)
                }),
                modes: Some(nodes::operation_modes(ports.operations.as_ref())),
            },
            clock: Arc::clone(&ports.clock),
            events: Arc::clone(&ports.events),
            url: options.url.clone(),
            state: state_sender,
            reign: Arc::clone(&wanted) as Arc<dyn EpochActorsControl>,
            placement: ports.placement.as_ref().map(|placement| PlacementAccess {
                root: Arc::clone(&placement.root),
                objects: Arc::clone(&placement.objects),
                prefix: placement.prefix.clone(),
                ownership,
            }),
        };
        let sink = event_sink(Arc::clone(&ports.events), Arc::clone(&ports.clock), Arc::clone(&wanted));
        let clock = Arc::clone(&ports.clock);
        let mut root = SupervisorSpec::new(options.id.as_str(), "root", options.seed, Arc::clone(&sink));
        let view = InstanceView {
            state: state.clone(),
            reign: reign.clone(),
            melted,
            placement: owner,
            closing: closes,
            operations,
            reboots,
        };
        for http in http(&view) {
            root = root.with_child(http);
        }
        root = root.with_child(ChildSpec::for_actor(&options.id, LEADER, move || {
            (Measured::new(Leader, LEADER, &clock), leader.clone())
        }));
        if let Some(operations) = ports.operations.as_ref().filter(observed) {
            let (findings, _) = latest::channel();
            let around = NodeActorsContext {
                instance: options.id.clone(),
                key_writer: None,
                interval: options.interval,
                seed: options.seed,
                clock: Arc::clone(&ports.clock),
                events: Arc::clone(&ports.events),
                state: state.clone(),
                sink: Arc::clone(&sink),
                page: page.clone(),
                operations: findings,
            };
            for child in nodes::node_children(operations, &around) {
                root = root.with_child(child);
            }
        }
        let tree = Tree::start(root)
            .await
            .map_err(|error| InstanceError::Root { id: options.id.clone(), why: error.to_string() })?;
        let director = EpochActorsDirector {
            root: tree.root().clone(),
            options,
            ports,
            state,
            wanted: reign,
            melted: melted_sender,
            given_up,
            sink,
            owner: view.placement.clone(),
            page,
            reboots_page,
        };
        let director = madako_protocol::feed::Task::start(director.run(gave_up));
        Ok(Self { tree, view, closing, director })
    }

    #[must_use]
    pub fn view(&self) -> &InstanceView {
        &self.view
    }

    #[must_use]
    pub fn root(&self) -> &SupervisorRef {
        self.tree.root()
    }

    /// Waits until the tree ends by itself, through a meltdown of its root. Returns the reason.
    pub async fn wait_for_end(&self) -> Option<String> {
        self.tree.wait_for_end().await.map(|meltdown| meltdown.to_string())
    }

    /// Stops the tree in reverse order, and releases leadership. Its servers stop accepting connections at once, so
    /// that open requests and the release of leadership share the same time.
    pub async fn stop(self) -> StopOutcome {
        drop(self.director);
        self.closing.send_replace(true);
        self.tree.stop(INSTANCE_STOP_DEADLINE).await
    }

    /// Ends the tree at once, like a crash: the lease is not released.
    pub async fn kill(self) -> StopOutcome {
        drop(self.director);
        self.tree.kill().await
    }

    /// Status of its actors.
    ///
    /// # Errors
    /// The tree has ended.
    pub async fn read_status(&self) -> Result<TreeStatus, crate::tree::SupervisorEnded> {
        self.tree.root().read_status().await
    }
}

/// Epoch whose reign should run. The latest value wins, so that the leader never waits.
struct WantedEpoch(watch::Sender<Option<Epoch>>);

impl EpochActorsControl for WantedEpoch {
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

/// Maps events of the tree to events of the instance, and ends the reign when the leader fails.
fn event_sink(
    events: Arc<dyn EventSink>,
    clock: Arc<dyn Clock>,
    wanted: Arc<WantedEpoch>,
) -> crate::tree::EventSink {
    Arc::new(move |event| match event {
        TreeEvent::ChildFailed { child, reason, restart_in, .. } => {
            measured::record_failure(child, &*clock);
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

/// Starts and ends the reign to match the wanted epoch.
struct EpochActorsDirector {
    root: SupervisorRef,
    options: InstanceOptions,
    ports: Ports,
    state: Subscriber<Arc<ClusterState>>,
    wanted: watch::Receiver<Option<Epoch>>,
    melted: watch::Sender<bool>,
    given_up: mpsc::Sender<()>,
    sink: crate::tree::EventSink,
    owner: watch::Receiver<Ownership>,
    page: Publisher<Arc<OpsPage>>,
    reboots_page: Publisher<Arc<RebootsPage>>,
}

impl EpochActorsDirector {
    async fn run(mut self, mut gave_up: mpsc::Receiver<()>) {
        let mut running: Option<Epoch> = None;
        loop {
            let wanted = self.wanted.borrow_and_update().clone();
            if running != wanted {
                if running.take().is_some() {
                    // Loss of leadership stops the reign at once: handlers are cancelled in mid-await.
                    if let Err(error) = self.root.stop_child(REIGN, Mode::Now).await {
                        tracing::debug!(%error, "the leader's actors had ended already");
                    }
                }
                // The wanted epoch may have changed while the old reign ended.
                if wanted == *self.wanted.borrow() {
                    if let Some(epoch) = &wanted {
                        self.melted.send_replace(false);
                        if let Err(error) = self.root.add_child(self.actors_of_term(epoch)).await {
                            tracing::error!(%error, "cannot start the leader's actors");
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

    /// The reign failed too often: reports unhealthy until the next one begins, and lets other instances lead.
    fn give_up(&self) {
        self.melted.send_replace(true);
        self.ports.events.emit(Event::Meltdown { pause: PAUSE_AFTER_MELTDOWN });
        if let Some(leader) = registry::where_is(actor_name(&self.options.id, LEADER)) {
            let yielded = ActorRef::<Envelope<LeaderMessage>>::from(leader)
                .cast(LeaderMessage::Yield { pause: PAUSE_AFTER_MELTDOWN }.into());
            if let Err(error) = yielded {
                tracing::error!(%error, "the leader actor did not receive the request to give up leadership");
            }
        }
    }

    fn placement_arguments(
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

    fn child_spec<A: Actor>(&self, name: &'static str, actor: fn() -> A, given: A::Arguments) -> ChildSpec
    where
        A::Arguments: Clone + Sync,
    {
        let clock = Arc::clone(&self.ports.clock);
        ChildSpec::for_actor(&self.options.id, name, move || {
            (Measured::new(actor(), name, &clock), given.clone())
        })
    }

    fn actors_of_term(&self, epoch: &Epoch) -> ChildSpec {
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
        // Each epoch has its own jitter.
        let seed = self.options.seed ^ epoch.number.unsigned_abs().rotate_left(32);
        let (findings, found) = latest::channel();
        let operations = self.ports.operations.as_ref().filter(|it| it.mode == OperationsMode::Act);
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
            operations: operations.map(|_| found.clone()),
            host: self.ports.host.clone(),
            kubernetes: self.ports.kubernetes.clone(),
        };
        let reboot = RebootArguments {
            epoch: epoch.number,
            leader: leader.clone(),
            interval: self.options.interval,
            seed: seed.rotate_left(1),
            settings: self.options.reboots,
            clock: Arc::clone(&self.ports.clock),
            events: Arc::clone(&self.ports.events),
            state: self.state.clone(),
            operations: operations.map(|_| found.clone()).or_else(|| self.ports.findings.clone()),
            runner: operations.map(|_| actor_name(&self.options.id, nodes::RUNNER)),
            host: self.ports.host.clone(),
            kubernetes: self.ports.kubernetes.clone(),
            page: self.reboots_page.clone(),
        };
        let backups =
            operations.and_then(|operations| operations.backups.clone()).map(|backups| BackupsArguments {
                epoch: epoch.number,
                leader: leader.clone(),
                host: self.options.host.clone(),
                schedule: backups.schedule,
                backups: backups.backups,
                clock: Arc::clone(&self.ports.clock),
                events: Arc::clone(&self.ports.events),
                state: self.state.clone(),
            });
        let operations = operations.map(|operations| {
            let around = NodeActorsContext {
                instance: self.options.id.clone(),
                key_writer: Some(PinnedKeyWriter { leader: leader.clone(), epoch: epoch.number }),
                interval: self.options.interval,
                seed,
                clock: Arc::clone(&self.ports.clock),
                events: Arc::clone(&self.ports.events),
                state: self.state.clone(),
                sink: Arc::clone(&self.sink),
                page: self.page.clone(),
                operations: findings,
            };
            nodes::node_children(operations, &around)
        });
        let planner = PlannerArguments {
            operations: operations.as_ref().map(|_| found),
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
            .with_child(self.child_spec(POLLER, || Poller, poller))
            .with_child(self.child_spec(PLANNER, || Planner, planner))
            .with_child(self.child_spec(REPAIR, || RepairQueueActor, repair))
            .with_child(self.child_spec(REBOOT, || RebootQueueActor, reboot));
        for child in operations.into_iter().flatten() {
            spec = spec.with_child(child);
        }
        if let Some(backups) = backups {
            spec = spec.with_child(self.child_spec(BACKUP, || Backups, backups));
        }
        if let Some(placement) = &self.ports.placement {
            let (fetcher, scheduler) = self.placement_arguments(placement, epoch, seed);
            spec = spec
                .with_child(self.child_spec(FETCHER, || Fetcher, fetcher))
                .with_child(self.child_spec(SCHEDULER, || Scheduler, scheduler));
        }
        ChildSpec::for_supervisor(spec).own_budget(
            REIGN_BUDGET,
            BudgetAction::Report(Arc::new(move |exceeded| {
                tracing::error!(%exceeded, "the leader's actors exceeded their restart budget");
                // Full: a notification is pending already.
                let _ = given_up.try_send(());
            })),
        )
    }
}
