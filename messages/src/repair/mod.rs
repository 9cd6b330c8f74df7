//! The repair queue: its entries, and what machines are reported for repair.

mod entry;
pub mod report;

pub use self::entry::{RepairQueueEntry, RepairStatus, RepairStepStatus};
