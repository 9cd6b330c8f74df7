//! The next action of each entry, its time, and its obstacle: as data, and as sentences.

use std::fmt;

use madako_domain::record::format_time;
use madako_json::named;
use serde::{Deserialize, Serialize};
use strum::{IntoStaticStr, VariantNames};
use time::OffsetDateTime;

use crate::limits::MAX_SHOWN;

#[derive(Debug, Clone, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum Action {
    Remove(Removal),
    Drain,
    /// The drain is aborted, and tried again after a pause.
    BackOff(AbortReason),
    /// The pods of `OnDelete` DaemonSets are deleted, and the reboot command runs.
    Reboot,
    /// The boot check decides.
    AwaitBoot,
    /// The node is empty: the operation runner updates its kubelet.
    LeaveToUpdate,
    /// The operation runner updates the kubelet, and removes the entry.
    AwaitUpdate,
}

/// The reason why an entry is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removal {
    Cancelled,
    /// The node left the cluster.
    Left,
    Booted,
    /// No operation updates the kubelet of a node that is drained for this.
    NoUpdate,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AbortReason {
    Timeout {
        /// The last pod or error that the drain waited for.
        waits: Option<String>,
    },
    /// A dry run or an eviction was refused, or a request failed.
    Impossible { why: String },
    /// The kubelet of an unreachable node ends no pod.
    Unreachable { pod: String },
    /// Another control plane node is drained, reboots or is repaired.
    ControlPlane { address: String },
    /// The kubelet of a drained node was not updated in time.
    NotUpdated,
}

/// Reason that the next action is not performed now.
#[derive(Debug, Clone, PartialEq, Eq, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "kebab-case")]
pub enum BlockedBy {
    Disabled,
    NoCluster,
    #[strum(serialize = "unusable-configuration")]
    Unusable {
        why: String,
    },
    /// The configuration lacks `reboot_command` or `boot_check_command`.
    NoCommand {
        field: &'static str,
    },
    SameNode {
        index: i64,
    },
    BackOff {
        until: OffsetDateTime,
        count: u32,
    },
    /// A control plane node is drained, reboots or is repaired.
    ControlPlaneBusy {
        address: String,
    },
    /// A control plane node comes after the workers.
    WorkersFirst {
        index: i64,
    },
    Slots {
        maximum: u32,
    },
    /// Workers that did not boot in time hold the queue.
    Stuck {
        indexes: Vec<i64>,
    },
    RepairsFirst {
        index: i64,
    },
    /// The node itself is repaired.
    Repaired {
        index: i64,
    },
    OperationDue,
    /// Another command runs.
    CommandRuns {
        record: i64,
    },
    EtcdNotGood {
        why: String,
    },
    /// Invariant I13: every other API server must be healthy.
    ApiNotAvailable {
        violation: String,
    },
    TooManyUnreachable {
        nodes: Vec<String>,
        maximum: usize,
    },
    NoKubernetes,
    /// This instance runs no commands.
    NoHost,
    Draining {
        until: OffsetDateTime,
        waits: Option<String>,
    },
    /// The node boots; afterwards its slot is free.
    Booting {
        until: OffsetDateTime,
    },
    /// The kubelet of a drained node is updated; afterwards the drain is given up.
    Updating {
        until: OffsetDateTime,
    },
    /// The node did not boot in time.
    BootOverdue {
        since: OffsetDateTime,
        /// A control plane node keeps its slot (invariant I8).
        keeps_slot: bool,
    },
}

named!(Action, BlockedBy names);

impl BlockedBy {
    /// True for an obstacle of every reboot's normal course.
    #[must_use]
    pub fn is_ordinary(&self) -> bool {
        matches!(
            self,
            Self::Draining { .. }
                | Self::Booting { .. }
                | Self::Updating { .. }
                | Self::CommandRuns { .. }
                | Self::SameNode { .. }
        )
    }

    /// Time at which the obstacle disappears by itself, if known.
    #[must_use]
    pub fn until(&self) -> Option<OffsetDateTime> {
        match self {
            Self::BackOff { until, .. }
            | Self::Draining { until, .. }
            | Self::Booting { until }
            | Self::Updating { until } => Some(*until),
            _ => None,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NextAction {
    pub index: i64,
    /// Address of the node.
    pub node: String,
    pub action: Action,
    /// `None`: the action is due now.
    pub blocked_by: Option<BlockedBy>,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Remove(Removal::Cancelled) => f.write_str("the cancelled entry is removed"),
            Self::Remove(Removal::Left) => f.write_str("the entry is removed: the node left the cluster"),
            Self::Remove(Removal::NoUpdate) => {
                f.write_str("the entry is removed: operations do not update the kubelet at present")
            }
            Self::Remove(Removal::Booted) => f.write_str("the entry is removed: the node has booted"),
            Self::Drain => f.write_str("the node is drained"),
            Self::BackOff(why) => write!(f, "the drain is aborted, and tried again later: {why}"),
            Self::Reboot => f.write_str("the node reboots"),
            Self::AwaitBoot => f.write_str("the entry is removed when the node has booted"),
            Self::LeaveToUpdate => f.write_str("the kubelet of the drained node is updated"),
            Self::AwaitUpdate => f.write_str("the entry is removed when the kubelet is updated"),
        }
    }
}

impl fmt::Display for AbortReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Timeout { waits: Some(waits) } => write!(f, "draining timed out: {waits}"),
            Self::Timeout { waits: None } => f.write_str("draining timed out"),
            Self::Impossible { why } => f.write_str(why),
            Self::Unreachable { pod } => {
                write!(
                    f,
                    "the node is unreachable, so the pod {pod} does not end; repair the node, or delete the pod"
                )
            }
            Self::ControlPlane { address } => {
                write!(f, "the control plane node {address} is drained, reboots or is repaired")
            }
            Self::NotUpdated => f.write_str("the kubelet of the drained node was not updated in time"),
        }
    }
}

