//! Random fleets, reports, users, clocks and faults around the whole actor, through several leaders.
//!
//! Checks each state of the store, each submitted change, and each command when it starts.
//!
//! Does not check the effects on Kubernetes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use madako_domain::constraints::Constraints;
use madako_domain::invariants::repair::{
    check_api_servers_of_cluster, check_one_api_server, check_one_repair_a_machine, check_records,
};
use madako_domain::keys;
use madako_domain::machine::{Bmc, Machine};
use madako_domain::reboot::RebootStatus;
use madako_domain::repair::RepairQueueEntry;
use madako_domain::repair::hold::Hold;
use madako_domain::repair::report::Reports;
use madako_domain::state::ClusterState;
use madako_protocol::actors::CommitError;
use madako_protocol::kubernetes::KubernetesError;
use proptest::collection::vec;
use proptest::prelude::{Just, ProptestConfig, Strategy, any, prop_oneof};
use proptest::test_runner::TestCaseError;
use proptest::{prop_assert, prop_assert_eq, proptest};
use tokio::time::Instant;

use super::world::{Does, LeaderState, World, pod};
use crate::machines::machine;
use crate::testing::{REPAIR, Store, queued};

/// Maximum fleet size: racks of four.
const MOST: u8 = 12;

/// Interval of registry polls, in seconds.
const POLL: u64 = 10;

/// An event of the world. Machines and entries are selected among existing ones.
#[derive(Debug, Clone)]
enum Happening {
    /// Time passes, with polls of the registry.
    Passes(u64),
    /// A machine appears in reports, or disappears from them, independently of its real health.
    Reported(u8, bool),
    /// The registry reports a part of the fleet, with different times, independently of the real health.
    Falsely(u16),
    /// The registry's clock is set.
    Clock(i32),
    /// The registry becomes unavailable, or available again.
    Away(bool),
    /// The real health of a machine changes.
    Healthy(u8, bool),
    /// The machine's role in the cluster: none, worker, control plane node.
    Role(u8, u8),
    Maximum(u8),
    Add(u8, bool),
    Delete(usize),
    /// A user writes back an earlier version of an entry.
    Overwrite(usize, usize),
    Disable(bool),
    Release(u8),
    Reboot(u8, bool),
    Does(bool, u8),
    /// The next commit is lost, is rejected, or is written without an answer.
    Fails(u8),
    /// Lost commits are written.
    Lands,
    /// Another leader takes over with the store's state alone.
    Dies,
    Kubernetes(u8),
}

fn happening() -> impl Strategy<Value = Happening> {
    let machine = || 0..MOST;
    prop_oneof![
        10 => (1..150_u64).prop_map(Happening::Passes),
        5 => (machine(), any::<bool>()).prop_map(|(machine, is)| Happening::Reported(machine, is)),
        1 => any::<u16>().prop_map(Happening::Falsely),
        1 => (-4_000..4_000_i32).prop_map(Happening::Clock),
        1 => any::<bool>().prop_map(Happening::Away),
        3 => (machine(), any::<bool>()).prop_map(|(machine, is)| Happening::Healthy(machine, is)),
        3 => (machine(), 0..3_u8).prop_map(|(machine, role)| Happening::Role(machine, role)),
        1 => (0..8_u8).prop_map(Happening::Maximum),
        4 => (machine(), any::<bool>()).prop_map(|(machine, drains)| Happening::Add(machine, drains)),
        2 => (0..8_usize).prop_map(Happening::Delete),
        2 => (0..8_usize, 0..20_usize).prop_map(|(entry, age)| Happening::Overwrite(entry, age)),
        1 => any::<bool>().prop_map(Happening::Disable),
        1 => (0..3_u8).prop_map(Happening::Release),
        1 => (machine(), any::<bool>()).prop_map(|(machine, is)| Happening::Reboot(machine, is)),
        2 => (any::<bool>(), 0..6_u8).prop_map(|(repairs, how)| Happening::Does(repairs, how)),
        7 => (0..3_u8).prop_map(Happening::Fails),
        4 => Just(Happening::Lands),
        3 => Just(Happening::Dies),
        1 => (0..3_u8).prop_map(Happening::Kubernetes),
    ]
}

fn address(machine: u8) -> String {
    format!("10.0.0.{}", machine + 1)
}

#[derive(Default)]
struct Commands {
    /// Entry (index and create revision) and step; a success command has no step.
    begun: BTreeSet<(i64, i64, Option<u32>)>,
    wrong: Vec<String>,
}

