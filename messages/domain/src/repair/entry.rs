//! An entry of the repair queue (CKE's `repairs/data/<index in hex>`, its `docs/repair.md`).

use time::OffsetDateTime;

use madako_json::go::{Decimal, OptionalTime, go_object, is_zero, open_enum};

open_enum! {
    /// How far a repair is.
    pub enum RepairStatus {
        /// It waits.
        Queued = "queued",
        /// Its steps are being carried out.
        Processing = "processing",
        /// The machine became healthy.
        Succeeded = "succeeded",
        /// A command failed, or the steps ran out.
        Failed = "failed",
    }
}

open_enum! {
    /// How far the current step of a repair is.
    pub enum RepairStepStatus {
        /// It has not begun.
        Waiting = "waiting",
        /// The node is being drained.
        Draining = "draining",
        /// The repair command ran; the machine's health is being watched.
        Watching = "watching",
    }
}

go_object! {
    /// A request to repair a machine.
    #[derive(Debug, Clone, Default, PartialEq, Eq)]
    pub struct RepairQueueEntry {
        /// Number of the entry; given when it is registered.
        pub index: i64 = "index" as Decimal;
        /// Address of the machine.
        pub address: String = "address";
        /// Name of its Kubernetes node; empty when it is not part of the cluster.
        pub nodename: String = "nodename";
        /// Type of the machine, which chooses the procedure.
        pub machine_type: String = "machine_type";
        /// Name of the operation of that procedure.
        pub operation: String = "operation";
        /// How far it is.
        pub status: RepairStatus = "status";
        /// Number of the current step, from 0.
        pub step: u32 = "step";
        /// How far that step is.
        pub step_status: RepairStepStatus = "step_status";
        /// Whether somebody asked for its removal.
        pub deleted: bool = "deleted";
        /// When status, step or step status changed last.
        pub last_transition_time: Option<OffsetDateTime> = "last_transition_time" as OptionalTime;
        /// How often draining was given up so far.
        pub drain_backoff_count: u32 = "drain_backoff_count", omit is_zero;
        /// Until when draining is not tried again.
        pub drain_backoff_expire: Option<OffsetDateTime> = "drain_backoff_expire" as OptionalTime;
        ..rest
    }
}

impl RepairQueueEntry {
    /// A new entry, not in the queue yet.
    #[must_use]
    pub fn new(
        operation: impl Into<String>,
        machine_type: impl Into<String>,
        address: impl Into<String>,
    ) -> Self {
        Self {
            operation: operation.into(),
            machine_type: machine_type.into(),
            address: address.into(),
            status: RepairStatus::Queued,
            step_status: RepairStepStatus::Waiting,
            ..Self::default()
        }
    }

    /// True once the repair succeeded or failed.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        matches!(self.status, RepairStatus::Succeeded | RepairStatus::Failed)
    }
}
