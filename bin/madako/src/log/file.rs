//! A log file that can be rotated: moved away by somebody, and opened anew at SIGUSR1, as CKE does.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use tokio::signal::unix::{SignalKind, signal};

/// A file that lines are appended to.
pub(crate) struct LogFile {
    path: PathBuf,
    file: Mutex<File>,
}

impl LogFile {
    /// Opens or creates the file.
    ///
    /// # Errors
    /// It cannot be opened for reading and appending.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        // The directory that the process is in may change.
        let path = std::path::absolute(path)?;
        let file = Mutex::new(append_to(&path)?);
        Ok(Self { path, file })
    }

    pub(super) fn write(&self, line: &[u8]) -> io::Result<()> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner).write_all(line)
    }

    /// Opens the file anew. When that fails, lines go where they went before.
    ///
    /// # Errors
    /// It cannot be opened.
    pub(crate) fn reopen(&self) -> io::Result<()> {
        let file = append_to(&self.path)?;
        *self.file.lock().unwrap_or_else(PoisonError::into_inner) = file;
        Ok(())
    }

    /// Opens the file anew at each SIGUSR1, for ever.
    ///
    /// # Errors
    /// The signal cannot be listened to.
    pub(crate) async fn reopen_at_signals(&self) -> io::Result<()> {
        let mut signals = signal(SignalKind::user_defined1())?;
        while signals.recv().await.is_some() {
            match self.reopen() {
                Ok(()) => tracing::info!("the log file was opened anew"),
                Err(error) => {
                    tracing::error!(
                        error = &error as &dyn std::error::Error,
                        "the log file cannot be opened anew"
                    );
                }
            }
        }
        Ok(())
    }
}

/// Opens a file for appending; a last line that was cut off gets its end.
fn append_to(path: &Path) -> io::Result<File> {
    // CKE's mode: logs hold no secrets.
    let mut file = OpenOptions::new().read(true).append(true).create(true).mode(0o644).open(path)?;
    if file.metadata()?.is_file() && file.seek(SeekFrom::End(0))? > 0 {
        let mut last = [0];
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
        if last != *b"\n" {
            file.write_all(b"\n")?;
        }
    }
    Ok(file)
}