impl fmt::Display for BlockedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disabled => f.write_str("the reboot queue is disabled (madako reboot-queue enable)"),
            Self::NoCluster => f.write_str("there is no cluster configuration"),
            Self::Unusable { why } => f.write_str(why),
            Self::NoCommand { field } => write!(f, "the cluster configuration has no reboot.{field}"),
            Self::SameNode { index } => write!(f, "entry {index} of the same node comes first"),
            Self::BackOff { until, count } => {
                let times = if *count == 1 { "once".to_owned() } else { format!("{count} times") };
                write!(f, "draining was aborted {times}; the next attempt is at {}", format_time(*until))
            }
            Self::ControlPlaneBusy { address } => {
                write!(f, "the control plane node {address} is drained, reboots or is repaired")
            }
            Self::WorkersFirst { index } => write!(f, "workers come first, such as that of entry {index}"),
            Self::Slots { maximum } => {
                write!(f, "all {maximum} reboots that max_concurrent_reboots allows are under way")
            }
            Self::Stuck { indexes } => write!(
                f,
                "the nodes of the entries {} did not boot in time: repair them or cancel their entries, or let the \
                 queue go on without them (madako reboot-queue release)",
                join_shortened(indexes.iter())
            ),
            Self::RepairsFirst { index } => {
                write!(f, "repairs come first (entry {index} of the repair queue)")
            }
            Self::Repaired { index } => write!(f, "entry {index} of the repair queue repairs the node"),
            Self::OperationDue => f.write_str("an operation on nodes goes first (madako ops shows it)"),
            Self::CommandRuns { record } => {
                write!(f, "the command of record {record} runs (madako history shows it)")
            }
            Self::EtcdNotGood { why } => write!(f, "etcd is not in good health: {why}"),
            Self::ApiNotAvailable { violation } => f.write_str(violation),
            Self::TooManyUnreachable { nodes, maximum } => write!(
                f,
                "{} other nodes are unreachable, and maximum-unreachable-nodes-for-reboot is {maximum}: {}",
                nodes.len(),
                join_shortened(nodes.iter())
            ),
            Self::NoKubernetes => f.write_str(
                "the node must be drained, but the configuration of the service has no access to Kubernetes",
            ),
            Self::NoHost => f.write_str("this instance runs no commands"),
            Self::Draining { until, waits } => {
                f.write_str("the node is being drained")?;
                if let Some(waits) = waits {
                    write!(f, ": {waits}")?;
                }
                write!(f, "; the drain ends at {} at the latest", format_time(*until))
            }
            Self::Booting { until } => {
                write!(f, "the node boots; it is overdue after {}", format_time(*until))
            }
            Self::Updating { until } => write!(
                f,
                "an operation updates the kubelet (madako ops shows it); the drain is given up after {}",
                format_time(*until)
            ),
            Self::BootOverdue { since, keeps_slot } => {
                write!(f, "the node has not booted since {}", format_time(*since))?;
                match keeps_slot {
                    true => f.write_str("; a control plane node keeps the queue waiting"),
                    false => f.write_str("; its slot is free"),
                }
            }
        }
    }
}

pub(crate) fn join_shortened<T: fmt::Display>(items: impl ExactSizeIterator<Item = T>) -> String {
    let count = items.len();
    let shown: Vec<String> = items.take(MAX_SHOWN).map(|item| item.to_string()).collect();
    let more = count - shown.len();
    if more == 0 { shown.join(", ") } else { format!("{} and {more} more", shown.join(", ")) }
}

/// The machine-readable form of a next action.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explained {
    pub index: i64,
    pub node: String,
    /// Name of the next action.
    pub next: String,
    pub what: String,
    /// Time at which the obstacle ends, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub obstacle: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The obstacle is not part of every reboot's normal course.
    pub is_held: bool,
}

impl From<&NextAction> for Explained {
    fn from(next: &NextAction) -> Self {
        Self {
            index: next.index,
            node: next.node.clone(),
            next: next.action.name().to_owned(),
            what: next.action.to_string(),
            at: next.blocked_by.as_ref().and_then(BlockedBy::until).map(format_time),
            obstacle: next.blocked_by.as_ref().map(|blocked_by| blocked_by.name().to_owned()),
            why: next.blocked_by.as_ref().map(ToString::to_string),
            is_held: next.blocked_by.as_ref().is_some_and(|blocked_by| !blocked_by.is_ordinary()),
        }
    }
}
