//! The removal guard: it holds an observation in which more than a tenth of the cluster's nodes, and more than one,
//! vanish since the last accepted one, until three polls in a row agree or an operator confirms it.
//!
//! A vanished node that is still part of the cluster was not acted on, however many polls ago it vanished: otherwise
//! it would have been removed. So every missing node counts, except those whose removal was agreed or confirmed.
//!
//! Pure. The caller keeps the state in etcd, so that a new leader continues the count.

use std::collections::BTreeSet;

use madako_domain::canary::{Canary, is_planted};
use madako_domain::guard::{GuardState, POLLS_TO_AGREE};

/// The guard holds if more than one node in this many vanishes (design: 10 %).
const SHARE: usize = 10;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GuardVerdict {
    Accept {
        /// Reason, if the guard held an earlier observation.
        released: Option<HoldEndReason>,
    },
    /// Hold it back, and keep this state.
    Hold(GuardState),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HoldEndReason {
    /// Enough polls in a row agreed.
    Agreed,
    Confirmed,
    /// The nodes are back, or too few are missing to matter.
    Returned,
}

impl HoldEndReason {
    /// A sentence for events.
    #[must_use]
    pub fn describe(self) -> &'static str {
        match self {
            Self::Agreed => "enough polls in a row agreed that the nodes are gone",
            Self::Confirmed => "an operator confirmed that the nodes are gone",
            Self::Returned => "the nodes are in the registry's list again, or left the cluster",
        }
    }
}

/// Evaluates an observation.
///
/// `nodes` are the cluster's addresses, `observed` those of the observation, `given_up` those with an agreed or
/// confirmed removal (none after a start), `kept` the state of the guard.
#[must_use]
pub fn evaluate(
    nodes: &BTreeSet<String>,
    observed: &BTreeSet<String>,
    given_up: &BTreeSet<String>,
    kept: Option<&GuardState>,
) -> GuardVerdict {
    let vanished: BTreeSet<String> = nodes
        .iter()
        .filter(|node| !observed.contains(*node))
        .filter(|node| !given_up.contains(*node))
        .cloned()
        .collect();
    let turned = is_planted(Canary::RemovalGuardTurned);
    let large = vanished.len() > 1 && (vanished.len() * SHARE > nodes.len()) != turned;
    if !large {
        return GuardVerdict::Accept { released: kept.map(|_| HoldEndReason::Returned) };
    }
    let same = kept.filter(|kept| kept.vanished == vanished);
    if kept.is_some_and(|kept| kept.confirmed && vanished.is_subset(&kept.vanished)) {
        return GuardVerdict::Accept { released: Some(HoldEndReason::Confirmed) };
    }
    let agreed = same.map_or(0, |kept| kept.agreed).saturating_add(1);
    if agreed >= POLLS_TO_AGREE {
        return GuardVerdict::Accept { released: Some(HoldEndReason::Agreed) };
    }
    GuardVerdict::Hold(GuardState { vanished, agreed, confirmed: false })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn set(range: std::ops::Range<u32>) -> BTreeSet<String> {
        range.map(|n| format!("10.0.0.{n}")).collect()
    }

    fn held(vanished: BTreeSet<String>, agreed: u32) -> GuardState {
        GuardState { vanished, agreed, confirmed: false }
    }

    const ACCEPTED: GuardVerdict = GuardVerdict::Accept { released: None };

    #[test]
    fn a_tenth_or_a_single_node_may_vanish() {
        for (nodes, seen) in [(20, 2..20), (5, 1..5), (1, 1..1), (0, 0..0)] {
            assert_eq!(evaluate(&set(0..nodes), &set(seen), &set(0..0), None), ACCEPTED, "{nodes}");
        }
    }

    #[test]
    fn more_than_a_tenth_is_held_until_the_third_poll_in_a_row_agrees() {
        let nodes = set(0..20);
        let observed = set(3..20);
        let first = held(set(0..3), 1);
        let second = held(set(0..3), 2);
        assert_eq!(evaluate(&nodes, &observed, &set(0..0), None), GuardVerdict::Hold(first.clone()));
        assert_eq!(evaluate(&nodes, &observed, &set(0..0), Some(&first)), GuardVerdict::Hold(second.clone()));
        assert_eq!(
            evaluate(&nodes, &observed, &set(0..0), Some(&second)),
            GuardVerdict::Accept { released: Some(HoldEndReason::Agreed) }
        );
    }

    #[test]
    fn different_set_of_vanished_nodes_resets_the_count() {
        let second = held(set(0..3), 2);
        assert_eq!(
            evaluate(&set(0..20), &set(4..20), &set(0..0), Some(&second)),
            GuardVerdict::Hold(held(set(0..4), 1))
        );
    }

    #[test]
    fn machines_that_the_guard_gave_up_are_not_held_again() {
        assert_eq!(evaluate(&set(0..20), &set(3..20), &set(0..3), None), ACCEPTED);
    }

    #[test]
    fn nodes_that_vanish_one_by_one_and_are_never_removed_add_up() {
        let nodes = set(0..20);
        assert_eq!(evaluate(&nodes, &set(1..20), &set(0..0), None), ACCEPTED);
        assert_eq!(evaluate(&nodes, &set(2..20), &set(0..0), None), ACCEPTED);
        assert_eq!(
            evaluate(&nodes, &set(3..20), &set(0..0), None),
            GuardVerdict::Hold(held(set(0..3), 1)),
            "no actor acted on the first two"
        );
        // Two were given up, and two vanished since: these are a tenth.
        assert_eq!(evaluate(&nodes, &set(4..20), &set(0..2), None), ACCEPTED);
    }

    #[test]
    fn confirmation_covers_only_the_nodes_that_it_names() {
        let confirmed = GuardState { confirmed: true, ..held(set(0..3), 1) };
        assert_eq!(
            evaluate(&set(0..20), &set(3..20), &set(0..0), Some(&confirmed)),
            GuardVerdict::Accept { released: Some(HoldEndReason::Confirmed) }
        );
        assert_eq!(
            evaluate(&set(0..20), &set(4..20), &set(0..0), Some(&confirmed)),
            GuardVerdict::Hold(held(set(0..4), 1))
        );
    }

    #[test]
    fn nodes_that_return_release_the_guard() {
        assert_eq!(
            evaluate(&set(0..20), &set(0..20), &set(0..0), Some(&held(set(0..3), 2))),
            GuardVerdict::Accept { released: Some(HoldEndReason::Returned) }
        );
    }

    proptest! {
        /// However the list shrinks, a large removal needs three equal polls.
        #[test]
        fn a_large_removal_takes_three_polls(size in 2_u32..60, first_seen in 0_u32..60) {
            let nodes = set(0..size);
            let observed = set(first_seen.min(size)..size);
            let gone = nodes.len() - observed.len();
            let large = gone > 1 && gone * 10 > nodes.len();
            let mut kept = None;
            let mut polls = 0;
            loop {
                polls += 1;
                match evaluate(&nodes, &observed, &set(0..0), kept.as_ref()) {
                    GuardVerdict::Hold(state) => kept = Some(state),
                    GuardVerdict::Accept { .. } => break,
                }
            }
            prop_assert_eq!(polls, if large { 3 } else { 1 });
        }
    }
}
