//! A rehearsal: what the actors of the service would do with a copy of a running system, while faults happen to it.
//!
//! For: `madako rehearse`. Whoever calls this has read the running system before; nothing here reaches it: the store is one in
//! memory that begins with the copied keys at their revisions, the machines are simulated ones that begin as the copied ones are,
//! commands and drains act on these, and metrics walk away from the copied values.
//!
//! Guarantees: the same copy, scenario, seed and length give the same report.
//!
//! Assumes: inputs that the service could work with; a store whose template or constraints cannot be read rehearses nothing.
//!
//! Does not: let anybody else work with the copy, deploy applications, or break anything that no fault says.

mod calm;
mod commands;
mod observer;
mod reasons;
mod resources;
mod seen;
mod targets;
#[cfg(test)]
mod tests;
mod told;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use madako_datacenter_sim::host::{Habits, SimulatedHost};
use madako_datacenter_sim::kubernetes::{Owner, SimulatedKubernetes, Workload};
use madako_datacenter_sim::{Datacenter, GRAPHQL_PATH, Rates, SimulatedRegistry};
use madako_domain::cluster::Cluster;
use madako_domain::invariants::Id;
use madako_domain::keys;
use madako_domain::machine::Machine;
use madako_domain::placement::ownership;
use madako_domain::state::ClusterState;
use madako_domain::store::Entry;
use madako_embedded_etcd::{Contents, Pair};
use madako_faults::{Counts, Scenario, Schedule, Span};
use madako_judges::Verdict;
use madako_protocol::feed::Task;
use madako_protocol::host::Host;
use madako_protocol::kubernetes::Kubernetes;
use madako_protocol::ports::Clock;
use time::OffsetDateTime;
use tokio::time::Instant;

use super::inject::Injector;
use super::report::{Calm, Outcome, Skipped, verdicts};
use super::settle::cut_short;
use super::{
    Idle, Options, SHORTEST, SimulateError, blind, generator, laid_out, most_a_second, note_schedule, paused,
    play,
};
use crate::checker::Checker;
use crate::clock::SimulatedClock;
use crate::disk::ForgetfulDisk;
use crate::drains::Drains;
use crate::history::History;
use crate::pace::Pace;
use crate::placement::PlacementChecker;
use crate::planted::Handling;
use crate::store_process::StoreProcess;
use crate::walk::{CopiedProvider, Walk};
use crate::world::{Effects, NAMES, PREFIX, Working, World};

use self::calm::Waiting;
use self::commands::Commands;
use self::observer::Observer;
pub use self::resources::providers;
pub use self::seen::{Held, PlacementSeen, PlanSeen, RepairSeen, StepSeen, WaitSeen};
pub use self::targets::{check, world};

/// Keys below the prefix that the service decides by, as far as a rehearsal needs them: prefixes of keys. Certificates, keys
/// and secrets that others keep there are none of them.
pub const OWN_KEYS: [&str; 8] =
    ["auto-repair/", "cluster", "constraints", "madako/", "reboots/", "records", "repairs/", "sabakan/"];

/// Mean times that a machine takes to start when it has power again or was set up anew, and that it takes to be updated.
pub const START_TAKES: Duration = Duration::from_secs(5 * 60);
/// See [`START_TAKES`].
pub const UPDATE_TAKES: Duration = Duration::from_secs(20 * 60);

/// Pods that a drain must end: two a node, and at most so many altogether.
const PODS: (usize, usize) = (2, 200);
/// How long a pod takes to end at most.
pub const POD_ENDS: Duration = Duration::from_secs(30);

/// What was read of a running system.
#[derive(Clone)]
pub struct Copied {
    /// When.
    pub at: OffsetDateTime,
    /// The store's revision.
    pub revision: i64,
    /// Keys below the prefix, relative to it.
    pub own: BTreeMap<String, Entry>,
    /// Placement's keys at the root.
    pub root: BTreeMap<String, Entry>,
    /// Every machine of the registry.
    pub machines: Vec<Machine>,
    /// The providers of metrics, with the values that they gave.
    pub providers: Vec<CopiedProvider>,
}

