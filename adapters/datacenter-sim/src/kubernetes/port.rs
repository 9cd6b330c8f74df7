//! Implements the port `Kubernetes` on a simulated Kubernetes, with the deadlines and errors of the real adapter.

use std::collections::BTreeSet;
use std::time::Duration;

use async_trait::async_trait;
use madako_domain::kubernetes::workload::Workloads;
use madako_domain::kubernetes::{EvictionOutcome, KubeNode, Pod, PodId};
use madako_protocol::kubernetes::{Kubernetes, KubernetesError, KubernetesWorkloads};
use madako_protocol::permit::Permit;
use tokio::time::{Instant, timeout_at};

use super::SimulatedKubernetes;
use super::cluster::Cluster;
use crate::faults::Fault;

/// Deadline of a list, as in the real adapter.
const READ_DEADLINE: Duration = Duration::from_secs(30);

/// Deadline of a write, as in the real adapter.
const WRITE_DEADLINE: Duration = Duration::from_secs(15);

impl SimulatedKubernetes {
    /// One exchange: the active faults, then the action, then the delay of the answer. A write with a late answer has
    /// therefore taken effect.
    async fn exchange<R>(
        &self,
        what: &str,
        within: Duration,
        until: Option<Instant>,
        act: impl FnOnce(&mut Cluster) -> Result<R, KubernetesError>,
    ) -> Result<R, KubernetesError> {
        let unavailable =
            |why: &str| KubernetesError::Unavailable { what: what.to_owned(), why: why.to_owned() };
        let work = async {
            self.faults.wait_until_no_hang().await;
            for fault in self.faults.present_faults() {
                match fault {
                    Fault::RefuseConnections => return Err(unavailable("connection refused")),
                    Fault::Status(status) => {
                        let why = "a fault of the simulation".to_owned();
                        return Err(KubernetesError::Refused { what: what.to_owned(), status, why });
                    }
                    Fault::MalformedJson | Fault::WrongTypes | Fault::EndlessBody | Fault::NullList => {
                        let why = "a fault of the simulation".to_owned();
                        return Err(KubernetesError::Malformed { what: what.to_owned(), why });
                    }
                    Fault::TruncateBody => {
                        // The answer is lost, but the request took effect.
                        let _ = self.with_cluster(act);
                        return Err(unavailable("connection closed before message completed"));
                    }
                    _ => {}
                }
            }
            let answer = self.with_cluster(act);
            self.faults.sleep_while_slow().await;
            answer
        };
        let deadline = Instant::now() + within;
        let deadline = until.map_or(deadline, |until| deadline.min(until));
        match timeout_at(deadline, work).await {
            Ok(answer) => answer,
            Err(_) => Err(unavailable(&format!("no complete answer within {within:?}"))),
        }
    }

    async fn write<R>(
        &self,
        permit: &Permit,
        what: &str,
        act: impl FnOnce(&mut Cluster) -> Result<R, KubernetesError>,
    ) -> Result<R, KubernetesError> {
        permit.check(Instant::now())?;
        self.exchange(what, WRITE_DEADLINE, Some(permit.expires_at()), act).await
    }

    async fn set_cordon(
        &self,
        permit: &Permit,
        name: &str,
        node: &str,
        cordoned: bool,
    ) -> Result<(), KubernetesError> {
        let what = format!("{name} of node {node}");
        let act = |cluster: &mut Cluster| {
            if cluster.set_cordon(node, cordoned) {
                Ok(())
            } else {
                Err(KubernetesError::NotFound { what: what.clone() })
            }
        };
        self.write(permit, &what, act).await
    }
}

#[async_trait]
impl Kubernetes for SimulatedKubernetes {
    async fn nodes(&self) -> Result<Vec<KubeNode>, KubernetesError> {
        self.exchange("nodes", READ_DEADLINE, None, |cluster| Ok(cluster.nodes())).await
    }

    async fn namespaces(&self, selector: &str) -> Result<BTreeSet<String>, KubernetesError> {
        let act = |cluster: &mut Cluster| {
            let chosen = cluster.matching_namespaces(selector);
            chosen.map_err(|why| KubernetesError::Refused { what: "namespaces".to_owned(), status: 400, why })
        };
        self.exchange("namespaces", READ_DEADLINE, None, act).await
    }

    async fn pods_on(&self, node: &str) -> Result<Vec<Pod>, KubernetesError> {
        let what = format!("pods on node {node}");
        self.exchange(&what, READ_DEADLINE, None, |cluster| Ok(cluster.pods_on(node))).await
    }

    async fn on_delete_pods(&self, node: &str) -> Result<Vec<PodId>, KubernetesError> {
        self.exchange("daemonsets", READ_DEADLINE, None, |cluster| Ok(cluster.on_delete_pods(node))).await
    }

    async fn cordon(&self, permit: &Permit, node: &str) -> Result<(), KubernetesError> {
        self.set_cordon(permit, "cordon", node, true).await
    }

    async fn uncordon(&self, permit: &Permit, node: &str) -> Result<(), KubernetesError> {
        self.set_cordon(permit, "uncordon", node, false).await
    }

    async fn evict(
        &self,
        permit: &Permit,
        pod: &PodId,
        dry_run: bool,
    ) -> Result<EvictionOutcome, KubernetesError> {
        let what = format!("eviction of pod {}/{}", pod.namespace, pod.name);
        let act = |cluster: &mut Cluster| {
            let evicted = cluster.evict(pod, dry_run);
            evicted.map_err(|why| KubernetesError::Refused { what: what.clone(), status: 500, why })
        };
        self.write(permit, &what, act).await
    }

    async fn delete(&self, permit: &Permit, pod: &PodId) -> Result<(), KubernetesError> {
        let what = format!("deletion of pod {}/{}", pod.namespace, pod.name);
        self.write(permit, &what, |cluster| {
            cluster.delete(pod);
            Ok(())
        })
        .await
    }
}

#[async_trait]
impl KubernetesWorkloads for SimulatedKubernetes {
    async fn workloads(&self) -> Result<Workloads, KubernetesError> {
        self.exchange("workloads", READ_DEADLINE, None, |cluster| Ok(cluster.workloads())).await
    }
}
