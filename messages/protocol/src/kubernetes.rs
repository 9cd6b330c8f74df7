//! The port to the cluster's API server: nodes, pods, evictions.

use std::collections::BTreeSet;

use async_trait::async_trait;
use madako_domain::kubernetes::{Eviction, KubeNode, Pod, PodId};

use crate::permit::{Permit, PermitEnded};

/// Why the API server did not do as asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KubernetesError {
    /// An effect was not begun.
    #[error(transparent)]
    Permit(#[from] PermitEnded),
    /// There is no such thing.
    #[error("{what} is not there")]
    NotFound {
        /// What was asked for.
        what: String,
    },
    /// No whole answer in time: not reachable, too slow, cut off. A write may have happened.
    #[error("{what}: the API server did not answer: {why}")]
    Unavailable {
        /// What was asked for.
        what: String,
        /// What was seen.
        why: String,
    },
    /// The API server refused.
    #[error("{what}: the API server refused with {status}: {why}")]
    Refused {
        /// What was asked for.
        what: String,
        /// Its status code.
        status: u16,
        /// What it said, shortened.
        why: String,
    },
    /// What it answered is not what was asked for.
    #[error("{what}: the answer is malformed: {why}")]
    Malformed {
        /// What was asked for.
        what: String,
        /// What is wrong with it.
        why: String,
    },
}

/// The API server of the cluster. Each call has a deadline of its own.
#[async_trait]
pub trait Kubernetes: Send + Sync + 'static {
    /// Every node.
    ///
    /// # Errors
    /// See [`KubernetesError`].
    async fn nodes(&self) -> Result<Vec<KubeNode>, KubernetesError>;

    /// Names of the namespaces that a label selector chooses, in the API's own notation; empty chooses all.
    ///
    /// # Errors
    /// See [`KubernetesError`].
    async fn namespaces(&self, selector: &str) -> Result<BTreeSet<String>, KubernetesError>;

    /// Every pod that is bound to a node.
    ///
    /// # Errors
    /// See [`KubernetesError`].
    async fn pods_on(&self, node: &str) -> Result<Vec<Pod>, KubernetesError>;

    /// Makes a node unschedulable and puts [`ANNOTATION_REBOOT`] on it. Doing so twice changes nothing.
    ///
    /// # Errors
    /// See [`KubernetesError`].
    async fn cordon(&self, permit: &Permit, node: &str) -> Result<(), KubernetesError>;

    /// Takes both back.
    ///
    /// # Errors
    /// See [`KubernetesError`].
    async fn uncordon(&self, permit: &Permit, node: &str) -> Result<(), KubernetesError>;

    /// Evicts a pod; a dry run only asks whether that would be accepted.
    ///
    /// # Errors
    /// See [`KubernetesError`]; a refusal for a disruption budget's sake is none.
    async fn evict(&self, permit: &Permit, pod: &PodId, dry_run: bool) -> Result<Eviction, KubernetesError>;

    /// Deletes a pod within its grace period, whatever disruption budgets say. One that is gone is no error.
    ///
    /// # Errors
    /// See [`KubernetesError`].
    async fn delete(&self, permit: &Permit, pod: &PodId) -> Result<(), KubernetesError>;
}
