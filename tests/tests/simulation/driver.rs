//! A run: faults from a seed, then peace, then the demand that everything is calm.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use madako_datacenter_sim::host::{CommandBehaviour, SimulatedHost};
use madako_datacenter_sim::{Datacenter, DatacenterConfig, Fault, Rates, SimulatedRegistry};
use madako_domain::invariants::{Id, Violation};
use madako_domain::machine::MachineState;
use madako_domain::placement::kind::ObjectKey;
use madako_domain::repair::{RepairStatus, RepairStepStatus};
use madako_protocol::feed::Task;
use madako_protocol::ports::Clock;
use madako_supervisor::instance::{FETCHER, LEADER, PLANNER, POLLER, REIGN, REPAIR, SCHEDULER};
use madako_supervisor::tree::SupervisorRef;
use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng as _;
use time::macros::datetime;

use madako_simulation::checker::Checker;
use madako_simulation::clock::SimulatedClock;
use madako_simulation::drains::Drains;
use madako_simulation::history::{History, Trace};
use madako_simulation::link::Mode;
use madako_simulation::operator::Operator;
use madako_simulation::placement::{PlacementChecker, Seen};
use madako_simulation::queue_user::QueueUser;
use madako_simulation::repair::RepairJudge;
use madako_simulation::store_process::StoreProcess;
use madako_simulation::user::{Done, User};
use madako_simulation::world::{Hosts, INTERVAL, NAMES, Running, SESSION_TTL, Trigger, World};

/// Instances of the service.
const INSTANCES: usize = 3;

/// Mean time between two faults.
const BETWEEN_FAULTS: Duration = Duration::from_secs(120);

/// Time that a healed world has to become calm: the lease's TTL and some polls.
const TO_CALM: Duration = Duration::from_secs(60 + 15 * 60);

/// Time that moves take, a few a minute, and that data centers take to be as they should be.
const TO_PLACE: Duration = Duration::from_secs(20 * 60);

/// Time that repairs take to end: twelve entries, three at a time, each of two steps with two attempts of a minute and watches of
/// two and five minutes, and of a drain that waits for a job now and then.
const TO_REPAIR: Duration = Duration::from_secs(3 * 60 * 60);

/// How long a leader is waited for to be in the state that it is to be killed in.
const TO_AMBUSH: u32 = 300;

/// Time for which nothing is placed when nothing changes.
const PLACED: Duration = Duration::from_secs(5 * 60);

/// Time for which a calm world must write nothing.
const CALM: Duration = Duration::from_secs(60 * 60);

/// Which halves of the service run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Halves {
    /// That which keeps a cluster of machines.
    Machines,
    /// Placement as well.
    Both,
    /// Machines that are repaired: commands on hosts, and users of the repair queue.
    Repairs,
}

/// What a run came to.
pub struct Report {
    pub violations: Vec<Violation>,
    pub history: History,
    pub commits: u64,
    pub terms: u64,
    pub actor_failures: u64,
    pub failed_polls: u64,
    pub failed_commits: u64,
    pub held: u64,
    pub faults: u64,
    /// What was seen of placement, what its user did, how often metrics were asked for, and of these in vain.
    pub placement: Seen,
    pub user: Done,
    pub metrics: (u64, u64),
    /// What was seen of repairs, and how often users of their queue did something.
    pub repairs: madako_simulation::repair::Seen,
    pub queue_acts: u64,
    pub troubles: Troubles,
}

/// How often what goes wrong with machines, and with a leader that repairs them, came to it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Troubles {
    pub outages: u64,
    /// Machines that broke while they flapped, each time.
    pub flaps: u64,
    /// Leaders that were killed, by the state of the repair.
    pub ambushes: [u64; 5],
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} faults: {} commits, {} terms, {} actor failures, {} failed polls, {} failed commits, \
             {} held observations; {:?}; {:?}; {} requests for metrics, {} in vain; {:?}; {:?}; history {:016x}",
            self.faults,
            self.commits,
            self.terms,
            self.actor_failures,
            self.failed_polls,
            self.failed_commits,
            self.held,
            self.placement,
            self.user,
            self.metrics.0,
            self.metrics.1,
            self.repairs,
            self.troubles,
            self.history.hash()
        )
    }
}

/// Runs the simulation of a seed for so long, and then until it must be calm.
pub fn simulate(of: (u64, Duration), halves: Halves, trace: Option<Trace>) -> Report {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(run(of, halves, trace))
}

