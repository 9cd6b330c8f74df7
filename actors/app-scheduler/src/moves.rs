//! How many applications may move (`max_moves`): not more than a part of them within any `reschedule_after`.
//!
//! Guarantees: first bindings are never held back. Moves off a cluster that takes its application no longer come
//! first, then those that gain most; what waits is said to wait, and for what.

use std::cmp::Reverse;

use madako_messages::placement::decision::{Gain, Hold, Move, Outcome};
use time::OffsetDateTime;

use crate::application::{Act, Verdict};
use crate::config::MaxMoves;

impl MaxMoves {
    /// How many of so many applications may move.
    #[must_use]
    pub fn of(self, applications: usize) -> u64 {
        let applications = u64::try_from(applications).unwrap_or(u64::MAX);
        (applications.saturating_mul(self.percent) / 100).max(self.at_least)
    }
}

/// Holds back the moves that are too many. `left`: how many may be made now; `until`: when the next one may.
pub(crate) fn hold<'a>(verdicts: &mut [Verdict<'a>], limit: u64, left: u64, until: Option<OffsetDateTime>) {
    let mut moves: Vec<(Reverse<bool>, Reverse<Order>, usize)> = verdicts
        .iter()
        .enumerate()
        .filter_map(|(at, verdict)| match &verdict.act {
            Act::Bind { moves: Some(why), .. } => {
                let gain = verdict.decision.gain.map_or(0.0, |gain: Gain| gain.gain);
                Some((Reverse(why.forced()), Reverse(Order(gain)), at))
            }
            _ => None,
        })
        .collect();
    moves.sort_unstable();
    let left = usize::try_from(left).unwrap_or(usize::MAX);
    for (_, _, at) in moves.into_iter().skip(left) {
        let Some(verdict) = verdicts.get_mut(at) else { continue };
        let Outcome::Moved { from, to, why } = &verdict.decision.outcome else { continue };
        let (on, to, why) = (from.clone(), to.clone(), why.clone());
        verdict.act = if why.forced() {
            // Nobody may deploy it where it has to leave, such as a version of it that its cluster does not take.
            Act::Nothing
        } else {
            // It still waits for the cluster that was created for it, until it may go there.
            Act::Keep { well: why == Move::Better, forget: false }
        };
        verdict.decision.outcome = Outcome::Held { on, to, why, rule: Hold::MaxMoves { limit, until } };
        verdict.again = until;
    }
}

/// Floats in their total order.
#[derive(Debug, Clone, Copy)]
struct Order(f64);

impl PartialEq for Order {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Order {}

impl PartialOrd for Order {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Order {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}
