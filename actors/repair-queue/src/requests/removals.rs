//! Remembers removed entries until the registry is asked again.
//!
//! An answer may report a machine as failed although it was repaired after the question. When its entry is removed,
//! that answer must not add a new one.
//!
//! # The rule
//! An answer adds no entry for a machine if an entry of that machine was removed at a revision of the store that was
//! unknown when the registry was asked. Removals before the first observed state are not known: they count as removed
//! at its revision.
//!
//! # Guarantees
//! It uses no clock and stores nothing. The memory is bounded.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use madako_domain::repair::queue::RepairQueue;
use madako_domain::state::ClusterState;

use crate::limiter::RemovedEntries;
use crate::limits::MOST_REMOVALS;

/// Removals seen in the observed states of the store.
#[derive(Debug, Default)]
pub struct ObservedRemovals {
    queue: Option<Arc<RepairQueue>>,
    /// Answers to questions from before this revision add nothing.
    first: i64,
    /// Revision at which each address had lost an entry.
    removed: BTreeMap<String, i64>,
}

impl ObservedRemovals {
    pub fn observe(&mut self, state: &ClusterState) {
        let Some(before) = self.queue.replace(Arc::clone(&state.repair)) else {
            self.first = state.revision;
            return;
        };
        for (index, was) in &before.entries {
            let stays = state.repair.entries.get(index).is_some_and(|is| {
                Arc::ptr_eq(is, was) || (is.created == was.created && is.value.address == was.value.address)
            });
            if !stays {
                self.removed.insert(was.value.address.clone(), state.revision);
            }
        }
        if self.removed.len() > MOST_REMOVALS {
            self.removed.clear();
            self.first = state.revision;
        }
    }

    /// Forgets removals that an answer to a question at this revision includes; later answers include them as well.
    pub fn forget_answered(&mut self, revision: i64) {
        self.removed.retain(|_, removed| *removed > revision);
    }

    /// Entries removed after a question at this revision.
    #[must_use]
    pub fn removed_since(&self, revision: i64) -> RemovedEntries {
        if revision < self.first {
            return RemovedEntries::All;
        }
        let removed = self.removed.iter().filter(|(_, removed)| **removed > revision);
        RemovedEntries::Of(removed.map(|(address, _)| address.clone()).collect::<BTreeSet<_>>())
    }
}

#[cfg(test)]
mod tests {
    use madako_domain::repair::RepairQueueEntry;
    use madako_domain::store::Write;
    use madako_domain::{keys, repair};

    use super::*;
    use crate::testing::{Store, queued};

    fn of(addresses: &[&str]) -> RemovedEntries {
        RemovedEntries::Of(addresses.iter().map(|address| (*address).to_owned()).collect())
    }

    fn delete(store: &mut Store, index: i64) {
        store.write(&[Write::Delete { key: keys::repair(index) }]);
    }

    #[test]
    fn answer_excludes_machines_removed_after_its_request() {
        let mut store = Store::default();
        store.entry(&queued(0, "w", "o"));
        store.entry(&queued(1, "x", "o"));
        let mut removals = ObservedRemovals::default();
        removals.observe(&store.state());
        let first = store.revision;
        assert_eq!(removals.removed_since(first), of(&[]));
        assert_eq!(
            removals.removed_since(first - 1),
            RemovedEntries::All,
            "no removal was noted at that time"
        );

        delete(&mut store, 0);
        removals.observe(&store.state());
        let second = store.revision;
        store.entry(&RepairQueueEntry { status: repair::RepairStatus::Failed, ..queued(1, "x", "o") });
        removals.observe(&store.state());
        assert_eq!(removals.removed_since(first), of(&["w"]), "another state of an entry removes nothing");
        assert_eq!(removals.removed_since(second), of(&[]));

        // The same index for another machine, without a state in between.
        delete(&mut store, 1);
        store.entry(&queued(1, "y", "o"));
        removals.observe(&store.state());
        assert_eq!(removals.removed_since(first), of(&["w", "x"]));
        assert_eq!(removals.removed_since(second), of(&["x"]));
        removals.forget_answered(second);
        assert_eq!(removals.removed_since(first), of(&["x"]), "what is known is forgotten");
    }

    #[test]
    fn memory_of_removals_is_bounded() {
        let mut store = Store::default();
        let mut removals = ObservedRemovals::default();
        let most = i64::try_from(MOST_REMOVALS).unwrap();
        for index in 0..=most {
            store.entry(&queued(index, &format!("m{index}"), "o"));
        }
        removals.observe(&store.state());
        let requested = store.revision;
        for index in 0..=most {
            delete(&mut store, index);
        }
        removals.observe(&store.state());
        assert_eq!(removals.removed_since(requested), RemovedEntries::All);
        assert_eq!(removals.removed_since(store.revision), of(&[]));
    }
}
