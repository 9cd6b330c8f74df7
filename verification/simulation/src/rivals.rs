//! Simulated clients that write between a read of an instance and its transaction.
//!
//! For: contention. An operator, `ckecli`, CKE and Krake may write at any moment; rivals write at the moment that
//! shows whether a transaction compares the state on which it was decided.
//!
//! Guarantees: each write of a rival is one that an operator, `ckecli`, CKE or Krake could send. The write compares the current
//! state, and is durable before the instance sends its transaction. Refused transactions are counted by the family of
//! the first changed key.
//!
//! Does not write keys that only the leader writes, such as its own key, decisions, and its state beside entries.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use etcd_client::{Client, GetOptions};
use madako_domain::keys;
use madako_domain::placement::kind::ObjectKey;
use madako_domain::placement::objects::{Stored, UnreadResource};
use madako_domain::record::Record;
use madako_domain::repair::RepairQueueEntry;
use madako_domain::state::Fault;
use madako_domain::store::{Condition, Epoch, Outcome, Snapshot, StoreError, Transaction, Write};
use madako_judges::workload::{GuardedPuts, ReadKey, add_repair};
use madako_protocol::placement::objects::{Follower, FollowerGap, Objects, Selection};
use madako_protocol::store::{Campaign, CampaignOptions, Store, WatchEvent};
use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng as _;
use serde_json::{Value, json};
use time::OffsetDateTime;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::history::History;
use crate::repair::RepairJudge;
use crate::store_process::StoreProcess;
use crate::world::PREFIX;

/// Prefixes of applications and clusters.
const APPLICATIONS: &str = "/kubernetes/applications/";
const CLUSTERS: &str = "/kubernetes/clusters/";

/// Keys, or prefixes of keys, that rivals write.
const FAMILIES: [&str; 9] = [
    keys::SABAKAN_TEMPLATE,
    keys::CONSTRAINTS,
    keys::SABAKAN_DISABLED,
    keys::REPAIRS_DISABLED,
    keys::REPAIRS_WRITE_INDEX,
    keys::REPAIRS,
    keys::RECORD_ID,
    APPLICATIONS,
    CLUSTERS,
];

/// Minimum number of refused transactions per hour in a run with rivals, by family.
pub const REQUIRED: [(&str, u64); 8] = [
    (keys::SABAKAN_TEMPLATE, 10),
    (keys::CONSTRAINTS, 10),
    (keys::SABAKAN_DISABLED, 10),
    (keys::REPAIRS_DISABLED, 10),
    (keys::REPAIRS, 20),
    (keys::RECORD_ID, 20),
    (APPLICATIONS, 100),
    (CLUSTERS, 100),
];

/// Family of all other keys in counts.
const OTHER: &str = "other keys";

/// Share of the transactions without a rival.
const UNDISTURBED: f64 = 0.25;

/// Time until a rival resets a switch.
const BRIEFLY: Duration = Duration::from_secs(12);

/// Number of entries of the repair queue above which rivals add none.
const FULL: i64 = 10;

struct State {
    chance: ChaCha8Rng,
    /// Mean time between two writes to a family; `None` if rivals rest.
    pause: Option<Duration>,
    /// Earliest time of the next write to each family.
    next: BTreeMap<&'static str, Instant>,
    /// Makes each write unique.
    number: u64,
    thrown: BTreeSet<&'static str>,
    refused: BTreeMap<&'static str, u64>,
}

struct RivalsState {
    store: StoreProcess,
    judge: RepairJudge,
    history: History,
    state: Mutex<State>,
}

/// The rivals of all instances. Clones share their state.
#[derive(Clone)]
pub struct Rivals(Arc<RivalsState>);

/// The family of a key that is relative to the service's prefix, or at the root.
fn key_family(key: &str) -> Option<&'static str> {
    FAMILIES.into_iter().find(
        |family| {
            if family.ends_with('/') { key.starts_with(family) } else { key == *family }
        },
    )
}

/// A key without the service's prefix, as in families.
fn relative_key<'k>(base: &str, key: &'k str) -> &'k str {
    if base.is_empty() { key.strip_prefix(PREFIX).unwrap_or(key) } else { key }
}

