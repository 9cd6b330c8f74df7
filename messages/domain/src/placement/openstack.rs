//! The resources of Krake's `openstack` group: projects, and Magnum clusters in them.

use super::LabelConstraint;
use super::metadata::{Metadata, MetricRef, Reason, ResourceRef};
use madako_json::krake::entries::Entries;
use madako_json::krake::named_enum::named_enum;
use madako_json::krake::object::object;
use madako_json::krake::scalar::Secret;
use madako_json::krake::tagged::{Tagged, variants};

object! {
    /// A user of OpenStack's identity service, by id.
    pub struct UserReference {
        /// Identifier that OpenStack gave the user.
        pub id: String = required;
        /// Password of the user; never in messages.
        pub password: Secret = required;
        /// A remark for people; the service does not use it.
        pub comment: Option<String> = optional(None);
    }
}

object! {
    /// A project of OpenStack's identity service, by id.
    pub struct ProjectReference {
        /// Identifier that OpenStack gave the project.
        pub id: String = required;
        /// A remark for people; the service does not use it.
        pub comment: Option<String> = optional(None);
    }
}

object! {
    /// Authentication by a password.
    pub struct Password {
        /// The user that logs in.
        pub user: UserReference = required;
        /// The project that is the scope of the login.
        pub project: ProjectReference = required;
    }
}

object! {
    /// Authentication by an application credential.
    pub struct ApplicationCredential {
        /// Identifier that OpenStack gave the credential.
        pub id: String = required;
        /// Secret of the credential; never in messages.
        pub secret: Secret = required;
    }
}

variants! {
    /// Method of authentication at OpenStack's identity service.
    pub enum AuthKind {
        /// Authentication by a password.
        Password(Password) = "password",
        /// Authentication by an application credential.
        ApplicationCredential(ApplicationCredential) = "application_credential",
    }
}

/// The authentication at OpenStack's identity service, tagged with its method.
pub type AuthMethod = Tagged<AuthKind>;

object! {
    /// Access, template and metrics of a project.
    pub struct ProjectSpec {
        /// Address of the identity service.
        pub url: String = required;
        /// Authentication at the identity service.
        pub auth: AuthMethod = required;
        /// Id of the Magnum cluster template.
        pub template: String = required;
        /// Metrics by which the project is compared with other projects.
        pub metrics: Vec<MetricRef> = optional(Vec::new());
    }
}

named_enum! {
    /// The state of a project, which depends on its metrics alone.
    pub enum ProjectState {
        /// Every metric of the project has a value.
        Online = "ONLINE",
        /// A metric of the project has no value.
        FailingMetrics = "FAILING_METRICS",
    }
}

object! {
    /// The status of a project.
    pub struct ProjectStatus all_default {
        /// The observed state; `ONLINE` until a metric fails.
        pub state: ProjectState = optional(ProjectState::Online);
        /// Fault of each failing metric, by the metric's name.
        pub metrics_reasons: Entries<Reason> = optional(Entries::new());
    }
}

object! {
    /// A project of OpenStack that has Magnum clusters, with its login and its metrics.
    pub struct Project constants("api" = "openstack", "kind" = "Project") {
        /// Krake's metadata: name, namespace, labels, finalizers and owners.
        pub metadata: Metadata = required;
        /// The state that the user requests; only users change it.
        pub spec: ProjectSpec = required;
        /// Observed state; requests write it only through its subresource.
        pub status: ProjectStatus = subresource(ProjectStatus::default());
    }
}

object! {
    /// Conditions on the project of a Magnum cluster.
    pub struct ProjectConstraints {
        /// Constraints on the project's labels.
        pub labels: Option<Vec<LabelConstraint>> = optional(None);
    }
}

object! {
    /// Constraints on the placement of a Magnum cluster.
    pub struct MagnumConstraints {
        /// Conditions on the project.
        pub project: Option<ProjectConstraints> = optional(None);
    }
}

object! {
    /// Size, metrics and constraints of a Magnum cluster.
    pub struct MagnumClusterSpec {
        /// Number of master nodes.
        pub master_count: Option<i64> = optional_immutable(None);
        /// Number of worker nodes.
        pub node_count: Option<i64> = optional(None);
        /// Metrics that the cluster has, by reference.
        pub metrics: Vec<MetricRef> = optional(Vec::new());
        /// Constraints on the placement.
        pub constraints: Option<MagnumConstraints> = optional(None);
    }
}

named_enum! {
    /// The state of a Magnum cluster.
    pub enum MagnumClusterState {
        /// No controller has acted yet.
        Pending = "PENDING",
        /// Creation is in progress.
        Creating = "CREATING",
        /// Magnum has created the cluster.
        Running = "RUNNING",
        /// A change is in progress.
        Reconciling = "RECONCILING",
        /// Deletion is in progress.
        Deleting = "DELETING",
        /// No controller retries; a user must change or delete the cluster.
        Failed = "FAILED",
    }
}

object! {
    /// The status of a Magnum cluster.
    pub struct MagnumClusterStatus all_default {
        /// Fault of the present state; `None` without one.
        pub reason: Option<Reason> = optional(None);
        /// State of the cluster.
        pub state: MagnumClusterState = optional(MagnumClusterState::Pending);
        /// Project to which the cluster is bound.
        pub project: Option<ResourceRef> = optional(None);
        /// Id of the cluster's template.
        pub template: Option<String> = optional_immutable(None);
        /// Id of the cluster in Magnum.
        pub cluster_id: Option<String> = optional(None);
        /// Current number of worker nodes.
        pub node_count: Option<i64> = optional(None);
        /// Address of the cluster's API.
        pub api_address: Option<String> = optional(None);
        /// Addresses of the master nodes.
        pub master_addresses: Option<Vec<String>> = optional(None);
        /// Addresses of the worker nodes.
        pub node_addresses: Option<Vec<String>> = optional(None);
        /// Kubernetes cluster that is registered for this one.
        pub cluster: Option<ResourceRef> = optional(None);
    }
}

object! {
    /// A cluster that OpenStack's Magnum creates in a project.
    pub struct MagnumCluster constants("api" = "openstack", "kind" = "MagnumCluster") {
        /// Krake's metadata: name, namespace, labels, finalizers and owners.
        pub metadata: Metadata = required;
        /// The state that the user requests; only users change it.
        pub spec: MagnumClusterSpec = required;
        /// Observed state; requests write it only through its subresource.
        pub status: MagnumClusterStatus = subresource(MagnumClusterStatus::default());
    }
}

object! {
    /// Binds a Magnum cluster to a project.
    pub struct MagnumClusterBinding constants("api" = "openstack", "kind" = "MagnumClusterBinding") {
        /// Target of the binding.
        pub project: ResourceRef = required;
        /// Id of the template for the cluster.
        pub template: String = required;
    }
}
