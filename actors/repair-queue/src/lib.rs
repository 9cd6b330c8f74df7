//! RepairQueue: which machines are repaired, and when.
//!
//! [`limiter`] decides which reports of the registry become entries of the queue, and [`hold`] which racks are held
//! back because several of their machines failed at about the same time. [`requests`] makes changes of the store of that,
//! and [`news`] says what of it is new. [`racks`] knows who stands in a rack that is held.
//!
//! [`round`] looks at the queue and says what comes next for every entry, and what stands in its way ([`outlook`]);
//! [`transition`] makes of that what is written; [`explain`] tells another process the same from the store alone. `actor` is
//! the shell: it drains nodes, asks for the health of machines, and brings what is decided to the leader; a command goes its way from
//! announcement to record by the workflow of `madako-effects`.
//!
//! # Guarantees
//! - Limiters only ever refuse: without a constraint that allows entries nothing is repaired automatically. Each report is
//!   either added or refused with the first reason that applies.
//! - At most one entry of a machine, and one control plane node, is worked on (invariants I7 and I8), and of the others as
//!   many as the configuration allows.
//! - A command is run once for each step of an entry, whatever happens to the leader, and whoever writes an older state over
//!   the entry: what announces it is durable first, and an outcome that nobody saw stays unknown.
//! - Nothing begins for a machine whose health was not asked a moment ago.
//! - With unchanged inputs nothing is written.
//!
//! # Assumes
//! State and commits are the leader's; the ports end what they began when their future is dropped.
//!
//! # Does not
//! The brains know no clock, no chance and no I/O.

mod actor;
pub mod ahead;
pub mod explain;
pub mod hold;
mod indexed;
pub mod limiter;
pub mod limits;
#[cfg(test)]
mod machines;
pub mod news;
pub mod outlook;
#[cfg(test)]
mod properties;
pub mod racks;
pub mod requests;
pub mod round;
#[cfg(test)]
mod testing;
pub mod transition;

pub use crate::actor::{Repair, RepairArguments, describe_metrics};
