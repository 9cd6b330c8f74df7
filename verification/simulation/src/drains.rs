//! The simulated Kubernetes of a run: it has the nodes of the cluster, pods of every kind, and occasional faults.
//!
//! Judges by the pods and nodes that are there: no command of a step that drains begins on a node with a pod that should
//! have gone, and no node stays cordoned when everything is repaired. The oracle judges the requests of drains.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use madako_datacenter_sim::kubernetes::{PodOwner, SimulatedKubernetes, Workload, WorkloadBudget};
use madako_domain::cluster::Cluster;
use madako_domain::invariants::{Id, Violation};
use madako_domain::kubernetes::drain::{DrainPurpose, unfinished_drain};
use madako_domain::kubernetes::{KubeNode, Pod};
use madako_domain::repair::RepairQueueEntry;
use madako_domain::repair::config::RepairConfig;
use madako_protocol::ports::Clock;

/// Namespace whose pods may be deleted.
const OPEN: &str = "web";
/// Namespace whose pods are only evicted, never deleted.
pub const PROTECTED: &str = "kept";

/// A deployment whose budget allows no eviction: a drain deletes its pods.
const FRONT: (&str, u32) = ("front", 30);
/// A deployment whose pods have volumes, with its replicas, and the replicas that its budget keeps.
const STORE: (&str, u32, u32) = ("store", 10, 8);
/// A deployment with an occasional budget that allows no eviction.
const LEDGER: (&str, u32) = ("ledger", 6);

/// Time-out of evictions in the configuration of the simulation.
pub const EVICTION_TIMEOUT: Duration = Duration::from_secs(120);

/// Clones share their state.
#[derive(Clone)]
pub struct Drains {
    pub kubernetes: SimulatedKubernetes,
}

fn make_workload(namespace: &str, name: &str, owner: PodOwner) -> Workload {
    Workload {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        owner,
        grace: Duration::from_secs(30),
        ends_within: Duration::from_secs(10),
    }
}

fn make_budget(namespace: &str, (workload, min_available): (&str, u32)) -> WorkloadBudget {
    WorkloadBudget {
        namespace: namespace.to_owned(),
        name: workload.to_owned(),
        workload: workload.to_owned(),
        min_available,
    }
}

impl Drains {
    /// A cluster with pods of every kind and no nodes.
    pub fn new(seed: u64, clock: Arc<dyn Clock>) -> Self {
        let kubernetes = SimulatedKubernetes::new(seed, clock);
        kubernetes.with_cluster(|cluster| {
            cluster.add_namespace(OPEN, &[]);
            cluster.add_namespace(PROTECTED, &[("team", PROTECTED)]);
            let (front, replicas) = FRONT;
            cluster.add_workload(make_workload(OPEN, front, PodOwner::ReplicaSet { replicas }));
            cluster.add_budget(make_budget(OPEN, FRONT));
            cluster.add_workload(make_workload(OPEN, "logs", PodOwner::DaemonSet));
            cluster.add_workload(make_workload(OPEN, "proxy", PodOwner::Static));
            cluster.add_workload(make_workload(OPEN, "shell", PodOwner::Nobody { pods: 3 }));
            let takes = Duration::from_secs(300);
            cluster.add_workload(make_workload(OPEN, "sums", PodOwner::Job { pods: 4, takes }));
            let (store, replicas, min_available) = STORE;
            cluster.add_workload(make_workload(PROTECTED, store, PodOwner::ReplicaSet { replicas }));
            cluster.give_volumes(PROTECTED, store);
            cluster.add_budget(make_budget(PROTECTED, (store, min_available)));
            let (ledger, replicas) = LEDGER;
            cluster.add_workload(make_workload(PROTECTED, ledger, PodOwner::ReplicaSet { replicas }));
        });
        Self { kubernetes }
    }

    /// Adds and removes nodes until they are those of `cluster`.
    pub fn follow(&self, cluster: &Cluster) {
        let wanted: BTreeSet<&str> = cluster.nodes.iter().map(madako_domain::cluster::Node::name).collect();
        self.kubernetes.with_cluster(|kubernetes| {
            let there: Vec<String> = kubernetes.nodes().into_iter().map(|node| node.name).collect();
            for gone in there.iter().filter(|name| !wanted.contains(name.as_str())) {
                kubernetes.remove_node(gone);
            }
            for new in wanted.into_iter().filter(|name| !there.iter().any(|there| there == name)) {
                kubernetes.add_node(new);
            }
        });
    }

