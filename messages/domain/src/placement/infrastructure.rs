//! The resources of Krake's `infrastructure` group: clouds and infrastructure providers.

use super::metadata::{Metadata, MetricRef, Reason, ResourceRef};
use super::rules;
use madako_json::krake::entries::Entries;
use madako_json::krake::named_enum::named_enum;
use madako_json::krake::object::object;
use madako_json::krake::scalar::Secret;
use madako_json::krake::tagged::{Tagged, variants};

object! {
    /// Access to an Infrastructure Manager: a token, or a user with a password.
    pub struct ImSpec check(rules::check_im_spec) {
        /// Address of the Infrastructure Manager.
        pub url: String = required;
        /// User; requires a password.
        pub username: Option<String> = optional(None);
        /// Password of the user; never in messages.
        pub password: Option<Secret> = optional(None);
        /// Token that replaces user and password; never in messages.
        pub token: Option<Secret> = optional(None);
    }
}

variants! {
    /// A service that creates clusters.
    pub enum InfrastructureProviderKind {
        /// A server of the Infrastructure Manager, which creates clusters from TOSCA templates.
        Im(ImSpec) = "im",
    }
}

/// The specification of an infrastructure provider, tagged with its type.
pub type InfrastructureProviderSpec = Tagged<InfrastructureProviderKind>;

object! {
    /// An infrastructure provider that every namespace can use.
    pub struct GlobalInfrastructureProvider
    constants("api" = "infrastructure", "kind" = "GlobalInfrastructureProvider")
    {
        /// Krake's metadata: name, namespace, labels, finalizers and owners.
        pub metadata: Metadata = required;
        /// Type and access of the provider.
        pub spec: InfrastructureProviderSpec = required;
    }
}

object! {
    /// An infrastructure provider of one namespace.
    pub struct InfrastructureProvider constants("api" = "infrastructure", "kind" = "InfrastructureProvider") {
        /// Krake's metadata: name, namespace, labels, finalizers and owners.
        pub metadata: Metadata = required;
        /// Type and access of the provider.
        pub spec: InfrastructureProviderSpec = required;
    }
}

object! {
    /// A reference to an infrastructure provider.
    pub struct InfrastructureProviderRef {
        /// Name of the provider.
        pub name: String = required;
        /// True for a provider of the same namespace, false for a global one.
        pub namespaced: bool = optional(false);
    }
}

object! {
    /// A user of OpenStack's identity service, by name or id.
    pub struct CloudUser {
        /// Name or id at the identity service.
        pub username: String = required;
        /// Password of the user; never in messages.
        pub password: Secret = required;
        /// Name of the user's domain.
        pub domain_name: String = optional("Default".to_owned());
        /// A remark for people; the service does not use it.
        pub comment: Option<String> = optional(None);
    }
}

object! {
    /// A project of OpenStack's identity service, by name or id.
    pub struct CloudProject {
        /// Name or id at the identity service.
        pub name: String = required;
        /// Id of the project's domain.
        pub domain_id: String = optional("default".to_owned());
        /// A remark for people; the service does not use it.
        pub comment: Option<String> = optional(None);
    }
}

object! {
    /// Authentication at OpenStack's identity service by a password.
    pub struct CloudPassword {
        /// Version of the identity API.
        pub version: String = optional("3".to_owned());
        /// The user that logs in.
        pub user: CloudUser = required;
        /// The project that is the scope of the login.
        pub project: CloudProject = required;
    }
}

variants! {
    /// Method of authentication at a cloud.
    pub enum CloudAuthKind {
        /// Authentication by a password.
        Password(CloudPassword) = "password",
    }
}

/// The authentication at a cloud, tagged with its method.
pub type CloudAuth = Tagged<CloudAuthKind>;

object! {
    /// Address, login and metrics of an OpenStack cloud.
    pub struct OpenstackSpec {
        /// Address of the cloud's identity service.
        pub url: String = required;
        /// Authentication at the identity service.
        pub auth: CloudAuth = required;
        /// Metrics of the cloud.
        pub metrics: Vec<MetricRef> = optional(Vec::new());
        /// Provider that creates clusters on the cloud.
        pub infrastructure_provider: InfrastructureProviderRef = required;
    }
}

variants! {
    /// Type of a cloud.
    pub enum CloudKind {
        /// A cloud with the identity service of OpenStack.
        Openstack(OpenstackSpec) = "openstack",
    }
}

impl CloudKind {
    /// The references to the cloud's metrics.
    #[must_use]
    pub fn metrics(&self) -> &[MetricRef] {
        let Self::Openstack(spec) = self;
        &spec.metrics
    }

    /// The infrastructure provider that creates clusters on the cloud.
    #[must_use]
    pub fn infrastructure_provider(&self) -> &InfrastructureProviderRef {
        let Self::Openstack(spec) = self;
        &spec.infrastructure_provider
    }
}

/// The specification of a cloud, tagged with its type.
pub type CloudSpec = Tagged<CloudKind>;

named_enum! {
    /// The state of a cloud, which depends on its metrics alone.
    pub enum CloudState {
        /// Every metric of the cloud has a value.
        Online = "ONLINE",
        /// A metric of the cloud has no value.
        FailingMetrics = "FAILING_METRICS",
    }
}

object! {
    /// The status of a cloud.
    pub struct CloudStatus all_default {
        /// The observed state; `ONLINE` until a metric fails.
        pub state: CloudState = optional(CloudState::Online);
        /// Fault of each failing metric, by the metric's name.
        pub metrics_reasons: Entries<Reason> = optional(Entries::new());
    }
}

object! {
    /// A cloud that every namespace can use.
    pub struct GlobalCloud
    constants("api" = "infrastructure", "kind" = "GlobalCloud")
    check(rules::check_global_cloud)
    {
        /// Krake's metadata: name, namespace, labels, finalizers and owners.
        pub metadata: Metadata = required;
        /// The state that the user requests; only users change it.
        pub spec: CloudSpec = required;
        /// Observed state; requests write it only through its subresource.
        pub status: CloudStatus = subresource(CloudStatus::default());
    }
}

object! {
    /// A cloud of one namespace.
    pub struct Cloud constants("api" = "infrastructure", "kind" = "Cloud") {
        /// Krake's metadata: name, namespace, labels, finalizers and owners.
        pub metadata: Metadata = required;
        /// The state that the user requests; only users change it.
        pub spec: CloudSpec = required;
        /// Observed state; requests write it only through its subresource.
        pub status: CloudStatus = subresource(CloudStatus::default());
    }
}

object! {
    /// Binds a cluster to a cloud.
    pub struct CloudBinding constants("api" = "infrastructure", "kind" = "CloudBinding") {
        /// Target of the binding.
        pub cloud: ResourceRef = required;
    }
}