/// Each kind of chance has a generator of its own, so that one change does not reshuffle the others.
fn generator(seed: u64, stream: u64) -> ChaCha8Rng {
    let mut generator = ChaCha8Rng::seed_from_u64(seed);
    generator.set_stream(stream);
    generator
}

async fn run((seed, length): (u64, Duration), halves: Halves, trace: Option<Trace>) -> Report {
    let began = datetime!(2026-01-01 00:00:00 UTC);
    let clock = Arc::new(SimulatedClock::new(began));
    let config = DatacenterConfig { rates: rates(), ..DatacenterConfig::demo(seed, began) };
    let registry =
        SimulatedRegistry::new(Datacenter::new(config).unwrap(), Arc::clone(&clock) as Arc<dyn Clock>);
    let store = StoreProcess::in_memory(seed);
    let history = History::traced(trace);
    let checker = Checker::new(history.clone());
    let watching = Task::start(checker.clone().watch(store.clone()));
    let placement = PlacementChecker::new(history.clone(), began);
    let watching_root = Task::start(placement.clone().watch(store.clone()));
    let people = store.clone();
    let mut operator = Operator::new(store.clone(), generator(seed, 1));
    let drains = Drains::new(seed, Arc::clone(&clock) as Arc<dyn Clock>);
    let repairs = RepairJudge::new(history.clone(), drains.clone());
    let mut of_drains = generator(seed, 5);
    let hosts = (halves == Halves::Repairs).then(|| {
        operator.repairs(repairs.clone());
        Hosts {
            host: SimulatedHost::new(registry.clone(), CommandBehaviour::demo()),
            kubernetes: drains.kubernetes.clone(),
            judge: repairs.clone(),
        }
    });
    let watching_repairs = Task::start(repairs.clone().watch(store.clone()));
    let mut queue_user = QueueUser::new(store.clone(), registry.clone(), repairs.clone(), generator(seed, 4));
    operator.install().await.unwrap();

    let world = World::new(
        (seed, halves == Halves::Both),
        store,
        registry,
        Arc::clone(&clock) as Arc<dyn Clock>,
        (history.clone(), checker.clone(), placement.clone()),
        hosts,
    );
    let mut run = Run {
        world,
        running: BTreeMap::new(),
        away: BTreeMap::new(),
        chance: generator(seed, 2),
        faults: 0,
        troubles: Arc::default(),
    };
    for name in NAMES.into_iter().take(INSTANCES) {
        run.start(name).await;
    }
    let user = User::new(
        people,
        Arc::clone(&run.world.doors),
        placement.clone(),
        run.world.prometheus.clone(),
        history.clone(),
        generator(seed, 3),
    );
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let user = (halves == Halves::Both).then(|| tokio::spawn(user.run(stopped)));
    while history.now() < length {
        let pause = run.chance.random_range(0.1..2.0);
        tokio::time::sleep(BETWEEN_FAULTS.mul_f64(pause)).await;
        run.fault(&mut operator).await;
        if halves == Halves::Repairs {
            run.trouble(&repairs).await;
            if let Some(what) = drains.trouble(&mut of_drains) {
                history.note("driver", &what);
            }
            for _ in 0..run.chance.random_range(0..3_u32) {
                let what = queue_user.act().await.unwrap();
                history.note("user", &what);
            }
        }
        run.bring_back().await;
    }

    stop.send_replace(true);
    let mut user = match user {
        Some(user) => Some(user.await.unwrap()),
        None => None,
    };
    drains.heal();
    run.heal(&mut operator, user.as_mut()).await;
    let mut restless = placed(&placement, &history).await;
    if halves == Halves::Repairs {
        queue_user.settle().await.unwrap();
        tokio::time::sleep(TO_REPAIR).await;
    }
    clock.stop();
    history.note("driver", "peace");
    tokio::time::sleep(TO_CALM).await;
    let revision = checker.revision();
    history.note("driver", format_args!("calm is due at revision {revision}"));
    tokio::time::sleep(CALM).await;
    let mut violations = checker.finish();
    violations.extend(placement.finish());
    violations.append(&mut restless);
    violations.extend(repairs.finish());
    violations.extend(checker.written_after(revision).into_iter().map(|key| Violation {
        invariant: Id::I12,
        what: format!("{key} was written although nothing changed"),
    }));
    let cluster = checker.cluster().expect("a cluster was committed");
    if (cluster.control_plane().count(), cluster.workers().count() >= 12) != (3, true) {
        violations.push(Violation {
            invariant: Id::I3,
            what: format!(
                "peace ends with {} control plane nodes and {} workers",
                cluster.control_plane().count(),
                cluster.workers().count()
            ),
        });
    }
    for running in run.running.into_values() {
        running.instance.stop().await;
    }
    for judge in [watching, watching_root, watching_repairs] {
        assert!(!judge.has_ended(), "a judge gave up before the end, and saw nothing from then on");
    }
    let counts = *run.world.counts.lock().unwrap();
    Report {
        violations,
        history,
        commits: checker.commits(),
        terms: checker.terms(),
        actor_failures: counts.actor_failures,
        failed_polls: counts.failed_polls,
        failed_commits: counts.failed_commits,
        held: counts.held,
        faults: run.faults,
        placement: placement.seen(),
        user: user.map(|user| user.done).unwrap_or_default(),
        metrics: run.world.prometheus.asked(),
        repairs: repairs.seen(),
        queue_acts: queue_user.acts,
        troubles: *run.troubles.lock().unwrap(),
    }
}

