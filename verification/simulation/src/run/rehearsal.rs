//! A rehearsal: the real actors of the service work with a copy of a running system while simulated faults happen.
//!
//! For: `madako rehearse`. The caller has read the running system before; nothing here reaches it. The store is in
//! memory and begins with the copied keys at their revisions. Simulated machines begin in the copied states, and
//! commands and drains act on them. Metrics begin at the copied values and take random steps.
//!
//! Guarantees: the same copy, scenario, seed and length give the same report.
//!
//! Assumes: inputs with which the service can work. If the store's template or constraints cannot be read, nothing
//! happens in a rehearsal.
//!
//! Does not: simulate other clients, deploy applications, or break anything without a fault of the scenario.

mod calm;
mod commands;
mod observations;
mod observer;
mod obstacles;
mod reasons;
mod resources;
mod targets;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use madako_datacenter_sim::host::{CommandBehaviour, SimulatedHost};
use madako_datacenter_sim::kubernetes::{PodOwner, SimulatedKubernetes, Workload};
use madako_datacenter_sim::{Datacenter, GRAPHQL_PATH, Rates, SimulatedRegistry};
use madako_domain::cluster::Cluster;
use madako_domain::invariants::Id;
use madako_domain::keys;
use madako_domain::machine::Machine;
use madako_domain::placement::ownership;
use madako_domain::state::ClusterState;
use madako_domain::store::Entry;
use madako_embedded_etcd::{InitialContents, InitialValue};
use madako_faults::{Counts, Scenario, Schedule, Span};
use madako_judges::Verdict;
use madako_protocol::feed::Task;
use madako_protocol::host::Host;
use madako_protocol::kubernetes::Kubernetes;
use madako_protocol::ports::Clock;
use time::OffsetDateTime;
use tokio::time::Instant;

use super::inject::Injector;
use super::report::{Outcome, QuietPeriod, SkippedFault, verdicts_by_invariant};
use super::settle::check_full_length;
use super::{
    IdlePhase, Options, SHORTEST, SimulateError, find_ended_judge, message_limit_per_second, note_schedule,
    paused_runtime, plan_schedule, play_schedule, seeded_generator, terms_of_settings,
};
use crate::checker::Checker;
use crate::clock::SimulatedClock;
use crate::disk::ForgetfulDisk;
use crate::drains::Drains;
use crate::facts::Facts;
use crate::history::History;
use crate::pace::MessagePace;
use crate::placement::PlacementChecker;
use crate::planted::MessageCounter;
use crate::store_process::StoreProcess;
use crate::walk::{CopiedProvider, RandomWalk};
use crate::world::{Effects, NAMES, PREFIX, ServiceSettings, World};

use self::calm::Waiting;
use self::commands::Commands;
pub use self::observations::{
    PlacementObservation, PlanObservation, RemainingObstacle, RepairObservation, StepObservation,
    WaitObservation,
};
use self::observer::Observer;
pub use self::resources::copied_providers;
pub use self::targets::{check_targets, world_of_copy};

/// Prefixes, below the service's prefix, of the keys on which the service decides and a rehearsal depends.
/// Certificates, keys and secrets of other programs are not among them.
pub const OWN_KEYS: [&str; 8] =
    ["auto-repair/", "cluster", "constraints", "madako/", "reboots/", "records", "repairs/", "sabakan/"];

/// Mean time until a machine has started, after power returns or after a new setup.
pub const START_TAKES: Duration = Duration::from_secs(5 * 60);
/// Mean time of a machine's update.
pub const UPDATE_TAKES: Duration = Duration::from_secs(20 * 60);

/// Pods that a drain must end: pods per node, and maximum in total.
const PODS: (usize, usize) = (2, 200);
/// Maximum time until a pod ends.
pub const POD_ENDS: Duration = Duration::from_secs(30);

/// Data read from a running system.
#[derive(Clone)]
pub struct CopiedSystem {
    pub at: OffsetDateTime,
    pub revision: i64,
    /// Keys below the prefix, relative to it.
    pub own: BTreeMap<String, Entry>,
    /// Placement's keys at the root.
    pub root: BTreeMap<String, Entry>,
    pub machines: Vec<Machine>,
    /// Metrics providers with their values at the time of the copy.
    pub providers: Vec<CopiedProvider>,
}

