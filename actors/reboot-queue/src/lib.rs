//! RebootQueue: decides which nodes are rebooted gracefully, and when (CKE's `docs/reboot.md`).
//!
//! [`pass`] computes the next action of every entry and its obstacle ([`next_action`]); [`transition`] computes the
//! writes of an action; [`cordons`] finds the nodes whose cordon has no reason any more; [`explain`] gives other
//! processes the same from the store alone.
//!
//! # Guarantees
//! - At most one control plane node is drained, reboots or is repaired (invariant I8, over both queues), and none does
//!   while a worker is drained or reboots.
//! - At most `max_concurrent_reboots` workers are drained or reboot. A worker that does not boot within the time limit
//!   frees its slot; [`STUCK_REBOOTS`] such workers hold all new drains until an operator releases them.
//! - A node has one entry at a time: its other entries wait.
//! - A cancelled entry stays cancelled: each write compares the revision of its entry.
//! - With unchanged inputs nothing is written.
//!
//! # Does not
//! Act: no actor of the service executes these decisions yet. The crate uses no clock, no randomness and no I/O.
//!
//! [`STUCK_REBOOTS`]: limits::STUCK_REBOOTS

pub mod cordons;
pub mod explain;
pub mod limits;
pub mod next_action;
pub mod pass;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod testing;
pub mod transition;
