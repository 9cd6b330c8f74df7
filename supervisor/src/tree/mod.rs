//! A small supervision library on ractor's supervision events.
//!
//! A [`Supervisor`] is an actor that starts its children in order, restarts a failed one alone after an
//! exponential backoff with jitter, and stops them in reverse order. Children may be supervisors.
//!
//! Guarantees:
//! - the supervisor's own handlers never wait: starts, backoffs and stops are tasks of their own, so a
//!   child that hangs while starting or stopping delays no other (but for the first start, which is in order);
//! - a child is started again only when its predecessor, and everything below it, is really gone:
//!   the registered names are free and nothing of it runs any more;
//! - [`stop_child`](SupervisorRef::stop_child) answers when the child and everything below it is gone;
//!   one that was removed during its backoff does not come back;
//! - more failures than the budget allows within its window end the supervisor with a [`Meltdown`], which its
//!   own supervisor sees as a failure, or, for a child with [`Exceeded::Report`], remove the child and report;
//! - with paused time on one thread, the same seed and the same failures give the same events.
//!
//! Assumes: panics unwind (`panic = "abort"` would take the process); children end when they are killed,
//! which needs them to return to the runtime now and then. One that does not is given up after
//! [`SupervisorSpec::kill_grace`] and reported as [`StopOutcome::Stuck`].
//!
//! Does not: notice a child that hangs while it should work (its callers have deadlines), supervise tasks
//! that are no actors, restart siblings of a failed child.

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
    AddError, ChildState, ChildStatus, Ended, FirstStart, Mode, StopError, SupervisorRef, Tree, TreeStatus,
};
pub use policy::{Backoff, Budget};
pub use roster::Started;
pub use spec::{ChildId, ChildSpec, Exceeded, Restart, StartError, SupervisorSpec, actor_name};
pub use state::describe_metrics;
