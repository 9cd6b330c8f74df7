//! The scheduler's memory between passes, beyond the resources.
//!
//! Guarantees: the store keeps all memory that later decisions need ([`MemoryChange`]): the times since which clusters are
//! not online or not used, and the history of moves. Memory that ends with the process (the start of waits for
//! metrics) only starts anew.

use std::collections::BTreeMap;
use std::time::Duration;

use madako_domain::placement::kind::ObjectKey;
use madako_domain::placement::metrics::MetricKey;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use crate::config::add_duration;
use crate::limits::OLDER_MOVES;
use crate::snapshot::OnlineHistory;

/// Memory of one cluster; the store keeps it unless it is empty.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterMemory {
    /// Revision of the cluster at which the other fields were true: an earlier state may have been interrupted
    /// unobserved.
    #[serde(default)]
    pub revision: i64,
    /// Time since which it is continuously not online.
    #[serde(default, with = "time::serde::rfc3339::option")]
    pub not_online_since: Option<OffsetDateTime>,
    /// It was online at some time; only for clusters that were created for applications.
    #[serde(default)]
    pub was_online: bool,
    /// Time since which no application uses it; only if it was online.
    #[serde(default, with = "time::serde::rfc3339::option")]
    pub unused_since: Option<OffsetDateTime>,
}

