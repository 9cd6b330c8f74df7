//! Operations on Kubernetes' containers that wait, with their reasons.

use std::fmt;

use madako_domain::record::whole_second;
use madako_domain::skew::Skew;
use madako_json::named;
use time::OffsetDateTime;

use super::operation::KubernetesOperationName;

/// An operation that is due and does not begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KubernetesHeld {
    pub what: KubernetesOperationName,
    pub reason: KubernetesBlockedBy,
    /// Addresses of the nodes that wait.
    pub targets: Vec<String>,
}

/// The reason for which an operation does not begin.
#[derive(Debug, Clone, PartialEq, Eq, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case")]
pub enum KubernetesBlockedBy {
    Unreachable,
    BackingOff,
    /// The component ended soon after each of its last starts.
    EndsAfterStart,
    /// Another program has a container of that name.
    ForeignContainer,
    /// A kubelet runs with another container runtime than the configured one.
    OtherRuntime {
        has: String,
        wanted: String,
    },
    /// Clients need another API server meanwhile.
    ApiServersUnhealthy {
        /// Addresses of the nodes whose API servers are not known to be healthy.
        nodes: Vec<String>,
    },
    /// These API servers did not pass their health checks in time after a restart.
    ApiServersFailed {
        nodes: Vec<String>,
    },
    /// These API servers are healthy for too short a time: rivers take a server back only at their next check.
    ApiServersNew {
        nodes: Vec<String>,
    },
    /// No component may be newer than the oldest API server.
    ApiServersFirst {
        nodes: Vec<String>,
    },
    /// The wanted image makes versions that the policy of Kubernetes forbids (invariant I14).
    VersionSkew {
        skew: Skew,
    },
    /// The API server ended for the reboot of its node.
    Reboots,
    /// Not all members of etcd are in sync.
    EtcdNotInSync,
    /// Control plane nodes drain, reboot or are repaired (invariant I8).
    ControlPlaneBusy {
        nodes: Vec<String>,
    },
    /// One of its kind restarts after the other: these are not known to be healthy, or come first.
    OneByOne {
        nodes: Vec<String>,
    },
    /// The nodes wait for a later wave.
    Wave,
    /// The nodes of the present wave are not Ready for long enough.
    WaveWatched {
        nodes: Vec<String>,
        /// The reason for which the restarted containers of one of them are not known.
        unchecked: Option<String>,
    },
    /// Too many nodes failed after their restart.
    RollHalted {
        nodes: Vec<String>,
    },
    /// An operator paused the roll.
    RollPaused,
    /// The state of the roll cannot be read: it may be paused or halted.
    RollUnreadable {
        why: String,
    },
    /// The kubelet gets another minor version, and its node is drained first.
    DrainedFirst,
    /// As before, and the last drain was given up.
    DrainAborted {
        why: String,
        /// End of the back-off.
        until: Option<OffsetDateTime>,
    },
    /// The kubelet gets another minor version when its node boots.
    NextBoot,
    /// The encryption keys change only while each API server has the keys of the step before and is healthy for a while.
    EarlierEncryptionKeys {
        nodes: Vec<String>,
    },
    /// The state of the rotation of the encryption key cannot be read.
    RotationUnreadable {
        why: String,
    },
    /// `kubernetes.mode` is `observe`.
    Observed,
    /// The options of the cluster for Kubernetes cannot be used.
    UnusableOptions {
        why: String,
    },
}

named!(KubernetesBlockedBy);

impl fmt::Display for KubernetesBlockedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable => {
                f.write_str("these nodes do not answer, or their container engine does not work")
            }
            Self::BackingOff => f.write_str("the last command failed a short time ago"),
            Self::EndsAfterStart => f.write_str(
                "the component ended within a minute of its last start: docker logs shows its last words. The next start comes \
                 after a pause of up to ten minutes, or with another configuration or image",
            ),
            Self::ForeignContainer => {
                f.write_str("another program made the container on these nodes: remove or rename it")
            }
            Self::OtherRuntime { has, wanted } => write!(
                f,
                "the kubelet runs with the container runtime {has:?}, and {wanted:?} is configured: drain and reboot the \
                 node to change it"
            ),
            Self::ApiServersUnhealthy { nodes } => {
                write!(f, "the API servers of these nodes are not known to be healthy: {}", nodes.join(", "))
            }
            Self::ApiServersFailed { nodes } => write!(
                f,
                "the API servers of these nodes did not pass their health checks within five minutes of a start: {}. Correct \
                 the argument or the image, or run madako kube resume",
                nodes.join(", ")
            ),
            Self::ApiServersNew { nodes } => {
                write!(
                    f,
                    "the API servers of these nodes are healthy for too short a time: {}",
                    nodes.join(", ")
                )
            }
            Self::ApiServersFirst { nodes } => {
                write!(
                    f,
                    "the API servers of these nodes have another image or minor version: {}",
                    nodes.join(", ")
                )
            }
            Self::VersionSkew { skew } => write!(f, "I14: {skew}"),
            Self::Reboots => f.write_str("the API server ended because its node reboots"),
            Self::EtcdNotInSync => f.write_str("not all members of etcd are in sync"),
            Self::ControlPlaneBusy { nodes } => {
                write!(f, "these control plane nodes drain, reboot or are repaired: {}", nodes.join(", "))
            }
            Self::OneByOne { nodes } => {
                write!(f, "these come first, or are not known to be healthy: {}", nodes.join(", "))
            }
            Self::Wave => f.write_str("these nodes wait for a later wave"),
            Self::WaveWatched { nodes, unchecked } => {
                write!(f, "these nodes restarted, and are not Ready for long enough: {}", nodes.join(", "))?;
                match unchecked {
                    Some(why) => write!(f, "; no API server told whether containers restarted with them: {why}"),
                    None => Ok(()),
                }
            }
            Self::RollHalted { nodes } => write!(
                f,
                "too many nodes failed after their restart: {}. Repair them, or set another image or argument, then run \
                 madako kube resume",
                nodes.join(", ")
            ),
            Self::RollPaused => f.write_str("an operator paused it: run madako kube resume"),
            Self::RollUnreadable { why } => write!(
                f,
                "the key madako/kubernetes/rollout cannot be read ({why}): delete it, and the roll begins with one node"
            ),
            Self::DrainedFirst => f.write_str(
                "the kubelet gets another minor version, so the node is drained first (madako reboot-queue explain shows the \
                 next action)",
            ),
            Self::DrainAborted { why, until } => {
                write!(f, "the kubelet gets another minor version, and the drain before it was given up: {why}")?;
                match until {
                    Some(until) => write!(f, "; the next attempt is at {}", whole_second(*until)),
                    None => Ok(()),
                }
            }
            Self::NextBoot => f.write_str(
                "the kubelet gets another minor version when the node boots, by kubernetes.minor_upgrade or by an entry of the \
                 reboot queue",
            ),
            Self::EarlierEncryptionKeys { nodes } => write!(
                f,
                "the API servers of these nodes have other encryption keys, or are not known to be healthy for long enough: {}",
                nodes.join(", ")
            ),
            Self::RotationUnreadable { why } => write!(
                f,
                "the key madako/kubernetes/encryption-rotation cannot be read ({why}): delete it, and run \
                 madako kube rotate-encryption-key again"
            ),
            Self::Observed => {
                f.write_str("kubernetes.mode is observe, so Madako leaves it to CKE or to an operator")
            }
            Self::UnusableOptions { why } => {
                write!(f, "the field options of the cluster cannot be used for Kubernetes: {why}")
            }
        }
    }
}
