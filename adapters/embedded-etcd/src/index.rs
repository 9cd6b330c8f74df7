//! The in-memory index: the changes of each key since the last compaction, without values.
//!
//! Guarantees: [`Index::change_at`] and [`Index::changes_in_range`] answer for any revision that is not compacted, regardless of newer
//! changes in the index. The writer therefore adds changes at once; readers ask for the newest durable revision and do
//! not see them before they are on disk.
//! The index has all properties of a pair that a range request can ask about except the value, so only values are read
//! from the file.

use std::collections::BTreeMap;

use crate::record::Revision;
use crate::span::Span;

/// One change of one key. A deletion has version 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) revision: Revision,
    pub(crate) create: i64,
    pub(crate) version: i64,
    pub(crate) lease: i64,
    /// Bytes of key and value, for auto-compaction.
    pub(crate) bytes: u32,
}

impl Change {
    fn is_tombstone(&self) -> bool {
        self.version == 0
    }
}

/// A change that a compaction made obsolete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SupersededChange {
    pub(crate) revision: Revision,
    pub(crate) bytes: u32,
}

#[derive(Debug, Default)]
pub(crate) struct Index {
    keys: BTreeMap<Vec<u8>, Vec<Change>>,
}

impl Index {
    /// The change that is in effect for the key at revision `main`; `None` if the key does not exist then.
    pub(crate) fn change_at(&self, key: &[u8], main: i64) -> Option<&Change> {
        find_live_change(self.keys.get(key)?, main)
    }

    /// The keys that exist at revision `main`, in order.
    pub(crate) fn changes_in_range<'a>(
        &'a self,
        span: Span<'a>,
        main: i64,
    ) -> impl Iterator<Item = (&'a [u8], &'a Change)> {
        let (one, many) = match span {
            Span::One(key) => (self.keys.get_key_value(key), None),
            _ => (None, span.bounds().map(|bounds| self.keys.range::<[u8], _>(bounds))),
        };
        one.into_iter().chain(many.into_iter().flatten()).filter_map(move |(key, changes)| {
            find_live_change(changes, main).map(|change| (key.as_slice(), change))
        })
    }

    /// Adds a change that is newer than all other changes of its key.
    pub(crate) fn push(&mut self, key: &[u8], change: Change) {
        match self.keys.get_mut(key) {
            Some(changes) => changes.push(change),
            None => {
                self.keys.insert(key.to_vec(), vec![change]);
            }
        }
    }

    pub(crate) fn pop(&mut self, key: &[u8]) -> Option<Change> {
        let changes = self.keys.get_mut(key)?;
        let change = changes.pop();
        if changes.is_empty() {
            self.keys.remove(key);
        }
        change
    }

    /// Removes the changes that are unreachable once revisions before `main` are compacted, and returns them.
    ///
    /// A deletion at `main` itself stays until the next compaction, because a watch may start there.
    pub(crate) fn compact(&mut self, main: i64) -> Vec<SupersededChange> {
        let mut superseded = Vec::new();
        self.keys.retain(|_, changes| {
            let older = changes.partition_point(|change| change.revision.main <= main);
            let Some(last) = older.checked_sub(1).map(|at| changes[at]) else { return true };
            let obsolete = if last.is_tombstone() && last.revision.main < main { older } else { older - 1 };
            superseded.extend(
                changes
                    .drain(..obsolete)
                    .map(|change| SupersededChange { revision: change.revision, bytes: change.bytes }),
            );
            !changes.is_empty()
        });
        superseded
    }

    /// Each revision after `main`, in order, with the bytes of its changes.
    pub(crate) fn bytes_after(&self, main: i64) -> Vec<(i64, u64)> {
        let mut bytes: BTreeMap<i64, u64> = BTreeMap::new();
        for change in self.keys.values().flatten().filter(|change| change.revision.main > main) {
            *bytes.entry(change.revision.main).or_default() += u64::from(change.bytes);
        }
        bytes.into_iter().collect()
    }

    /// The revisions that `HashKV` covers at `main` after a compaction at `compacted`.
    pub(crate) fn hashed_revisions_at(
        &self,
        main: i64,
        compacted: i64,
    ) -> impl Iterator<Item = Revision> + '_ {
        // As in etcd: of the compacted revisions only the changes in effect at `main` count, if any key exists there.
        let something_lives = self.keys.values().any(|changes| find_live_change(changes, main).is_some());
        self.keys
            .values()
            .flat_map(move |changes| {
                let living = find_live_change(changes, main).map(|change| change.revision);
                changes.iter().filter(move |change| {
                    let old = change.revision.main <= compacted;
                    change.revision.main <= main
                        && (!old
                            || if something_lives {
                                living == Some(change.revision)
                            } else {
                                !change.is_tombstone()
                            })
                })
            })
            .map(|change| change.revision)
    }
}

