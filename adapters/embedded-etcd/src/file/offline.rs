//! Work on the file of a store that no process has open.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use redb::backends::FileBackend;
use redb::{Database, ReadableDatabase as _};
use tokio::sync::mpsc;

use super::disk::Disk;
use super::open::{FILE_NAME, LOCK_NAME, check, damaged, failed, lock, make};
use crate::failure::{Failure, Snapshot as View};
use crate::limits::MAX_WAITING_PARTS;
use crate::options::{Backend, Commit, DEFAULT_CACHE_BYTES, OpenError, Options};
use crate::snapshot::{Snapshot, send};

/// A file whose checksums are all right.
#[derive(Debug, Clone)]
pub struct Verified {
    /// The file.
    pub file: PathBuf,
    /// Its bytes.
    pub bytes: u64,
    /// The newest revision.
    pub revision: i64,
    /// Revision of the last compaction, -1 without one.
    pub compacted: i64,
    /// Whether the process that had it last closed it.
    pub was_closed: bool,
}

/// Verifies every page and every record of a file, or of the one in a directory. Nothing is written.
///
/// # Errors
/// The file is damaged, in use or cannot be read.
pub fn verify(path: &Path) -> Result<Verified, OpenError> {
    open_verified(path).map(|open| open.verified)
}

/// Hands out the snapshot of a file, or of the one in a directory, as `etcdctl snapshot save` writes it. The store is verified first,
/// and nothing is written to it.
///
/// # Errors
/// As of [`verify`]; or `take` failed.
pub async fn save(path: &Path, mut take: impl FnMut(&[u8]) -> io::Result<()>) -> Result<Verified, OpenError> {
    let OpenFile { verified, database, _lock } = open_verified(path)?;
    let shown = verified.file.display().to_string();
    let transaction = database.begin_read().map_err(|error| damaged(&shown, error.to_string()))?;
    let (parts, mut made) = mpsc::channel(MAX_WAITING_PARTS);
    let view = View::new(transaction, &Failure::none());
    let making = async move { send(view, &parts).await };
    // Its end drops the receiver: the maker does not go on without it.
    let taking = async move {
        while let Some(part) = made.recv().await {
            // Only a stream to a client has errors among its parts.
            let part = part.map_err(|status| io::Error::other(status.to_string()))?;
            take(&part.blob)?;
        }
        Ok(())
    };
    let (made, taken) = tokio::join!(making, taking);
    taken.map_err(|source| failed("writing", "the snapshot", source))?;
    made.map_err(|refusal| damaged(&shown, refusal.to_string()))?;
    Ok(verified)
}

/// A file that is open to be read.
struct OpenFile {
    verified: Verified,
    database: Database,
    _lock: Option<File>,
}

fn open_verified(path: &Path) -> Result<OpenFile, OpenError> {
    let (directory, file) = match path.is_dir() {
        true => (Some(path), path.join(FILE_NAME)),
        false => (path.parent(), path.to_owned()),
    };
    let _lock = match directory {
        Some(directory) if directory.join(LOCK_NAME).exists() => Some(lock(directory)?),
        _ => None,
    };
    let shown = file.display().to_string();
    let opened = File::open(&file).map_err(|source| failed("opening", &shown, source))?;
    let bytes = opened.metadata().map_err(|source| failed("looking at", &shown, source))?.len();
    if bytes == 0 {
        return Err(damaged(&shown, "it is empty".to_owned()));
    }
    let storage = FileBackend::new(opened).map_err(|error| damaged(&shown, error.to_string()))?;
    // What redb writes while it opens the file stays in the rehearsal.
    let disk = Disk::rehearse(Arc::new(storage)).map_err(|source| failed("reading", &shown, source))?;
    let checked = check(&disk, DEFAULT_CACHE_BYTES, &shown)?;
    let loaded = checked.loaded.ok_or_else(|| damaged(&shown, "it has no tables".to_owned()))?;
    let view = loaded.view;
    let verified = Verified {
        file,
        bytes,
        revision: view.current,
        compacted: view.compacted,
        was_closed: checked.was_closed,
    };
    Ok(OpenFile { verified, database: checked.database, _lock })
}

/// Makes the file of a store in `directory` from a snapshot. A file that is there stays, under the name that is returned,
/// with `replace`; without, it is an error.
///
/// # Errors
/// The directory is in use, has a store already, or cannot be written.
pub fn restore(
    snapshot: Snapshot,
    directory: &Path,
    replace: bool,
    seed: u64,
) -> Result<Option<PathBuf>, OpenError> {
    fs::create_dir_all(directory).map_err(|source| failed("making", directory.display(), source))?;
    let _lock = lock(directory)?;
    let file = directory.join(FILE_NAME);
    let mut kept = None;
    if file.try_exists().map_err(|source| failed("looking for", file.display(), source))? {
        if !replace {
            return Err(OpenError::Exists { file: file.display().to_string() });
        }
        // A second name: the first one has a whole store at every moment.
        let name = (1..).map(|number| directory.join(format!("{FILE_NAME}.before-restore-{number}")));
        let name = name.into_iter().find(|name| !name.exists()).unwrap_or_default();
        fs::hard_link(&file, &name).map_err(|source| failed("keeping", file.display(), source))?;
        kept = Some(name);
    }
    let mut options = Options::new(Backend::File(directory.to_owned()), Commit::Inline, seed);
    options.snapshot = Some(Arc::new(snapshot));
    match make(&options, directory) {
        Ok(opened) => {
            drop(opened);
            Ok(kept)
        }
        Err(error) => {
            if let Some(kept) = kept {
                // The store itself is as it was; what is left is a second name of it.
                let _ = fs::remove_file(kept);
            }
            Err(error)
        }
    }
}