/// Keys that a rival may write just before a transaction: the compared keys, the written keys, and the keys on which
/// its decision depends, whether or not it compares them.
fn keys_and_values(transaction: &Transaction, base: &str) -> Vec<(&'static str, String)> {
    let compared = transaction.conditions.iter().filter(|it| !matches!(it, Condition::Created { .. }));
    let written = transaction.writes.iter().map(|write| match write {
        Write::Put { key, .. } | Write::Delete { key } => key.as_str(),
    });
    let keys = compared.map(Condition::compared_key).chain(written).map(|key| relative_key(base, key));
    let mut about: BTreeSet<&str> = keys.collect();
    if about.contains(keys::CLUSTER) {
        about.extend([keys::SABAKAN_TEMPLATE, keys::CONSTRAINTS, keys::SABAKAN_DISABLED]);
    }
    about.into_iter().filter_map(|key| Some((key_family(key)?, key.to_owned()))).collect()
}

impl Rivals {
    #[must_use]
    pub fn new(store: StoreProcess, judge: RepairJudge, history: History, chance: ChaCha8Rng) -> Self {
        let state = State {
            chance,
            pause: None,
            next: BTreeMap::new(),
            number: 0,
            thrown: BTreeSet::new(),
            refused: BTreeMap::new(),
        };
        Self(Arc::new(RivalsState { store, judge, history, state: Mutex::new(state) }))
    }

    /// Starts writes, at most `rate` per second to each family.
    pub fn start_writes(&self, rate: f64) {
        self.0.state.lock().unwrap().pause = Some(Duration::from_secs_f64(1.0 / rate));
    }

    /// Stops writes, and resets switches.
    pub async fn stop_writes(&self) {
        self.0.state.lock().unwrap().pause = None;
        let thrown = std::mem::take(&mut self.0.state.lock().unwrap().thrown);
        for key in thrown {
            self.put_back(key).await;
        }
    }