/// How the instances of the running system work.
#[derive(Clone)]
pub struct Service {
    /// Their settings.
    pub working: Working,
    /// Whether they decide about placement.
    pub places: bool,
    /// Whether they know an API server of the cluster.
    pub kubernetes: bool,
}

/// What is assumed of what cannot be copied.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Assumed {
    /// Mean time that a command of a repair takes.
    pub command_takes: Duration,
    /// Of a hundred commands of repair steps, so many heal their machine.
    pub heals_percent: u8,
    /// A step of a metric is at most so much of its range, in percent.
    pub walk_percent: f64,
}

/// What a rehearsal came to.
#[derive(Debug, Clone)]
pub struct Rehearsal {
    /// What was to happen when.
    pub schedule: Schedule,
    /// Faults that could not be injected.
    pub skipped: Vec<Skipped>,
    /// Every plan that was committed, in order.
    pub plans: Vec<PlanSeen>,
    /// Every repair that something became of, by its number.
    pub repairs: Vec<RepairSeen>,
    /// What was decided about placement, in order.
    pub placements: Vec<PlacementSeen>,
    /// What was held back meanwhile, in order, and how many more there were than are kept.
    pub waits: (Vec<WaitSeen>, usize),
    /// What stood in the way of something at the end.
    pub held: Vec<Held>,
    /// Each invariant.
    pub invariants: BTreeMap<Id, Verdict>,
    /// Whether it became calm.
    pub calm: Calm,
    /// When something was written last, retries of what fits nowhere aside; `None`: nothing was.
    pub last_change: Option<Span>,
    /// What was counted.
    pub counts: Counts,
    /// Pods that were assumed, if nodes are drained.
    pub pods: Option<usize>,
    /// Hash over the whole history, and its number of lines.
    pub history: (u64, usize),
    /// Time that was simulated.
    pub simulated: Duration,
}

impl Rehearsal {
    /// How it ended.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
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

/// Rehearses a scenario on a copy. Its world is the copy; of its own only the number of instances counts, and nobody but the
/// service works with the copy.
///
/// # Errors
/// It cannot be simulated, or the trace cannot be written.
pub fn rehearse(
    copied: Copied,
    service: Service,
    assumed: Assumed,
    scenario: &Scenario,
    (seed, length): (u64, Span),
    options: Options,
) -> Result<Rehearsal, SimulateError> {
    if length < SHORTEST {
        return Err(SimulateError::TooShort { length, least: SHORTEST });
    }
    let schedule = laid_out(scenario, seed, length)?;
    let things = copied.machines.len() + copied.own.len() + copied.root.len();
    let (runtime, pace) = paused(most_a_second(things as u64));
    let handling = Handling::paced(&pace);
    metrics::with_local_recorder(&handling, || {
        let handling = handling.clone();
        let stage = Stage { service, assumed, scenario, seed, length, handling, pace };
        runtime.block_on(stage.play(copied, schedule, options))
    })
}

/// Everything of a rehearsal but the copy.
struct Stage<'a> {
    service: Service,
    assumed: Assumed,
    scenario: &'a Scenario,
    seed: u64,
    length: Span,
    handling: Handling,
    pace: Pace,
}

