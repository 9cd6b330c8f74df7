//! The simulated Kubernetes and the simulated etcd of a cluster of simulated machines, and the commands on these machines.
//!
//! Guarantees: no command reaches a real machine. The nodes of Kubernetes and the members of etcd are those of the committed
//! cluster; the members are in sync all the time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use madako_datacenter_sim::SimulatedRegistry;
use madako_datacenter_sim::host::SimulatedHost;
use madako_datacenter_sim::kubernetes::{PodOwner, SimulatedKubernetes, Workload};
use madako_domain::cluster::{Cluster, Node};
use madako_domain::node_status::{EtcdMember, EtcdStatus};
use madako_domain::state::ClusterState;
use madako_protocol::feed::Task;
use madako_protocol::kubernetes::Kubernetes;
use madako_protocol::latest::{self, Publisher, Subscriber};
use madako_protocol::operations::OperationsState;
use madako_protocol::ports::Clock;
use madako_supervisor::service::{CommandRunner, SimulatedCluster};
use tokio::time::Instant;

use crate::demo::COMMANDS;
use crate::demo_args::SEED;
use crate::limits::{SIMULATED_BOOT, SIMULATED_FOLLOW, SIMULATED_POD_END};

/// Pods that a drain evicts, on all nodes together.
const PODS: u32 = 40;
const NAMESPACE: &str = "default";

pub(super) struct ClusterOnMachines {
    host: SimulatedHost,
    kubernetes: SimulatedKubernetes,
    findings: (Publisher<Arc<OperationsState>>, Subscriber<Arc<OperationsState>>),
}

impl ClusterOnMachines {
    pub(super) fn new(registry: SimulatedRegistry, clock: Arc<dyn Clock>) -> Self {
        let host = SimulatedHost::new(registry, COMMANDS).with_boot_time(SIMULATED_BOOT);
        // A boot that hangs holds its slot for longer than an operator tries the service.
        host.end_hanging_boots();
        let kubernetes = SimulatedKubernetes::new(SEED, clock);
        kubernetes.with_cluster(|cluster| {
            cluster.add_namespace(NAMESPACE, &[]);
            cluster.add_workload(Workload {
                namespace: NAMESPACE.to_owned(),
                name: "web".to_owned(),
                owner: PodOwner::ReplicaSet { replicas: PODS },
                grace: SIMULATED_POD_END,
                ends_within: SIMULATED_POD_END,
            });
        });
        let rebooted = kubernetes.clone();
        host.watch_reboots(Arc::new(move |address, boot| {
            let (kubernetes, node) = (rebooted.clone(), address.to_owned());
            tokio::spawn(async move {
                kubernetes.with_cluster(|cluster| cluster.set_ready(&node, false));
                boot.await;
                kubernetes.with_cluster(|cluster| cluster.set_ready(&node, true));
            });
        }));
        Self { host, kubernetes, findings: latest::channel() }
    }

    /// The commands of repairs and reboots. Any other command is refused.
    pub(super) fn command_runner(&self) -> CommandRunner {
        CommandRunner::Given(Arc::new(self.host.clone()))
    }

    pub(super) fn ports(&self) -> SimulatedCluster {
        SimulatedCluster {
            kubernetes: Arc::new(self.kubernetes.clone()) as Arc<dyn Kubernetes>,
            findings: self.findings.1.clone(),
        }
    }

    /// Follows the committed cluster until the task is dropped.
    pub(super) fn follow(&self, states: Subscriber<Arc<ClusterState>>) -> Task {
        let (kubernetes, findings) = (self.kubernetes.clone(), self.findings.0.clone());
        Task::start(async move {
            loop {
                if let Some(cluster) = states.newest().and_then(|state| state.cluster.clone()) {
                    follow_nodes(&kubernetes, &cluster.value);
                    findings.publish(Arc::new(read_etcd(&cluster.value)));
                }
                tokio::time::sleep(SIMULATED_FOLLOW).await;
            }
        })
    }
}

/// Adds and removes nodes of Kubernetes until they are those of the cluster.
fn follow_nodes(kubernetes: &SimulatedKubernetes, cluster: &Cluster) {
    let wanted: BTreeSet<&str> = cluster.nodes.iter().map(Node::name).collect();
    kubernetes.with_cluster(|kubernetes| {
        let there: BTreeSet<String> = kubernetes.nodes().into_iter().map(|node| node.name).collect();
        for gone in there.iter().filter(|name| !wanted.contains(name.as_str())) {
            kubernetes.remove_node(gone);
        }
        for new in wanted.into_iter().filter(|name| !there.contains(*name)) {
            kubernetes.add_node(new);
        }
    });
}

/// An answer of etcd whose members are the control plane nodes.
fn read_etcd(cluster: &Cluster) -> OperationsState {
    let member =
        |node: &Node| EtcdMember { name: node.address.clone(), in_sync: Some(true), ..EtcdMember::default() };
    OperationsState {
        is_due: false,
        updates_kubelets: false,
        has_data: true,
        unreachable: BTreeSet::new(),
        etcd: Some(Arc::new(EtcdStatus {
            healthy: true,
            members: cluster.control_plane().map(member).collect(),
        })),
        api_servers: BTreeMap::new(),
        read_at: Instant::now(),
    }
}
