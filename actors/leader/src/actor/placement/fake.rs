//! A store in memory for tests of the leader: all prefixes share the same keys.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use madako_domain::placement::kind::ObjectKey;
use madako_domain::placement::objects::{Stored, UnreadResource};
use madako_domain::state::Fault;
use madako_domain::store::{
    Condition, Entry, Epoch, KeyChange, Outcome, Snapshot, StoreError, StoreErrorKind, Transaction, Write,
};
use madako_protocol::placement::objects::{Follower, FollowerGap, Objects, Selection};
use madako_protocol::store::{Campaign, CampaignEvent, CampaignOptions, Store, WatchEvent};
use tokio::sync::mpsc;
use tokio::time::Instant;

/// Channel capacity: more than a test needs.
const ROOM: usize = 1024;

#[derive(Default)]
struct Keys {
    revision: i64,
    entries: BTreeMap<String, Entry>,
    watches: Vec<(String, usize, mpsc::Sender<WatchEvent>)>,
    /// Prefix of keys that cannot be read or written.
    denied: Option<String>,
    campaign: Option<mpsc::Sender<CampaignEvent>>,
    leases: i64,
}

/// The keys below a prefix.
#[derive(Clone, Default)]
pub(super) struct FakeStore {
    keys: Arc<Mutex<Keys>>,
    prefix: String,
}

impl FakeStore {
    /// The same keys below another prefix.
    pub(super) fn below(&self, prefix: &str) -> Self {
        Self { keys: Arc::clone(&self.keys), prefix: prefix.to_owned() }
    }

    pub(super) fn deny(&self, prefix: Option<&str>) {
        self.keys.lock().unwrap().denied = prefix.map(str::to_owned);
    }

    pub(super) fn entry(&self, key: &str) -> Option<Entry> {
        self.keys.lock().unwrap().entries.get(&format!("{}{key}", self.prefix)).cloned()
    }

    /// Restores a key to a revision at which it was written; every watch lists all keys again.
    pub(super) fn restore(&self, key: &str, revision: i64) {
        let mut keys = self.keys.lock().unwrap();
        keys.revision = revision;
        let entry = keys.entries.get_mut(key).expect("it is there");
        (entry.create_revision, entry.mod_revision) = (revision, revision);
        for (prefix, strip, watch) in &keys.watches {
            let below = keys.entries.iter().filter(|(key, _)| key.starts_with(prefix));
            let entries = below.map(|(key, entry)| (key[*strip..].to_owned(), entry.clone())).collect();
            // The watcher may have ended.
            let _ = watch.try_send(WatchEvent::Listed(Snapshot { revision, entries }));
        }
    }

    pub(super) async fn tell(&self, event: CampaignEvent) {
        let campaign = self.keys.lock().unwrap().campaign.clone().expect("the actor campaigns");
        campaign.send(event).await.expect("it listens");
    }

    pub(super) async fn write(&self, write: Write) -> i64 {
        let transaction = Transaction { conditions: vec![], writes: vec![write] };
        match self.commit(transaction).await {
            Ok(Outcome::Committed { revision }) => revision,
            other => panic!("{other:?}"),
        }
    }

    fn allowed(&self, keys: &Keys, key: &str) -> Result<(), StoreError> {
        match &keys.denied {
            Some(denied) if key.starts_with(denied) => Err(StoreError {
                operation: format!("use of {key}"),
                kind: StoreErrorKind::Denied,
                why: "permission denied".into(),
            }),
            _ => Ok(()),
        }
    }
}

#[async_trait]
impl Store for FakeStore {
    async fn list(&self, prefix: &str) -> Result<Snapshot, StoreError> {
        let keys = self.keys.lock().unwrap();
        let from = format!("{}{prefix}", self.prefix);
        self.allowed(&keys, &from)?;
        let below = keys.entries.iter().filter(|(key, _)| key.starts_with(&from));
        let entries =
            below.map(|(key, entry)| (key[self.prefix.len()..].to_owned(), entry.clone())).collect();
        Ok(Snapshot { revision: keys.revision, entries })
    }

