//! A run of a scenario: its world, its clients and its faults, then peace, then the demand that everything is calm.
//!
//! Guarantees: the same scenario, seed and length give the same report and the same trace, in every process and every build.
//!
//! Does not: break time within one handler, nor anything on nodes, which nobody works on yet.

mod inject;
mod machines;
mod people;
mod report;
mod settle;
mod shrink;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use madako_datacenter_sim::host::{Habits, SimulatedHost};
use madako_datacenter_sim::{Datacenter, DatacenterConfig, Rates, SimulatedRegistry};
use madako_faults::{Change, Scenario, Schedule, Span, Store, TooMany, schedule};
use madako_messages::feed::Task;
use madako_messages::ports::Clock;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng as _;
use time::macros::datetime;
use tokio::time::Instant;

use crate::checker::Checker;
use crate::clock::SimulatedClock;
use crate::disk::ForgetfulDisk;
use crate::drains::Drains;
use crate::history::{History, Trace};
use crate::operator::Operator;
use crate::placement::PlacementChecker;
use crate::queue_user::QueueUser;
use crate::repair::RepairJudge;
use crate::store_process::StoreProcess;
use crate::world::{Hosts, NAMES, World};

use self::inject::Injector;
use self::people::People;
pub use self::report::{Calm, Outcome, Report, Skipped, Verdict};
use self::settle::Settling;
pub use self::shrink::{Shrunk, shrink};

/// How often the world is looked after: what is to be tried again, instances that ended by themselves, values of metrics.
const TICK: Duration = Duration::from_secs(5);

/// For how long a violation must stand until a run ends for it: a user is told of a write after the judges saw it, and what users
/// spoil is held against nobody.
const SURE: Duration = Duration::from_secs(60);

/// Called now and then with the time that was simulated so far.
pub type Progress = Box<dyn FnMut(Duration)>;

/// How a scenario is run.
#[derive(Default)]
pub struct Options {
    /// Takes every line of the history.
    pub trace: Option<Trace>,
    /// Only these injections of the schedule happen, by their numbers; `None`: all.
    pub only: Option<BTreeSet<usize>>,
    /// Is told how far the run is.
    pub progress: Option<Progress>,
    /// The run ends when something has violated an invariant for [`SURE`], and is not demanded to become calm then.
    pub until_wrong: bool,
}