impl ClusterMemory {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.not_online_since.is_none() && !self.was_online && self.unused_since.is_none()
    }

    /// The part that is valid for the present cluster: nothing, if the cluster was recreated under its name;
    /// `not_online_since` only if it was not online in between.
    #[must_use]
    pub(crate) fn valid_since(self, created: i64, standing: OnlineHistory) -> Self {
        if self.revision < created {
            return Self::default();
        }
        let uninterrupted = standing.down_since.is_some_and(|down| down <= self.revision);
        Self { not_online_since: self.not_online_since.filter(|_| uninterrupted), ..self }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moves {
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    pub count: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Memory {
    /// Without empty entries.
    pub clusters: BTreeMap<ObjectKey, ClusterMemory>,
    /// Moves within the last `reschedule_after`, and [`OLDER_MOVES`] earlier entries, in the order of noting. The
    /// store keeps them.
    pub moves: Vec<Moves>,
    /// Start of the wait for each metric that was never fetched.
    pub waiting: BTreeMap<MetricKey, OffsetDateTime>,
}

impl Memory {
    #[must_use]
    pub fn moves_within(&self, span: Duration, now: OffsetDateTime) -> u64 {
        self.recent_moves(span, now).map(|moves| moves.count).sum()
    }

    /// Time at which the oldest of them expires.
    #[must_use]
    pub fn next_move(&self, span: Duration, now: OffsetDateTime) -> Option<OffsetDateTime> {
        self.recent_moves(span, now).map(|moves| add_duration(moves.at, span)).min()
    }

    /// Adds missing moves of those known to have happened within `span`, latest first: at least as many count as
    /// happened, and none expires later than the latest of them.
    pub fn count_at_least(&mut self, made: &[Moves], span: Duration, now: OffsetDateTime) {
        let total: u64 = made.iter().map(|moves| moves.count).sum();
        let mut missing = total.saturating_sub(self.moves_within(span, now));
        for moves in made.iter().rev() {
            let count = moves.count.min(missing);
            missing -= count;
            self.add_moves(Moves { at: moves.at, count });
        }
    }

    /// Adds moves, and forgets the oldest expired ones.
    pub fn note_moves(&mut self, count: u64, span: Duration, now: OffsetDateTime) {
        // A future time came from a clock that was set back since, or from an earlier leader's fast clock. It counts
        // as now; otherwise no application could move until the clock catches up.
        let mut forgotten =
            (self.moves.len() - self.recent_moves(span, now).count()).saturating_sub(OLDER_MOVES);
        self.moves.retain_mut(|moves| {
            if add_duration(moves.at, span) > now {
                moves.at = moves.at.min(now);
            } else if forgotten > 0 {
                forgotten -= 1;
                return false;
            }
            true
        });
        self.add_moves(Moves { at: now, count });
    }

    fn add_moves(&mut self, moves: Moves) {
        match self.moves.last_mut() {
            _ if moves.count == 0 => {}
            Some(last) if last.at == moves.at => last.count += moves.count,
            _ => self.moves.push(moves),
        }
    }

    // Moves with a future time count until they are noted again.
    fn recent_moves(&self, span: Duration, now: OffsetDateTime) -> impl Iterator<Item = &Moves> {
        self.moves.iter().filter(move |moves| add_duration(moves.at, span) > now)
    }
}

/// A change of a cluster's kept memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryChange {
    pub cluster: ObjectKey,
    /// `None`: delete it.
    pub memory: Option<ClusterMemory>,
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPAN: Duration = Duration::from_secs(60);

    fn at(seconds: i64) -> OffsetDateTime {
        OffsetDateTime::from_unix_timestamp(1_800_000_000 + seconds).unwrap()
    }

    #[test]
    fn moves_count_for_as_long_as_they_are_recent() {
        let mut memory = Memory::default();
        memory.note_moves(3, SPAN, at(0));
        memory.note_moves(2, SPAN, at(0));
        memory.note_moves(4, SPAN, at(30));
        memory.note_moves(0, SPAN, at(31));
        assert_eq!(memory.moves.len(), 2);
        assert_eq!(memory.moves_within(SPAN, at(59)), 9);
        assert_eq!(memory.next_move(SPAN, at(59)), Some(at(60)));
        assert_eq!(memory.moves_within(SPAN, at(60)), 4);
        memory.note_moves(1, SPAN, at(95));
        assert_eq!(memory.moves_within(SPAN, at(95)), 1);
        for second in 0..100 {
            memory.note_moves(1, SPAN, at(100 + second));
        }
        assert_eq!(memory.moves_within(SPAN, at(199)), 60);
        assert_eq!(memory.moves.len(), 60 + OLDER_MOVES, "what is long past is forgotten");
    }

    #[test]
    fn moves_that_look_old_to_a_clock_ahead_count_for_the_next_leader() {
        let mut memory = Memory::default();
        memory.note_moves(3, SPAN, at(0));
        memory.note_moves(0, SPAN, at(3601));
        assert_eq!(memory.moves_within(SPAN, at(3601)), 0);
        memory.note_moves(1, SPAN, at(3601));
        memory.note_moves(0, SPAN, at(55));
        assert_eq!(memory.moves_within(SPAN, at(55)), 4);
        assert_eq!(memory.next_move(SPAN, at(55)), Some(at(60)));
        assert_eq!(memory.moves_within(SPAN, at(60)), 1);
    }

    #[test]
    fn moves_noted_by_a_clock_ahead_count_from_their_observation() {
        let mut memory = Memory::default();
        memory.note_moves(3, SPAN, at(3600));
        memory.note_moves(0, SPAN, at(10));
        assert_eq!((memory.moves_within(SPAN, at(69)), memory.next_move(SPAN, at(69))), (3, Some(at(70))));
        assert_eq!(memory.moves_within(SPAN, at(70)), 0);
    }

    #[test]
    fn moves_of_this_epoch_count_when_the_clock_jumps_ahead() {
        let mut memory = Memory::default();
        memory.note_moves(2, SPAN, at(3600));
        // The clock is right for a moment, and then ahead again.
        memory.note_moves(0, SPAN, at(10));
        memory.note_moves(1, SPAN, at(3613));
        assert_eq!(memory.moves_within(SPAN, at(3613)), 1);
        let made = [Moves { at: at(3604), count: 2 }, Moves { at: at(3613), count: 1 }];
        for _ in 0..2 {
            memory.count_at_least(&made, SPAN, at(3614));
            assert_eq!(memory.moves_within(SPAN, at(3614)), 3);
        }
        assert_eq!(memory.moves_within(SPAN, at(3673)), 0);
    }

    #[test]
    fn clock_step_does_not_extend_the_time_for_which_moves_count() {
        let mut memory = Memory::default();
        memory.note_moves(2, SPAN, at(0));
        memory.note_moves(1, SPAN, at(30));
        // The clock is set ahead by five seconds: by it the first two expire early.
        let made = [Moves { at: at(5), count: 2 }, Moves { at: at(35), count: 1 }];
        memory.count_at_least(&made, SPAN, at(62));
        assert_eq!(memory.moves_within(SPAN, at(62)), 3);
        assert_eq!(memory.moves_within(SPAN, at(94)), 1, "one of the two, in place of the third");
        assert_eq!(memory.moves_within(SPAN, at(95)), 0);
    }
}
