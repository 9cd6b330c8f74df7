//! The resources of Krake's `openstack` group: projects, and Magnum clusters in them.

use super::LabelConstraint;
use super::metadata::{Metadata, MetricRef, Reason, ResourceRef};
use madako_json::krake::choice::choice;
use madako_json::krake::entries::Entries;
use madako_json::krake::object::object;
use madako_json::krake::scalar::Secret;
use madako_json::krake::tagged::{Tagged, variants};

object! {
    /// An OpenStack user.
    pub struct UserReference {
        /// Its id.
        pub id: String = required;
        /// Password.
        pub password: Secret = required;
        /// A remark.
        pub comment: Option<String> = optional(None);
    }
}

object! {
    /// An OpenStack project.
    pub struct ProjectReference {
        /// Its id.
        pub id: String = required;
        /// A remark.
        pub comment: Option<String> = optional(None);
    }
}

object! {
    /// Authentication by a password.
    pub struct Password {
        /// The user.
        pub user: UserReference = required;
        /// The project.
        pub project: ProjectReference = required;
    }
}

object! {
    /// Authentication by an application credential.
    pub struct ApplicationCredential {
        /// Its id.
        pub id: String = required;
        /// Its secret.
        pub secret: Secret = required;
    }
}

variants! {
    /// How to authenticate at OpenStack's identity service.
    pub enum AuthKind {
        /// By a password.
        Password(Password) = "password",
        /// By an application credential.
        ApplicationCredential(ApplicationCredential) = "application_credential",
    }
}

/// The authentication at OpenStack's identity service, tagged with its method.
pub type AuthMethod = Tagged<AuthKind>;

object! {
    /// What a project is.
    pub struct ProjectSpec {
        /// Address of the identity service.
        pub url: String = required;
        /// Authentication.
        pub auth: AuthMethod = required;
        /// Id of the Magnum cluster template.
        pub template: String = required;
        /// Metrics of the project.
        pub metrics: Vec<MetricRef> = optional(Vec::new());
    }
}

choice! {
    /// The state of a project.
    pub enum ProjectState {
        /// Its metrics can be had, if it has any.
        Online = "ONLINE",
        /// They cannot.
        FailingMetrics = "FAILING_METRICS",
    }
}

object! {
    /// The status of a project.
    pub struct ProjectStatus all_default {
        /// Its state.
        pub state: ProjectState = optional(ProjectState::Online);
        /// What is wrong with which metric.
        pub metrics_reasons: Entries<Reason> = optional(Entries::new());
    }
}

object! {
    /// An OpenStack project.
    pub struct Project constants("api" = "openstack", "kind" = "Project") {
        /// Metadata.
        pub metadata: Metadata = required;
        /// What it is.
        pub spec: ProjectSpec = required;
        /// How it is.
        pub status: ProjectStatus = subresource(ProjectStatus::default());
    }
}

object! {
    /// What a project must have to take a Magnum cluster.
    pub struct ProjectConstraints {
        /// Constraints on its labels.
        pub labels: Option<Vec<LabelConstraint>> = optional(None);
    }
}

object! {
    /// Where a Magnum cluster may go.
    pub struct MagnumConstraints {
        /// What its project must have.
        pub project: Option<ProjectConstraints> = optional(None);
    }
}

object! {
    /// What a Magnum cluster is.
    pub struct MagnumClusterSpec {
        /// Number of master nodes.
        pub master_count: Option<i64> = optional_immutable(None);
        /// Number of worker nodes.
        pub node_count: Option<i64> = optional(None);
        /// Metrics of the cluster.
        pub metrics: Vec<MetricRef> = optional(Vec::new());
        /// Where it may go.
        pub constraints: Option<MagnumConstraints> = optional(None);
    }
}

choice! {
    /// The state of a Magnum cluster.
    pub enum MagnumClusterState {
        /// Nothing was done yet.
        Pending = "PENDING",
        /// It is being created.
        Creating = "CREATING",
        /// It runs.
        Running = "RUNNING",
        /// It is being changed.
        Reconciling = "RECONCILING",
        /// It is being deleted.
        Deleting = "DELETING",
        /// Something went wrong for good.
        Failed = "FAILED",
    }
}

object! {
    /// The status of a Magnum cluster.
    pub struct MagnumClusterStatus all_default {
        /// What is wrong.
        pub reason: Option<Reason> = optional(None);
        /// Its state.
        pub state: MagnumClusterState = optional(MagnumClusterState::Pending);
        /// The project it is bound to.
        pub project: Option<ResourceRef> = optional(None);
        /// Id of the template that it is made from.
        pub template: Option<String> = optional_immutable(None);
        /// Id of the cluster in Magnum.
        pub cluster_id: Option<String> = optional(None);
        /// Current number of worker nodes.
        pub node_count: Option<i64> = optional(None);
        /// Address of its API.
        pub api_address: Option<String> = optional(None);
        /// Addresses of the master nodes.
        pub master_addresses: Option<Vec<String>> = optional(None);
        /// Addresses of the worker nodes.
        pub node_addresses: Option<Vec<String>> = optional(None);
        /// The Kubernetes cluster that was registered for it.
        pub cluster: Option<ResourceRef> = optional(None);
    }
}

object! {
    /// A Magnum cluster.
    pub struct MagnumCluster constants("api" = "openstack", "kind" = "MagnumCluster") {
        /// Metadata.
        pub metadata: Metadata = required;
        /// What it is.
        pub spec: MagnumClusterSpec = required;
        /// How it is.
        pub status: MagnumClusterStatus = subresource(MagnumClusterStatus::default());
    }
}

object! {
    /// Binds a Magnum cluster to a project.
    pub struct MagnumClusterBinding constants("api" = "openstack", "kind" = "MagnumClusterBinding") {
        /// The project.
        pub project: ResourceRef = required;
        /// Id of the template to use.
        pub template: String = required;
    }
}