impl Stage<'_> {
    async fn play(
        self,
        copied: Copied,
        schedule: Schedule,
        options: Options,
    ) -> Result<Rehearsal, SimulateError> {
        let began = Instant::now();
        let clock: Arc<dyn Clock> = Arc::new(SimulatedClock::new(copied.at));
        let datacenter = Datacenter::copied(self.seed, copied.at, rates(), copied.machines.clone())?;
        let registry = SimulatedRegistry::new(datacenter, Arc::clone(&clock));
        let history = History::traced(options.trace).paced(&self.pace);
        note_schedule(&history, &schedule);
        let (own, root) = without_leases(copied.own, copied.root);
        let disk = ForgetfulDisk::new(generator(self.seed, 7));
        let contents = contents(copied.revision, &own, &root);
        let store = StoreProcess::beginning_with(Some(contents), disk.clone(), self.seed);
        store.start().map_err(SimulateError::Contents)?;

        let state = ClusterState::decode(copied.revision, &own, None);
        let cluster = state.cluster.as_ref().map(|cluster| Arc::clone(&cluster.value));
        let drains = self.service.kubernetes.then(|| kubernetes(self.seed, &clock, cluster.as_deref()));
        let pods = drains.as_ref().map(|drains| drains.kubernetes.with(|cluster| cluster.pods().len()));
        let observer = Observer::new((history.clone(), copied.at), &own, copied.revision, drains.clone());
        let checker = Checker::new(history.clone()).polled_every(self.service.working.interval);
        let judges = [
            Task::start(checker.clone().watch_from(copied.revision, own, store.clone())),
            Task::start(observer.clone().watch(copied.revision, store.clone())),
        ];
        let mut world = World::new(
            (self.seed, self.service.places),
            store,
            registry.clone(),
            Arc::clone(&clock),
            // Placement is judged by the leader's own gate: what its judge of simulations knows is another world's.
            (history.clone(), checker.clone(), PlacementChecker::new(history.clone(), copied.at)),
            None,
        );
        let walk = Walk::new(self.seed, copied.providers, self.assumed.walk_percent);
        world.handling = self.handling.clone();
        world.working = self.service.working.clone();
        world.walk = Some(walk.clone());
        world.listener = Some(Arc::new(observer.clone()));
        world.effects = Some(Effects {
            host: Arc::new(self.commands(registry, &state)) as Arc<dyn Host>,
            kubernetes: drains.map(|drains| Arc::new(drains.kubernetes) as Arc<dyn Kubernetes>),
        });
        let mut injector = Injector::new(world, disk, generator(self.seed, 8));
        for name in NAMES.into_iter().take(self.scenario.world.instances as usize) {
            injector.start(name).await;
        }
        let progress = options.progress;
        let pace = self.pace.clone();
        let mut idle = Idle { began, ticks: 0, progress, pace, judges: None, wrong_since: None };
        let to_the_end = play(&schedule, self.length, options.only.as_ref(), &mut idle, &mut injector).await;
        if idle.is_hopeless(&injector) {
            injector.stop_all().await;
        }
        injector.finish().await;
        history.note("driver", "the faults are over");
        walk.stop();
        let working = &self.service.working;
        let allowed = self.scenario.expect.calm_within.map(|span| span.duration());
        let drains = self.service.kubernetes;
        let waiting = Waiting { working, allowed, drains, state: &state, applications: applications(&root) };
        let mut calm = tokio::select! {
            biased;
            () = self.pace.runs_away() => {
                waiting.never(&observer, self.pace.ran_away().into_iter().collect())
            },
            calm = waiting.until_calm(&mut injector, &observer) => calm,
        };
        let held = observer.held(injector.leader());
        // What instances write when they stop is no part of it.
        let seen = observer.seen();
        let counts = *injector.world.counts.lock().unwrap();
        let skipped = std::mem::take(&mut injector.skipped);
        let injected = injector.injected;
        for (_, running) in std::mem::take(&mut injector.running) {
            running.instance.stop().await;
        }
        let mut violations = checker.finish();
        violations.extend(observer.violations());
        calm.found.extend(cut_short(to_the_end, violations.is_empty() && calm.found.is_empty()));
        calm.found.extend(blind(&judges));
        drop(judges);
        history.finish().map_err(SimulateError::Trace)?;
        Ok(Rehearsal {
            schedule,
            skipped,
            plans: seen.plans,
            repairs: seen.repairs.into_values().collect(),
            placements: seen.placements,
            waits: (seen.waits, seen.more_waits),
            held,
            invariants: verdicts(&history.judgements(), violations),
            calm,
            last_change: seen.last_change,
            counts: Counts {
                leader_changes: counts.leader_changes,
                commits: counts.commits,
                refused_writes: self.handling.refused(),
                failed_client_calls: 0,
                faults: injected,
            },
            pods,
            history: (history.hash(), history.len()),
            simulated: began.elapsed(),
        })
    }

    fn commands(&self, registry: SimulatedRegistry, state: &ClusterState) -> Commands {
        let habits = Habits {
            heals_percent: self.assumed.heals_percent,
            fails_percent: 0,
            hangs_percent: 0,
            lost_percent: 0,
            confused_percent: 0,
            takes: self.assumed.command_takes,
        };
        let template = state.template.as_ref().map(|template| template.value.cluster());
        let of_cluster = state.cluster.as_ref().map(|cluster| &*cluster.value);
        Commands::of(SimulatedHost::new(registry, habits), of_cluster.into_iter().chain(template))
    }
}

