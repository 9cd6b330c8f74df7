//! A small disk of its own for a member of the store, so that it can be full.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::process::Command;

/// Bytes of the disk: an etcd takes two files of 64 MB for its log before it has anything to keep.
const SIZE: &str = "size=320m";
/// The file that fills it.
const FILLER: &str = "filler";
/// Bytes that it is filled with at a time, down to single ones.
const PIECES: [usize; 3] = [1 << 20, 4096, 1];

/// A file system in memory, mounted on a directory; gone when dropped.
#[derive(Debug)]
pub(crate) struct Disk {
    at: PathBuf,
}

impl Disk {
    /// Mounts one.
    ///
    /// # Errors
    /// In words: the machine does not allow it.
    pub(crate) async fn mount(at: &Path) -> Result<Self, String> {
        fs::create_dir_all(at).map_err(|error| error.to_string())?;
        let mut command = Command::new("mount");
        command.args(["-t", "tmpfs", "-o", SIZE, "madako-chaos"]).arg(at).stdin(Stdio::null());
        let output = command.output().await.map_err(|error| format!("mount cannot be run: {error}"))?;
        if output.status.success() {
            return Ok(Self { at: at.to_owned() });
        }
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Err(format!("no small disk can be mounted here: {said}"))
    }

    /// Lets it take nothing more.
    ///
    /// # Errors
    /// The file cannot be made.
    pub(crate) fn fill(&self) -> io::Result<()> {
        let mut filler = File::create(self.at.join(FILLER))?;
        for piece in PIECES {
            let piece = vec![0; piece];
            loop {
                match filler.write_all(&piece) {
                    Ok(()) => {}
                    Err(error) if error.kind() == io::ErrorKind::StorageFull => break,
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// Gives it room again.
    ///
    /// # Errors
    /// The file cannot be removed.
    pub(crate) fn clear(&self) -> io::Result<()> {
        fs::remove_file(self.at.join(FILLER))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Lazily: the processes on it may be about to end. Without it the directory of the run stays, and is told of.
        let done = std::process::Command::new("umount").arg("--lazy").arg(&self.at).status();
        if !done.as_ref().is_ok_and(std::process::ExitStatus::success) {
            tracing::warn!(at = %self.at.display(), ?done, "a small disk stays mounted");
        }
    }
}
