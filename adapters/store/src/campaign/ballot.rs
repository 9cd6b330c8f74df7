//! Finds the order of the candidates for leadership, from a watch of their keys. Pure.

use std::collections::BTreeMap;

use bytes::Bytes;
use madako_domain::canary::{Canary, is_planted};
use madako_domain::keys;
use madako_domain::store::{Entry, KeyChange};
use madako_protocol::store::WatchEvent;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum CandidateStanding {
    /// The watch has not reached this candidate's key yet.
    Unknown,
    /// A key with a lower create revision exists.
    Behind {
        /// Value of the first key.
        leader: String,
    },
    /// No key has a lower create revision.
    First,
    /// This candidate's key existed and is gone.
    Gone,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OwnKey {
    pub(super) key: String,
    pub(super) create_revision: i64,
}

/// The keys of all candidates, as far as the watch has come.
#[derive(Debug, Default)]
pub(super) struct CandidateList {
    revision: i64,
    candidates: BTreeMap<String, (i64, Bytes)>,
    own: Option<OwnKey>,
    /// True if the watch has shown this candidate's key.
    shown: bool,
}

impl CandidateList {
    /// Records that this candidate's key is in the store.
    pub(super) fn set_own_key(&mut self, own: OwnKey) {
        self.own = Some(own);
        self.shown = false;
    }

    pub(super) fn clear_own_key(&mut self) {
        self.own = None;
        self.shown = false;
    }

    pub(super) fn apply_event(&mut self, event: WatchEvent) {
        match event {
            WatchEvent::Listed(snapshot) => {
                self.revision = snapshot.revision;
                self.candidates.clear();
                for (key, entry) in snapshot.entries {
                    self.put(key, entry);
                }
            }
            WatchEvent::Changed { revision, changes } => {
                self.revision = revision;
                for KeyChange { key, entry } in changes {
                    match entry {
                        Some(entry) => self.put(key, entry),
                        None => drop(self.candidates.remove(&key)),
                    }
                }
            }
            WatchEvent::Interrupted(_) => {}
        }
    }

    fn put(&mut self, key: String, entry: Entry) {
        // A deeper key belongs to no lease. CKE treats every key under the prefix as a candidate, and so does this:
        // waiting too long is safer than two leaders.
        self.candidates.insert(key, (entry.create_revision, entry.value));
    }

    pub(super) fn evaluate(&mut self) -> CandidateStanding {
        let Some(own) = &self.own else { return CandidateStanding::Unknown };
        let there = self.candidates.get(&own.key).is_some_and(|(created, _)| *created == own.create_revision);
        if !there {
            return if self.shown || self.revision >= own.create_revision {
                CandidateStanding::Gone
            } else {
                CandidateStanding::Unknown
            };
        }
        self.shown = true;
        let line = self.candidates.iter();
        let first = if is_planted(Canary::LastInLineLeads) {
            line.max_by_key(|(_, (created, _))| *created)
        } else {
            line.min_by_key(|(_, (created, _))| *created)
        };
        match first {
            Some((key, (_, value))) if *key != own.key => {
                CandidateStanding::Behind { leader: String::from_utf8_lossy(value).into_owned() }
            }
            _ => CandidateStanding::First,
        }
    }
}

pub(super) fn candidate_key(lease: i64) -> String {
    keys::leader(lease)
}

#[cfg(test)]
mod tests {
    use super::*;
    use madako_domain::store::Snapshot;

    fn entry(create_revision: i64, host: &str) -> Entry {
        Entry {
            value: Bytes::copy_from_slice(host.as_bytes()),
            create_revision,
            mod_revision: create_revision,
            lease: 1,
        }
    }

    fn listed(revision: i64, entries: &[(&str, i64)]) -> WatchEvent {
        let entries = entries.iter().map(|(key, at)| ((*key).to_owned(), entry(*at, key))).collect();
        WatchEvent::Listed(Snapshot { revision, entries })
    }

    fn changed(revision: i64, key: &str, at: Option<i64>) -> WatchEvent {
        let entry = at.map(|at| entry(at, key));
        WatchEvent::Changed { revision, changes: vec![KeyChange { key: key.into(), entry }] }
    }

    fn enrolled(key: &str, create_revision: i64) -> CandidateList {
        let mut ballot = CandidateList::default();
        ballot.set_own_key(OwnKey { key: key.into(), create_revision });
        ballot
    }

    #[test]
    fn candidate_waits_for_all_earlier_candidates_and_no_later_one() {
        let mut ballot = enrolled("b", 7);
        assert_eq!(ballot.evaluate(), CandidateStanding::Unknown);
        ballot.apply_event(listed(8, &[("c", 5), ("a", 6), ("b", 7), ("0", 8)]));
        assert_eq!(ballot.evaluate(), CandidateStanding::Behind { leader: "c".into() });
        ballot.apply_event(changed(9, "c", None));
        assert_eq!(ballot.evaluate(), CandidateStanding::Behind { leader: "a".into() });
        ballot.apply_event(changed(10, "a", None));
        assert_eq!(ballot.evaluate(), CandidateStanding::First);
    }

    #[test]
    fn watch_behind_the_own_candidate_key_decides_nothing() {
        let mut ballot = enrolled("b", 7);
        ballot.apply_event(listed(6, &[]));
        assert_eq!(
            ballot.evaluate(),
            CandidateStanding::Unknown,
            "an empty list of before is not an election"
        );
        ballot.apply_event(changed(7, "b", Some(7)));
        assert_eq!(ballot.evaluate(), CandidateStanding::First);
    }

    #[test]
    fn leader_key_deleted_or_recreated_by_another_client_counts_as_lost() {
        let mut ballot = enrolled("b", 7);
        ballot.apply_event(listed(7, &[("b", 7)]));
        assert_eq!(ballot.evaluate(), CandidateStanding::First);
        ballot.apply_event(changed(8, "b", None));
        assert_eq!(ballot.evaluate(), CandidateStanding::Gone);
        ballot.apply_event(changed(9, "b", Some(9)));
        assert_eq!(ballot.evaluate(), CandidateStanding::Gone, "a key of the same name is not the same key");

        let mut ballot = enrolled("b", 7);
        ballot.apply_event(listed(7, &[("b", 7)]));
        assert_eq!(ballot.evaluate(), CandidateStanding::First);
        ballot.apply_event(listed(3, &[]));
        assert_eq!(ballot.evaluate(), CandidateStanding::Gone, "a store that went back does not have it");
    }

    #[test]
    fn deletion_hidden_by_a_list_is_noticed() {
        let mut ballot = enrolled("b", 7);
        ballot.apply_event(listed(9, &[("a", 2)]));
        assert_eq!(ballot.evaluate(), CandidateStanding::Gone);
    }
}
