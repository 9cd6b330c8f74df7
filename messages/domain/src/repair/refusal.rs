//! Why a machine that is reported gets no repair.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::{Serialize, Serializer};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::RepairStatus;
use super::hold::Label;

/// The limiter that refused a report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// The machine has no IPv4 address.
    NoAddress,
    /// Another report has the same address, and comes first.
    DuplicateAddress {
        /// Serial of that machine.
        first: String,
    },
    /// The queue has an entry for it, finished or not.
    HasEntry {
        /// Number of the entry.
        index: i64,
        /// How far it is.
        status: RepairStatus,
        /// Whether its removal was asked for.
        deleted: bool,
    },
    /// An entry of it was removed, and the registry was asked before that. The next answer says whether it still fails.
    JustRemoved,
    /// It is being rebooted, and has been unreachable for less than the wait.
    Rebooting {
        /// Number of the reboot's entry.
        index: i64,
        /// When the wait is over.
        until: OffsetDateTime,
    },
    /// It is not part of the cluster, and has been unreachable for less than the wait.
    OutOfCluster {
        /// When the wait is over.
        until: OffsetDateTime,
    },
    /// Several machines of its rack failed at about the same time.
    RackHeld {
        /// What racks are told apart by.
        label: Label,
        /// The value of that label; all reports of the rack share it.
        rack: Arc<str>,
        /// Machines that hold the rack.
        machines: usize,
        /// Since when it is held.
        since: OffsetDateTime,
    },
    /// There would be more entries than the constraint allows.
    TooMany {
        /// Entries that there are.
        entries: usize,
        /// Reports that nothing else is in the way of.
        reports: usize,
        /// The constraint `maximum-repair-queue-entries`.
        maximum: i64,
    },
}

impl Reason {
    /// Every name, in the order in which limiters are asked.
    pub const NAMES: [&'static str; 8] = [
        "no-address",
        "duplicate-address",
        "has-entry",
        "just-removed",
        "rebooting",
        "out-of-cluster",
        "rack-held",
        "too-many",
    ];

    /// A short name, for programs and for a metric's label.
    #[must_use]
    pub fn name(&self) -> &'static str {
        let place = match self {
            Self::NoAddress => 0,
            Self::DuplicateAddress { .. } => 1,
            Self::HasEntry { .. } => 2,
            Self::JustRemoved => 3,
            Self::Rebooting { .. } => 4,
            Self::OutOfCluster { .. } => 5,
            Self::RackHeld { .. } => 6,
            Self::TooMany { .. } => 7,
        };
        Self::NAMES[place]
    }

    /// When the limiter lets go by itself, if that is known.
    #[must_use]
    pub fn until(&self) -> Option<OffsetDateTime> {
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
                write!(f, "machine {first} has the same address, and comes first")
            }
            Self::HasEntry { index, status, deleted } => {
                let deleted = if *deleted { ", and is about to be removed" } else { "" };
                write!(f, "entry {index} of the queue is for it ({status}{deleted})")
            }
            Self::JustRemoved => {
                f.write_str("sabakan was asked before an entry of it was removed; its next answer decides")
            }
            Self::Rebooting { index, until } => {
                write!(f, "reboot {index} is under way; it is left alone until {}", moment(*until))
            }
            Self::OutOfCluster { until } => {
                write!(f, "it is not part of the cluster; it is left alone until {}", moment(*until))
            }
            Self::RackHeld { label, rack, machines, since } => write!(
                f,
                "{machines} machines with {label} {rack} failed at about the same time, noticed at {}; their recovery \
                 or madako repair-queue release {rack} ends it",
                moment(*since)
            ),
            Self::TooMany { entries, reports, maximum } => write!(
                f,
                "maximum-repair-queue-entries is {maximum}, less than entries ({entries}) and reports that nothing else \
                 holds back ({reports})"
            ),
        }
    }
}

/// A time to the second.
fn moment(time: OffsetDateTime) -> String {
    let time = time.to_offset(time::UtcOffset::UTC);
    time.replace_nanosecond(0).unwrap_or(time).format(&Rfc3339).unwrap_or_default()
}

/// A report that leads to no entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Refusal {
    /// Address of the machine; empty when it has none.
    pub address: String,
    /// Its serial.
    pub serial: String,
    /// Why: the first limiter that applies.
    #[serde(serialize_with = "as_text")]
    pub reason: Reason,
}

/// Why nothing is added, whoever is reported. Racks are judged all the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stop {
    /// Auto-repair is switched off.
    Disabled,
    /// Something that limiters ask for cannot be read: an entry that nobody understands may be for any machine.
    Unreadable {
        /// Its key.
        key: String,
    },
}

impl Stop {
    /// A short name, for programs.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Disabled => "auto-repair-disabled",
            Self::Unreadable { .. } => "unreadable",
        }
    }
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disabled => f.write_str("auto-repair is switched off; madako auto-repair enable ends that"),
            Self::Unreadable { key } => write!(f, "{key} in the store cannot be used"),
        }
    }
}

fn as_text<S: Serializer>(reason: &Reason, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(reason)
}

/// What became of reports and racks since the last time: for the log, once per change.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReportNews {
    /// Reports that are refused, or for another reason than before.
    pub refused: Vec<Refusal>,
    /// Serials of machines that were refused and are no more: added, or reported no longer.
    pub cleared: Vec<String>,
    /// Racks that are held now, with the machines that hold them.
    pub held: BTreeMap<String, Vec<String>>,
    /// Racks that were held and are not any more.
    pub let_go: Vec<String>,
}

impl ReportNews {
    /// Whether nothing is new.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
