//! The options for opening an embedded store, and the errors of opening it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use redb::StorageBackend;

pub use crate::limits::{DEFAULT_CACHE_BYTES, DEFAULT_MAX_REQUEST_BYTES, DEFAULT_QUOTA_BYTES};
use crate::snapshot::Snapshot;

#[derive(Debug, Clone)]
pub struct Options {
    pub backend: Backend,
    pub commit: Commit,
    /// Seed of the ids of leases and of a new store (cluster, member).
    pub seed: u64,
    pub auto_compaction: AutoCompaction,
    /// Size of the page cache in bytes.
    pub cache_bytes: usize,
    /// Limit of keys and values in bytes, history included. Above it, puts are refused with etcd's "database space
    /// exceeded".
    pub quota_bytes: u64,
    /// Maximum size of a write request in bytes (etcd's `--max-request-bytes`).
    pub max_request_bytes: usize,
    /// The member's name in `member list`.
    pub name: String,
    /// Client URLs in `member list`. They open no listener.
    pub advertise_client_urls: Vec<String>,
    /// Mark of the process that opens the store. The file records it with each lease of [`EmbeddedEtcd::direct_client`]; the
    /// next process finds these leases by [`EmbeddedEtcd::left`]. `None` records nothing.
    ///
    /// [`EmbeddedEtcd::direct_client`]: crate::EmbeddedEtcd::direct_client
    /// [`EmbeddedEtcd::left`]: crate::EmbeddedEtcd::left
    pub owner: Option<String>,
    /// Initial contents of a new store; ignored for an existing one.
    pub contents: Option<InitialContents>,
    /// Initial contents with history and leases; ignored for an existing store.
    pub snapshot: Option<Arc<Snapshot>>,
}

/// Contents of another store at one revision. A new store continues from that revision, as if it had been compacted
/// there. Every key keeps its revisions, because other systems refer to them.
#[derive(Debug, Clone, Default)]
pub struct InitialContents {
    /// Revision of the contents; that of a new store is 1.
    pub revision: i64,
    pub pairs: BTreeMap<Vec<u8>, InitialValue>,
}

/// A value with its revisions, without a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InitialValue {
    pub value: Bytes,
    /// Creation revision, at least 1.
    pub create_revision: i64,
    /// Revision of the last change, between the creation revision and the revision of the contents.
    pub mod_revision: i64,
}

impl Options {
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

#[derive(Debug, Clone)]
pub enum Backend {
    /// A file in this directory, which is created if it is missing.
    File(PathBuf),
    /// In memory; lost when the store closes.
    Memory,
    /// A storage of the owner, for example one that loses unsynced data. Data must survive once `sync_data` has
    /// returned; unsynced writes may survive in any order.
    Custom(Arc<dyn StorageBackend>),
}

/// Task or thread that applies and commits writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Commit {
    /// A task on the runtime that opens the store; it blocks that thread while the storage works. For simulations: with
    /// a storage in memory and one thread, runs repeat for the same input.
    Inline,
    /// A thread of the store's own. For production: the runtime never waits for the disk.
    Thread,
}

/// Length of the history. The store compacts revisions older than the newest `keep_revisions`, or beyond `keep_bytes`
/// of superseded data. Watches that resume within this history miss nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AutoCompaction {
    /// True if the store compacts by itself. If not, the file grows until a client compacts.
    pub enabled: bool,
    /// Minimum number of revisions to keep, unless `keep_bytes` is exceeded.
    pub keep_revisions: u32,
    /// Maximum bytes of keys and values that the history covers.
    pub keep_bytes: u64,
}

impl Default for AutoCompaction {
    /// 10,000 revisions (hours of changes in a busy cluster; for its revision mode etcd suggests 1,000 to 10,000) and
    /// 64 MiB (because 10,000 large values would fill a disk).
    fn default() -> Self {
        Self { enabled: true, keep_revisions: 10_000, keep_bytes: 64 * 1024 * 1024 }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process, or another store of this process, uses the directory.
    #[error("the data directory {directory} is in use by another process: stop it, or use another directory")]
    InUse { directory: String },
    /// The file is not a valid file of this store.
    #[error(
        "the store's file {file} is damaged ({detail}) and was not changed; restore a snapshot in its place \
         (madako store restore SNAPSHOT --to DIRECTORY --force), or move it away to begin with an empty store"
    )]
    Damaged { file: String, detail: String },
    /// A store exists already and must not be replaced.
    #[error(
        "{file} exists already: restore to another directory, or replace the file with --force, which keeps \
         it under another name"
    )]
    Exists { file: String },
    /// The initial contents contradict themselves.
    #[error(
        "cannot write the initial contents of the store: the key {key:?} has the revision {mod_revision}, which is not \
         between its creation and the revision {revision} of the contents"
    )]
    Contents {
        key: String,
        /// Revision of the key's last change.
        mod_revision: i64,
        revision: i64,
    },
    #[error("cannot {operation} {object}")]
    Io { operation: &'static str, object: String, source: std::io::Error },
    #[error(
        "cannot start the thread that writes to the embedded store: check the limit of threads of this user (ulimit -u)"
    )]
    Thread(#[source] std::io::Error),
}
