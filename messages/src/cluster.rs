//! The cluster configuration as CKE stores it (`cluster`, `sabakan/template`; its `docs/cluster.md`).
//!
//! Reading is lenient: `null` stands for empty, and what the project does not interpret
//! (`options`, `reboot`, `repair`, fields of a newer version) is kept and written back unchanged.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::machine::null_as_empty;

/// Label that names the role of a node template or a node.
pub const LABEL_ROLE: &str = "cke.cybozu.com/role";
/// Label that gives the weight of a worker template.
pub const LABEL_WEIGHT: &str = "cke.cybozu.com/weight";
/// Taint that tells the state of a retiring or retired machine.
pub const TAINT_STATE: &str = "cke.cybozu.com/state";
/// Taint that CKE puts on control plane nodes.
pub const TAINT_MASTER: &str = "cke.cybozu.com/master";

/// A taint of a node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Taint {
    /// Key.
    #[serde(default)]
    pub key: String,
    /// Value; left out when empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub value: String,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    #[serde(default)]
    pub effect: String,
    /// When it was added, as Kubernetes writes it.
    #[serde(default, rename = "timeAdded", skip_serializing_if = "Option::is_none")]
    pub time_added: Option<String>,
}

/// A node of a cluster, or the template of one.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Node {
    /// IPv4 address; empty in a template.
    #[serde(default)]
    pub address: String,
    /// Host name that replaces the real one in Kubernetes.
    #[serde(default)]
    pub hostname: String,
    /// SSH user.
    #[serde(default)]
    pub user: String,
    /// Whether it is a control plane node.
    #[serde(default)]
    pub control_plane: bool,
    /// Kubernetes annotations.
    #[serde(default, deserialize_with = "null_as_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Kubernetes labels.
    #[serde(default, deserialize_with = "null_as_empty")]
    pub labels: BTreeMap<String, String>,
    /// Kubernetes taints.
    #[serde(default, deserialize_with = "null_as_empty")]
    pub taints: Vec<Taint>,
    /// Fields that this version does not know.
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

/// A cluster configuration, or a template of one.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Cluster {
    /// Name.
    #[serde(default)]
    pub name: String,
    /// Nodes; in a template, one control plane node and at least one other.
    #[serde(default, deserialize_with = "null_as_empty")]
    pub nodes: Vec<Node>,
    /// Whether control plane nodes are tainted.
    #[serde(default)]
    pub taint_control_plane: bool,
    /// Taint keys that a control plane node may have.
    #[serde(default, deserialize_with = "null_as_empty")]
    pub control_plane_tolerations: Vec<String>,
    /// CIDR of Kubernetes services.
    #[serde(default)]
    pub service_subnet: String,
    /// Upstream DNS servers.
    #[serde(default, deserialize_with = "null_as_empty")]
    pub dns_servers: Vec<String>,
    /// Upstream DNS service, as `namespace/name`.
    #[serde(default)]
    pub dns_service: String,
    /// Reboot settings, kept as they are.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub reboot: Value,
    /// Repair settings, kept as they are.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub repair: Value,
    /// Options of the components, kept as they are.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub options: Value,
    /// Fields that this version does not know.
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

impl Cluster {
    /// The control plane nodes, in the order of the configuration.
    pub fn control_plane(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(|node| node.control_plane)
    }

    /// The other nodes, in the order of the configuration.
    pub fn workers(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(|node| !node.control_plane)
    }
}
