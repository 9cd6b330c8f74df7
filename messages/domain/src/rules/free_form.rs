//! The rules of the components' own configurations: kind, version, CKE's types, and the few values that CKE reads.
//! Unknown names are allowed.

use crate::rules::names;
use madako_json::input::Problems;
use madako_json::strict::components;
use madako_json::strict::tree::{Tree, shown_text};
use madako_json::strict::walk::{Path, Schema, SchemaWalk, UnknownFieldPolicy};

pub(super) struct ConfigKind {
    api_version: &'static str,
    pub(super) kind: &'static str,
    pub(super) schema: &'static Schema,
    checked: Option<CheckedConfig>,
}

struct CheckedConfig {
    /// The field's name, in any case as in Go.
    name: &'static str,
    valid: fn(&str) -> bool,
    expected: &'static str,
}

pub(super) static COMPONENTS: [(&str, &ConfigKind); 3] =
    [("kube-scheduler", &SCHEDULER), ("kube-proxy", &PROXY), ("kubelet", &KUBELET)];

static SCHEDULER: ConfigKind = ConfigKind {
    api_version: "kubescheduler.config.k8s.io/v1",
    kind: "KubeSchedulerConfiguration",
    schema: &components::KUBE_SCHEDULER_CONFIGURATION,
    checked: None,
};

static PROXY: ConfigKind = ConfigKind {
    api_version: "kubeproxy.config.k8s.io/v1alpha1",
    kind: "KubeProxyConfiguration",
    schema: &components::KUBE_PROXY_CONFIGURATION,
    checked: Some(CheckedConfig {
        name: "mode",
        valid: |mode| matches!(mode, "" | "userspace" | "iptables" | "ipvs"),
        expected: "userspace, iptables or ipvs",
    }),
};

static KUBELET: ConfigKind = ConfigKind {
    api_version: "kubelet.config.k8s.io/v1beta1",
    kind: "KubeletConfiguration",
    schema: &components::KUBELET_CONFIGURATION,
    checked: Some(CheckedConfig {
        name: "clusterDomain",
        valid: |domain| domain.is_empty() || names::is_dns_subdomain(domain),
        expected: names::DNS_SUBDOMAIN,
    }),
};

impl ConfigKind {
    pub(super) fn check(&self, config: &Tree, path: &Path<'_>, problems: &mut Problems) {
        // CKE looks these two up by their exact names.
        for (name, expected) in [("apiVersion", self.api_version), ("kind", self.kind)] {
            let given = config.fields().iter().find(|(known, _)| known == name).map(|(_, value)| value);
            if given.and_then(Tree::text) != Some(expected) {
                problems.add(path.field(name), given.map_or_else(String::new, Tree::short_text), expected);
            }
        }
        // `apiVersion` and `kind` were checked above; skip them, so that a wrong type is not reported twice.
        let rest = config.fields().iter().filter(|(name, _)| !matches!(name.as_str(), "apiVersion" | "kind"));
        let mut walk = SchemaWalk { root: self.schema, unknown: UnknownFieldPolicy::Keep, problems };
        let good = walk.check_object(Tree::Object(rest.cloned().collect()), self.schema, *path);
        if let Some(CheckedConfig { name, valid, expected }) = self.checked
            && let Some(text) = good.get(name).and_then(Tree::text)
            && !valid(text)
        {
            problems.add(path.field(name), shown_text(text), expected);
        }
    }
}
