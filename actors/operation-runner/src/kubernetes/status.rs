//! The state of Kubernetes' containers on the nodes, as decisions about operations use it.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use madako_domain::certificate::Validity;
use madako_domain::node_status::ContainerStatus;
use madako_domain::skew::{KubernetesVersion, Versions};

use super::certificates::CertificateSubject;
use super::outdated::FileOnNode;
use madako_domain::component::Component;

/// The state of all nodes. It borrows the containers and files of a collection: those of a large fleet are some megabytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KubernetesStatus<'a> {
    /// The nodes, by address. A node that is missing counts as unreachable.
    pub nodes: BTreeMap<String, KubernetesNode<'a>>,
    /// Names of the Node objects; `None` if no API server answers.
    pub registered: Option<BTreeSet<String>>,
    /// Names of the Node objects that are not Ready.
    pub unready: BTreeSet<String>,
    /// The known versions of the components.
    pub versions: Versions,
    /// Version of the wanted image; `None`: it is not known.
    pub wanted_version: Option<KubernetesVersion>,
}

impl KubernetesStatus<'_> {
    /// The reason for which the restarted containers of a node are not known; `None`: they are known wherever they were asked for.
    #[must_use]
    pub fn unchecked_containers(&self) -> Option<&String> {
        self.nodes.values().find_map(|on_node| on_node.restarted.as_ref()?.as_ref().err())
    }
}

/// The state of a node. A component that is missing has no container.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KubernetesNode<'a> {
    pub reachable: bool,
    pub components: BTreeMap<Component, ComponentStatus<'a>>,
    /// The certificates whose end is known.
    pub certificates: BTreeMap<CertificateSubject, Validity>,
    /// Containers that restarted with the kubelet, or the reason why they are not known; `None`: nothing was asked.
    pub restarted: Option<Result<Vec<String>, String>>,
}

/// The state of a component on a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ComponentStatus<'a> {
    pub container: Cow<'a, ContainerStatus>,
    /// Its configuration file; the outer `None` means that it was not read, the inner one that there is none.
    pub file: Option<Option<Cow<'a, str>>>,
    /// An API server that started before the last change of the encryption keys.
    pub has_earlier_keys: bool,
    /// Its health check: passed, or the reason why not; `None` if it was not asked.
    pub health: Option<Result<(), String>>,
    /// It holds the lease of its kind.
    pub leads: bool,
}

impl ComponentStatus<'_> {
    /// True if the service's or CKE's own container runs.
    #[must_use]
    pub fn runs(&self) -> bool {
        self.container.running && !self.container.foreign
    }

    #[must_use]
    pub fn is_healthy(&self) -> bool {
        self.runs() && self.health == Some(Ok(()))
    }

    #[must_use]
    pub(crate) fn file(&self) -> FileOnNode<'_> {
        match &self.file {
            _ if self.has_earlier_keys => FileOnNode::EarlierKeys,
            None => FileOnNode::Unread,
            Some(None) => FileOnNode::Missing,
            Some(Some(text)) => FileOnNode::Text(text),
        }
    }
}
