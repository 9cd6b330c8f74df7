//! A store in memory for tests of the scheduler's actor: it compares the conditions of a transaction and informs its
//! followers.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use madako_domain::limits;
use madako_domain::placement::kind::ObjectKey;
use madako_domain::placement::object_value::Object;
use madako_domain::placement::objects::{Change, Stored, UnreadResource};
use madako_domain::state::Fault;
use madako_domain::store::{Condition, Entry, Epoch, Outcome, Snapshot, StoreError, Transaction, Write};
use madako_protocol::actors::CommitError;
use madako_protocol::placement::objects::{Follower, FollowerGap, Objects, Selection};
use madako_protocol::store::{Campaign, CampaignOptions, Store, WatchEvent};
use tokio::sync::mpsc;
use tokio::time::Instant;

/// Prefix of all kept keys.
pub(super) const PREFIX: &str = "/cke/";

type Followed = Result<Vec<Arc<Change>>, FollowerGap>;
pub(super) type Meanwhile = Box<dyn FnOnce(&mut Inner) + Send>;

pub(super) type Saved = (i64, BTreeMap<String, Entry>, BTreeMap<ObjectKey, Arc<Stored>>);

#[derive(Default)]
pub(super) struct Inner {
    pub(super) revision: i64,
    pub(super) entries: BTreeMap<String, Entry>,
    pub(super) objects: BTreeMap<ObjectKey, Arc<Stored>>,
    pub(super) followers: Vec<mpsc::UnboundedSender<Followed>>,
    pub(super) committed: Vec<Transaction>,
    /// Failures of the next transactions; the flag says whether the write happens nevertheless.
    pub(super) fails: VecDeque<(bool, CommitError)>,
    /// A foreign change just before the next transaction.
    pub(super) before: Option<Meanwhile>,
}

impl Inner {
    pub(super) fn write(&mut self, writes: &[Write]) -> i64 {
        self.revision += 1;
        let revision = self.revision;
        let mut changes = Vec::new();
        for write in writes {
            let (Write::Put { key, .. } | Write::Delete { key }) = write;
            let known = self.entries.get(key).map(|entry| entry.create_revision);
            let entry = match write {
                Write::Put { value, .. } => Some(Entry {
                    value: value.clone(),
                    create_revision: known.unwrap_or(revision),
                    mod_revision: revision,
                    lease: 0,
                }),
                Write::Delete { .. } => None,
            };
            if let Some(of) = ObjectKey::from_etcd_key(key) {
                let after = entry.as_ref().map(|entry| stored(&of, entry));
                match &after {
                    Some(after) => self.objects.insert(of.clone(), Arc::clone(after)),
                    None => self.objects.remove(&of),
                };
                changes.push(Arc::new(Change { revision, key: of, before: None, after }));
            }
            match entry {
                Some(entry) => self.entries.insert(key.clone(), entry),
                None => self.entries.remove(key),
            };
        }
        if !changes.is_empty() {
            self.followers.retain(|follower| follower.send(Ok(changes.clone())).is_ok());
        }
        revision
    }

    /// The present content, for [`Self::restore`].
    pub(super) fn saved(&self) -> Saved {
        (self.revision, self.entries.clone(), self.objects.clone())
    }

    pub(super) fn restore(&mut self, saved: Saved) {
        (self.revision, self.entries, self.objects) = saved;
        for follower in std::mem::take(&mut self.followers) {
            // The follower may have ended.
            let _ = follower.send(Err(FollowerGap::Relisted { why: "it is another store".to_owned() }));
        }
    }

    pub(super) fn put(&mut self, object: &Object) {
        let value = Bytes::from(object.to_json());
        self.write(&[Write::Put { key: object.key().etcd_key(), value, lease: 0 }]);
    }

