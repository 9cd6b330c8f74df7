//! The etcd v3 API in-process: what Madako keeps its state in when no etcd is configured, and what its simulations run on.
//!
//! Flow: clients reach [`EmbeddedEtcd`] over TCP ([`EmbeddedEtcd::serve`]), over a stream in memory
//! ([`EmbeddedEtcd::connect_in_memory`]) or directly ([`EmbeddedEtcd::client`]). Reads are answered from an index in
//! memory and values from the file; writes wait for the one writer, which commits all that wait with one sync.
//!
//! Guarantees: what is answered is on disk; revisions, errors and watch events are those of etcd 3.4 (the contract suite
//! compares them); a damaged file is refused and left as it is; a second process on the same directory is refused.
//! Time is `tokio::time`'s, ids come from the seed, and the only thread is the writer's, where [`Commit::Thread`] asks
//! for it: on one thread with a storage in memory, runs repeat.
//!
//! Assumes: a storage that keeps what it has synced; requests come from people and programs that may see all keys
//! (there are no users: TLS client certificates are the only guard).
//!
//! Does not: replicate, authenticate users, change its membership, or read and write etcd's own file format but in snapshots.

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
mod refusal;
mod services;
mod snapshot;
mod span;
mod store;
mod txn;
mod watch;
mod writer;

pub use embedded::{EmbeddedEtcd, Left, LeftLease, ServeError};
pub use file::{Verified, restore, save, verify};
pub use net::{ServerHandle, ServerTls, TlsError};
pub use options::{
    AutoCompaction, Backend, Commit, Contents, DEFAULT_CACHE_BYTES, DEFAULT_MAX_REQUEST_BYTES,
    DEFAULT_QUOTA_BYTES, OpenError, Options, Pair,
};
pub use redb::{BackendError, StorageBackend};
pub use snapshot::{Snapshot, SnapshotError};
