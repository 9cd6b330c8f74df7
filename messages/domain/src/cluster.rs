//! The cluster configuration as CKE stores it (`cluster`, `sabakan/template`; its `docs/cluster.md`).
//!
//! Reading is lenient, as in Go: `null` means empty, and names match in any case. The parts that this project does
//! not interpret (`options`, `reboot`, `repair`, fields of newer versions) keep their text and are written back
//! unchanged. [`Cluster::from_yaml`] reads typed configurations strictly.

use std::collections::BTreeMap;

use crate::containers::DEFAULT_ETCD_VOLUME;
use crate::options::StoredOptions;
use crate::reboot::config::StoredReboot;
use crate::repair::config::Stored;
use crate::rules::{self, ClusterForm};
use madako_json::go::{RawJson, go_object};
use madako_json::input::{InputError, Problems, Warning};
use madako_json::strict::walk::read_strictly;
use madako_json::strict::{Kind, Path, yaml};

/// Label with the role of a node template or a node.
pub const LABEL_ROLE: &str = "cke.cybozu.com/role";
/// Label with the weight of a worker template.
pub const LABEL_WEIGHT: &str = "cke.cybozu.com/weight";
/// Taint with the state of a retiring or retired machine.
pub const TAINT_STATE: &str = "cke.cybozu.com/state";
/// Taint that CKE puts on control plane nodes.
pub const TAINT_MASTER: &str = "cke.cybozu.com/master";

/// CKE's default for the socket of the container runtime (its `docs/cluster.md`).
pub const DEFAULT_CRI_ENDPOINT: &str = "/run/containerd/containerd.sock";

go_object! {
    /// A taint of a node.
    #[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
    pub struct Taint {
        /// Key in the form of Kubernetes, such as `example.com/role`.
        pub key: String = "key";
        /// Value; left out when empty.
        pub value: String = "value", omit String::is_empty;
        /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
        pub effect: String = "effect";
        /// Time at which the taint was added, as Kubernetes writes it.
        pub time_added: Option<String> = "timeAdded", omit Option::is_none;
        ..rest typed
    }
}

go_object! {
    /// A node of a cluster, or a node template.
    #[derive(Debug, Clone, Default, PartialEq, Eq)]
    pub struct Node {
        /// IPv4 address; empty in a template.
        pub address: String = "address";
        /// Host name that replaces the real one in Kubernetes.
        pub hostname: String = "hostname";
        /// Login name over SSH.
        pub user: String = "user";
        /// True for a control plane node.
        pub control_plane: bool = "control_plane";
        /// Annotations that the Node object gets.
        pub annotations: BTreeMap<String, String> = "annotations";
        /// Labels that the Node object gets.
        pub labels: BTreeMap<String, String> = "labels";
        /// Taints that the Node object gets.
        pub taints: Vec<Taint> = "taints";
        ..rest typed
    }
}

impl Node {
    /// The name in Kubernetes: the hostname, or the address if no hostname is set.
    #[must_use]
    pub fn name(&self) -> &str {
        if self.hostname.is_empty() { &self.address } else { &self.hostname }
    }
}

go_object! {
    /// A cluster configuration, or a template.
    #[derive(Debug, Clone, Default, PartialEq, Eq)]
    pub struct Cluster {
        /// Name of the cluster, as in kubeconfigs.
        pub name: String = "name";
        /// Nodes; in a template, one control plane node and at least one other.
        pub nodes: Vec<Node> = "nodes";
        /// True if CKE taints control plane nodes.
        pub taint_control_plane: bool = "taint_control_plane";
        /// Taint keys that a control plane node may have.
        pub control_plane_tolerations: Vec<String> = "control_plane_tolerations";
        /// CIDR of Kubernetes services.
        pub service_subnet: String = "service_subnet";
        /// IP addresses of the upstream DNS servers, for names outside the cluster.
        pub dns_servers: Vec<String> = "dns_servers";
        /// Upstream DNS service, as `namespace/name`.
        pub dns_service: String = "dns_service";
        /// Settings of reboots as JSON; [`StoredReboot`] reads them.
        pub reboot: RawJson = "reboot", omit RawJson::is_absent, is Kind::Object(StoredReboot::SCHEMA);
        /// Settings of repairs as JSON; [`Stored`] reads them.
        pub repair: RawJson = "repair", omit RawJson::is_absent, is Kind::Object(Stored::SCHEMA);
        /// Options of the components, uninterpreted.
        pub options: RawJson = "options", omit RawJson::is_absent, is Kind::Object(StoredOptions::SCHEMA);
        ..rest typed
    }
}

impl Cluster {
    /// Reads a typed configuration (YAML or JSON) strictly, and fills in CKE's defaults.
    ///
    /// # Errors
    /// The error names each wrong field and the expected value.
    pub fn from_yaml(text: &str) -> Result<Self, InputError> {
        Self::read_typed("cluster", text, ClusterForm::Cluster, |_, _, _| {})
    }

    /// Checks the whole configuration except for unknown fields.
    ///
    /// # Errors
    /// The error names each wrong field and the expected value.
    pub fn check(&self) -> Result<(), InputError> {
        let mut problems = Problems::default();
        rules::check_configuration(self, ClusterForm::Cluster, &mut problems);
        problems.finish("cluster")
    }

    /// Settings that are valid but probably mistakes.
    #[must_use]
    pub fn warnings(&self) -> Vec<Warning> {
        rules::warnings(self, ClusterForm::Cluster)
    }

    /// The configuration in YAML, as `ckecli cluster get` prints it.
    ///
    /// # Errors
    /// An uninterpreted part cannot be a document, for example because it has the same field twice.
    pub fn to_yaml(&self) -> Result<String, serde_json::Error> {
        madako_json::go::to_yaml(self)
    }

    /// Reads a typed configuration. `more` adds rules to those of every configuration; it receives the problems with
    /// shapes.
    pub(crate) fn read_typed(
        subject: &str,
        text: &str,
        form: ClusterForm,
        more: impl FnOnce(&Self, &Problems, &mut Problems),
    ) -> Result<Self, InputError> {
        let tree = yaml::read_yaml(subject, text)?;
        let mut problems = Problems::default();
        // Without the parts of a wrong shape, so that the rules can check the rest.
        let mut cluster: Self = read_strictly(tree, Path::Root, &mut problems).unwrap_or_default();
        let mut broken = Problems::default();
        more(&cluster, &problems, &mut broken);
        rules::check_configuration(&cluster, form, &mut broken);
        problems.add_unrelated(broken);
        problems.finish(subject)?;
        cluster.fill_defaults();
        Ok(cluster)
    }

    /// Sets the values that CKE's own commands set when they are absent: the volume of etcd and the socket of the
    /// container runtime. CKE's server requires the socket, though `docs/cluster.md` calls it optional.
    pub(crate) fn fill_defaults(&mut self) {
        let filled = self
            .options
            .with_default(&["etcd", "volume_name"], DEFAULT_ETCD_VOLUME)
            .and_then(|options| options.with_default(&["kubelet", "cri_endpoint"], DEFAULT_CRI_ENDPOINT));
        // Options of another shape have no place for defaults; the rules refuse them.
        if let Ok(options) = filled {
            self.options = options;
        }
    }

    /// The control plane nodes, in the order of the configuration.
    pub fn control_plane(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(|node| node.control_plane)
    }

    /// The nodes outside the control plane, in the order of the configuration.
    pub fn workers(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(|node| !node.control_plane)
    }
}

#[cfg(test)]
mod tests;