    /// Number of refused transactions, by the family of the first changed key.
    #[must_use]
    pub fn count_refused_by_family(&self) -> BTreeMap<&'static str, u64> {
        self.0.state.lock().unwrap().refused.clone()
    }

    /// A store whose transactions meet rivals. Its keys are below `base`: the service's prefix, or empty for the
    /// root.
    #[must_use]
    pub fn wrap_store(&self, inner: Arc<dyn Store>, base: &'static str) -> Arc<dyn Store> {
        Arc::new(ContendedStore { inner, base, rivals: self.clone() })
    }

    /// Resources whose transactions meet rivals.
    #[must_use]
    pub fn wrap_objects(&self, inner: Arc<dyn Objects>) -> Arc<dyn Objects> {
        Arc::new(ContendedObjects { inner, rivals: self.clone() })
    }

    /// Writes to a family of the transaction that is about to be sent.
    async fn write_first(&self, transaction: &Transaction, base: &str) {
        let mut known = keys_and_values(transaction, base);
        let (family, key, number, draw) = {
            let mut state = self.0.state.lock().unwrap();
            let Some(pause) = state.pause else { return };
            // Otherwise a transaction that compares many families would always fail.
            if state.chance.random_bool(UNDISTURBED) {
                return;
            }
            let now = Instant::now();
            // The family with the longest wait: a family that few transactions compare would lose most draws.
            known.retain(|(family, _)| state.next.get(family).is_none_or(|next| *next <= now));
            let Some(longest) = known.iter().map(|(family, _)| state.next.get(family)).min() else {
                return;
            };
            known.retain(|(family, _)| state.next.get(family) == longest);
            let (family, key) = known.swap_remove(state.chance.random_range(0..known.len()));
            let pause = pause.mul_f64(state.chance.random_range(0.5..1.5));
            state.next.insert(family, now + pause);
            state.number += 1;
            (family, key, state.number, state.chance.random())
        };
        if let Some(what) = self.write(family, &key, (number, draw)).await {
            self.0.history.note("rival", format_args!("{key}: {what}"));
        }
    }

    /// Writes to a family, and describes the write; `None` if there is nothing to write or the store does not run.
    async fn write(&self, family: &'static str, key: &str, (number, draw): (u64, u64)) -> Option<String> {
        let mut client = self.0.store.connect_client().await?;
        match family {
            keys::SABAKAN_DISABLED | keys::REPAIRS_DISABLED => self.set_switch(&mut client, family).await,
            keys::REPAIRS_WRITE_INDEX => self.add_queue_entry(&mut client, number).await,
            keys::RECORD_ID => self.write_record_id(&mut client).await,
            _ => {
                // A prefix stands for its first key.
                let absolute = absolute_key(key);
                let is_prefix = absolute.ends_with('/');
                let options = is_prefix.then(|| GetOptions::new().with_prefix().with_limit(1));
                let answer = client.get(absolute, options).await.ok()?;
                let kv = answer.kvs().first()?;
                let (value, what) = edit_value(family, kv.value(), number, draw)?;
                self.write_unchanged(&mut client, ReadKey::from(kv).replace_with(value), None).await?;
                Some(what)
            }
        }
    }

    /// Sends a write; `None` if its key has changed. `added`: index of the entry that it adds.
    async fn write_unchanged(
        &self,
        client: &mut Client,
        write: GuardedPuts,
        added: Option<i64>,
    ) -> Option<()> {
        let done = client.txn(write.into()).await.ok()?;
        if !done.succeeded() {
            return None;
        }
        self.0.judge.note_user_write(done.header()?.revision(), added);
        Some(())
    }

    async fn set_switch(&self, client: &mut Client, key: &'static str) -> Option<String> {
        let switch = read_key(client, &absolute_key(key)).await?;
        if switch.value == b"true" {
            return None;
        }
        self.write_unchanged(client, switch.replace_with(b"true".to_vec()), None).await?;
        self.0.state.lock().unwrap().thrown.insert(key);
        let rivals = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep(BRIEFLY).await;
            let thrown = rivals.0.state.lock().unwrap().thrown.remove(key);
            if thrown {
                rivals.put_back(key).await;
            }
        });
        Some("true".to_owned())
    }

    async fn put_back(&self, key: &'static str) {
        let mut client = self.0.store.next_client().await;
        // With a full disk, the write fails; the operator resets every switch later.
        if let Ok(put) = client.put(absolute_key(key), "false", None).await {
            self.0.judge.note_user_write(put.header().map_or(0, |header| header.revision()), None);
            self.0.history.note("rival", format_args!("{key}: false"));
        }
    }

    /// Adds an entry as `ckecli repair-queue add` does.
    async fn add_queue_entry(&self, client: &mut Client, number: u64) -> Option<String> {
        let there = GetOptions::new().with_prefix().with_count_only();
        if client.get(absolute_key(keys::REPAIRS), Some(there)).await.ok()?.count() >= FULL {
            return None;
        }
        let counter = read_key(client, &absolute_key(keys::REPAIRS_WRITE_INDEX)).await?;
        let address = format!("10.255.1.{}", number % 200);
        let entry = RepairQueueEntry::new("unreachable", "iDRAC-9", &*address);
        let (index, writes) = add_repair(PREFIX, counter, entry)?;
        self.write_unchanged(client, writes, Some(index)).await?;
        Some(format!("adds entry {index} for {address}"))
    }

    /// Adds a record of an operation that ends at once, as CKE does.
    async fn write_record_id(&self, client: &mut Client) -> Option<String> {
        let counter = read_key(client, &absolute_key(keys::RECORD_ID)).await?;
        let (id, writes) = counter.take_number(1, |id| {
            let at = OffsetDateTime::UNIX_EPOCH;
            let mut record = Record::new(id, "update-resource", Vec::new(), at);
            record.complete(at);
            Some((absolute_key(&keys::record(id)), serde_json::to_vec(&record).ok()?))
        })?;
        self.write_unchanged(client, writes, None).await?;
        Some(format!("adds record {id}"))
    }

    /// Counts a refused transaction.
    fn note_answer(&self, outcome: &Result<Outcome, StoreError>, base: &str) {
        let Ok(Outcome::Refused { failed }) = outcome else { return };
        let compared = failed.iter().map(|condition| relative_key(base, condition.compared_key()));
        let families = compared.map(|key| {
            if key.starts_with(keys::LEADER) { keys::LEADER } else { key_family(key).unwrap_or(OTHER) }
        });
        let first = families.min_by_key(|family| *family == OTHER).unwrap_or(OTHER);
        *self.0.state.lock().unwrap().refused.entry(first).or_default() += 1;
    }
}

fn absolute_key(key: &str) -> String {
    if key.starts_with('/') { key.to_owned() } else { format!("{PREFIX}{key}") }
}

/// Reads an absolute key; `None` if the store does not answer.
async fn read_key(client: &mut Client, key: &str) -> Option<ReadKey> {
    Some(ReadKey::of_answer(key, &client.get(key, None).await.ok()?))
}

