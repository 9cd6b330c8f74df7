//! The resources of Krake's `core` group: roles, metrics and metrics providers.

use super::metadata::Metadata;
use madako_json::krake::entries::Entries;
use madako_json::krake::named_enum::named_enum;
use madako_json::krake::object::object;
use madako_json::krake::scalar::Secret;
use madako_json::krake::tagged::{Tagged, variants};

named_enum! {
    /// An operation that a role permits.
    pub enum Verb {
        /// POST on a collection.
        Create = "create",
        /// List or watch in one namespace.
        List = "list",
        /// List or watch in all namespaces.
        ListAll = "list_all",
        /// GET of one resource by its name.
        Get = "get",
        /// PUT of a resource or a subresource.
        Update = "update",
        /// DELETE of one resource.
        Delete = "delete",
    }
}

object! {
    /// A rule of a role. `''` stands for all APIs, resources or namespaces.
    pub struct RoleRule {
        /// Name of the API group, such as `kubernetes`.
        pub api: String = required;
        /// Plural names of resources; a subresource is `applications/status`.
        pub resources: Vec<String> = required;
        /// Namespaces in which the rule applies.
        pub namespaces: Vec<String> = required;
        /// Operations that the rule permits on these resources.
        pub verbs: Vec<Verb> = required;
    }
}

object! {
    /// A set of permitted requests.
    pub struct Role constants("api" = "core", "kind" = "Role") {
        /// Krake's metadata: name, namespace, labels, finalizers and owners.
        pub metadata: Metadata = required;
        /// Rules, each of which permits requests.
        pub rules: Vec<RoleRule> = required;
    }
}

object! {
    /// An assignment of roles to users: each user has each role.
    pub struct RoleBinding constants("api" = "core", "kind" = "RoleBinding") {
        /// Krake's metadata: name, namespace, labels, finalizers and owners.
        pub metadata: Metadata = required;
        /// Names of users, as authentication reports them.
        pub users: Vec<String> = required;
        /// Names of roles; a name without a role grants nothing.
        pub roles: Vec<String> = required;
    }
}

object! {
    /// Source of a metric's values.
    pub struct MetricSpecProvider {
        /// Name of the provider in the namespace of the metric, or of a global provider.
        pub name: String = required;
        /// Name of the metric at the provider.
        pub metric: String = required;
    }
}

object! {
    /// Valid values of a metric, and their source.
    pub struct MetricSpec {
        /// Allowed values; an empty list allows every value from `min` to `max`.
        pub allowed_values: Vec<i64> = required;
        /// Lowest valid value of the provider; it becomes 0.
        pub min: f64 = required;
        /// Highest valid value of the provider; it becomes 1.
        pub max: f64 = required;
        /// Source of the values.
        pub provider: MetricSpecProvider = required;
    }
}

object! {
    /// A metric that every namespace can use.
    pub struct GlobalMetric constants("api" = "core", "kind" = "GlobalMetric") {
        /// Krake's metadata: name, namespace, labels, finalizers and owners.
        pub metadata: Metadata = required;
        /// Valid values and their source.
        pub spec: MetricSpec = required;
    }
}

object! {
    /// A metric of one namespace.
    pub struct Metric constants("api" = "core", "kind" = "Metric") {
        /// Krake's metadata: name, namespace, labels, finalizers and owners.
        pub metadata: Metadata = required;
        /// Valid values and their source.
        pub spec: MetricSpec = required;
    }
}

object! {
    /// A Prometheus server.
    pub struct PrometheusSpec {
        /// Address of the server.
        pub url: String = required;
    }
}

object! {
    /// An InfluxDB 2 server.
    pub struct InfluxSpec {
        /// Address of the server.
        pub url: String = required;
        /// Token of the API.
        pub token: Secret = required;
        /// Organization of the bucket.
        pub org: String = required;
        /// Bucket with the metrics.
        pub bucket: String = required;
    }
}

object! {
    /// A KSQL server.
    pub struct KafkaSpec {
        /// Column with the names of the metrics.
        pub comparison_column: String = required;
        /// Column with the values of the metrics.
        pub value_column: String = required;
        /// Table with the metrics.
        pub table: String = required;
        /// Address of the server.
        pub url: String = required;
    }
}

object! {
    /// Constant values in the resource itself.
    pub struct StaticSpec {
        /// Value of each metric.
        pub metrics: Entries<f64> = required;
    }
}

variants! {
    /// Source of a provider's values.
    pub enum MetricsProviderKind {
        /// A Prometheus server.
        Prometheus(PrometheusSpec) = "prometheus",
        /// An InfluxDB 2 server.
        Influx(InfluxSpec) = "influx",
        /// A KSQL server.
        Kafka(KafkaSpec) = "kafka",
        /// The resource itself.
        Static(StaticSpec) = "static",
    }
}

/// The specification of a metrics provider, tagged with its type.
pub type MetricsProviderSpec = Tagged<MetricsProviderKind>;

object! {
    /// A metrics provider that every namespace can use.
    pub struct GlobalMetricsProvider constants("api" = "core", "kind" = "GlobalMetricsProvider") {
        /// Krake's metadata: name, namespace, labels, finalizers and owners.
        pub metadata: Metadata = required;
        /// Type and source of the values.
        pub spec: MetricsProviderSpec = required;
    }
}

object! {
    /// A metrics provider of one namespace.
    pub struct MetricsProvider constants("api" = "core", "kind" = "MetricsProvider") {
        /// Krake's metadata: name, namespace, labels, finalizers and owners.
        pub metadata: Metadata = required;
        /// Type and source of the values.
        pub spec: MetricsProviderSpec = required;
    }
}
