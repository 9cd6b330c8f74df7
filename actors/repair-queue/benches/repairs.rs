//! How long a decision about the whole repair queue takes.
//!
//! `cargo bench --workspace --bench repairs` prints a table. Timed is what the service does each time that it decides, on one thread,
//! by the wall clock: it looks up who stands in a held rack, asks the limiters about all that the registry reports and
//! follows the racks that are held, says what of that is to be written, and looks at every entry of the queue. Every machine is reported,
//! every tenth has an entry, and in each eighth rack power failed; what is kept of racks is in the store already, so that nothing
//! is left to be written, as in most decisions. Beside it is the decoding of a state in which one entry changed, which precedes a
//! decision.

#![allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]
#![allow(clippy::print_stdout, reason = "a benchmark's output is its table")]

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::{Duration, Instant};

use madako_messages::cluster::{Cluster, Node};
use madako_messages::go::RawJson;
use madako_messages::keys;
use madako_messages::machine::{Bmc, Machine, MachineSpec, MachineState, MachineStatus};
use madako_messages::repair::hold::HoldSettings;
use madako_messages::repair::{RepairQueueEntry, RepairStatus, RepairStepStatus};
use madako_messages::state::ClusterState;
use madako_messages::store::Entry;
use madako_repair_queue::requests::{change, held_addresses, judge};
use madako_repair_queue::round::{Health, Live, View, config, look, places};
use time::OffsetDateTime;

/// Machines of a rack.
const IN_RACK: usize = 40;

/// One of so many racks has lost its power.
const FAILED_RACKS: usize = 8;

/// Runs of each case after one that warms up.
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

fn rack(machine: usize) -> i64 {
    i64::try_from(machine / IN_RACK).expect("there are few")
}

/// A report for every machine: those of a rack without power failed at one time, the others a day after each other.
fn reports(machines: usize) -> Vec<Machine> {
    let report = |machine: usize| Machine {
        spec: MachineSpec {
            serial: format!("{machine:08x}"),
            labels: Vec::new(),
            rack: rack(machine),
            index_in_rack: i64::try_from(machine % IN_RACK).expect("there are few"),
            role: "compute".to_owned(),
            ipv4: vec![address(machine)],
            register_date: now(),
            retire_date: now(),
            bmc: Bmc { bmc_type: "t".to_owned() },
        },
        status: MachineStatus {
            state: MachineState::Unreachable,
            duration: if (machine / IN_RACK).is_multiple_of(FAILED_RACKS) {
                600.0
            } else {
                86_400.0 * f64::from(u32::try_from(machine % IN_RACK).expect("there are few") + 1)
            },
        },
    };
    (0..machines).map(report).collect()
}

/// A store with a cluster of machines, and an entry for every tenth of them in every status.
fn store(machines: usize, entries: usize) -> BTreeMap<String, Entry> {
    let node = |machine| Node {
        address: address(machine),
        control_plane: machine < 5,
        labels: BTreeMap::from([("cke.cybozu.com/rack".to_owned(), rack(machine).to_string())]),
        ..Node::default()
    };
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
    put(keys::CONSTRAINTS.to_owned(), format!(r#"{{"maximum-repair-queue-entries": {entries}}}"#).into());
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

/// The median of the runs.
fn timed(mut run: impl FnMut()) -> Duration {
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

/// Puts what is kept of racks after the reports into the store.
fn keep_holds(store: &mut BTreeMap<String, Entry>, machines: &[Machine], settings: &HoldSettings) -> usize {
    let state = ClusterState::decode(1, store, None);
    let decision = judge(&state, machines, Some(settings), now()).expect("everything can be read");
    for (rack, hold) in &decision.holds {
        let value = serde_json::to_vec(hold).expect("it is JSON");
        let entry = Entry { value: value.into(), create_revision: 1, mod_revision: 1, lease: 0 };
        store.insert(keys::repair_hold(rack), entry);
    }
    decision.holds.len()
}

fn main() {
    println!(
        "| machines | entries | racks held | held addresses | limiters and holds | look | together | decoding |"
    );
    println!("|---:|---:|---:|---:|---:|---:|---:|---:|");
    let settings = HoldSettings::default();
    for (machines, entries) in [(100, 10), (1_000, 100), (10_000, 1_000)] {
        let mut store = store(machines, entries);
        let reports = reports(machines);
        let racks = keep_holds(&mut store, &reports, &settings);
        let state = ClusterState::decode(1, &store, None);
        let health = state.repair.entries.keys().map(|index| (*index, Health::Unhealthy)).collect();
        let live = Live { health, host: true, kubernetes: true, ..Live::default() };
        let holding = || held_addresses(&state, &reports, Some(&settings));
        let limiting = || {
            let decision = judge(&state, &reports, Some(&settings), now()).expect("everything can be read");
            assert_eq!(decision.refused.len(), machines, "every limiter is asked, and the last refuses");
            assert_eq!(black_box(change(&state, &decision)), None);
        };
        let looking = |held: &BTreeMap<String, String>| {
            let places = places(state.cluster.as_ref().map(|cluster| &*cluster.value));
            let config = config(&state);
            let outlooks = look(&View {
                queue: &state.repair,
                places: &places,
                config: config.as_ref().map(|config| *config),
                held,
                live: &live,
                now: now(),
            });
            assert_eq!(black_box(outlooks).len(), entries);
        };
        let held = holding();
        assert!(held.len() >= racks * IN_RACK.min(machines) / 2);
        let parts = [
            timed(|| drop(black_box(holding()))),
            timed(limiting),
            timed(|| looking(&held)),
            timed(|| {
                let held = holding();
                limiting();
                looking(&held);
            }),
        ];
        if let Some(entry) = store.get_mut(&keys::repair(3)) {
            entry.mod_revision = 2;
        }
        let decoding = timed(|| {
            black_box(ClusterState::decode(2, &store, Some(&state)));
        });
        let millis = |time: Duration| format!("{:.2} ms", time.as_secs_f64() * 1e3);
        let parts = parts.map(millis).join(" | ");
        println!("| {machines} | {entries} | {racks} | {parts} | {} |", millis(decoding));
    }
}
