//! AppScheduler: decides which cluster runs an application, which cloud holds a cluster, and which project a Magnum
//! cluster (seed 004; issue 4, section 4).
//!
//! The brain is [`pass`]: from all of placement's resources, what is known of metrics, settings, memory, time and a
//! seed to everything that is to be written, with a decision for each application. [`explain`] tells one decision
//! with every candidate, or what another value would have changed.
//!
//! # Guarantees
//! - An application is bound only to an online cluster that meets all its constraints (invariant I11).
//! - The same input gives the same pass. What a pass places never changes a score of the same pass.
//! - A pass over the result of a pass, with nothing else changed, decides nothing (invariant I12).
//! - Missing values of metrics move nothing, and place nothing as if there were no metrics.
//! - A constraint is evaluated once for each distinct text and a set of constraints ranked once, so that a pass over
//!   10,000 applications and 1,000 clusters takes far less than a second.
//!
//! # Assumes
//! The snapshot shows one revision of the store. What was stored by others may be anything that can be read.
//!
//! # Does not
//! The brain knows no clock, no chance and no I/O. Nothing here deploys, or looks whether a cluster answers.

mod actor;
mod application;
mod backends;
mod batch;
mod bits;
mod book;
mod config;
mod creation;
mod draft;
mod draw;
mod explain;
mod failure;
pub mod gc;
mod limits;
mod memory;
mod moves;
mod pass;
mod scope;
mod snapshot;
mod target;
mod upkeep;

pub use crate::actor::telemetry::describe_metrics;
pub use crate::actor::{Scheduler, SchedulerArguments, SchedulerState};
pub use crate::backends::Placed;
pub use crate::config::{Candidates, ClusterCreation, MaxMoves, SchedulerConfig};
pub use crate::draft::{Deletion, ObjectWrite, Unit, What};
pub use crate::explain::explain;
pub use crate::memory::{ClusterMemory, Kept, Memory, Moves};
pub use crate::pass::{Pass, PassInput, pass};
pub use crate::snapshot::{Seen, Snapshot};

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
