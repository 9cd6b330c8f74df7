//! A small supervision library on ractor's supervision events.
//!
//! A [`Supervisor`] is an actor that starts its children in order, restarts a failed child alone after an exponential
//! back-off with jitter, and stops its children in reverse order. Children may be supervisors.
//!
//! Guarantees:
//! - the supervisor's own handlers never wait: starts, back-offs and stops are separate tasks, so a child that hangs
//!   during its start or stop delays no other (except in the first start, which is in order);
//! - a child is started again only when its predecessor, and everything below it, is gone: the registered names are
//!   free and none of its code runs any more;
//! - [`stop_child`](SupervisorRef::stop_child) answers when the child and everything below it is gone; a child that
//!   was removed during its back-off does not return;
//! - more failures than the budget allows within its window end the supervisor with a [`Meltdown`], which counts as a
//!   failure in its own supervisor, or, for a child with [`BudgetAction::Report`], remove and report the child;
//! - with paused time on one thread, equal seeds and failures give equal events.
//!
//! Assumes: panics unwind (`panic = "abort"` would end the process); children end when they are killed, for which
//! they must return to the runtime now and then. A child that does not is given up after
//! [`SupervisorSpec::kill_grace`] and reported as [`StopOutcome::Stuck`].
//!
//! Does not: detect a child that hangs during its work (its callers have deadlines), supervise tasks that are no
//! actors, restart siblings of a failed child.

mod actor;
mod event;
mod handle;
mod policy;
mod roster;
mod spec;
mod state;
#[cfg(test)]
mod tests;

pub use actor::Supervisor;
pub use event::{BudgetExceeded, ChildExit, EventSink, Meltdown, StopOutcome, TreeEvent};
pub use handle::{
    AddError, ChildState, ChildStatus, FirstStart, Mode, StopError, SupervisorEnded, SupervisorRef, Tree,
    TreeStatus,
};
pub use policy::{Backoff, Budget};
pub use roster::StartedActor;
pub use spec::{BudgetAction, ChildId, ChildSpec, Restart, StartError, SupervisorSpec, actor_name};