/// An edit of a value, and its description; `None` if the value stays.
fn edit_value(family: &str, value: &[u8], number: u64, draw: u64) -> Option<(Vec<u8>, String)> {
    let mut json: Value = serde_json::from_slice(value).ok()?;
    let mut chance = ChaCha8Rng::seed_from_u64(draw);
    let one_of_three = chance.random_range(0..3_u32) == 0;
    let mut pick = |of: &[&str]| of[chance.random_range(0..of.len())].to_owned();
    let what = match family {
        keys::SABAKAN_TEMPLATE => {
            json["nodes"].get_mut(0)?["annotations"]["rival"] = json!(number.to_string());
            format!("template {number}")
        }
        keys::CONSTRAINTS => {
            let minimum = json["minimum-workers"].as_u64()?;
            let maximum = if one_of_three { 0 } else { minimum + draw % 3 };
            json["maximum-workers"] = json!(maximum);
            format!("at most {maximum} workers")
        }
        keys::REPAIRS if one_of_three => {
            json["deleted"] = json!(true);
            "deleted".to_owned()
        }
        keys::REPAIRS => {
            json["drain_backoff_count"] = json!(0);
            json.as_object_mut()?.remove("drain_backoff_expire");
            "without back-off".to_owned()
        }
        APPLICATIONS | CLUSTERS if !json["metadata"]["deleted"].is_null() => return None,
        APPLICATIONS => {
            let zone = pick(&["zone is a", "zone is b", "zone is c", "zone is not b"]);
            json["metadata"]["labels"]["rival"] = json!(number.to_string());
            json["spec"]["constraints"]["cluster"]["labels"] = json!([zone]);
            zone
        }
        CLUSTERS if one_of_three => {
            let state = pick(&["ONLINE", "OFFLINE"]);
            json["status"]["state"] = json!(state);
            state
        }
        CLUSTERS => {
            let zone = pick(&["a", "b", "c"]);
            json["metadata"]["labels"]["zone"] = json!(zone);
            format!("zone {zone}")
        }
        _ => return None,
    };
    Some((serde_json::to_vec(&json).ok()?, what))
}

struct ContendedStore {
    inner: Arc<dyn Store>,
    base: &'static str,
    rivals: Rivals,
}

#[async_trait]
impl Store for ContendedStore {
    async fn list(&self, prefix: &str) -> Result<Snapshot, StoreError> {
        self.inner.list(prefix).await
    }

    async fn commit(&self, transaction: Transaction) -> Result<Outcome, StoreError> {
        self.rivals.write_first(&transaction, self.base).await;
        let outcome = self.inner.commit(transaction).await;
        self.rivals.note_answer(&outcome, self.base);
        outcome
    }

    fn watch(&self, prefix: &str) -> mpsc::Receiver<WatchEvent> {
        self.inner.watch(prefix)
    }

    fn campaign(&self, options: CampaignOptions) -> Campaign {
        self.inner.campaign(options)
    }

    fn holds_until(&self, epoch: &Epoch) -> Option<Instant> {
        self.inner.holds_until(epoch)
    }
}

struct ContendedObjects {
    inner: Arc<dyn Objects>,
    rivals: Rivals,
}

#[async_trait]
impl Objects for ContendedObjects {
    async fn refresh(&self) -> Result<i64, StoreError> {
        self.inner.refresh().await
    }

    fn revision(&self) -> Option<i64> {
        self.inner.revision()
    }

    fn get(&self, key: &ObjectKey) -> Option<Arc<Stored>> {
        self.inner.get(key)
    }

    fn list(&self, selection: Selection<'_>) -> (i64, Vec<Arc<Stored>>) {
        self.inner.list(selection)
    }

    fn unread_resource(&self, key: &ObjectKey) -> Option<UnreadResource> {
        self.inner.unread_resource(key)
    }

    fn faults(&self) -> Vec<Fault> {
        self.inner.faults()
    }

    fn follow_all(&self) -> (i64, Vec<Arc<Stored>>, Box<dyn Follower>) {
        self.inner.follow_all()
    }

    fn follow(&self, after: i64) -> Result<Box<dyn Follower>, FollowerGap> {
        self.inner.follow(after)
    }

    async fn commit(&self, transaction: Transaction) -> Result<Outcome, StoreError> {
        self.rivals.write_first(&transaction, "").await;
        let outcome = self.inner.commit(transaction).await;
        self.rivals.note_answer(&outcome, "");
        outcome
    }
}

#[cfg(test)]
mod tests {
    use madako_store::{EtcdStore, StoreConfig};
    use time::macros::datetime;

