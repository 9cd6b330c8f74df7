//! Handles times in the queue that lie ahead of the clock: an earlier leader with a wrong clock wrote them.
//!
//! Taken literally, such a time would prolong a health watch or a drain until the clock reaches it, possibly by an
//! hour. It therefore counts from its first observation on the monotonic clock, whatever happens to the wall clock.
//! This can only lengthen a pause, at most to twice its length.
//!
//! Guarantees: a time that is at most [`CLOCKS_DIFFER`] ahead is used unchanged.
//!
//! Does not: detect a time from a clock that was behind: its pause ends too early, as in CKE.

use std::collections::BTreeMap;
use std::time::Duration;

use madako_domain::repair::RepairQueueEntry;
use madako_domain::repair::queue::RepairQueue;
use time::OffsetDateTime;

pub use crate::limits::CLOCKS_DIFFER;
use crate::pass::{add_duration, last_transition_of};

/// Entries whose last transition lies ahead, by index.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FutureTransitions(BTreeMap<i64, FirstObservation>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FirstObservation {
    written: OffsetDateTime,
    /// First observation, on the monotonic clock.
    first: Duration,
    /// First observation, in present wall-clock time.
    since: OffsetDateTime,
}

impl FutureTransitions {
    /// Updates the set. `steady` is the monotonic time since a fixed instant.
    pub fn follow(&mut self, queue: &RepairQueue, now: OffsetDateTime, steady: Duration) {
        let is_ahead = |time: OffsetDateTime| time > add_duration(now, CLOCKS_DIFFER);
        let before = std::mem::take(&mut self.0);
        self.0 = queue
            .entries
            .iter()
            .filter_map(|(index, item)| {
                let written = last_transition_of(&item.value);
                let known = before.get(index).filter(|known| known.written == written);
                let first = known.map_or(steady, |known| known.first);
                let since = now - steady.saturating_sub(first);
                (known.is_some() || is_ahead(written))
                    .then_some((*index, FirstObservation { written, first, since }))
            })
            .collect();
    }

    /// Time from which an entry's last transition counts.
    #[must_use]
    pub fn transition_time(&self, entry: &RepairQueueEntry) -> OffsetDateTime {
        let written = last_transition_of(entry);
        let first = self.0.get(&entry.index).filter(|first| first.written == written);
        first.map_or(written, |first| first.since)
    }
}

#[cfg(test)]
mod tests {
    use madako_domain::repair::RepairStepStatus::Watching;

    use super::*;
    use crate::testing::{NOW, Store, processing};

    fn at(seconds: i64) -> OffsetDateTime {
        NOW + time::Duration::seconds(seconds)
    }

    #[test]
    fn timestamp_in_the_future_counts_from_its_first_observation() {
        let mut store = Store::new(&["a"], &["w", "x"]);
        let (ahead, near) = (processing(0, "w", 0, Watching, -3600), processing(1, "x", 0, Watching, -60));
        store.entry(&ahead);
        store.entry(&near);
        let queue = &store.state().repair;
        let mut times = FutureTransitions::default();
        let steady = Duration::from_secs;
        times.follow(queue, at(0), steady(7));
        times.follow(queue, at(30), steady(37));
        assert_eq!((times.transition_time(&ahead), times.transition_time(&near)), (at(0), at(60)));
        // Unchanged when the clock reaches the written time.
        times.follow(queue, at(3_600), steady(3_607));
        assert_eq!(times.transition_time(&ahead), at(0));
        // The clock is set back by two hours.
        times.follow(queue, at(-3_600), steady(3_607));
        assert_eq!(times.transition_time(&ahead), at(-7_200));
        // The entry proceeds: its new time counts as written.
        let on = processing(0, "w", 0, Watching, 3_599);
        assert_eq!(times.transition_time(&on), at(-3_599));
        store.entry(&on);
        times.follow(&store.state().repair, at(0), steady(7_207));
        assert_eq!(times.transition_time(&ahead), at(3_600));
    }

    #[test]
    fn a_clock_that_is_set_back_for_a_moment_ends_no_pause_before_its_time() {
        let mut store = Store::new(&["a"], &["w"]);
        let entry = processing(0, "w", 0, Watching, 0);
        store.entry(&entry);
        let queue = &store.state().repair;
        let mut times = FutureTransitions::default();
        let mut steady = Duration::ZERO;
        // By then it has lasted equally long wherever the clock stands.
        for (now, lasted) in [(5, 5), (-3_595, 0), (-3_590, 5), (15, 10), (20, 15)] {
            times.follow(queue, at(now), steady);
            assert_eq!(at(now) - times.transition_time(&entry), time::Duration::seconds(lasted), "{now}");
            steady += Duration::from_secs(5);
        }
    }
}
