//! The components' own configurations: free-form, but of one kind and version, with the few values that CKE
//! looks at.

use crate::input::Problems;
use crate::rules::names;
use crate::strict::tree::{Tree, shown_text};
use crate::strict::walk::Path;

/// What a component's configuration must be.
pub(super) struct ConfigKind {
    api_version: &'static str,
    kind: &'static str,
    checked: Option<Checked>,
}

/// A text within it that is checked.
struct Checked {
    /// Its name; Go finds it in any case.
    name: &'static str,
    valid: fn(&str) -> bool,
    expected: &'static str,
}

pub(super) static SCHEDULER: ConfigKind = ConfigKind {
    api_version: "kubescheduler.config.k8s.io/v1",
    kind: "KubeSchedulerConfiguration",
    checked: None,
};

pub(super) static PROXY: ConfigKind = ConfigKind {
    api_version: "kubeproxy.config.k8s.io/v1alpha1",
    kind: "KubeProxyConfiguration",
    checked: Some(Checked {
        name: "mode",
        valid: |mode| matches!(mode, "" | "userspace" | "iptables" | "ipvs"),
        expected: "userspace, iptables or ipvs",
    }),
};

pub(super) static KUBELET: ConfigKind = ConfigKind {
    api_version: "kubelet.config.k8s.io/v1beta1",
    kind: "KubeletConfiguration",
    checked: Some(Checked {
        name: "clusterDomain",
        valid: |domain| domain.is_empty() || names::is_dns_subdomain(domain),
        expected: names::DNS_SUBDOMAIN,
    }),
};

impl ConfigKind {
    /// Checks a configuration.
    pub(super) fn check(&self, config: &Tree, path: &Path<'_>, problems: &mut Problems) {
        // CKE looks these two up by their exact names.
        for (name, expected) in [("apiVersion", self.api_version), ("kind", self.kind)] {
            let given = config.fields().iter().find(|(known, _)| known == name).map(|(_, value)| value);
            if given.and_then(Tree::text) != Some(expected) {
                problems.add(path.field(name), given.map_or_else(String::new, Tree::shown), expected);
            }
        }
        if let Some(Checked { name, valid, expected }) = self.checked
            && let Some(value) = config.get(name)
        {
            match value.text() {
                Some(text) if valid(text) => {}
                Some(text) => problems.add(path.field(name), shown_text(text), expected),
                None => problems.add(path.field(name), value.shown(), expected),
            }
        }
    }
}
