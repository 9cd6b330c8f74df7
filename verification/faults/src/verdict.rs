//! Compares the counts of a run with the outcome that its scenario expects. Pure.

use std::fmt;

use madako_json::named;
use serde::ser::{Serialize, SerializeMap as _, Serializer};
use strum::{Display, IntoStaticStr, VariantArray};

use crate::scenario::Expectations;
use crate::span::Span;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[derive(Display, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum Count {
    /// An instance was elected that did not lead before.
    LeaderChanges,
    /// Writes of the leader that the store accepted.
    Commits,
    /// Writes that the store refused, because the writer no longer leads or a compared key had changed.
    RefusedWrites,
    /// Requests of clients that failed or got no answer.
    FailedClientCalls,
    Faults,
}

named!(Count all);

/// Counted events, or least counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    pub leader_changes: u64,
    pub commits: u64,
    pub refused_writes: u64,
    pub failed_client_calls: u64,
    pub faults: u64,
}

impl Counts {
    #[must_use]
    pub fn count_of(&self, count: Count) -> u64 {
        let mut counts = *self;
        *counts.of_mut(count)
    }

    pub fn of_mut(&mut self, count: Count) -> &mut u64 {
        match count {
            Count::LeaderChanges => &mut self.leader_changes,
            Count::Commits => &mut self.commits,
            Count::RefusedWrites => &mut self.refused_writes,
            Count::FailedClientCalls => &mut self.failed_client_calls,
            Count::Faults => &mut self.faults,
        }
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Writes only counts other than 0.
impl Serialize for Counts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for count in Count::ALL.iter().filter(|count| self.count_of(**count) > 0) {
            map.serialize_entry(count.name(), &self.count_of(*count))?;
        }
        map.end()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Observed {
    /// From the beginning of the run until it was calm or given up.
    pub counts: Counts,
    /// Scheduled faults that were not injected, for any reason.
    pub skipped: u64,
    /// Time from the last fault until the world was calm; `None`: not calm within the observed time.
    pub calm_after: Option<Span>,
    /// Default for [`Expectations::calm_within`]: the lease's time to live, three polls, the wait before applications
    /// leave, and the longest back-off.
    pub settings_allow: Span,
}

/// A reason why a run fails though no invariant was violated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case", tag = "reason")]
pub enum Shortfall {
    NeverCalm {
        /// Time that it had.
        within: Span,
    },
    CalmTooLate {
        /// Time that it had.
        within: Span,
        /// Time that it took.
        after: Span,
    },
    /// Faults were not injected, so that the run shows nothing about them.
    Skipped { faults: u64 },
    /// Too few events happened for the run to show its property.
    TooFew { count: Count, at_least: u64, got: u64 },
}

impl fmt::Display for Shortfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NeverCalm { within } => {
                write!(f, "it did not become calm within {within} after the last fault")
            }
            Self::CalmTooLate { within, after } => {
                write!(f, "it became calm {after} after the last fault, later than {within}")
            }
            Self::Skipped { faults } => write!(f, "faults that were not injected: {faults}"),
            Self::TooFew { count, at_least, got } => {
                write!(f, "{count}: {got}, where at least {at_least} were expected")
            }
        }
    }
}

/// All reasons why the run fails; empty if it passes.
#[must_use]
pub fn find_shortfalls(expect: &Expectations, observed: &Observed) -> Vec<Shortfall> {
    let within = expect.calm_within.unwrap_or(observed.settings_allow);
    let calm = match observed.calm_after {
        None => Some(Shortfall::NeverCalm { within }),
        Some(after) if after > within => Some(Shortfall::CalmTooLate { within, after }),
        Some(_) => None,
    };
    let skipped = (observed.skipped > 0).then_some(Shortfall::Skipped { faults: observed.skipped });
    let too_few = Count::ALL.iter().filter_map(|count| {
        let (at_least, got) = (expect.at_least.count_of(*count), observed.counts.count_of(*count));
        (got < at_least).then_some(Shortfall::TooFew { count: *count, at_least, got })
    });
    calm.into_iter().chain(skipped).chain(too_few).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const WITHIN: Span = Span::from_seconds(60);

    fn expect() -> Expectations {
        let at_least =
            Counts { leader_changes: 1, commits: 2, refused_writes: 3, failed_client_calls: 4, faults: 5 };
        Expectations { calm_within: Some(WITHIN), at_least }
    }

    /// Observations that just meet all expectations.
    fn observed() -> Observed {
        let counts = expect().at_least;
        Observed { counts, skipped: 0, calm_after: Some(WITHIN), settings_allow: Span::from_seconds(30) }
    }

    #[test]
    fn a_run_that_meets_each_expectation_lacks_nothing() {
        assert_eq!(find_shortfalls(&expect(), &observed()), []);
        let nothing =
            Observed { counts: Counts::default(), calm_after: Some(Span::from_seconds(30)), ..observed() };
        assert_eq!(find_shortfalls(&Expectations::default(), &nothing), []);
    }

    #[test]
    fn each_unmet_expectation_is_reported() {
        for count in Count::ALL {
            let mut one_less = observed();
            *one_less.counts.of_mut(*count) -= 1;
            let (at_least, got) = (expect().at_least.count_of(*count), one_less.counts.count_of(*count));
            assert_eq!(
                find_shortfalls(&expect(), &one_less),
                [Shortfall::TooFew { count: *count, at_least, got }]
            );
        }
        let skipped = Observed { skipped: 2, ..observed() };
        assert_eq!(find_shortfalls(&expect(), &skipped), [Shortfall::Skipped { faults: 2 }]);
        let never = Observed { calm_after: None, ..observed() };
        assert_eq!(find_shortfalls(&expect(), &never), [Shortfall::NeverCalm { within: WITHIN }]);
        let after = Span::from_millis(60_001);
        let late = Observed { calm_after: Some(after), ..observed() };
        assert_eq!(find_shortfalls(&expect(), &late), [Shortfall::CalmTooLate { within: WITHIN, after }]);
    }

    #[test]
    fn the_settings_say_how_long_calm_may_take_where_the_scenario_does_not() {
        let silent = Expectations { calm_within: None, ..expect() };
        let within = Span::from_seconds(30);
        let late = Shortfall::CalmTooLate { within, after: WITHIN };
        assert_eq!(find_shortfalls(&silent, &observed()), [late]);
        assert_eq!(late.to_string(), "it became calm 1m after the last fault, later than 30s");
        let few = Shortfall::TooFew { count: Count::Commits, at_least: 2, got: 1 };
        assert_eq!(few.to_string(), "commits: 1, where at least 2 were expected");
    }
}
