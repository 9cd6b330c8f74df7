//! Spans that connect the registry answer that reports a machine with the commands of the machine's repair.
//!
//! A repair spans many messages of this actor, from the watch, timers and commands. The actor therefore keeps the
//! span in which each entry's repair began: decisions on the entry are children of it, and an effect is a child of
//! its decision.
//!
//! # Guarantees
//! One span for each entry that has not ended, in memory only. A new leader, or this actor after a restart, begins a
//! new trace with its next decision on an entry.

use std::collections::BTreeMap;

use tracing::{Span, info_span};

use super::effects::Subject;

#[derive(Default)]
pub(super) struct Traces {
    reports: Option<Span>,
    /// Span in which each entry's repair began.
    entries: BTreeMap<i64, Span>,
}

impl Traces {
    /// Keeps the current span as the parent of later decisions on these reports.
    pub(super) fn note_report(&mut self) {
        self.reports = Some(Span::current());
    }

    pub(super) fn begin_decision(&self, subject: Subject, what: &'static str) -> Span {
        let parent = match subject {
            Subject::Entry(index) => self.entries.get(&index),
            Subject::Reports => self.reports.as_ref(),
            Subject::Upkeep => None,
        };
        let parent = parent.and_then(Span::id);
        match subject {
            Subject::Entry(entry) => info_span!(parent: parent, "repair", entry, what),
            Subject::Reports | Subject::Upkeep => info_span!(parent: parent, "repair", what),
        }
    }

    /// After a commit, later decisions on these entries follow from the decision or from its origin.
    pub(super) fn note_commit(&mut self, entries: impl IntoIterator<Item = i64>, decision: &Span) {
        for entry in entries {
            self.entries.entry(entry).or_insert_with(|| decision.clone());
        }
    }

    pub(super) fn retain(&mut self, goes_on: impl Fn(i64) -> bool) {
        self.entries.retain(|entry, _| goes_on(*entry));
    }
}
