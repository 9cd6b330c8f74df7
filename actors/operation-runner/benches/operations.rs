//! Cost of a decision about the operations of a reconcile pass.
//!
//! `cargo bench --workspace --bench operations` prints a table of wall-clock times and of CPU times of a decision on
//! one thread. Everything runs on all nodes; then nothing runs; then the rivers of each node are outdated.

#![allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]
#![allow(clippy::print_stdout, reason = "a benchmark's output is its table")]

use std::collections::{BTreeMap, BTreeSet};
use std::hint::black_box;
use std::time::{Duration, Instant};

use madako_domain::cluster::{Cluster, Node};
use madako_domain::containers::{Container, ContainerOptions, ServiceParams};
use madako_domain::node_status::{
    ConfigVersion, ContainerStatus, EtcdMember, EtcdStatus, FleetStatus, NodeStatus,
};
use madako_domain::status::OperationPhase;
use madako_json::go::RawJson;
use madako_operation_runner::wanted::{InitialCluster, etcd, etcd_rivers, peer_url, rivers};
use madako_operation_runner::{Images, Input, Settings, decide};
use rustix::time::{ClockId, clock_gettime};
use time::OffsetDateTime;

/// Timed runs of each case, after one untimed run.
const RUNS: usize = 31;
const CONTROL_PLANE: usize = 5;

fn address(node: usize) -> String {
    format!("10.{}.{}.{}", node >> 16, (node >> 8) & 255, node & 255)
}

fn cluster(nodes: usize) -> Cluster {
    let node =
        |index| Node { address: address(index), control_plane: index < CONTROL_PLANE, ..Node::default() };
    Cluster { name: "bench".to_owned(), nodes: (0..nodes).map(node).collect(), ..Cluster::default() }
}

fn running(image: &str, builtin: &ServiceParams) -> ContainerStatus {
    let (image, builtin) = (image.to_owned(), builtin.clone());
    ContainerStatus { running: true, image, builtin, ..ContainerStatus::default() }
}

/// The state in which everything runs.
fn calm(cluster: &Cluster) -> FleetStatus {
    let images = Images::default();
    let of_all = running(&images.tools, &rivers(cluster));
    let of_control_plane = running(&images.tools, &etcd_rivers(cluster));
    let mut status = FleetStatus {
        config_version: ConfigVersion::Two,
        nodes: BTreeMap::new(),
        etcd: Some(EtcdStatus { healthy: true, members: Vec::new() }),
        bootstrap: None,
        interrupted_removals: BTreeSet::new(),
        etcd_image_version: None,
    };
    for (node, id) in cluster.nodes.iter().zip(1..) {
        let mut state = NodeStatus { reachable: true, ..NodeStatus::default() };
        state.containers.insert(Container::Rivers.name().to_owned(), of_all.clone());
        if node.control_plane {
            let member = running(&images.etcd, &etcd(&node.address, InitialCluster::None));
            state.containers.insert(Container::EtcdRivers.name().to_owned(), of_control_plane.clone());
            state.containers.insert(Container::Etcd.name().to_owned(), member);
            (state.etcd_data, state.etcd_mark) = (true, true);
            status.etcd.iter_mut().for_each(|etcd| {
                etcd.members.push(EtcdMember {
                    id,
                    name: node.address.clone(),
                    peer_urls: vec![peer_url(&node.address)],
                    in_sync: Some(true),
                    ..EtcdMember::default()
                });
            });
        }
        status.nodes.insert(node.address.clone(), state);
    }
    status
}

fn on_core() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Medians of the wall-clock times and of the CPU times.
fn measure(cluster: &Cluster, status: &FleetStatus, phase: &OperationPhase) -> (Duration, Duration) {
    let options = ContainerOptions::read(&RawJson::default()).expect("absent options can be read");
    let (settings, backing_off) = (Settings::default(), BTreeSet::new());
    let input = Input {
        cluster,
        options: &options,
        status,
        now: OffsetDateTime::UNIX_EPOCH,
        backing_off: &backing_off,
        restarts: &BTreeSet::new(),
        settings: &settings,
    };
    assert_eq!(&decide(&input).phase, phase, "the case is what it says");
    let timed = (0..RUNS).map(|_| {
        let (started, began) = (Instant::now(), on_core());
        let decision = black_box(decide(black_box(&input)));
        let times = (started.elapsed(), on_core().saturating_sub(began));
        drop(decision);
        times
    });
    let (mut wall, mut core): (Vec<_>, Vec<_>) = timed.unzip();
    wall.sort_unstable();
    core.sort_unstable();
    (wall[RUNS / 2], core[RUNS / 2])
}

fn main() {
    println!("| {:<24} | {:>6} | {:>10} | {:>10} |", "state", "nodes", "wall", "CPU");
    for nodes in [500, 5_000, 50_000] {
        let cluster = cluster(nodes);
        let calm = calm(&cluster);
        let mut empty = calm.clone();
        empty.nodes.values_mut().for_each(|node| node.containers.clear());
        let mut outdated = calm.clone();
        let rivers = outdated.nodes.values_mut().filter_map(|node| node.containers.get_mut("rivers"));
        rivers.for_each(|rivers| rivers.image.push('2'));
        for (what, status, phase) in [
            ("everything runs", &calm, OperationPhase::Completed),
            ("nothing runs", &empty, OperationPhase::Rivers),
            ("all rivers are outdated", &outdated, OperationPhase::Rivers),
        ] {
            let (wall, core) = measure(&cluster, status, &phase);
            let shown = |time: Duration| format!("{:.2} ms", time.as_secs_f64() * 1e3);
            println!("| {what:<24} | {nodes:>6} | {:>10} | {:>10} |", shown(wall), shown(core));
        }
    }
}
