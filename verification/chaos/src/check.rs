//! What was seen of a run, judged from outside by the invariants of the design, which are the same functions that the
//! service calls before it commits.
//!
//! Guarantees: each invariant says how often it had something to judge; what was never judged is not told as held.

pub mod api;
pub mod drains;
pub mod effects;
pub mod linear;
pub mod placement;
pub(crate) mod promises;
pub mod registry;
pub mod store;
pub mod told;
pub mod watches;

use std::collections::BTreeMap;

use madako_domain::invariants::{Id, Violation};
use serde::Serialize;

/// Violations of one invariant that are told; what is broken is broken often.
const MOST_TOLD: usize = 20;

/// What was found of one invariant.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// How often there was something to judge.
    pub judged: u64,
    /// How often it was broken.
    pub broken: u64,
    /// The first of these.
    pub violations: Vec<String>,
}

/// Verdicts by the names of what was judged.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Verdicts(pub BTreeMap<String, Verdict>);

impl Verdicts {
    /// There was something to judge.
    pub fn judged(&mut self, invariant: Id, times: u64) {
        self.of(invariant.name()).judged += times;
    }

    /// It was broken.
    pub fn violated(&mut self, violation: &Violation) {
        self.broken(violation.invariant.name(), violation.what.clone());
    }

    /// Something that has no invariant's name was broken.
    pub fn broken(&mut self, name: &str, what: String) {
        let verdict = self.of(name);
        verdict.broken += 1;
        if verdict.violations.len() < MOST_TOLD {
            verdict.violations.push(what);
        }
    }

    /// The verdict of that name.
    pub fn of(&mut self, name: &str) -> &mut Verdict {
        self.0.entry(name.to_owned()).or_default()
    }

    /// Whether something was broken.
    #[must_use]
    pub fn any_broken(&self) -> bool {
        self.0.values().any(|verdict| verdict.broken > 0)
    }
}
