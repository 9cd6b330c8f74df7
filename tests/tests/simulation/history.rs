//! What happened in a run, as text: the same for the same seed, in every process.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use madako_messages::event::Event;
use tokio::time::Instant;

/// Clones are the same history.
#[derive(Clone)]
pub struct History {
    since: Instant,
    lines: Arc<Mutex<Vec<String>>>,
}

impl History {
    pub fn new() -> Self {
        Self { since: Instant::now(), lines: Arc::default() }
    }

    pub fn now(&self) -> Duration {
        self.since.elapsed()
    }

    pub fn note(&self, who: &str, what: &str) {
        let at = self.now();
        self.lines.lock().unwrap().push(format!("{:>10.3} {who:<8} {what}", at.as_secs_f64()));
    }

    pub fn len(&self) -> usize {
        self.lines.lock().unwrap().len()
    }

    pub fn last(&self, count: usize) -> String {
        let lines = self.lines.lock().unwrap();
        lines[lines.len().saturating_sub(count)..].join("\n")
    }

    /// FNV-1a over every line.
    pub fn hash(&self) -> u64 {
        let lines = self.lines.lock().unwrap();
        lines.iter().flat_map(|line| line.bytes().chain([b'\n'])).fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        })
    }
}

/// An event on one line.
pub fn line(event: &Event) -> String {
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
