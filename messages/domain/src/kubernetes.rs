//! Nodes and pods as the API server shows them: the fields that draining needs.

pub mod drain;
pub mod selector;
pub mod workload;

use std::collections::BTreeMap;

use time::OffsetDateTime;

use crate::cluster::Taint;

/// The annotation that CKE puts on the nodes that it cordons, with the value `true`.
pub const ANNOTATION_REBOOT: &str = "cke.cybozu.com/reboot";

/// The annotation, with the value `true`, of a node that another client had cordoned before CKE's annotation was put on it. The
/// node stays cordoned when the annotations are removed.
pub const ANNOTATION_CORDONED_BEFORE: &str = "madako/cordoned-before";

/// A node as the API server shows it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KubeNode {
    /// Name of the Node object.
    pub name: String,
    /// True if the node is cordoned (`spec.unschedulable`).
    pub unschedulable: bool,
    /// Annotations of the Node object.
    pub annotations: BTreeMap<String, String>,
    /// Taints of the Node object, from all writers.
    pub taints: Vec<Taint>,
    /// The condition `Ready`; `None` if it is unknown or absent.
    pub ready: Option<bool>,
    /// Volumes that the kubelet reports as in use (`status.volumesInUse`).
    pub volumes_in_use: Vec<String>,
}

impl KubeNode {
    /// True if CKE or Madako cordoned the node for a reboot or a repair.
    #[must_use]
    pub fn is_cordoned_by_us(&self) -> bool {
        self.annotations.get(ANNOTATION_REBOOT).is_some_and(|value| value == "true")
    }

    /// True if another client cordoned the node, and CKE or Madako did not.
    #[must_use]
    pub fn is_cordoned_by_another(&self) -> bool {
        self.unschedulable && !self.is_cordoned_by_us()
    }

    /// True if the node stays cordoned after a reboot or a repair.
    #[must_use]
    pub fn was_cordoned_before(&self) -> bool {
        self.annotations.get(ANNOTATION_CORDONED_BEFORE).is_some_and(|value| value == "true")
    }
}

/// The phase of a pod (`status.phase`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, strum::EnumString, strum::IntoStaticStr)]
pub enum PodPhase {
    /// Not all containers have started.
    Pending,
    /// At least one container runs.
    Running,
    /// All containers ended successfully.
    Succeeded,
    /// A container failed and none runs.
    Failed,
    /// The node does not report.
    #[default]
    Unknown,
}

madako_json::named!(PodPhase);

/// The identity of a pod. A new pod may reuse a name, never a uid.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodId {
    /// Namespace, which the name is unique in.
    pub namespace: String,
    /// Name, which a later pod may have again.
    pub name: String,
    /// Identifier from the API server, which no other pod ever has.
    pub uid: String,
}

/// A pod on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    /// Identity of the pod.
    pub id: PodId,
    /// The last phase that the kubelet reported.
    pub phase: PodPhase,
    /// Kind of the controller that owns it, such as `Job` or `DaemonSet`.
    pub controller: Option<String>,
    /// True for the mirror of a static pod (annotation `kubernetes.io/config.mirror`): only its node can end it.
    pub mirror: bool,
    /// The deletion timestamp of a terminating pod.
    pub deleted_at: Option<OffsetDateTime>,
}

/// The result of an eviction request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EvictionOutcome {
    /// The API server accepted it: the pod ends within its grace period.
    Accepted,
    /// The pod does not exist any more.
    Gone,
    /// The API server refused it for now (429): a disruption budget forbids it.
    Refused {
        /// The message of the API server.
        why: String,
    },
}
