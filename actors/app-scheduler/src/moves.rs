//! How many applications may move (`max_moves`): not more than a part of them within any `reschedule_after`.
//!
//! Guarantees: first bindings are never held back. Creating a cluster for an application that is bound counts as the
//! move that it prepares: or else a cloud that gets better would be covered with clusters at once. Moves off a cluster
//! that takes its application no longer come first, then those that gain most; what waits is said to wait, and for
//! what.

use std::cmp::Reverse;

use madako_domain::placement::decision::{Gain, Hold, Move, Outcome};
use madako_domain::placement::kind::ObjectKey;
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

impl<'a> Verdict<'a> {
    /// For a move, or the creation of a cluster for one: where from, where to, and why.
    fn moves(&self) -> Option<(&ObjectKey, &'a ObjectKey, &Move)> {
        match (&self.act, &self.decision.outcome) {
            (Act::Bind { to, moves: Some(why) }, Outcome::Moved { from, .. }) => Some((from, to.key(), why)),
            (Act::Create { cloud, moves: Some((from, why)) }, _) => Some((from, cloud.key(), why)),
            _ => None,
        }
    }
}

/// Holds back the moves that are too many. `left`: how many may be made now; `until`: when the next one may.
pub(crate) fn hold<'a>(verdicts: &mut [Verdict<'a>], limit: u64, left: u64, until: Option<OffsetDateTime>) {
    let mut moves: Vec<(Reverse<bool>, Reverse<Order>, usize)> = verdicts
        .iter()
        .enumerate()
        .filter_map(|(at, verdict)| {
            let (_, _, why) = verdict.moves()?;
            let gain = verdict.decision.gain.map_or(0.0, |gain: Gain| gain.gain);
            Some((Reverse(why.forced()), Reverse(Order(gain)), at))
        })
        .collect();
    moves.sort_unstable();
    let left = usize::try_from(left).unwrap_or(usize::MAX);
    for (_, _, at) in moves.into_iter().skip(left) {
        let Some(verdict) = verdicts.get_mut(at) else { continue };
        let Some((on, to, why)) = verdict.moves() else { continue };
        let (on, to, why) = (on.clone(), to.clone(), why.clone());
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
