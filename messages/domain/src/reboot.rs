//! An entry of the reboot queue (CKE's `reboots/data/<index in hex>`, its `docs/reboot.md`), or of a node that is drained so
//! that its kubelet can get another minor version (`madako/kubernetes/drains/<number in hex>`).

pub mod config;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use madako_json::go::{Decimal, OptionalTime, go_object, is_zero, open_enum};

use crate::limits::BOOT_TIMEOUT;

/// Settings of the service for reboots, which CKE does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RebootSettings {
    /// Time after which a worker that does not boot frees its slot.
    pub boot_timeout: Duration,
    /// Nodes are cordoned before the dry run of their evictions, not after it.
    pub cordon_first: bool,
}

impl Default for RebootSettings {
    fn default() -> Self {
        Self { boot_timeout: BOOT_TIMEOUT, cordon_first: false }
    }
}

open_enum! {
    /// Progress of a reboot.
    pub enum RebootStatus {
        /// The reboot has not started.
        Queued = "queued",
        /// The node is being drained.
        Draining = "draining",
        /// The reboot command ran; the node is not back yet.
        Rebooting = "rebooting",
        /// The node is drained for an upgrade, and its kubelet is replaced. CKE has no such status.
        Drained = "drained",
        /// A client requested the removal of the entry.
        Cancelled = "cancelled",
    }
}

go_object! {
    /// A request to reboot a node gracefully.
    #[derive(Debug, Clone, Default, PartialEq, Eq)]
    pub struct RebootQueueEntry {
        /// Number of the entry, assigned at registration.
        pub index: i64 = "index" as Decimal;
        /// Address of the node.
        pub node: String = "node";
        /// Progress of the reboot.
        pub status: RebootStatus = "status";
        /// Time of the last change of the status.
        pub last_transition_time: Option<OffsetDateTime> = "last_transition_time" as OptionalTime;
        /// Number of abandoned drains so far.
        pub drain_backoff_count: u32 = "drain_backoff_count", omit is_zero;
        /// End of the back-off: no drain starts earlier.
        pub drain_backoff_expire: Option<OffsetDateTime> = "drain_backoff_expire" as OptionalTime;
        /// The reason for which the last drain for an upgrade was given up. CKE's entries have none.
        pub abort_reason: String = "abort_reason", omit String::is_empty;
        ..rest
    }
}

impl RebootQueueEntry {
    /// A new entry, not in the queue yet.
    #[must_use]
    pub fn new(node: impl Into<String>) -> Self {
        Self { node: node.into(), status: RebootStatus::Queued, ..Self::default() }
    }

    /// True for a drain before the update of a kubelet: the node does not reboot, and CKE does not see the entry.
    #[must_use]
    pub fn is_upgrade(&self) -> bool {
        self.index < 0
    }

    /// True while the node is drained, or is away after its drain.
    #[must_use]
    pub fn is_under_way(&self) -> bool {
        matches!(self.status, RebootStatus::Draining | RebootStatus::Rebooting | RebootStatus::Drained)
    }
}

/// Entries that an operator released after their nodes did not boot: they no longer hold the queue.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReleasedReboots {
    /// Create revisions of the entries by index: a later entry with the same index is not released.
    pub entries: BTreeMap<i64, i64>,
}