fn find_live_change(changes: &[Change], main: i64) -> Option<&Change> {
    // Nearly every request asks for the newest change.
    let change = match changes.last() {
        Some(last) if last.revision.main <= main => last,
        _ => &changes[changes.partition_point(|change| change.revision.main <= main).checked_sub(1)?],
    };
    (!change.is_tombstone()).then_some(change)
}

#[cfg(test)]
mod tests {
    use super::{Change, Index, Revision, SupersededChange};
    use crate::span::Span;

    fn change(main: i64, version: i64) -> Change {
        Change { revision: Revision::first_in_transaction(main), create: 1, version, lease: 0, bytes: 10 }
    }

    fn index(changes: &[(&str, i64, i64)]) -> Index {
        let mut index = Index::default();
        for (key, main, version) in changes {
            index.push(key.as_bytes(), change(*main, *version));
        }
        index
    }

    #[test]
    fn the_index_answers_for_every_revision() {
        let index = index(&[("a", 2, 1), ("a", 4, 2), ("a", 5, 0), ("a", 7, 1)]);
        let observed: Vec<_> =
            (1..9).map(|main| index.change_at(b"a", main).map(|change| change.revision.main)).collect();
        assert_eq!(observed, [None, Some(2), Some(2), Some(4), None, None, Some(7), Some(7)]);
    }

    #[test]
    fn ranges_hold_the_keys_of_their_revision() {
        let index = index(&[("a", 2, 1), ("b", 3, 1), ("b", 5, 0), ("c", 4, 1)]);
        let keys =
            |span, main| index.changes_in_range(span, main).map(|(key, _)| key.to_vec()).collect::<Vec<_>>();
        assert_eq!(keys(Span::From(b"a"), 4), [b"a", b"b", b"c"]);
        assert_eq!(keys(Span::From(b"b"), 5), [b"c"]);
        assert_eq!(keys(Span::Between(b"a", b"c"), 3), [b"a", b"b"]);
        assert_eq!(keys(Span::One(b"b"), 5), Vec::<Vec<u8>>::new());
    }

    #[test]
    fn compaction_keeps_all_revisions_after_it() {
        let all = [("a", 2, 1), ("a", 4, 2), ("a", 6, 3), ("b", 3, 1), ("b", 5, 0), ("c", 7, 1)];
        let gone = |main| {
            let mut index = index(&all);
            let mut gone: Vec<_> = index
                .compact(main)
                .into_iter()
                .map(|SupersededChange { revision, .. }| revision.main)
                .collect();
            gone.sort_unstable();
            for later in main..9 {
                let fresh = self::index(&all);
                for key in ["a", "b", "c"] {
                    assert_eq!(
                        index.change_at(key.as_bytes(), later),
                        fresh.change_at(key.as_bytes(), later),
                        "{key} at {later}"
                    );
                }
            }
            gone
        };
        assert_eq!(gone(1), Vec::<i64>::new());
        assert_eq!(gone(4), [2]);
        assert_eq!(gone(5), [2, 3], "the deletion at the compacted revision itself stays");
        assert_eq!(gone(6), [2, 3, 4, 5]);
    }
}
