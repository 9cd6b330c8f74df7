//! The ring of the latest changes of placement's resources, which all followers share. Pure.

use std::collections::VecDeque;
use std::sync::Arc;

use madako_domain::placement::objects::{Change, Stored};

use crate::limits::MOST_READ_AT_ONCE;
pub(super) use crate::limits::{MOST_CHANGES, MOST_RING_BYTES};

/// Approximate bytes of a change beside its JSON: names, revisions, the fields of a resource.
const OVERHEAD: usize = 512;

/// Changes in the order of revisions, numbered without gaps.
#[derive(Debug, Default)]
pub(super) struct ChangeRing {
    changes: VecDeque<Arc<Change>>,
    first: u64,
    bytes: usize,
    /// Changes up to this revision may be missing.
    floor: i64,
    most_changes: Option<usize>,
}

impl ChangeRing {
    /// An empty ring whose changes up to `floor` are unknown. Numbers continue.
    pub(super) fn clear_until(&mut self, floor: i64) {
        self.first = self.end_number();
        self.changes.clear();
        self.bytes = 0;
        self.floor = floor;
    }

    /// A ring with another limit, for tests.
    #[cfg(test)]
    pub(super) fn with_limit(most_changes: usize) -> Self {
        Self { most_changes: Some(most_changes), ..Self::default() }
    }

    pub(super) fn push(&mut self, change: Arc<Change>) {
        self.bytes += approximate_bytes(&change);
        self.changes.push_back(change);
        while self.changes.len() > self.limit() || (self.bytes > MOST_RING_BYTES && self.changes.len() > 1) {
            let Some(gone) = self.changes.pop_front() else { return };
            self.bytes -= approximate_bytes(&gone);
            self.first += 1;
            self.floor = gone.revision;
        }
    }

    pub(super) fn limit(&self) -> usize {
        self.most_changes.unwrap_or(MOST_CHANGES)
    }

    pub(super) fn len(&self) -> usize {
        self.changes.len()
    }

    pub(super) fn end_number(&self) -> u64 {
        self.first + self.changes.len() as u64
    }

    /// Number of the first change after a revision. `None` if changes since then may be missing.
    pub(super) fn number_after(&self, revision: i64) -> Option<u64> {
        let older = self.changes.partition_point(|change| change.revision <= revision);
        (revision >= self.floor).then(|| self.first + older as u64)
    }

    /// Changes from a number on, in whole revisions; possibly none. `None` if some are missing.
    pub(super) fn changes_from(&self, number: u64) -> Option<Vec<Arc<Change>>> {
        let skipped = usize::try_from(number.checked_sub(self.first)?).ok()?;
        let waiting = self.changes.len().checked_sub(skipped)?;
        let mut end = skipped + waiting.min(MOST_READ_AT_ONCE);
        // Do not split a revision.
        while self.changes.get(end).is_some_and(|next| self.changes[end - 1].revision == next.revision) {
            end += 1;
        }
        Some(self.changes.range(skipped..end).cloned().collect())
    }
}

fn approximate_bytes(change: &Change) -> usize {
    // The earlier state is usually shared with an earlier change, so only the larger of the two counts.
    let json = |stored: &Option<Arc<Stored>>| stored.as_ref().map_or(0, |stored| stored.wire.len());
    OVERHEAD + json(&change.after).max(json(&change.before))
}

#[cfg(test)]
mod tests {
    use super::*;
    use madako_domain::placement::kind::{Kind, ObjectKey};
    use proptest::prelude::*;

    fn change(revision: i64) -> Arc<Change> {
        let key = ObjectKey::new(Kind::Role, None, "r");
        Arc::new(Change { revision, key, before: None, after: None })
    }

    fn revisions(changes: &[Arc<Change>]) -> Vec<i64> {
        changes.iter().map(|change| change.revision).collect()
    }

    #[test]
    fn ring_of_changes_is_bounded_in_bytes() {
        let mut ring = ChangeRing::default();
        let most = MOST_RING_BYTES / OVERHEAD;
        for revision in 1..=most as i64 + 10 {
            ring.push(change(revision));
        }
        assert_eq!((ring.len(), ring.floor), (most.min(MOST_CHANGES), 10));
        assert_eq!(ring.number_after(9), None);
        assert_eq!(ring.number_after(10), Some(10));
    }

    #[test]
    fn read_never_splits_a_revision() {
        let mut ring = ChangeRing::default();
        (0..MOST_READ_AT_ONCE).for_each(|_| ring.push(change(1)));
        (0..MOST_READ_AT_ONCE).for_each(|_| ring.push(change(2)));
        ring.push(change(3));
        let taken = ring.changes_from(1).unwrap();
        assert_eq!(taken.len(), 2 * MOST_READ_AT_ONCE - 1);
        assert_eq!(revisions(&ring.changes_from(2 * MOST_READ_AT_ONCE as u64).unwrap()), [3]);
        assert!(ring.changes_from(ring.end_number()).unwrap().is_empty());
        assert!(ring.changes_from(ring.end_number() + 1).is_none(), "a number of another ring");
    }

    proptest! {
        /// A follower that reads at any time gets every change after its revision once and in order, or a gap; and it
        /// gets a gap only if more changes arrived than the ring keeps.
        #[test]
        fn no_change_is_lost_or_delivered_twice(
            most in 1usize..30,
            before in prop::collection::vec(1usize..4, 0..20),
            steps in prop::collection::vec((1usize..4, any::<bool>()), 0..60),
            behind in 0i64..25,
        ) {
            let mut ring = ChangeRing::with_limit(most);
            let mut revision = 0;
            let mut all = Vec::new();
            let mut push = |ring: &mut ChangeRing, size: usize| {
                revision += 1;
                (0..size).for_each(|_| { ring.push(change(revision)); all.push(revision); });
                (revision, all.clone())
            };
            let mut known = Vec::new();
            let mut now = 0;
            for size in before { (now, known) = push(&mut ring, size); }
            let start = (now - behind).max(0);
            let missing = known.len() - known.iter().filter(|revision| **revision <= start).count();
            let Some(mut next) = ring.number_after(start) else {
                prop_assert!(missing > most || known.len() > most);
                return Ok(());
            };
            let mut reported = Vec::new();
            let mut waiting = missing;
            for (size, looks) in steps {
                (_, known) = push(&mut ring, size);
                waiting += size;
                if looks {
                    let Some(taken) = ring.changes_from(next) else {
                        prop_assert!(waiting > most);
                        return Ok(());
                    };
                    next += taken.len() as u64;
                    waiting = 0;
                    reported.extend(revisions(&taken));
                }
            }
            let Some(last) = ring.changes_from(next) else {
                prop_assert!(waiting > most);
                return Ok(());
            };
            reported.extend(revisions(&last));
            known.retain(|revision| *revision > start);
            prop_assert_eq!(reported, known);
        }
    }
}