    pub(super) fn commit(&mut self, transaction: Transaction) -> Outcome {
        assert!(transaction.conditions.len() <= limits::MOST_CONDITIONS, "too many comparisons");
        assert!(transaction.writes.len() <= limits::MOST_OPERATIONS, "too many writes");
        let failed = transaction.conditions.iter().filter(|condition| match condition {
            Condition::Unchanged { key, revision } => {
                self.entries.get(key).map_or(0, |entry| entry.mod_revision) != *revision
            }
            Condition::NoneSince { prefix, revision } => self
                .entries
                .iter()
                .any(|(key, entry)| key.starts_with(prefix) && entry.mod_revision > *revision),
            Condition::Created { .. } => panic!("placement compares what changed last"),
        });
        let failed: Vec<Condition> = failed.cloned().collect();
        if !failed.is_empty() {
            return Outcome::Refused { failed };
        }
        let revision = self.write(&transaction.writes);
        self.committed.push(transaction);
        Outcome::Committed { revision }
    }
}

fn stored(key: &ObjectKey, entry: &Entry) -> Arc<Stored> {
    Arc::new(Stored {
        key: key.clone(),
        create_revision: entry.create_revision,
        mod_revision: entry.mod_revision,
        object: Object::from_stored(key.kind, std::str::from_utf8(&entry.value).unwrap()).unwrap(),
        wire: entry.value.clone(),
    })
}

#[derive(Default)]
pub(super) struct FakeStore(Mutex<Inner>);

impl FakeStore {
    pub(super) fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.0.lock().unwrap()
    }
}

struct FakeFollower(mpsc::UnboundedReceiver<Followed>);

#[async_trait]
impl Follower for FakeFollower {
    async fn next(&mut self) -> Followed {
        match self.0.recv().await {
            Some(next) => next,
            None => std::future::pending().await,
        }
    }
}

#[async_trait]
impl Objects for FakeStore {
    async fn refresh(&self) -> Result<i64, StoreError> {
        Ok(self.lock().revision)
    }

    fn revision(&self) -> Option<i64> {
        Some(self.lock().revision)
    }

    fn get(&self, key: &ObjectKey) -> Option<Arc<Stored>> {
        self.lock().objects.get(key).cloned()
    }

    fn list(&self, _: Selection<'_>) -> (i64, Vec<Arc<Stored>>) {
        unreachable!("the scheduler follows everything")
    }

    fn unread_resource(&self, _: &ObjectKey) -> Option<UnreadResource> {
        None
    }

    fn faults(&self) -> Vec<Fault> {
        Vec::new()
    }

    fn follow_all(&self) -> (i64, Vec<Arc<Stored>>, Box<dyn Follower>) {
        let mut inner = self.lock();
        let (sender, receiver) = mpsc::unbounded_channel();
        inner.followers.push(sender);
        (inner.revision, inner.objects.values().cloned().collect(), Box::new(FakeFollower(receiver)))
    }

    fn follow(&self, _: i64) -> Result<Box<dyn Follower>, FollowerGap> {
        unreachable!("the scheduler follows everything")
    }

    async fn commit(&self, _: Transaction) -> Result<Outcome, StoreError> {
        unreachable!("the scheduler writes through the leader")
    }
}

#[async_trait]
impl Store for FakeStore {
    async fn list(&self, prefix: &str) -> Result<Snapshot, StoreError> {
        let inner = self.lock();
        let below = inner.entries.iter().filter_map(|(key, entry)| {
            let key = key.strip_prefix(PREFIX)?;
            key.starts_with(prefix).then(|| (key.to_owned(), entry.clone()))
        });
        Ok(Snapshot { revision: inner.revision, entries: below.collect() })
    }

    async fn commit(&self, _: Transaction) -> Result<Outcome, StoreError> {
        unreachable!("the scheduler writes through the leader")
    }

    fn watch(&self, _: &str) -> mpsc::Receiver<WatchEvent> {
        unreachable!("the scheduler follows resources")
    }

    fn campaign(&self, _: CampaignOptions) -> Campaign {
        unreachable!("the scheduler does not campaign")
    }

    fn holds_until(&self, _: &Epoch) -> Option<Instant> {
        unreachable!("the leader asks")
    }
}
