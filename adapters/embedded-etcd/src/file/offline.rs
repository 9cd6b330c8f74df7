//! Operations on the file of a closed embedded store: verification, and restoring from a snapshot.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use redb::backends::FileBackend;
use redb::{Database, ReadableDatabase as _};
use tokio::sync::mpsc;

use super::disk::Disk;
use super::open::{FILE_NAME, LOCK_NAME, check_file, create_file, damaged_file, lock_directory, open_error};
use crate::failure::{Failure, Snapshot as ReadableRevisions};
use crate::limits::MAX_WAITING_PARTS;
use crate::options::{Backend, Commit, DEFAULT_CACHE_BYTES, OpenError, Options};
use crate::snapshot::{Snapshot, send_snapshot};

/// A file without checksum errors.
#[derive(Debug, Clone)]
pub struct VerifiedFile {
    pub file: PathBuf,
    pub bytes: u64,
    pub revision: i64,
    /// Revision of the last compaction; -1 if there was none.
    pub compacted: i64,
    /// True if the last process closed it properly.
    pub was_closed: bool,
}

/// Verifies every page and every record of a store's file; `path` is the file or its directory. Writes nothing.
///
/// # Errors
/// The file is damaged, in use, or cannot be read.
pub fn verify(path: &Path) -> Result<VerifiedFile, OpenError> {
    open_verified(path).map(|open| open.verified)
}

/// Passes the snapshot of a store's file to `take`, in the format of `etcdctl snapshot save`; `path` is the file or its
/// directory. Verifies the store first and writes nothing to it.
///
/// # Errors
/// Those of [`verify`], or an error of `take`.
pub async fn save_snapshot(
    path: &Path,
    mut take: impl FnMut(&[u8]) -> io::Result<()>,
) -> Result<VerifiedFile, OpenError> {
    let OpenFile { verified, database, _lock } = open_verified(path)?;
    let shown = verified.file.display().to_string();
    let transaction = database.begin_read().map_err(|error| damaged_file(&shown, error.to_string()))?;
    let (parts, mut made) = mpsc::channel(MAX_WAITING_PARTS);
    let view = ReadableRevisions::new(transaction, &Failure::unset());
    let making = async move { send_snapshot(view, &parts).await };
    // When this ends, it drops the receiver, which stops the producer.
    let taking = async move {
        while let Some(part) = made.recv().await {
            // Only streams to clients carry errors.
            let part = part.map_err(|status| io::Error::other(status.to_string()))?;
            take(&part.blob)?;
        }
        Ok(())
    };
    let (made, taken) = tokio::join!(making, taking);
    taken.map_err(|source| open_error("write", "the snapshot", source))?;
    made.map_err(|refusal| damaged_file(&shown, refusal.to_string()))?;
    Ok(verified)
}

struct OpenFile {
    verified: VerifiedFile,
    database: Database,
    _lock: Option<File>,
}

fn open_verified(path: &Path) -> Result<OpenFile, OpenError> {
    let (directory, file) = match path.is_dir() {
        true => (Some(path), path.join(FILE_NAME)),
        false => (path.parent(), path.to_owned()),
    };
    let _lock = match directory {
        Some(directory) if directory.join(LOCK_NAME).exists() => Some(lock_directory(directory)?),
        _ => None,
    };
    let shown = file.display().to_string();
    let opened = File::open(&file).map_err(|source| open_error("open", &shown, source))?;
    let bytes = opened.metadata().map_err(|source| open_error("read the metadata of", &shown, source))?.len();
    if bytes == 0 {
        return Err(damaged_file(&shown, "it is empty".to_owned()));
    }
    let storage = FileBackend::new(opened).map_err(|error| damaged_file(&shown, error.to_string()))?;
    // redb's writes during the opening stay in the rehearsal.
    let disk = Disk::for_rehearsal(Arc::new(storage)).map_err(|source| open_error("read", &shown, source))?;
    let checked = check_file(&disk, DEFAULT_CACHE_BYTES, &shown)?;
    let loaded = checked.loaded.ok_or_else(|| damaged_file(&shown, "it has no tables".to_owned()))?;
    let view = loaded.view;
    let verified = VerifiedFile {
        file,
        bytes,
        revision: view.current,
        compacted: view.compacted,
        was_closed: checked.was_closed,
    };
    Ok(OpenFile { verified, database: checked.database, _lock })
}

/// Creates a store's file in `directory` from a snapshot. With `replace`, an existing file is kept under the returned
/// name; without `replace`, an existing file is an error.
///
/// # Errors
/// The directory is in use, has a store already, or cannot be written.
pub fn restore(
    snapshot: Snapshot,
    directory: &Path,
    replace: bool,
    seed: u64,
) -> Result<Option<PathBuf>, OpenError> {
    fs::create_dir_all(directory).map_err(|source| open_error("create", directory.display(), source))?;
    let _lock = lock_directory(directory)?;
    let file = directory.join(FILE_NAME);
    let mut kept = None;
    if file.try_exists().map_err(|source| open_error("find", file.display(), source))? {
        if !replace {
            return Err(OpenError::Exists { file: file.display().to_string() });
        }
        // A hard link: the original name refers to a complete store at every moment.
        let name = (1..).map(|number| directory.join(format!("{FILE_NAME}.before-restore-{number}")));
        let name = name.into_iter().find(|name| !name.exists()).unwrap_or_default();
        fs::hard_link(&file, &name).map_err(|source| open_error("keep a copy of", file.display(), source))?;
        kept = Some(name);
    }
    let mut options = Options::new(Backend::File(directory.to_owned()), Commit::Inline, seed);
    options.snapshot = Some(Arc::new(snapshot));
    match create_file(&options, directory) {
        Ok(opened) => {
            drop(opened);
            Ok(kept)
        }
        Err(error) => {
            if let Some(kept) = kept {
                // The store itself is unchanged; only its second name is left over.
                let _ = fs::remove_file(kept);
            }
            Err(error)
        }
    }
}
