//! RepairQueue: which machines are repaired, and when.
//!
//! [`round`] looks at the queue and says what comes next for every entry, and what stands in its way ([`outlook`]);
//! [`transition`] makes of that what is written; [`explain`] tells another process the same from the store alone. `actor` is
//! the shell: it asks for permits, runs commands one after another, drains nodes, and asks for the health of machines.
//!
//! # Guarantees
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
pub mod explain;
pub mod outlook;
#[cfg(test)]
mod properties;
pub mod round;
#[cfg(test)]
mod testing;
pub mod transition;

pub use crate::actor::{Repair, RepairArguments, describe_metrics};
