//! The store's whole history, revision by revision, observed by one client at each member.
//!
//! Guarantees: each revision is kept once, whole, with the time of its first observation. A revision that differs
//! between members, or that a member omits, is kept as a disagreement; so is a revision that was compacted away
//! unobserved. Members that have not delivered everything at the end are known by name.
//!
//! Assumes: the members are reached beyond all faults between processes. A member that is down or stopped is retried as
//! long as the run lasts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use etcd_client::{Client, ConnectOptions, EventType, WatchOptions};
use madako_domain::keys;
use madako_domain::repair::{RepairQueueEntry, RepairStatus, RepairStepStatus};
use madako_domain::store::Entry;
use madako_judges::history::decode_queue;
use time::OffsetDateTime;
use tokio::time::{sleep, timeout};

use crate::history::{Event, History, Micros};

/// Prefix of CKE's keys.
pub const PREFIX: &str = "/cke/";
/// Time limit of a connection to a member that may be down.
const CONNECT: Duration = Duration::from_secs(2);
/// A silent member is asked anew after this time: it may have been stopped, and its connection with it.
const SILENCE: Duration = Duration::from_secs(10);
/// The revision of an empty store.
const EMPTY: i64 = 1;
/// Pause before a member is asked again.
const AGAIN: Duration = Duration::from_millis(200);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub key: String,
    /// `None`: deleted.
    pub value: Option<Vec<u8>>,
    /// Revision of the key's creation.
    pub created: i64,
    pub modified: i64,
    /// 0: none.
    pub lease: i64,
}

