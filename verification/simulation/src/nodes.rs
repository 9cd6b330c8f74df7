//! The nodes of a simulated world: a node for each machine of the registry, behind links of the instances, and the facts
//! about them for judges.
//!
//! A machine with another serial at an address is a new installation. A machine that leaves the registry takes its node
//! away. A client writes to the cluster's etcd as `kube-apiserver` does, so that a loss of acknowledged writes is noticed.
//!
//! Guarantees: each fact is reported once, in order.
//!
//! Does not: check certificates, which are text here.

mod backups;
mod components;
mod objects;
mod ports;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use madako_datacenter_sim::SimulatedRegistry;
use madako_datacenter_sim::nodes::{
    EtcdFact, NodeFault, NodePlace, Observed, SimulatedBackups, SimulatedNodes,
};
use madako_domain::backup::BackupSchedule;
use madako_domain::images::ImageName;
use madako_domain::invariants::Id;
use madako_domain::machine::Machine;
use madako_faults::Act;
use madako_judges::Fact;
use madako_protocol::authorities::Authorities;
use madako_protocol::permit::Permit;
use madako_supervisor::nodes::{
    BackupPorts, HostKeyPolicy, OperationsMode, OperationsPorts, RunnerPorts, Settings,
};

use self::backups::LinkedBackups;
use self::components::LinkedComponents;
use self::ports::{LinkedEtcd, LinkedNodes};
use crate::checker::Checker;
use crate::facts::Facts;
use crate::history::History;
use crate::link::Link;
use crate::repair::RepairJudge;
use crate::store_process::StoreProcess;

/// Interval of reads of the registry, and of writes by the client of etcd.
const LOOK: Duration = Duration::from_secs(5);

/// Time between backups of the simulated etcd: a run of two hours has some.
const BACKUP_EVERY: Duration = Duration::from_secs(1800);

/// The ports of operations on simulated nodes, without links.
#[must_use]
pub fn node_ports(
    nodes: &SimulatedNodes,
    authorities: Arc<dyn Authorities>,
    etcd_image: &str,
) -> OperationsPorts {
    let mut settings = Settings::default();
    etcd_image.clone_into(settings.configured_images.image_mut(ImageName::Etcd));
    OperationsPorts {
        mode: OperationsMode::Act,
        driver: nodes.driver_port(),
        host_keys: HostKeyPolicy::Pin,
        settings,
        runner: RunnerPorts {
            etcd: nodes.etcd_port(),
            authorities,
            components: nodes.components_port(),
            secrets: nodes.secrets_port(),
        },
        backups: Some(BackupPorts {
            schedule: BackupSchedule {
                every: BACKUP_EVERY,
                dir: "/backups".to_owned(),
                keep: 3,
                prove: true,
            },
            backups: Arc::new(SimulatedBackups::new(nodes)),
        }),
    }
}

/// The ports to nodes, over the instance's simulated network link.
#[must_use]
pub fn link_ports(ports: &OperationsPorts, link: &Link, witness: &EffectObserver) -> OperationsPorts {
    let etcd =
        LinkedEtcd { inner: Arc::clone(&ports.runner.etcd), link: link.clone(), witness: witness.clone() };
    let driver =
        LinkedNodes { inner: Arc::clone(&ports.driver), link: link.clone(), witness: witness.clone() };
    let components = LinkedComponents {
        inner: Arc::clone(&ports.runner.components),
        link: link.clone(),
        witness: witness.clone(),
    };
    let backups = ports.backups.clone().map(|BackupPorts { schedule, backups }| BackupPorts {
        schedule,
        backups: Arc::new(LinkedBackups { inner: backups, link: link.clone() }),
    });
    OperationsPorts {
        backups,
        driver: Arc::new(driver),
        runner: RunnerPorts {
            etcd: Arc::new(etcd),
            components: Arc::new(components),
            ..ports.runner.clone()
        },
        ..ports.clone()
    }
}

/// Judges the effects of an instance when they are sent, and reports the facts about nodes after them. The default value
/// does neither.
#[derive(Clone, Default)]
pub struct EffectObserver {
    /// Name of the instance, its judge, the receiver of its facts, and the store with the leader's key.
    pub judges: Option<(String, RepairJudge, Facts, StoreProcess)>,
    pub nodes: Option<Nodes>,
}

impl EffectObserver {
    /// An effect is sent, unless its permit has ended.
    async fn judge_sent_effect(&self, permit: &Permit, what: impl Display, to: impl Display) {
        let Some((name, judge, facts, store)) = &self.judges else { return };
        if permit.check(tokio::time::Instant::now()).is_ok() {
            facts.note_permit(name, permit, store);
            judge.judge_effect(store, permit, &format!("{what} ({to})")).await;
        }
    }

    fn report_effects(&self) {
        if let Some(nodes) = &self.nodes {
            nodes.report();
        }
    }
}

/// Numbers of observed events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NodeCounts {
    /// Effects that happened on nodes and on etcd.
    pub effects: u64,
    pub formed: u64,
    pub added: u64,
    pub promoted: u64,
    pub removed: u64,
    /// Writes that etcd acknowledged to the client.
    pub written: u64,
    /// Machines that were installed anew.
    pub reinstalled: u64,
}

struct NodesState {
    registry: SimulatedRegistry,
    history: History,
    facts: Facts,
    observed: Mutex<ObservedNodes>,
}

