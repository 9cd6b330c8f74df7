//! The simulated Kubernetes API of an instance, with a check of each write: the leader's key in the store must name the
//! writing instance.
//!
//! Does not judge the content of a write: [`drains`](crate::drains) does.

use std::collections::BTreeSet;

use async_trait::async_trait;
use madako_datacenter_sim::kubernetes::SimulatedKubernetes;
use madako_domain::kubernetes::{EvictionOutcome, KubeNode, Pod, PodId};
use madako_judges::{Fact, KubernetesRequest, PodFact};
use madako_protocol::kubernetes::{Kubernetes, KubernetesError};
use madako_protocol::permit::Permit;

use crate::drains::PROTECTED;
use crate::facts::Facts;
use crate::repair::RepairJudge;
use crate::store_process::StoreProcess;

/// The Kubernetes API of an instance; a judge checks every write.
pub struct JudgedKubernetes {
    pub kubernetes: SimulatedKubernetes,
    pub judge: RepairJudge,
    /// The store from which the judge reads the leader's key.
    pub store: StoreProcess,
    /// Name of the instance, and the receiver of its facts.
    pub fact_sink: (String, Facts),
}

impl JudgedKubernetes {
    fn record_request(&self, action: KubernetesRequest, node: &str, pod: Option<&PodId>, refused: bool) {
        let pod = pod.map(|pod| PodFact { name: pod.to_string(), protected: pod.namespace == PROTECTED });
        let (node, sent) = (node.to_owned(), self.fact_sink.1.current_time());
        self.fact_sink.1.report(&Fact::Kubernetes { action, node, pod, refused, sent });
    }

    fn node_of_pod(&self, pod: &PodId) -> String {
        let pods = self.kubernetes.with_cluster(|kubernetes| kubernetes.pods());
        pods.into_iter().find(|(_, it)| it.id == *pod).and_then(|(node, _)| node).unwrap_or_default()
    }

    /// Reports the start of a write. Returns `false` if its permit has expired: then the API refuses it.
    async fn begin_effect(&self, permit: &Permit, what: &str, of: &str) -> bool {
        let permitted = permit.check(tokio::time::Instant::now()).is_ok();
        if permitted {
            self.fact_sink.1.note_permit(&self.fact_sink.0, permit, &self.store);
            self.judge.judge_effect(&self.store, permit, &format!("{what} {of}")).await;
        }
        permitted
    }
}

#[async_trait]
impl Kubernetes for JudgedKubernetes {
    async fn nodes(&self) -> Result<Vec<KubeNode>, KubernetesError> {
        Kubernetes::nodes(&self.kubernetes).await
    }

    async fn namespaces(&self, selector: &str) -> Result<BTreeSet<String>, KubernetesError> {
        Kubernetes::namespaces(&self.kubernetes, selector).await
    }

    async fn pods_on(&self, node: &str) -> Result<Vec<Pod>, KubernetesError> {
        Kubernetes::pods_on(&self.kubernetes, node).await
    }

    async fn on_delete_pods(&self, node: &str) -> Result<Vec<PodId>, KubernetesError> {
        Kubernetes::on_delete_pods(&self.kubernetes, node).await
    }

    async fn cordon(&self, permit: &Permit, node: &str) -> Result<(), KubernetesError> {
        if self.begin_effect(permit, "cordon", node).await {
            self.record_request(KubernetesRequest::Cordon, node, None, false);
        }
        Kubernetes::cordon(&self.kubernetes, permit, node).await
    }

    async fn uncordon(&self, permit: &Permit, node: &str) -> Result<(), KubernetesError> {
        if self.begin_effect(permit, "uncordon", node).await {
            self.record_request(KubernetesRequest::Uncordon, node, None, false);
        }
        Kubernetes::uncordon(&self.kubernetes, permit, node).await
    }

    async fn evict(
        &self,
        permit: &Permit,
        pod: &PodId,
        dry_run: bool,
    ) -> Result<EvictionOutcome, KubernetesError> {
        let permitted = !dry_run && self.begin_effect(permit, "evict", &pod.name).await;
        let node = self.node_of_pod(pod);
        let evicted = Kubernetes::evict(&self.kubernetes, permit, pod, dry_run).await;
        let refused = matches!(evicted, Ok(EvictionOutcome::Refused { .. }));
        if dry_run {
            let protected = pod.namespace == PROTECTED;
            self.fact_sink.1.report(&Fact::EvictionTried { protected, refused });
        } else if permitted {
            self.record_request(KubernetesRequest::Evict, &node, Some(pod), refused);
        }
        evicted
    }

    async fn delete(&self, permit: &Permit, pod: &PodId) -> Result<(), KubernetesError> {
        if self.begin_effect(permit, "delete", &pod.name).await {
            self.record_request(KubernetesRequest::Delete, &self.node_of_pod(pod), Some(pod), false);
        }
        Kubernetes::delete(&self.kubernetes, permit, pod).await
    }
}
