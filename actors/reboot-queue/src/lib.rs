//! RebootQueue: decides which nodes are rebooted gracefully, and when (CKE's `docs/reboot.md`).
//!
//! [`pass`] computes the next action of every entry and its obstacle ([`next_action`]); [`transition`] computes the
//! writes of an action; [`explain`] gives other processes the same from the store alone; [`forecast`] computes the
//! reboots to come, and their blockers, before the first cordon. `actor` is the shell: it
//! drains nodes, runs the boot checks and the reboot command, sends decisions to the leader, and publishes them
//! ([`page`]). The repair queue takes back the cordons of both queues.
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
//! - A reboot command runs once for each entry, even if the leader dies: the announcement is durable before the start,
//!   and after an unknown outcome only the boot check decides.
//!
//! # Does not
//! Use a clock, randomness or I/O, except in `actor`.
//!
//! [`STUCK_REBOOTS`]: limits::STUCK_REBOOTS

mod actor;
pub mod explain;
pub mod forecast;
pub mod limits;
pub mod next_action;
pub mod page;
pub mod pass;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod testing;
pub mod transition;

pub use crate::actor::{METRICS, RebootArguments, RebootQueueActor};