/// Why a scenario is not simulated.
#[derive(Debug, thiserror::Error)]
pub enum SimulateError {
    /// A simulation has the embedded store.
    #[error(
        "world.store: got etcd, expected embedded: a simulation runs in one process, where only the embedded store fits; \
         `madako-chaos run` has a real etcd"
    )]
    Etcd,
    /// It is too short for anything to be there.
    #[error(
        "the run is {length} long, expected at least {least}: before that, nothing is placed and no cluster is planned"
    )]
    TooShort {
        /// How long it is.
        length: Span,
        /// How long it must be.
        least: Span,
    },
    /// Its faults begin too often.
    #[error("laying out the faults failed")]
    Schedule(#[from] TooMany),
    /// The world is none that can be built.
    #[error("building the world failed")]
    World(#[from] madako_messages::input::InputError),
    /// The trace cannot be written.
    #[error("writing the trace failed")]
    Trace(#[source] std::io::Error),
}

/// The shortest run: a leader is elected, the registry polled, and a cluster committed.
const SHORTEST: Span = Span::seconds(60);

/// Each kind of chance has a generator of its own, so that one change does not reshuffle the others.
fn generator(seed: u64, stream: u64) -> ChaCha8Rng {
    let mut generator = ChaCha8Rng::seed_from_u64(seed);
    generator.set_stream(stream);
    generator
}

/// What happens when in a run: the same schedule as [`simulate`] has.
///
/// # Errors
/// The faults begin too often.
pub fn laid_out(scenario: &Scenario, seed: u64, length: Span) -> Result<Schedule, TooMany> {
    schedule(&scenario.faults, length, &mut generator(seed, 0))
}

/// Runs a scenario for so long, and then until it is calm or had its time to become so.
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
    let schedule = laid_out(scenario, seed, length)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime of one thread without I/O needs nothing that could be missing");
    let handling = crate::planted::Handling::default();
    metrics::with_local_recorder(&handling, || {
        runtime.block_on(run(scenario, (seed, length), schedule, options, handling.clone()))
    })
}

async fn run(
    scenario: &Scenario,
    (seed, length): (u64, Span),
    schedule: Schedule,
    options: Options,
    handling: crate::planted::Handling,
) -> Result<Report, SimulateError> {
    let began = Instant::now();
    let date = datetime!(2026-01-01 00:00:00 UTC);
    let clock: Arc<dyn Clock> = Arc::new(SimulatedClock::new(date));
    let registry = SimulatedRegistry::new(datacenter(scenario, seed, date)?, Arc::clone(&clock));
    let history = History::traced(options.trace);
    note_schedule(&history, &schedule);
    let disk = ForgetfulDisk::new(generator(seed, 7));
    let store = StoreProcess::on(disk.clone(), seed);
    store.start().expect("an empty disk can be opened");
    let checker = Checker::new(history.clone());
    let placement = PlacementChecker::new(history.clone(), date);
    let drains = Drains::new(seed, Arc::clone(&clock));
    let repairs = RepairJudge::new(history.clone(), drains.clone());
    let placement_judge = placement.clone();
    let judges = [
        Task::start(checker.clone().watch(store.clone())),
        Task::start(placement.clone().watch(store.clone())),
        Task::start(repairs.clone().watch(store.clone())),
    ];
    let mut operator = Operator::new(store.clone(), generator(seed, 1));
    operator.repairs(repairs.clone());
    operator.install_for(scenario.world.machines).await.expect("a store that was just started takes writes");
    let queue_user = QueueUser::new(store.clone(), registry.clone(), repairs.clone(), generator(seed, 4));
    let hosts = Hosts {
        host: SimulatedHost::new(registry.clone(), Habits::demo()),
        kubernetes: drains.kubernetes.clone(),
        judge: repairs.clone(),
    };
    let mut world = World::new(
        (seed, scenario.world.places()),
        store.clone(),
        registry,
        clock,
        (history.clone(), checker, placement),
        Some(hosts),
    );
    world.handling = handling;
    let people = People::start(scenario, seed, &world, operator, queue_user);
    let mut injector = Injector::new(world, disk, generator(seed, 8));
    for name in NAMES.into_iter().take(scenario.world.instances as usize) {
        injector.start(name).await;
    }
    let mut idle = Idle {
        began,
        ticks: 0,
        progress: options.progress,
        judges: options
            .until_wrong
            .then(|| (injector.world.checker.clone(), placement_judge, repairs.clone())),
        wrong_since: None,
    };
    let end = began + length.duration();
    for event in &schedule.events {
        if options.only.as_ref().is_some_and(|only| !only.contains(&event.injection)) {
            continue;
        }
        let at = began + event.at.duration();
        if !idle.until(at, &mut injector).await {
            break;
        }
        let injection = &schedule.injections[event.injection];
        match event.change {
            Change::Begins | Change::Strikes => injector.begin(event.injection, injection).await,
            Change::Ends => injector.end(event.injection).await,
        }
    }
    let to_the_end = idle.until(end, &mut injector).await;
    injector.finish().await;
    history.note("driver", "the faults are over");
    let done = people.rest().await;
    let settling = Settling { drains: &drains, repairs: &repairs, to_the_end };
    let report = settle::settle(scenario, (seed, length), injector, done, settling).await;
    drop(judges);
    history.finish().map_err(SimulateError::Trace)?;
    Ok(Report { schedule, simulated: began.elapsed(), ..report })
}

/// Between faults.
struct Idle {
    began: Instant,
    ticks: u32,
    progress: Option<Progress>,
    /// Who says that something is wrong, where a run ends for that.
    judges: Option<(Checker, PlacementChecker, RepairJudge)>,
    wrong_since: Option<Instant>,
}

impl Idle {
    /// Waits, and looks after the world meanwhile. Whether the run goes on.
    async fn until(&mut self, until: Instant, injector: &mut Injector) -> bool {
        loop {
            if self.is_wrong() {
                return false;
            }
            let tick = self.began + TICK * (self.ticks + 1);
            if tick > until {
                tokio::time::sleep_until(until).await;
                return true;
            }
            tokio::time::sleep_until(tick).await;
            self.ticks += 1;
            injector.look_after().await;
            if let Some(progress) = self.progress.as_mut().filter(|_| self.ticks.is_multiple_of(12)) {
                progress(self.began.elapsed());
            }
        }
    }

    fn is_wrong(&mut self) -> bool {
        let Some((checker, placement, repairs)) = &self.judges else { return false };
        if !(checker.found_something() || placement.found_something() || repairs.found_something()) {
            self.wrong_since = None;
            return false;
        }
        self.wrong_since.get_or_insert_with(Instant::now).elapsed() >= SURE
    }
}

fn note_schedule(history: &History, schedule: &Schedule) {
    for line in schedule.to_string().lines() {
        history.note("schedule", line);
    }
}

/// A data center of that size, in which nothing breaks by itself: the scenario says what does. What people begin with a machine
/// comes to its end.
fn datacenter(
    scenario: &Scenario,
    seed: u64,
    start: time::OffsetDateTime,
) -> Result<Datacenter, madako_messages::input::InputError> {
    let world = &scenario.world;
    let (storage, gpu) = (world.machines * 3 / 10, world.machines / 10);
    let roles = [("compute", world.machines - storage - gpu), ("storage", storage), ("gpu", gpu)];
    let minutes = |minutes: u64| Some(Duration::from_secs(60 * minutes));
    let rates = Rates {
        initialize_takes: minutes(1),
        update_takes: minutes(2),
        retiring_takes: minutes(2),
        retired_kept: minutes(5),
        returns_percent: 50,
        replaced_after: minutes(3),
        ..Rates::still()
    };
    Datacenter::new(DatacenterConfig { rates, ..DatacenterConfig::new(seed, start, world.racks, &roles) })
}
