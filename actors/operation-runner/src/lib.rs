//! OperationRunner: closes the difference between the cluster configuration and the nodes, one operation at a time.
//!
//! The brain is [`decide`]: it maps the configuration, the state of the nodes and of etcd to the phase, the operations
//! of this round, and the operations that wait, with their reasons. The phases and operations are those of CKE
//! (`docs/decisions/operations-beside-cke.md` lists the differences).
//!
//! # Guarantees
//! - Equal inputs give equal decisions.
//! - A decision acts on no node that is unreachable or backs off.
//! - No operation breaks invariant I2: it leaves a majority of the voting members of etcd in sync.
//! - etcd never starts on an empty volume, except in a bootstrap and as a member that was added before, and data are
//!   never initialised a second time.
//! - A container of another program is never touched.
//!
//! # Assumes
//! The states are newer than the last effect: the caller checks their age. At most one operation runs at a time.
//!
//! # Does not
//! Use a clock, randomness or I/O. The operations of Kubernetes and of the queues do not exist yet.

mod actor;
mod backing_off;
mod bootstrap;
mod certificates;
pub mod command;
mod decide;
pub mod held;
mod input;
pub mod limits;
mod maintain;
pub mod operation;
pub mod page;
mod records;
mod rivers;
mod start;
mod stop;
#[cfg(test)]
mod tests;
mod view;
pub mod wanted;

pub use crate::actor::{METRICS, Runner, RunnerArguments, RunnerPorts};
pub use crate::decide::{Decision, decide};
pub use crate::input::{Images, Input, Settings};
