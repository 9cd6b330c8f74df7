//! The report of a simulated run: verdicts, counts, faults, and the trace's hash.

use std::collections::BTreeMap;
use std::time::Duration;

use madako_domain::invariants::{Id, Violation};
use madako_faults::{Counts, Schedule, Shortfall, Span};
use madako_judges::{Exemptions, Promise, Verdict};

/// A fault of the schedule that was not injected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkippedFault {
    /// Number of the fault in the schedule.
    pub injection: usize,
    pub fault: String,
    /// Reason why it was not injected.
    pub why: String,
}

/// Result of the wait for a quiet period after the last fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuietPeriod {
    /// Time from the last fault to the quiet period; `None` if the wait ended without one.
    pub after: Option<Span>,
    /// Time allowed for it.
    pub within: Span,
    /// Faults found at the end of the wait; each of them fails the run.
    pub found: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    pub scenario: String,
    pub seed: u64,
    /// Time during which faults happened.
    pub length: Span,
    /// The faults and their times, with the random choices for them.
    pub schedule: Schedule,
    pub skipped: Vec<SkippedFault>,
    pub invariants: BTreeMap<Id, Verdict>,
    pub promises: BTreeMap<Promise, Verdict>,
    /// Deviations that judges excused.
    pub exemptions: Exemptions,
    /// Promises that were not tested, although runs of this kind test them.
    pub untested: Vec<Promise>,
    /// Invariants that were not evaluated, although this world has their subject.
    pub not_exercised: Vec<Id>,
    pub calm: QuietPeriod,
    /// Other reasons why the run does not pass.
    pub shortfalls: Vec<Shortfall>,
    pub counts: Counts,
    /// Number of clients' requests by kind, and of the failed ones among them.
    pub calls: BTreeMap<&'static str, (u64, u64)>,
    /// Refused transactions of instances, by the key that a rival had changed; empty without rivals.
    pub refused: BTreeMap<&'static str, u64>,
    /// Numbers of handled messages, connections, bytes, disk syncs and requests, by kind.
    pub traffic: BTreeMap<String, u64>,
    /// Simulated time, the wait for a quiet period included.
    pub simulated: Duration,
    /// Hash of the whole history, and its number of lines.
    pub history: (u64, usize),
    /// Last lines of the history of a failed run.
    pub last: String,
}

/// Result of a run; it determines the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The run met the scenario's expectations.
    Passed,
    /// An invariant was violated or never evaluated, no quiet period came, or too few events happened.
    Failed,
    /// Faults could not be injected; everything else passed.
    Skipped,
}

impl Report {
    #[must_use]
    pub fn overall_outcome(&self) -> Outcome {
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

    /// Short names of the failures. A shrunk run must keep one of them.
    #[must_use]
    pub fn failure_texts(&self) -> Vec<String> {
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

/// Combines the numbers of evaluations and the violations into verdicts.
pub(super) fn verdicts_by_invariant(
    judged: &BTreeMap<Id, u64>,
    violations: Vec<Violation>,
) -> BTreeMap<Id, Verdict> {
    let mut verdicts: BTreeMap<Id, Verdict> = Id::ALL
        .iter()
        .map(|&id| (id, Verdict { judged: judged.get(&id).copied().unwrap_or(0), violations: Vec::new() }))
        .collect();
    for violation in violations {
        verdicts.entry(violation.invariant).or_default().violations.push(violation.what);
    }
    verdicts
}
