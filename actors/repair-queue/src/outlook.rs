//! What comes next for each entry, when, and what stands in the way: as data, with a sentence for people.

use std::fmt;

use madako_domain::keys;
use madako_domain::repair::config::Missing;
use serde::Serialize;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// What is done next with an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// Nothing: it ended, and stays until somebody deletes it.
    Nothing,
    /// It is removed, as somebody asked for.
    Remove,
    /// It is put back to what it was before somebody wrote an older state over it.
    Restore,
    /// Its machine became healthy: it ends as succeeded.
    Succeed {
        /// Whether the success command runs first.
        command: bool,
    },
    /// It ends as failed.
    Fail(Failure),
    /// The node is drained for a step.
    Drain {
        /// The step.
        step: u32,
    },
    /// The draining under way is given up.
    Abandon(Abandoned),
    /// The command of a step is run.
    Execute {
        /// The step.
        step: u32,
    },
}

/// Why an entry ends as failed without a command that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// Every step was tried, or the configuration has fewer than before.
    NoStepLeft {
        /// The step that there is not.
        step: u32,
    },
    /// The step names no command.
    NoCommand {
        /// The step.
        step: u32,
    },
}

/// Why draining is given up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Abandoned {
    /// The queue was disabled.
    Disabled,
    /// The machine's rack is held.
    Held {
        /// The rack.
        rack: String,
    },
    /// What the entry wants is configured no longer.
    Missing(Missing),
    /// The section `repair` cannot be used.
    Unusable {
        /// Why.
        why: String,
    },
    /// Another control plane node is worked on.
    ApiServer {
        /// Its address.
        address: String,
    },
    /// Another entry for the same machine is further.
    SameMachine {
        /// Its index.
        index: i64,
    },
    /// The pods did not end in time.
    Timeout {
        /// What was waited for last.
        waits: Option<String>,
    },
    /// It cannot be done.
    Impossible {
        /// Why.
        why: String,
    },
}

/// What stands in the way of what comes next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Obstacle {
    /// The queue is disabled.
    Disabled,
    /// The machine's rack is held.
    Held {
        /// The rack.
        rack: String,
    },
    /// What is kept of the machine's rack cannot be read, so that it counts as held.
    HoldUnreadable {
        /// The rack.
        rack: String,
    },
    /// A rack is held, and nobody knows yet whether the machine stands in it.
    RackUnknown,
    /// The configuration does not have what the entry wants.
    Missing(Missing),
    /// The section `repair` cannot be used.
    Unusable {
        /// Why.
        why: String,
    },
    /// There is no cluster, and with it no configuration.
    NoCluster,
    /// Draining was given up, and is not tried again before a time.
    BackOff {
        /// When it is.
        until: OffsetDateTime,
        /// How often it was given up.
        count: u32,
        /// Why it was the last time.
        why: Option<String>,
    },
    /// Another entry for the same machine is being processed.
    SameMachine {
        /// Its index.
        index: i64,
    },
    /// As many entries are being processed as may.
    Slots {
        /// How many may.
        maximum: u32,
    },
    /// Another control plane node is being repaired.
    ApiServerRepaired {
        /// Its address.
        address: String,
    },
    /// Another control plane node is being rebooted.
    ApiServerRebooted {
        /// Its address.
        address: String,
    },
    /// A command runs, and they run one after another.
    CommandRuns {
        /// Number of its operation record.
        record: i64,
    },
    /// The success command of this entry runs.
    SuccessCommandRuns {
        /// Number of its operation record.
        record: i64,
    },
    /// This step needs draining, and the configuration names no way to Kubernetes.
    NoKubernetes,
    /// This instance runs no commands.
    NoHost,
    /// The machine's health is asked first.
    HealthUnknown,
    /// The registry may say in its first answer to this leader that the machine's rack failed.
    ReportsAwaited {
        /// When that is waited for no longer.
        until: OffsetDateTime,
    },
    /// The node is being drained.
    Draining {
        /// When that is given up.
        until: OffsetDateTime,
        /// What it waits for.
        waits: Option<String>,
    },
    /// The machine's health is watched after a command.
    Watching {
        /// Until when.
        until: OffsetDateTime,
    },
    /// The counter of operation records cannot be read, and nothing is done without a record.
    NoRecords,
    /// What is kept beside the entry cannot be read.
    KeptUnreadable {
        /// Its key.
        key: String,
    },
}