/// Settings of the running system's instances.
#[derive(Clone)]
pub struct Service {
    pub working: ServiceSettings,
    pub places: bool,
    /// True if the instances have an API server of the cluster.
    pub kubernetes: bool,
}

/// Assumptions about parts that cannot be copied.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Assumptions {
    /// Mean time of a repair command.
    pub command_takes: Duration,
    /// Share of the commands of repair steps that heal their machine.
    pub heals_percent: u8,
    /// Maximum step of a metric, as a share of its range.
    pub walk_percent: f64,
}

#[derive(Debug, Clone)]
pub struct Rehearsal {
    pub schedule: Schedule,
    /// Faults that could not be injected.
    pub skipped: Vec<SkippedFault>,
    /// Every committed plan, in order.
    pub plans: Vec<PlanObservation>,
    /// Unfinished repairs of the copy and all later ones, by number.
    pub repairs: Vec<RepairObservation>,
    /// Decisions about placement, in order.
    pub placements: Vec<PlacementObservation>,
    /// Waits, in order, and the number of further waits that were not kept.
    pub waits: (Vec<WaitObservation>, usize),
    pub held: Vec<RemainingObstacle>,
    pub invariants: BTreeMap<Id, Verdict>,
    pub calm: QuietPeriod,
    /// Time of the last write, except retries of applications without a suitable cluster; `None` without a write.
    pub last_change: Option<Span>,
    pub counts: Counts,
    /// Number of assumed pods, if the instances drain nodes.
    pub pods: Option<usize>,
    /// Hash of the whole history, and its number of lines.
    pub history: (u64, usize),
    pub simulated: Duration,
}

impl Rehearsal {
    #[must_use]
    pub fn overall_outcome(&self) -> Outcome {
        let violated = self.invariants.values().any(|verdict| !verdict.violations.is_empty());
        if violated || !self.calm.found.is_empty() {
            Outcome::Failed
        } else if self.skipped.is_empty() {
            Outcome::Passed
        } else {
            Outcome::Skipped
        }
    }
}

/// Rehearses a scenario on a copy. Of the scenario's world only the number of instances counts. Only the service works
/// with the copy.
///
/// # Errors
/// The scenario cannot be simulated, or the trace cannot be written.
pub fn rehearse_schedule(
    copied: CopiedSystem,
    service: Service,
    assumed: Assumptions,
    scenario: &Scenario,
    (seed, length): (u64, Span),
    options: Options,
) -> Result<Rehearsal, SimulateError> {
    if length < SHORTEST {
        return Err(SimulateError::TooShort { length, least: SHORTEST });
    }
    let schedule = plan_schedule(scenario, seed, length)?;
    let things = copied.machines.len() + copied.own.len() + copied.root.len();
    let (runtime, pace) = paused_runtime(message_limit_per_second(things as u64));
    let handling = MessageCounter::with_pace(&pace);
    metrics::with_local_recorder(&handling, || {
        let handling = handling.clone();
        let stage = RehearsalParameters { service, assumed, scenario, seed, length, handling, pace };
        runtime.block_on(stage.play_schedule(copied, schedule, options))
    })
}

struct RehearsalParameters<'a> {
    service: Service,
    assumed: Assumptions,
    scenario: &'a Scenario,
    seed: u64,
    length: Span,
    handling: MessageCounter,
    pace: MessagePace,
}

