//! Executes a chaos run, from its first process to its report.

mod calm;
mod faults;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use madako_faults::{ClientKind, Scenario, Schedule, Span, TooManyFaults, schedule};
use madako_protocol::ports::Clock;
use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use time::OffsetDateTime;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::check::drains::effects_of;
use crate::check::effects::commands_of;
use crate::check::promises::RunObservations;
use crate::check::registry::registry_requests;
use crate::check::store::RegistryAnswers;
use crate::clients::{ApiEndpoints, CLIENTS, Clients, client_generator};
use crate::datacenter::{JournalError, Line, read_journal};
use crate::drill::{self, Drill};
use crate::followers::{FOLLOWERS, follow_applications};
use crate::history::{History, Micros};
use crate::inject::{Injector, ProcessChecks};
use crate::network::NetworkChoice;
use crate::observer::{Observer, PREFIX};
use crate::operators;
use crate::registrar::{self, RegistryAddresses};
use crate::report::{self, Observations, Report};
use crate::watcher::Leaders;
use crate::world::{Instance, Plan, Programs, World, WorldError, cluster_names, longest_calm_wait};

/// Time until an instance leads and a cluster is committed, before any fault.
const BEGINS_WITHIN: Duration = Duration::from_secs(60);
/// Interval of checks for that.
const GLANCE: Duration = Duration::from_millis(100);

/// File with the addresses of the instances.
const TARGETS: &str = "targets.json";

/// First number of the generators for clients other than those of placement.
const OPERATORS: u32 = CLIENTS + 2;
const REGISTRARS: u32 = CLIENTS + 3;

#[derive(Debug, Clone)]
pub struct Options {
    pub scenario: Scenario,
    /// Seed of the beginnings of random faults, of the clients, and of corruptions.
    pub seed: u64,
    /// Time in which faults begin.
    pub length: Span,
    pub network: NetworkChoice,
    pub programs: Programs,
    /// Directory for report, history and logs; without it they are deleted after the run.
    pub report: Option<PathBuf>,
    /// File for all observations, a line each; without it, `history.jsonl` beside the report.
    pub trace: Option<PathBuf>,
}

