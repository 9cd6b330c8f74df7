//! The repair queue: its entries, and what machines are reported for repair.

pub mod change;
pub mod command;
pub mod config;
mod entry;
pub mod kept;
pub mod queue;
pub mod report;

pub use self::entry::{RepairQueueEntry, RepairStatus, RepairStepStatus};
