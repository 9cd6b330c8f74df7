//! The store: a typed view of etcd below one prefix.
//!
//! For: every part of the service that reads, writes or watches etcd, and for leadership.
//!
//! Guarantees:
//! - reads are linearizable, and a transaction is all or nothing and sent to the store once;
//! - a watch tells every change in the order of the revisions, never half a revision, and says
//!   [`WatchEvent::Listed`](madako_protocol::store::WatchEvent) whenever it cannot know what it missed: after a
//!   compaction, and when the store behind the address is another one or went back in time;
//! - of all campaigns on one prefix (CKE's too) at most one leads, and each ends its term by its own
//!   clock before the store could give leadership to another;
//! - placement's resources are read from a cache that shows everything that was written before a read began
//!   ([`CachedObjects`]); their secrets are encrypted in etcd where there are keys for it ([`Sealing`]);
//! - every request has a deadline, every list, page and message a limit, and passwords and keys reach
//!   no log, no error and no `Debug` output.
//!
//! Assumes: an etcd of version 3.4 or later, or something that answers like it; clocks that run at the
//! same rate to within the safety margin (a tenth of the lease, at most 5 s) and do not stand still while
//! the machine runs. A machine that was suspended can believe in its lease for longer: its writes are
//! refused by the store all the same, because each compares the leader key.
//!
//! Does not: interpret other values, cache them, or retry a transaction.
//!
//! Everything runs on the caller's tokio runtime, by tokio's clock, and draws from the seed it was given.

mod backoff;
mod campaign;
mod commit;
mod config;
mod copy;
mod error;
mod limits;
mod lines;
mod list;
mod namespace;
mod objects;
mod saved;
mod sealing;
mod store;
mod telemetry;
mod watch;

pub use config::{ConfigError, DEFAULT_ENDPOINT, DEFAULT_TIMEOUT, Secret, StoreConfig};
pub use copy::{CopyReader, Keyspace};
pub use lines::{BoxedStream, Stream};
pub use objects::CachedObjects;
pub use saved::SaveError;
pub use sealing::{KeysError, OpenError, SealError, Sealing};
pub use store::EtcdStore;
pub use telemetry::describe_metrics;