impl RehearsalParameters<'_> {
    async fn play_schedule(
        self,
        copied: CopiedSystem,
        schedule: Schedule,
        options: Options,
    ) -> Result<Rehearsal, SimulateError> {
        let began = Instant::now();
        let clock: Arc<dyn Clock> = Arc::new(SimulatedClock::new(copied.at));
        let datacenter =
            Datacenter::from_machines(self.seed, copied.at, rehearsal_rates(), copied.machines.clone())?;
        let registry = SimulatedRegistry::new(datacenter, Arc::clone(&clock));
        let history = History::with_trace(options.trace).with_pace(&self.pace);
        note_schedule(&history, &schedule);
        let (own, root) = without_leases(copied.own, copied.root);
        let disk = ForgetfulDisk::new(seeded_generator(self.seed, 7));
        let contents = initial_contents(copied.revision, &own, &root);
        let store = StoreProcess::beginning_with(Some(contents), disk.clone(), self.seed);
        store.start().map_err(SimulateError::Contents)?;

        let state = ClusterState::decode(copied.revision, &own, None);
        let cluster = state.cluster.as_ref().map(|cluster| Arc::clone(&cluster.value));
        let drains =
            self.service.kubernetes.then(|| simulated_kubernetes(self.seed, &clock, cluster.as_deref()));
        let pods =
            drains.as_ref().map(|drains| drains.kubernetes.with_cluster(|cluster| cluster.pods().len()));
        let observer = Observer::new((history.clone(), copied.at), &own, copied.revision, drains.clone());
        let facts = Facts::without_promises(terms_of_settings(&self.service.working), history.clone());
        let checker = Checker::new(history.clone())
            .with_poll_interval(self.service.working.interval)
            .with_facts(facts.clone());
        let judges = [
            Task::start(facts.clone().watch_from(copied.revision, store.clone())),
            Task::start(checker.clone().watch_from(copied.revision, own, store.clone())),
            Task::start(observer.clone().watch(copied.revision, store.clone())),
        ];
        let mut world = World::new(
            (self.seed, self.service.places),
            store,
            registry.clone(),
            Arc::clone(&clock),
            // The leader's own checks judge placement: the judge of simulations knows only the clusters of its own
            // world.
            (history.clone(), checker.clone(), PlacementChecker::new(history.clone(), copied.at)),
            None,
        );
        let walk = RandomWalk::new(self.seed, copied.providers, self.assumed.walk_percent);
        world.handling = self.handling.clone();
        world.facts = facts;
        world.working = self.service.working.clone();
        world.walk = Some(walk.clone());
        world.listener = Some(Arc::new(observer.clone()));
        world.effects = Some(Effects {
            host: Arc::new(self.simulate_commands(registry, &state)) as Arc<dyn Host>,
            kubernetes: drains.map(|drains| Arc::new(drains.kubernetes) as Arc<dyn Kubernetes>),
        });
        let mut injector = Injector::new(world, disk, seeded_generator(self.seed, 8));
        for name in NAMES.into_iter().take(self.scenario.world.instances as usize) {
            injector.start(name).await;
        }
        let progress = options.progress;
        let pace = self.pace.clone();
        let mut idle = IdlePhase { began, ticks: 0, progress, pace, judges: None, wrong_since: None };
        let to_the_end =
            play_schedule(&schedule, self.length, options.only.as_ref(), &mut idle, &mut injector).await;
        if idle.is_hopeless(&injector) {
            injector.stop_all().await;
        }
        injector.finish().await;
        history.note("driver", "the faults are over");
        walk.stop();
        let working = &self.service.working;
        let allowed = self.scenario.expect.calm_within.map(|span| span.duration());
        let drains = self.service.kubernetes;
        let waiting =
            Waiting { working, allowed, drains, state: &state, applications: count_applications(&root) };
        let mut calm = tokio::select! {
            biased;
            () = self.pace.wait_until_overrun() => {
                waiting.report_without_wait(&observer, self.pace.describe_overrun().into_iter().collect())
            },
            calm = waiting.wait_until_calm(&mut injector, &observer) => calm,
        };
        let held = observer.remaining_obstacles(injector.find_leader());
        // Taken before the instances stop, because their last writes do not count.
        let observed = observer.collect_observations();
        let counts = *injector.world.counts.lock().unwrap();
        let skipped = std::mem::take(&mut injector.skipped);
        let injected = injector.injected;
        for (_, running) in std::mem::take(&mut injector.running) {
            running.instance.stop().await;
        }
        let mut violations = checker.finish();
        violations.extend(observer.found_violations());
        calm.found.extend(injector.world.unplanted.lock().unwrap().iter().cloned());
        // A full disk excuses the store for as long as the operator's fault lasts.
        calm.found.extend(checker.exemptions().exceeded_bounds(history.now()));
        calm.found.extend(check_full_length(to_the_end, violations.is_empty() && calm.found.is_empty()));
        calm.found.extend(find_ended_judge(&judges));
        drop(judges);
        history.finish().map_err(SimulateError::Trace)?;
        Ok(Rehearsal {
            schedule,
            skipped,
            plans: observed.plans,
            repairs: observed.repairs.into_values().collect(),
            placements: observed.placements,
            waits: (observed.waits, observed.more_waits),
            held,
            invariants: verdicts_by_invariant(&history.judgement_counts(), violations),
            calm,
            last_change: observed.last_change,
            counts: Counts {
                leader_changes: counts.leader_changes,
                commits: counts.commits,
                refused_writes: self.handling.refused_count(),
                failed_client_calls: 0,
                faults: injected,
            },
            pods,
            history: (history.hash(), history.len()),
            simulated: began.elapsed(),
        })
    }

    fn simulate_commands(&self, registry: SimulatedRegistry, state: &ClusterState) -> Commands {
        let habits = CommandBehaviour {
            heals_percent: self.assumed.heals_percent,
            fails_percent: 0,
            hangs_percent: 0,
            lost_percent: 0,
            confused_percent: 0,
            takes: self.assumed.command_takes,
        };
        let template = state.template.as_ref().map(|template| template.value.cluster());
        let of_cluster = state.cluster.as_ref().map(|cluster| &*cluster.value);
        Commands::for_clusters(SimulatedHost::new(registry, habits), of_cluster.into_iter().chain(template))
    }
}

