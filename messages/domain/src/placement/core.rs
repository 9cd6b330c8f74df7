//! The resources of Krake's `core` group: roles, metrics and metrics providers.

use super::metadata::Metadata;
use madako_json::krake::choice::choice;
use madako_json::krake::entries::Entries;
use madako_json::krake::object::object;
use madako_json::krake::scalar::Secret;
use madako_json::krake::tagged::{Tagged, variants};

choice! {
    /// What a role allows to do.
    pub enum Verb {
        /// Create.
        Create = "create",
        /// List, or watch.
        List = "list",
        /// List over all namespaces.
        ListAll = "list_all",
        /// Read one.
        Get = "get",
        /// Update.
        Update = "update",
        /// Delete.
        Delete = "delete",
    }
}

object! {
    /// A rule of a role. `''` stands for all APIs, resources or namespaces.
    pub struct RoleRule {
        /// The API.
        pub api: String = required;
        /// The resources, in the plural, subresources as `applications/status`.
        pub resources: Vec<String> = required;
        /// The namespaces.
        pub namespaces: Vec<String> = required;
        /// What may be done.
        pub verbs: Vec<Verb> = required;
    }
}

object! {
    /// A role.
    pub struct Role constants("api" = "core", "kind" = "Role") {
        /// Metadata.
        pub metadata: Metadata = required;
        /// What it allows.
        pub rules: Vec<RoleRule> = required;
    }
}

object! {
    /// Who has which roles.
    pub struct RoleBinding constants("api" = "core", "kind" = "RoleBinding") {
        /// Metadata.
        pub metadata: Metadata = required;
        /// Users, by name.
        pub users: Vec<String> = required;
        /// Roles, by name.
        pub roles: Vec<String> = required;
    }
}

object! {
    /// Where a metric comes from.
    pub struct MetricSpecProvider {
        /// Name of the provider.
        pub name: String = required;
        /// Name of the metric there.
        pub metric: String = required;
    }
}

object! {
    /// What a metric may be.
    pub struct MetricSpec {
        /// Values that count; all between the bounds if none are given.
        pub allowed_values: Vec<i64> = required;
        /// The least value.
        pub min: f64 = required;
        /// The greatest value.
        pub max: f64 = required;
        /// Where it comes from.
        pub provider: MetricSpecProvider = required;
    }
}

object! {
    /// A metric of everybody's.
    pub struct GlobalMetric constants("api" = "core", "kind" = "GlobalMetric") {
        /// Metadata.
        pub metadata: Metadata = required;
        /// What it is.
        pub spec: MetricSpec = required;
    }
}

object! {
    /// A metric of one namespace.
    pub struct Metric constants("api" = "core", "kind" = "Metric") {
        /// Metadata.
        pub metadata: Metadata = required;
        /// What it is.
        pub spec: MetricSpec = required;
    }
}

object! {
    /// A Prometheus server.
    pub struct PrometheusSpec {
        /// Its address.
        pub url: String = required;
    }
}

object! {
    /// An InfluxDB 2 server.
    pub struct InfluxSpec {
        /// Its address.
        pub url: String = required;
        /// Token.
        pub token: Secret = required;
        /// Organization.
        pub org: String = required;
        /// Bucket.
        pub bucket: String = required;
    }
}

object! {
    /// A KSQL server.
    pub struct KafkaSpec {
        /// The column that holds the names of the metrics.
        pub comparison_column: String = required;
        /// The column that holds their values.
        pub value_column: String = required;
        /// The table.
        pub table: String = required;
        /// Its address.
        pub url: String = required;
    }
}

object! {
    /// Values that stand in the resource itself.
    pub struct StaticSpec {
        /// Value of each metric.
        pub metrics: Entries<f64> = required;
    }
}

variants! {
    /// Where the values of a provider come from.
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
    /// A metrics provider of everybody's.
    pub struct GlobalMetricsProvider constants("api" = "core", "kind" = "GlobalMetricsProvider") {
        /// Metadata.
        pub metadata: Metadata = required;
        /// What it is.
        pub spec: MetricsProviderSpec = required;
    }
}

object! {
    /// A metrics provider of one namespace.
    pub struct MetricsProvider constants("api" = "core", "kind" = "MetricsProvider") {
        /// Metadata.
        pub metadata: Metadata = required;
        /// What it is.
        pub spec: MetricsProviderSpec = required;
    }
}
