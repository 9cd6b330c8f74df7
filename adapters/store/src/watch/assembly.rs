//! From what a stream brings to whole revisions in their order. Pure.

use std::collections::BTreeMap;

use madako_messages::store::{KeyChange, Snapshot};

/// A change as the store sent it.
#[derive(Debug, Clone)]
pub(super) struct Arrived {
    /// The revision that it belongs to.
    pub(super) revision: i64,
    /// What changed. `None`: a key that we leave out; its revision still counts.
    pub(super) change: Option<KeyChange>,
}

/// What the receiver was told: the last revision, and the mod revision of every key at it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) revision: i64,
    pub(super) keys: BTreeMap<String, i64>,
}

impl Told {
    pub(super) fn all(snapshot: &Snapshot) -> Self {
        let keys = snapshot.entries.iter().map(|(key, entry)| (key.clone(), entry.mod_revision)).collect();
        Self { revision: snapshot.revision, keys }
    }

    fn add(&mut self, revision: i64, changes: &[KeyChange]) {
        self.revision = revision;
        for KeyChange { key, entry } in changes {
            match entry {
                Some(entry) => self.keys.insert(key.clone(), entry.mod_revision),
                None => self.keys.remove(key),
            };
        }
    }
}

/// The changes that belong together, and the last of their revisions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Whole {
    pub(super) revision: i64,
    pub(super) changes: Vec<KeyChange>,
}

/// Puts together what one stream brings.
#[derive(Debug, Default)]
pub(super) struct Assembly {
    /// Changes of the last revision that arrived, while more of it may follow.
    open: Vec<Arrived>,
}

impl Assembly {
    /// Takes one answer of the stream. With `more_follows` its last revision may be a part only (a
    /// fragment), and is kept until the rest is there. What the receiver was told already is dropped.
    pub(super) fn take(
        &mut self,
        told: &mut Told,
        arrived: Vec<Arrived>,
        more_follows: bool,
    ) -> Option<Whole> {
        self.open.extend(arrived.into_iter().filter(|arrived| arrived.revision > told.revision));
        let last = self.open.last()?.revision;
        let whole = if more_follows {
            self.open.partition_point(|arrived| arrived.revision < last)
        } else {
            self.open.len()
        };
        let revision = self.open[..whole].last()?.revision;
        let changes: Vec<_> = self.open.drain(..whole).filter_map(|arrived| arrived.change).collect();
        told.add(revision, &changes);
        (!changes.is_empty()).then_some(Whole { revision, changes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use madako_messages::store::Entry;
    use proptest::prelude::*;

    fn put(key: &str, revision: i64) -> Arrived {
        let entry = Entry { value: Bytes::new(), create_revision: 1, mod_revision: revision, lease: 0 };
        Arrived { revision, change: Some(KeyChange { key: key.into(), entry: Some(entry) }) }
    }

    #[test]
    fn a_revision_in_fragments_is_told_when_it_is_whole() {
        let mut told = Told { revision: 4, ..Told::default() };
        let mut assembly = Assembly::default();
        assert_eq!(assembly.take(&mut told, vec![put("a", 5), put("b", 5)], true), None);
        assert_eq!(told.revision, 4, "half a revision is not told");
        let whole = assembly.take(&mut told, vec![put("c", 5), put("a", 6)], true).unwrap();
        assert_eq!((whole.revision, whole.changes.len()), (5, 3));
        let whole = assembly.take(&mut told, vec![put("b", 6)], false).unwrap();
        assert_eq!((whole.revision, whole.changes.len()), (6, 2));
        let keys = [("a".to_owned(), 6), ("b".to_owned(), 6), ("c".to_owned(), 5)];
        assert_eq!(told, Told { revision: 6, keys: keys.into() });
    }

    #[test]
    fn what_was_told_is_not_told_again_and_what_is_left_out_still_counts() {
        let mut told = Told { revision: 5, ..Told::default() };
        let mut assembly = Assembly::default();
        assert_eq!(assembly.take(&mut told, vec![put("a", 4), put("a", 5)], false), None);
        assert_eq!(assembly.take(&mut told, vec![Arrived { revision: 6, change: None }], false), None);
        assert_eq!(told.revision, 6);
    }

    proptest! {
        /// However answers are cut into fragments: every change once, in order, no revision in two.
        #[test]
        fn cuts_do_not_matter(
            sizes in prop::collection::vec(1usize..5, 1..20),
            cuts in prop::collection::vec(any::<bool>(), 100),
        ) {
            let all: Vec<Arrived> = sizes.iter().enumerate()
                .flat_map(|(revision, size)| (0..*size).map(move |n| put(&format!("k{n}"), revision as i64 + 1)))
                .collect();
            let mut told = Told::default();
            let mut assembly = Assembly::default();
            let mut wholes = Vec::new();
            let mut part = Vec::new();
            for (n, arrived) in all.iter().enumerate() {
                part.push(arrived.clone());
                let last = n + 1 == all.len();
                if cuts[n] || last {
                    // A server says "no more follows" only where a revision ends.
                    let ends = last || all[n + 1].revision != arrived.revision;
                    wholes.extend(assembly.take(&mut told, std::mem::take(&mut part), !(ends && (last || cuts[n + 1]))));
                }
            }
            let flat: Vec<_> = wholes.iter().flat_map(|whole| whole.changes.clone()).collect();
            let expected: Vec<_> = all.iter().filter_map(|arrived| arrived.change.clone()).collect();
            prop_assert_eq!(flat, expected);
            for pair in wholes.windows(2) {
                let first = pair[1].changes[0].entry.as_ref().unwrap().mod_revision;
                prop_assert!(pair[0].revision < first);
            }
        }
    }
}
