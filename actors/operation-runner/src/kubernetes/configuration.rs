//! The configuration files of kubelet, kube-proxy and kube-scheduler: defaults, the operator's part over them, forced
//! values, and the fields of a kubelet that stay while it runs.
//!
//! Guarantees: a field whose value means the same as its absence is left out. Fields that CKE's types lack are kept where
//! [`Unknown::Keep`] asks for it.

mod compare;
mod file_schema;
mod known;

use madako_domain::cluster::{Node, Taint};
use madako_json::strict::components::{
    KUBE_PROXY_CONFIGURATION, KUBE_SCHEDULER_CONFIGURATION, KUBELET_CONFIGURATION,
};
use madako_json::strict::{Schema, Tree, yaml};

pub use self::file_schema::Unknown;
use self::file_schema::{FileSchema, get, remove, set};
pub use self::known::KnownComparisons;
use super::options::KubernetesOptions;
use super::paths::{PROXY_KUBECONFIG, SCHEDULER_KUBECONFIG, VOLUME_PLUGINS, pki_path};
use madako_domain::component::Component;

/// Fields of a kubelet that must not change while its node runs: Kubernetes documents that they need a reboot.
const KEPT: [&str; 10] = [
    "kubeletCgroups",
    "systemCgroups",
    "cgroupRoot",
    "cgroupsPerQOS",
    "cgroupDriver",
    "cpuManagerPolicy",
    "topologyManagerPolicy",
    "qosReserved",
    "systemReservedCgroup",
    "kubeReservedCgroup",
];

/// A configuration of a component, in Kubernetes' names and without fields that say nothing.
#[derive(Debug, Clone, PartialEq)]
pub struct Configuration {
    kind: ConfigurationKind,
    tree: Tree,
}

/// A kind of configuration file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ConfigurationKind {
    Scheduler,
    Proxy,
    Kubelet,
}

impl ConfigurationKind {
    fn api_version_and_kind(self) -> (&'static str, &'static str) {
        match self {
            Self::Scheduler => ("kubescheduler.config.k8s.io/v1", "KubeSchedulerConfiguration"),
            Self::Proxy => ("kubeproxy.config.k8s.io/v1alpha1", "KubeProxyConfiguration"),
            Self::Kubelet => ("kubelet.config.k8s.io/v1beta1", "KubeletConfiguration"),
        }
    }

    fn file_schema(self, unknown: Unknown) -> FileSchema {
        let (schema, pointers): (&'static Schema, _) = match self {
            Self::Scheduler => (&KUBE_SCHEDULER_CONFIGURATION, file_schema::SCHEDULER_POINTERS),
            Self::Proxy => (&KUBE_PROXY_CONFIGURATION, file_schema::PROXY_POINTERS),
            Self::Kubelet => (&KUBELET_CONFIGURATION, file_schema::KUBELET_POINTERS),
        };
        FileSchema { schema, pointers, unknown }
    }

    fn of_component(component: Component) -> Option<Self> {
        match component {
            Component::Scheduler => Some(Self::Scheduler),
            Component::Proxy => Some(Self::Proxy),
            Component::Kubelet => Some(Self::Kubelet),
            Component::ApiServer | Component::ControllerManager => None,
        }
    }

    /// The operator's part over the defaults.
    fn merge_with_defaults(self, defaults: Tree, part: &Tree, unknown: Unknown) -> Tree {
        let mut merged = defaults;
        let schema = self.file_schema(unknown);
        schema.overlay(&mut merged, schema.to_canonical(part));
        let (api_version, kind) = self.api_version_and_kind();
        set(&mut merged, &["apiVersion"], text_tree(api_version));
        set(&mut merged, &["kind"], text_tree(kind));
        merged
    }

    fn finish(self, tree: Tree, unknown: Unknown) -> Configuration {
        Configuration { kind: self, tree: self.file_schema(unknown).without_defaults(tree) }
    }
}

impl Configuration {
    /// The wanted configuration of a component on a node; `None` if the component has no configuration file. `running`
    /// is the configuration with which the component runs there.
    #[must_use]
    pub fn build_wanted(
        component: Component,
        options: &KubernetesOptions,
        node: &Node,
        running: Option<&Self>,
        unknown: Unknown,
    ) -> Option<Self> {
        match ConfigurationKind::of_component(component)? {
            ConfigurationKind::Scheduler => Some(scheduler_configuration(options, unknown)),
            ConfigurationKind::Proxy => Some(proxy_configuration(options, node, unknown)),
            ConfigurationKind::Kubelet => Some(kubelet_configuration(options, node, running, unknown)),
        }
    }

    /// Reads the file of a component; `None` if it is not a configuration.
    #[must_use]
    pub fn read(component: Component, file: &str, unknown: Unknown) -> Option<Self> {
        let kind = ConfigurationKind::of_component(component)?;
        let tree = yaml::read_yaml(component.name(), file).ok()?;
        let schema = kind.file_schema(unknown);
        matches!(tree, Tree::Object(_)).then(|| kind.finish(schema.to_canonical(&tree), unknown))
    }

    /// The content of the file.
    ///
    /// # Errors
    /// A number of the operator's part exceeds every float.
    pub fn to_yaml(&self) -> Result<String, serde_json::Error> {
        madako_json::go::to_yaml(&self.tree)
    }

