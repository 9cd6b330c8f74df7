//! Backups of the cluster's etcd on the leader's host, by a schedule.
//!
//! # Guarantees
//! - One backup at a time. The next one begins `every` after the last backup that counts, and after a failure with a
//!   growing pause.
//! - A backup counts when its record is committed. With `prove`, a backup without a successful proof has no record.
//! - Older backups are removed after a new one is written, but never the one of the record.
//! - Each effect begins with a permit of the epoch. The end of the reign ends the effects.
//!
//! # Assumes
//! The port ends what it started when its future is dropped, and bounds each step in time and size.
//!
//! # Does not
//! Announce a backup before it begins: a second one does no harm, and a backup that a dead leader began leaves no trace
//! but a file.

mod actor;
mod limits;
mod schedule;

pub use crate::actor::{Backups, BackupsArguments, METRICS};
