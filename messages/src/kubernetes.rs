//! Kubernetes as far as draining needs it: the port, and what it shows.

pub mod drain;
pub mod selector;

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use time::OffsetDateTime;

use crate::cluster::Taint;
use crate::permit::{Permit, PermitEnded};

/// The annotation that CKE puts on nodes which it cordoned, with the value `true`.
pub const ANNOTATION_REBOOT: &str = "cke.cybozu.com/reboot";

/// A node as the API server shows it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KubeNode {
    /// Name.
    pub name: String,
    /// Whether nothing is scheduled on it.
    pub unschedulable: bool,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
    /// Taints.
    pub taints: Vec<Taint>,
    /// Its condition `Ready`; `None`: unknown or absent.
    pub ready: Option<bool>,
}

impl KubeNode {
    /// Whether it was cordoned for a reboot or a repair.
    #[must_use]
    pub fn is_cordoned_by_us(&self) -> bool {
        self.annotations.get(ANNOTATION_REBOOT).is_some_and(|value| value == "true")
    }
}

/// A phase of a pod's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PodPhase {
    /// Not every container has started.
    Pending,
    /// It runs.
    Running,
    /// Every container ended well.
    Succeeded,
    /// A container failed and none runs.
    Failed,
    /// Its node does not tell.
    #[default]
    Unknown,
}

/// Which pod: a name may be given anew, a uid never.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodId {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Uid.
    pub uid: String,
}

/// A pod on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    /// Which.
    pub id: PodId,
    /// How far its life is.
    pub phase: PodPhase,
    /// Kind of the controller that owns it, such as `Job` or `DaemonSet`.
    pub controller: Option<String>,
    /// Whether it is the mirror of a static pod (annotation `kubernetes.io/config.mirror`): only its node can end it.
    pub mirror: bool,
    /// Since when it is being ended, if it is.
    pub deleted_at: Option<OffsetDateTime>,
}

/// What became of an eviction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Eviction {
    /// It was accepted: the pod ends within its grace period.
    Accepted,
    /// There is no such pod any more.
    Gone,
    /// It was refused for now (429): a disruption budget forbids it.
    Refused {
        /// What the API server said.
        why: String,
    },
}

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
