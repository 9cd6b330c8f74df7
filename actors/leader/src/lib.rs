//! The leader: it campaigns, holds the store's state, and is the one gate that every decision passes.
//!
//! Guarantees: every write that the system decides is one transaction that compares the leader key's
//! create revision, so that a deposed leader's write fails in the store, whatever it believes; no
//! mutation passes that breaks an invariant; a reign begins only after an unfinished record of an
//! earlier leader was marked cancelled.
//!
//! `actor` is the shell; `prepare` is what comes before a reign; `transaction` and `placement` turn mutations into
//! transactions.

mod actor;
mod placement;
mod prepare;
mod transaction;

pub use actor::{Leader, LeaderArguments, ReignControl, describe_metrics};
pub use placement::PlacementGate;
pub use transaction::{LastPlan, MOST_CHANGES_KEPT, MOST_REASONS_KEPT};
