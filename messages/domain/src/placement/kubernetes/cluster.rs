//! Kubernetes clusters, registered or created by an infrastructure provider.

use crate::placement::metadata::{Metadata, MetricRef, Reason, ResourceRef};
use crate::placement::rules;
use crate::placement::{LabelConstraint, MetricConstraint};
use madako_json::krake::entries::Entries;
use madako_json::krake::free::{JsonObject, SecretObject};
use madako_json::krake::named_enum::named_enum;
use madako_json::krake::object::object;
use madako_json::krake::timestamp::Timestamp;

object! {
    /// Conditions on the cloud of a cluster.
    pub struct CloudConstraints all_default {
        /// Constraints on the cloud's labels.
        pub labels: Option<Vec<LabelConstraint>> = optional(None);
        /// Constraints on the cloud's metrics.
        pub metrics: Option<Vec<MetricConstraint>> = optional(None);
    }
}

object! {
    /// Constraints on the placement of a cluster.
    pub struct ClusterCloudConstraints all_default {
        /// Conditions on the cloud.
        pub cloud: CloudConstraints = required(CloudConstraints::default());
    }
}

object! {
    /// Specification of a cluster: a kubeconfig, or a TOSCA template.
    pub struct ClusterSpec check(rules::check_cluster) {
        /// Access to the cluster, with one context, one user and one cluster.
        pub kubeconfig: SecretObject = optional(SecretObject::default());
        /// TOSCA template from which an infrastructure provider creates the cluster.
        pub tosca: JsonObject = optional(JsonObject::default());
        /// Custom resources that the cluster has.
        pub custom_resources: Vec<String> = optional(Vec::new());
        /// Constraints on the placement.
        pub constraints: ClusterCloudConstraints = required(ClusterCloudConstraints::default());
        /// Metrics of the cluster.
        pub metrics: Vec<MetricRef> = optional(Vec::new());
        /// True if the cluster inherits the metrics of the cloud to which it is bound.
        pub inherit_metrics: bool = optional(false);
        /// Factor by which the delay between attempts grows.
        pub backoff: i64 = optional(1);
        /// Seconds between attempts, multiplied by `backoff`.
        pub backoff_delay: i64 = optional(1);
        /// Maximum number of attempts; -1 means no limit.
        pub backoff_limit: i64 = optional(-1);
        /// True if the scheduler created the cluster for an application.
        pub auto_generated: bool = optional(false);
    }
}

named_enum! {
    /// The state of a cluster.
    pub enum ClusterState {
        /// No controller has acted yet.
        Pending = "PENDING",
        /// The API server of the cluster answers.
        Online = "ONLINE",
        /// Connection is in progress.
        Connecting = "CONNECTING",
        /// The cluster does not answer.
        Offline = "OFFLINE",
        /// Some nodes are under pressure.
        Unhealthy = "UNHEALTHY",
        /// Some nodes are not ready.
        NotReady = "NOTREADY",
        /// The cluster is online, but a metric has no value.
        FailingMetrics = "FAILING_METRICS",
        /// Creation is in progress.
        Creating = "CREATING",
        /// A change is in progress.
        Reconciling = "RECONCILING",
        /// Deletion is in progress.
        Deleting = "DELETING",
        /// The last change of the cluster failed.
        FailingReconciliation = "FAILING_RECONCILIATION",
        /// No controller retries; a user must change or delete the cluster.
        Failed = "FAILED",
        /// Failure that a controller retries.
        Degraded = "DEGRADED",
    }
}

object! {
    /// A condition of a node.
    pub struct ClusterNodeCondition {
        /// Description of the last transition, for operators.
        pub message: String = required;
        /// Reason of the last transition, as one word.
        pub reason: String = required;
        /// Observed state; requests write it only through its subresource.
        pub status: String = required;
        /// Type of the condition, such as `Ready`.
        pub condition as "type": String = required;
    }
}

object! {
    /// The status of a node.
    pub struct ClusterNodeStatus {
        /// Conditions of the node.
        pub conditions: Vec<ClusterNodeCondition> = required;
    }
}

object! {
    /// Metadata of a node.
    pub struct ClusterNodeMetadata {
        /// Name of the node.
        pub name: String = required;
    }
}

object! {
    /// A node of a cluster.
    pub struct ClusterNode constants("api" = "kubernetes", "kind" = "ClusterNode") {
        /// The name only; a node has no other metadata.
        pub metadata: ClusterNodeMetadata = required;
        /// Conditions that the node reports; `None` if unknown.
        pub status: Option<ClusterNodeStatus> = optional(None);
    }
}

object! {
    /// The status of a cluster.
    pub struct ClusterStatus all_default {
        /// Fault of the present state; `None` without one.
        pub reason: Option<Reason> = optional(None);
        /// Time of the last trigger of the cluster's controller.
        pub kube_controller_triggered: Option<Timestamp> = optional(None);
        /// State of the cluster.
        pub state: ClusterState = optional(ClusterState::Pending);
        /// Fault of each failing metric, by the metric's name.
        pub metrics_reasons: Entries<Reason> = optional(Entries::new());
        /// The last applied TOSCA template.
        pub last_applied_tosca: JsonObject = optional(JsonObject::default());
        /// Nodes of the cluster.
        pub nodes: Vec<ClusterNode> = optional(Vec::new());
        /// Id of the cluster at the infrastructure provider.
        pub cluster_id: Option<String> = optional(None);
        /// Time of the binding to the cloud in `scheduled_to`.
        pub scheduled: Option<Timestamp> = optional(None);
        /// Cloud to which the cluster is bound.
        pub scheduled_to: Option<ResourceRef> = optional(None);
        /// Cloud on which the cluster runs.
        pub running_on: Option<ResourceRef> = optional(None);
        /// Number of attempts left.
        pub retries: i64 = optional(0);
    }
}

object! {
    /// A cluster that runs applications, with its kubeconfig and its metrics.
    pub struct Cluster constants("api" = "kubernetes", "kind" = "Cluster") {
        /// Krake's metadata: name, namespace, labels, finalizers and owners.
        pub metadata: Metadata = required;
        /// The state that the user requests; only users change it.
        pub spec: ClusterSpec = required;
        /// Observed state; requests write it only through its subresource.
        pub status: ClusterStatus = subresource(ClusterStatus::default());
    }
}
