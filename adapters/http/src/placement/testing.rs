//! Test support: placement's resources in memory, in a correct store with a view that may lag behind it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use madako_domain::placement::kind::ObjectKey;
use madako_domain::placement::object_value::Object;
use madako_domain::placement::objects::{Change, Stored, UnreadResource};
use madako_domain::state::Fault;
use madako_domain::store::{Condition, Outcome, StoreError, Transaction, Write};
use madako_protocol::placement::objects::{Follower, FollowerGap, Objects, Selection};
use tokio::sync::watch;

/// Runs before a transaction, as a concurrent writer would.
type Rival = Box<dyn FnOnce(&MemoryObjects) + Send>;

#[derive(Debug, Clone)]
struct Entry {
    created: i64,
    modified: i64,
    value: Bytes,
}

#[derive(Default)]
struct Inner {
    revision: i64,
    keys: BTreeMap<String, Entry>,
    /// Changes in the store that the view does not show yet.
    unseen: Vec<(i64, String, Option<Entry>)>,
    view: BTreeMap<ObjectKey, Arc<Stored>>,
    faults: BTreeMap<String, UnreadResource>,
    viewed: i64,
    changes: Vec<Arc<Change>>,
    /// Changes up to this revision are discarded.
    forgotten: i64,
    rivals: Vec<Rival>,
    failure: Option<StoreError>,
    commits: usize,
}

pub(super) struct MemoryObjects {
    inner: Arc<Mutex<Inner>>,
    /// Generation of the followers, and number of changes.
    moved: watch::Sender<(u64, usize)>,
}

impl MemoryObjects {
    pub(super) fn new() -> Arc<Self> {
        let inner = Mutex::new(Inner { revision: 1, viewed: 1, ..Inner::default() });
        Arc::new(Self { inner: Arc::new(inner), moved: watch::Sender::new((0, 0)) })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a key past the API, as another client would. The view shows it only after a request for freshness.
    pub(super) fn put(&self, key: &str, value: &str) -> i64 {
        let mut inner = self.inner();
        inner.revision += 1;
        let modified = inner.revision;
        let created = inner.keys.get(key).map_or(modified, |entry| entry.created);
        let entry = Entry { created, modified, value: Bytes::copy_from_slice(value.as_bytes()) };
        inner.keys.insert(key.to_owned(), entry.clone());
        inner.unseen.push((modified, key.to_owned(), Some(entry)));
        modified
    }

    /// Deletes a key as another client would.
    pub(super) fn remove(&self, key: &str) {
        let mut inner = self.inner();
        inner.revision += 1;
        let revision = inner.revision;
        inner.keys.remove(key);
        inner.unseen.push((revision, key.to_owned(), None));
    }

    /// True if the key exists, readable or not.
    pub(super) fn holds(&self, key: &str) -> bool {
        self.inner().keys.contains_key(key)
    }

    pub(super) fn value(&self, key: &str) -> Option<serde_json::Value> {
        let inner = self.inner();
        inner.keys.get(key).map(|entry| serde_json::from_slice(&entry.value).unwrap())
    }

    /// Runs a concurrent writer between the read and the write of the next transaction; several are queued, one per
    /// transaction.
    pub(super) fn rival(&self, rival: impl FnOnce(&Self) + Send + 'static) {
        self.inner().rivals.push(Box::new(rival));
    }

    /// Fails all operations until it is called with `None`.
    pub(super) fn fail(&self, failure: Option<StoreError>) {
        self.inner().failure = failure;
    }

    pub(super) fn commits(&self) -> usize {
        self.inner().commits
    }

    /// Breaks off all followers and discards earlier changes.
    pub(super) fn relist(&self) {
        let mut inner = self.inner();
        inner.revision += 1;
        inner.viewed = inner.revision;
        inner.forgotten = inner.revision;
        self.moved.send_modify(|moved| moved.0 += 1);
    }

    pub(super) fn catch_up(&self) -> i64 {
        let mut inner = self.inner();
        for (revision, path, entry) in std::mem::take(&mut inner.unseen) {
            inner.viewed = revision;
            let Some(key) = ObjectKey::from_etcd_key(&path) else { continue };
            let before = inner.view.remove(&key);
            inner.faults.remove(&path);
            let after = entry.and_then(|entry| {
                let text = std::str::from_utf8(&entry.value).unwrap();
                match Object::from_stored(key.kind, text) {
                    Ok(object) => {
                        let wire = Bytes::from(object.to_json());
                        let (create_revision, mod_revision) = (entry.created, entry.modified);
                        Some(Arc::new(Stored {
                            key: key.clone(),
                            create_revision,
                            mod_revision,
                            object,
                            wire,
                        }))
                    }
                    Err(error) => {
                        let why = error.to_string();
                        let unread = UnreadResource { mod_revision: entry.modified, why, encrypted: false };
                        inner.faults.insert(path.clone(), unread);
                        None
                    }
                }
            });
            if let Some(after) = &after {
                inner.view.insert(key.clone(), Arc::clone(after));
            }
            inner.changes.push(Arc::new(Change { revision, key, before, after }));
        }
        let count = inner.changes.len();
        self.moved.send_modify(|moved| moved.1 = count);
        inner.viewed
    }
}

#[async_trait]
impl Objects for MemoryObjects {
    async fn refresh(&self) -> Result<i64, StoreError> {
        if let Some(failure) = self.inner().failure.clone() {
            return Err(failure);
        }
        Ok(self.catch_up())
    }

