//! An entry of the reboot queue (CKE's `reboots/data/<index in hex>`, its `docs/reboot.md`).

use time::OffsetDateTime;

use madako_json::go::{Decimal, OptionalTime, go_object, is_zero, open_enum};

open_enum! {
    /// Progress of a reboot.
    pub enum RebootStatus {
        /// The reboot has not started.
        Queued = "queued",
        /// The node is being drained.
        Draining = "draining",
        /// The reboot command ran; the node is not back yet.
        Rebooting = "rebooting",
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
        ..rest
    }
}

impl RebootQueueEntry {
    /// A new entry, not in the queue yet.
    #[must_use]
    pub fn new(node: impl Into<String>) -> Self {
        Self { node: node.into(), status: RebootStatus::Queued, ..Self::default() }
    }
}
