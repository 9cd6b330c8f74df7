//! A wall clock of its own for an instance, by faketime: a library that is loaded before the program's own, and reads
//! from a file how far the clock is ahead. The monotonic clock stays as it is.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where Debian puts the library, below a directory for the machine's architecture.
const LIBRARIES: &str = "/usr/lib";
const LIBRARY: &str = "faketime/libfaketimeMT.so.1";

/// The clock of an instance.
#[derive(Debug, Clone)]
pub(crate) struct OwnClock {
    library: PathBuf,
    file: PathBuf,
}

impl OwnClock {
    /// One that goes right, and whose file is in a directory.
    ///
    /// # Errors
    /// In words: faketime is not installed, or the file cannot be written.
    pub(crate) fn make(directory: &Path, name: &str) -> Result<Self, String> {
        let places = fs::read_dir(LIBRARIES).map_err(|error| error.to_string())?;
        let library =
            places.flatten().map(|place| place.path().join(LIBRARY)).find(|library| library.is_file());
        let library = library.ok_or("faketime is not installed (Debian: libfaketime)")?;
        let clock = Self { library, file: directory.join(format!("{name}.clock")) };
        clock.ahead(Duration::ZERO).map_err(|error| error.to_string())?;
        Ok(clock)
    }

    /// What the instance's environment must have.
    pub(crate) fn environment(&self) -> Vec<(String, String)> {
        let text = |path: &Path| path.display().to_string();
        [
            ("LD_PRELOAD", text(&self.library)),
            ("FAKETIME_TIMESTAMP_FILE", text(&self.file)),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
            // The file is read at most once a second.
            ("FAKETIME_CACHE_DURATION", "1".to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .to_vec()
    }

    /// Sets the clock ahead.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn ahead(&self, by: Duration) -> io::Result<()> {
        // In one step: the library may read at any time.
        let next = self.file.with_extension("next");
        fs::write(&next, format!("+{}\n", by.as_secs()))?;
        fs::rename(next, &self.file)
    }
}