impl Commands {
    /// Checks a started command: one record is unfinished, and an entry's kept data names it.
    fn start(&mut self, program: &str, state: &ClusterState) {
        let queue = &state.repair;
        let Some(record) = queue.records.unfinished.keys().next().copied() else {
            return self.wrong.push(format!("{program} starts and no record announces it"));
        };
        let announced = queue.kept.iter().find_map(|(index, item)| {
            let kept = &item.value;
            let started = kept.started.as_ref().filter(|started| started.record == record);
            let step = started.map(|started| started.step);
            (step.is_some() || kept.finishing == Some(record)).then_some((*index, kept.entry, step))
        });
        let Some((index, created, step)) = announced else {
            return self.wrong.push(format!("{program} starts and nothing kept names record {record}"));
        };
        if step.is_some() && queue.disabled {
            self.wrong.push(format!("{program} of entry {index} starts in a disabled queue"));
        }
        if !self.begun.insert((index, created, step)) {
            self.wrong.push(format!("{program} of entry {index}, step {step:?}, runs twice"));
        }
    }
}

struct Site {
    world: World,
    size: u8,
    roles: BTreeMap<u8, u8>,
    /// Time since which each machine is reported, in seconds of true time.
    reported: BTreeMap<u8, f64>,
    started: Instant,
    clock: f64,
    away: bool,
    commands: Arc<Mutex<Commands>>,
    past: BTreeMap<i64, Vec<RepairQueueEntry>>,
    /// A user wrote an older version: conflicts between entries are not this system's.
    spoiled: bool,
    last: Arc<ClusterState>,
}

impl Site {
    async fn new(size: u8, roles: &[u8]) -> Self {
        let mut store = Store::default();
        store.text(keys::SABAKAN_URL, "http://registry");
        set_maximum(&mut store, 5);
        let roles = (0..size).zip(roles.iter().copied()).collect();
        configure(&mut store, &roles);
        let mut world = World::new(store).await;
        let commands = Arc::<Mutex<Commands>>::default();
        let (leader_state, watched) = (Arc::clone(&world.leader_state), Arc::clone(&commands));
        world.host.0.lock().unwrap().watch = Some(Box::new(move |program| {
            let state = leader_state.lock().unwrap().store.state();
            watched.lock().unwrap().start(program, &state);
        }));
        // Leaders end during it.
        world.host.0.lock().unwrap().does.insert("reset".to_owned(), Does::Takes(Duration::from_secs(15)));
        world.begin().await;
        let last = world.leader_state.lock().unwrap().store.state();
        Self {
            world,
            size,
            roles,
            reported: BTreeMap::new(),
            started: Instant::now(),
            clock: 0.0,
            away: false,
            commands,
            past: BTreeMap::new(),
            spoiled: false,
            last,
        }
    }

