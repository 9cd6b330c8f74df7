//! Opens the file of the embedded store. The whole file is checked before the first write to it.
//!
//! Guarantees: a second process on the same directory is refused. A file that is damaged or not a store's is refused
//! and left unchanged byte for byte. A new file appears under its name only when it is complete.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use etcd_client::proto::PbKeyValue;
use redb::backends::{FileBackend, InMemoryBackend};
use redb::{Database, StorageBackend};

use super::disk::Disk;
use super::load::{LoadError, LoadedFile, load_store};
use super::progress::Step;
use super::tables::{Identity, LEASES, META, REVISIONS, meta};
use crate::options::{Backend, InitialContents, OpenError, Options};
use crate::random::SplitMix64;
use crate::record::{REVISION_BYTES, Record, Revision};
use crate::snapshot::Snapshot;

pub(super) const FILE_NAME: &str = "etcd.redb";
/// Temporary name while the file is created.
const NEW_FILE_NAME: &str = "etcd.redb.new";
/// Locked while a process uses the directory.
pub(super) const LOCK_NAME: &str = "LOCK";
/// Length of redb's magic number; these bytes are zero while redb creates the file.
const MAGIC_BYTES: usize = 9;

#[derive(Debug)]
pub(crate) struct OpenedFile {
    pub(crate) database: Database,
    pub(crate) disk: Arc<Disk>,
    pub(crate) loaded: LoadedFile,
    /// Excludes other processes while it is held.
    pub(crate) lock: Option<File>,
}

pub(crate) fn open_store(options: &Options) -> Result<OpenedFile, OpenError> {
    match &options.backend {
        Backend::Memory => open_on_storage(options, Arc::new(InMemoryBackend::new()), "memory"),
        Backend::Custom(storage) => {
            begin_anew_if_never_begun(&**storage)
                .map_err(|source| open_error("prepare", "the storage", source))?;
            open_on_storage(options, Arc::clone(storage), "the storage")
        }
        Backend::File(directory) => open_in_directory(options, directory),
    }
}

pub(crate) fn reopen_file(disk: &Arc<Disk>, cache_bytes: usize) -> Result<(Database, LoadedFile), LoadError> {
    open_database(disk.create_handle(), cache_bytes)
}

/// Reopens it read-only, for a storage that accepts no writes.
pub(crate) fn reopen_aside(
    disk: &Arc<Disk>,
    cache_bytes: usize,
) -> Result<(Database, LoadedFile), LoadError> {
    let aside = disk.open_overlay().map_err(|error| LoadError::Read(error.into()))?;
    open_database(aside, cache_bytes)
}

fn open_database(
    backend: impl StorageBackend,
    cache_bytes: usize,
) -> Result<(Database, LoadedFile), LoadError> {
    // redb would create a new database in an empty storage.
    if backend.len().map_err(redb::Error::Io)? == 0 {
        return Err(LoadError::NoEntry(meta::FORMAT));
    }
    let database = Database::builder()
        .set_cache_size(cache_bytes)
        .create_with_backend(backend)
        .map_err(|error| LoadError::Read(error.into()))?;
    let loaded = load_store(&database)?.ok_or(LoadError::NoEntry(meta::FORMAT))?;
    Ok((database, loaded))
}

fn open_in_directory(options: &Options, directory: &Path) -> Result<OpenedFile, OpenError> {
    let shown = directory.display().to_string();
    fs::create_dir_all(directory).map_err(|source| open_error("create", &shown, source))?;
    let lock = lock_directory(directory)?;
    let path = directory.join(FILE_NAME);
    let exists = path.try_exists().map_err(|source| open_error("find", path.display(), source))?;
    let mut opened = if exists {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .map_err(|source| open_error("open", path.display(), source))?;
        // A file gets its name only once it is complete, so an empty one was truncated; redb would create a new
        // database in it.
        if file.metadata().map_err(|source| open_error("read the metadata of", path.display(), source))?.len()
            == 0
        {
            return Err(damaged_file(path.display(), "it is empty".to_owned()));
        }
        open_file(options, file, &path)?
    } else {
        create_file(options, directory)?
    };
    opened.lock = Some(lock);
    Ok(opened)
}

pub(super) fn lock_directory(directory: &Path) -> Result<File, OpenError> {
    let path = directory.join(LOCK_NAME);
    let file = restrict_to_owner(OpenOptions::new().write(true).create(true).truncate(false))
        .open(&path)
        .map_err(|source| open_error("open", path.display(), source))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(OpenError::InUse { directory: directory.display().to_string() }),
        Err(TryLockError::Error(source)) => Err(open_error("lock", path.display(), source)),
    }
}

