//! The Kubernetes API of an instance, with a check of each write: the leader's key in the store must name the writing
//! instance.
//!
//! Does not judge the content of a write: [`drains`](crate::drains) does.

use std::collections::BTreeSet;

use async_trait::async_trait;
use madako_datacenter_sim::kubernetes::SimulatedKubernetes;
use madako_domain::kubernetes::{Eviction, KubeNode, Pod, PodId};
use madako_judges::Fact;
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
    pub told: (String, Facts),
}

impl JudgedKubernetes {
    fn ends(&self, pod: &PodId, deleted: bool, refused: bool) {
        let protected = pod.namespace == PROTECTED;
        self.told.1.tell(&Fact::PodEnds { protected, deleted, refused, pod: pod.to_string() });
    }

    /// Reports the start of a write, unless its permit has expired.
    async fn begins(&self, permit: &Permit, what: &str, of: &str) {
        if permit.check(tokio::time::Instant::now()).is_ok() {
            self.told.1.permitted(&self.told.0, permit, &self.store);
            self.judge.writes_to_kubernetes(&self.store, permit, &format!("{what} {of}")).await;
        }
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

    async fn cordon(&self, permit: &Permit, node: &str) -> Result<(), KubernetesError> {
        self.begins(permit, "cordon", node).await;
        Kubernetes::cordon(&self.kubernetes, permit, node).await
    }

    async fn uncordon(&self, permit: &Permit, node: &str) -> Result<(), KubernetesError> {
        self.begins(permit, "uncordon", node).await;
        Kubernetes::uncordon(&self.kubernetes, permit, node).await
    }

    async fn evict(&self, permit: &Permit, pod: &PodId, dry_run: bool) -> Result<Eviction, KubernetesError> {
        if !dry_run {
            self.begins(permit, "evict", &pod.name).await;
        }
        let evicted = Kubernetes::evict(&self.kubernetes, permit, pod, dry_run).await;
        self.ends(pod, false, matches!(evicted, Ok(Eviction::Refused { .. })));
        evicted
    }

    async fn delete(&self, permit: &Permit, pod: &PodId) -> Result<(), KubernetesError> {
        self.begins(permit, "delete", &pod.name).await;
        self.ends(pod, true, false);
        Kubernetes::delete(&self.kubernetes, permit, pod).await
    }
}