    use super::*;
    use crate::clock::SimulatedClock;
    use crate::drains::Drains;
    use crate::network::{Endpoint, Network};

    #[test]
    fn a_family_is_known_by_its_key_or_its_prefix() {
        for (key, wanted) in [
            ("records", Some(keys::RECORD_ID)),
            ("records/0000000000000001", None),
            ("repairs/data/0000000000000001", Some(keys::REPAIRS)),
            ("/kubernetes/clusters/n/c", Some(CLUSTERS)),
            ("leader//1", None),
        ] {
            assert_eq!(key_family(key), wanted, "{key}");
        }
        assert_eq!(relative_key("", "/cke/records"), "records");
        assert_eq!(relative_key(PREFIX, "records"), "records");
    }

    #[test]
    fn rivals_write_keys_that_a_transaction_does_not_compare() {
        let put = |key: &str| Write::Put { key: key.to_owned(), value: "".into(), lease: 0 };
        let plan = Transaction { conditions: Vec::new(), writes: vec![put(keys::CLUSTER)] };
        let families: Vec<&str> =
            keys_and_values(&plan, PREFIX).into_iter().map(|(family, _)| family).collect();
        assert_eq!(families, [keys::CONSTRAINTS, keys::SABAKAN_DISABLED, keys::SABAKAN_TEMPLATE]);
        let entry = keys::repair(1);
        let change = Transaction { conditions: Vec::new(), writes: vec![put(&entry)] };
        assert_eq!(keys_and_values(&change, PREFIX), [(keys::REPAIRS, entry)]);
    }

    #[test]
    fn a_rival_changes_one_field_of_a_cluster() {
        let cluster =
            json!({"metadata": {"name": "c", "labels": {"zone": "a"}}, "status": {"state": "ONLINE"}});
        for draw in 0..6 {
            let (value, _) = edit_value(CLUSTERS, cluster.to_string().as_bytes(), 1, draw).unwrap();
            let after: Value = serde_json::from_slice(&value).unwrap();
            assert_eq!(after["metadata"]["name"], "c");
            assert!(after["status"]["state"] == "ONLINE" || after["metadata"]["labels"]["zone"] == "a");
        }
        let deleted = json!({"metadata": {"deleted": "2026-01-01T00:00:00Z"}});
        assert_eq!(edit_value(CLUSTERS, deleted.to_string().as_bytes(), 1, 0), None);
        assert_eq!(edit_value(keys::SABAKAN_TEMPLATE, b"{", 1, 0), None, "a broken template stays broken");
    }

    #[tokio::test(start_paused = true)]
    async fn a_transaction_that_meets_a_rival_is_refused_and_counted() {
        let store = StoreProcess::start_in_memory(1);
        let history = History::new();
        let clock = Arc::new(SimulatedClock::new(datetime!(2026-01-01 00:00 UTC)));
        let judge = RepairJudge::new(history.clone(), Drains::new(1, clock));
        let rivals = Rivals::new(store.clone(), judge, history, ChaCha8Rng::seed_from_u64(1));
        let link = Network::new(1).link(Endpoint::Instance(1), Endpoint::Store);
        let config = StoreConfig { prefix: PREFIX.to_owned(), ..StoreConfig::default() };
        let own = EtcdStore::with_connector(link.make_connector(store.clone()), &config, 1).unwrap();
        let contended = rivals.wrap_store(Arc::new(own), PREFIX);
        let transaction = |revision| Transaction {
            conditions: vec![Condition::Unchanged { key: keys::RECORD_ID.to_owned(), revision }],
            writes: vec![Write::Put { key: keys::RECORD_ID.to_owned(), value: "7".into(), lease: 0 }],
        };
        // At rest, rivals let every transaction pass.
        let Outcome::Committed { revision } = contended.commit(transaction(0)).await.unwrap() else {
            panic!()
        };
        assert!(rivals.count_refused_by_family().is_empty());
        rivals.start_writes(0.1);
        let refused = contended.commit(transaction(revision)).await.unwrap();
        assert!(matches!(refused, Outcome::Refused { .. }), "{refused:?}");
        assert_eq!(rivals.count_refused_by_family(), BTreeMap::from([(keys::RECORD_ID, 1)]));
        // A transaction soon after that meets no rival.
        let again = contended.commit(transaction(revision + 1)).await.unwrap();
        assert!(matches!(again, Outcome::Committed { .. }), "{again:?}");
    }
}
