//! The events of a simulated run as text: one seed gives the same text in every process.
//!
//! Guarantees: the hash covers every line, and the trace, if any, contains every line. Only the newest lines stay in
//! memory, so that memory is bounded in a run of days.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::{Display, Write as _};
use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use madako_domain::invariants::Id;
use madako_protocol::event::Event;
use tokio::time::Instant;

use crate::pace::MessagePace;

/// Number of lines in memory, for the report of a failed run.
const KEPT: usize = 2_000;

/// Offset basis and prime of FNV-1a.
const FNV: (u64, u64) = (0xcbf2_9ce4_8422_2325, 0x0000_0100_0000_01b3);

/// Receiver of every line of a run.
pub type Trace = Box<dyn Write + Send>;

struct HistoryState {
    newest: VecDeque<String>,
    line: String,
    count: usize,
    hash: u64,
    trace: Option<Trace>,
    /// Error of a write to the trace, which ended the trace.
    failed: Option<io::Error>,
    /// Number of evaluations of each invariant.
    judged: BTreeMap<Id, u64>,
}

/// Clones share their state.
#[derive(Clone)]
pub struct History {
    since: Instant,
    pace: Option<MessagePace>,
    inner: Arc<Mutex<HistoryState>>,
}

impl Default for History {
    fn default() -> Self {
        Self::new()
    }
}

impl History {
    #[must_use]
    pub fn new() -> Self {
        Self::with_trace(None)
    }

    /// Writes each line to the trace.
    #[must_use]
    pub fn with_trace(trace: Option<Trace>) -> Self {
        let inner = HistoryState {
            newest: VecDeque::new(),
            line: String::new(),
            count: 0,
            hash: FNV.0,
            trace,
            failed: None,
            judged: BTreeMap::new(),
        };
        Self { since: Instant::now(), pace: None, inner: Arc::new(Mutex::new(inner)) }
    }

    #[must_use]
    pub fn with_pace(self, pace: &MessagePace) -> Self {
        Self { pace: Some(pace.clone()), ..self }
    }

    /// Time since the start of the run.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.since.elapsed()
    }

    pub fn note(&self, who: &str, what: impl Display) {
        if let Some(pace) = &self.pace {
            pace.count();
        }
        let at = self.now();
        let mut inner = self.inner.lock().unwrap();
        let mut line = std::mem::take(&mut inner.line);
        line.clear();
        let _ = writeln!(line, "{:>6}.{:03} {who:<8} {what}", at.as_secs(), at.subsec_millis());
        inner.count += 1;
        inner.hash = line.bytes().fold(inner.hash, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(FNV.1));
        if let Some(trace) = &mut inner.trace
            && let Err(error) = trace.write_all(line.as_bytes())
        {
            inner.trace = None;
            inner.failed = Some(error);
        }
        if inner.newest.len() == KEPT {
            inner.line = inner.newest.pop_front().unwrap_or_default();
        }
        inner.newest.push_back(line);
    }

    pub fn count_judgement(&self, invariant: Id) {
        *self.inner.lock().unwrap().judged.entry(invariant).or_default() += 1;
    }

    /// Number of evaluations of each invariant.
    #[must_use]
    pub fn judgement_counts(&self) -> BTreeMap<Id, u64> {
        self.inner.lock().unwrap().judged.clone()
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.inner.lock().unwrap().count
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The last `count` lines, as far as they are in memory.
    #[must_use]
    pub fn last_lines(&self, count: usize) -> String {
        let inner = self.inner.lock().unwrap();
        inner.newest.range(inner.newest.len().saturating_sub(count)..).map(String::as_str).collect()
    }

    /// FNV-1a over every line.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.inner.lock().unwrap().hash
    }

    /// Flushes the trace.
    ///
    /// # Errors
    /// A line could not be written.
    pub fn finish(&self) -> io::Result<()> {
        let mut inner = self.inner.lock().unwrap();
        if let Some(error) = inner.failed.take() {
            return Err(error);
        }
        inner.trace.as_mut().map_or(Ok(()), Write::flush)
    }
}

#[must_use]
pub fn event_line(event: &Event) -> String {
    match event {
        Event::Planned { plan, .. } => {
            let mut text = format!("planned {}", plan.action.map_or("nothing", |action| action.name()));
            for change in &plan.changes {
                let _ = write!(text, " {:?}={}", change.change, change.address);
            }
            text
        }
        Event::Calm { .. } => "calm".to_owned(),
        Event::PlanFailed(error) => format!("no plan: {error}"),
        other => format!("{other:?}"),
    }
}