/// No machine breaks without a fault; setups and updates in progress end.
fn rehearsal_rates() -> Rates {
    Rates { initialize_takes: Some(START_TAKES), update_takes: Some(UPDATE_TAKES), ..Rates::no_events() }
}

/// Removes keys that are bound to a lease, because they belong to processes that are not copied, and sets the
/// registry's address to the copy.
fn without_leases(
    own: BTreeMap<String, Entry>,
    root: BTreeMap<String, Entry>,
) -> (BTreeMap<String, Entry>, BTreeMap<String, Entry>) {
    let mut kept = (own, root);
    kept.0.retain(|key, entry| entry.lease == 0 && !key.starts_with(keys::LEADER) && key != keys::STATUS);
    kept.1.retain(|key, entry| entry.lease == 0 && key != ownership::KEY);
    // The copy of the registry answers here.
    if let Some(url) = kept.0.get_mut(keys::SABAKAN_URL) {
        url.value = format!("http://registry.invalid{GRAPHQL_PATH}").into();
    }
    kept
}

fn initial_contents(
    revision: i64,
    own: &BTreeMap<String, Entry>,
    root: &BTreeMap<String, Entry>,
) -> InitialContents {
    let pair = |entry: &Entry| InitialValue {
        value: entry.value.clone(),
        create_revision: entry.create_revision,
        mod_revision: entry.mod_revision,
    };
    let own = own.iter().map(|(key, entry)| (format!("{PREFIX}{key}").into_bytes(), pair(entry)));
    let root = root.iter().map(|(key, entry)| (key.clone().into_bytes(), pair(entry)));
    InitialContents { revision, pairs: own.chain(root).collect() }
}

/// An API server with the nodes of the cluster, and with pods for drains.
fn simulated_kubernetes(seed: u64, clock: &Arc<dyn Clock>, cluster: Option<&Cluster>) -> Drains {
    let drains = Drains { kubernetes: SimulatedKubernetes::new(seed, Arc::clone(clock)) };
    let nodes = cluster.map_or(0, |cluster| cluster.nodes.len());
    if let Some(cluster) = cluster {
        drains.follow(cluster);
    }
    let replicas = u32::try_from((nodes * PODS.0).min(PODS.1)).unwrap_or(u32::MAX);
    drains.kubernetes.with_cluster(|kubernetes| {
        kubernetes.add_namespace("default", &[]);
        kubernetes.add_workload(Workload {
            namespace: "default".to_owned(),
            name: "assumed".to_owned(),
            owner: PodOwner::ReplicaSet { replicas },
            grace: POD_ENDS,
            ends_within: POD_ENDS / 2,
        });
    });
    drains
}

fn count_applications(root: &BTreeMap<String, Entry>) -> usize {
    let prefix = madako_domain::placement::kind::Kind::Application.prefix();
    root.keys().filter(|key| key.starts_with(prefix)).count()
}

fn racks_of_machines(machines: &[Machine]) -> BTreeSet<u32> {
    machines.iter().filter_map(|machine| u32::try_from(machine.spec.rack).ok()).collect()
}
