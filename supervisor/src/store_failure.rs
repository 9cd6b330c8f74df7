//! The last failure of the embedded store, for Prometheus.
//!
//! A permanently failing store ends the process within two seconds, usually between two scrapes. So the process's
//! last act writes a note in a file beside the store's; the next process exports the note as a metric, and logs it.
//!
//! Does not: reach Prometheus while no process starts, for example with a damaged file. Then the scrape target does
//! not answer at all.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use time::OffsetDateTime;

use crate::telemetry::madako_store_failure_timestamp_seconds;

/// Name of the note in the data directory: Unix seconds, and the reason on the next line.
const NAME: &str = "last-failure";

/// The failure note of one data directory.
#[derive(Debug, Clone)]
pub struct StoreFailures(PathBuf);

impl StoreFailures {
    #[must_use]
    pub fn in_directory(data_dir: &Path) -> Self {
        Self(data_dir.join(NAME))
    }

    /// Exports the noted failure, if there is one. A process calls it once, at its start.
    pub fn show_noted(&self) {
        let noted = match fs::read_to_string(&self.0) {
            Ok(noted) => noted,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => {
                tracing::warn!(%error, file = %self.0.display(), "cannot read the note of the store's last failure");
                String::new()
            }
        };
        let (seconds, reason) = noted.split_once('\n').unwrap_or_default();
        // A truncated note exports no time.
        let seconds = seconds.parse().unwrap_or(0);
        if seconds > 0 {
            tracing::warn!(
                seconds,
                reason = reason.trim_end(),
                "the embedded store failed for good in an earlier process on this data directory"
            );
        }
        show_failure_time(seconds);
    }

    /// Writes a note.
    ///
    /// # Errors
    /// The file cannot be written; the disk that failed the store may reject it.
    pub fn note(&self, at: OffsetDateTime, reason: &str) -> io::Result<()> {
        fs::write(&self.0, format!("{}\n{reason}\n", at.unix_timestamp()))
    }
}

/// Exports a failure of this process, while the process can still be scraped.
pub(crate) fn show_now(at: OffsetDateTime) {
    show_failure_time(at.unix_timestamp());
}

fn show_failure_time(seconds: i64) {
    madako_store_failure_timestamp_seconds().set(seconds as f64);
}
