//! The leader: it campaigns, holds the store's state, and checks and commits every change that another actor decides. A
//! reign is the set of actors that work in one epoch.
//!
//! Guarantees: every write that the system decides is one transaction that compares the leader key's create revision,
//! so that the write of a deposed leader fails in the store. No mutation that breaks an invariant is committed. A
//! reign begins only after an unfinished record of an earlier leader was marked cancelled.
//!
//! `actor` is the actor itself, with the changes of placement. `prepare` runs before a reign. `transaction` turns
//! mutations into transactions, without I/O, and `repair` those of the repair queue.

mod actor;
pub mod limits;
mod prepare;
mod repair;
mod transaction;

pub use actor::placement::PlacementAccess;
pub use actor::{EpochActorsControl, Leader, LeaderArguments, METRICS};
pub use transaction::{LastPlan, MOST_CHANGES_KEPT, MOST_REASONS_KEPT};