/// Everything that fits somewhere is bound there by now, and nothing is written any more, but what is tried again.
async fn placed(placement: &PlacementChecker, history: &History) -> Vec<Violation> {
    let (mut found, homeless) = placement.misplaced();
    let (applications, bound) = placement.bound();
    let settled = history.now();
    let fit_nowhere = homeless.len();
    history.note("driver", format_args!("{bound} of {applications} are bound, {fit_nowhere} fit nowhere"));
    tokio::time::sleep(PLACED).await;
    let written = placement.changes_since(settled);
    let restless = written.into_iter().filter_map(|(_, key)| ObjectKey::from_etcd_key(&key));
    found.extend(restless.map(|key| Violation {
        invariant: Id::I12,
        what: format!("{key} was written although nothing changed"),
    }));
    found
}

/// A data center in which something happens every few minutes.
fn rates() -> Rates {
    let demo = Rates::demo();
    let slower = |time: Option<Duration>| time.map(|time| time * 15);
    Rates {
        break_after: slower(demo.break_after),
        repair_takes: slower(demo.repair_takes),
        update_after: slower(demo.update_after),
        update_takes: slower(demo.update_takes),
        initialize_takes: slower(demo.initialize_takes),
        age_every: slower(demo.age_every),
        retire_overdue_after: slower(demo.retire_overdue_after),
        retiring_takes: slower(demo.retiring_takes),
        retired_kept: slower(demo.retired_kept),
        replaced_after: slower(demo.replaced_after),
        rack_outage_after: Some(Duration::from_secs(12 * 60 * 60)),
        rack_outage_takes: Some(Duration::from_secs(10 * 60)),
        ..demo
    }
}

struct Run {
    world: World,
    running: BTreeMap<&'static str, Running>,
    /// When an instance comes back, in time since the start.
    away: BTreeMap<&'static str, Duration>,
    chance: ChaCha8Rng,
    faults: u64,
    troubles: Arc<Mutex<Troubles>>,
}

impl Run {
    async fn start(&mut self, name: &'static str) {
        let running = self.world.start(name).await;
        self.running.insert(name, running);
    }

    async fn bring_back(&mut self) {
        let now = self.world.history.now();
        let due: Vec<&str> = self.away.iter().filter(|(_, at)| **at <= now).map(|(name, _)| *name).collect();
        for name in due {
            self.away.remove(name);
            self.start(name).await;
        }
    }

