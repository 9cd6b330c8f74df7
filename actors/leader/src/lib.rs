//! The leader: it campaigns, holds the store's state, and is the one gate that every decision passes.
//!
//! Guarantees: every write that the system decides is one transaction that compares the leader key's
//! create revision, so that a deposed leader's write fails in the store, whatever it believes; no
//! mutation passes that breaks an invariant; a reign begins only after an unfinished record of an
//! earlier leader was marked cancelled.
//!
//! `actor` is the shell, with placement's part of the gate; `prepare` is what comes before a reign; `transaction` turns
//! mutations into transactions, without I/O, and `repair` those of the repair queue.

mod actor;
pub mod limits;
mod prepare;
mod repair;
mod transaction;

pub use actor::placement::PlacementGate;
pub use actor::{Leader, LeaderArguments, ReignControl, describe_metrics};
pub use transaction::{LastPlan, MOST_CHANGES_KEPT, MOST_REASONS_KEPT};