/// Creates an empty store that gets its name only when it is complete, so a crash leaves no partial store behind.
pub(super) fn create_file(options: &Options, directory: &Path) -> Result<OpenedFile, OpenError> {
    let path = directory.join(NEW_FILE_NAME);
    let fail = |source| open_error("create", path.display(), source);
    let file = restrict_to_owner(OpenOptions::new().read(true).write(true).create(true).truncate(true))
        .open(&path)
        .map_err(fail)?;
    let opened = open_file(options, file, &path)?;
    fs::rename(&path, directory.join(FILE_NAME)).map_err(fail)?;
    File::open(directory).and_then(|directory| directory.sync_all()).map_err(fail)?;
    Ok(opened)
}

fn open_file(options: &Options, file: File, path: &Path) -> Result<OpenedFile, OpenError> {
    let storage = FileBackend::new(file).map_err(|error| damaged_file(path.display(), error.to_string()))?;
    open_on_storage(options, Arc::new(storage), &path.display().to_string())
}

/// Only the owner of the file may read keys and values.
fn restrict_to_owner(options: &mut OpenOptions) -> &mut OpenOptions {
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(options, 0o600);
    options
}

/// Empties a storage whose creation a crash interrupted. No write on it was ever acknowledged.
fn begin_anew_if_never_begun(storage: &dyn StorageBackend) -> io::Result<()> {
    let len = storage.len()?;
    if len == 0 {
        return Ok(());
    }
    let mut magic = [0; MAGIC_BYTES];
    let there = usize::try_from(len).unwrap_or(MAGIC_BYTES).min(MAGIC_BYTES);
    storage.read(0, &mut magic[..there])?;
    if magic == [0; MAGIC_BYTES] { storage.set_len(0) } else { Ok(()) }
}

fn open_on_storage(
    options: &Options,
    storage: Arc<dyn StorageBackend>,
    name: &str,
) -> Result<OpenedFile, OpenError> {
    if let Some(contents) = &options.contents {
        check_contents(contents)?;
    }
    let disk = Disk::for_rehearsal(storage).map_err(|source| open_error("read", name, source))?;
    let CheckedFile { database, loaded, was_closed } = check_file(&disk, options.cache_bytes, name)?;
    if loaded.is_some() {
        tracing::info!(name, bytes = disk.len(), was_closed, "the embedded store's file is intact");
    }
    disk.accept_changes().map_err(|source| open_error("write", name, source))?;
    let loaded = begin_term(&database, loaded, options).map_err(|error| match error {
        redb::Error::Io(source) => open_error("write", name, source),
        other => open_error("write", name, io::Error::other(other)),
    })?;
    Ok(OpenedFile { database, disk, loaded, lock: None })
}

/// A database without checksum errors.
pub(super) struct CheckedFile {
    pub(super) database: Database,
    /// `None` if it has no tables yet.
    pub(super) loaded: Option<LoadedFile>,
    /// True if the last process closed it properly.
    pub(super) was_closed: bool,
}

/// Opens and reads the whole file, and verifies the checksums of every page. Catches redb's panics on inconsistent
/// pages.
pub(super) fn check_file(disk: &Arc<Disk>, cache_bytes: usize, name: &str) -> Result<CheckedFile, OpenError> {
    catch_unwind(AssertUnwindSafe(|| check_and_load(disk, cache_bytes)))
        .unwrap_or_else(|_| Err("its pages contradict one another".to_owned()))
        .map_err(|detail| damaged_file(name, detail))
}

/// The error describes the damage of the file.
fn check_and_load(disk: &Arc<Disk>, cache_bytes: usize) -> Result<CheckedFile, String> {
    let was_repaired = Arc::new(AtomicBool::new(false));
    let repaired = Arc::clone(&was_repaired);
    let mut database = Database::builder()
        .set_cache_size(cache_bytes)
        .set_repair_callback(move |_| repaired.store(true, Ordering::Relaxed))
        .create_with_backend(disk.create_handle())
        .map_err(|error| error.to_string())?;
    disk.enter_step(Step::Pages);
    if !database.check_integrity().map_err(|error| error.to_string())? {
        return Err("checksums of its pages are wrong".to_owned());
    }
    disk.enter_step(Step::Records);
    let loaded = load_store(&database).map_err(|error| error.detailed_message())?;
    Ok(CheckedFile { database, loaded, was_closed: !was_repaired.load(Ordering::Relaxed) })
}

