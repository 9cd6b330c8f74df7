//! Accidents beside the faults of a schedule: Kubernetes fails while nodes are drained, the registry reports false states, providers of
//! metrics lie, machines flap, and an operator deletes every placement resource in etcd, without the API.
//!
//! Guarantees: each accident ends after its time, and at the latest when the faults of the run stop.

use std::time::Duration;

use etcd_client::{DeleteOptions, Error, Txn, TxnOp};
use madako_datacenter_sim::{Fault, SimulatedRegistry};
use madako_domain::kubernetes::PodId;
use madako_domain::kubernetes::drain::{DrainPurpose, unfinished_drain};
use madako_domain::machine::MachineState;
use madako_domain::placement::ownership;
use madako_judges::{Fact, FaultPlace};
use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::seeded_generator;
use super::simulated_clients::{CallCounts, wait_for_next};
use crate::drains::Drains;
use crate::facts::Facts;
use crate::history::History;
use crate::placement::WIPED;
use crate::prometheus::Prometheus;
use crate::store_process::StoreProcess;
use crate::world::World;

/// Range of the length of an accident in seconds: below a drain's time-out up to several polls.
const LASTS: std::ops::Range<f64> = 30.0..600.0;

/// Machines that flap together, and the time between two changes of their states: shorter than a poll.
const FLAPPING: usize = 3;
const FLAP: Duration = Duration::from_secs(20);

/// Pods that do not end in one accident.
const STUCK: usize = 6;

/// Failures of the API server of Kubernetes.
const OF_API_SERVER: [Fault; 5] = [
    Fault::RefuseConnections,
    Fault::Hang,
    Fault::Slow(Duration::from_secs(7)),
    Fault::Status(403),
    Fault::TruncateBody,
];

/// Well-formed but wrong answers of the registry, in addition to those of a `corrupt` fault.
const OF_REGISTRY: [Fault; 4] = [
    Fault::FalseReports(30),
    Fault::ClockSet(-3600),
    Fault::DuplicateAddresses(5),
    Fault::Slow(Duration::from_secs(7)),
];

pub(super) struct Saboteurs {
    store: StoreProcess,
    registry: SimulatedRegistry,
    drains: Drains,
    prometheus: Prometheus,
    facts: Facts,
    history: History,
    chance: ChaCha8Rng,
    stop: watch::Receiver<bool>,
    pub(super) calls: CallCounts,
}

impl Saboteurs {
    /// `None`: this world has no repairs.
    pub(super) fn new(seed: u64, world: &World, stop: watch::Receiver<bool>) -> Option<Self> {
        Some(Self {
            store: world.store.clone(),
            registry: world.registry.clone(),
            drains: Drains { kubernetes: world.hosts.as_ref()?.kubernetes.clone() },
            prometheus: world.prometheus.clone(),
            facts: world.facts.clone(),
            history: world.history.clone(),
            chance: seeded_generator(seed, 17),
            stop,
            calls: CallCounts::default(),
        })
    }

    pub(super) async fn act_until_stopped(mut self, rate: f64) -> Self {
        let mut stop = self.stop.clone();
        while wait_for_next(rate, &mut self.chance, &mut stop).await {
            self.calls.made += 1;
            let done = self.begin_random_fault().await.map_err(|error| error.to_string());
            self.calls.failed += u64::from(done.is_err());
            self.history.note("saboteur", done.unwrap_or_else(|error| format!("in vain: {error}")));
        }
        self.prometheus.end_fault();
        self
    }

    async fn begin_random_fault(&mut self) -> Result<String, Error> {
        let length = Duration::from_secs_f64(self.chance.random_range(LASTS));
        Ok(match self.chance.random_range(0..12_u32) {
            0 | 1 => self.spoil_api_server(length),
            2 => self.forbid_evictions(length),
            3 | 4 => self.hang_pods(length),
            5 => self.hang_random_kubelet(length),
            6..=8 => self.spoil_registry(length),
            9 => self.make_machine_flap(length),
            10 => self.prometheus.toggle_random_fault(&mut self.chance),
            _ => self.delete_all_resources().await?,
        })
    }