/// Nothing breaks by itself; what is begun comes to its end.
fn rates() -> Rates {
    Rates { initialize_takes: Some(START_TAKES), update_takes: Some(UPDATE_TAKES), ..Rates::still() }
}

/// What hangs on a lease belongs to a process that is not copied, and the registry is the copied one.
fn without_leases(
    own: BTreeMap<String, Entry>,
    root: BTreeMap<String, Entry>,
) -> (BTreeMap<String, Entry>, BTreeMap<String, Entry>) {
    let mut kept = (own, root);
    kept.0.retain(|key, entry| entry.lease == 0 && !key.starts_with(keys::LEADER) && key != keys::STATUS);
    kept.1.retain(|key, entry| entry.lease == 0 && key != ownership::KEY);
    // Wherever the registry is: its copy answers here.
    if let Some(url) = kept.0.get_mut(keys::SABAKAN_URL) {
        url.value = format!("http://registry.invalid{GRAPHQL_PATH}").into();
    }
    kept
}

fn contents(revision: i64, own: &BTreeMap<String, Entry>, root: &BTreeMap<String, Entry>) -> Contents {
    let pair = |entry: &Entry| Pair {
        value: entry.value.clone(),
        create_revision: entry.create_revision,
        mod_revision: entry.mod_revision,
    };
    let own = own.iter().map(|(key, entry)| (format!("{PREFIX}{key}").into_bytes(), pair(entry)));
    let root = root.iter().map(|(key, entry)| (key.clone().into_bytes(), pair(entry)));
    Contents { revision, pairs: own.chain(root).collect() }
}

/// An API server with the nodes of the cluster, and pods that drains must end.
fn kubernetes(seed: u64, clock: &Arc<dyn Clock>, cluster: Option<&Cluster>) -> Drains {
    let drains = Drains { kubernetes: SimulatedKubernetes::new(seed, Arc::clone(clock)) };
    let nodes = cluster.map_or(0, |cluster| cluster.nodes.len());
    if let Some(cluster) = cluster {
        drains.follow(cluster);
    }
    let replicas = u32::try_from((nodes * PODS.0).min(PODS.1)).unwrap_or(u32::MAX);
    drains.kubernetes.with(|kubernetes| {
        kubernetes.add_namespace("default", &[]);
        kubernetes.add_workload(Workload {
            namespace: "default".to_owned(),
            name: "assumed".to_owned(),
            owner: Owner::ReplicaSet { replicas },
            grace: POD_ENDS,
            ends_within: POD_ENDS / 2,
        });
    });
    drains
}

fn applications(root: &BTreeMap<String, Entry>) -> usize {
    let prefix = madako_domain::placement::kind::Kind::Application.prefix();
    root.keys().filter(|key| key.starts_with(prefix)).count()
}

/// Racks that machines are in.
fn racks(machines: &[Machine]) -> BTreeSet<u32> {
    machines.iter().filter_map(|machine| u32::try_from(machine.spec.rack).ok()).collect()
}
