//! The state of the containers, volumes and certificates on the nodes of a cluster, and of its etcd: the inputs of operations.
//!
//! Does not: say how old the state is, or which state is wanted.

mod read;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use madako_json::krake::reader::shorten_name;
use time::OffsetDateTime;

pub use self::read::status_from_yaml;
use crate::certificate::NodeCertificate;
use crate::component::Component;
use crate::containers::{ContainerName, ServiceParams};
use crate::objects::ObjectAnswers;
use crate::record::RecordStatus;
use crate::skew::KubernetesVersion;

/// The form of the stored cluster (CKE's key `config-version`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConfigVersion {
    /// The form before marks of members; an absent key means it.
    One,
    /// The form of CKE 1.30.
    Two,
}

/// The state of the nodes and of etcd at one time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FleetStatus {
    /// The form of the stored cluster.
    pub config_version: ConfigVersion,
    /// The nodes, by address. A node that is missing counts as unreachable.
    pub nodes: BTreeMap<String, NodeStatus>,
    /// The answer of etcd; `None` if there was none.
    pub etcd: Option<EtcdStatus>,
    /// The newest record of a bootstrap.
    pub bootstrap: Option<Bootstrap>,
    /// Addresses of nodes on which the removal of a member began and did not end.
    pub interrupted_removals: BTreeSet<String>,
    /// Version of the program in the configured image.
    pub etcd_image_version: Option<EtcdVersion>,
    /// Answers of the components of Kubernetes; `None` without a query.
    pub kubernetes: Option<KubernetesAnswers>,
}

/// Answers of the components of Kubernetes at one time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KubernetesAnswers {
    /// The health check of each component that runs, by address: passed, or the reason why not.
    pub health: BTreeMap<String, BTreeMap<Component, Result<(), String>>>,
    /// Names of the Node objects; `None` if no API server reported them.
    pub registered: Option<BTreeSet<String>>,
    /// The holders of the leases of controller managers and schedulers, as far as an API server reported them: the host name
    /// of a machine, and a random part after the last `_`.
    pub leaders: BTreeMap<Component, String>,
    /// Versions of API servers (major and minor), by address: of those of control plane nodes and of those that run on other
    /// nodes, as far as they answered. One on a node without a known state is among them while it serves.
    pub server_versions: BTreeMap<String, String>,
    /// The objects; `None` if no API server is healthy.
    pub objects: Option<ObjectAnswers>,
    /// Containers of pods that restarted with the kubelet of a node, as NAMESPACE/POD/CONTAINER, or the reason why they are not
    /// known; by the addresses of the nodes that were asked for.
    pub restarted: BTreeMap<String, Result<Vec<String>, String>>,
    /// Versions of the programs in images, as far as they are known, by image.
    pub image_versions: BTreeMap<String, KubernetesVersion>,
}

/// The state of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeStatus {
    /// The node answered and its container engine works. If not, the other facts are unknown.
    pub reachable: bool,
    /// Containers with a managed name, running or stopped, by that name.
    pub containers: BTreeMap<String, ContainerStatus>,
    /// The configured volume of etcd exists.
    pub etcd_data: bool,
    /// The volume that marks an added member exists.
    pub etcd_mark: bool,
    /// The configured volume of etcd has no content; `None` if unknown.
    pub etcd_empty: Option<bool>,
    /// The data of etcd are in another volume than the configured one.
    pub etcd_other_volume: bool,
    /// The readable certificates of etcd, by the name of the file. One whose private key is missing does not count.
    pub etcd_certificates: BTreeMap<String, NodeCertificate>,
    /// The readable certificates of Kubernetes, by the path of the file, which may be a kubeconfig. One whose private key is
    /// missing does not count.
    pub kubernetes_certificates: BTreeMap<String, NodeCertificate>,
    /// Configuration files of components of Kubernetes, as far as they were read; `None`: the node has no such file.
    pub configurations: BTreeMap<Component, Option<String>>,
}

impl KubernetesAnswers {
    /// True if the component on that node passed its health check.
    #[must_use]
    pub fn is_healthy(&self, component: Component, address: &str) -> bool {
        self.health.get(address).and_then(|health| health.get(&component)).is_some_and(Result::is_ok)
    }
}

impl NodeStatus {
    /// A container that the service or CKE made.
    #[must_use]
    pub fn own_container(&self, container: impl Into<ContainerName>) -> Option<&ContainerStatus> {
        self.containers.get(container.into().as_str()).filter(|status| !status.foreign)
    }

