//! Checks the observations of a run against the invariants of the design, with the functions that the service calls
//! before a commit.
//!
//! Guarantees: each verdict has the number of judgements; a verdict without any is not reported as held.

pub mod acknowledged;
pub mod api;
pub mod drains;
pub mod effects;
pub mod linear;
pub mod placement;
pub(crate) mod promises;
pub mod registry;
pub mod store;
pub mod watches;

use std::collections::BTreeMap;

use madako_domain::invariants::{Id, Violation};
use serde::Serialize;

/// Reported violations of one invariant: the first of a series suffice.
const MOST_REPORTED: usize = 20;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Verdict {
    pub judged: u64,
    pub broken: u64,
    /// Descriptions of the first violations, at most `MOST_REPORTED`.
    pub violations: Vec<String>,
}

/// Verdicts by name of the invariant or check.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Verdicts(pub BTreeMap<String, Verdict>);

impl Verdicts {
    pub fn count_judged(&mut self, invariant: Id, times: u64) {
        self.verdict_of(invariant.name()).judged += times;
    }

    pub fn count_violated(&mut self, violation: &Violation) {
        self.count_violation(violation.invariant.name(), violation.what.clone());
    }

    /// Counts a violation of a check that is not an invariant.
    pub fn count_violation(&mut self, name: &str, what: String) {
        let verdict = self.verdict_of(name);
        verdict.broken += 1;
        if verdict.violations.len() < MOST_REPORTED {
            verdict.violations.push(what);
        }
    }

    pub fn verdict_of(&mut self, name: &str) -> &mut Verdict {
        self.0.entry(name.to_owned()).or_default()
    }

    #[must_use]
    pub fn has_broken(&self) -> bool {
        self.0.values().any(|verdict| verdict.broken > 0)
    }
}
