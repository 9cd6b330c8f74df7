//! The store: a typed view of etcd below one prefix.
//!
//! For: all parts of the service that read, write or watch etcd, and for leadership.
//!
//! Guarantees:
//! - Reads are linearizable. A transaction is atomic and is sent to the store once.
//! - A watch delivers every change in the order of revisions and never splits a revision. It sends
//!   [`WatchEvent::Listed`](madako_protocol::store::WatchEvent) whenever it may have missed changes: after a
//!   compaction, and when the store behind the address was replaced or reset to an earlier state.
//! - Of all campaigns on one prefix (including CKE's) at most one leads. Each ends its epoch by its own clock before the
//!   store could elect another.
//! - Placement's resources are read from a cache that shows all writes that completed before the read began
//!   ([`CachedObjects`]). Their secrets are encrypted in etcd if there are keys ([`Encryption`]).
//! - Every request has a deadline, and every list, page and message a limit. Passwords and keys are in no log, no error
//!   and no `Debug` output.
//!
//! Assumes: an etcd of version 3.4 or later, or a compatible store; clocks that run at the same rate to within the
//! safety margin (a tenth of the lease, at most 5 s) and do not stop while the machine runs. A suspended machine can
//! consider its lease valid for too long; the store still refuses its writes, because each compares the leader key.
//!
//! Does not: interpret other values, cache them, or retry a transaction.
//!
//! Everything runs on the caller's tokio runtime and clock, and draws random numbers from the given seed.

mod backoff;
mod campaign;
mod commit;
mod config;
mod connections;
mod copy;
mod encryption;
mod error;
mod limits;
mod list;
mod namespace;
mod objects;
mod saved;
mod store;
mod telemetry;
mod watch;

pub use config::{ConfigError, DEFAULT_ENDPOINT, DEFAULT_TIMEOUT, StoreConfig};
pub use connections::{BoxedStream, Stream};
pub use copy::{CopyReader, Keyspace};
pub use encryption::{DecryptError, EncryptError, Encryption};
pub use madako_encryption::KeysError;
pub use objects::CachedObjects;
pub use saved::SaveError;
pub use store::{EtcdStore, StoreCondition};
pub use telemetry::{METRICS, register_counters};
