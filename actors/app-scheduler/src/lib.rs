//! AppScheduler: decides which cluster runs an application, which cloud hosts a cluster, and which project a Magnum
//! cluster (Krake's "Scheduling").
//!
//! The pure function [`make_pass`] maps placement's resources, metrics, settings, memory, time and a seed to writes, with a
//! decision for each application. [`explain`] shows one decision with every candidate, or the effect of another value.
//!
//! # Guarantees
//! - An application is bound only to an online cluster that meets all its constraints (invariant I11).
//! - Equal input gives an equal pass. The bindings of a pass do not change scores of the same pass.
//! - A pass over the result of a pass, with nothing else changed, decides nothing (invariant I12).
//! - Missing metric values cause no moves, and no placement without the metrics.
//! - Each distinct constraint is evaluated once, and each set of constraints ranked once, so that a pass over 10,000
//!   applications and 1,000 clusters takes far less than a second.
//!
//! # Assumes
//! The snapshot shows one revision of the store. Resources that other clients stored may have any readable value.
//!
//! # Does not
//! The pure part uses no clock, no randomness and no I/O. This crate neither deploys nor probes clusters.

mod actor;
mod application;
mod backends;
mod batch;
mod bits;
mod config;
mod creation;
mod draft;
mod draw;
mod explain;
mod failure;
pub mod gc;
mod limits;
mod memory;
mod metric_values;
mod moves;
mod pass;
mod scope;
mod snapshot;
mod target;
mod upkeep;

pub use crate::actor::telemetry::METRICS;
pub use crate::actor::{Scheduler, SchedulerArguments, SchedulerState};
pub use crate::backends::BackendOutcome;
pub use crate::config::{Candidates, ClusterCreation, MaxMoves, SchedulerConfig};
pub use crate::draft::{Deletion, ObjectWrite, WriteKind, WriteUnit};
pub use crate::explain::{ExplainedPass, explain};
pub use crate::memory::{ClusterMemory, Memory, MemoryChange, Moves};
pub use crate::pass::{Pass, PassInput, make_pass};
pub use crate::snapshot::{Snapshot, TypedResource};

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