    fn pods_on(&self, node: &str) -> Vec<Pod> {
        let pods = self.kubernetes.with_cluster(|kubernetes| kubernetes.pods());
        pods.into_iter().filter(|(on, _)| on.as_deref() == Some(node)).map(|(_, pod)| pod).collect()
    }

    /// Checks the start of a step's command: a draining step must have left no pod that it must remove. `cluster` is
    /// the cluster at that time.
    pub fn check_drained(&self, cluster: &Cluster, entry: &RepairQueueEntry, step: u32) -> Option<String> {
        let node = cluster.nodes.iter().find(|node| node.address == entry.address)?;
        let config = RepairConfig::read(&cluster.repair).unwrap();
        let drains = config.operation_for(entry).ok()?.step(step)?.need_drain;
        let left =
            unfinished_drain(&self.pods_on(node.name()), None, DrainPurpose::Repair).filter(|_| drains)?;
        Some(format!("step {step} of entry {} drains, and {left}", entry.index))
    }

    /// Checks I16 at the start of a reboot command: the node is cordoned for it, only pods that stay are left, and no
    /// volume is in use.
    pub fn check_emptied(&self, node: &str) -> Option<String> {
        let nodes = self.kubernetes.with_cluster(|kubernetes| kubernetes.nodes());
        let node = nodes.iter().find(|known| known.name == node)?;
        if !(node.unschedulable && node.is_cordoned_by_us()) {
            return Some("it is not cordoned".to_owned());
        }
        let left = unfinished_drain(&self.pods_on(&node.name), Some(node), DrainPurpose::Reboot)?;
        Some(left.to_string())
    }

    /// I17 while no repair and no reboot is in progress: no node is cordoned for one.
    pub fn nodes_left_cordoned(&self) -> Vec<Violation> {
        let nodes = self.kubernetes.with_cluster(|kubernetes| kubernetes.nodes());
        let cordoned = nodes.into_iter().filter(KubeNode::is_cordoned_by_us);
        cordoned
            .map(|node| Violation {
                invariant: Id::I17,
                what: format!("the cordon of the node {} belongs to no repair and no reboot", node.name),
            })
            .collect()
    }

    /// True if a drain of the node meets pods with the budget of [`Self::forbid_evictions`].
    #[must_use]
    pub fn is_forbidden_on(&self, node: &str) -> bool {
        self.runs_workload(node, PROTECTED, LEDGER.0)
    }

    /// True if a drain of the node deletes pods, whatever budgets there are.
    #[must_use]
    pub fn deletes_pods_on(&self, node: &str) -> bool {
        self.runs_workload(node, OPEN, FRONT.0) && !self.is_forbidden_on(node)
    }

    fn runs_workload(&self, node: &str, namespace: &str, workload: &str) -> bool {
        self.pods_on(node)
            .iter()
            .any(|pod| pod.id.namespace == namespace && pod.id.name.starts_with(workload))
    }

    /// Restarts the pods of [`FRONT`], which then spread over all nodes.
    pub fn roll_out(&self) {
        self.kubernetes.with_cluster(|kubernetes| {
            for (_, pod) in kubernetes.pods() {
                if pod.id.namespace == OPEN && pod.id.name.starts_with(FRONT.0) {
                    kubernetes.delete(&pod.id);
                }
            }
        });
    }

    /// Adds or removes the budget that allows no eviction.
    pub fn forbid_evictions(&self, forbidden: bool) {
        self.kubernetes.with_cluster(|kubernetes| {
            if forbidden {
                kubernetes.add_budget(make_budget(PROTECTED, LEDGER));
            } else {
                kubernetes.remove_budget(PROTECTED, LEDGER.0);
            }
        });
    }

