//! Runs a scenario in the simulation: plays its faults on a world with clients, and then requires a quiet period.
//!
//! Guarantees: the same scenario, seed and length give the same report and the same trace, in every process and every
//! build.
//!
//! Does not: disturb time within one handler.

mod contenders;
mod drill;
mod inject;
mod leader_ends;
mod machines;
mod operations;
mod reboots;
mod registry_clients;
pub mod rehearsal;
mod report;
mod saboteurs;
mod settle;
mod shrink;
mod simulated_clients;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use madako_datacenter_sim::host::{CommandBehaviour, SimulatedHost};
use madako_datacenter_sim::{Datacenter, DatacenterConfig, Rates, SimulatedRegistry};
use madako_faults::{ClientKind, Scenario, Schedule, Span, Store, TooManyFaults, schedule};
use madako_judges::PromiseTerms;
use madako_judges::player::Player;
use madako_protocol::feed::Task;
use madako_protocol::ports::Clock;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng as _;
use time::macros::datetime;
use tokio::runtime::Runtime;
use tokio::time::Instant;

use crate::cancels::Cancels;
use crate::checker::Checker;
use crate::clock::SimulatedClock;
use crate::disk::ForgetfulDisk;
use crate::drains::{Drains, EVICTION_TIMEOUT};
use crate::facts::Facts;
use crate::history::{History, Trace};
use crate::operator::{ExpectedSize, Operator};
use crate::pace::MessagePace;
use crate::placement::PlacementChecker;
use crate::planted::MessageCounter;
use crate::queue_user::QueueUser;
use crate::repair::RepairJudge;
use crate::rivals::Rivals;
use crate::store_process::StoreProcess;
use crate::world::{CommandHosts, METRICS_INTERVAL, NAMES, RESCHEDULE_AFTER, ServiceSettings, World};

use self::inject::Injector;
use self::operations::Rollout;
use self::simulated_clients::{ClientResults, RunningClients};
pub use madako_judges::Verdict;

pub use self::reboots::reboot_machines;
pub use self::report::{Outcome, QuietPeriod, Report, SkippedFault};
use self::settle::SettlingRun;
pub use self::shrink::{ShrunkScenario, shrink_scenario};

/// Interval of the upkeep of the world: attempts of late faults, restarts of ended instances, new values of metrics.
const TICK: Duration = Duration::from_secs(5);

/// Minimum age of a violation that ends a run: the judges see a write before its user reports it, and the violations of
/// users do not count.
const SURE: Duration = Duration::from_secs(60);

/// Limit on messages and notes within a simulated second. The setup of a world of that size needs far fewer; an endless
/// loop that waits for nothing reaches the limit within seconds.
fn message_limit_per_second(things: u64) -> u64 {
    10_000 + 200 * things
}

fn count_objects(world: &madako_faults::World) -> u64 {
    u64::from(world.machines + world.clusters + world.applications)
}

/// A runtime of one thread with paused time, and a pace that counts by its clock.
fn paused_runtime(most_a_second: u64) -> (Runtime, MessagePace) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime of one thread without I/O needs nothing that could be missing");
    let inside = runtime.enter();
    let pace = MessagePace::new(most_a_second);
    drop(inside);
    (runtime, pace)
}

/// Maximum wait for its target of a fault that strikes once, or whose end has passed: two elections after the lease of
/// a lost leader.
const PATIENCE: Duration = Duration::from_secs(300);

/// Maximum time after the end of all other faults for the faults that waited for their targets.
const LATEST: Duration = Duration::from_secs(60 * 60);

/// Maximum time for the cleanup of the clients: their requests find no leader until a lease has ended and another
/// instance is elected. The time until the quiet period counts from the end of the cleanup.
const LONGEST_REST: Duration = Duration::from_secs(3 * 60);

/// Called once a simulated minute with the simulated time so far, until the faults end.
pub type Progress = Box<dyn FnMut(Duration)>;

