//! Sets the wall clock of one instance with faketime: a library preloaded before the program's own, which reads the
//! advance of the clock from a file. The monotonic clock does not change.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Debian's directory of libraries; faketime is below the directory of the machine's architecture.
const LIBRARIES: &str = "/usr/lib";
const LIBRARY: &str = "faketime/libfaketimeMT.so.1";

#[derive(Debug, Clone)]
pub(crate) struct OwnClock {
    library: PathBuf,
    file: PathBuf,
}

impl OwnClock {
    /// A correct clock with its file in this directory.
    ///
    /// # Errors
    /// As text: faketime is not installed, or the file cannot be written.
    pub(crate) fn make(directory: &Path, name: &str) -> Result<Self, String> {
        let places = fs::read_dir(LIBRARIES).map_err(|error| error.to_string())?;
        let library =
            places.flatten().map(|place| place.path().join(LIBRARY)).find(|library| library.is_file());
        let library =
            library.ok_or("the library faketime is not installed: install the Debian package libfaketime")?;
        let clock = Self { library, file: directory.join(format!("{name}.clock")) };
        clock.set_ahead(Duration::ZERO).map_err(|error| error.to_string())?;
        Ok(clock)
    }

    pub(crate) fn environment_variables(&self) -> Vec<(String, String)> {
        let text = |path: &Path| path.display().to_string();
        [
            ("LD_PRELOAD", text(&self.library)),
            ("FAKETIME_TIMESTAMP_FILE", text(&self.file)),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
            // The library reads the file at most once a second.
            ("FAKETIME_CACHE_DURATION", "1".to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .to_vec()
    }

    /// Sets the advance of the clock.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn set_ahead(&self, by: Duration) -> io::Result<()> {
        // Atomic by rename: the library may read at any time.
        let next = self.file.with_extension("next");
        fs::write(&next, format!("+{}\n", by.as_secs()))?;
        fs::rename(next, &self.file)
    }
}
