//! What happened in a run, as data: kept for the checks, and written line by line as it happens.
//!
//! Guarantees: times are microseconds since the beginning of the run, on one clock; a line is written before the next
//! thing is kept, so that a run that is killed leaves what it had.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::Instant;

use crate::check::linear::{Op, Ret};

/// Microseconds since the beginning of the run.
pub type Micros = u64;

/// How a call ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "end")]
pub enum End {
    /// It was answered: what that means.
    Answered {
        /// The status.
        status: u16,
        /// What it says.
        said: Ret,
        /// The revision of what was written, if something was.
        revision: Option<i64>,
    },
    /// Nobody knows what became of it.
    Unknown {
        /// Why.
        why: String,
    },
    /// It was never sent.
    NotSent,
}

/// A request of a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// Who called; a client has one call at a time.
    pub client: u32,
    /// Which instance.
    pub instance: u32,
    /// The object, by its key in the store.
    pub object: String,
    /// What was asked for.
    #[serde(flatten)]
    pub op: Op,
    /// The revision that was to be changed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub expected: Option<i64>,
    /// When it was sent.
    pub called: Micros,
    /// When it was over.
    pub returned: Micros,
    /// How it ended.
    #[serde(flatten)]
    pub end: End,
}

impl Call {
    /// Whether it failed as clients count it: no answer, or one that says that the service is at fault.
    #[must_use]
    pub fn failed(&self) -> bool {
        !matches!(&self.end, End::Answered { .. })
    }

    /// Whether a write was acknowledged.
    #[must_use]
    pub fn wrote(&self) -> Option<i64> {
        match &self.end {
            End::Answered { said: Ret::Done { .. }, revision, .. } if self.op != Op::Read => *revision,
            _ => None,
        }
    }
}

/// What was acknowledged to somebody who wrote to the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Wrote {
    /// The revision and its keys; `None`: nothing was written.
    pub written: Option<(i64, Vec<String>)>,
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Event {
    /// A fault began, ended, struck, or did not come about.
    Fault {
        /// Which injection of the schedule.
        injection: usize,
        /// In words.
        what: String,
        /// `begins`, `ends`, `strikes` or `skipped`.
        change: &'static str,
        /// Whom it happened to, where that is known only then.
        #[serde(skip_serializing_if = "Option::is_none")]
        on: Option<String>,
        /// Packets that were dropped around it until it ended, where they are counted.
        #[serde(skip_serializing_if = "Option::is_none")]
        dropped: Option<u64>,
        /// Why it did not come about.
        #[serde(skip_serializing_if = "Option::is_none")]
        why: Option<String>,
    },
    /// A request of a client.
    Call(Call),
    /// A revision of the store, as the first observer saw it.
    Revision {
        /// Its number.
        revision: i64,
        /// What it changed: `put KEY` or `delete KEY`.
        changes: Vec<String>,
    },
    /// An instance says that it leads.
    Leads {
        /// Which.
        instance: u32,
        /// Its epoch.
        epoch: i64,
    },
    /// What the instances have counted so far.
    Refused {
        /// Writes that the store or the gate refused.
        writes: u64,
    },
    /// A watcher of the store begins.
    Watch {
        /// At which member.
        member: u32,
        /// After this revision.
        from: i64,
    },
    /// A watcher heard a revision.
    Heard {
        /// From which member.
        member: u32,
        /// Its number.
        revision: i64,
        /// How many keys it changed.
        keys: u64,
    },
    /// A watcher ends: it was given time to hear everything up to the last revision of its keys.
    WatchEnds {
        /// At which member.
        member: u32,
        /// That revision.
        until: i64,
    },
    /// What a watcher did not hear was compacted away.
    Missed {
        /// At which member.
        member: u32,
        /// Up to this revision.
        until: i64,
    },
    /// A watch of the API of placement is open: whoever watches has the head of the answer.
    Opened {
        /// Who watches.
        follower: u32,
        /// Which instance.
        instance: u32,
        /// When it was asked for.
        asked: Micros,
    },
    /// Whoever watches has listed all applications, through the same instance.
    Listed {
        /// Who.
        follower: u32,
        /// When it was asked for.
        asked: Micros,
        /// What was answered, as it was.
        answer: Value,
    },
    /// A watch of the API told something.
    Told {
        /// Whom.
        follower: u32,
        /// A line of it, as it was.
        line: Value,
    },
    /// A watch of the API is over for whoever watched.
    Closed {
        /// Who.
        follower: u32,
        /// Why; `null`: the run is over, and the watch had told everything that was there when it was listed last.
        why: Option<String>,
    },
    /// Somebody wrote to the store as ckecli does; `null`: there was nothing to write, or somebody else was faster.
    Wrote(Wrote),
    /// Somebody wrote to the store, and nobody knows what became of it.
    Unwritten {
        /// Why.
        why: String,
    },
    /// Somebody looked for machines in the registry.
    Searched {
        /// Why that failed.
        #[serde(skip_serializing_if = "Option::is_none")]
        why: Option<String>,
    },
    /// A remark of the harness.
    Note {
        /// In words.
        what: String,
    },
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct Line {
    at: Micros,
    #[serde(flatten)]
    event: Event,
}

#[derive(Debug)]
struct Inside {
    began: Instant,
    events: Mutex<Kept>,
}

#[derive(Debug)]
struct Kept {
    events: Vec<(Micros, Event)>,
    file: File,
    /// The first line that could not be written: told at the end.
    failed: Option<io::Error>,
}

/// The history of a run. Clones are the same one.
#[derive(Debug, Clone)]
pub struct History(Arc<Inside>);

impl History {
    /// One that begins now, and is written to a new file.
    ///
    /// # Errors
    /// The file cannot be made.
    pub fn begin(path: &Path) -> io::Result<Self> {
        let kept = Kept { events: Vec::new(), file: File::create(path)?, failed: None };
        Ok(Self(Arc::new(Inside { began: Instant::now(), events: Mutex::new(kept) })))
    }

    /// Microseconds since the beginning.
    #[must_use]
    pub fn now(&self) -> Micros {
        micros(self.0.began.elapsed())
    }

    /// The moment that is so many microseconds after the beginning.
    #[must_use]
    pub fn moment(&self, after: Duration) -> Instant {
        self.0.began + after
    }

    /// Keeps an event, and writes it.
    pub fn note(&self, event: Event) {
        let at = self.now();
        let mut kept = self.kept();
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

    /// A remark.
    pub fn remark(&self, what: impl Into<String>) {
        self.note(Event::Note { what: what.into() });
    }

    /// All events so far.
    #[must_use]
    pub fn events(&self) -> Vec<(Micros, Event)> {
        self.kept().events.clone()
    }

    /// Why the file is not whole, if it is not.
    pub fn take_failure(&self) -> Option<io::Error> {
        self.kept().failed.take()
    }

    // Nothing panics while it holds the lock.
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A span in microseconds.
#[must_use]
pub fn micros(span: Duration) -> Micros {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}
