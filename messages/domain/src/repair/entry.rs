//! An entry of the repair queue (CKE's `repairs/data/<index in hex>`, its `docs/repair.md`).

use time::OffsetDateTime;

use madako_json::go::{Decimal, OptionalTime, go_object, is_zero, open_enum};

open_enum! {
    /// Progress of a repair.
    pub enum RepairStatus {
        /// The repair has not started.
        Queued = "queued",
        /// The repair queue carries out the steps.
        Processing = "processing",
        /// The machine became healthy.
        Succeeded = "succeeded",
        /// A command failed, or the steps ran out.
        Failed = "failed",
    }
}

open_enum! {
    /// Progress of the current step of a repair.
    pub enum RepairStepStatus {
        /// The step has not begun.
        Waiting = "waiting",
        /// A drain of the node is running.
        Draining = "draining",
        /// The repair command ran; the repair queue watches the machine's health.
        Watching = "watching",
    }
}

go_object! {
    /// A request to repair a machine.
    #[derive(Debug, Clone, Default, PartialEq, Eq)]
    pub struct RepairQueueEntry {
        /// Number of the entry, assigned at registration.
        pub index: i64 = "index" as Decimal;
        /// Address of the machine.
        pub address: String = "address";
        /// Name of the machine's Kubernetes node; empty when the machine is not part of the cluster.
        pub nodename: String = "nodename";
        /// Type of the machine; it selects the repair procedure.
        pub machine_type: String = "machine_type";
        /// Name of an operation of that procedure.
        pub operation: String = "operation";
        /// Progress of the repair.
        pub status: RepairStatus = "status";
        /// Number of the current step, from 0.
        pub step: u32 = "step";
        /// Progress of the current step.
        pub step_status: RepairStepStatus = "step_status";
        /// True if a client requested the removal of the entry.
        pub deleted: bool = "deleted";
        /// Time of the last change of status, step or step status.
        pub last_transition_time: Option<OffsetDateTime> = "last_transition_time" as OptionalTime;
        /// Number of abandoned drains so far.
        pub drain_backoff_count: u32 = "drain_backoff_count", omit is_zero;
        /// End of the back-off: no drain starts earlier.
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
