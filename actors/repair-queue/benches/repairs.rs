//! Cost of a decision about the whole repair queue.
//!
//! `cargo bench --workspace --bench repairs` prints a table of wall-clock times of a decision on one thread. A
//! decision consists of the next actions (index of the cluster's nodes, and the next action of each entry) and of the
//! reports (entries' machines in held racks, evaluation of each report, news, and the change to write). All machines
//! are reported, or a tenth of them; half of the racks are held. Their sum is the cost of a pass with a new state of
//! the store or a new answer; another pass on the same input costs the next actions alone. The table also shows the
//! decoding of a state in which one entry changed, which precedes a decision, and the work done once for each answer
//! of the registry, with all machines in the observation.

#![allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]
#![allow(clippy::print_stdout, reason = "a benchmark's output is its table")]

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use madako_domain::cluster::{Cluster, Node};
use madako_domain::keys;
use madako_domain::machine::{Bmc, Machine, MachineSpec, MachineState, MachineStatus};
use madako_domain::observation::Query;
use madako_domain::repair::hold::{HoldSettings, Holds};
use madako_domain::repair::report::{Monotonic, Reports};
use madako_domain::repair::{RepairQueueEntry, RepairStatus, RepairStepStatus};
use madako_domain::state::ClusterState;
use madako_domain::store::Entry;
use madako_json::go::RawJson;
use madako_repair_queue::hold::holds_after;
use madako_repair_queue::hold::times::Times;
use madako_repair_queue::limiter::RemovedEntries;
use madako_repair_queue::news::ReportedState;
use madako_repair_queue::pass::{Health, LeaderState, View, config, next_actions, nodes_of_queue};
use madako_repair_queue::racks::{Answers, HeldBack, Racks, held_back};
use madako_repair_queue::requests::{change, decide, kept_racks, nodes, queried_machines};
use time::OffsetDateTime;

/// Timed runs of each case, after one untimed run.
const RUNS: usize = 31;

const REPAIR: &str = r#"{"max_concurrent_repairs": 20, "repair_procedures": [{"machine_types": ["t"],
    "repair_operations": [{"operation": "unreachable", "health_check_command": ["check"], "repair_steps": [
    {"repair_command": ["reset"], "need_drain": true, "watch_seconds": 600}]}]}]}"#;

fn now() -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp(1_700_000_000).expect("a time within range")
}

fn address(machine: usize) -> String {
    format!("10.{}.{}.{}", machine >> 16, (machine >> 8) & 255, machine & 255)
}

/// A machine that failed this many seconds ago.
fn make_machine(number: usize, seconds: f64) -> Machine {
    Machine {
        spec: MachineSpec {
            serial: format!("{number:016x}"),
            labels: vec![],
            rack: i64::try_from(number / 40).expect("there are few"),
            index_in_rack: 0,
            role: "compute".to_owned(),
            ipv4: vec![address(number)],
            register_date: now(),
            retire_date: now(),
            bmc: Bmc { bmc_type: "t".to_owned() },
        },
        status: MachineStatus { state: MachineState::Unreachable, duration: seconds },
    }
}

/// Reports of every `every`th machine; where that is not all, none of them has an entry. In every other rack the
/// machines failed together, in the others hours apart.
fn reported_machines(machines: usize, every: usize) -> Vec<Machine> {
    #[allow(clippy::cast_precision_loss, reason = "a count far below 2^52")]
    let ago = |number: usize| {
        if (number / 40).is_multiple_of(2) { 9_000.0 } else { 9_000.0 * (number % 40 + 1) as f64 }
    };
    let numbers = (0..machines).filter(|number| every == 1 || number % every == 1);
    numbers.map(|number| make_machine(number, ago(number))).collect()
}

