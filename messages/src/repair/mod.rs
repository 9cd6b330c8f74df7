//! The repair queue: its entries, what machines are reported for repair, and what holds repairs back.

mod entry;
pub mod hold;
pub mod refusal;
pub mod report;

pub use self::entry::{RepairQueueEntry, RepairStatus, RepairStepStatus};
