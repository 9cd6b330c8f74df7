//! What a data center told and what was done to it, line by line.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use madako_domain::machine::MachineState;
use madako_judges::{MachineSeen, Question};
use madako_protocol::ports::Clock;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use super::tap::Spoilt;

/// Bytes of a journal that are read: a run of an hour writes some megabytes.
const MAX_JOURNAL: u64 = 256 << 20;

/// What an API server of Kubernetes was asked to change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Asked {
    /// A node is cordoned.
    Cordon,
    /// A node is uncordoned.
    Uncordon,
    /// A pod is evicted.
    Evict,
    /// A pod is deleted.
    Delete,
}

/// Something that a data center told, or that was done to it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "what")]
pub enum What {
    /// It was started for the first time.
    Started,
    /// The power of a rack.
    Power {
        /// The rack.
        rack: u32,
        /// Whether it has it.
        on: bool,
    },
    /// The state of a machine.
    State {
        /// Its serial.
        serial: String,
        /// The state that it was given.
        state: MachineState,
        /// Whether it was taken away for the time of a fault: nothing that is done to it helps.
        #[serde(default)]
        held: bool,
    },
    /// A repair command began to act on a machine, or would have.
    Acts {
        /// Its number.
        number: u64,
        /// The instance that ran it, as far as it says so.
        instance: u32,
        /// The machine's address.
        address: String,
        /// Microseconds that its process had run by then: many, where this one stood still.
        #[serde(default)]
        waited: u64,
        /// Whether its process had ended by then, so that it did not act.
        #[serde(skip_serializing_if = "std::ops::Not::not", default)]
        gone: bool,
        /// Others whose processes ran at that moment.
        #[serde(skip_serializing_if = "BTreeSet::is_empty", default)]
        beside: BTreeSet<u64>,
    },
    /// A repair command ended, now or at some time since it was last seen to run.
    Acted {
        /// Its number.
        number: u64,
        /// Whether it came to its end, instead of being killed.
        whole: bool,
        /// Whether its process ran until now.
        #[serde(default)]
        ran: bool,
    },
    /// Kubernetes was asked for a change, and made it or refused it.
    Kubernetes {
        /// The instance that asked, by the address of the API server that it was given.
        instance: u32,
        /// What for.
        asked: Asked,
        /// The node, or that of the pod.
        node: String,
        /// The pod: `NAMESPACE/NAME`.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        pod: Option<String>,
        /// Whether a disruption budget forbade it, so that nothing changed.
        #[serde(skip_serializing_if = "std::ops::Not::not", default)]
        refused: bool,
    },
    /// The health of a machine was asked for.
    Checked {
        /// The instance that asked, as far as it says so.
        instance: u32,
        /// The machine's address.
        address: String,
        /// Microseconds that the process that asked had run by then.
        waited: u64,
        /// What was answered.
        healthy: bool,
    },
    /// The service asked the registry, and was answered.
    Polled {
        /// What it asked.
        question: Question,
        /// The machines of the answer, with times since 1970; without them, they are as they were told last.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        machines: Option<Vec<MachineSeen>>,
        /// What was wrong with the answer.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        spoilt: Option<Spoilt>,
    },
    /// The registry was asked for something else than a search, at the address where others search.
    Changes {
        /// The method and the path, and the text of a query.
        request: String,
    },
    /// The provider was asked, and answered with these values.
    Fetched {
        /// The path and the query.
        asked: String,
        /// By the names of metrics; none, where the answer cannot be read.
        values: BTreeMap<String, f64>,
    },
    /// Answers are wrong, or right again.
    Corrupt {
        /// Whether they are wrong.
        on: bool,
    },
    /// The registry's clock is ahead by so much.
    Clock {
        /// Seconds.
        seconds: i32,
    },
}

/// A line of the journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// Microseconds since 1970.
    pub at: i64,
    /// What happened.
    #[serde(flatten)]
    pub what: What,
}

impl Line {
    /// When.
    #[must_use]
    pub fn time(&self) -> OffsetDateTime {
        OffsetDateTime::from_unix_timestamp_nanos(i128::from(self.at) * 1_000)
            .unwrap_or(OffsetDateTime::UNIX_EPOCH)
    }
}

/// A journal that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// It cannot be read or written.
    #[error("journal {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A line is none.
    #[error("journal {}, line {line}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Which, counted from 1.
        line: usize,
        /// Why.
        source: serde_json::Error,
    },
}

/// A journal that is written.
pub struct Journal {
    path: PathBuf,
    clock: Arc<dyn Clock>,
    file: Mutex<File>,
}

impl Journal {
    /// Opens one, or makes it.
    ///
    /// # Errors
    /// [`JournalError::File`].
    pub fn open(path: &Path, clock: Arc<dyn Clock>) -> Result<Self, JournalError> {
        let file = OpenOptions::new().create(true).append(true).open(path);
        let file = file.map_err(|source| JournalError::File { path: path.to_owned(), source })?;
        Ok(Self { path: path.to_owned(), clock, file: Mutex::new(file) })
    }

    /// Writes a line, and says when that was.
    ///
    /// # Errors
    /// [`JournalError::File`].
    pub fn write(&self, what: What) -> Result<OffsetDateTime, JournalError> {
        let mut file = self.file();
        self.append(&mut file, self.now(), what)
    }

    /// The time that lines have now.
    pub(super) fn now(&self) -> OffsetDateTime {
        self.clock.now()
    }

    /// Writes a line of a moment ago: what was looked up since then held at that time.
    ///
    /// # Errors
    /// [`JournalError::File`].
    pub(super) fn write_as_of(&self, at: OffsetDateTime, what: What) -> Result<(), JournalError> {
        self.append(&mut self.file(), at, what).map(drop)
    }

    fn append(
        &self,
        file: &mut File,
        at: OffsetDateTime,
        what: What,
    ) -> Result<OffsetDateTime, JournalError> {
        let failed = |source| JournalError::File { path: self.path.clone(), source };
        let at = at.unix_timestamp_nanos() / 1_000;
        let line = Line { at: i64::try_from(at).unwrap_or(i64::MAX), what };
        let mut text = serde_json::to_vec(&line).map_err(|error| failed(error.into()))?;
        text.push(b'\n');
        file.write_all(&text).map_err(failed)?;
        Ok(line.time())
    }

    // Nothing panics while it holds the lock.
    fn file(&self) -> MutexGuard<'_, File> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads a journal; one that is not there is empty. A last line without an end was being written when its writer was
/// killed, and nobody acted on it.
///
/// # Errors
/// See [`JournalError`].
pub fn read(path: &Path) -> Result<Vec<Line>, JournalError> {
    let failed = |source| JournalError::File { path: path.to_owned(), source };
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