/// Checks the revisions of each pair: 1 <= creation <= last change <= revision of the contents.
fn check_contents(contents: &InitialContents) -> Result<(), OpenError> {
    let wrong = contents.pairs.iter().find(|(_, pair)| {
        pair.create_revision < 1
            || pair.mod_revision < pair.create_revision
            || pair.mod_revision > contents.revision
    });
    wrong.map_or(Ok(()), |(key, pair)| {
        Err(OpenError::Contents {
            key: String::from_utf8_lossy(key).into_owned(),
            mod_revision: pair.mod_revision,
            revision: contents.revision,
        })
    })
}

/// Writes the initial contents of a new store. The number of writes of a key is unknown; its version is 1 if its two
/// revisions are equal, else 2.
fn write_initial_contents(
    revisions: &mut redb::Table<'_, &'static [u8; REVISION_BYTES], &'static [u8]>,
    contents: &InitialContents,
) -> Result<(), redb::Error> {
    let mut written: BTreeMap<i64, u32> = BTreeMap::new();
    let mut buffer = Vec::new();
    for (key, pair) in &contents.pairs {
        let sub = written.entry(pair.mod_revision).or_default();
        let revision = Revision { main: pair.mod_revision, sub: *sub };
        *sub += 1;
        let version = if pair.mod_revision == pair.create_revision { 1 } else { 2 };
        let record = Record { key, value: &pair.value, create: pair.create_revision, version, lease: 0 };
        record.encode_into(revision, &mut buffer);
        revisions.insert(&revision.to_bytes(), buffer.as_slice())?;
    }
    Ok(())
}

/// Writes the contents of a snapshot unchanged.
fn fill_from(
    revisions: &mut redb::Table<'_, &'static [u8; REVISION_BYTES], &'static [u8]>,
    leases: &mut redb::Table<'_, i64, i64>,
    snapshot: &Snapshot,
) -> Result<(), redb::Error> {
    let mut buffer = Vec::new();
    for (revision, pair) in &snapshot.changes {
        let PbKeyValue { key, value, create_revision, version, lease, .. } = pair;
        let record = Record { key, value, create: *create_revision, version: *version, lease: *lease };
        record.encode_into(*revision, &mut buffer);
        revisions.insert(&revision.to_bytes(), buffer.as_slice())?;
    }
    for (id, ttl_seconds) in &snapshot.leases {
        leases.insert(id, ttl_seconds)?;
    }
    Ok(())
}

/// Records the start of a new term, and for a new store its identity and contents.
fn begin_term(
    database: &Database,
    loaded: Option<LoadedFile>,
    options: &Options,
) -> Result<LoadedFile, redb::Error> {
    let transaction = database.begin_write()?;
    {
        let mut numbers = transaction.open_table(META)?;
        let mut revisions = transaction.open_table(REVISIONS)?;
        let mut leases = transaction.open_table(LEASES)?;
        let identity = match &loaded {
            Some(loaded) => Identity { term: loaded.identity.term + 1, ..loaded.identity },
            None => {
                let mut random = SplitMix64::new(options.seed);
                // A single etcd member that has just started is in its second term.
                Identity { cluster_id: random.next(), member_id: random.next(), term: 2 }
            }
        };
        numbers.insert(meta::TERM, identity.term)?;
        if loaded.is_none() {
            numbers.insert(meta::FORMAT, meta::CURRENT_FORMAT)?;
            numbers.insert(meta::CLUSTER_ID, identity.cluster_id)?;
            numbers.insert(meta::MEMBER_ID, identity.member_id)?;
            // Revisions before the contents are unavailable, as after a compaction.
            let restored = options.snapshot.as_ref().map_or(-1, |snapshot| snapshot.compacted);
            let compacted = options.contents.as_ref().map_or(restored, |contents| contents.revision);
            numbers.insert(meta::COMPACTED_PLUS_ONE, (compacted + 1).unsigned_abs())?;
            numbers.insert(meta::ALARMS, 0)?;
            if let Some(contents) = &options.contents {
                write_initial_contents(&mut revisions, contents)?;
            }
            if let Some(snapshot) = &options.snapshot {
                fill_from(&mut revisions, &mut leases, snapshot)?;
            }
        }
    }
    transaction.commit()?;
    if let Some(mut loaded) = loaded {
        loaded.identity.term += 1;
        return Ok(loaded);
    }
    load_store(database)
        .map_err(|error| match error {
            LoadError::Read(error) => error,
            other => redb::Error::Corrupted(other.to_string()),
        })?
        .ok_or_else(|| redb::Error::Corrupted("the new store has no contents".to_owned()))
}

pub(super) fn open_error(operation: &'static str, object: impl ToString, source: io::Error) -> OpenError {
    OpenError::Io { operation, object: object.to_string(), source }
}

pub(super) fn damaged_file(file: impl ToString, detail: String) -> OpenError {
    OpenError::Damaged { file: file.to_string(), detail }
}
