//! The kinds of placement's resources: their names, their keys in etcd, and their subresources (Krake's
//! `__etcd_key__` of each type and its route definitions).

use std::fmt;

use madako_json::named;
use strum::{Display, IntoStaticStr, VariantArray};

/// An API group of Krake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum ApiGroup {
    /// Roles, metrics and metrics providers.
    Core,
    /// Clouds and infrastructure providers.
    Infrastructure,
    /// `kubernetes`: applications and clusters.
    Kubernetes,
    /// Projects and Magnum clusters.
    Openstack,
}

/// A part of a resource with a path of its own for writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum Subresource {
    /// The observed state, which controllers write.
    Status,
    /// The binding to a target.
    Binding,
    /// The request of an application that reports its completion.
    Complete,
    /// The request of an application that may be stopped.
    Shutdown,
    /// The request for a retry.
    Retry,
}

macro_rules! kinds {
    ($($(#[$meta:meta])* $kind:ident = $api:ident, $plural:literal, $namespaced:literal;)*) => {
        /// A kind of resource; its name is that of the field `kind`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Display, IntoStaticStr, VariantArray)]
        pub enum Kind {
            $($(#[$meta])* $kind,)*
        }

        impl Kind {
            /// The API group of the kind.
            #[must_use]
            pub fn api(self) -> ApiGroup {
                match self { $(Self::$kind => ApiGroup::$api,)* }
            }

            /// The plural in paths, keys and roles.
            #[must_use]
            pub fn plural(self) -> &'static str {
                match self { $(Self::$kind => $plural,)* }
            }

            /// True if resources of this kind have a namespace.
            #[must_use]
            pub fn namespaced(self) -> bool {
                match self { $(Self::$kind => $namespaced,)* }
            }

            /// The common prefix of all keys of this kind, at the root of etcd.
            #[must_use]
            pub fn prefix(self) -> &'static str {
                match self { $(Self::$kind => kinds!(@prefix $api $plural),)* }
            }
        }
    };
    (@prefix Core $plural:literal) => { concat!("/core/", $plural, "/") };
    (@prefix Infrastructure $plural:literal) => { concat!("/infrastructure/", $plural, "/") };
    (@prefix Kubernetes $plural:literal) => { concat!("/kubernetes/", $plural, "/") };
    (@prefix Openstack $plural:literal) => { concat!("/openstack/", $plural, "/") };
}

kinds! {
    /// A set of permitted requests.
    Role = Core, "roles", false;
    /// An assignment of roles to users.
    RoleBinding = Core, "rolebindings", false;
    /// A metric that every namespace can use.
    GlobalMetric = Core, "globalmetrics", false;
    /// A metric of one namespace.
    Metric = Core, "metrics", true;
    /// A source of the values of global metrics.
    GlobalMetricsProvider = Core, "globalmetricsproviders", false;
    /// A source of the values of one namespace's metrics.
    MetricsProvider = Core, "metricsproviders", true;
    /// A service that creates clusters on global clouds.
    GlobalInfrastructureProvider = Infrastructure, "globalinfrastructureproviders", false;
    /// A service that creates clusters on the clouds of one namespace.
    InfrastructureProvider = Infrastructure, "infrastructureproviders", true;
    /// A cloud that every namespace can use.
    GlobalCloud = Infrastructure, "globalclouds", false;
    /// A cloud of one namespace.
    Cloud = Infrastructure, "clouds", true;
    /// Manifests that run on one cluster.
    Application = Kubernetes, "applications", true;
    /// A cluster that runs applications.
    Cluster = Kubernetes, "clusters", true;
    /// A project of OpenStack that has Magnum clusters.
    Project = Openstack, "projects", true;
    /// A cluster that Magnum creates.
    MagnumCluster = Openstack, "magnumclusters", true;
}

named!(ApiGroup, Subresource, Kind all);

/// The identity of a resource: kind, namespace (if the kind has one), and name. Within one kind the order is that of
/// the etcd keys.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectKey {
    /// Kind of the resource.
    pub kind: Kind,
    /// Namespace; `None` for kinds without.
    pub namespace: Option<String>,
    /// Name of the resource.
    pub name: String,
}

impl ObjectKey {
    /// The key of a resource; kinds without namespaces ignore `namespace`.
    #[must_use]
    pub fn new(kind: Kind, namespace: Option<&str>, name: impl Into<String>) -> Self {
        let namespace = namespace.filter(|_| kind.namespaced()).map(str::to_owned);
        Self { kind, namespace, name: name.into() }
    }

    /// The absolute key in etcd.
    #[must_use]
    pub fn etcd_key(&self) -> String {
        match &self.namespace {
            Some(namespace) => format!("{}{namespace}/{}", self.kind.prefix(), self.name),
            None => format!("{}{}", self.kind.prefix(), self.name),
        }
    }

    /// The resource of an absolute etcd key; `None` if it is not a key of placement.
    #[must_use]
    pub fn from_etcd_key(key: &str) -> Option<Self> {
        let (kind, rest) =
            Kind::ALL.iter().find_map(|kind| Some((*kind, key.strip_prefix(kind.prefix())?)))?;
        let (namespace, name) = match rest.split_once('/') {
            Some((namespace, name)) if kind.namespaced() => (Some(namespace), name),
            None if !kind.namespaced() => (None, rest),
            _ => return None,
        };
        let whole = |text: &str| !text.is_empty() && !text.contains('/');
        (whole(name) && namespace.is_none_or(whole)).then(|| Self::new(kind, namespace, name))
    }
}

impl fmt::Display for ObjectKey {
    /// Writes, for example, `Application testing/echo`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{} {namespace}/{}", self.kind, self.name),
            None => write!(f, "{} {}", self.kind, self.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_and_resource_convert_into_each_other() {
        for kind in Kind::ALL {
            let key = ObjectKey::new(*kind, Some("team.a"), "the:one");
            assert_eq!(ObjectKey::from_etcd_key(&key.etcd_key()), Some(key));
        }
        let app = ObjectKey::new(Kind::Application, Some("n"), "a");
        assert_eq!(app.etcd_key(), "/kubernetes/applications/n/a");
        assert_eq!(ObjectKey::new(Kind::Role, Some("n"), "r").etcd_key(), "/core/roles/r");
    }

    #[test]
    fn keys_outside_placement_are_not_resources() {
        for key in [
            "/cke/cluster",
            "/core/roles/",
            "/core/roles/a/b",
            "/kubernetes/applications/a",
            "/kubernetes/applications/a/",
            "/kubernetes/applications/a/b/c",
            "/kubernetes/applications//b",
            "kubernetes/applications/a/b",
        ] {
            assert_eq!(ObjectKey::from_etcd_key(key), None, "{key}");
        }
    }
}