#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Schedule(#[from] TooManyFaults),
    #[error("{what}")]
    Io { what: &'static str, source: io::Error },
    /// The world could not be built, or a process ended by itself.
    #[error(transparent)]
    World(#[from] WorldError),
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The service did not become ready for the faults.
    #[error("the system was not ready for the first fault within {BEGINS_WITHIN:?}: {0}")]
    NotBegun(&'static str),
}

fn io_error(what: &'static str) -> impl FnOnce(io::Error) -> RunError {
    move |source| RunError::Io { what, source }
}

/// Runs a scenario. `clock` is the clock of the data center's processes; `tell` gets lines for the user to follow.
///
/// # Errors
/// See [`RunError`]; faults of the service are in the report.
pub async fn run(
    options: &Options,
    clock: &dyn Clock,
    tell: &(dyn Fn(&str) + Sync),
) -> Result<Report, RunError> {
    let mut draws = ChaCha8Rng::seed_from_u64(options.seed);
    let schedule = schedule(&options.scenario.faults, options.length, &mut draws)?;
    let data = tempfile::Builder::new().prefix("madako-chaos-").tempdir();
    let data = data.map_err(io_error("cannot create the directory for the data of the run"))?;
    let directory = match &options.report {
        Some(directory) => directory.clone(),
        None => data.path().join("report"),
    };
    let logs = directory.join("logs");
    fs::create_dir_all(&logs).map_err(io_error("cannot prepare the directory of the report"))?;
    remove_old_logs(&logs).map_err(io_error("cannot prepare the directory of the report"))?;
    let trace = options.trace.clone().unwrap_or_else(|| directory.join("history.jsonl"));
    let history = History::begin(&trace).map_err(io_error("cannot create the file of the history"))?;
    let plan = Plan {
        programs: &options.programs,
        scenario: &options.scenario,
        seed: options.seed,
        network: options.network,
        data: data.path(),
        logs: &logs,
    };
    let unix = clock.now();
    let course = RunCourse { options, plan, schedule, history, unix, directory: &directory, tell };
    let report = course.run().await?;
    if options.report.is_some() {
        report::write_report(&report, &directory).map_err(io_error("cannot write the report"))?;
    }
    Ok(report)
}

/// Removes logs and journals of an earlier run, which this run would append to.
fn remove_old_logs(logs: &Path) -> io::Result<()> {
    for file in fs::read_dir(logs)? {
        let path = file?.path();
        if path.is_file() {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

struct RunCourse<'a> {
    options: &'a Options,
    plan: Plan<'a>,
    schedule: Schedule,
    history: History,
    /// Beginning of the history.
    unix: OffsetDateTime,
    directory: &'a Path,
    tell: &'a (dyn Fn(&str) + Sync),
}

impl RunCourse<'_> {
    async fn run(&self) -> Result<Report, RunError> {
        let Self { options, plan, schedule, history, tell, .. } = self;
        tell("starts the processes");
        let mut world = World::build(plan).await?;
        tell(&format!("network: {}", world.network.carrier_kind()));
        self.show(&world).map_err(io_error("cannot write the file with the targets of Prometheus"))?;
        // Dropped with this function, so that all observers end in any case.
        let mut watching = JoinSet::new();
        let (observer, leaders) = (Observer::new(history.clone()), Leaders::default());
        for (number, endpoint) in world.member_endpoints() {
            watching.spawn(observer.clone().watch(number, endpoint));
        }
        for (number, instance) in &world.instances {
            watching.spawn(leaders.clone().watch(*number, instance.http, history.clone()));
        }
        self.begin(&observer, &leaders).await?;
        world.settle(plan).await?;
        let endpoints: ApiEndpoints =
            world.instances.iter().map(|(number, it)| (*number, it.endpoint.address())).collect();
        let clients = Clients::new(history.clone(), endpoints.clone(), options.scenario.world.applications);
        if options.scenario.world.places_applications() {
            clients.fill(client_generator(options.seed, 0)).await;
        }

        let began = history.now();
        tell(&format!("runs for {}, seed {}", options.length, options.seed));
        let (stop, stopped) = watch::channel(false);
        let mut working = self.start_clients(&world, &clients, &stopped);
        let (last, lasting) = watch::channel(false);
        let mut following = self.start_followers(&endpoints, &lasting);
        let (whole, told) = watch::channel(None);
        let mut store_watchers = self.store_watchers(&world, &told);
        let mut injector = Injector::new(observer.clone(), leaders.clone(), options.seed);
        let skipped = self.inject(&mut world, &mut injector, schedule).await;
        let ended = history.now();
        // The receivers are gone if the readers have ended.
        let _ = stop.send(true);
        while working.join_next().await.is_some() {}
        tell("everything has ended; waits for calm");
        let calm = self.wait_for_calm(&mut world, &mut injector, &leaders, ended).await?;
        let mut missed = Vec::new();
        if options.scenario.world.places_applications() {
            let unanswered = clients.read_all().await;
            missed.extend(unanswered.into_iter().filter(|_| calm.is_some()));
        }
        let _ = last.send(true);
        while following.join_next().await.is_some() {}
        missed.extend(self.catch_up(&world, &observer).await);
        let _ = whole.send(Some(observer.last_revision_below(PREFIX)));
        while store_watchers.join_next().await.is_some() {}
        drop(watching);
        self.check_processes(&mut world, &mut injector);
        let (looked, times) = (injector.process_checks(), [began, ended]);
        let observations =
            self.collect_observations(&world, (&observer, missed), &leaders, times, (skipped, looked), calm)?;
        drop(world);
        Ok(report::make_report(observations))
    }

    /// Writes the instances' addresses, past the network, in the format of Prometheus' file discovery.
    fn show(&self, world: &World) -> io::Result<()> {
        let target = |(number, instance): (&u32, &Instance)| json!({"targets": [instance.http.to_string()], "labels": {"instance": format!("instance-{number}")}});
        let targets: Vec<Value> = world.instances.iter().map(target).collect();
        // A rename keeps readers from seeing half of the file.
        let (whole, half) = (self.directory.join(TARGETS), self.directory.join(format!("{TARGETS}.new")));
        fs::write(&half, Value::from(targets).to_string())?;
        fs::rename(half, whole)
    }

    /// Waits until an instance leads and a cluster is committed.
    async fn begin(&self, observer: &Observer, leaders: &Leaders) -> Result<(), RunError> {
        let all = self.options.scenario.world.instances as usize;
        let begun = async {
            while observer.value_of(madako_domain::keys::CLUSTER).is_none() || !leaders.are_all_healthy(all) {
                sleep(GLANCE).await;
            }
        };
        timeout(BEGINS_WITHIN, begun).await.map_err(|_| {
            RunError::NotBegun(
                "no instance became the leader, or the leader committed no cluster configuration",
            )
        })
    }

    fn start_clients(
        &self,
        world: &World,
        clients: &Clients,
        stopped: &watch::Receiver<bool>,
    ) -> JoinSet<()> {
        let mut working = JoinSet::new();
        let Options { seed, length, ref scenario, .. } = *self.options;
        if drill::is_held(scenario, length) {
            let (members, registry) = (world.ways.clone(), world.registry.control);
            let drill = Drill::new(members, registry, self.history.clone(), stopped.clone());
            working.spawn(drill.run(length));
        }
        for client in &scenario.clients {
            match client.kind {
                ClientKind::Placement => {
                    let rate = client.rate.per_second() / f64::from(CLIENTS);
                    for number in 1..=CLIENTS {
                        let chance = client_generator(seed, number);
                        working.spawn(clients.clone().run_client(number, rate, chance, stopped.clone()));
                    }
                }
                ClientKind::EtcdWatch => {
                    let (rate, chance) = (client.rate.per_second(), client_generator(seed, OPERATORS));
                    let members = world.ways.clone();
                    working.spawn(operators::write_until_stopped(
                        members,
                        world.registry.control,
                        rate,
                        self.history.clone(),
                        chance,
                        stopped.clone(),
                    ));
                }
                ClientKind::Registry => {
                    let ways =
                        RegistryAddresses { registry: world.registry_way, control: world.registry.control };
                    let (rate, chance) = (client.rate.per_second(), client_generator(seed, REGISTRARS));
                    working.spawn(registrar::run_client(
                        ways,
                        rate,
                        self.history.clone(),
                        chance,
                        stopped.clone(),
                    ));
                }
                // The command refuses these kinds.
                ClientKind::Rivals | ClientKind::Reboots | ClientKind::Saboteurs => {}
            }
        }
        working
    }

    /// Starts the watchers of the store, which end when they learn the last revision.
    fn store_watchers(&self, world: &World, last: &watch::Receiver<Option<i64>>) -> JoinSet<()> {
        let mut watchers = JoinSet::new();
        if self.options.scenario.clients.iter().any(|client| client.kind == ClientKind::EtcdWatch) {
            for (number, at) in (1..).zip(&world.ways) {
                watchers.spawn(operators::run_watches(number, *at, self.history.clone(), last.clone()));
            }
        }
        watchers
    }

    /// Starts the followers, which end when all is calm.
    fn start_followers(&self, endpoints: &ApiEndpoints, stopped: &watch::Receiver<bool>) -> JoinSet<()> {
        let mut following = JoinSet::new();
        let clients = &self.options.scenario.clients;
        let placement = clients.iter().any(|client| client.kind == ClientKind::Placement);
        if placement && self.options.scenario.world.places_applications() {
            for number in 0..FOLLOWERS {
                following.spawn(follow_applications(
                    number,
                    endpoints.clone(),
                    self.history.clone(),
                    stopped.clone(),
                ));
            }
        }
        following
    }

    fn collect_observations(
        &self,
        world: &World,
        (observer, missed): (&Observer, Vec<String>),
        leaders: &Leaders,
        [began, ended]: [Micros; 2],
        (skipped, looked): (BTreeMap<usize, String>, ProcessChecks),
        calm_after: Option<Span>,
    ) -> Result<Observations, RunError> {
        let lines = read_journal(&world.registry.journal)?;
        let registry_requests = registry_requests(&lines);
        let (acts, kubernetes) = (commands_of(&lines, self.unix), effects_of(&lines, self.unix));
        let values = world.provider.as_ref().map(|provider| read_journal(&provider.journal)).transpose()?;
        let lines: Vec<Line> = lines.into_iter().chain(values.unwrap_or_default()).collect();
        let (events, revisions) = (self.history.recorded_events(), observer.revisions());
        let (leading, epochs) = (observer.leader_times(), leaders.leaders_by_epoch());
        let outside = RunObservations {
            lines: &lines,
            unix: self.unix,
            revisions: &revisions,
            events: &events,
            schedule: &self.schedule,
            leading: &leading,
            epochs: &epochs,
            clusters: cluster_names(&self.options.scenario.world),
        };
        let facts = outside.collect_facts();
        let answered = RegistryAnswers::of_facts(&facts);
        Ok(Observations {
            scenario: self.options.scenario.clone(),
            seed: self.options.seed,
            length: self.options.length,
            network: world.network.carrier_kind(),
            schedule: self.schedule.clone(),
            events,
            revisions,
            facts,
            wrong: observer.history_faults().into_iter().chain(missed).collect(),
            leading,
            epochs,
            refused: leaders.refused_count(),
            gate: leaders.violations_by_name(),
            answered,
            registry_requests,
            looked,
            acts,
            kubernetes,
            began,
            ended,
            skipped,
            calm_after,
            settings_allow: longest_calm_wait(),
            unwritten: self.history.take_failure().map(|error| error.to_string()),
        })
    }
}