/// Cost of reports: once for each answer, and in each pass.
fn measure_reports(
    store: &mut BTreeMap<String, Entry>,
    machines: usize,
    every: usize,
) -> (Duration, Duration) {
    let settings = HoldSettings::default();
    let observed: Vec<Machine> = (0..machines).map(|number| make_machine(number, 1e6)).collect();
    let hold = Some(&settings);
    let none = Times::default();
    let mut put = |key: &str, value: Vec<u8>| {
        let entry = Entry { value: value.into(), create_revision: 1, mod_revision: 1, lease: 0 };
        store.insert(key.to_owned(), entry);
    };
    put(keys::SABAKAN_URL, b"http://registry".to_vec());
    put(keys::CONSTRAINTS, br#"{"maximum-repair-queue-entries": 100000}"#.to_vec());
    let received = Monotonic::now();
    let query = Query { url: 1, variables: 0 };
    let machines = Arc::new(reported_machines(machines, every));
    let reports = Reports { machines: Arc::clone(&machines), at: now(), received, query, revision: 1 };
    let came = (now(), Some(received));
    let times = Times::from_answer(&machines, came, hold, &Holds::new(), &none);
    for (rack, held) in holds_after(&machines, &times, hold, &Holds::new(), now()) {
        put(&keys::repair_hold_key(&rack), serde_json::to_vec(&*held).expect("it is JSON"));
    }
    let state = ClusterState::decode(1, store, None);
    let answer = measure_time(|| {
        black_box(Times::from_answer(&machines, came, hold, &state.holds, &times));
        black_box(Racks::from_machines(&machines, &settings.label));
        black_box(Racks::from_machines(&observed, &settings.label));
    });
    let racks =
        [Racks::from_machines(&machines, &settings.label), Racks::from_machines(&observed, &settings.label)];
    let answers = Answers { reported: Some(&racks[0]), observed: Some(&racks[1]) };
    let removed = RemovedEntries::default();
    let mut reported = ReportedState::default();
    let judging = measure_time(|| {
        let held = held_back(queried_machines(&state), &kept_racks(&state), answers, nodes(&state), hold);
        assert!(black_box(held).racks.len() >= state.repair.entries.len() / 3);
        let decision =
            decide(&state, &reports, (&times, &removed), hold, (Duration::from_secs(60), received))
                .expect("the reports are good");
        assert!(!decision.refused.is_empty());
        black_box(reported.take_news(&decision, &machines));
        black_box(change(&state, &decision)).expect("entries are added");
    });
    (answer, judging)
}

/// A store with a cluster of machines, and entries in every status for a tenth of them.
fn make_store(machines: usize, entries: usize) -> BTreeMap<String, Entry> {
    let node = |machine| Node { address: address(machine), control_plane: machine < 5, ..Node::default() };
    let cluster = Cluster {
        nodes: (0..machines).map(node).collect(),
        repair: RawJson::from_text(REPAIR.to_owned()).expect("it is JSON"),
        ..Cluster::default()
    };
    let mut store = BTreeMap::new();
    let mut put = |key: String, value: Vec<u8>| {
        let entry = Entry { value: value.into(), create_revision: 1, mod_revision: 1, lease: 0 };
        store.insert(key, entry);
    };
    put(keys::CLUSTER.to_owned(), serde_json::to_vec(&cluster).expect("it is JSON"));
    for index in 0..entries {
        let number = i64::try_from(index).expect("there are few");
        let status = match index % 50 {
            0 => RepairStatus::Processing,
            1..10 => RepairStatus::Succeeded,
            10..15 => RepairStatus::Failed,
            _ => RepairStatus::Queued,
        };
        let entry = RepairQueueEntry {
            index: number,
            status,
            step_status: if index % 50 == 0 { RepairStepStatus::Watching } else { RepairStepStatus::Waiting },
            last_transition_time: Some(now()),
            ..RepairQueueEntry::new("unreachable", "t", address((index * 10) % machines))
        };
        put(keys::repair(number), serde_json::to_vec(&entry).expect("it is JSON"));
    }
    store
}

fn measure_time(mut run: impl FnMut()) -> Duration {
    run();
    let mut times: Vec<Duration> = (0..RUNS)
        .map(|_| {
            let started = Instant::now();
            run();
            started.elapsed()
        })
        .collect();
    times.sort_unstable();
    times[RUNS / 2]
}

fn main() {
    println!(
        "| machines | entries | reported | look | reports | together | once an answer | decoding after a change |"
    );
    println!("|---:|---:|---:|---:|---:|---:|---:|---:|");
    for (machines, entries, every) in [(100, 10, 1), (1_000, 100, 1), (10_000, 1_000, 10), (10_000, 1_000, 1)]
    {
        let mut store = make_store(machines, entries);
        let state = ClusterState::decode(1, &store, None);
        let health = state.repair.entries.keys().map(|index| (*index, Health::Unhealthy)).collect();
        let live = LeaderState { health, host: true, kubernetes: true, ..LeaderState::default() };
        let held = HeldBack::default();
        let looking = measure_time(|| {
            let nodes = nodes_of_queue(state.cluster.as_ref().map(|cluster| &*cluster.value), &state.repair);
            let config = config(&state);
            let actions = next_actions(&View {
                queue: &state.repair,
                nodes: &nodes,
                config: config.as_ref().map(|config| *config),
                held: &held,
                live: &live,
                now: now(),
            });
            assert_eq!(black_box(actions).len(), entries);
        });
        if let Some(entry) = store.get_mut(&keys::repair(3)) {
            entry.mod_revision = 2;
        }
        let decoding = measure_time(|| {
            black_box(ClusterState::decode(2, &store, Some(&state)));
        });
        let millis = |time: Duration| time.as_secs_f64() * 1e3;
        let (answer, judging) = measure_reports(&mut store, machines, every);
        println!(
            "| {machines} | {entries} | {} | {:.2} ms | {:.2} ms | {:.2} ms | {:.2} ms | {:.2} ms |",
            machines / every,
            millis(looking),
            millis(judging),
            millis(looking + judging),
            millis(answer),
            millis(decoding)
        );
    }
}