    fn pick_random<'a, T>(&mut self, all: &'a [T]) -> Option<&'a T> {
        (!all.is_empty()).then(|| &all[self.chance.random_range(0..all.len())])
    }

    /// Undoes an accident after its time, or when the faults of the run stop.
    fn undo_after(&self, length: Duration, undo: impl FnOnce() + Send + 'static) {
        let mut stop = self.stop.clone();
        tokio::spawn(async move {
            let _ = timeout(length, stop.wait_for(|stop| *stop)).await;
            undo();
        });
    }

    fn spoil_api_server(&mut self, length: Duration) -> String {
        let fault = OF_API_SERVER[self.chance.random_range(0..OF_API_SERVER.len())].clone();
        let switch = self.drains.kubernetes.faults().clone();
        switch.set(fault.clone());
        let text = format!("Kubernetes: {fault:?} for {length:?}");
        self.undo_after(length, move || switch.clear(&fault));
        text
    }

    fn forbid_evictions(&mut self, length: Duration) -> String {
        let drains = self.drains.clone();
        drains.forbid_evictions(true);
        self.undo_after(length, move || drains.forbid_evictions(false));
        format!("a disruption budget allows no eviction for {length:?}")
    }

    fn hang_pods(&mut self, length: Duration) -> String {
        let pods = self.drains.kubernetes.with_cluster(|kubernetes| kubernetes.pods());
        let ends = pods.iter().filter(|(_, pod)| {
            unfinished_drain(std::slice::from_ref(pod), None, DrainPurpose::Repair).is_some()
        });
        let pods: Vec<PodId> = ends.map(|(_, pod)| pod.id.clone()).collect();
        let stuck: Vec<PodId> = (0..STUCK).filter_map(|_| self.pick_random(&pods).cloned()).collect();
        let kubernetes = self.drains.kubernetes.clone();
        let set = move |is_stuck: bool| {
            kubernetes
                .with_cluster(|kubernetes| stuck.iter().for_each(|pod| kubernetes.set_stuck(pod, is_stuck)));
        };
        set(true);
        self.undo_after(length, move || set(false));
        format!("{STUCK} pods do not end for {length:?}")
    }

    fn hang_random_kubelet(&mut self, length: Duration) -> String {
        let nodes = self.drains.kubernetes.with_cluster(|kubernetes| kubernetes.nodes());
        let Some(node) = self.pick_random(&nodes).map(|node| node.name.clone()) else {
            return "finds no node".to_owned();
        };
        let text = format!("the kubelet of {node} hangs for {length:?}");
        let kubernetes = self.drains.kubernetes.clone();
        kubernetes.with_cluster(|kubernetes| kubernetes.set_ready(&node, false));
        self.undo_after(length, move || {
            kubernetes.with_cluster(|kubernetes| kubernetes.set_ready(&node, true))
        });
        text
    }

    fn spoil_registry(&mut self, length: Duration) -> String {
        let fault = OF_REGISTRY[self.chance.random_range(0..OF_REGISTRY.len())].clone();
        let clock = matches!(fault, Fault::ClockSet(_));
        let (switch, facts) = (self.registry.faults().clone(), self.facts.clone());
        let text = format!("the registry: {fault:?} for {length:?}");
        facts.report(&Fact::Troubled { place: FaultPlace::Registry, clock, begins: true });
        switch.set(fault.clone());
        self.undo_after(length, move || {
            switch.clear(&fault);
            facts.report(&Fact::Troubled { place: FaultPlace::Registry, clock, begins: false });
        });
        text
    }

    fn make_machine_flap(&mut self, length: Duration) -> String {
        let machines = self.registry.list_machines();
        let serials: Vec<String> = (0..FLAPPING)
            .filter_map(|_| self.pick_random(&machines))
            .map(|machine| machine.spec.serial.clone())
            .collect();
        let text = format!("{serials:?} flap for {length:?}");
        let (registry, mut stop, until) = (self.registry.clone(), self.stop.clone(), Instant::now() + length);
        tokio::spawn(async move {
            let set = |state| {
                // The registry refuses the change of a machine that is being set up or taken out of service.
                serials.iter().for_each(|serial| drop(registry.set_state(serial, state)));
            };
            while Instant::now() < until && !*stop.borrow() {
                for state in [MachineState::Unreachable, MachineState::Healthy] {
                    set(state);
                    let _ = timeout(FLAP, stop.wait_for(|stop| *stop)).await;
                }
            }
        });
        text
    }

    /// Deletes all resources of placement, and sometimes its owner, in etcd, without the API.
    async fn delete_all_resources(&mut self) -> Result<String, Error> {
        let below = ["/core/", "/infrastructure/", "/kubernetes/", "/openstack/"];
        let mut writes: Vec<TxnOp> =
            below.map(|below| TxnOp::delete(below, Some(DeleteOptions::new().with_prefix()))).to_vec();
        if self.chance.random_range(0..3_u32) == 0 {
            writes.push(TxnOp::delete(ownership::KEY, None));
        }
        writes.push(TxnOp::put(WIPED, "", None));
        let wiped = self.store.operator_client().await?.txn(Txn::new().and_then(writes)).await?;
        Ok(format!("deletes everything at {}", wiped.header().map_or(0, |header| header.revision())))
    }
}
