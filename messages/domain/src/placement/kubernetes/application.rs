//! Applications: Kubernetes manifests or TOSCA templates that run on a cluster.

use crate::placement::metadata::{Metadata, Reason, ResourceRef};
use crate::placement::rules;
use crate::placement::{LabelConstraint, MetricConstraint};
use madako_json::krake::choice::choice;
use madako_json::krake::free::{JsonObject, Tosca};
use madako_json::krake::object::object;
use madako_json::krake::scalar::Secret;
use madako_json::krake::timestamp::Timestamp;

object! {
    /// What a cluster must have to take an application.
    pub struct ClusterConstraints all_default {
        /// Constraints on its labels.
        pub labels: Option<Vec<LabelConstraint>> = optional(None);
        /// Custom resources that it must have.
        pub custom_resources: Vec<String> = optional(Vec::new());
        /// Constraints on its metrics.
        pub metrics: Option<Vec<MetricConstraint>> = optional(None);
    }
}

object! {
    /// Where an application may go.
    pub struct Constraints all_default {
        /// What its cluster must have.
        pub cluster: ClusterConstraints = required(ClusterConstraints::default());
        /// Whether it may move from one cluster to another.
        pub migration: bool = optional(true);
    }
}

object! {
    /// What an application is: a manifest, or a TOSCA template, or a CSAR archive.
    pub struct ApplicationSpec check(rules::application) {
        /// Kubernetes resources to create.
        pub manifest: Vec<JsonObject> = required;
        /// TOSCA template, or its address.
        pub tosca: Tosca = optional(Tosca::default());
        /// Address of a CSAR archive.
        pub csar: Option<String> = optional(None);
        /// Which fields of which resources are watched.
        pub observer_schema: Vec<JsonObject> = optional(Vec::new());
        /// Where it may go.
        pub constraints: Constraints = required(Constraints::default());
        /// Hooks that are on.
        pub hooks: Vec<String> = optional(Vec::new());
        /// Seconds that the shutdown hook has.
        pub shutdown_grace_time: Option<i64> = optional(None);
        /// What to do when it fails: `give_up` or `delete`.
        pub shutdown_failure_strategy: Option<String> = optional(None);
        /// How often it is tried again.
        pub shutdown_retry_count: Option<i64> = optional(None);
        /// Factor of the delay between attempts.
        pub backoff: i64 = optional(1);
        /// Seconds between attempts.
        pub backoff_delay: i64 = optional(1);
        /// Attempts; -1 for ever.
        pub backoff_limit: i64 = optional(-1);
        /// How volumes move.
        pub storage_migration: String = optional("none".to_owned());
        /// Whether a cluster may be created for it.
        pub auto_cluster_create: bool = optional(false);
    }
}

choice! {
    /// The state of an application.
    pub enum ApplicationState {
        /// Nothing was done yet.
        Pending = "PENDING",
        /// It is being created.
        Creating = "CREATING",
        /// It runs.
        Running = "RUNNING",
        /// It is being changed.
        Reconciling = "RECONCILING",
        /// Its TOSCA template is being translated.
        Translating = "TRANSLATING",
        /// It is tried again.
        Retrying = "RETRYING",
        /// It is being restarted.
        Restarting = "RESTARTING",
        /// It waits for its shutdown hook.
        WaitingForCleaning = "WAITING_FOR_CLEANING",
        /// Its shutdown hook is done.
        ReadyForAction = "READY_FOR_ACTION",
        /// It moves to another cluster.
        Migrating = "MIGRATING",
        /// It waits for a cluster that is being created for it.
        WaitingForClusterCreation = "WAITING_FOR_CLUSTER_CREATION",
        /// It is being deleted.
        Deleting = "DELETING",
        /// It is gone.
        Deleted = "DELETED",
        /// Something went wrong and is tried again.
        Degraded = "DEGRADED",
        /// Something went wrong for good.
        Failed = "FAILED",
        /// It came to its end.
        Completed = "COMPLETED",
    }
}

