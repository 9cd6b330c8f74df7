//! A log file that can be rotated: another program renames it, and SIGUSR1 reopens it, as in CKE.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use tokio::signal::unix::{SignalKind, signal};

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
        // The working directory of the process may change.
        let path = std::path::absolute(path)?;
        let file = Mutex::new(append_to(&path)?);
        Ok(Self { path, file })
    }

    pub(super) fn write(&self, line: &[u8]) -> io::Result<()> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner).write_all(line)
    }

    /// Opens the file anew. On failure the former file stays in use.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub(crate) fn reopen_file(&self) -> io::Result<()> {
        let file = append_to(&self.path)?;
        *self.file.lock().unwrap_or_else(PoisonError::into_inner) = file;
        Ok(())
    }

    /// Reopens the file at each SIGUSR1, for ever.
    ///
    /// # Errors
    /// The signal handler cannot be installed.
    pub(crate) async fn reopen_at_signals(&self) -> io::Result<()> {
        let mut signals = signal(SignalKind::user_defined1())?;
        while signals.recv().await.is_some() {
            match self.reopen_file() {
                Ok(()) => tracing::info!("the log file is reopened"),
                Err(error) => {
                    tracing::error!(error = &error as &dyn std::error::Error, "cannot reopen the log file");
                }
            }
        }
        Ok(())
    }
}

/// Opens a file for appending; an incomplete last line gets its end.
fn append_to(path: &Path) -> io::Result<File> {
    // CKE's mode: logs contain no secrets.
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
