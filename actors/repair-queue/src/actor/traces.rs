//! What is told with what: from the answer of the registry that reported a machine to the commands of its repair.
//!
//! A repair takes many turns of this actor, which the store's watch, timers and commands bring about. So the span that each
//! entry's repair began in is remembered: decisions on the entry are told below it, and an effect below its decision.
//!
//! # Guarantees
//! One span for each entry that has not ended, in memory alone: another leader, or this actor when it was restarted, begins a
//! trace of its own with the next thing that it decides on an entry.

use std::collections::BTreeMap;

use tracing::{Span, info_span};

use super::effects::Subject;

/// See the module.
#[derive(Default)]
pub(super) struct Traces {
    /// What the newest reports came in.
    reports: Option<Span>,
    /// What the repair of each entry began in.
    entries: BTreeMap<i64, Span>,
}

impl Traces {
    /// Reports came: what is decided on them later is told with them.
    pub(super) fn reported(&mut self) {
        self.reports = Some(Span::current());
    }

    /// The span of a decision.
    pub(super) fn decision(&self, subject: Subject, what: &'static str) -> Span {
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

    /// A decision is committed: what is decided on these entries later follows from it, or from what it followed from.
    pub(super) fn committed(&mut self, entries: impl IntoIterator<Item = i64>, decision: &Span) {
        for entry in entries {
            self.entries.entry(entry).or_insert_with(|| decision.clone());
        }
    }

    /// Forgets entries that are over.
    pub(super) fn retain(&mut self, goes_on: impl Fn(i64) -> bool) {
        self.entries.retain(|entry, _| goes_on(*entry));
    }
}
