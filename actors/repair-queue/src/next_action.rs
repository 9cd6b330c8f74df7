//! The next action of each entry of the repair queue, with its time and its obstacle, as data and as sentences.

use std::fmt;

use madako_domain::keys;
use madako_domain::record::format_time;
use madako_domain::repair::config::MissingConfig;
use madako_json::named;
use serde::Serialize;
use strum::{IntoStaticStr, VariantNames};
use time::OffsetDateTime;

#[derive(Debug, Clone, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum Action {
    /// The entry ended, and stays until it is deleted.
    Nothing,
    Remove,
    /// An older state was written over the entry: the newer one is restored.
    Restore,
    /// The machine is healthy: the entry ends as succeeded.
    Succeed {
        /// The success command runs first.
        command: bool,
    },
    Fail(Failure),
    Drain {
        step: u32,
    },
    /// The drain under way is given up.
    #[strum(serialize = "abandon-drain")]
    Abandon(Abandoned),
    Execute {
        step: u32,
    },
}

/// Reason that an entry fails without a failed command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// Every step was tried, or the configuration has fewer steps than before.
    NoStepLeft {
        step: u32,
    },
    NoCommand {
        step: u32,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Abandoned {
    Disabled,
    Held {
        rack: String,
    },
    /// The entry's operation is no longer configured.
    Missing(MissingConfig),
    Unusable {
        why: String,
    },
    /// Work on another control plane node is under way.
    ApiServer {
        address: String,
    },
    /// Another entry for the same machine has progressed further.
    SameMachine {
        index: i64,
    },
    Timeout {
        /// The last pod or error that the drain waited for.
        waits: Option<String>,
    },
    Impossible {
        why: String,
    },
}

/// Reason that the next action is not performed now.
#[derive(Debug, Clone, PartialEq, Eq, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "kebab-case")]
pub enum BlockedBy {
    Disabled,
    #[strum(serialize = "rack-held")]
    Held {
        rack: String,
    },
    /// The hold of the machine's rack cannot be read: the rack counts as held.
    HoldUnreadable {
        rack: String,
    },
    /// A rack is held, and the machine's rack is not known yet.
    RackUnknown,
    /// The entry's operation is not configured.
    Missing(MissingConfig),
    #[strum(serialize = "unusable-configuration")]
    Unusable {
        why: String,
    },
    /// Without a cluster there is no configuration.
    NoCluster,
    /// A drain was given up, and is retried after a pause.
    BackOff {
        until: OffsetDateTime,
        /// Number of drains given up.
        count: u32,
        /// Reason of the last one.
        why: Option<String>,
    },
    SameMachine {
        index: i64,
    },
    Slots {
        maximum: u32,
    },
    ApiServerRepaired {
        address: String,
    },
    ApiServerRebooted {
        address: String,
    },
    /// The reboot queue drains the node, and a node has one drain at a time.
    RebootDrains,
    /// Invariant I2 or I13: the members of etcd and the API servers on the other control plane nodes must be in order.
    Quorum {
        violation: String,
    },
    /// An operation on nodes goes before the command.
    OperationDue,
    CommandRuns {
        record: i64,
    },
    SuccessCommandRuns {
        record: i64,
    },
    /// The step needs a drain, and Kubernetes is not configured.
    NoKubernetes,
    /// This instance does not run commands.
    NoHost,
    /// A health check must answer first.
    HealthUnknown,
    /// The registry's first answer to this leader may show that the machine's rack failed.
    ReportsAwaited {
        until: OffsetDateTime,
    },
    Draining {
        until: OffsetDateTime,
        waits: Option<String>,
    },
    /// The machine's health is watched after a command.
    Watching {
        until: OffsetDateTime,
    },
    /// The counter of operation records cannot be read; no action is allowed without a record.
    NoRecords,
    /// The data kept for the entry cannot be read.
    KeptUnreadable {
        key: String,
    },
}

named!(Action, BlockedBy names);

impl BlockedBy {
    /// Time at which the obstacle disappears by itself, if known.
    #[must_use]
    pub fn until(&self) -> Option<OffsetDateTime> {
        match self {
            Self::BackOff { until, .. }
            | Self::Draining { until, .. }
            | Self::Watching { until }
            | Self::ReportsAwaited { until } => Some(*until),
            _ => None,
        }
    }

    /// True if the obstacle is part of every repair, and needs no event.
    #[must_use]
    pub fn is_part_of_every_repair(&self) -> bool {
        matches!(
            self,
            Self::HealthUnknown
                | Self::Draining { .. }
                | Self::Watching { .. }
                | Self::CommandRuns { .. }
                | Self::SuccessCommandRuns { .. }
                | Self::ReportsAwaited { .. }
        )
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NextAction {
    pub index: i64,
    pub address: String,
    pub action: Action,
    /// `None`: the action is due now.
    pub blocked_by: Option<BlockedBy>,
}

impl NextAction {
    #[must_use]
    pub fn due(&self) -> Option<&Action> {
        (self.blocked_by.is_none() && self.action != Action::Nothing).then_some(&self.action)
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("nothing; the entry stays until an operator deletes it"),
            Self::Remove => f.write_str("the entry is removed"),
            Self::Restore => f.write_str("the entry returns to its latest state"),
            Self::Succeed { command: true } => {
                f.write_str("the success command runs, and the entry succeeds")
            }
            Self::Succeed { command: false } => f.write_str("the entry succeeds"),
            Self::Fail(why) => write!(f, "the entry fails: {why}"),
            Self::Drain { step } => write!(f, "the node is drained for step {step}"),
            Self::Abandon(why) => write!(f, "the drain is abandoned: {why}"),
            Self::Execute { step } => write!(f, "the command of step {step} is run"),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoStepLeft { step: 0 } => f.write_str("the operation has no steps"),
            Self::NoStepLeft { step } => {
                write!(f, "the machine is not healthy, and there is no step {step}")
            }
            Self::NoCommand { step } => write!(f, "step {step} has no command"),
        }
    }
}

impl fmt::Display for Abandoned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disabled => f.write_str("the repair queue was disabled"),
            Self::Held { rack } => write!(f, "the rack {rack} is held"),
            Self::Missing(missing) => missing.fmt(f),
            Self::Unusable { why } => f.write_str(why),
            Self::ApiServer { address } => {
                write!(f, "the control plane node {address} is drained, rebooting or under repair")
            }
            Self::SameMachine { index } => write!(f, "entry {index} repairs the same machine"),
            Self::Timeout { waits: Some(waits) } => write!(f, "draining timed out: {waits}"),
            Self::Timeout { waits: None } => f.write_str("draining timed out"),
            Self::Impossible { why } => f.write_str(why),
        }
    }
}

