//! Limits how many applications move within any `reschedule_after` (`max_moves`).
//!
//! Guarantees: first bindings are never delayed. The creation of a cluster for a bound application counts as the move
//! that it prepares; otherwise a cloud with a rising score would get many clusters at once. Moves away from a cluster
//! that no longer takes the application come first, then the moves with the largest gain. A delayed move reports its
//! reason and time.

use std::cmp::Reverse;

use madako_domain::placement::decision::{Gain, Hold, Move, Outcome};
use madako_domain::placement::kind::ObjectKey;
use time::OffsetDateTime;

use crate::application::{ApplicationAct, Verdict};
use crate::config::MaxMoves;

impl MaxMoves {
    /// Number of applications that may move, out of this many.
    #[must_use]
    pub fn limit_for(self, applications: usize) -> u64 {
        let applications = u64::try_from(applications).unwrap_or(u64::MAX);
        (applications.saturating_mul(self.percent) / 100).max(self.at_least)
    }
}

impl<'a> Verdict<'a> {
    /// For a move, or the creation of a cluster for one: source, destination, reason.
    fn move_details(&self) -> Option<(&ObjectKey, &'a ObjectKey, &Move)> {
        match (&self.act, &self.decision.outcome) {
            (ApplicationAct::Bind { to, moves: Some(why) }, Outcome::Moved { from, .. }) => {
                Some((from, to.key(), why))
            }
            (ApplicationAct::Create { cloud, moves: Some((from, why)) }, _) => Some((from, cloud.key(), why)),
            _ => None,
        }
    }
}

/// Delays excess moves. `left`: moves allowed now; `until`: time of the next allowed move.
pub(crate) fn hold_moves<'a>(
    verdicts: &mut [Verdict<'a>],
    limit: u64,
    left: u64,
    until: Option<OffsetDateTime>,
) {
    let mut moves: Vec<(Reverse<bool>, Reverse<OrderedFloat>, usize)> = verdicts
        .iter()
        .enumerate()
        .filter_map(|(at, verdict)| {
            let (_, _, why) = verdict.move_details()?;
            let gain = verdict.decision.gain.map_or(0.0, |gain: Gain| gain.gain);
            Some((Reverse(why.is_forced()), Reverse(OrderedFloat(gain)), at))
        })
        .collect();
    moves.sort_unstable();
    let left = usize::try_from(left).unwrap_or(usize::MAX);
    for (_, _, at) in moves.into_iter().skip(left) {
        let Some(verdict) = verdicts.get_mut(at) else { continue };
        let Some((on, to, why)) = verdict.move_details() else { continue };
        let (on, to, why) = (on.clone(), to.clone(), why.clone());
        verdict.act = if why.is_forced() {
            // No deployment where the application has to leave, such as a version that its cluster does not take.
            ApplicationAct::Nothing
        } else {
            // It keeps waiting for the cluster that was created for it.
            ApplicationAct::Keep { well: why == Move::Better, forget: false }
        };
        verdict.decision.outcome = Outcome::Held { on, to, why, rule: Hold::MaxMoves { limit, until } };
        verdict.again = until;
    }
}

/// Floats in total order.
#[derive(Debug, Clone, Copy)]
struct OrderedFloat(f64);

impl PartialEq for OrderedFloat {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for OrderedFloat {}

impl PartialOrd for OrderedFloat {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for OrderedFloat {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}
