//! Taints of Kubernetes' nodes reach the planner: one instance, a data center in which nothing breaks, and a simulated
//! Kubernetes.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use etcd_client::Client;
use madako_datacenter_sim::kubernetes::SimulatedKubernetes;
use madako_datacenter_sim::{Datacenter, DatacenterConfig, Fault, Rates, SimulatedRegistry};
use madako_domain::cluster::Taint;
use madako_domain::keys;
use madako_protocol::event::{Event, EventSink};
use madako_protocol::ports::Clock;
use madako_sabakan::SabakanRegistry;
use madako_store::{EtcdStore, StoreConfig};
use madako_supervisor::instance::{Instance, InstanceOptions, Ports};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng as _;
use time::macros::datetime;

use madako_simulation::clock::SimulatedClock;
use madako_simulation::operator::Operator;
use madako_simulation::store_process::StoreProcess;
use madako_simulation::world::{INTERVAL, PREFIX, RETIRE_WAIT, SESSION_TTL};

/// What was told of taints, and how often something was committed.
#[derive(Default)]
struct Told {
    known: Vec<bool>,
    commits: usize,
}

struct Sink(Arc<Mutex<Told>>);

impl EventSink for Sink {
    fn emit(&self, event: Event) {
        let mut told = self.0.lock().unwrap();
        match event {
            Event::TaintsKnown { .. } => told.known.push(true),
            Event::TaintsUnknown { .. } => told.known.push(false),
            Event::Committed { .. } => told.commits += 1,
            _ => {}
        }
    }
}

/// Addresses of the cluster's nodes, and of those of its control plane.
async fn nodes(etcd: &mut Client) -> (BTreeSet<String>, BTreeSet<String>) {
    let found = etcd.get(format!("{PREFIX}{}", keys::CLUSTER), None).await.unwrap();
    let cluster: serde_json::Value = serde_json::from_slice(found.kvs()[0].value()).unwrap();
    let nodes = cluster["nodes"].as_array().unwrap();
    let address = |node: &serde_json::Value| node["address"].as_str().unwrap().to_owned();
    let control_plane = nodes.iter().filter(|node| node["control_plane"] == true).map(address).collect();
    (nodes.iter().map(address).collect(), control_plane)
}

fn taint(key: &str) -> Vec<Taint> {
    vec![Taint { key: key.to_owned(), effect: "NoSchedule".to_owned(), ..Taint::default() }]
}

async fn minutes(count: u32) {
    tokio::time::sleep(Duration::from_secs(60) * count).await;
}

#[tokio::test(start_paused = true)]
async fn a_taint_that_is_not_tolerated_moves_the_control_plane_once() {
    let began = datetime!(2026-01-01 00:00:00 UTC);
    let clock: Arc<dyn Clock> = Arc::new(SimulatedClock::new(began));
    let config = DatacenterConfig { rates: Rates::still(), ..DatacenterConfig::demo(1, began) };
    let registry = SimulatedRegistry::new(Datacenter::new(config).unwrap(), Arc::clone(&clock));
    let etcd = StoreProcess::in_memory(1);
    let mut people = etcd.client().await.unwrap();
    Operator::new(etcd.clone(), ChaCha8Rng::seed_from_u64(1)).install().await.unwrap();
    let settings = StoreConfig { prefix: PREFIX.to_owned(), ..StoreConfig::default() };
    let kubernetes = SimulatedKubernetes::new(1, Arc::clone(&clock));
    let told = Arc::new(Mutex::new(Told::default()));
    let ports = Ports {
        store: Arc::new(EtcdStore::from_client(etcd.client().await.unwrap(), &settings, 1).unwrap()),
        registry: Arc::new(SabakanRegistry::new(Arc::new(registry.in_memory()))),
        clock,
        events: Arc::new(Sink(Arc::clone(&told))),
        placement: None,
        kubernetes: Some(Arc::new(kubernetes.clone())),
        host: None,
    };
    let options = InstanceOptions {
        id: "taints".to_owned(),
        host: "alpha".to_owned(),
        interval: INTERVAL,
        session_ttl: SESSION_TTL,
        retire_wait: RETIRE_WAIT,
        hold: None,
        seed: 1,
    };
    let instance = Instance::start(options, ports, |_| Vec::new()).await.unwrap();
    minutes(10).await;
    let (all, control_plane) = nodes(&mut people).await;
    assert_eq!(control_plane.len(), 3);
    for address in &all {
        kubernetes.with(|cluster| cluster.add_node(address));
    }

    // What Kubernetes and CKE themselves put on nodes is tolerated.
    for (address, key) in control_plane.iter().zip([
        "node.kubernetes.io/not-ready",
        "cke.cybozu.com/master",
        "cke.cybozu.com/state",
    ]) {
        kubernetes.with(|cluster| cluster.set_taints(address, taint(key)));
    }
    let commits = told.lock().unwrap().commits;
    minutes(10).await;
    let seen = nodes(&mut people).await.1;
    assert_eq!((told.lock().unwrap().commits, seen), (commits, control_plane.clone()));

    let first = control_plane.first().unwrap();
    kubernetes.with(|cluster| cluster.set_taints(first, taint("example.com/broken-disk")));
    minutes(3).await;
    let (_, replaced) = nodes(&mut people).await;
    assert!(!replaced.contains(first) && replaced.len() == 3, "{first} is still among {replaced:?}");
    assert_eq!(replaced.intersection(&control_plane).count(), 2);

    // From here on nothing changes, so nothing is written: whether the API server answers or not.
    let commits = told.lock().unwrap().commits;
    minutes(60).await;
    assert_eq!(told.lock().unwrap().known, [true]);
    for fault in [Fault::RefuseConnections, Fault::Hang, Fault::Status(403)] {
        kubernetes.faults().set(fault.clone());
        minutes(60).await;
        kubernetes.faults().clear_all();
        minutes(5).await;
        let known = std::mem::take(&mut told.lock().unwrap().known);
        assert!(known.ends_with(&[false, true]) && known.len() <= 3, "{fault:?}: {known:?}");
    }
    let seen = nodes(&mut people).await.1;
    assert_eq!((told.lock().unwrap().commits, seen), (commits, replaced));
    instance.stop().await;
}