impl fmt::Display for BlockedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disabled => f.write_str("the repair queue is disabled"),
            Self::Held { rack } => write!(
                f,
                "the rack {rack} is held; its recovery or madako repair-queue release {rack} ends the hold"
            ),
            Self::HoldUnreadable { rack } => write!(
                f,
                "the hold of the rack {rack} ({}) cannot be read, so the rack counts as held; madako \
                 repair-queue release {rack} removes the hold",
                keys::repair_hold_key(rack)
            ),
            Self::RackUnknown => f.write_str(
                "a rack is held, and the rack of the machine is unknown: no node or report names it, and \
                 sabakan has not listed all machines yet; sabakan's answer or madako repair-queue release of \
                 the held racks ends that",
            ),
            Self::Missing(missing) => missing.fmt(f),
            Self::Unusable { why } => f.write_str(why),
            Self::NoCluster => f.write_str("there is no cluster configuration"),
            Self::BackOff { until, count, why } => {
                let times = if *count == 1 { "once".to_owned() } else { format!("{count} times") };
                write!(f, "draining was abandoned {times}")?;
                if let Some(why) = why {
                    write!(f, ", last because {why}")?;
                }
                write!(f, "; the next attempt is at {}", format_time(*until))
            }
            Self::SameMachine { index } => write!(f, "entry {index} repairs the same machine"),
            Self::Slots { maximum } => {
                write!(f, "all {maximum} repairs that max_concurrent_repairs allows are under way")
            }
            Self::ApiServerRepaired { address } => {
                write!(f, "the control plane node {address} is being repaired")
            }
            Self::ApiServerRebooted { address } => {
                write!(f, "the control plane node {address} is being rebooted")
            }
            Self::RebootDrains => f.write_str("the reboot queue drains the node"),
            Self::Quorum { violation } => f.write_str(violation),
            Self::OperationDue => f.write_str("an operation on nodes goes first (madako ops shows it)"),
            Self::CommandRuns { record } => write!(f, "the command of operation {record} runs"),
            Self::SuccessCommandRuns { record } => {
                write!(f, "the success command of this entry runs (operation {record})")
            }
            Self::NoKubernetes => f.write_str(
                "the node must be drained, but the configuration of the service has no access to Kubernetes",
            ),
            Self::NoHost => f.write_str("this instance runs no commands"),
            Self::HealthUnknown => f.write_str("the health check of the machine runs first"),
            Self::Draining { until, waits } => {
                f.write_str("the node is being drained")?;
                if let Some(waits) = waits {
                    write!(f, ": {waits}")?;
                }
                write!(f, "; the drain ends at {} at the latest", format_time(*until))
            }
            Self::Watching { until } => {
                write!(f, "the machine's health is watched until {}", format_time(*until))
            }
            Self::ReportsAwaited { until } => {
                write!(
                    f,
                    "the registry must first report the failed racks; the entry waits for the report until \
                     {}",
                    format_time(*until)
                )
            }
            Self::KeptUnreadable { key } => write!(
                f,
                "the data of the entry beside the queue ({key}) cannot be read, so an untracked command may \
                 have run: delete the entry; if you know that none ran, delete only the key"
            ),
            Self::NoRecords => f.write_str("the counter of operation records (records) cannot be read"),
        }
    }
}

/// Value of [`Explained::health`] where the decision depends on it.
pub const UNKNOWN_HEALTH: &str = "unknown";

/// The machine-readable form of a next action.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Explained {
    pub index: i64,
    pub address: String,
    /// [`UNKNOWN_HEALTH`] where health decides the next action: only the leader has the answers of health checks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub health: Option<&'static str>,
    /// Name of the next action unless the machine is healthy.
    pub next: &'static str,
    pub what: String,
    /// Time of the action, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub obstacle: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The obstacle is not part of every repair's normal course.
    #[serde(skip)]
    pub is_held: bool,
}

impl From<&NextAction> for Explained {
    fn from(next: &NextAction) -> Self {
        Self {
            index: next.index,
            address: next.address.clone(),
            health: None,
            next: next.action.name(),
            what: next.action.to_string(),
            at: next.blocked_by.as_ref().and_then(BlockedBy::until).map(format_time),
            obstacle: next.blocked_by.as_ref().map(BlockedBy::name),
            why: next.blocked_by.as_ref().map(ToString::to_string),
            is_held: next.blocked_by.as_ref().is_some_and(|blocked_by| !blocked_by.is_part_of_every_repair()),
        }
    }
}