    /// True if a container of another program has the name.
    #[must_use]
    pub fn is_foreign(&self, container: impl Into<ContainerName>) -> bool {
        self.containers.get(container.into().as_str()).is_some_and(|status| status.foreign)
    }

    /// True if the service's own container runs.
    #[must_use]
    pub fn runs(&self, container: impl Into<ContainerName>) -> bool {
        self.own_container(container).is_some_and(|status| status.running)
    }

    /// True if the configured volume has the data of a member, as far as is known.
    #[must_use]
    pub fn has_data(&self) -> bool {
        self.etcd_data && self.etcd_empty != Some(true)
    }
}

/// The state of a container.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ContainerStatus {
    /// False for a container that exists and is stopped.
    pub running: bool,
    /// Name of its image.
    pub image: String,
    /// Built-in parameters in its label.
    pub builtin: ServiceParams,
    /// Added parameters in its label.
    pub extra: ServiceParams,
    /// The container has no label of CKE.
    pub foreign: bool,
    /// Time of its last start; `None` if unknown.
    pub started_at: Option<OffsetDateTime>,
}

/// An answer of etcd.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EtcdStatus {
    /// etcd granted a lease.
    pub healthy: bool,
    /// Voting members and learners, as etcd lists them.
    pub members: Vec<EtcdMember>,
}

impl EtcdStatus {
    /// The members with a vote.
    pub fn voting(&self) -> impl Iterator<Item = &EtcdMember> {
        self.members.iter().filter(|member| !member.learner)
    }

    /// True if a majority of the voting members is known to be in sync.
    #[must_use]
    pub fn has_majority(&self) -> bool {
        self.voting().filter(|member| member.is_in_sync()).count() * 2 > self.voting().count()
    }
}

/// A member as etcd lists it, with the state of its own answers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EtcdMember {
    /// The number that etcd gave the member; it is unique in the cluster.
    pub id: u64,
    /// Name; empty until the member has started.
    pub name: String,
    /// URLs for other members.
    pub peer_urls: Vec<String>,
    /// The member has no vote yet.
    pub learner: bool,
    /// The member answers with the newest revision; `None` if unknown.
    pub in_sync: Option<bool>,
    /// Version of its program; `None` if unknown.
    pub version: Option<EtcdVersion>,
}

impl EtcdMember {
    /// True if the member is known to be in sync.
    #[must_use]
    pub fn is_in_sync(&self) -> bool {
        self.in_sync == Some(true)
    }

    /// The address of its node: its name, or for a member that has not started the host of its first peer URL. A
    /// member without both has only its id.
    #[must_use]
    pub fn address(&self) -> Cow<'_, str> {
        if !self.name.is_empty() {
            return Cow::Borrowed(&self.name);
        }
        match self.peer_urls.first().and_then(|url| host_of_url(url)) {
            Some(host) => Cow::Borrowed(host),
            None => Cow::Owned(self.id.to_string()),
        }
    }
}

/// The host of a URL with a port.
fn host_of_url(url: &str) -> Option<&str> {
    let (_, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let (host, _) = authority.rsplit_once(':')?;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    (!host.is_empty()).then_some(host)
}

/// The newest record of a bootstrap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bootstrap {
    /// The bootstrap is complete only with `completed`.
    pub status: RecordStatus,
    /// Addresses of the nodes that get the first members.
    pub targets: Vec<String>,
}

/// A version of etcd, such as 3.5.15. A suffix after the numbers does not count.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct EtcdVersion(Vec<u64>);

impl FromStr for EtcdVersion {
    type Err = NoVersion;

    fn from_str(text: &str) -> Result<Self, NoVersion> {
        let numbers = text.split(['-', '+']).next().unwrap_or_default();
        let numbers = numbers.split('.').map(str::parse).collect::<Result<Vec<u64>, _>>();
        numbers.map(Self).map_err(|_| NoVersion(shorten_name(text)))
    }
}

/// A text that is not a version, shortened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a version of etcd: expected one such as 3.5.15")]
pub struct NoVersion(String);

impl fmt::Display for EtcdVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<String> = self.0.iter().map(u64::to_string).collect();
        f.write_str(&numbers.join("."))
    }
}

#[cfg(test)]
mod tests;
