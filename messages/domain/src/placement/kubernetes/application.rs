//! Applications: Kubernetes manifests or TOSCA templates that run on a cluster.

use crate::placement::metadata::{Metadata, Reason, ResourceRef};
use crate::placement::rules;
use crate::placement::{LabelConstraint, MetricConstraint};
use madako_json::krake::free::{JsonObject, Tosca};
use madako_json::krake::named_enum::named_enum;
use madako_json::krake::object::object;
use madako_json::krake::scalar::Secret;
use madako_json::krake::timestamp::Timestamp;

object! {
    /// Conditions on the cluster of an application.
    pub struct ClusterConstraints all_default {
        /// Constraints on the cluster's labels.
        pub labels: Option<Vec<LabelConstraint>> = optional(None);
        /// Custom resources that the cluster must have.
        pub custom_resources: Vec<String> = optional(Vec::new());
        /// Constraints on the cluster's metrics.
        pub metrics: Option<Vec<MetricConstraint>> = optional(None);
    }
}

object! {
    /// Constraints on the placement of an application.
    pub struct Constraints all_default {
        /// Conditions on the cluster.
        pub cluster: ClusterConstraints = required(ClusterConstraints::default());
        /// True if the scheduler may move the application to another cluster.
        pub migration: bool = optional(true);
    }
}

object! {
    /// Specification of an application: a manifest, a TOSCA template, or a CSAR archive.
    pub struct ApplicationSpec check(rules::check_application) {
        /// Kubernetes resources to create.
        pub manifest: Vec<JsonObject> = required;
        /// TOSCA template, or the address of one.
        pub tosca: Tosca = optional(Tosca::default());
        /// Address of a CSAR archive.
        pub csar: Option<String> = optional(None);
        /// Observed fields of each resource of the manifest.
        pub observer_schema: Vec<JsonObject> = optional(Vec::new());
        /// Constraints on the placement.
        pub constraints: Constraints = required(Constraints::default());
        /// Names of the enabled hooks, such as `complete` and `shutdown`.
        pub hooks: Vec<String> = optional(Vec::new());
        /// Seconds until the shutdown hook times out.
        pub shutdown_grace_time: Option<i64> = optional(None);
        /// Reaction to a failed shutdown hook: `give_up` or `delete`.
        pub shutdown_failure_strategy: Option<String> = optional(None);
        /// Number of retries of a failed shutdown hook.
        pub shutdown_retry_count: Option<i64> = optional(None);
        /// Factor by which the delay between attempts grows.
        pub backoff: i64 = optional(1);
        /// Seconds between attempts, multiplied by `backoff`.
        pub backoff_delay: i64 = optional(1);
        /// Maximum number of attempts; -1 means no limit.
        pub backoff_limit: i64 = optional(-1);
        /// Method of moving volumes.
        pub storage_migration: String = optional("none".to_owned());
        /// True if the scheduler may create a cluster for the application.
        pub auto_cluster_create: bool = optional(false);
    }
}

named_enum! {
    /// The state of an application.
    pub enum ApplicationState {
        /// No controller has acted yet.
        Pending = "PENDING",
        /// Creation is in progress.
        Creating = "CREATING",
        /// The application is deployed on its cluster.
        Running = "RUNNING",
        /// A change is in progress.
        Reconciling = "RECONCILING",
        /// Translation of the TOSCA template is in progress.
        Translating = "TRANSLATING",
        /// A controller retries a failed step.
        Retrying = "RETRYING",
        /// A restart is in progress.
        Restarting = "RESTARTING",
        /// The shutdown hook has not finished.
        WaitingForCleaning = "WAITING_FOR_CLEANING",
        /// The shutdown hook has finished.
        ReadyForAction = "READY_FOR_ACTION",
        /// A move to another cluster is in progress.
        Migrating = "MIGRATING",
        /// The scheduler is creating a cluster for the application.
        WaitingForClusterCreation = "WAITING_FOR_CLUSTER_CREATION",
        /// Deletion is in progress.
        Deleting = "DELETING",
        /// The cluster has no object of the application any more.
        Deleted = "DELETED",
        /// Failure that a controller retries.
        Degraded = "DEGRADED",
        /// No controller retries; a user must change or delete the application.
        Failed = "FAILED",
        /// The application reported its completion.
        Completed = "COMPLETED",
    }
}

