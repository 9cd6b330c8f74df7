//! Assembles whole revisions in order from the answers of a watch stream. Pure.

use std::collections::BTreeMap;

use madako_domain::canary::{Canary, is_planted};
use madako_domain::store::KeyChange;

use super::interest::WatchedKeys;

#[derive(Debug, Clone)]
pub(super) struct ReceivedChange {
    pub(super) revision: i64,
    /// The change. `None` for an omitted key, whose revision still counts.
    pub(super) change: Option<KeyChange>,
}

/// Fingerprint of a key, to recognize the store after an interruption.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KeyFingerprint {
    pub(super) mod_revision: i64,
    /// A digest of the value if values are compared, else 0.
    pub(super) value: u64,
}

/// The delivered state: the last revision, and every key at it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct DeliveredState {
    pub(super) revision: i64,
    pub(super) keys: BTreeMap<String, KeyFingerprint>,
}

impl DeliveredState {
    fn add(&mut self, revision: i64, changes: &[DatedChange], interest: WatchedKeys) {
        self.revision = revision;
        for DatedChange { change: KeyChange { key, entry }, .. } in changes {
            match entry {
                Some(entry) => {
                    let mark = interest.mark(key, entry.mod_revision, &entry.value);
                    // Most changes concern existing keys, for which no name is copied.
                    match self.keys.get_mut(key) {
                        Some(known) => *known = mark,
                        None => drop(self.keys.insert(key.clone(), mark)),
                    }
                }
                None => drop(self.keys.remove(key)),
            }
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DatedChange {
    pub(crate) revision: i64,
    pub(crate) change: KeyChange,
}

/// Changes of whole revisions, and the last of these revisions. May be empty if only omitted keys changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WholeRevisions {
    pub(super) revision: i64,
    pub(super) changes: Vec<DatedChange>,
}

#[derive(Debug, Default)]
pub(super) struct Assembly {
    /// Changes of the last received revision, while more of it may follow.
    open: Vec<ReceivedChange>,
}

impl Assembly {
    /// Takes one answer of the stream. With `more_follows` its last revision may be incomplete (a fragment) and is kept
    /// until the rest arrives. Changes that were already delivered are dropped.
    pub(super) fn take(
        &mut self,
        delivered: &mut DeliveredState,
        arrived: Vec<ReceivedChange>,
        more_follows: bool,
        interest: WatchedKeys,
    ) -> Option<WholeRevisions> {
        self.open.extend(arrived.into_iter().filter(|arrived| arrived.revision > delivered.revision));
        let last = self.open.last()?.revision;
        let whole = if more_follows {
            self.open.partition_point(|arrived| arrived.revision < last)
        } else {
            self.open.len()
        };
        let revision = self.open[..whole].last()?.revision;
        let dated = |ReceivedChange { revision, change }| Some(DatedChange { revision, change: change? });
        let mut changes: Vec<_> = self.open.drain(..whole).filter_map(dated).collect();
        if is_planted(Canary::LostWatchEvent) {
            changes.retain(|dated| dated.revision % 16 != 0);
        }
        delivered.add(revision, &changes, interest);
        changes.retain(|dated| interest.includes(&dated.change.key));
        Some(WholeRevisions { revision, changes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use madako_domain::store::Entry;
    use proptest::prelude::*;

    const ALL: WatchedKeys = WatchedKeys::All;

    fn put(key: &str, revision: i64) -> ReceivedChange {
        let entry = Entry { value: Bytes::new(), create_revision: 1, mod_revision: revision, lease: 0 };
        ReceivedChange { revision, change: Some(KeyChange { key: key.into(), entry: Some(entry) }) }
    }

    #[test]
    fn fragmented_revision_is_delivered_when_it_is_complete() {
        let mut delivered = DeliveredState { revision: 4, ..DeliveredState::default() };
        let mut assembly = Assembly::default();
        assert_eq!(assembly.take(&mut delivered, vec![put("a", 5), put("b", 5)], true, ALL), None);
        assert_eq!(delivered.revision, 4, "an incomplete revision is not delivered");
        let whole = assembly.take(&mut delivered, vec![put("c", 5), put("a", 6)], true, ALL).unwrap();
        assert_eq!((whole.revision, whole.changes.len()), (5, 3));
        let whole = assembly.take(&mut delivered, vec![put("b", 6)], false, ALL).unwrap();
        assert_eq!((whole.revision, whole.changes.len()), (6, 2));
        let keys: Vec<_> =
            delivered.keys.iter().map(|(key, mark)| (key.as_str(), mark.mod_revision)).collect();
        assert_eq!((delivered.revision, keys), (6, vec![("a", 6), ("b", 6), ("c", 5)]));
    }

    #[test]
    fn delivered_changes_are_not_repeated_and_omitted_changes_advance_the_revision() {
        let mut delivered = DeliveredState { revision: 5, ..DeliveredState::default() };
        let mut assembly = Assembly::default();
        assert_eq!(assembly.take(&mut delivered, vec![put("a", 4), put("a", 5)], false, ALL), None);
        let left_out =
            assembly.take(&mut delivered, vec![ReceivedChange { revision: 6, change: None }], false, ALL);
        assert_eq!(left_out, Some(WholeRevisions { revision: 6, changes: vec![] }));
        assert_eq!(delivered.revision, 6);
    }

    #[test]
    fn keys_outside_the_watched_prefixes_are_known_and_not_delivered() {
        let interest = WatchedKeys::Below(&["/core/"]);
        let mut delivered = DeliveredState::default();
        let arrived = vec![put("/cke/a", 5), put("/core/a", 6)];
        let whole = Assembly::default().take(&mut delivered, arrived, false, interest).unwrap();
        assert_eq!(
            whole.changes.iter().map(|dated| dated.change.key.as_str()).collect::<Vec<_>>(),
            ["/core/a"]
        );
        assert_eq!((delivered.revision, delivered.keys.len()), (6, 2));
        let digests = ["/cke/a", "/core/a"].map(|key| delivered.keys[key].value != 0);
        assert_eq!(digests, [false, true]);
        assert_ne!(interest.mark("/core/a", 6, b"one"), interest.mark("/core/a", 6, b"other"));
        assert_eq!(interest.mark("/cke/a", 6, b"one"), interest.mark("/cke/a", 6, b"other"));
    }

    proptest! {
        /// For any cut of answers into fragments: every change once, in order, and no revision split.
        #[test]
        fn assembled_revisions_do_not_depend_on_the_split_into_answers(
            sizes in prop::collection::vec(1usize..5, 1..20),
            cuts in prop::collection::vec(any::<bool>(), 100),
        ) {
            let all: Vec<ReceivedChange> = sizes.iter().enumerate()
                .flat_map(|(revision, size)| (0..*size).map(move |n| put(&format!("k{n}"), revision as i64 + 1)))
                .collect();
            let mut delivered = DeliveredState::default();
            let mut assembly = Assembly::default();
            let mut wholes = Vec::new();
            let mut part = Vec::new();
            for (n, arrived) in all.iter().enumerate() {
                part.push(arrived.clone());
                let last = n + 1 == all.len();
                if cuts[n] || last {
                    // A server says "no more follows" only at the end of a revision.
                    let ends = last || all[n + 1].revision != arrived.revision;
                    wholes.extend(assembly.take(&mut delivered, std::mem::take(&mut part), !(ends && (last || cuts[n + 1])), ALL));
                }
            }
            let flat: Vec<_> =
                wholes.iter().flat_map(|whole| whole.changes.iter().map(|dated| dated.change.clone())).collect();
            let expected: Vec<_> = all.iter().filter_map(|arrived| arrived.change.clone()).collect();
            prop_assert_eq!(flat, expected);
            for pair in wholes.windows(2) {
                let first = pair[1].changes[0].revision;
                prop_assert!(pair[0].revision < first);
            }
        }
    }
}