#[derive(Default)]
struct ObservedNodes {
    /// Number of the next fact.
    next: u64,
    /// Serial of the machine at each address; `None`: the machine is gone.
    serials: BTreeMap<String, Option<String>>,
    counts: NodeCounts,
    /// The nodes that did not answer at the last report.
    silent: BTreeMap<String, Duration>,
}

/// The nodes of a world. Clones are the same nodes.
#[derive(Clone)]
pub struct Nodes {
    pub nodes: SimulatedNodes,
    inner: Arc<NodesState>,
}

impl Nodes {
    #[must_use]
    pub fn new(seed: u64, registry: SimulatedRegistry, history: History, facts: Facts) -> Self {
        let inner = NodesState { registry, history, facts, observed: Mutex::default() };
        let nodes = Self { nodes: SimulatedNodes::new(seed), inner: Arc::new(inner) };
        nodes.follow();
        nodes
    }

    /// Follows the registry, reports facts, and writes to etcd, for ever.
    pub async fn watch(self, checker: Checker) {
        loop {
            self.follow();
            self.report();
            self.write(&checker).await;
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Brings the nodes to the machines of the registry. A machine without an address keeps its node.
    fn follow(&self) {
        let machines = self.inner.registry.list_machines();
        let mut observed = self.inner.observed.lock().unwrap();
        for machine in &machines {
            let Some(address) = machine.address() else { continue };
            let serial = machine.spec.serial.clone();
            match observed.serials.insert(address.to_owned(), Some(serial.clone())) {
                None => self.nodes.add(address, rack_of_machine(machine)),
                Some(Some(before)) if before == serial => {}
                Some(before) => {
                    observed.counts.reinstalled += 1;
                    self.inner.history.note("nodes", format_args!("{address} is the new machine {serial}"));
                    self.nodes.reinstall_node(address);
                    if before.is_none() {
                        self.nodes.end(&NodePlace::Address(address.to_owned()), NodeFault::Kill);
                    }
                }
            }
        }
        let is_there = |serial: &String| machines.iter().any(|machine| machine.spec.serial == *serial);
        for (address, serial) in &mut observed.serials {
            if serial.as_ref().is_some_and(|serial| !is_there(serial)) {
                *serial = None;
                self.inner.history.note("nodes", format_args!("the machine at {address} is gone"));
                self.nodes.begin(&NodePlace::Address(address.clone()), NodeFault::Kill);
            }
        }
    }

    /// Reports the facts since the last report.
    pub fn report(&self) {
        let mut observed = self.inner.observed.lock().unwrap();
        for fact in self.nodes.facts_since(observed.next) {
            observed.next = fact.number + 1;
            let at = fact.at.as_secs_f64();
            self.inner.history.note("nodes", format_args!("at {at:.3}: {:?}", fact.what));
            observed.observe(&fact.what, &self.inner.history);
        }
        self.inner.facts.read_nodes(&self.nodes);
        let silent = self.nodes.silent_nodes();
        if silent != observed.silent {
            observed.silent.clone_from(&silent);
            self.inner.facts.report(&Fact::Silent(silent));
        }
    }

    /// Writes to etcd at the control plane nodes of the newest cluster.
    async fn write(&self, checker: &Checker) {
        let Some(cluster) = checker.current_cluster() else { return };
        let addresses: Vec<String> = cluster.control_plane().map(|node| node.address.clone()).collect();
        // Before the bootstrap, and without a majority, there is no answer.
        let written = self.nodes.write(&addresses).await.is_ok();
        self.inner.observed.lock().unwrap().counts.written += u64::from(written);
    }

    #[must_use]
    pub fn counts(&self) -> NodeCounts {
        self.inner.observed.lock().unwrap().counts
    }

    /// Begins a fault of nodes. A reset strikes once.
    pub fn begin(&self, place: &NodePlace, act: Act) {
        match node_fault(act) {
            Some(fault) => self.nodes.begin(place, fault),
            None => self.nodes.reset(place),
        }
    }

    pub fn end(&self, place: &NodePlace, act: Act) {
        if let Some(fault) = node_fault(act) {
            self.nodes.end(place, fault);
        }
    }
}

fn node_fault(act: Act) -> Option<NodeFault> {
    match act {
        Act::Kill => Some(NodeFault::Kill),
        Act::Cut => Some(NodeFault::Cut),
        Act::Pause => Some(NodeFault::Pause),
        Act::Delay => Some(NodeFault::Delay),
        Act::DiskFull => Some(NodeFault::DiskFull),
        Act::Reset => None,
        Act::Panic | Act::Loss | Act::ClockJump | Act::Corrupt | Act::Compact => {
            unreachable!("{act} suits no machine")
        }
    }
}

fn rack_of_machine(machine: &Machine) -> u32 {
    u32::try_from(machine.spec.rack).unwrap_or(u32::MAX)
}

impl ObservedNodes {
    fn observe(&mut self, observed: &Observed, history: &History) {
        let counts = &mut self.counts;
        match observed {
            Observed::Applied { failed: None, .. } => counts.effects += 1,
            Observed::Etcd(EtcdFact::VoterLost { had_quorum: true, .. }) => history.count_judgement(Id::I2),
            Observed::Etcd(EtcdFact::Formed { .. }) => counts.formed += 1,
            Observed::Etcd(EtcdFact::Added { .. }) => counts.added += 1,
            Observed::Etcd(EtcdFact::Promoted { .. }) => counts.promoted += 1,
            Observed::Etcd(EtcdFact::Removed { .. }) => counts.removed += 1,
            _ => {}
        }
    }
}
