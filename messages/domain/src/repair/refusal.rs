//! The reasons why a reported machine gets no repair.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use madako_json::named;
use serde::{Serialize, Serializer};
use strum::{IntoStaticStr, VariantNames};
use time::OffsetDateTime;

use super::RepairStatus;
use super::hold::Label;
use crate::record::format_time;

/// The limiter that refused a report. The limiters apply in this order.
#[derive(Debug, Clone, PartialEq, Eq, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "kebab-case")]
pub enum Reason {
    /// The machine has no IPv4 address.
    NoAddress,
    /// Another report has the same address and takes precedence.
    DuplicateAddress {
        /// Serial of the other machine.
        first: String,
    },
    /// The queue has an entry for the machine, finished or not.
    HasEntry {
        /// Index of the entry.
        index: i64,
        /// Status of the entry.
        status: RepairStatus,
        /// True if an operator requested the entry's removal.
        deleted: bool,
    },
    /// An entry of the machine was removed after the registry was polled. The next answer says whether the machine
    /// still fails.
    JustRemoved,
    /// The machine is being rebooted and has been unreachable for less than the wait.
    Rebooting {
        /// Index of the reboot's entry.
        index: i64,
        /// End of the wait.
        until: OffsetDateTime,
    },
    /// The machine is not part of the cluster and has been unreachable for less than the wait.
    OutOfCluster {
        /// End of the wait.
        until: OffsetDateTime,
    },
    /// Several machines of the rack failed at about the same time.
    RackHeld {
        /// The property that identifies racks.
        label: Label,
        /// The rack's value of that property, shared by all its reports.
        rack: Arc<str>,
        /// Number of machines that hold the rack.
        machines: usize,
        /// Start of the hold.
        since: OffsetDateTime,
    },
    /// The queue would exceed the constraint.
    TooMany {
        /// Present number of entries.
        entries: usize,
        /// Number of reports that no other limiter refuses.
        reports: usize,
        /// The constraint `maximum-repair-queue-entries`.
        maximum: i64,
    },
}

impl Reason {
    /// Time at which the limiter ends by itself, if known.
    #[must_use]
    pub fn end_time(&self) -> Option<OffsetDateTime> {
        match self {
            Self::Rebooting { until, .. } | Self::OutOfCluster { until } => Some(*until),
            _ => None,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.name())?;
        match self {
            Self::NoAddress => f.write_str("the machine has no IPv4 address"),
            Self::DuplicateAddress { first } => {
                write!(f, "machine {first} has the same address and precedes this machine")
            }
            Self::HasEntry { index, status, deleted } => {
                let deleted = if *deleted { ", and is about to be removed" } else { "" };
                write!(f, "entry {index} of the queue repairs the machine ({status}{deleted})")
            }
            Self::JustRemoved => f.write_str(
                "the report is older than the removal of the machine's entry; sabakan's next answer decides",
            ),
            Self::Rebooting { index, until } => {
                write!(f, "reboot {index} is under way; no repair is added until {}", format_time(*until))
            }
            Self::OutOfCluster { until } => {
                write!(
                    f,
                    "the machine is not part of the cluster; no repair is added until {}",
                    format_time(*until)
                )
            }
            Self::RackHeld { label, rack, machines, since } => write!(
                f,
                "{machines} machines with {label} {rack} failed at about the same time, noticed at {}; \
                 their recovery or madako repair-queue release {rack} ends the hold",
                format_time(*since)
            ),
            Self::TooMany { entries, reports, maximum } => write!(
                f,
                "maximum-repair-queue-entries is {maximum}, less than the sum of the entries \
                 ({entries}) and the otherwise accepted reports ({reports})"
            ),
        }
    }
}

/// A refused report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Refusal {
    /// Address of the machine; empty if it has none.
    pub address: String,
    /// Serial of the machine.
    pub serial: String,
    /// The first limiter that applies.
    #[serde(serialize_with = "as_text")]
    pub reason: Reason,
}

/// The reason why no report is added. Holds of racks are evaluated nevertheless.
#[derive(Debug, Clone, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum AdditionStop {
    /// An operator disabled auto-repair.
    #[strum(serialize = "auto-repair-disabled")]
    Disabled,
    /// An input of the limiters is unreadable: an unreadable entry may be for any machine.
    Unreadable {
        /// Relative key of the unreadable value.
        key: String,
    },
}

named!(Reason names, AdditionStop);

impl fmt::Display for AdditionStop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disabled => f.write_str("auto-repair is disabled; madako auto-repair enable enables it"),
            Self::Unreadable { key } => write!(f, "{key} in the store cannot be used"),
        }
    }
}

fn as_text<S: Serializer>(reason: &Reason, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(reason)
}

/// The changes of reports and racks since the last evaluation, logged once each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReportNews {
    /// Reports that are newly refused, or for a new reason.
    pub refused: Vec<Refusal>,
    /// Serials of machines that are no longer refused: their reports were added or disappeared.
    pub cleared: Vec<String>,
    /// Newly held racks, with the machines that hold them.
    pub held: BTreeMap<String, Vec<String>>,
    /// Racks released since the last evaluation.
    pub released: Vec<String>,
}

impl ReportNews {
    /// True without any change.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