impl Change {
    #[must_use]
    pub fn to_entry(&self) -> Option<Entry> {
        self.value.as_ref().map(|value| Entry {
            value: value.clone().into(),
            create_revision: self.created,
            mod_revision: self.modified,
            lease: self.lease,
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Revision {
    pub revision: i64,
    /// Time of the first observation.
    pub at: Micros,
    pub changes: Vec<Change>,
}

#[derive(Debug, Default)]
struct ObserverState {
    revisions: BTreeMap<i64, Revision>,
    /// Last revision delivered by each member.
    heard: BTreeMap<u32, i64>,
    /// Create revisions of the present leader keys.
    candidates: BTreeMap<String, i64>,
    leading: Vec<(Micros, Option<i64>)>,
    wrong: BTreeSet<String>,
}

/// See the module. A clone is the same observer.
#[derive(Debug, Clone)]
pub struct Observer {
    history: History,
    inside: Arc<Mutex<ObserverState>>,
}

impl Observer {
    #[must_use]
    pub fn new(history: History) -> Self {
        Self { history, inside: Arc::default() }
    }

    /// Watches a member until the future is dropped.
    pub async fn watch(self, member: u32, endpoint: String) {
        loop {
            if let Err(error) = self.follow(member, &endpoint).await {
                tracing::debug!(member, %error, "an observer lost its member");
            }
            sleep(AGAIN).await;
        }
    }

    async fn follow(&self, member: u32, endpoint: &str) -> Result<(), etcd_client::Error> {
        let options = ConnectOptions::new().with_connect_timeout(CONNECT);
        let mut client = Client::connect([endpoint], Some(options)).await?;
        let last = self.lock().heard.get(&member).copied().unwrap_or(0);
        // A watch from the next revision on could miss its deletions: they can be compacted away without notice (etcd
        // before 3.6, its issue 18089).
        let from = last.max(1);
        let options = WatchOptions::new().with_start_revision(from).with_all_keys().with_progress_notify();
        let mut stream = client.watch("", Some(options)).await?;
        loop {
            let answer = match timeout(SILENCE, stream.message()).await {
                Ok(answer) => answer?,
                // Silence may be normal; asking anew costs nothing.
                Err(_) => return Ok(()),
            };
            let Some(answer) = answer else { return Ok(()) };
            if answer.canceled() {
                let compacted = answer.compact_revision();
                let mut inside = self.lock();
                let hidden =
                    (last + 1..=compacted).filter(|revision| !inside.revisions.contains_key(revision));
                let hidden: Vec<i64> = hidden.collect();
                if let (Some(first), Some(last)) = (hidden.first(), hidden.last()) {
                    inside.wrong.insert(format!(
                        "revisions {first} to {last} were compacted away before the observer read them"
                    ));
                }
                inside.heard.insert(member, compacted);
                return Ok(());
            }
            let mut revisions: BTreeMap<i64, Vec<Change>> = BTreeMap::new();
            for event in answer.events() {
                let Some(kv) = event.kv() else { continue };
                let change = Change {
                    key: String::from_utf8_lossy(kv.key()).into_owned(),
                    value: (event.event_type() == EventType::Put).then(|| kv.value().to_vec()),
                    created: kv.create_revision(),
                    modified: kv.mod_revision(),
                    lease: kv.lease(),
                };
                revisions.entry(kv.mod_revision()).or_default().push(change);
            }
            for (revision, changes) in revisions.split_off(&(last + 1)) {
                self.receive_revision(member, revision, changes);
            }
        }
    }

    pub(crate) fn receive_revision(&self, member: u32, revision: i64, changes: Vec<Change>) {
        let at = self.history.now();
        let mut inside = self.lock();
        let before = inside.heard.insert(member, revision).unwrap_or(EMPTY);
        if revision > before + 1 {
            inside.wrong.insert(format!("store={member} delivered revision {revision} after {before}"));
        }
        if let Some(known) = inside.revisions.get(&revision) {
            if known.changes != changes {
                inside
                    .wrong
                    .insert(format!("store={member} delivered revision {revision} with other changes"));
            }
            return;
        }
        let describe = |change: &Change| {
            format!("{} {}", if change.value.is_some() { "put" } else { "delete" }, change.key)
        };
        self.history.note(Event::Revision { revision, changes: changes.iter().map(describe).collect() });
        inside.note_leader(at, &changes);
        inside.revisions.insert(revision, Revision { revision, at, changes });
    }

    #[must_use]
    pub fn last_revision(&self) -> i64 {
        self.lock().revisions.keys().next_back().copied().unwrap_or(0)
    }

    /// The last revision that changed a key below the prefix.
    #[must_use]
    pub fn last_revision_below(&self, prefix: &str) -> i64 {
        let inside = self.lock();
        let below =
            |revision: &&Revision| revision.changes.iter().any(|change| change.key.starts_with(prefix));
        inside.revisions.values().rfind(below).map_or(0, |revision| revision.revision)
    }

    /// True if a repair has begun and does not merely wait until the back-off of its drain ends.
    pub(crate) fn has_repair_under_way(&self, now: OffsetDateTime) -> bool {
        let mut repairs = BTreeMap::new();
        for change in self.lock().revisions.values().flat_map(|revision| &revision.changes) {
            let Some(key) = change.key.strip_prefix(PREFIX).filter(|key| key.starts_with(keys::REPAIRS))
            else {
                continue;
            };
            match change.to_entry() {
                Some(entry) => repairs.insert(key.to_owned(), entry),
                None => repairs.remove(key),
            };
        }
        let is_under_way = |repair: &RepairQueueEntry| {
            let waits = repair.step_status == RepairStepStatus::Waiting
                && repair.drain_backoff_expire.is_some_and(|end| now < end);
            repair.status == RepairStatus::Processing && !waits
        };
        decode_queue(&repairs, None).entries.values().any(|item| is_under_way(&item.value))
    }

    /// The members that have not delivered everything up to their own final revision.
    #[must_use]
    pub fn members_behind(&self, stored: &BTreeMap<u32, i64>) -> Vec<String> {
        let inside = self.lock();
        let delivered = |member: &u32| inside.heard.get(member).copied().unwrap_or(0);
        let behind = stored.iter().filter(|(member, revision)| delivered(member) < **revision);
        behind
            .map(|(member, revision)| {
                let delivered = delivered(member);
                format!("store={member} delivered up to revision {delivered}, and has {revision}")
            })
            .collect()
    }

    #[must_use]
    pub fn time_of_last_write(&self) -> Micros {
        self.lock().revisions.values().map(|revision| revision.at).max().unwrap_or(0)
    }

    /// The leader's epoch, by the present leader keys.
    #[must_use]
    pub fn current_leader(&self) -> Option<i64> {
        self.lock().leading.last().and_then(|(_, epoch)| *epoch)
    }

    /// The leader's epoch from each time on.
    #[must_use]
    pub fn leader_times(&self) -> Vec<(Micros, Option<i64>)> {
        self.lock().leading.clone()
    }

    #[must_use]
    pub fn revisions(&self) -> Vec<Revision> {
        self.lock().revisions.values().cloned().collect()
    }

    #[must_use]
    pub fn value_of(&self, key: &str) -> Option<Vec<u8>> {
        let key = format!("{PREFIX}{key}");
        let inside = self.lock();
        let mut changes = inside.revisions.values().rev().flat_map(|revision| revision.changes.iter());
        changes.find(|change| change.key == key).and_then(|change| change.value.clone())
    }

    /// Faults of the history itself: disagreements of members, and unobserved revisions.
    #[must_use]
    pub fn history_faults(&self) -> Vec<String> {
        let inside = self.lock();
        let mut wrong: Vec<String> = inside.wrong.iter().cloned().collect();
        let numbers: Vec<i64> = inside.revisions.keys().copied().collect();
        wrong.extend(
            numbers
                .windows(2)
                .filter(|pair| pair[1] != pair[0] + 1)
                .map(|pair| format!("no watch received the revisions between {} and {}", pair[0], pair[1])),
        );
        wrong
    }

    // No panic happens under the lock.
    fn lock(&self) -> MutexGuard<'_, ObserverState> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ObserverState {
    fn note_leader(&mut self, at: Micros, changes: &[Change]) {
        for change in changes {
            let Some(key) = change.key.strip_prefix(PREFIX).filter(|key| key.starts_with(keys::LEADER))
            else {
                continue;
            };
            if change.value.is_some() {
                self.candidates.insert(key.to_owned(), change.created);
            } else {
                self.candidates.remove(key);
            }
        }
        let leader = self.candidates.values().min().copied();
        if self.leading.last().and_then(|(_, epoch)| *epoch) != leader {
            self.leading.push((at, leader));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(key: &str, created: i64) -> Change {
        Change { key: key.to_owned(), value: Some(Vec::new()), created, modified: created, lease: 0 }
    }

    fn delete(key: &str) -> Change {
        Change { key: key.to_owned(), value: None, created: 0, modified: 0, lease: 0 }
    }

    fn observer() -> (tempfile::TempDir, Observer) {
        let files = tempfile::tempdir().unwrap();
        let history = History::begin(&files.path().join("history.jsonl")).unwrap();
        (files, Observer::new(history))
    }

    #[tokio::test]
    async fn disagreeing_members_and_missing_revisions_are_reported() {
        let (_files, observer) = observer();
        observer.receive_revision(1, 2, vec![put("a", 2)]);
        observer.receive_revision(2, 2, vec![put("a", 2)]);
        assert_eq!(observer.history_faults(), Vec::<String>::new());
        observer.receive_revision(3, 2, vec![put("b", 2)]);
        observer.receive_revision(1, 4, vec![put("a", 2)]);
        assert_eq!(
            observer.history_faults(),
            [
                "store=1 delivered revision 4 after 2",
                "store=3 delivered revision 2 with other changes",
                "no watch received the revisions between 2 and 4"
            ]
        );
    }

    #[tokio::test]
    async fn a_repair_is_under_way_unless_its_drain_waits_for_the_end_of_its_back_off() {
        let (_files, observer) = observer();
        let end = OffsetDateTime::UNIX_EPOCH + Duration::from_secs(60);
        let store = |revision, status, expire| {
            let repair = RepairQueueEntry {
                status: RepairStatus::Processing,
                step_status: status,
                drain_backoff_expire: expire,
                ..RepairQueueEntry::new("unreachable", "t", "10.0.0.2")
            };
            let value = Some(serde_json::to_vec(&repair).unwrap());
            let key = format!("{PREFIX}{}", keys::repair(0));
            observer.receive_revision(1, revision, vec![Change { value, ..put(&key, revision) }]);
        };
        assert!(!observer.has_repair_under_way(end));
        store(2, RepairStepStatus::Watching, None);
        assert!(observer.has_repair_under_way(end));
        store(3, RepairStepStatus::Waiting, Some(end));
        assert!(!observer.has_repair_under_way(end - Duration::from_secs(1)));
        assert!(observer.has_repair_under_way(end));
        observer.receive_revision(1, 4, vec![delete(&format!("{PREFIX}{}", keys::repair(0)))]);
        assert!(!observer.has_repair_under_way(end));
    }

    #[tokio::test]
    async fn member_whose_watch_omits_a_revision_is_found() {
        let (_files, observer) = observer();
        for revision in [2, 3, 4] {
            observer.receive_revision(1, revision, vec![put("a", 2)]);
        }
        observer.receive_revision(2, 2, vec![put("a", 2)]);
        observer.receive_revision(2, 4, vec![put("a", 2)]);
        observer.receive_revision(3, 3, vec![put("a", 2)]);
        assert_eq!(
            observer.history_faults(),
            ["store=2 delivered revision 4 after 2", "store=3 delivered revision 3 after 1"]
        );
    }

    #[tokio::test]
    async fn a_member_that_falls_silent_is_behind_and_the_others_are_not() {
        let (_files, observer) = observer();
        for revision in [2, 3] {
            observer.receive_revision(1, revision, vec![put("/cke/a", 2)]);
        }
        observer.receive_revision(2, 2, vec![put("/cke/a", 2)]);
        let stored = BTreeMap::from([(1, 3), (2, 3), (3, 3)]);
        assert_eq!(
            observer.members_behind(&stored),
            [
                "store=2 delivered up to revision 2, and has 3",
                "store=3 delivered up to revision 0, and has 3"
            ]
        );
        observer.receive_revision(2, 3, vec![put("/cke/a", 2)]);
        assert_eq!(observer.members_behind(&BTreeMap::from([(1, 3), (2, 3)])), Vec::<String>::new());
        observer.receive_revision(1, 4, vec![put("/other/a", 4)]);
        assert_eq!((observer.last_revision(), observer.last_revision_below(PREFIX)), (4, 3));
    }

    #[tokio::test]
    async fn the_oldest_candidate_leads() {
        let (_files, observer) = observer();
        observer.receive_revision(1, 2, vec![put("/cke/leader//a", 2)]);
        observer.receive_revision(1, 3, vec![put("/cke/leader//b", 3)]);
        assert_eq!(observer.current_leader(), Some(2));
        observer.receive_revision(1, 4, vec![delete("/cke/leader//a")]);
        assert_eq!(observer.current_leader(), Some(3));
        observer.receive_revision(1, 5, vec![delete("/cke/leader//b")]);
        let epochs: Vec<Option<i64>> = observer.leader_times().iter().map(|(_, epoch)| *epoch).collect();
        assert_eq!(epochs, [Some(2), Some(3), None]);
    }
}