    /// The leader most of the time, else anybody.
    fn victim(&mut self) -> Option<&'static str> {
        let leader = self
            .running
            .iter()
            .find(|(_, running)| running.instance.view().reign.borrow().is_some())
            .map(|(name, _)| *name);
        let anybody = self.chance.random_range(0..INSTANCES);
        if self.chance.random_range(0..10) < 7 && leader.is_some() {
            return leader;
        }
        self.running.keys().nth(anybody % self.running.len().max(1)).copied()
    }

    async fn fault(&mut self, operator: &mut Operator) {
        self.faults += 1;
        let kind = self.chance.random_range(0..11_u32);
        let seconds = Duration::from_secs_f64(self.chance.random_range(0.5..200.0));
        let what = match (kind, self.victim()) {
            (0 | 1, Some(name)) => self.take_away(name, kind == 0, seconds).await,
            (2, Some(name)) => self.pause(name, seconds),
            (3, Some(name)) => self.disconnect(name, seconds.min(Duration::from_secs(40))),
            (4, Some(name)) => {
                let trigger = [Trigger::Leader, Trigger::Poller, Trigger::Planner, Trigger::Scheduler]
                    [self.chance.random_range(0..4_usize)];
                self.running[name].bomb.arm(trigger);
                format!("{name}: its {trigger:?} will panic")
            }
            (5, Some(name)) => self.kill_actor(name).await,
            (6..=8, _) => self.registry_fault(seconds * 2),
            _ => operator.act().await.unwrap(),
        };
        self.world.history.note("driver", &what);
    }

    /// What goes wrong with machines, and with a leader that repairs them.
    async fn trouble(&mut self, repairs: &RepairJudge) {
        let seconds = Duration::from_secs_f64(self.chance.random_range(30.0..900.0));
        let registry = self.world.registry.clone();
        let rack = self.chance.random_range(0..registry.with(|datacenter| datacenter.racks()));
        let what = match self.chance.random_range(0..10_u32) {
            0 | 1 => self.flap(seconds),
            8 => match self.victim() {
                Some(name) => self.kill_child(name, REPAIR).await,
                None => return,
            },
            2 => {
                registry.kill_rack(rack).unwrap();
                self.troubles.lock().unwrap().outages += 1;
                tokio::spawn(async move {
                    tokio::time::sleep(seconds).await;
                    registry.power_on(rack).unwrap();
                });
                format!("rack {rack} is without power for {seconds:?}")
            }
            kind @ (3 | 4) => {
                let fault = if kind == 3 { Fault::FalseReports(30) } else { Fault::ClockSet(3600) };
                let fault = match self.chance.random_range(0..2_u32) {
                    0 if kind == 4 => Fault::ClockSet(-3600),
                    _ => fault,
                };
                let switch = registry.faults().clone();
                switch.set(fault.clone());
                let told = format!("the registry: {fault:?} for {seconds:?}");
                tokio::spawn(async move {
                    tokio::time::sleep(seconds).await;
                    switch.clear(&fault);
                });
                told
            }
            5 | 6 => self.ambush(repairs).await,
            7 => match self.victim() {
                Some(name) => {
                    self.running[name].bomb.arm(Trigger::Repair);
                    format!("{name}: its repairs will panic")
                }
                None => return,
            },
            _ => return,
        };
        self.world.history.note("driver", &what);
    }

    /// A few machines break and heal, again and again.
    fn flap(&mut self, length: Duration) -> String {
        let registry = self.world.registry.clone();
        let machines = registry.machines();
        let serials: Vec<String> = (0..3)
            .map(|_| machines[self.chance.random_range(0..machines.len())].spec.serial.clone())
            .collect();
        let told = format!("{serials:?} flap for {length:?}");
        let until = tokio::time::Instant::now() + length;
        let troubles = Arc::clone(&self.troubles);
        tokio::spawn(async move {
            let mut state = MachineState::Unreachable;
            while tokio::time::Instant::now() < until {
                for serial in &serials {
                    // One that is being set up or was taken away does not flap.
                    let changed = registry.set_state(serial, state).is_ok();
                    let broke = changed && state == MachineState::Unreachable;
                    troubles.lock().unwrap().flaps += u64::from(broke);
                }
                state = match state {
                    MachineState::Unreachable => MachineState::Healthy,
                    _ => MachineState::Unreachable,
                };
                tokio::time::sleep(Duration::from_secs(20)).await;
            }
        });
        told
    }

    /// Kills the leader in a state of a repair that the fewest were killed in, if it comes to that.
    async fn ambush(&mut self, repairs: &RepairJudge) -> String {
        let before = self.troubles.lock().unwrap().ambushes;
        let fewest = before.iter().min().copied().unwrap_or(0);
        let wanted: Vec<usize> = (0..before.len()).filter(|state| before[*state] == fewest).collect();
        let is_there = |state: &&usize| match state {
            0 => repairs.is_somewhere(&RepairStatus::Queued, &RepairStepStatus::Waiting),
            1 => repairs.is_somewhere(&RepairStatus::Processing, &RepairStepStatus::Waiting),
            2 => repairs.is_somewhere(&RepairStatus::Processing, &RepairStepStatus::Watching),
            3 => repairs.is_somewhere(&RepairStatus::Processing, &RepairStepStatus::Draining),
            _ => repairs.is_running(),
        };
        for _ in 0..TO_AMBUSH {
            let leader = self
                .running
                .iter()
                .find(|(_, running)| running.instance.view().reign.borrow().is_some())
                .map(|(name, _)| *name);
            if let (Some(state), Some(name)) = (wanted.iter().find(is_there), leader) {
                let told = self.take_away(name, false, Duration::from_secs(30)).await;
                self.troubles.lock().unwrap().ambushes[*state] += 1;
                return format!("in state {state} of a repair: {told}");
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        format!("no repair comes to states {wanted:?}")
    }

    async fn take_away(&mut self, name: &'static str, gracefully: bool, away: Duration) -> String {
        let Some(running) = self.running.remove(name) else { return "nobody is left".to_owned() };
        self.away.insert(name, self.world.history.now() + away);
        self.world.doors.lock().unwrap().remove(name);
        if gracefully {
            running.instance.stop().await;
            return format!("{name} stopped for {away:?}");
        }
        // A crash: nothing reaches the store any more, not even a farewell.
        running.link.set(Mode::Cut);
        running.instance.kill().await;
        format!("{name} killed for {away:?}")
    }

    /// As SIGSTOP looks from outside: nothing goes in or out, and then all of it at once.
    fn pause(&mut self, name: &str, pause: Duration) -> String {
        let running = &self.running[name];
        let (link, http) = (running.link.clone(), running.http.link().clone());
        link.set(Mode::Stalled);
        http.set(Fault::Hang);
        tokio::spawn(async move {
            tokio::time::sleep(pause).await;
            link.set(Mode::Open);
            http.clear(&Fault::Hang);
        });
        format!("{name} paused for {pause:?}")
    }

    fn disconnect(&mut self, name: &str, pause: Duration) -> String {
        let link = self.running[name].link.clone();
        link.set(Mode::Cut);
        tokio::spawn(async move {
            tokio::time::sleep(pause).await;
            link.set(Mode::Open);
        });
        format!("{name} cut from the store for {pause:?}")
    }

    async fn kill_actor(&mut self, name: &str) -> String {
        let which = [LEADER, POLLER, PLANNER, FETCHER, SCHEDULER][self.chance.random_range(0..5_usize)];
        self.kill_child(name, which).await
    }

    async fn kill_child(&mut self, name: &str, which: &str) -> String {
        let root = self.running[name].instance.root().clone();
        let parent = match which {
            LEADER => Some(root),
            _ => root.child(REIGN).await.unwrap().and_then(SupervisorRef::from_cell),
        };
        let Some(parent) = parent else { return format!("{name} has no {which}") };
        match parent.child(which).await {
            Ok(Some(cell)) => {
                cell.kill();
                format!("{name}: {which} killed")
            }
            Ok(None) | Err(_) => format!("{name}: {which} does not run"),
        }
    }

    fn registry_fault(&mut self, length: Duration) -> String {
        let faults = [
            Fault::RefuseConnections,
            Fault::Hang,
            Fault::Slow(Duration::from_secs(7)),
            Fault::Status(500),
            Fault::GraphQlError,
            Fault::PartialData,
            Fault::TruncateBody,
            Fault::MalformedJson,
            Fault::WrongTypes,
            Fault::EmptyList,
            Fault::NullList,
            Fault::ShrinkList(40),
            Fault::DuplicateAddresses(5),
            Fault::WithoutAddress(5),
        ];
        let fault = faults[self.chance.random_range(0..faults.len())].clone();
        let switch = self.world.registry.faults().clone();
        switch.set(fault.clone());
        let told = format!("the registry: {fault:?} for {length:?}");
        tokio::spawn(async move {
            tokio::time::sleep(length).await;
            switch.clear(&fault);
        });
        told
    }

    /// Everything works again, and everybody is there.
    async fn heal(&mut self, operator: &mut Operator, user: Option<&mut User>) {
        // What was spawned to end a fault has ended after the longest one.
        tokio::time::sleep(Duration::from_secs(400)).await;
        self.world.registry.faults().clear_all();
        for running in self.running.values() {
            running.link.set(Mode::Open);
            running.http.link().clear_all();
            running.bomb.disarm();
        }
        operator.settle().await.unwrap();
        for name in std::mem::take(&mut self.away).into_keys() {
            self.start(name).await;
        }
        self.world.history.note("driver", "everything is mended");
        tokio::time::sleep(SESSION_TTL + INTERVAL).await;
        if let Some(user) = user {
            user.settle().await;
        }
        tokio::time::sleep(TO_PLACE).await;
    }
}
