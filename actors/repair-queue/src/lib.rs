//! RepairQueue: which machines are repaired, and when.
//!
//! [`limiter`] decides which reports of the registry become entries of the queue, and [`hold`] which racks are held
//! back because several of their machines failed at about the same time. [`requests`] makes changes of the store of that,
//! and [`news`] says what of it is new.
//!
//! # Guarantees
//! - Limiters only ever refuse: without a constraint that allows entries nothing is repaired automatically.
//! - Each report is either added or refused with the first reason that applies.
//! - The same inputs give the same answer; what is held does not change while the inputs say the same.
//!
//! # Does not
//! The brains know no clock, no chance and no I/O.

pub mod hold;
pub mod limiter;
pub mod news;
pub mod requests;
#[cfg(test)]
mod testing;