object! {
    /// Numbers of an application's pods.
    pub struct ContainerHealth all_default {
        /// Desired number of pods.
        pub desired_pods: i64 = optional(0);
        /// Number of running pods.
        pub running_pods: i64 = optional(0);
        /// Number of completed pods.
        pub completed_pods: i64 = optional(0);
        /// Number of failed pods.
        pub failed_pods: i64 = optional(0);
    }
}

object! {
    /// The status of an application.
    pub struct ApplicationStatus all_default {
        /// Fault of the present state; `None` without one.
        pub reason: Option<Reason> = optional(None);
        /// State of the application.
        pub state: ApplicationState = optional(ApplicationState::Pending);
        /// Numbers of the application's pods by their state.
        pub container_health: ContainerHealth = optional(ContainerHealth::default());
        /// Time at which the scheduler last scheduled this version. The application may be deployed from then on.
        pub kube_controller_triggered: Option<Timestamp> = optional(None);
        /// Time of the binding to the cluster in `scheduled_to`.
        pub scheduled: Option<Timestamp> = optional(None);
        /// Cluster to which the application is bound.
        pub scheduled_to: Option<ResourceRef> = optional(None);
        /// Cluster on which the application runs.
        pub running_on: Option<ResourceRef> = optional(None);
        /// Number of attempts left.
        pub retries: Option<i64> = optional(None);
        /// Time of the next attempt.
        pub scheduled_retry: Option<Timestamp> = optional(None);
        /// Address of each service of the application.
        pub services: JsonObject = optional(JsonObject::default());
        /// The observer's schema, completed with defaults.
        pub mangled_observer_schema: Vec<JsonObject> = optional(Vec::new());
        /// The last observed resources.
        pub last_observed_manifest: Vec<JsonObject> = optional(Vec::new());
        /// The last applied resources.
        pub last_applied_manifest: Vec<JsonObject> = optional(Vec::new());
        /// Token of the complete hook.
        pub complete_token: Option<Secret> = optional(None);
        /// Certificate of the complete hook.
        pub complete_cert: Option<String> = optional(None);
        /// Key of the complete hook.
        pub complete_key: Option<Secret> = optional(None);
        /// Token of the shutdown hook.
        pub shutdown_token: Option<Secret> = optional(None);
        /// Certificate of the shutdown hook.
        pub shutdown_cert: Option<String> = optional(None);
        /// Key of the shutdown hook.
        pub shutdown_key: Option<Secret> = optional(None);
        /// Deadline of the shutdown hook.
        pub shutdown_grace_period: Option<Timestamp> = optional(None);
        /// Name of the cluster whose creation the scheduler started for the application.
        pub auto_cluster_create_started: Option<String> = optional(None);
        /// Number of retries of the migration.
        pub migration_retries: i64 = optional(0);
        /// End of the pause after a failed migration, in seconds since 1970. The application does not move before.
        pub migration_timeout: i64 = optional(0);
    }
}

object! {
    /// Manifests that run on one cluster, with their constraints.
    pub struct Application constants("api" = "kubernetes", "kind" = "Application") {
        /// Krake's metadata: name, namespace, labels, finalizers and owners.
        pub metadata: Metadata = required;
        /// The state that the user requests; only users change it.
        pub spec: ApplicationSpec = required;
        /// Observed state; requests write it only through its subresource.
        pub status: ApplicationStatus = subresource(ApplicationStatus::default());
    }
}

object! {
    /// A report that an application completed.
    pub struct ApplicationComplete constants("api" = "kubernetes", "kind" = "Complete") {
        /// Token of the complete hook.
        pub token: Option<Secret> = optional(None);
    }
}

object! {
    /// A report that an application is ready to be stopped.
    pub struct ApplicationShutdown constants("api" = "kubernetes", "kind" = "Shutdown") {
        /// Token of the shutdown hook.
        pub token: Option<Secret> = optional(None);
    }
}

object! {
    /// Binds an application to a cluster.
    pub struct ClusterBinding constants("api" = "kubernetes", "kind" = "ClusterBinding") {
        /// Target of the binding.
        pub cluster: ResourceRef = required;
    }
}
