//! What a run came to.

use std::collections::BTreeMap;
use std::time::Duration;

use madako_domain::invariants::{Id, Violation};
use madako_faults::{Counts, Schedule, Shortfall, Span};
use madako_judges::{Exemptions, Promise, Verdict};

/// A fault of the schedule that was not injected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    /// Its number in the schedule.
    pub injection: usize,
    /// What it was.
    pub fault: String,
    /// Why.
    pub why: String,
}

/// Whether everything became calm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Calm {
    /// How long after the last fault; `None`: it did not as long as anybody looked.
    pub after: Option<Span>,
    /// How long it had.
    pub within: Span,
    /// What was wrong at the end though everything had its time: each is no pass.
    pub found: Vec<String>,
}

/// What a run came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Name of the scenario.
    pub scenario: String,
    /// The seed.
    pub seed: u64,
    /// How long faults happened.
    pub length: Span,
    /// What was to happen when, and what was drawn for that.
    pub schedule: Schedule,
    /// Faults that were not injected.
    pub skipped: Vec<Skipped>,
    /// Each invariant, with those that are required to have judged something.
    pub invariants: BTreeMap<Id, Verdict>,
    /// Each promise to operators.
    pub promises: BTreeMap<Promise, Verdict>,
    /// What judges excused.
    pub exemptions: Exemptions,
    /// Promises that were not put to the test though this run does that.
    pub untested: Vec<Promise>,
    /// Invariants that had nothing to judge though this world gives them something.
    pub not_exercised: Vec<Id>,
    /// Whether it became calm.
    pub calm: Calm,
    /// What keeps it from being a pass beside all that.
    pub shortfalls: Vec<Shortfall>,
    /// What was counted.
    pub counts: Counts,
    /// Requests of clients by kind, and those in vain.
    pub calls: BTreeMap<&'static str, (u64, u64)>,
    /// Transactions of instances that met rivals and were refused, by the key that had changed; empty without rivals.
    pub refused: BTreeMap<&'static str, u64>,
    /// Messages that actors handled, and what went over the network, by what it was.
    pub traffic: BTreeMap<String, u64>,
    /// Time that was simulated, the time to become calm included.
    pub simulated: Duration,
    /// Hash over the whole history, and its number of lines.
    pub history: (u64, usize),
    /// The last lines of the history, for a run that failed.
    pub last: String,
}

/// How a run ended, as the exit code tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// As the scenario expects it.
    Passed,
    /// An invariant was violated or never judged anything, it did not calm down, or too little happened.
    Failed,
    /// Faults could not be injected, and nothing else was wrong.
    Skipped,
}

impl Report {
    /// How it ended.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        let violated = self.invariants.values().any(|verdict| !verdict.violations.is_empty());
        let short = self.shortfalls.iter().any(|short| !matches!(short, Shortfall::Skipped { .. }));
        let broken = self.promises.values().any(|verdict| !verdict.violations.is_empty());
        let blind = !self.not_exercised.is_empty() || !self.untested.is_empty();
        if violated || broken || short || blind || !self.calm.found.is_empty() {
            Outcome::Failed
        } else if self.skipped.is_empty() {
            Outcome::Passed
        } else {
            Outcome::Skipped
        }
    }

    /// What is wrong with it, by short names: a run that is made shorter must keep one of them.
    #[must_use]
    pub fn wrong(&self) -> Vec<String> {
        let broken = self.invariants.iter().filter(|(_, verdict)| !verdict.violations.is_empty());
        let mut wrong: Vec<String> = broken.map(|(id, _)| id.name().to_owned()).collect();
        let broken = self.promises.iter().filter(|(_, verdict)| !verdict.violations.is_empty());
        wrong.extend(broken.map(|(promise, _)| promise.name().to_owned()));
        let late =
            |short: &Shortfall| matches!(short, Shortfall::NeverCalm { .. } | Shortfall::CalmTooLate { .. });
        if self.shortfalls.iter().any(late) || !self.calm.found.is_empty() {
            wrong.push("calm".to_owned());
        }
        wrong
    }
}

/// Verdicts from what was judged and what was found.
pub(super) fn verdicts(judged: &BTreeMap<Id, u64>, violations: Vec<Violation>) -> BTreeMap<Id, Verdict> {
    let mut verdicts: BTreeMap<Id, Verdict> = Id::ALL
        .into_iter()
        .map(|id| (id, Verdict { judged: judged.get(&id).copied().unwrap_or(0), violations: Vec::new() }))
        .collect();
    for violation in violations {
        verdicts.entry(violation.invariant).or_default().violations.push(violation.what);
    }
    verdicts
}
