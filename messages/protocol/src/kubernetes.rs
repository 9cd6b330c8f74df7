//! The port to the cluster's API server: nodes, pods, evictions.

use std::collections::BTreeSet;

use async_trait::async_trait;
use madako_domain::kubernetes::workload::Workloads;
use madako_domain::kubernetes::{EvictionOutcome, KubeNode, Pod, PodId};

use crate::permit::{Permit, PermitEnded};

/// The error of a request to the API server.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KubernetesError {
    /// The permit had expired; the effect did not begin.
    #[error(transparent)]
    Permit(#[from] PermitEnded),
    /// The object does not exist.
    #[error("{what}: the API server has no such object")]
    NotFound {
        /// The requested object or operation.
        what: String,
    },
    /// No complete answer in time: the server is unreachable or slow, or the connection broke. A write may have
    /// happened.
    #[error("{what}: the API server did not answer: {why}")]
    Unavailable {
        /// The requested object or operation.
        what: String,
        /// The failure of the connection or of the exchange.
        why: String,
    },
    /// The API server refused the request.
    #[error("{what}: the API server refused the request with status {status}: {why}")]
    Refused {
        /// The requested object or operation.
        what: String,
        /// HTTP status code, such as 403.
        status: u16,
        /// The message of the API server, shortened.
        why: String,
    },
    /// The answer does not fit the request.
    #[error("{what}: the answer is malformed: {why}")]
    Malformed {
        /// The requested object or operation.
        what: String,
        /// The fault of the answer.
        why: String,
    },
}

/// The port to the cluster's API server. Each call has its own deadline.
#[async_trait]
pub trait Kubernetes: Send + Sync + 'static {
    /// Every Node object of the cluster.
    async fn nodes(&self) -> Result<Vec<KubeNode>, KubernetesError>;

    /// One node; `None` if the API server has none of this name.
    async fn node(&self, name: &str) -> Result<Option<KubeNode>, KubernetesError> {
        Ok(self.nodes().await?.into_iter().find(|node| node.name == name))
    }

    /// Names of the namespaces that a label selector in the API's notation selects; the empty selector selects all.
    async fn namespaces(&self, selector: &str) -> Result<BTreeSet<String>, KubernetesError>;

    /// All pods that are bound to a node.
    async fn pods_on(&self, node: &str) -> Result<Vec<Pod>, KubernetesError>;

    /// The pods on a node whose DaemonSets have the update strategy `OnDelete`.
    async fn on_delete_pods(&self, node: &str) -> Result<Vec<PodId>, KubernetesError>;

    /// Makes a node unschedulable and sets [`ANNOTATION_REBOOT`](madako_domain::kubernetes::ANNOTATION_REBOOT) on it.
    /// Idempotent.
    async fn cordon(&self, permit: &Permit, node: &str) -> Result<(), KubernetesError>;

    /// Reverts [`Self::cordon`]. A node that another client had cordoned before stays unschedulable. Idempotent.
    async fn uncordon(&self, permit: &Permit, node: &str) -> Result<(), KubernetesError>;

    /// Evicts a pod; a dry run only checks whether the API server would accept that.
    ///
    /// # Errors
    /// See [`KubernetesError`]. A refusal because of a disruption budget is not an error.
    async fn evict(
        &self,
        permit: &Permit,
        pod: &PodId,
        dry_run: bool,
    ) -> Result<EvictionOutcome, KubernetesError>;

    /// Deletes a pod within its grace period, whatever disruption budgets say. A missing pod is not an error.
    async fn delete(&self, permit: &Permit, pod: &PodId) -> Result<(), KubernetesError>;
}

/// The part of the port that forecasts of drains need. The service itself does not read it.
#[async_trait]
pub trait KubernetesWorkloads: Send + Sync + 'static {
    /// Nodes, pods with their owners, and disruption budgets of the whole cluster. Each list has its own deadline.
    ///
    /// # Errors
    /// See [`KubernetesError`]. One list that cannot be read, or is longer than the limit, fails the call.
    async fn workloads(&self) -> Result<Workloads, KubernetesError>;
}
