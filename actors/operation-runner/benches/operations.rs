//! Cost of a decision about the operations of a reconcile pass.
//!
//! `cargo bench --workspace --bench operations` prints a table of wall-clock times and of CPU times of a decision on
//! one thread. The first case has every container running, the second none, the third outdated rivers on each node. Last, a fleet
//! that CKE set up is taken over: the decision, and the differences that `madako ops diff` shows, of which there are none.

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
use madako_operation_runner::difference::{DueFiles, find_differences};
use madako_operation_runner::wanted::{
    InitialCluster, etcd_parameters, etcd_rivers, peer_url, rivers_parameters,
};
use madako_operation_runner::{Images, Input, Settings, decide};
use rustix::time::{ClockId, clock_gettime};
use time::OffsetDateTime;

/// Timed runs of each case, after one untimed run.
const RUNS: usize = 31;
const CONTROL_PLANE: usize = 5;
/// Nodes of a fleet that is taken over.
const TAKEN_OVER: usize = 1_000;

fn node_address(node: usize) -> String {
    format!("10.{}.{}.{}", node >> 16, (node >> 8) & 255, node & 255)
}

fn make_cluster(nodes: usize) -> Cluster {
    let node = |index| Node {
        address: node_address(index),
        control_plane: index < CONTROL_PLANE,
        ..Node::default()
    };
    Cluster { name: "bench".to_owned(), nodes: (0..nodes).map(node).collect(), ..Cluster::default() }
}

fn running_container(image: &str, builtin: &ServiceParams) -> ContainerStatus {
    let (image, builtin) = (image.to_owned(), builtin.clone());
    ContainerStatus { running: true, image, builtin, ..ContainerStatus::default() }
}

/// The state in which everything runs.
fn healthy_fleet(cluster: &Cluster) -> FleetStatus {
    let images = Images::default();
    let of_all = running_container(&images.tools, &rivers_parameters(cluster));
    let of_control_plane = running_container(&images.tools, &etcd_rivers(cluster));
    let mut status = FleetStatus {
        config_version: ConfigVersion::Two,
        nodes: BTreeMap::new(),
        etcd: Some(EtcdStatus { healthy: true, members: Vec::new() }),
        bootstrap: None,
        interrupted_removals: BTreeSet::new(),
        etcd_image_version: None,
        kubernetes: None,
    };
    for (node, id) in cluster.nodes.iter().zip(1..) {
        let mut state = NodeStatus { reachable: true, ..NodeStatus::default() };
        state.containers.insert(Container::Rivers.name().to_owned(), of_all.clone());
        if node.control_plane {
            let member =
                running_container(&images.etcd, &etcd_parameters(&node.address, InitialCluster::None));
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

fn thread_cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// The state that CKE leaves: members have the arguments of their bootstrap.
fn status_left_by_cke(cluster: &Cluster) -> FleetStatus {
    let mut status = healthy_fleet(cluster);
    let members: Vec<String> = cluster.control_plane().map(|node| node.address.clone()).collect();
    for address in &members {
        let member = running_container(
            &Images::default().etcd,
            &etcd_parameters(address, InitialCluster::New(&members)),
        );
        let node = status.nodes.get_mut(address).expect("each node has a state");
        node.containers.insert(Container::Etcd.name().to_owned(), member);
    }
    status
}

/// Medians of the wall-clock times and of the CPU times of `act`.
fn measure_decision<T>(
    (cluster, status): (&Cluster, &FleetStatus),
    act: impl Fn(&Input<'_>) -> T,
) -> (Duration, Duration) {
    let options = ContainerOptions::read(&RawJson::default()).expect("absent options can be read");
    let (settings, backing_off) = (Settings::default(), BTreeSet::new());
    let input = Input {
        cluster,
        options: &options,
        status,
        now: OffsetDateTime::UNIX_EPOCH,
        backing_off: &backing_off,
        restarts: &BTreeSet::new(),
        restore: None,
        stale: &BTreeSet::new(),
        authorities: None,
        kubernetes: None,
        settings: &settings,
    };
    drop(act(&input));
    let timed = (0..RUNS).map(|_| {
        let (started, began) = (Instant::now(), thread_cpu_time());
        let made = black_box(act(black_box(&input)));
        let times = (started.elapsed(), thread_cpu_time().saturating_sub(began));
        drop(made);
        times
    });
    let (mut wall, mut core): (Vec<_>, Vec<_>) = timed.unzip();
    wall.sort_unstable();
    core.sort_unstable();
    (wall[RUNS / 2], core[RUNS / 2])
}

fn print((what, nodes): (&str, usize), (wall, core): (Duration, Duration)) {
    let shown = |time: Duration| format!("{:.2} ms", time.as_secs_f64() * 1e3);
    println!("| {what:<24} | {nodes:>6} | {:>10} | {:>10} |", shown(wall), shown(core));
}

fn main() {
    println!("| {:<24} | {:>6} | {:>10} | {:>10} |", "state", "nodes", "wall", "CPU");
    for nodes in [500, 5_000, 50_000] {
        let cluster = make_cluster(nodes);
        let calm = healthy_fleet(&cluster);
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
            let decide = |input: &Input<'_>| {
                let decision = decide(input);
                assert_eq!(decision.phase, phase, "the case is what it says");
                decision
            };
            print((what, nodes), measure_decision((&cluster, status), decide));
        }
    }
    let cluster = make_cluster(TAKEN_OVER);
    let status = status_left_by_cke(&cluster);
    let take_over = |input: &Input<'_>| {
        let (decision, found) = (decide(input), find_differences(input, &DueFiles::new()));
        assert!(decision.operations.is_empty() && decision.held.is_empty() && found.is_empty());
        (decision, found)
    };
    print(("a takeover from CKE", TAKEN_OVER), measure_decision((&cluster, &status), take_over));
}
