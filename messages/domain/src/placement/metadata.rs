//! The common parts of all resources: metadata, references, reasons.

use super::kind::{Kind, ObjectKey};
use super::names::{check_labels, check_name, check_namespace};
use madako_json::input::Problems;
use madako_json::krake::entries::Labels;
use madako_json::krake::named_enum::named_enum;
use madako_json::krake::object::object;
use madako_json::krake::timestamp::Timestamp;
use madako_json::strict::walk::Path;

/// The finalizer of a deleted resource: the resource is removed after its dependents.
pub const CASCADE_DELETION: &str = "cascade_deletion";

object! {
    /// Metadata of a resource.
    pub struct Metadata
    // `krakectl` sends these by mistake: "constraints" when it creates a Magnum cluster, "password" when it
    // updates a cloud. Krake passes them over.
    tolerated("constraints", "password")
    {
        /// Name, unique among resources of the same kind and namespace.
        pub name: String = immutable, check(check_name, Name);
        /// Namespace; global resources have none.
        pub namespace: Option<String> = optional_immutable(None), check(check_namespace, Name);
        /// Labels, which constraints select.
        pub labels: Labels = optional(Labels::new()), check(check_labels, Labels);
        /// True if the resource inherits the labels of the cloud to which it is bound.
        pub inherit_labels: bool = optional(false);
        /// Finalizers; the service removes a deleted resource only when none is left.
        pub finalizers: Vec<String> = optional(Vec::new());
        /// Identity; a later resource of the same name has a different one.
        pub uid: String = readonly(String::new());
        /// Time of creation in UTC; it never changes.
        pub created: Timestamp = readonly(Timestamp::placeholder());
        /// Time of the last change of the specification.
        pub modified: Timestamp = readonly(Timestamp::placeholder());
        /// Time of the deletion request.
        pub deleted: Option<Timestamp> = readonly_optional(None);
        /// Resources on which this one depends.
        pub owners: Vec<ResourceRef> = optional(Vec::new());
    }
}

impl Metadata {
    /// Metadata of a new resource.
    #[must_use]
    pub fn new(
        name: impl Into<String>,
        namespace: Option<&str>,
        uid: impl Into<String>,
        now: Timestamp,
    ) -> Self {
        Self {
            name: name.into(),
            namespace: namespace.map(str::to_owned),
            labels: Labels::new(),
            inherit_labels: false,
            finalizers: Vec::new(),
            uid: uid.into(),
            created: now.clone(),
            modified: now,
            deleted: None,
            owners: Vec::new(),
            rest: madako_json::krake::reader::UnreadFields::default(),
        }
    }
}

impl Metadata {
    /// Turns the metadata of a request into that of a new resource: the namespace comes from the URL, and the service
    /// sets its own fields.
    pub fn begin(&mut self, namespace: Option<&str>, uid: impl Into<String>, now: Timestamp) {
        self.namespace = namespace.map(str::to_owned);
        self.uid = uid.into();
        self.created = now.clone();
        self.modified = now;
        self.deleted = None;
    }

    /// True if a client requested the deletion.
    #[must_use]
    pub fn is_deleted(&self) -> bool {
        self.deleted.is_some()
    }
}

object! {
    /// A reference to a resource.
    pub struct ResourceRef {
        /// API group, such as `kubernetes`.
        pub api: String = required;
        /// Namespace; global resources have none.
        pub namespace: Option<String> = optional(None);
        /// Kind, such as `Cluster`.
        pub kind: String = required;
        /// Name, unique among the resources of the kind in the namespace.
        pub name: String = required;
    }
}

impl ResourceRef {
    /// A reference to the resource.
    #[must_use]
    pub fn from_key(key: &ObjectKey) -> Self {
        Self {
            api: key.kind.api().name().to_owned(),
            namespace: key.namespace.clone(),
            kind: key.kind.name().to_owned(),
            name: key.name.clone(),
            rest: madako_json::krake::reader::UnreadFields::default(),
        }
    }

    /// The key of the referenced resource; `None` if the kind is unknown.
    #[must_use]
    pub fn key(&self) -> Option<ObjectKey> {
        let kind = Kind::ALL.iter().find(|kind| kind.name() == self.kind && kind.api().name() == self.api)?;
        Some(ObjectKey::new(*kind, self.namespace.as_deref(), self.name.as_str()))
    }

    /// True if the reference names the resource.
    #[must_use]
    pub fn refers_to(&self, key: &ObjectKey) -> bool {
        self.key().as_ref() == Some(key)
    }
}

object! {
    /// A reference to a metric, with the metric's weight for the referring resource.
    pub struct MetricRef {
        /// Name of the metric; `namespaced` tells where it is.
        pub name: String = required;
        /// Weight; finite and not negative in requests.
        pub weight: f64 = required, check(check_weight, NotNegative);
        /// True for a metric of the same namespace, false for a global one.
        pub namespaced: bool = optional(false);
    }
}

fn check_weight(weight: &f64, path: Path<'_>, problems: &mut Problems) {
    if *weight < 0.0 {
        problems.add(path, format!("the number {weight}"), "a weight of 0 or more");
    }
}

