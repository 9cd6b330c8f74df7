//! The etcd v3 API in-process. It stores Madako's state if no etcd is configured, and it is the store of the
//! simulations.
//!
//! Flow: clients reach [`EmbeddedEtcd`] over TCP ([`EmbeddedEtcd::serve`]), over a stream in memory
//! ([`EmbeddedEtcd::connect_in_memory`]) or directly ([`EmbeddedEtcd::direct_client`]). Reads use an index in memory and
//! values from the file. Writes wait for the single writer, which commits all waiting writes with one sync.
//!
//! Guarantees: an acknowledged write is on disk. Revisions, errors and watch events are those of etcd 3.4 (the contract
//! suite compares them). A damaged file is refused and left unchanged. A second process on the same directory is
//! refused. Time is `tokio::time`'s, ids come from the seed, and the only thread is the writer's with
//! [`Commit::Thread`]: on one thread with a storage in memory, runs repeat.
//!
//! Assumes: a storage that keeps synced data; clients that may read all keys (there are no users; TLS client
//! certificates are the only access control).
//!
//! Does not: replicate, authenticate users, change its membership, or use etcd's own file format except for snapshots.

mod auto_compaction;
mod batch;
mod bell;
mod check;
mod crc32c;
mod embedded;
mod failure;
mod file;
mod hash;
mod index;
mod leases;
mod limits;
mod net;
mod options;
mod random;
mod range;
mod recent;
mod record;
mod request_error;
mod services;
mod snapshot;
mod span;
mod store;
mod txn;
mod watch;
mod writer;

pub use embedded::{EarlierLeases, EmbeddedEtcd, LeftLease, ServeError};
pub use file::{VerifiedFile, restore, save_snapshot, verify};
pub use net::{ServerHandle, ServerTls, TlsError};
pub use options::{
    AutoCompaction, Backend, Commit, DEFAULT_CACHE_BYTES, DEFAULT_MAX_REQUEST_BYTES, DEFAULT_QUOTA_BYTES,
    InitialContents, InitialValue, OpenError, Options,
};
pub use redb::{BackendError, StorageBackend};
pub use snapshot::{Snapshot, SnapshotError};