    fn elapsed(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// Delivers the registry's answer, unless it is unavailable or not asked.
    fn poll(&self) {
        let (state, at) = (self.state(), self.world.arguments.clock.now());
        let Some(query) = state.reports_query().filter(|_| !self.away) else { return };
        let report = |(number, since): (&u8, &f64)| {
            let mut machine =
                machine(*number + 1, i64::from(*number / 4), self.elapsed() - since + self.clock);
            machine.spec.bmc = Bmc { bmc_type: "t".to_owned() };
            machine
        };
        let machines: Vec<Machine> = self.reported.iter().map(report).collect();
        let (machines, received) = (Arc::new(machines), Instant::now());
        self.world.reported.publish(Arc::new(Reports {
            machines,
            at,
            received,
            query,
            revision: state.revision,
        }));
    }

    fn state(&self) -> Arc<ClusterState> {
        self.world.leader_state.lock().unwrap().store.state()
    }

    async fn pass(&self, seconds: u64) {
        for _ in 0..seconds.div_ceil(POLL) {
            tokio::time::sleep(Duration::from_secs(seconds.min(POLL))).await;
            self.poll();
        }
    }

    fn change(&self, change: impl FnOnce(&mut Store)) {
        self.world.change(change);
    }

    fn chosen(&self, number: usize) -> Option<RepairQueueEntry> {
        let state = self.state();
        let count = state.repair.entries.len();
        let item = state.repair.entries.values().nth(number.checked_rem(count)?)?;
        Some(item.value.clone())
    }

    async fn happens(&mut self, happening: &Happening) {
        match *happening {
            Happening::Passes(seconds) => self.pass(seconds).await,
            Happening::Reported(machine, true) => {
                let since = self.elapsed();
                self.reported.entry(machine % self.size).or_insert(since);
            }
            Happening::Reported(machine, false) => {
                self.reported.remove(&(machine % self.size));
            }
            Happening::Falsely(machines) => {
                let now = self.elapsed();
                let falsely = (0..self.size).filter(|machine| machines & (1 << machine) != 0);
                self.reported = falsely.map(|machine| (machine, now - 700.0 * f64::from(machine))).collect();
            }
            Happening::Clock(seconds) => self.clock = f64::from(seconds),
            Happening::Away(is) => self.away = is,
            Happening::Healthy(machine, is) => {
                let address = address(machine % self.size);
                let healthy = &mut self.world.host.0.lock().unwrap().healthy;
                healthy.remove(&address);
                healthy.extend(is.then_some(address));
            }
            Happening::Role(machine, role) => self.give(machine % self.size, role),
            Happening::Maximum(maximum) => self.change(|store| set_maximum(store, maximum)),
            Happening::Add(machine, drains) => {
                let operation = if drains { "unreachable" } else { "plain" };
                // Indexes as ckecli assigns them.
                let index = self.state().repair.write_index.unwrap().0;
                let entry = queued(index, &address(machine % self.size), operation);
                self.change(|store| {
                    store.text(keys::REPAIRS_WRITE_INDEX, &(index + 1).to_string());
                    store.entry(&entry);
                });
            }
            Happening::Delete(number) => {
                if let Some(entry) = self.chosen(number) {
                    self.change(|store| store.entry(&RepairQueueEntry { deleted: true, ..entry }));
                }
            }
            Happening::Overwrite(number, age) => {
                let Some(entry) = self.chosen(number) else { return };
                let past = self.past.get(&entry.index).map(Vec::as_slice).unwrap_or_default();
                let Some(older) = past.iter().rev().nth(age).cloned() else { return };
                self.spoiled = true;
                self.change(|store| store.entry(&RepairQueueEntry { deleted: entry.deleted, ..older }));
            }
            Happening::Disable(is) => {
                self.change(|store| store.text(keys::REPAIRS_DISABLED, if is { "true" } else { "false" }));
            }
            Happening::Release(rack) => {
                let rack = rack.to_string();
                if let Some(hold) = self.state().holds.get(&rack) {
                    let mut hold = Hold::clone(&hold.value);
                    hold.release();
                    self.change(|store| store.put(&keys::repair_hold_key(&rack), &hold));
                }
            }
            Happening::Reboot(machine, is) => {
                // CKE does not begin a reboot of an API server while another is under repair.
                let free = self.state().repair.machines_under_way().next().is_none();
                let status = if is && free { RebootStatus::Draining } else { RebootStatus::Queued };
                self.change(|store| store.reboot(0, &address(machine % self.size), status));
            }
            Happening::Does(repairs, how) => {
                let does = match how {
                    0 => Does::Exits(0),
                    1 => Does::Exits(3),
                    2 => Does::CuresAndExits(0),
                    3 => Does::GetsLost,
                    4 => Does::Takes(Duration::from_secs(45)),
                    _ => Does::NotBegin,
                };
                let program = if repairs { "reset" } else { "celebrate" };
                self.world.host.0.lock().unwrap().does.insert(program.to_owned(), does);
            }
            Happening::Fails(how) => {
                let unanswered = CommitError::Unanswered { deadline: Duration::from_secs(10) };
                let failure = match how {
                    0 => (false, unanswered),
                    1 => (false, CommitError::Conflict { keys: vec!["another key".to_owned()] }),
                    _ => (true, unanswered),
                };
                self.world.leader_state.lock().unwrap().fails.push_back(failure);
            }
            Happening::Lands => self.world.leader_state.lock().unwrap().land(),
            Happening::Dies => {
                self.world.kill().await;
                self.world.begin().await;
            }
            Happening::Kubernetes(how) => {
                let mut kubernetes = self.world.kubernetes.0.lock().unwrap();
                let (what, why) = ("pods".to_owned(), "connection refused".to_owned());
                kubernetes.down = (how == 0).then_some(KubernetesError::Unavailable { what, why });
                for machine in (0..self.size).filter(|_| how == 1) {
                    let node = format!("node-{}", address(machine));
                    kubernetes.pods.insert(node, vec![pod(&format!("web-{machine}"), "ReplicaSet")]);
                }
            }
        }
    }

    /// Gives a machine a role, unless the leader would reject the change.
    fn give(&mut self, machine: u8, role: u8) {
        let mut roles = self.roles.clone();
        roles.insert(machine, role);
        let mut after = Store::default();
        configure(&mut after, &roles);
        let (state, after) = (self.state(), after.state());
        let cluster = |state: &ClusterState| state.cluster.as_ref().map(|it| Arc::clone(&it.value));
        let (before, after) = (cluster(&state), cluster(&after).unwrap());
        if check_api_servers_of_cluster(before.as_deref(), &after, &state.repair).is_none() {
            self.change(|store| configure(store, &roles));
            self.roles = roles;
        }
    }

    /// Checks all writes and commands since the last call.
    fn check_invariants(&mut self) -> Result<(), TestCaseError> {
        let published = {
            let leader_state: &mut LeaderState = &mut self.world.leader_state.lock().unwrap();
            prop_assert_eq!(&leader_state.broken, &Vec::<String>::new());
            std::mem::take(&mut leader_state.published)
        };
        prop_assert_eq!(&self.commands.lock().unwrap().wrong, &Vec::<String>::new());
        prop_assert!(self.world.host.0.lock().unwrap().at_once <= 1, "commands run side by side");
        for state in published {
            let queue = &state.repair;
            if !self.spoiled {
                prop_assert_eq!(check_one_repair_a_machine(queue), []);
                let cluster = state.cluster.as_ref().map(|cluster| &*cluster.value);
                prop_assert_eq!(check_one_api_server(queue, cluster), None);
            }
            prop_assert_eq!(check_records(queue), []);
            for (index, was) in &self.last.repair.entries {
                // I9: an entry disappears only on request.
                let there = queue.entries.contains_key(index);
                prop_assert!(there || was.value.deleted, "entry {} is lost", index);
            }
            for (index, item) in &queue.entries {
                let past = self.past.entry(*index).or_default();
                if past.last() != Some(&item.value) {
                    past.push(item.value.clone());
                }
            }
            self.last = state;
        }
        Ok(())
    }

    /// Clears all faults: every entry ends, and then nothing is written.
    async fn recover(&mut self) -> Result<(), TestCaseError> {
        self.away = false;
        self.reported.clear();
        {
            let mut leader_state = self.world.leader_state.lock().unwrap();
            leader_state.fails.clear();
            leader_state.lost.clear();
        }
        self.world.kubernetes.0.lock().unwrap().down = None;
        self.world.host.0.lock().unwrap().does.clear();
        self.change(|store| {
            store.text(keys::REPAIRS_DISABLED, "false");
            store.reboot(0, "", RebootStatus::Queued);
        });
        let is_over =
            |state: &ClusterState| state.repair.entries.values().all(|item| item.value.is_finished());
        // Ten given-up drains make a back-off of nearly an hour.
        for _ in 0..200 {
            self.pass(60).await;
            self.check_invariants()?;
            if is_over(&self.state()) {
                break;
            }
        }
        let state = self.state();
        let unfinished = state.repair.entries.values().filter(|item| !item.value.is_finished());
        prop_assert_eq!(unfinished.collect::<Vec<_>>(), Vec::<&Arc<_>>::new());
        // A rack fails, and a machine elsewhere: one write.
        self.change(|store| set_maximum(store, 0));
        let now = self.elapsed();
        self.reported = (0..self.size.min(5)).map(|machine| (machine, now)).collect();
        self.pass(300).await;
        let revision = self.state().revision;
        self.pass(600).await;
        self.check_invariants()?;
        prop_assert_eq!(self.state().revision, revision, "I12");
        Ok(())
    }
}

fn configure(store: &mut Store, roles: &BTreeMap<u8, u8>) {
    let of = |wanted: u8| -> Vec<String> {
        roles.iter().filter(|(_, role)| **role == wanted).map(|(machine, _)| address(*machine)).collect()
    };
    let (workers, control_plane) = (of(1), of(2));
    let workers: Vec<&str> = workers.iter().map(String::as_str).collect();
    let control_plane: Vec<&str> = control_plane.iter().map(String::as_str).collect();
    store.configure(&control_plane, &workers, REPAIR);
    for machine in roles.keys() {
        store.rack(&address(*machine), &(machine / 4).to_string());
    }
}

fn set_maximum(store: &mut Store, maximum: u8) {
    let constraints = Constraints {
        maximum_repair_queue_entries: i64::from(maximum),
        wait_seconds_to_repair_rebooting: 30,
        ..Constraints::default()
    };
    store.put(keys::CONSTRAINTS, &constraints);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, max_shrink_time: 60_000, ..ProptestConfig::default() })]

    #[test]
    fn invariants_hold_and_no_command_runs_twice_under_failures_and_handovers(
        size in 3..=MOST,
        roles in vec(0..3_u8, usize::from(MOST)),
        happenings in vec(happening(), 1..70),
    ) {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let mut site = Site::new(size, &roles).await;
            for happening in &happenings {
                site.happens(happening).await;
                site.check_invariants()?;
            }
            site.recover().await
        })?;
    }
}