#[derive(Default)]
pub struct Options {
    /// Receives every line of the history.
    pub trace: Option<Trace>,
    /// Numbers of the injections to play; `None`: all.
    pub only: Option<BTreeSet<usize>>,
    pub progress: Option<Progress>,
    /// Ends the run without a wait for the quiet period as soon as a violation has stood for [`SURE`]. (Any run ends
    /// when the store has lost data that it showed, or when simulated time stops.)
    pub until_wrong: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum SimulateError {
    #[error(
        "world.store: got etcd, expected embedded: a simulation runs in one process, where only the embedded store fits; \
         `madako-chaos run` has a real etcd"
    )]
    Etcd,
    #[error(
        "the run is {length} long, expected at least {least}: before that, nothing is placed and no cluster is planned"
    )]
    TooShort {
        length: Span,
        /// Minimum length of a run.
        least: Span,
    },
    /// The faults begin too often.
    #[error("cannot make a schedule of the scenario's faults")]
    Schedule(#[from] TooManyFaults),
    #[error("cannot start the services that the scenario describes")]
    World(#[from] madako_json::input::InputError),
    #[error("cannot write the trace of the run to its file")]
    Trace(#[source] std::io::Error),
    #[error("cannot simulate the machines that the registry lists")]
    Machines(#[from] madako_datacenter_sim::CopyError),
    /// The copied keys cannot be the contents of a store.
    #[error("cannot load the copied keys into the store of the simulation")]
    Contents(#[source] madako_embedded_etcd::OpenError),
}

/// Minimum length of a run: a leader is elected, the registry is polled, and a cluster is committed.
const SHORTEST: Span = Span::from_seconds(60);

/// Each kind of random choice has a generator of its own, so that one change does not reshuffle the others.
fn seeded_generator(seed: u64, stream: u64) -> ChaCha8Rng {
    let mut generator = ChaCha8Rng::seed_from_u64(seed);
    generator.set_stream(stream);
    generator
}

/// The schedule of a run, as [`simulate`] plays it.
///
/// # Errors
/// The faults begin too often.
pub fn plan_schedule(scenario: &Scenario, seed: u64, length: Span) -> Result<Schedule, TooManyFaults> {
    schedule(&scenario.faults, length, &mut seeded_generator(seed, 0))
}

/// Plays the faults of a scenario for `length`, and then waits for the quiet period or the end of the time allowed for
/// it.
///
/// # Errors
/// The scenario cannot be simulated, or the trace cannot be written.
pub fn simulate(
    scenario: &Scenario,
    seed: u64,
    length: Span,
    options: Options,
) -> Result<Report, SimulateError> {
    if scenario.world.store == Store::Etcd {
        return Err(SimulateError::Etcd);
    }
    if length < SHORTEST {
        return Err(SimulateError::TooShort { length, least: SHORTEST });
    }
    let schedule = plan_schedule(scenario, seed, length)?;
    let (runtime, pace) = paused_runtime(message_limit_per_second(count_objects(&scenario.world)));
    let handling = MessageCounter::with_pace(&pace);
    metrics::with_local_recorder(&handling, || {
        runtime.block_on(run(scenario, (seed, length), schedule, options, (handling.clone(), pace)))
    })
}

async fn run(
    scenario: &Scenario,
    (seed, length): (u64, Span),
    schedule: Schedule,
    options: Options,
    (handling, pace): (MessageCounter, MessagePace),
) -> Result<Report, SimulateError> {
    let began = Instant::now();
    let date = datetime!(2026-01-01 00:00:00 UTC);
    let clock: Arc<dyn Clock> = Arc::new(SimulatedClock::new(date));
    let registry = SimulatedRegistry::new(build_datacenter(scenario, seed, date)?, Arc::clone(&clock));
    let history = History::with_trace(options.trace).with_pace(&pace);
    note_schedule(&history, &schedule);
    let disk = ForgetfulDisk::new(seeded_generator(seed, 7));
    let store = StoreProcess::on_disk(disk.clone(), seed);
    store.start().expect("an empty disk can be opened");
    let facts = Facts::for_terms(terms_of_settings(&ServiceSettings::default()), history.clone());
    let checker = Checker::new(history.clone()).with_facts(facts.clone());
    let placement = PlacementChecker::new(history.clone(), date);
    let drains = Drains::new(seed, Arc::clone(&clock));
    let repairs = RepairJudge::new(history.clone(), drains.clone()).with_facts(facts.clone());
    let placement_judge = placement.clone();
    let mut judges = vec![
        Task::start(checker.clone().watch(store.clone())),
        Task::start(placement.clone().watch(store.clone())),
        Task::start(repairs.clone().watch(store.clone())),
        Task::start(facts.clone().watch(store.clone())),
    ];
    let mut operator = Operator::new(store.clone(), seeded_generator(seed, 1));
    operator.enable_repairs(repairs.clone());
    if has_clients(scenario, ClientKind::Reboots) {
        operator.enable_reboots();
    }
    if scenario.world.runs_kubernetes() {
        operator.enable_kubernetes();
    }
    operator
        .install_cluster(ExpectedSize::for_world(&scenario.world))
        .await
        .expect("a store that was just started takes writes");
    if has_clients(scenario, ClientKind::Reboots) {
        reboots::leave_records(&store, &repairs).await.expect("a store that was just started takes writes");
    }
    let queue_user =
        QueueUser::new(store.clone(), registry.clone(), repairs.clone(), seeded_generator(seed, 4));
    let hosts = CommandHosts {
        host: SimulatedHost::new(registry.clone(), CommandBehaviour::demo()),
        kubernetes: drains.kubernetes.clone(),
        judge: repairs.clone(),
    };
    let mut world = World::new(
        (seed, scenario.world.places_applications()),
        store.clone(),
        registry,
        clock,
        (history.clone(), checker, placement),
        Some(hosts),
    );
    (world.handling, world.facts) = (handling, facts.clone());
    if has_clients(scenario, ClientKind::Rivals) {
        world.rivals =
            Some(Rivals::new(store.clone(), repairs.clone(), history.clone(), seeded_generator(seed, 11)));
    }
    if has_clients(scenario, ClientKind::Reboots) {
        world.cancels = Some(Cancels::new(store.clone(), repairs.clone(), history.clone()));
    }
    operations::enable_operations(scenario, seed, &mut world);
    if let Some(hosts) = &world.hosts {
        reboot_machines(hosts, world.nodes.as_ref().map(|nodes| nodes.nodes.clone()));
    }
    judges.extend(world.nodes.clone().map(|nodes| Task::start(nodes.watch(world.checker.clone()))));
    let clients = RunningClients::start(scenario, seed, &world, operator, queue_user);
    let mut injector = Injector::new(world, disk, seeded_generator(seed, 8));
    injector.rollout = scenario.world.runs_operations().then(|| Rollout::for_length(length.duration()));
    for name in NAMES.into_iter().take(scenario.world.instances as usize) {
        injector.start(name).await;
    }
    let mut idle = IdlePhase {
        began,
        ticks: 0,
        progress: options.progress,
        pace: pace.clone(),
        judges: options
            .until_wrong
            .then(|| (injector.world.checker.clone(), placement_judge, repairs.clone(), facts.clone())),
        wrong_since: None,
    };
    let to_the_end = play_schedule(&schedule, length, options.only.as_ref(), &mut idle, &mut injector).await;
    injector.finish().await;
    if let Some(hosts) = &injector.world.hosts {
        hosts.host.end_hanging_boots();
    }
    history.note("driver", "the faults are over");
    let mut missed = Vec::new();
    let (done, rested) = if idle.is_hopeless(&injector) {
        injector.stop_all().await;
        (ClientResults::default(), true)
    } else {
        let mut clients = clients.stop().await;
        if to_the_end && drill::is_held(scenario, length) {
            drill::provoke_all_promises(&mut injector, &mut clients, &drains).await;
        }
        if to_the_end && has_clients(scenario, ClientKind::Saboteurs) {
            missed = leader_ends::end_leaders(&mut injector, &mut clients, (&drains, &repairs)).await;
        }
        // A cleanup that exceeds its time counts as failed.
        tokio::time::timeout(LONGEST_REST, clients.clean_up()).await.unwrap_or_default()
    };
    let settling =
        SettlingRun { facts: &facts, drains: &drains, repairs: &repairs, pace: &pace, to_the_end, rested };
    let mut report = settle::settle_run(scenario, (seed, length), injector, done, settling).await;
    report.calm.found.extend(find_ended_judge(&judges).into_iter().chain(missed));
    drop(judges);
    history.finish().map_err(SimulateError::Trace)?;
    Ok(Report { schedule, simulated: began.elapsed(), ..report })
}

fn has_clients(scenario: &Scenario, kind: ClientKind) -> bool {
    scenario.clients.iter().any(|client| client.kind == kind)
}

/// A finding if a judge ended before the run did, because it missed the rest.
fn find_ended_judge(judges: &[Task]) -> Option<String> {
    let gave_up = judges.iter().any(Task::has_ended);
    gave_up.then(|| "a judge gave up before the end, and saw nothing from then on".to_owned())
}

/// Plays the schedule. Returns false if the run ended before the schedule did.
async fn play_schedule(
    schedule: &Schedule,
    length: Span,
    only: Option<&BTreeSet<usize>>,
    idle: &mut IdlePhase,
    injector: &mut Injector,
) -> bool {
    let mut schedule = schedule.clone();
    schedule.events.retain(|event| only.is_none_or(|only| only.contains(&event.injection)));
    let mut player = Player::new(&schedule, length, PATIENCE);
    let mut to_the_end = true;
    while let Some(due) = player.next_due() {
        to_the_end = idle.run_until(idle.began + due, injector, &mut player).await;
        if !to_the_end {
            break;
        }
        if let Some(attempt) = player.next_scheduled(due) {
            injector.make_attempt(&mut player, attempt).await;
        }
    }
    if to_the_end {
        // A planted panic whose actor gets no message waits as long as a fault without its target.
        let latest = Instant::now() + LATEST;
        while (player.is_late() || injector.awaits_panic()) && Instant::now() < latest {
            if !idle.run_until(idle.next_tick(), injector, &mut player).await {
                break;
            }
        }
    }
    for (attempt, outcome) in player.give_up(idle.began.elapsed()) {
        injector.note_skipped(&attempt, outcome);
    }
    to_the_end
}

/// The state of a run between faults.
struct IdlePhase {
    began: Instant,
    ticks: u32,
    progress: Option<Progress>,
    pace: MessagePace,
    /// Judges whose findings end the run; `None`: findings do not end it.
    judges: Option<(Checker, PlacementChecker, RepairJudge, Facts)>,
    wrong_since: Option<Instant>,
}

impl IdlePhase {
    fn next_tick(&self) -> Instant {
        self.began + TICK * (self.ticks + 1)
    }

    /// Waits until a time, with the upkeep of the world. Returns false if the run ends before.
    async fn run_until(&mut self, until: Instant, injector: &mut Injector, player: &mut Player<'_>) -> bool {
        loop {
            if self.is_hopeless(injector) || self.is_wrong() {
                return false;
            }
            let tick = self.next_tick();
            tokio::select! {
                biased;
                () = self.pace.wait_until_overrun() => return false,
                () = tokio::time::sleep_until(tick.min(until)) => {}
            }
            if tick > until {
                return true;
            }
            self.ticks += 1;
            injector.attempt_and_restart(player, self.began.elapsed()).await;
            if let Some(progress) = self.progress.as_mut().filter(|_| self.ticks.is_multiple_of(12)) {
                progress(self.began.elapsed());
            }
        }
    }

    /// True if the run can show nothing more: the service loops without waiting, or the store lost the history that
    /// judges read.
    fn is_hopeless(&self, injector: &Injector) -> bool {
        self.pace.describe_overrun().is_some() || injector.store_is_lost
    }

    fn is_wrong(&mut self) -> bool {
        let Some((checker, placement, repairs, facts)) = &self.judges else { return false };
        let found = checker.has_findings()
            || placement.has_findings()
            || repairs.has_findings()
            || facts.has_findings();
        if !found {
            self.wrong_since = None;
            return false;
        }
        self.wrong_since.get_or_insert_with(Instant::now).elapsed() >= SURE
    }
}

/// Maximum delay of an observation: its message is slow, or lost twice.
const TOLERANCE: Duration = Duration::from_secs(5);

#[must_use]
pub fn terms_of_settings(working: &ServiceSettings) -> PromiseTerms {
    PromiseTerms {
        interval: working.interval,
        session_ttl: working.session_ttl,
        retire_wait: working.retire_wait,
        metrics_interval: METRICS_INTERVAL,
        metric_max_age: METRICS_INTERVAL * 3,
        reschedule_after: RESCHEDULE_AFTER,
        eviction_timeout: EVICTION_TIMEOUT,
        answer_within: TOLERANCE,
        tolerance: TOLERANCE,
        holds_back: false,
    }
}

fn note_schedule(history: &History, schedule: &Schedule) {
    for line in schedule.to_string().lines() {
        history.note("schedule", line);
    }
}

/// A data center of the scenario's size, in which nothing breaks without a fault of the scenario. Setups, updates and
/// retirements of machines come to their end.
fn build_datacenter(
    scenario: &Scenario,
    seed: u64,
    start: time::OffsetDateTime,
) -> Result<Datacenter, madako_json::input::InputError> {
    let world = &scenario.world;
    let (storage, gpu) = (world.machines * 3 / 10, world.machines / 10);
    let roles = [("compute", world.machines - storage - gpu), ("storage", storage), ("gpu", gpu)];
    let minutes = |minutes: u64| Some(Duration::from_secs(60 * minutes));
    let rates = Rates {
        initialize_takes: minutes(1),
        update_takes: minutes(2),
        retiring_takes: minutes(2),
        // Longer than a worker may stay in the cluster after its machine retired.
        retired_kept: minutes(15),
        returns_percent: 50,
        replaced_after: minutes(3),
        ..Rates::no_events()
    };
    Datacenter::new(DatacenterConfig { rates, ..DatacenterConfig::new(seed, start, world.racks, &roles) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_run_with_an_ended_judge_or_an_early_end_does_not_pass() {
        let judges = [Task::start(std::future::pending()), Task::start(std::future::pending())];
        tokio::task::yield_now().await;
        assert_eq!(find_ended_judge(&judges), None);
        let judges = [Task::start(std::future::pending()), Task::start(std::future::ready(()))];
        tokio::task::yield_now().await;
        assert!(find_ended_judge(&judges).is_some());
        assert!(settle::check_full_length(false, true).is_some());
        // A finding that ended the run is reported by itself.
        assert_eq!(
            (settle::check_full_length(false, false), settle::check_full_length(true, true)),
            (None, None)
        );
    }
}
