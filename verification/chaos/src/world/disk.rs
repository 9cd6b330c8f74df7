//! A small file system for one member of the store, which a fault can fill.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::process::Command;

/// Size of the disk: an etcd allocates two log files of 64 MB before it stores anything.
const SIZE: &str = "size=320m";
const FILLER: &str = "filler";
/// Bytes that are written at a time, down to single ones.
const PIECES: [usize; 3] = [1 << 20, 4096, 1];

/// A tmpfs mounted on a directory; unmounted when dropped.
#[derive(Debug)]
pub(crate) struct Disk {
    at: PathBuf,
}

impl Disk {
    /// # Errors
    /// As text: the machine does not allow the mount.
    pub(crate) async fn mount(at: &Path) -> Result<Self, String> {
        fs::create_dir_all(at).map_err(|error| error.to_string())?;
        let mut command = Command::new("mount");
        command.args(["-t", "tmpfs", "-o", SIZE, "madako-chaos"]).arg(at).stdin(Stdio::null());
        let output = command.output().await.map_err(|error| format!("mount cannot be run: {error}"))?;
        if output.status.success() {
            return Ok(Self { at: at.to_owned() });
        }
        let output = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Err(format!("no small disk can be mounted here: {output}"))
    }

    /// Fills the disk.
    ///
    /// # Errors
    /// The file cannot be created.
    pub(crate) fn fill_disk(&self) -> io::Result<()> {
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

    /// Frees the disk.
    ///
    /// # Errors
    /// The file cannot be removed.
    pub(crate) fn clear(&self) -> io::Result<()> {
        fs::remove_file(self.at.join(FILLER))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Lazily: the processes on it may be ending. If this fails, the directory of the run stays, and a message says
        // so.
        let done = std::process::Command::new("umount").arg("--lazy").arg(&self.at).status();
        if !done.as_ref().is_ok_and(std::process::ExitStatus::success) {
            tracing::warn!(at = %self.at.display(), ?done, "cannot unmount a small disk");
        }
    }
}
