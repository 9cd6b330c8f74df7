//! The repair queue: its entries, the machines that the registry reports for repair, and the reasons to hold repairs
//! back.

pub mod change;
pub mod command;
pub mod config;
mod entry;
pub mod hold;
pub mod kept;
pub mod queue;
pub mod refusal;
pub mod report;

pub use self::entry::{RepairQueueEntry, RepairStatus, RepairStepStatus};
