//! A directory with backups: its lock, its files, and what a killed process left in it.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use madako_protocol::backup::BackupError;
use ring::digest::{Context, SHA256, SHA256_OUTPUT_LEN};
use rustix::fs::{FlockOperation, flock};

use super::file_error;
use crate::limits::{MOST_FILES, VERIFIED_AT_ONCE};

/// Locked while a process works in the directory. It stays there.
const LOCK: &str = ".madako.lock";
const SCRATCH: &str = ".madako-proof";
/// A directory of a proof that is being removed: its etcd may still be ending, and cannot make new files in it.
const ENDED_SCRATCH: &str = ".madako-proof-ended";
/// End of the name of a file that is being written.
const PART: &str = ".backup.part";
/// etcd's database has pages of at least this size, so that a file of pages and a checksum has a known remainder.
const PAGE: u64 = 512;

/// A directory that no other process of this program works in.
pub(crate) struct Directory {
    path: PathBuf,
    _lock: File,
}

/// Runs blocking accesses to files beside the runtime. They end by themselves if the caller is gone.
#[expect(
    clippy::disallowed_methods,
    reason = "a slow disk must not block the runtime, and no simulation runs this"
)]
pub(crate) async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, BackupError> + Send + 'static,
) -> Result<T, BackupError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(file_error("work in", "the directory of backups", error)))
}

impl Directory {
    /// Creates the directory if it does not exist, takes its lock, and removes what killed processes left.
    pub(crate) async fn open(path: &Path) -> Result<Self, BackupError> {
        let path = path.to_owned();
        run_blocking(move || {
            let create = DirBuilder::new().recursive(true).mode(0o700).create(&path);
            create.map_err(|error| file_error("create", &path, error))?;
            let lock = path.join(LOCK);
            let opened = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&lock);
            let opened = opened.map_err(|error| file_error("open", &lock, error))?;
            match flock(&opened, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(rustix::io::Errno::WOULDBLOCK) => {
                    return Err(BackupError::Busy { directory: path });
                }
                Err(error) => return Err(file_error("lock", lock, error)),
            }
            let directory = Self { path, _lock: opened };
            directory.remove_left()?;
            Ok(directory)
        })
        .await
    }

    fn remove_left(&self) -> Result<(), BackupError> {
        for name in self.list_names()? {
            let path = self.path.join(&name);
            let removed = match name.as_str() {
                SCRATCH | ENDED_SCRATCH => fs::remove_dir_all(&path),
                name if name.starts_with('.') && name.ends_with(PART) => fs::remove_file(&path),
                _ => continue,
            };
            removed.map_err(|error| file_error("remove", path, error))?;
        }
        Ok(())
    }

    fn list_names(&self) -> Result<Vec<String>, BackupError> {
        let failed = |error: io::Error| file_error("list", &self.path, error);
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.path).map_err(failed)? {
            // Other names may not be UTF-8; ours are ASCII.
            if let Ok(name) = entry.map_err(failed)?.file_name().into_string() {
                names.push(name);
            }
            if names.len() > MOST_FILES {
                return Err(failed(io::Error::other(format!("it has more than {MOST_FILES} files"))));
            }
        }
        Ok(names)
    }

    pub(crate) async fn names(&self) -> Result<Vec<String>, BackupError> {
        self.list_names()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The file in which a backup is written before it has its name.
    pub(crate) fn unnamed_backup(&self, name: &str) -> UnnamedBackup {
        UnnamedBackup(self.path.join(format!(".{name}.part")))
    }

    /// A backup is never replaced: two in one second would have the same name.
    pub(crate) fn check_name_is_free(&self, name: &str) -> Result<(), BackupError> {
        match self.path(name).symlink_metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(file_error("create", self.path(name), error)),
            Ok(_) => Err(file_error("create", self.path(name), "it exists already")),
        }
    }

    /// Gives a file a name, durably.
    pub(crate) async fn rename_to(&self, from: &Path, name: &str) -> Result<(), BackupError> {
        let (from, to, directory) = (from.to_owned(), self.path(name), self.path.clone());
        run_blocking(move || {
            fs::rename(&from, &to).map_err(|error| file_error("rename a backup to", &to, error))?;
            sync_directory(&directory)
        })
        .await
    }

    /// Removes files, durably. A missing file is not an error.
    pub(crate) async fn remove(&self, names: Vec<String>) -> Result<(), BackupError> {
        let directory = self.path.clone();
        run_blocking(move || {
            for name in names {
                let path = directory.join(name);
                match fs::remove_file(&path) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => {
                        return Err(file_error("remove", path, error));
                    }
                    _ => {}
                }
            }
            sync_directory(&directory)
        })
        .await
    }

    /// An empty directory for a proof.
    pub(crate) async fn make_scratch(&self) -> Result<ScratchPlace, BackupError> {
        let (path, ended) = (self.path.join(SCRATCH), self.path.join(ENDED_SCRATCH));
        let made = DirBuilder::new().mode(0o700).create(&path);
        made.map_err(|error| file_error("create", &path, error))?;
        Ok(ScratchPlace { path, ended, is_there: true })
    }
}

/// The directory of a proof. It goes with this value, whatever the end of the proof.
pub(crate) struct ScratchPlace {
    path: PathBuf,
    ended: PathBuf,
    is_there: bool,
}

impl ScratchPlace {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the directory. Its etcd is being killed, and cannot make new files below another name.
    pub(crate) fn remove(mut self) -> Result<(), BackupError> {
        self.is_there = false;
        self.remove_directory().map_err(|error| file_error("remove", &self.path, error))
    }

    fn remove_directory(&self) -> io::Result<()> {
        fs::rename(&self.path, &self.ended).and_then(|()| fs::remove_dir_all(&self.ended))
    }
}

