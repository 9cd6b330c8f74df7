//! The events of a chaos run as data: kept for the checks, and written line by line as they happen.
//!
//! Guarantees: times are microseconds since the beginning of the run, on one clock. Each line is written before the
//! next event is recorded, so that a killed run leaves its events.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::Instant;

use crate::check::linear::{CallResult, ObjectOperation};

/// Microseconds since the beginning of the run.
pub type Micros = u64;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "end")]
pub enum RequestEnd {
    Answered {
        status: u16,
        /// Meaning of the answer.
        result: CallResult,
        /// Revision of the write, if there was one.
        revision: Option<i64>,
    },
    /// It is unknown whether the call took effect.
    Unknown { why: String },
    /// No connection: the call was not sent.
    NotSent,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// The client, which has one call at a time.
    pub client: u32,
    pub instance: u32,
    pub object: String,
    #[serde(flatten)]
    pub op: ObjectOperation,
    /// Revision of the precondition.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub expected: Option<i64>,
    pub called: Micros,
    pub returned: Micros,
    #[serde(flatten)]
    pub end: RequestEnd,
}

impl Call {
    /// True if clients count the call as failed: no answer, or a server error.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        !matches!(&self.end, RequestEnd::Answered { .. })
    }

    /// Revision of an acknowledged write.
    #[must_use]
    pub fn written_revision(&self) -> Option<i64> {
        match &self.end {
            RequestEnd::Answered { result: CallResult::Done { .. }, revision, .. }
                if self.op != ObjectOperation::Read =>
            {
                *revision
            }
            _ => None,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AcknowledgedWrite {
    /// The revision and its keys; `None`: nothing was written.
    pub written: Option<(i64, Vec<String>)>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Event {
    Fault {
        injection: usize,
        /// Act and target.
        what: String,
        /// `begins`, `ends`, `strikes` or `skipped`.
        change: &'static str,
        /// The target, if it is resolved only at the injection.
        #[serde(skip_serializing_if = "Option::is_none")]
        on: Option<String>,
        /// Packets dropped during the fault, where they are counted.
        #[serde(skip_serializing_if = "Option::is_none")]
        dropped: Option<u64>,
        /// Reason for skipping the fault.
        #[serde(skip_serializing_if = "Option::is_none")]
        why: Option<String>,
    },
    Call(Call),
    /// A revision of the store, at its first observation.
    Revision {
        revision: i64,
        /// `put KEY` or `delete KEY`.
        changes: Vec<String>,
    },
    Leads {
        instance: u32,
        epoch: i64,
    },
    /// A new sum of refused writes over all instances.
    Refused {
        /// Writes that the store or the leader refused.
        writes: u64,
    },
    Watch {
        member: u32,
        /// The watch begins after this revision.
        from: i64,
    },
    /// A watcher received a revision.
    Heard {
        member: u32,
        revision: i64,
        /// Number of changed keys.
        keys: u64,
    },
    /// A watcher ends, after enough time for everything up to the last revision of its keys.
    WatchEnds {
        member: u32,
        /// The last revision of its keys.
        until: i64,
    },
    /// Revisions that a watcher had not received were compacted away.
    Missed {
        member: u32,
        /// Last compacted revision.
        until: i64,
    },
    /// A follower received the head of a watch of the placement API.
    Opened {
        follower: u32,
        instance: u32,
        /// Time of the request.
        requested_at: Micros,
    },
    /// A follower listed all applications through the instance of its watch.
    Listed {
        follower: u32,
        /// Time of the request.
        requested_at: Micros,
        /// The answer, unchanged.
        answer: Value,
    },
    /// A follower received a line of its watch.
    WatchLine {
        follower: u32,
        /// The line, unchanged.
        line: Value,
    },
    /// The watch of a follower ended.
    Closed {
        follower: u32,
        /// The reason; `null`: the run is over, and the watch had delivered everything in the last list.
        why: Option<String>,
    },
    /// A write to the store as ckecli makes it; `null`: nothing to write, or a concurrent change came first.
    AcknowledgedWrite(AcknowledgedWrite),
    /// A write to the store with an unknown outcome.
    Unwritten {
        why: String,
    },
    /// The store answered a transaction with several conditions.
    Transacted {
        /// True if all of its conditions held.
        held: bool,
        written: bool,
    },
    Searched {
        /// The failure, if it failed.
        #[serde(skip_serializing_if = "Option::is_none")]
        why: Option<String>,
    },
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct Line {
    at: Micros,
    #[serde(flatten)]
    event: Event,
}

#[derive(Debug)]
struct HistoryState {
    began: Instant,
    events: Mutex<RecordedEvents>,
}

#[derive(Debug)]
struct RecordedEvents {
    events: Vec<(Micros, Event)>,
    file: File,
    /// The first failed write of a line, reported at the end.
    failed: Option<io::Error>,
}

/// The history of a run. A clone is the same history.
#[derive(Debug, Clone)]
pub struct History(Arc<HistoryState>);

impl History {
    /// Begins a history in a new file.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn begin(path: &Path) -> io::Result<Self> {
        let kept = RecordedEvents { events: Vec::new(), file: File::create(path)?, failed: None };
        Ok(Self(Arc::new(HistoryState { began: Instant::now(), events: Mutex::new(kept) })))
    }

    #[must_use]
    pub fn now(&self) -> Micros {
        to_microseconds(self.0.began.elapsed())
    }

    /// Records an event and writes it.
    pub fn note(&self, event: Event) {
        let at = self.now();
        let mut kept = self.lock_events();
        let line = serde_json::to_vec(&Line { at, event: event.clone() }).map_err(io::Error::from);
        let written = line.and_then(|mut line| {
            line.push(b'\n');
            kept.file.write_all(&line)
        });
        if let Err(error) = written {
            kept.failed.get_or_insert(error);
        }
        kept.events.push((at, event));
    }

    #[must_use]
    pub fn recorded_events(&self) -> Vec<(Micros, Event)> {
        self.lock_events().events.clone()
    }

    /// The error if a line could not be written.
    pub fn take_failure(&self) -> Option<io::Error> {
        self.lock_events().failed.take()
    }

    // No panic happens under the lock.
    fn lock_events(&self) -> MutexGuard<'_, RecordedEvents> {
        self.0.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[must_use]
pub fn to_microseconds(span: Duration) -> Micros {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}
