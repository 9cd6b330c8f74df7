//! Kubernetes clusters, registered or created by an infrastructure provider.

use crate::placement::metadata::{Metadata, MetricRef, Reason, ResourceRef};
use crate::placement::rules;
use crate::placement::{LabelConstraint, MetricConstraint};
use madako_json::krake::choice::choice;
use madako_json::krake::entries::Entries;
use madako_json::krake::free::{JsonObject, SecretObject};
use madako_json::krake::object::object;
use madako_json::krake::timestamp::Timestamp;

object! {
    /// What a cloud must have to take a cluster.
    pub struct CloudConstraints all_default {
        /// Constraints on its labels.
        pub labels: Option<Vec<LabelConstraint>> = optional(None);
        /// Constraints on its metrics.
        pub metrics: Option<Vec<MetricConstraint>> = optional(None);
    }
}

object! {
    /// Where a cluster may go.
    pub struct ClusterCloudConstraints all_default {
        /// What its cloud must have.
        pub cloud: CloudConstraints = required(CloudConstraints::default());
    }
}

object! {
    /// What a cluster is: a kubeconfig, or a TOSCA template.
    pub struct ClusterSpec check(rules::cluster) {
        /// Access to it, with one context, one user and one cluster.
        pub kubeconfig: SecretObject = optional(SecretObject::default());
        /// What it is to be made from.
        pub tosca: JsonObject = optional(JsonObject::default());
        /// Custom resources that it has.
        pub custom_resources: Vec<String> = optional(Vec::new());
        /// Where it may go.
        pub constraints: ClusterCloudConstraints = required(ClusterCloudConstraints::default());
        /// Its metrics.
        pub metrics: Vec<MetricRef> = optional(Vec::new());
        /// Whether the metrics of the cloud that it is bound to count as its own.
        pub inherit_metrics: bool = optional(false);
        /// Factor of the delay between attempts.
        pub backoff: i64 = optional(1);
        /// Seconds between attempts.
        pub backoff_delay: i64 = optional(1);
        /// Attempts; -1 for ever.
        pub backoff_limit: i64 = optional(-1);
        /// Whether it was created for an application.
        pub auto_generated: bool = optional(false);
    }
}

choice! {
    /// The state of a cluster.
    pub enum ClusterState {
        /// Nothing was done yet.
        Pending = "PENDING",
        /// It answers.
        Online = "ONLINE",
        /// It is being connected.
        Connecting = "CONNECTING",
        /// It does not answer.
        Offline = "OFFLINE",
        /// Some nodes are under pressure.
        Unhealthy = "UNHEALTHY",
        /// Some nodes are not ready.
        NotReady = "NOTREADY",
        /// It is online, but its metrics cannot be had.
        FailingMetrics = "FAILING_METRICS",
        /// It is being created.
        Creating = "CREATING",
        /// It is being changed.
        Reconciling = "RECONCILING",
        /// It is being deleted.
        Deleting = "DELETING",
        /// It could not be changed.
        FailingReconciliation = "FAILING_RECONCILIATION",
        /// Something went wrong for good.
        Failed = "FAILED",
        /// Something went wrong and is tried again.
        Degraded = "DEGRADED",
    }
}

object! {
    /// A condition of a node.
    pub struct ClusterNodeCondition {
        /// The last transition, for people.
        pub message: String = required;
        /// Its reason in a word.
        pub reason: String = required;
        /// `True`, `False` or `Unknown`.
        pub status: String = required;
        /// Which condition it is.
        pub condition as "type": String = required;
    }
}

object! {
    /// The status of a node.
    pub struct ClusterNodeStatus {
        /// Its conditions.
        pub conditions: Vec<ClusterNodeCondition> = required;
    }
}

object! {
    /// Metadata of a node.
    pub struct ClusterNodeMetadata {
        /// Its name.
        pub name: String = required;
    }
}

object! {
    /// A node of a cluster.
    pub struct ClusterNode constants("api" = "kubernetes", "kind" = "ClusterNode") {
        /// Metadata.
        pub metadata: ClusterNodeMetadata = required;
        /// How it is.
        pub status: Option<ClusterNodeStatus> = optional(None);
    }
}

object! {
    /// The status of a cluster.
    pub struct ClusterStatus all_default {
        /// What is wrong.
        pub reason: Option<Reason> = optional(None);
        /// When the controller of the cluster was triggered last.
        pub kube_controller_triggered: Option<Timestamp> = optional(None);
        /// Its state.
        pub state: ClusterState = optional(ClusterState::Pending);
        /// What is wrong with which metric.
        pub metrics_reasons: Entries<Reason> = optional(Entries::new());
        /// The TOSCA template that was applied last.
        pub last_applied_tosca: JsonObject = optional(JsonObject::default());
        /// Its nodes.
        pub nodes: Vec<ClusterNode> = optional(Vec::new());
        /// Its id at the infrastructure provider.
        pub cluster_id: Option<String> = optional(None);
        /// When it was bound to the cloud that it is bound to.
        pub scheduled: Option<Timestamp> = optional(None);
        /// The cloud that it is bound to.
        pub scheduled_to: Option<ResourceRef> = optional(None);
        /// The cloud that it runs on.
        pub running_on: Option<ResourceRef> = optional(None);
        /// Attempts that are left.
        pub retries: i64 = optional(0);
    }
}

object! {
    /// A Kubernetes cluster.
    pub struct Cluster constants("api" = "kubernetes", "kind" = "Cluster") {
        /// Metadata.
        pub metadata: Metadata = required;
        /// What it is.
        pub spec: ClusterSpec = required;
        /// How it is.
        pub status: ClusterStatus = subresource(ClusterStatus::default());
    }
}