impl Drop for ScratchPlace {
    fn drop(&mut self) {
        if self.is_there {
            // The proof was cancelled, so that no caller takes an error. The next call removes the rest.
            let _ = self.remove_directory();
        }
    }
}

/// A backup before it has its name. Its file goes with this value, unless it was renamed.
pub(crate) struct UnnamedBackup(PathBuf);

impl UnnamedBackup {
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for UnnamedBackup {
    fn drop(&mut self) {
        // A renamed file is not there. The next call removes a file that stays.
        let _ = fs::remove_file(&self.0);
    }
}

fn sync_directory(directory: &Path) -> Result<(), BackupError> {
    let synced = File::open(directory).and_then(|opened| opened.sync_all());
    synced.map_err(|error| file_error("sync", directory, error))
}

/// Reads a snapshot of etcd again, and compares the checksum that etcd appended. Returns its size in bytes.
pub(crate) async fn verify_snapshot(path: PathBuf) -> Result<u64, BackupError> {
    run_blocking(move || {
        let read = check_file_checksum(&path).map_err(|error| file_error("read", &path, error))?;
        read.map_err(|why| BackupError::Damaged { why })
    })
    .await
}

/// The size of a snapshot whose checksum is right, or the fault.
fn check_file_checksum(path: &Path) -> io::Result<Result<u64, String>> {
    let mut file = File::open(path)?;
    let size = file.metadata()?.len();
    let checksum = SHA256_OUTPUT_LEN as u64;
    if size <= checksum || size % PAGE != checksum {
        return Ok(Err(format!("{size} bytes are not whole pages with a checksum: it is cut off")));
    }
    let mut hash = Context::new(&SHA256);
    let mut buffer = vec![0; VERIFIED_AT_ONCE];
    let mut data = (&mut file).take(size - checksum);
    loop {
        match data.read(&mut buffer)? {
            0 => break,
            length => hash.update(&buffer[..length]),
        }
    }
    let mut expected = [0; SHA256_OUTPUT_LEN];
    file.seek(SeekFrom::Start(size - checksum))?;
    file.read_exact(&mut expected)?;
    if hash.finish().as_ref() != expected {
        return Ok(Err("its SHA-256 differs from the checksum that etcd appended".to_owned()));
    }
    Ok(Ok(size))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use ring::digest::digest;

    use super::*;

    /// A file with pages and their checksum.
    fn snapshot(pages: usize) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..pages * 512).map(|at| u8::try_from(at % 251).unwrap()).collect();
        let checksum = digest(&SHA256, &bytes);
        bytes.extend_from_slice(checksum.as_ref());
        bytes
    }

    #[tokio::test]
    async fn a_snapshot_that_was_changed_anywhere_or_cut_off_is_damaged() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let whole = snapshot(40);
        fs::write(&path, &whole).unwrap();
        assert_eq!(verify_snapshot(path.clone()).await, Ok(whole.len() as u64));
        let changed = |at: usize| {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            bytes
        };
        for spoiled in [
            changed(0),
            changed(20_000),
            changed(whole.len() - 33),
            changed(whole.len() - 1),
            whole[..whole.len() - 1].to_vec(),
            whole[..whole.len() - 32].to_vec(),
            whole[..whole.len() - 512].to_vec(),
            snapshot(0),
            Vec::new(),
        ] {
            fs::write(&path, &spoiled).unwrap();
            let refused = verify_snapshot(path.clone()).await.unwrap_err();
            assert!(matches!(refused, BackupError::Damaged { .. }), "{refused}");
        }
        fs::remove_file(&path).unwrap();
        assert!(matches!(verify_snapshot(path).await, Err(BackupError::File { .. })));
    }

    #[tokio::test]
    async fn a_directory_is_made_for_its_owner_and_has_one_process_at_a_time() {
        let above = tempfile::tempdir().unwrap();
        let path = above.path().join("a/b");
        let first = Directory::open(&path).await.unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        let refused = Directory::open(&path).await.err().unwrap();
        assert_eq!(refused, BackupError::Busy { directory: path.clone() });
        drop(first);
        Directory::open(&path).await.unwrap();
    }

    #[tokio::test]
    async fn leftovers_of_a_killed_process_are_removed_and_other_files_stay() {
        let above = tempfile::tempdir().unwrap();
        let path = above.path();
        let kept = ["etcd-20240101-000000.backup", "etcd-1.backup.part", ".notes", "etcd-2.refuted"];
        for name in kept.iter().chain(&[".etcd-20240101-000001.backup.part"]) {
            fs::write(path.join(name), "x").unwrap();
        }
        for name in [SCRATCH, ENDED_SCRATCH] {
            fs::create_dir_all(path.join(name).join("member")).unwrap();
        }
        let directory = Directory::open(path).await.unwrap();
        let mut names = directory.names().await.unwrap();
        names.sort();
        let mut expected: Vec<&str> = kept.iter().copied().chain([LOCK]).collect();
        expected.sort_unstable();
        assert_eq!(names, expected);
        directory.check_name_is_free("etcd-20240101-000001.backup").unwrap();
        let refused = directory.check_name_is_free(kept[0]).unwrap_err();
        assert!(refused.to_string().contains("it exists already"), "{refused}");
    }

    #[tokio::test]
    async fn a_file_where_the_directory_belongs_is_named() {
        let above = tempfile::tempdir().unwrap();
        let path = above.path().join("file");
        fs::write(&path, "x").unwrap();
        let refused = Directory::open(&path).await.err().unwrap();
        assert!(refused.to_string().starts_with(&format!("cannot create {}", path.display())), "{refused}");
    }
}