    fn revision(&self) -> Option<i64> {
        Some(self.inner().viewed)
    }

    fn get(&self, key: &ObjectKey) -> Option<Arc<Stored>> {
        self.inner().view.get(key).cloned()
    }

    fn list(&self, selection: Selection<'_>) -> (i64, Vec<Arc<Stored>>) {
        let inner = self.inner();
        let selected = inner.view.values().filter(|stored| {
            stored.key.kind == selection.kind
                && selection
                    .namespace
                    .is_none_or(|namespace| stored.key.namespace.as_deref() == Some(namespace))
        });
        let mut selected: Vec<_> = selected.cloned().collect();
        selected.sort_by_cached_key(|stored| stored.key.etcd_key());
        (inner.viewed, selected)
    }

    fn unread_resource(&self, key: &ObjectKey) -> Option<UnreadResource> {
        self.inner().faults.get(&key.etcd_key()).cloned()
    }

    fn faults(&self) -> Vec<Fault> {
        let inner = self.inner();
        let fault =
            |(key, unread): (&String, &UnreadResource)| Fault { key: key.clone(), why: unread.why.clone() };
        inner.faults.iter().map(fault).collect()
    }

    fn follow_all(&self) -> (i64, Vec<Arc<Stored>>, Box<dyn Follower>) {
        let (viewed, all) = {
            let inner = self.inner();
            (inner.viewed, inner.view.values().cloned().collect())
        };
        (viewed, all, self.follow(viewed).unwrap())
    }

    fn follow(&self, after: i64) -> Result<Box<dyn Follower>, FollowerGap> {
        let inner = self.inner();
        if after < inner.forgotten {
            return Err(FollowerGap::Relisted { why: "the store was replaced".to_owned() });
        }
        let next = inner.changes.partition_point(|change| change.revision <= after);
        let moved = self.moved.subscribe();
        let generation = moved.borrow().0;
        Ok(Box::new(Following { inner: Arc::clone(&self.inner), moved, generation, next }))
    }

    async fn commit(&self, transaction: Transaction) -> Result<Outcome, StoreError> {
        let rival = {
            let mut inner = self.inner();
            inner.commits += 1;
            if let Some(failure) = inner.failure.clone() {
                return Err(failure);
            }
            if inner.rivals.is_empty() { None } else { Some(inner.rivals.remove(0)) }
        };
        if let Some(rival) = rival {
            rival(self);
        }
        let mut inner = self.inner();
        let holds = |condition: &Condition| match condition {
            Condition::Created { key, revision } => {
                inner.keys.get(key).is_some_and(|entry| entry.created == *revision)
            }
            Condition::Unchanged { key, revision } => {
                inner.keys.get(key).map_or(0, |entry| entry.modified) == *revision
            }
            Condition::NoneSince { prefix, revision } => {
                let mut below = inner.keys.iter().filter(|(key, _)| key.starts_with(prefix));
                below.all(|(_, entry)| entry.modified <= *revision)
            }
        };
        let failed: Vec<_> =
            transaction.conditions.iter().filter(|condition| !holds(condition)).cloned().collect();
        if !failed.is_empty() {
            return Ok(Outcome::Refused { failed });
        }
        inner.revision += 1;
        let revision = inner.revision;
        for write in transaction.writes {
            let (key, entry) = match write {
                Write::Put { key, value, .. } => {
                    let created = inner.keys.get(&key).map_or(revision, |entry| entry.created);
                    let entry = Entry { created, modified: revision, value };
                    inner.keys.insert(key.clone(), entry.clone());
                    (key, Some(entry))
                }
                Write::Delete { key } => {
                    inner.keys.remove(&key);
                    (key, None)
                }
            };
            inner.unseen.push((revision, key, entry));
        }
        drop(inner);
        // A watch of the store delivers changes without a request for freshness.
        if self.moved.receiver_count() > 0 {
            self.catch_up();
        }
        Ok(Outcome::Committed { revision })
    }
}

struct Following {
    inner: Arc<Mutex<Inner>>,
    moved: watch::Receiver<(u64, usize)>,
    generation: u64,
    /// Position of the next change among all changes.
    next: usize,
}

#[async_trait]
impl Follower for Following {
    async fn next(&mut self) -> Result<Vec<Arc<Change>>, FollowerGap> {
        loop {
            let (generation, _) = *self.moved.borrow_and_update();
            if generation != self.generation {
                return Err(FollowerGap::Relisted { why: "the store was replaced".to_owned() });
            }
            {
                let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
                let new = inner.changes[self.next..].to_vec();
                if !new.is_empty() {
                    self.next += new.len();
                    return Ok(new);
                }
            }
            if self.moved.changed().await.is_err() {
                return Err(FollowerGap::Relisted { why: "the store is gone".to_owned() });
            }
        }
    }
}
