//! Cost of a forecast of reboots.
//!
//! `cargo bench --workspace --bench forecast` prints a table of wall-clock times on one thread: the choice of the pods
//! whose evictions are sent as dry runs, and the forecast with an answer for each of them. All nodes are in the queue,
//! half of the namespaces are protected, and each budget selects one ReplicaSet. Reads and dry runs are not in it.

#![allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]
#![allow(clippy::print_stdout, reason = "a benchmark's output is its table")]

use std::collections::{BTreeMap, BTreeSet};
use std::hint::black_box;
use std::time::{Duration, Instant};

use madako_domain::cluster::{Cluster, Node};
use madako_domain::keys;
use madako_domain::kubernetes::selector::LabelSelector;
use madako_domain::kubernetes::workload::{DisruptionBudget, OwnerReference, ScheduledPod, Workloads};
use madako_domain::kubernetes::{KubeNode, Pod, PodId, PodPhase};
use madako_domain::reboot::{RebootQueueEntry, RebootSettings};
use madako_domain::state::ClusterState;
use madako_domain::store::Entry;
use madako_json::go::RawJson;
use madako_reboot_queue::forecast::{DryRun, ForecastInput, History, forecast, pods_to_ask};
use time::OffsetDateTime;

/// Timed runs, after one untimed run.
const RUNS: usize = 11;
const NODES: usize = 1_000;
const PODS: usize = 30_000;
const BUDGETS: usize = 2_000;
const NAMESPACES: usize = 100;

const REBOOT: &str =
    r#"{"reboot_command": ["reboot"], "boot_check_command": ["check"], "max_concurrent_reboots": 10}"#;

fn address(node: usize) -> String {
    format!("10.0.{}.{}", node / 250, node % 250 + 1)
}

/// The namespace of a ReplicaSet, which has the number of its budget.
fn namespace_name(set: usize) -> String {
    format!("namespace-{}", set % NAMESPACES)
}

fn app_labels(set: usize) -> BTreeMap<String, String> {
    BTreeMap::from([("app".to_owned(), format!("app-{set}")), ("tier".to_owned(), "front".to_owned())])
}

fn make_state() -> ClusterState {
    let mut entries = BTreeMap::new();
    let mut put = |key: String, value: Vec<u8>| {
        entries.insert(key, Entry { value: value.into(), create_revision: 1, mod_revision: 1, lease: 0 });
    };
    let nodes =
        (0..NODES).map(|node| Node { address: address(node), control_plane: node < 5, ..Node::default() });
    let cluster = Cluster {
        nodes: nodes.collect(),
        reboot: RawJson::from_text(REBOOT.to_owned()).expect("it is JSON"),
        ..Cluster::default()
    };
    put(keys::CLUSTER.to_owned(), serde_json::to_vec(&cluster).expect("it is JSON"));
    for (index, node) in (0..).zip(0..NODES) {
        let entry = RebootQueueEntry { index, ..RebootQueueEntry::new(address(node)) };
        put(keys::reboot(index), serde_json::to_vec(&entry).expect("it is JSON"));
    }
    ClusterState::decode(1, &entries, None)
}

fn make_workloads() -> Workloads {
    let node = |node| KubeNode { name: address(node), ready: Some(true), ..KubeNode::default() };
    let owner = |kind: &str, set: usize| OwnerReference {
        kind: kind.to_owned(),
        name: format!("app-{set}"),
        uid: format!("{kind}-{set}"),
    };
    let pod = |number: usize| {
        let set = number % BUDGETS;
        let kind = if number.is_multiple_of(50) { "Job" } else { "ReplicaSet" };
        ScheduledPod {
            pod: Pod {
                id: PodId {
                    namespace: namespace_name(set),
                    name: format!("app-{set}-{number}"),
                    uid: format!("uid-{number}"),
                },
                phase: PodPhase::Running,
                controller: Some(kind.to_owned()),
                mirror: false,
                deleted_at: None,
            },
            node: address(number % NODES),
            labels: app_labels(set),
            owner: Some(owner(kind, set)),
            started_at: Some(OffsetDateTime::UNIX_EPOCH),
        }
    };
    let budget = |set: usize| DisruptionBudget {
        namespace: namespace_name(set),
        name: format!("app-{set}"),
        selector: Some(LabelSelector { match_labels: app_labels(set), ..LabelSelector::default() }),
        allowed: i64::from(!set.is_multiple_of(10)),
        healthy: 15,
        desired: 14,
    };
    Workloads {
        nodes: (0..NODES).map(node).collect(),
        pods: (0..PODS).map(pod).collect(),
        owners: (0..BUDGETS).map(|set| (format!("ReplicaSet-{set}"), owner("Deployment", set))).collect(),
        budgets: (0..BUDGETS).map(budget).collect(),
    }
}

fn median_duration(mut act: impl FnMut()) -> Duration {
    act();
    let mut times: Vec<Duration> = (0..RUNS)
        .map(|_| {
            let began = Instant::now();
            act();
            began.elapsed()
        })
        .collect();
    times.sort_unstable();
    times[RUNS / 2]
}

fn main() {
    let (state, workloads, history) = (make_state(), make_workloads(), History::default());
    let protected: BTreeSet<String> = (0..NAMESPACES).step_by(2).map(namespace_name).collect();
    let none = BTreeMap::new();
    let input = ForecastInput {
        state: &state,
        added: &[],
        settings: RebootSettings::default(),
        history: &history,
        workloads: &workloads,
        protected: &protected,
        answers: &none,
        now: OffsetDateTime::UNIX_EPOCH + Duration::from_secs(3600),
    };
    let pods = pods_to_ask(&input);
    assert!(pods.len() > PODS / 3, "the case is what it says");
    let answers = pods.iter().map(|pod| (pod.uid.clone(), DryRun::Accepted)).collect();
    let answered = ForecastInput { answers: &answers, ..input };
    let found = forecast(&answered);
    assert_eq!(found.waves.iter().map(|wave| wave.nodes.len()).sum::<usize>(), NODES);
    let choice = median_duration(|| drop(black_box(pods_to_ask(black_box(&input)))));
    let all = median_duration(|| drop(black_box(forecast(black_box(&answered)))));
    println!("| {:<24} | {:>10} |", "part", "wall");
    for (part, time) in [("choice of dry runs", choice), ("forecast", all), ("together", choice + all)] {
        println!("| {part:<24} | {:>7.1} ms |", time.as_secs_f64() * 1e3);
    }
}
