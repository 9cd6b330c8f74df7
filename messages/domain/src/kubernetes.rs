//! Nodes and pods as the API server shows them, as far as draining needs them.

pub mod drain;
pub mod selector;

use std::collections::BTreeMap;

use time::OffsetDateTime;

use crate::cluster::Taint;

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