named_enum! {
    /// Krake's code of a fault of a resource.
    pub enum ReasonCode {
        /// A fault without a code of its own.
        InternalError = "INTERNAL_ERROR",
        /// The manifest has invalid values.
        InvalidResource = "INVALID_RESOURCE",
        /// The controller does not support the resource.
        UnsupportedResource = "UNSUPPORTED_RESOURCE",
        /// The custom resource is missing or invalid.
        InvalidCustomResource = "INVALID_CUSTOM_RESOURCE",
        /// The TOSCA template is invalid.
        InvalidToscaManifest = "INVALID_TOSCA_MANIFEST",
        /// The cluster cannot be reached.
        ClusterNotReachable = "CLUSTER_NOT_REACHABLE",
        /// No target satisfies the constraints.
        NoSuitableResource = "NO_SUITABLE_RESOURCE",
        /// Kubernetes refused a request.
        KubernetesError = "KUBERNETES_ERROR",
        /// Krake's code 70: a creation at the infrastructure failed.
        CreateFailed = "CREATE_FAILED",
        /// Krake's code 71: a change at the infrastructure failed.
        ReconcileFailed = "RECONCILE_FAILED",
        /// Krake's code 72: the configuration of a cluster failed.
        ReconfigureFailed = "RECONFIGURE_FAILED",
        /// Krake's code 73: a deletion at the infrastructure failed.
        DeleteFailed = "DELETE_FAILED",
        /// Krake's code 74: a read of the infrastructure's state failed.
        RetrieveFailed = "RETRIEVE_FAILED",
        /// The resource does not exist.
        NotFound = "NOT_FOUND",
        /// OpenStack refused a request.
        OpenstackError = "OPENSTACK_ERROR",
        /// The cluster template is invalid.
        InvalidClusterTemplate = "INVALID_CLUSTER_TEMPLATE",
        /// The metric's definition or value is invalid.
        InvalidMetric = "INVALID_METRIC",
        /// The metrics provider cannot be reached.
        UnreachableMetricsProvider = "UNREACHABLE_METRICS_PROVIDER",
        /// The metric does not exist.
        UnknownMetric = "UNKNOWN_METRIC",
        /// The metrics provider does not exist.
        UnknownMetricsProvider = "UNKNOWN_METRICS_PROVIDER",
    }
}

impl ReasonCode {
    /// Krake's number of the code.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Self::InternalError => 1,
            Self::InvalidResource => 10,
            Self::UnsupportedResource => 11,
            Self::InvalidCustomResource => 12,
            Self::InvalidToscaManifest => 13,
            Self::ClusterNotReachable => 20,
            Self::NoSuitableResource => 50,
            Self::KubernetesError => 60,
            Self::CreateFailed => 70,
            Self::ReconcileFailed => 71,
            Self::ReconfigureFailed => 72,
            Self::DeleteFailed => 73,
            Self::RetrieveFailed => 74,
            Self::NotFound => 75,
            Self::OpenstackError => 80,
            Self::InvalidClusterTemplate => 81,
            Self::InvalidMetric => 91,
            Self::UnreachableMetricsProvider => 92,
            Self::UnknownMetric => 93,
            Self::UnknownMetricsProvider => 94,
        }
    }
}

object! {
    /// A fault of a resource.
    pub struct Reason {
        /// Code of Krake, which clients compare.
        pub code: ReasonCode = required;
        /// One sentence without secrets; its words may change between versions.
        pub message: String = required;
    }
}

impl Reason {
    /// A reason with a message of one sentence, without secrets.
    #[must_use]
    pub fn new(code: ReasonCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), rest: madako_json::krake::reader::UnreadFields::default() }
    }
}

impl MetricRef {
    /// A reference to a metric with its weight.
    #[must_use]
    pub fn new(name: impl Into<String>, weight: f64, namespaced: bool) -> Self {
        Self {
            name: name.into(),
            weight,
            namespaced,
            rest: madako_json::krake::reader::UnreadFields::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_names_its_resource_and_no_other() {
        for kind in Kind::ALL {
            let key = ObjectKey::new(*kind, Some("testing"), "it");
            let reference = ResourceRef::from_key(&key);
            assert_eq!(reference.key().as_ref(), Some(&key));
            assert!(reference.refers_to(&key));
            assert!(!reference.refers_to(&ObjectKey::new(*kind, Some("testing"), "other")));
        }
        // Krake's kinds are unique only within their API group.
        let mut reference = ResourceRef::from_key(&ObjectKey::new(Kind::Cluster, Some("testing"), "it"));
        reference.api = "openstack".to_owned();
        assert_eq!(reference.key(), None);
    }

    #[test]
    fn a_new_resource_has_the_namespace_of_its_address() {
        let now = Timestamp::placeholder();
        let mut metadata = Metadata::new("it", Some("of-the-body"), "", now.clone());
        metadata.deleted = Some(now.clone());
        metadata.begin(Some("of-the-path"), "ab12", now);
        assert_eq!((metadata.namespace.as_deref(), &*metadata.uid), (Some("of-the-path"), "ab12"));
        assert!(!metadata.is_deleted());
        metadata.begin(None, "ab12", Timestamp::placeholder());
        assert_eq!(metadata.namespace, None);
    }
}