    /// Names of the fields that differ, with the objects that they are in. Equal quantities and durations may have
    /// different texts.
    #[must_use]
    pub fn differing_fields(&self, other: &Self) -> Vec<String> {
        let mut found = Vec::new();
        compare::add_differing_fields(
            &self.tree,
            &other.tree,
            self.kind.file_schema(Unknown::Keep).schema,
            "",
            &mut found,
        );
        found
    }
}

/// The names of the fields in which a file on a node differs from the wanted one; `None`: it is not a configuration.
pub(super) fn compare_file(
    component: Component,
    options: &KubernetesOptions,
    node: &Node,
    file: &str,
    unknown: Unknown,
) -> Option<Vec<String>> {
    options.comparisons.find(component, options, (node, file), unknown)
}

/// The domain that the kubelets have, without a node.
pub(super) fn cluster_domain(options: &KubernetesOptions) -> String {
    let merged = kubelet_merged(options, Unknown::Drop);
    get(&merged, &["clusterDomain"]).and_then(Tree::text).unwrap_or_default().to_owned()
}

fn scheduler_configuration(options: &KubernetesOptions, unknown: Unknown) -> Configuration {
    let mut tree =
        ConfigurationKind::Scheduler.merge_with_defaults(object_tree(vec![]), &options.scheduler, unknown);
    set(&mut tree, &["clientConnection", "kubeconfig"], text_tree(SCHEDULER_KUBECONFIG));
    set(&mut tree, &["leaderElection", "leaderElect"], Tree::Bool(true));
    ConfigurationKind::Scheduler.finish(tree, unknown)
}

fn proxy_configuration(options: &KubernetesOptions, node: &Node, unknown: Unknown) -> Configuration {
    let defaults = object_tree(vec![
        ("hostnameOverride", text_tree(node.name())),
        ("metricsBindAddress", text_tree("0.0.0.0")),
        (
            "conntrack",
            object_tree(vec![
                ("tcpEstablishedTimeout", text_tree("24h0m0s")),
                ("tcpCloseWaitTimeout", text_tree("1h0m0s")),
            ]),
        ),
    ]);
    let mut tree = ConfigurationKind::Proxy.merge_with_defaults(defaults, &options.proxy, unknown);
    set(&mut tree, &["clientConnection", "kubeconfig"], text_tree(PROXY_KUBECONFIG));
    ConfigurationKind::Proxy.finish(tree, unknown)
}

fn kubelet_merged(options: &KubernetesOptions, unknown: Unknown) -> Tree {
    let defaults = object_tree(vec![
        ("clusterDomain", text_tree("cluster.local")),
        ("runtimeRequestTimeout", text_tree("15m0s")),
        ("healthzBindAddress", text_tree("0.0.0.0")),
        ("volumePluginDir", text_tree(VOLUME_PLUGINS)),
    ]);
    ConfigurationKind::Kubelet.merge_with_defaults(defaults, &options.kubelet, unknown)
}

fn kubelet_configuration(
    options: &KubernetesOptions,
    node: &Node,
    running: Option<&Configuration>,
    unknown: Unknown,
) -> Configuration {
    let mut tree = kubelet_merged(options, unknown);
    set(&mut tree, &["tlsCertFile"], text_tree(&pki_path("kubelet.crt")));
    set(&mut tree, &["tlsPrivateKeyFile"], text_tree(&pki_path("kubelet.key")));
    let authentication = object_tree(vec![
        ("x509", object_tree(vec![("clientCAFile", text_tree(&pki_path("ca.crt")))])),
        ("webhook", object_tree(vec![("enabled", Tree::Bool(true))])),
    ]);
    set(&mut tree, &["authentication"], authentication);
    set(&mut tree, &["authorization"], object_tree(vec![("mode", text_tree("Webhook"))]));
    set(&mut tree, &["clusterDNS"], Tree::List(vec![text_tree(&node.address)]));
    let mut taints =
        get(&tree, &["registerWithTaints"]).map_or_else(Vec::new, |taints| taints.items().to_vec());
    add_taints(&mut taints, &options.boot_taints);
    set(&mut tree, &["registerWithTaints"], Tree::List(taints));
    for field in running.map_or(&[][..], |_| &KEPT) {
        match running.and_then(|running| get(&running.tree, &[field])) {
            Some(kept) => set(&mut tree, &[field], kept.clone()),
            None => remove(&mut tree, field),
        }
    }
    ConfigurationKind::Kubelet.finish(tree, unknown)
}

/// A boot taint replaces the last of the operator's own taints with its key.
fn add_taints(taints: &mut Vec<Tree>, boot: &[Taint]) {
    let own: Vec<Option<String>> =
        taints.iter().map(|taint| taint.get("key").and_then(Tree::text).map(str::to_owned)).collect();
    for taint in boot {
        let place = own.iter().rposition(|key| key.as_deref().unwrap_or_default() == taint.key);
        let mut fields = vec![("key", text_tree(&taint.key)), ("effect", text_tree(&taint.effect))];
        if !taint.value.is_empty() {
            fields.push(("value", text_tree(&taint.value)));
        }
        if let Some(time) = &taint.time_added {
            fields.push(("timeAdded", text_tree(time)));
        }
        match place {
            Some(place) => taints[place] = object_tree(fields),
            None => taints.push(object_tree(fields)),
        }
    }
}

fn text_tree(value: &str) -> Tree {
    Tree::Text(value.to_owned())
}

fn object_tree(fields: Vec<(&str, Tree)>) -> Tree {
    Tree::Object(fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}

#[cfg(test)]
mod tests;