    async fn commit(&self, transaction: Transaction) -> Result<Outcome, StoreError> {
        let mut keys = self.keys.lock().unwrap();
        let mut failed = Vec::new();
        for condition in transaction.conditions {
            let holds = match &condition {
                Condition::Created { key, revision } => {
                    let entry = keys.entries.get(&format!("{}{key}", self.prefix));
                    entry.is_some_and(|entry| entry.create_revision == *revision)
                }
                Condition::Unchanged { key, revision } => {
                    let entry = keys.entries.get(&format!("{}{key}", self.prefix));
                    entry.map_or(0, |entry| entry.mod_revision) == *revision
                }
                Condition::NoneSince { prefix, revision } => {
                    let below = format!("{}{prefix}", self.prefix);
                    let mut entries = keys.entries.iter().filter(|(key, _)| key.starts_with(&below));
                    entries.all(|(_, entry)| entry.mod_revision <= *revision)
                }
            };
            if !holds {
                failed.push(condition);
            }
        }
        if !failed.is_empty() {
            return Ok(Outcome::Refused { failed });
        }
        let revision = keys.revision + 1;
        let mut changes = Vec::new();
        for write in transaction.writes {
            let (key, entry) = match write {
                Write::Put { key, value, lease } => {
                    let key = format!("{}{key}", self.prefix);
                    self.allowed(&keys, &key)?;
                    let create_revision =
                        keys.entries.get(&key).map_or(revision, |known| known.create_revision);
                    let entry = Entry { value, create_revision, mod_revision: revision, lease };
                    keys.entries.insert(key.clone(), entry.clone());
                    (key, Some(entry))
                }
                Write::Delete { key } => {
                    let key = format!("{}{key}", self.prefix);
                    keys.entries.remove(&key);
                    (key, None)
                }
            };
            changes.push(KeyChange { key, entry });
        }
        keys.revision = revision;
        for (prefix, strip, watch) in &keys.watches {
            let seen: Vec<_> = changes
                .iter()
                .filter(|change| change.key.starts_with(prefix))
                .map(|change| KeyChange { key: change.key[*strip..].to_owned(), entry: change.entry.clone() })
                .collect();
            if !seen.is_empty() {
                // The watcher may have ended.
                let _ = watch.try_send(WatchEvent::Changed { revision, changes: seen });
            }
        }
        Ok(Outcome::Committed { revision })
    }

    fn watch(&self, prefix: &str) -> mpsc::Receiver<WatchEvent> {
        let mut keys = self.keys.lock().unwrap();
        let (sender, receiver) = mpsc::channel(ROOM);
        let from = format!("{}{prefix}", self.prefix);
        let strip = self.prefix.len();
        let below = keys.entries.iter().filter(|(key, _)| key.starts_with(&from));
        let entries = below.map(|(key, entry)| (key[strip..].to_owned(), entry.clone())).collect();
        let listed = WatchEvent::Listed(Snapshot { revision: keys.revision, entries });
        sender.try_send(listed).expect("there is room");
        keys.watches.push((from, strip, sender));
        receiver
    }

    /// The campaign wins at once.
    fn campaign(&self, _: CampaignOptions) -> Campaign {
        let (events, told) = mpsc::channel(ROOM);
        let (commands, mut commanded) = mpsc::channel(ROOM);
        // Commands are ignored; a test stops its leader through the actor.
        tokio::spawn(async move { while commanded.recv().await.is_some() {} });
        let mut keys = self.keys.lock().unwrap();
        keys.leases += 1;
        keys.revision += 1;
        let (lease, number) = (keys.leases, keys.revision);
        let key = madako_domain::keys::leader(lease);
        let value = bytes::Bytes::from_static(b"host");
        let entry = Entry { value, create_revision: number, mod_revision: number, lease };
        keys.entries.insert(format!("{}{key}", self.prefix), entry);
        events.try_send(CampaignEvent::Elected(Epoch { number, key, lease })).expect("there is room");
        keys.campaign = Some(events);
        Campaign { events: told, commands }
    }

    fn holds_until(&self, _: &Epoch) -> Option<Instant> {
        Some(Instant::now() + Duration::from_secs(60))
    }
}

#[derive(Default)]
pub(super) struct FakeObjects(pub(super) Mutex<BTreeMap<ObjectKey, Arc<Stored>>>);

#[async_trait]
impl Objects for FakeObjects {
    async fn refresh(&self) -> Result<i64, StoreError> {
        Ok(1)
    }

    fn revision(&self) -> Option<i64> {
        Some(1)
    }

    fn get(&self, key: &ObjectKey) -> Option<Arc<Stored>> {
        self.0.lock().unwrap().get(key).cloned()
    }

    fn list(&self, _: Selection<'_>) -> (i64, Vec<Arc<Stored>>) {
        (1, Vec::new())
    }

    fn unread_resource(&self, _: &ObjectKey) -> Option<UnreadResource> {
        None
    }

    fn faults(&self) -> Vec<Fault> {
        Vec::new()
    }

    fn follow_all(&self) -> (i64, Vec<Arc<Stored>>, Box<dyn Follower>) {
        panic!("the leader follows nothing")
    }

    fn follow(&self, _: i64) -> Result<Box<dyn Follower>, FollowerGap> {
        panic!("the leader follows nothing")
    }

    async fn commit(&self, _: Transaction) -> Result<Outcome, StoreError> {
        panic!("the leader commits to the store")
    }
}