    pub fn heal(&self) {
        self.kubernetes.faults().clear_all();
        self.forbid_evictions(false);
        self.kubernetes.with_cluster(|kubernetes| {
            for node in kubernetes.nodes() {
                kubernetes.set_ready(&node.name, true);
            }
            for (_, pod) in kubernetes.pods() {
                kubernetes.set_stuck(&pod.id, false);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use madako_datacenter_sim::host::RESET;
    use madako_domain::cluster::Node;
    use madako_domain::kubernetes::PodId;
    use madako_domain::repair::{RepairStatus, RepairStepStatus};
    use madako_json::go::RawJson;
    use madako_protocol::kubernetes::Kubernetes as _;
    use madako_protocol::permit::Permit;
    use serde_json::json;
    use time::OffsetDateTime;

    use super::*;
    use crate::clock::SimulatedClock;

    const NODE: &str = "10.0.0.1";

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn watched() -> RepairQueueEntry {
        RepairQueueEntry {
            status: RepairStatus::Processing,
            step_status: RepairStepStatus::Watching,
            ..RepairQueueEntry::new("unreachable", "iDRAC-9", NODE)
        }
    }

    /// A Kubernetes whose only node runs pods, and a cluster whose procedure drains the node in its first step.
    async fn drained_first() -> (Drains, Cluster) {
        let drains = Drains::new(1, Arc::new(SimulatedClock::new(OffsetDateTime::UNIX_EPOCH)));
        let steps = json!([{"repair_command": [RESET], "need_drain": true}, {"repair_command": [RESET]}]);
        let repair = json!({"repair_procedures": [{
            "machine_types": ["iDRAC-9"],
            "repair_operations": [{"operation": "unreachable", "repair_steps": steps}],
        }]});
        let nodes = vec![Node { address: NODE.to_owned(), ..Node::default() }];
        let repair = RawJson::from_text(repair.to_string()).unwrap();
        let cluster = Cluster { nodes, repair, ..Cluster::default() };
        drains.follow(&cluster);
        tokio::time::sleep(seconds(60)).await;
        (drains, cluster)
    }

    fn permit() -> Permit {
        Permit::give(1, tokio::time::Instant::now() + seconds(600))
    }

    /// Ends the pods that the drain must remove, except one.
    async fn evict(drains: &Drains, but: Option<&PodId>) {
        drains.kubernetes.cordon(&permit(), NODE).await.unwrap();
        for pod in drains.kubernetes.pods_on(NODE).await.unwrap() {
            let stays = pod.mirror || pod.controller.as_deref() == Some("DaemonSet");
            if !stays && but != Some(&pod.id) {
                drains.kubernetes.delete(&permit(), &pod.id).await.unwrap();
            }
        }
        tokio::time::sleep(seconds(60)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn command_on_a_node_with_an_undrained_pod_is_found() {
        let begun = watched();
        let (drains, cluster) = drained_first().await;
        assert!(drains.check_drained(&cluster, &begun, 0).is_some(), "nothing was evicted");
        assert_eq!(drains.check_drained(&cluster, &begun, 1), None, "the step does not drain");
        let outside = RepairQueueEntry { address: "10.0.0.99".to_owned(), ..begun.clone() };
        assert_eq!(drains.check_drained(&cluster, &outside, 0), None, "no node of the cluster");
        evict(&drains, None).await;
        assert_eq!(drains.check_drained(&cluster, &begun, 0), None);

        for (owner, is_stuck) in [("ReplicaSet", false), ("Job", false), ("ReplicaSet", true)] {
            let (drains, cluster) = drained_first().await;
            let pods = drains.kubernetes.pods_on(NODE).await.unwrap();
            let kept = pods.iter().find(|pod| pod.controller.as_deref() == Some(owner)).unwrap();
            drains.kubernetes.with_cluster(|kubernetes| kubernetes.set_stuck(&kept.id, is_stuck));
            evict(&drains, Some(&kept.id).filter(|_| !is_stuck)).await;
            assert!(drains.check_drained(&cluster, &begun, 0).is_some(), "a pod of a {owner} is left");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_stays_cordoned_is_found() {
        let (drains, _) = drained_first().await;
        assert_eq!(drains.nodes_left_cordoned(), []);
        drains.kubernetes.cordon(&permit(), NODE).await.unwrap();
        assert_eq!(drains.nodes_left_cordoned().len(), 1);
        drains.kubernetes.uncordon(&permit(), NODE).await.unwrap();
        assert_eq!(drains.nodes_left_cordoned(), []);
    }
}