object! {
    /// How many pods an application has.
    pub struct ContainerHealth all_default {
        /// Pods that there should be.
        pub desired_pods: i64 = optional(0);
        /// Pods that run.
        pub running_pods: i64 = optional(0);
        /// Pods that came to their end.
        pub completed_pods: i64 = optional(0);
        /// Pods that failed.
        pub failed_pods: i64 = optional(0);
    }
}

object! {
    /// The status of an application.
    pub struct ApplicationStatus all_default {
        /// What is wrong.
        pub reason: Option<Reason> = optional(None);
        /// Its state.
        pub state: ApplicationState = optional(ApplicationState::Pending);
        /// How many pods it has.
        pub container_health: ContainerHealth = optional(ContainerHealth::default());
        /// When this version of it was scheduled last; from then on it may be deployed.
        pub kube_controller_triggered: Option<Timestamp> = optional(None);
        /// When it was bound to the cluster that it is bound to.
        pub scheduled: Option<Timestamp> = optional(None);
        /// The cluster that it is bound to.
        pub scheduled_to: Option<ResourceRef> = optional(None);
        /// The cluster that it runs on.
        pub running_on: Option<ResourceRef> = optional(None);
        /// Attempts that are left.
        pub retries: Option<i64> = optional(None);
        /// When it is tried again.
        pub scheduled_retry: Option<Timestamp> = optional(None);
        /// Address of each of its services.
        pub services: JsonObject = optional(JsonObject::default());
        /// The observer's schema with everything filled in.
        pub mangled_observer_schema: Vec<JsonObject> = optional(Vec::new());
        /// What was observed last.
        pub last_observed_manifest: Vec<JsonObject> = optional(Vec::new());
        /// What was applied last.
        pub last_applied_manifest: Vec<JsonObject> = optional(Vec::new());
        /// Token of its complete hook.
        pub complete_token: Option<Secret> = optional(None);
        /// Certificate of its complete hook.
        pub complete_cert: Option<String> = optional(None);
        /// Key of its complete hook.
        pub complete_key: Option<Secret> = optional(None);
        /// Token of its shutdown hook.
        pub shutdown_token: Option<Secret> = optional(None);
        /// Certificate of its shutdown hook.
        pub shutdown_cert: Option<String> = optional(None);
        /// Key of its shutdown hook.
        pub shutdown_key: Option<Secret> = optional(None);
        /// Until when its shutdown hook is waited for.
        pub shutdown_grace_period: Option<Timestamp> = optional(None);
        /// Whether the creation of a cluster for it was started.
        pub auto_cluster_create_started: Option<String> = optional(None);
        /// How often its migration was tried again.
        pub migration_retries: i64 = optional(0);
        /// Until when it is not moved, in seconds since 1970.
        pub migration_timeout: i64 = optional(0);
    }
}

object! {
    /// An application.
    pub struct Application constants("api" = "kubernetes", "kind" = "Application") {
        /// Metadata.
        pub metadata: Metadata = required;
        /// What it is.
        pub spec: ApplicationSpec = required;
        /// How it is.
        pub status: ApplicationStatus = subresource(ApplicationStatus::default());
    }
}

object! {
    /// Says that an application came to its end.
    pub struct ApplicationComplete constants("api" = "kubernetes", "kind" = "Complete") {
        /// The token of its complete hook.
        pub token: Option<Secret> = optional(None);
    }
}

object! {
    /// Says that an application is ready to be stopped.
    pub struct ApplicationShutdown constants("api" = "kubernetes", "kind" = "Shutdown") {
        /// The token of its shutdown hook.
        pub token: Option<Secret> = optional(None);
    }
}

object! {
    /// Binds an application to a cluster.
    pub struct ClusterBinding constants("api" = "kubernetes", "kind" = "ClusterBinding") {
        /// The cluster.
        pub cluster: ResourceRef = required;
    }
}
