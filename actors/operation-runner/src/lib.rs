//! OperationRunner: closes the difference between the cluster configuration and the nodes, one operation at a time.
//!
//! The pure function [`decide`] maps the configuration, the state of the nodes and of etcd to the phase, the operations
//! of this reconcile pass, and the operations that wait, with their reasons. The phases and operations are those of CKE
//! (`docs/decisions/operations-beside-cke.md` lists the differences).
//!
//! The actor [`Runner`] acts on the decisions. A pass is: collect the states, decide, record the first operation with
//! its first command, run its commands one after another, each announced by the record before it begins, and collect
//! anew.
//!
//! # Guarantees
//! - Equal inputs give equal decisions. The pure part uses no clock, no randomness and no I/O.
//! - A decision uses states that are newer than the last effect and not older than one interval.
//! - At most one operation runs at a time, and its record says which command.
//! - A command that may stop or remove a member runs only if etcd answers, and if I2 holds on the present members.
//! - A failed command cancels its operation, and its nodes are left out for a while.
//! - A decision acts on no node that is unreachable or backs off.
//! - No operation breaks invariant I2: it leaves a majority of the voting members of etcd in sync.
//! - A restore of etcd begins only if no majority of the members answers, and replaces no data before the snapshot is
//!   proved. Data that are older than a restore never serve again.
//! - etcd never starts on an empty volume, except in a bootstrap and as a member that was added before, and data are
//!   never initialised a second time.
//! - A container of another program is never touched.
//!
//! # Assumes
//! The actors of the nodes, and the leader, which permits each action and commits each change of a record.
//!
//! # Does not
//! Retry a command, or go on with the operation of an earlier leader: it cancels the record and reads the states again. The
//! operations of the queues do not exist yet.

mod actor;
mod backing_off;
mod bootstrap;
mod certificates;
pub mod command;
mod decide;
pub mod difference;
mod early_ends;
pub mod held;
pub mod images;
mod input;
pub mod kubernetes;
pub mod limits;
mod maintain;
pub mod operation;
pub mod outdated;
pub mod page;
mod records;
mod restart;
mod restore;
mod rivers;
mod start;
mod stop;
pub mod stories;
mod survey;
#[cfg(test)]
mod tests;
mod view;
pub mod wanted;

pub use crate::actor::{METRICS, Runner, RunnerArguments, RunnerPorts};
pub use crate::decide::{Decision, decide};
pub use crate::input::{
    Images, Input, KubernetesMode, KubernetesPart, ObjectsPart, RequestedRestore, Settings,
};
pub use crate::kubernetes::minor_upgrade::MinorUpgrade;
pub use crate::restore::plan_restore;
pub use crate::survey::{SurveyAccess, due_files, survey_fleet};
