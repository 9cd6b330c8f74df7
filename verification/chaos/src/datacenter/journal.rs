//! The journal of a simulated data center: its answers and the changes made to it, one a line of a file.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use madako_domain::machine::MachineState;
use madako_judges::{KubernetesRequest, MachineReport, RegistryQuestion};
use madako_protocol::ports::Clock;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use super::tap::CorruptAnswer;

/// Bytes of a journal that are read: a run of an hour writes some megabytes.
const MAX_JOURNAL: u64 = 256 << 20;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "what")]
pub enum LineContent {
    /// The data center started for the first time.
    Started,
    Power {
        rack: u32,
        on: bool,
    },
    /// A change of a machine's state.
    State {
        serial: String,
        state: MachineState,
        /// True if repairs have no effect on the machine for the duration of a fault.
        #[serde(default)]
        held: bool,
    },
    /// A repair command began to act on a machine, or would have.
    Acts {
        number: u64,
        /// The instance that ran it, by the command's own account.
        instance: u32,
        address: String,
        /// Microseconds since the start of its process: many if the data center was stopped.
        #[serde(default)]
        waited: u64,
        /// True if its process had ended by then, so that it did not act.
        #[serde(skip_serializing_if = "std::ops::Not::not", default)]
        gone: bool,
        /// Other commands whose processes ran at that moment.
        #[serde(skip_serializing_if = "BTreeSet::is_empty", default)]
        beside: BTreeSet<u64>,
    },
    /// A repair command ended since it was last observed to run.
    Acted {
        number: u64,
        /// True if the command finished; otherwise it was killed.
        whole: bool,
        #[serde(default)]
        ran: bool,
    },
    /// Kubernetes made or refused a requested change.
    Kubernetes {
        /// The requesting instance, by its own path of the API server.
        instance: u32,
        action: KubernetesRequest,
        node: String,
        /// The pod: `NAMESPACE/NAME`.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        pod: Option<String>,
        /// True if a disruption budget forbade the change.
        #[serde(skip_serializing_if = "std::ops::Not::not", default)]
        refused: bool,
    },
    Checked {
        /// The instance that asked, by the command's own account.
        instance: u32,
        address: String,
        /// Microseconds since the start of the asking process.
        waited: u64,
        healthy: bool,
    },
    /// The registry answered the service.
    Polled {
        question: RegistryQuestion,
        /// The machines in the answer, with times since 1970; `None`: the same as in the last answer.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        machines: Option<Vec<MachineReport>>,
        #[serde(skip_serializing_if = "Option::is_none", default)]
        spoilt: Option<CorruptAnswer>,
    },
    /// A request other than a search arrived at the registry's address for searches.
    Changes {
        /// Method and path, and the text of a query.
        request: String,
    },
    /// The provider answered with these values.
    Fetched {
        /// Path and query of the request.
        request: String,
        /// Values by metric; empty if the answer is unreadable.
        values: BTreeMap<String, f64>,
    },
    Corrupt {
        on: bool,
    },
    /// The advance of the registry's clock changed.
    Clock {
        seconds: i32,
    },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// Microseconds since 1970.
    pub at: i64,
    #[serde(flatten)]
    pub what: LineContent,
}

impl Line {
    #[must_use]
    pub fn wall_clock_time(&self) -> OffsetDateTime {
        OffsetDateTime::from_unix_timestamp_nanos(i128::from(self.at) * 1_000)
            .unwrap_or(OffsetDateTime::UNIX_EPOCH)
    }
}

#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    #[error("cannot {attempt} the journal {}", path.display())]
    File {
        /// The failed access, as a verb.
        attempt: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("cannot parse line {line} of the journal {}", path.display())]
    Line {
        path: PathBuf,
        /// Number of the line, from 1.
        line: usize,
        source: serde_json::Error,
    },
}

pub struct Journal {
    path: PathBuf,
    clock: Arc<dyn Clock>,
    file: Mutex<File>,
}

impl Journal {
    /// Opens a journal, or creates it.
    pub fn open(path: &Path, clock: Arc<dyn Clock>) -> Result<Self, JournalError> {
        let file = OpenOptions::new().create(true).append(true).open(path);
        let file =
            file.map_err(|source| JournalError::File { attempt: "open", path: path.to_owned(), source })?;
        Ok(Self { path: path.to_owned(), clock, file: Mutex::new(file) })
    }

    /// Appends a line. Returns its time.
    pub fn write(&self, what: LineContent) -> Result<OffsetDateTime, JournalError> {
        let mut file = self.lock_file();
        self.append_line(&mut file, self.now(), what)
    }

    /// The current time on the journal's clock.
    pub(super) fn now(&self) -> OffsetDateTime {
        self.clock.now()
    }

    /// Appends a line with an earlier time, at which its content was known to hold.
    pub(super) fn write_as_of(&self, at: OffsetDateTime, what: LineContent) -> Result<(), JournalError> {
        self.append_line(&mut self.lock_file(), at, what).map(drop)
    }

    fn append_line(
        &self,
        file: &mut File,
        at: OffsetDateTime,
        what: LineContent,
    ) -> Result<OffsetDateTime, JournalError> {
        let failed = |source| JournalError::File { attempt: "write to", path: self.path.clone(), source };
        let at = at.unix_timestamp_nanos() / 1_000;
        let line = Line { at: i64::try_from(at).unwrap_or(i64::MAX), what };
        let mut text = serde_json::to_vec(&line).map_err(|error| failed(error.into()))?;
        text.push(b'\n');
        file.write_all(&text).map_err(failed)?;
        Ok(line.wall_clock_time())
    }

    // No panic happens under the lock.
    fn lock_file(&self) -> MutexGuard<'_, File> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads a journal; a missing one is empty. A last line without an end was being written when its writer was killed: it
/// is ignored, since no answer followed it.
pub fn read_journal(path: &Path) -> Result<Vec<Line>, JournalError> {
    let failed = |source| JournalError::File { attempt: "read", path: path.to_owned(), source };
    let mut text = String::new();
    match File::open(path) {
        Ok(file) => file.take(MAX_JOURNAL).read_to_string(&mut text).map_err(failed)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let line = |(index, line): (usize, &str)| {
        serde_json::from_str(line).map_err(|source| JournalError::Line {
            path: path.to_owned(),
            line: index + 1,
            source,
        })
    };
    whole.lines().enumerate().map(line).collect()
}
