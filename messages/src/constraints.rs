//! The operator's constraints (CKE's `constraints`, its `docs/constraints.md`).
//!
//! Where the key is missing, [`Constraints::default`] holds; where a stored object lacks a field, the field
//! is 0, as in CKE.

use crate::go::{UnknownFields, go_object};

go_object! {
    /// Conditions that a cluster must satisfy.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Constraints {
        /// Exact number of control plane nodes.
        pub control_plane_count: u32 = "control-plane-count";
        /// Least number of workers.
        pub minimum_workers: u32 = "minimum-workers";
        /// Greatest number of workers; 0 means no maximum (CKE's meaning).
        pub maximum_workers: u32 = "maximum-workers";
        /// Reboots wait while more nodes than this are unreachable.
        pub maximum_unreachable_nodes_for_reboot: u32 = "maximum-unreachable-nodes-for-reboot";
        /// Greatest number of repair entries when one is added automatically.
        pub maximum_repair_queue_entries: u32 = "maximum-repair-queue-entries";
        /// Seconds for which an unreachable machine that reboots is left alone.
        pub wait_seconds_to_repair_rebooting: u32 = "wait-seconds-to-repair-rebooting";
        ..rest
    }
}

impl Default for Constraints {
    fn default() -> Self {
        Self {
            control_plane_count: 1,
            minimum_workers: 1,
            maximum_workers: 0,
            maximum_unreachable_nodes_for_reboot: 0,
            maximum_repair_queue_entries: 0,
            wait_seconds_to_repair_rebooting: 0,
            rest: UnknownFields::default(),
        }
    }
}