impl Obstacle {
    /// Every name.
    pub const NAMES: [&'static str; 22] = [
        "disabled",
        "rack-held",
        "missing",
        "unusable-configuration",
        "no-cluster",
        "back-off",
        "same-machine",
        "slots",
        "api-server-repaired",
        "api-server-rebooted",
        "command-runs",
        "no-kubernetes",
        "no-host",
        "health-unknown",
        "draining",
        "watching",
        "no-records",
        "reports-awaited",
        "kept-unreadable",
        "hold-unreadable",
        "rack-unknown",
        "success-command-runs",
    ];

    /// A short name, for programs and for a metric's label.
    #[must_use]
    pub fn name(&self) -> &'static str {
        let place = match self {
            Self::Disabled => 0,
            Self::Held { .. } => 1,
            Self::Missing(_) => 2,
            Self::Unusable { .. } => 3,
            Self::NoCluster => 4,
            Self::BackOff { .. } => 5,
            Self::SameMachine { .. } => 6,
            Self::Slots { .. } => 7,
            Self::ApiServerRepaired { .. } => 8,
            Self::ApiServerRebooted { .. } => 9,
            Self::CommandRuns { .. } => 10,
            Self::NoKubernetes => 11,
            Self::NoHost => 12,
            Self::HealthUnknown => 13,
            Self::Draining { .. } => 14,
            Self::Watching { .. } => 15,
            Self::NoRecords => 16,
            Self::ReportsAwaited { .. } => 17,
            Self::KeptUnreadable { .. } => 18,
            Self::HoldUnreadable { .. } => 19,
            Self::RackUnknown => 20,
            Self::SuccessCommandRuns { .. } => 21,
        };
        Self::NAMES[place]
    }

    /// When it goes away by itself, if that is known.
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

    /// Whether it is part of a repair's ordinary course, of which nobody needs to be told.
    #[must_use]
    pub fn is_ordinary(&self) -> bool {
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

/// An entry's future.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outlook {
    /// Its index.
    pub index: i64,
    /// Address of its machine.
    pub address: String,
    /// What comes next.
    pub next: Next,
    /// What stands in the way; `None`: it is done now.
    pub obstacle: Option<Obstacle>,
}

impl Outlook {
    /// What is to be done now, if anything.
    #[must_use]
    pub fn due(&self) -> Option<&Next> {
        (self.obstacle.is_none() && self.next != Next::Nothing).then_some(&self.next)
    }
}

impl Next {
    /// A short name, for programs.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Remove => "remove",
            Self::Restore => "restore",
            Self::Succeed { .. } => "succeed",
            Self::Fail(_) => "fail",
            Self::Drain { .. } => "drain",
            Self::Abandon(_) => "abandon-drain",
            Self::Execute { .. } => "execute",
        }
    }
}

