//! Operations on nodes and etcd that are due and do not begin, with the reason of each.

use std::fmt;

use madako_domain::containers::ContainerName;
use madako_domain::images::ImageName;
use madako_domain::node_status::EtcdVersion;
use madako_json::named;
use serde::ser::SerializeStruct as _;
use serde::{Serialize, Serializer};
use strum::VariantNames as _;

use crate::kubernetes::held::{KubernetesBlockedBy, KubernetesHeld};
use crate::kubernetes::objects::decide::ObjectBlockedBy;
use crate::operation::OperationName;

/// An operation that is due and does not begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    pub what: OperationName,
    pub reason: BlockedBy,
    /// The nodes or members that the reason concerns. For the state of the whole cluster of etcd, these are the targets
    /// of the operation.
    pub targets: Vec<String>,
}

/// The reason for which an operation does not begin.
#[derive(Debug, Clone, PartialEq, Eq, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case")]
pub enum BlockedBy {
    Unreachable,
    /// The last command on the node, or of an operation without nodes, failed a short time ago.
    BackingOff,
    /// No certificate can be issued at present.
    Authorities {
        why: String,
    },
    /// The image of the operation is not known.
    UnclearImage {
        image: ImageName,
        why: String,
    },
    /// Another program has a container of that name.
    ForeignContainer {
        container: ContainerName,
    },
    /// Invariant I2.
    Quorum {
        violation: String,
        /// Members that would restore the majority.
        needed: Vec<String>,
    },
    NotInSync {
        members: Vec<String>,
    },
    /// etcd would stop during a restart.
    FewMembers {
        members: usize,
        /// The node whose member is due.
        target: String,
    },
    /// There are data in another volume than the configured one.
    VolumeChanged {
        volume: String,
    },
    OlderImage {
        image: EtcdVersion,
        running: EtcdVersion,
    },
    /// A restore that the leader does not carry out.
    RestoreRefused {
        why: String,
    },
    UnclearBootstrap {
        unclear: DataContradiction,
        /// The data, mark and container of each control plane node, as text.
        nodes: Vec<String>,
    },
    /// A reason that only operations on Kubernetes have.
    #[strum(transparent)]
    Kubernetes(KubernetesBlockedBy),
    /// A reason that only operations on objects have.
    #[strum(transparent)]
    Object(ObjectBlockedBy),
}

/// A contradiction between the record of a bootstrap and the data on the nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DataContradiction {
    /// The bootstrap was completed, and no control plane node has data.
    CompletedWithoutData,
    /// There are data without a mark, and no record of a bootstrap.
    DataWithoutMark,
    /// Nodes outside of the bootstrap have data.
    DataElsewhere(Vec<String>),
    /// Targets of an interrupted bootstrap are not control plane nodes any more.
    TargetsLeft(Vec<String>),
    /// The data of targets are gone after others began to use theirs.
    DataGone(Vec<String>),
}

named!(BlockedBy);

impl BlockedBy {
    /// The names of all reasons, each once.
    pub fn names() -> impl Iterator<Item = &'static str> {
        let own = || Self::VARIANTS.iter().copied().filter(|name| !["kubernetes", "object"].contains(name));
        let others = KubernetesBlockedBy::VARIANTS.iter().copied().chain(ObjectBlockedBy::names());
        own().chain(others.filter(move |name| own().all(|known| known != *name)))
    }
}

impl From<KubernetesHeld> for Held {
    fn from(KubernetesHeld { what, reason, targets }: KubernetesHeld) -> Self {
        let reason = match reason {
            KubernetesBlockedBy::Unreachable => BlockedBy::Unreachable,
            KubernetesBlockedBy::BackingOff => BlockedBy::BackingOff,
            KubernetesBlockedBy::ForeignContainer => {
                BlockedBy::ForeignContainer { container: what.component().into() }
            }
            other => BlockedBy::Kubernetes(other),
        };
        Self { what: OperationName::Kubernetes(what), reason, targets }
    }
}

impl fmt::Display for BlockedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable => {
                f.write_str("these nodes do not answer, or their container engine does not work")
            }
            Self::BackingOff => f.write_str("the last command failed a short time ago"),
            Self::Authorities { why } => write!(f, "no certificate can be issued at present: {why}"),
            Self::UnclearImage { image, why } => {
                write!(f, "the image {image} is not known ({why}): run madako images set {image}=IMAGE")
            }
            Self::ForeignContainer { container } => {
                write!(
                    f,
                    "another program made the container {container} on these nodes: remove or rename it"
                )
            }
            Self::Quorum { violation, needed } => {
                write!(f, "{violation}")?;
                if needed.is_empty() {
                    Ok(())
                } else {
                    write!(f, "; these would help: {}", needed.join(", "))
                }
            }
            Self::NotInSync { members } => write!(f, "these members are not in sync: {}", members.join(", ")),
            Self::FewMembers { members, target } => write!(
                f,
                "etcd has {members} voting member{} and would stop during a restart: when that is acceptable, run \
                 madako etcd restart {target}",
                if *members == 1 { "" } else { "s" }
            ),
            Self::VolumeChanged { volume } => write!(
                f,
                "options.etcd.volume_name is {volume}, and these nodes have data in another volume: set the old name"
            ),
            Self::OlderImage { image, running } => {
                write!(
                    f,
                    "the image has etcd {image}, and a member runs {running}: configure an image that is not older"
                )
            }
            Self::RestoreRefused { why } => {
                write!(f, "{why}: when the reason is gone, run madako etcd restore again")
            }
            Self::Kubernetes(reason) => reason.fmt(f),
            Self::Object(reason) => reason.fmt(f),
            Self::UnclearBootstrap { unclear, nodes } => write!(f, "{unclear}. Found: {}", nodes.join("; ")),
        }
    }
}

impl fmt::Display for DataContradiction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CompletedWithoutData => f.write_str(
                "etcd was bootstrapped, and no control plane node has its data: bring back a node with data, or restore \
                 a backup",
            ),
            Self::DataWithoutMark => f.write_str(
                "there are data without a mark, and no record of a bootstrap: remove the volumes if they are old, or \
                 create the volume etcd-added-member on each node whose data are a member's",
            ),
            Self::DataElsewhere(nodes) => write!(
                f,
                "{} have data of etcd and do not belong to this bootstrap: remove their volumes if they are old",
                nodes.join(", ")
            ),
            Self::TargetsLeft(nodes) => write!(
                f,
                "a bootstrap was interrupted, and {} are not control plane nodes any more: add them again, or remove the \
                 volumes of all its nodes",
                nodes.join(", ")
            ),
            Self::DataGone(nodes) => write!(
                f,
                "a bootstrap was interrupted, and the data of {} are gone: remove the volumes of all its nodes",
                nodes.join(", ")
            ),
        }
    }
}

impl Serialize for Held {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("Held", 3)?;
        fields.serialize_field("what", &self.what)?;
        fields.serialize_field("reason", self.reason.name())?;
        fields.serialize_field("targets", &self.targets)?;
        fields.end()
    }
}
