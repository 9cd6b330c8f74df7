//! An entry of the reboot queue (CKE's `reboots/data/<index in hex>`, its `docs/reboot.md`).

use time::OffsetDateTime;

use madako_json::go::{Decimal, OptionalTime, go_object, is_zero, open_enum};

open_enum! {
    /// How far a reboot is.
    pub enum RebootStatus {
        /// It waits.
        Queued = "queued",
        /// The node is being drained.
        Draining = "draining",
        /// The reboot command ran; the node has not come back yet.
        Rebooting = "rebooting",
        /// Somebody asked for its removal.
        Cancelled = "cancelled",
    }
}

go_object! {
    /// A request to reboot a node gracefully.
    #[derive(Debug, Clone, Default, PartialEq, Eq)]
    pub struct RebootQueueEntry {
        /// Number of the entry; given when it is registered.
        pub index: i64 = "index" as Decimal;
        /// Address of the node.
        pub node: String = "node";
        /// How far it is.
        pub status: RebootStatus = "status";
        /// When the status changed last.
        pub last_transition_time: Option<OffsetDateTime> = "last_transition_time" as OptionalTime;
        /// How often draining was given up so far.
        pub drain_backoff_count: u32 = "drain_backoff_count", omit is_zero;
        /// Until when draining is not tried again.
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
