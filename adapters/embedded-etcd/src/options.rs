//! How a store is opened, and why it may not be.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use redb::StorageBackend;

pub use crate::limits::{DEFAULT_CACHE_BYTES, DEFAULT_MAX_REQUEST_BYTES, DEFAULT_QUOTA_BYTES};
use crate::snapshot::Snapshot;

/// How a store is opened.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where the data is.
    pub backend: Backend,
    /// Who commits.
    pub commit: Commit,
    /// Where the ids of a new store (cluster, member) and of leases come from.
    pub seed: u64,
    /// How much history is kept.
    pub auto_compaction: AutoCompaction,
    /// Bytes of pages that are kept in memory.
    pub cache_bytes: usize,
    /// Bytes of keys and values, history included, above which puts are refused with etcd's "database space exceeded".
    pub quota_bytes: u64,
    /// Most bytes of a write request (etcd's `--max-request-bytes`).
    pub max_request_bytes: usize,
    /// The member's name in `member list`.
    pub name: String,
    /// The URLs that `member list` says clients dial. Nothing is opened by them.
    pub advertise_client_urls: Vec<String>,
    /// Mark of the process that opens the store. The file notes it with each lease of [`EmbeddedEtcd::client`]; the next
    /// process finds these leases by [`EmbeddedEtcd::left`]. `None`: nothing is noted.
    ///
    /// [`EmbeddedEtcd::client`]: crate::EmbeddedEtcd::client
    /// [`EmbeddedEtcd::left`]: crate::EmbeddedEtcd::left
    pub owner: Option<String>,
    /// What a new store begins with; one that is there already has what it has.
    pub contents: Option<Contents>,
    /// The same with history and leases.
    pub snapshot: Option<Arc<Snapshot>>,
}

/// What another store held at one revision. A store that begins with it goes on from that revision, as one that was compacted
/// there would: every key has the revisions that it had, since others refer to them.
#[derive(Debug, Clone, Default)]
pub struct Contents {
    /// The revision; a new store's own is 1.
    pub revision: i64,
    /// The pairs, by their keys.
    pub pairs: BTreeMap<Vec<u8>, Pair>,
}

/// A value, and when it was written. It hangs on no lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pair {
    /// The value.
    pub value: Bytes,
    /// Revision of its creation, from 1 on.
    pub create_revision: i64,
    /// Revision of its last change, from its creation to the revision of all.
    pub mod_revision: i64,
}

impl Options {
    /// Everything at its default, on `backend`.
    pub fn new(backend: Backend, commit: Commit, seed: u64) -> Self {
        Self {
            backend,
            commit,
            seed,
            auto_compaction: AutoCompaction::default(),
            cache_bytes: DEFAULT_CACHE_BYTES,
            quota_bytes: DEFAULT_QUOTA_BYTES,
            max_request_bytes: DEFAULT_MAX_REQUEST_BYTES,
            name: "madako".to_owned(),
            advertise_client_urls: Vec::new(),
            owner: None,
            contents: None,
            snapshot: None,
        }
    }
}

/// Where the data is.
#[derive(Debug, Clone)]
pub enum Backend {
    /// In a file in this directory, which is made if it is not there.
    File(PathBuf),
    /// In memory: gone with the store.
    Memory,
    /// On a storage of the owner's, for example one that forgets what was not synced. What `sync_data` has answered
    /// must stay; the order in which unsynced writes survive is free.
    Custom(Arc<dyn StorageBackend>),
}

/// Who applies and commits writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Commit {
    /// A task on the runtime that the store is opened on; it blocks that thread for as long as the storage takes.
    /// For simulations: with a storage in memory and one thread, runs are the same for the same input.
    Inline,
    /// A thread of the store's own. For production: the runtime never waits for the disk.
    Thread,
}

/// How much history is kept: what is older than the newest `keep_revisions`, or beyond `keep_bytes` of superseded data,
/// is compacted by the store itself. Watches that resume from within this history lose nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AutoCompaction {
    /// Whether the store compacts by itself. Without, the file grows until a client compacts.
    pub enabled: bool,
    /// Revisions that are kept at least, unless `keep_bytes` says otherwise.
    pub keep_revisions: u32,
    /// Bytes of keys and values written that history may reach back over.
    pub keep_bytes: u64,
}

impl Default for AutoCompaction {
    /// 10,000 revisions (hours of a busy cluster's changes; etcd's own revision mode suggests 1,000 to 10,000) and
    /// 64 MiB (so that large values, of which 10,000 would fill a disk, do not).
    fn default() -> Self {
        Self { enabled: true, keep_revisions: 10_000, keep_bytes: 64 * 1024 * 1024 }
    }
}

/// Why a store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process, or another store of this one, has the directory.
    #[error("the data directory {directory} is in use by another process: stop it, or use another directory")]
    InUse {
        /// The directory.
        directory: String,
    },
    /// The file is not what this store wrote.
    #[error(
        "the store's file {file} is damaged ({detail}). It was left as it is. \
         Restore a snapshot in its place (madako store restore SNAPSHOT --to DIRECTORY --force), or move it away to begin \
         with an empty store"
    )]
    Damaged {
        /// The file.
        file: String,
        /// What is wrong with it.
        detail: String,
    },
    /// A store that is not to be replaced.
    #[error(
        "{file} is there already: restore to another directory, or replace it with --force, which keeps it aside"
    )]
    Exists {
        /// Its file.
        file: String,
    },
    /// What the store was to begin with contradicts itself.
    #[error("the key {key:?} was written at revision {mod_revision} of {revision}, which cannot be")]
    Contents {
        /// The key.
        key: String,
        /// When it was written last.
        mod_revision: i64,
        /// The revision of all.
        revision: i64,
    },
    /// The operating system refused something.
    #[error("{operation} {object} failed")]
    Io {
        /// What was tried.
        operation: &'static str,
        /// On what.
        object: String,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// The writer's thread did not start.
    #[error("starting the thread that writes failed")]
    Thread(#[source] std::io::Error),
}