impl fmt::Display for Next {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("nothing; it stays until it is deleted"),
            Self::Remove => f.write_str("it is removed"),
            Self::Restore => f.write_str("it is put back to what was done already"),
            Self::Succeed { command: true } => f.write_str("the success command is run, and it succeeds"),
            Self::Succeed { command: false } => f.write_str("it succeeds"),
            Self::Fail(why) => write!(f, "it fails: {why}"),
            Self::Drain { step } => write!(f, "the node is drained for step {step}"),
            Self::Abandon(why) => write!(f, "draining is given up: {why}"),
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
            Self::NoCommand { step } => write!(f, "step {step} names no command"),
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

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disabled => f.write_str("the repair queue is disabled"),
            Self::Held { rack } => write!(
                f,
                "the rack {rack} is held; its recovery or madako repair-queue release {rack} ends that"
            ),
            Self::HoldUnreadable { rack } => write!(
                f,
                "what is kept of the rack {rack} ({}) cannot be read, so that it counts as held; \
                 madako repair-queue release {rack} removes it",
                keys::repair_hold(rack)
            ),
            Self::RackUnknown => f.write_str(
                "a rack is held, and nobody knows whether the machine stands in it: no node or report says so, and sabakan \
                 was not heard about all machines yet; its answer or madako repair-queue release of what is held ends that",
            ),
            Self::Missing(missing) => missing.fmt(f),
            Self::Unusable { why } => f.write_str(why),
            Self::NoCluster => f.write_str("there is no cluster configuration"),
            Self::BackOff { until, count, why } => {
                let times = if *count == 1 { "once".to_owned() } else { format!("{count} times") };
                write!(f, "draining was given up {times}")?;
                if let Some(why) = why {
                    write!(f, ", last because {why}")?;
                }
                write!(f, "; it is tried again at {}", moment(*until))
            }
            Self::SameMachine { index } => write!(f, "entry {index} repairs the same machine"),
            Self::Slots { maximum } => {
                write!(f, "as many repairs are under way as max_concurrent_repairs allows, {maximum}")
            }
            Self::ApiServerRepaired { address } => {
                write!(f, "the control plane node {address} is being repaired")
            }
            Self::ApiServerRebooted { address } => {
                write!(f, "the control plane node {address} is being rebooted")
            }
            Self::CommandRuns { record } => write!(f, "the command of operation {record} runs"),
            Self::SuccessCommandRuns { record } => {
                write!(f, "the success command of this entry runs (operation {record})")
            }
            Self::NoKubernetes => f.write_str(
                "the node must be drained, and the configuration of the service does not say how to reach Kubernetes",
            ),
            Self::NoHost => f.write_str("this instance runs no commands"),
            Self::HealthUnknown => f.write_str("the machine's health is asked first"),
            Self::Draining { until, waits } => {
                f.write_str("the node is being drained")?;
                if let Some(waits) = waits {
                    write!(f, ": {waits}")?;
                }
                write!(f, "; that is given up at {}", moment(*until))
            }
            Self::Watching { until } => write!(f, "the machine's health is watched until {}", moment(*until)),
            Self::ReportsAwaited { until } => {
                write!(
                    f,
                    "the registry is asked first which racks failed; that is waited for until {}",
                    moment(*until)
                )
            }
            Self::KeptUnreadable { key } => write!(
                f,
                "what is kept of it beside the queue ({key}) cannot be read, so that a command may have been run that nobody knows of: \
                 delete the entry, or that key once you know that none was"
            ),
            Self::NoRecords => f.write_str("the counter of operation records (records) cannot be read"),
        }
    }
}

/// A time to the second.
fn moment(time: OffsetDateTime) -> String {
    let time = time.to_offset(time::UtcOffset::UTC);
    time.replace_nanosecond(0).unwrap_or(time).format(&Rfc3339).unwrap_or_else(|_| time.to_string())
}

/// Said of a machine whose health is not known where it is asked for.
pub const UNKNOWN_HEALTH: &str = "unknown";

/// An outlook as programs read it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Explained {
    /// The entry's index.
    pub index: i64,
    /// Address of its machine.
    pub address: String,
    /// What is known of its machine's health where it decides what comes next: [`UNKNOWN_HEALTH`]. The answers of health
    /// checks are with the leader alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub health: Option<&'static str>,
    /// Name of what comes next unless the machine is healthy.
    pub next: &'static str,
    /// The same as a sentence.
    pub what: String,
    /// When, if that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// Name of what stands in the way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub obstacle: Option<&'static str>,
    /// The same as a sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

impl From<&Outlook> for Explained {
    fn from(outlook: &Outlook) -> Self {
        Self {
            index: outlook.index,
            address: outlook.address.clone(),
            health: None,
            next: outlook.next.name(),
            what: outlook.next.to_string(),
            at: outlook.obstacle.as_ref().and_then(Obstacle::until).map(moment),
            obstacle: outlook.obstacle.as_ref().map(Obstacle::name),
            why: outlook.obstacle.as_ref().map(ToString::to_string),
        }
    }
}
