//! Times in the queue that lie ahead of the clock: an earlier leader wrote them whose own clock was wrong.
//!
//! Whoever took such a time for what it says would watch a machine, or keep a drain going, until the clock comes there, be it
//! for an hour. So it counts from when it was seen first, which can only make a pause longer than it was to be, and by no more
//! than once.
//!
//! Guarantees: a time that is at most [`CLOCKS_DIFFER`] ahead is taken as it is.
//!
//! Does not: notice a time that was written by a clock that was behind: then a pause ends too early, as in CKE.

use std::collections::BTreeMap;
use std::time::Duration;

use madako_messages::repair::RepairQueueEntry;
use madako_messages::repair::queue::RepairQueue;
use time::OffsetDateTime;

use crate::round::{later, since};

/// How far the clocks of instances differ where they are kept right.
pub const CLOCKS_DIFFER: Duration = Duration::from_secs(60);

/// Entries whose last transition lies ahead.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ahead(BTreeMap<i64, Seen>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    written: OffsetDateTime,
    first: OffsetDateTime,
}

impl Ahead {
    /// Looks for them.
    pub fn follow(&mut self, queue: &RepairQueue, now: OffsetDateTime) {
        let is_ahead = |time: OffsetDateTime| time > later(now, CLOCKS_DIFFER);
        let before = std::mem::take(&mut self.0);
        self.0 = queue
            .entries
            .iter()
            .filter_map(|(index, item)| {
                let written = since(&item.value);
                // The clock of whoever looks may be set back as well.
                let known = before.get(index).filter(|seen| seen.written == written && !is_ahead(seen.first));
                let seen = known.copied().unwrap_or(Seen { written, first: now });
                (known.is_some() || is_ahead(written)).then_some((*index, seen))
            })
            .collect();
    }

    /// From when an entry's last transition counts.
    #[must_use]
    pub fn since(&self, entry: &RepairQueueEntry) -> OffsetDateTime {
        let written = since(entry);
        let seen = self.0.get(&entry.index).filter(|seen| seen.written == written);
        seen.map_or(written, |seen| seen.first)
    }
}

#[cfg(test)]
mod tests {
    use madako_messages::repair::RepairStepStatus::Watching;

    use super::*;
    use crate::testing::{NOW, Store, processing};

    fn at(seconds: i64) -> OffsetDateTime {
        NOW + time::Duration::seconds(seconds)
    }

    #[test]
    fn a_time_ahead_counts_from_when_it_was_seen_first() {
        let mut store = Store::new(&["a"], &["w", "x"]);
        let (ahead, near) = (processing(0, "w", 0, Watching, -3600), processing(1, "x", 0, Watching, -60));
        store.entry(&ahead);
        store.entry(&near);
        let queue = &store.state().repair;
        let mut times = Ahead::default();
        times.follow(queue, at(0));
        times.follow(queue, at(30));
        assert_eq!((times.since(&ahead), times.since(&near)), (at(0), at(60)));
        // It stays so when the clock comes there.
        times.follow(queue, at(3_600));
        assert_eq!(times.since(&ahead), at(0));
        // The clock is set back.
        times.follow(queue, at(-3_600));
        assert_eq!(times.since(&ahead), at(-3_600));
        // The entry goes on: its new time is what it says.
        let on = processing(0, "w", 0, Watching, 3_599);
        assert_eq!(times.since(&on), at(-3_599));
        store.entry(&on);
        times.follow(&store.state().repair, at(0));
        assert_eq!(times.since(&ahead), at(3_600));
    }
}
