//! RepairQueue: decides which machines are repaired, and when.
//!
//! [`limiter`] decides which reports of the registry become entries of the queue. [`hold`] decides which racks are
//! held because several of their machines failed at about the same time. [`requests`] turns both into changes of the
//! store, and [`news`] into events. [`racks`] finds the machines of held racks.
//!
//! [`pass`] computes the next action of every entry and its obstacle ([`next_action`]); [`transition`] computes the
//! writes of an action; [`explain`] gives other processes the same from the store alone. `actor` drains nodes, checks
//! the health of machines, and sends decisions to the leader. The workflow of `madako-effects` takes a command from
//! announcement to record.
//!
//! # Guarantees
//! - Limiters only refuse: without a constraint that allows entries, nothing is repaired automatically. Each report
//!   is either added or refused with the first reason that applies.
//! - Work is under way for at most one entry of a machine and one control plane node (invariants I7 and I8), and for
//!   at most as many entries as the configuration allows.
//! - A command runs once for each step of an entry, even if the leader dies or a client writes an older state over
//!   the entry: the announcement is durable before the start, and an outcome that was not observed stays unknown.
//! - Nothing begins for a machine without a recent health check.
//! - With unchanged inputs nothing is written.
//!
//! # Assumes
//! State and commits are the leader's; the ports end what they began when their future is dropped.
//!
//! # Does not
//! Use a clock, randomness or I/O, except in `actor`.

mod actor;
pub mod explain;
pub mod future_transitions;
pub mod hold;
mod indexed;
pub mod limiter;
pub mod limits;
#[cfg(test)]
mod machines;
pub mod news;
pub mod next_action;
pub mod pass;
#[cfg(test)]
mod properties;
pub mod racks;
pub mod requests;
#[cfg(test)]
mod testing;
pub mod transition;

pub use crate::actor::{METRICS, RepairArguments, RepairQueueActor};
