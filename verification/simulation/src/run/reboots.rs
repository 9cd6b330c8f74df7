//! Simulated reboots: operators request them as `ckecli reboot-queue add` does, and a simulated CKE carries them out,
//! because Madako does not do that yet. While a control plane node reboots, operators request repairs of control plane
//! nodes.
//!
//! Guarantees: the reboot of a control plane node does not begin during the repair or reboot of another one: its
//! transaction compares the counter of records, which the beginning of each repair changes.

use std::collections::BTreeMap;

use etcd_client::{Compare, CompareOp, Error, GetOptions, Txn, TxnOp};
use madako_domain::cluster::Cluster;
use madako_domain::invariants::repair::one_api_server;
use madako_domain::keys;
use madako_domain::reboot::{RebootQueueEntry, RebootStatus};
use madako_domain::record::Record;
use madako_domain::repair::change::MAX_RECORDS;
use madako_domain::repair::queue::RepairQueue;
use madako_domain::store::Entry;
use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;
use time::OffsetDateTime;
use tokio::sync::watch;

use super::generator;
use super::people::{Calls, wait_for_next};
use crate::history::History;
use crate::queue_user::QueueUser;
use crate::repair::{RepairJudge, entry_of};
use crate::store_process::StoreProcess;
use crate::world::{PREFIX, World};

/// Number of old records of CKE: more than Madako keeps, by more than one.
const LEFT: usize = MAX_RECORDS + 50;

/// Maximum operations of a transaction: etcd takes 128.
const MOST: usize = 100;

fn absolute_key(key: &str) -> String {
    format!("{PREFIX}{key}")
}

fn reboot_record(id: i64, operation: &str) -> Vec<u8> {
    let at = OffsetDateTime::UNIX_EPOCH;
    let mut record = Record::new(id, operation, Vec::new(), at);
    record.complete(at);
    serde_json::to_vec(&record).expect("a record is JSON")
}

/// Writes the old records of CKE.
///
/// # Errors
/// The store refuses them.
pub(super) async fn leave_records(store: &StoreProcess, judge: &RepairJudge) -> Result<(), Error> {
    let ids: Vec<i64> = (1..).take(LEFT).collect();
    for some in ids.chunks(MOST) {
        let mut puts: Vec<TxnOp> = some
            .iter()
            .map(|id| {
                TxnOp::put(absolute_key(&keys::record(*id)), reboot_record(*id, "kubelet-restart"), None)
            })
            .collect();
        let last = some.last().copied().unwrap_or_default();
        puts.push(TxnOp::put(absolute_key(keys::RECORD_ID), (last + 1).to_string(), None));
        let done = store.operator_client().await?.txn(Txn::new().and_then(puts)).await?;
        judge.user_wrote(done.header().map_or(0, |header| header.revision()), None);
    }
    Ok(())
}

/// The operators that request reboots, and the simulated CKE.
pub(super) struct OfReboots {
    store: StoreProcess,
    judge: RepairJudge,
    queue: QueueUser,
    history: History,
    chance: ChaCha8Rng,
    pub(super) calls: Calls,
}

/// All stored keys of cluster keeping.
type Stored = BTreeMap<String, Entry>;

impl OfReboots {
    /// `None`: this world has no repairs.
    pub(super) fn new(seed: u64, world: &World) -> Option<Self> {
        let judge = world.hosts.as_ref()?.judge.clone();
        let queue =
            QueueUser::new(world.store.clone(), world.registry.clone(), judge.clone(), generator(seed, 15));
        let (store, history) = (world.store.clone(), world.history.clone());
        Some(Self { store, judge, queue, history, chance: generator(seed, 16), calls: Calls::default() })
    }

    /// Works until `stop` is true, and then deletes all reboots.
    pub(super) async fn work(mut self, rate: f64, mut stop: watch::Receiver<bool>) -> Self {
        while wait_for_next(rate, &mut self.chance, &mut stop).await {
            self.calls.made += 1;
            let done = self.act().await.map_err(|error| error.to_string());
            self.calls.failed += u64::from(done.is_err());
            self.history.note("reboots", done.unwrap_or_else(|error| format!("in vain: {error}")));
        }
        let prefix = Some(etcd_client::DeleteOptions::new().with_prefix());
        let deleted = self.store.next_client().await.delete(absolute_key(keys::REBOOTS), prefix).await;
        if let Ok(deleted) = deleted {
            self.judge.user_wrote(deleted.header().map_or(0, |header| header.revision()), None);
        }
        self
    }

    async fn stored(&self) -> Result<Stored, Error> {
        let answer =
            self.store.operator_client().await?.get(PREFIX, Some(GetOptions::new().with_prefix())).await?;
        let entry = |kv: &etcd_client::KeyValue| {
            Some((kv.key_str().ok()?.strip_prefix(PREFIX)?.to_owned(), entry_of(kv)))
        };
        Ok(answer.kvs().iter().filter_map(entry).collect())
    }

    /// Continues the first reboot, or requests one.
    async fn act(&mut self) -> Result<String, Error> {
        let stored = self.stored().await?;
        let cluster = stored.get(keys::CLUSTER).and_then(|entry| serde_json::from_slice(&entry.value).ok());
        let Some(cluster): Option<Cluster> = cluster else { return Ok("finds no cluster".to_owned()) };
        let first = stored.iter().find(|(key, _)| key.starts_with(keys::REBOOTS));
        let Some((key, entry)) = first.map(|(key, entry)| (key.as_str(), entry)) else {
            return self.ask(&stored, &cluster).await;
        };
        let Ok(mut reboot) = serde_json::from_slice::<RebootQueueEntry>(&entry.value) else {
            return Ok(format!("cannot read {key}"));
        };
        let (operation, next) = match reboot.status {
            RebootStatus::Queued => ("reboot-drain-start", Some(RebootStatus::Draining)),
            RebootStatus::Draining => ("reboot-reboot", Some(RebootStatus::Rebooting)),
            _ => ("reboot-dequeue", None),
        };
        let begins = reboot.status == RebootStatus::Queued;
        let node = reboot.node.clone();
        let put = next.map(|next| {
            reboot.status = next;
            serde_json::to_vec(&reboot).expect("an entry is JSON")
        });
        if begins && put.as_ref().is_some_and(|put| is_too_many(&stored, &cluster, key, put)) {
            return Ok(format!("{node} waits with its reboot"));
        }
        let done = self.operates(&stored, (key, entry), put, operation).await?;
        if !(done && begins && cluster.control_plane().any(|other| other.address == node)) {
            return Ok(format!("{operation} of {node}: {done}"));
        }
        let asked = self.queue.add_control_plane().await?;
        Ok(format!("{operation} of {node}, a control plane node; {asked}"))
    }

    /// Writes the next record and the changed entry, as CKE does. Returns false if another record was registered since
    /// the read.
    async fn operates(
        &mut self,
        stored: &Stored,
        (key, entry): (&str, &Entry),
        put: Option<Vec<u8>>,
        operation: &str,
    ) -> Result<bool, Error> {
        let (id, revision) = read_number(stored, keys::RECORD_ID, 1);
        let unchanged = [(keys::RECORD_ID, revision), (key, entry.mod_revision)]
            .map(|(key, revision)| Compare::mod_revision(absolute_key(key), CompareOp::Equal, revision));
        let writes = [
            put.map_or_else(
                || TxnOp::delete(absolute_key(key), None),
                |put| TxnOp::put(absolute_key(key), put, None),
            ),
            TxnOp::put(absolute_key(&keys::record(id)), reboot_record(id, operation), None),
            TxnOp::put(absolute_key(keys::RECORD_ID), (id + 1).to_string(), None),
        ];
        self.write(Txn::new().when(unchanged).and_then(writes)).await
    }

    /// Requests a reboot as `ckecli reboot-queue add` does: in three cases of four, of a control plane node.
    async fn ask(&mut self, stored: &Stored, cluster: &Cluster) -> Result<String, Error> {
        let control_plane = self.chance.random_range(0..4_u32) > 0;
        let nodes: Vec<&str> = cluster
            .nodes
            .iter()
            .filter(|node| node.control_plane == control_plane)
            .map(|node| node.address.as_str())
            .collect();
        if nodes.is_empty() {
            return Ok("finds no node".to_owned());
        }
        let node = nodes[self.chance.random_range(0..nodes.len())];
        let (index, revision) = read_number(stored, keys::REBOOTS_WRITE_INDEX, 0);
        let entry = RebootQueueEntry { index, ..RebootQueueEntry::new(node) };
        let entry = serde_json::to_vec(&entry).expect("an entry is JSON");
        let unchanged =
            Compare::mod_revision(absolute_key(keys::REBOOTS_WRITE_INDEX), CompareOp::Equal, revision);
        let puts = [
            TxnOp::put(absolute_key(keys::REBOOTS_WRITE_INDEX), (index + 1).to_string(), None),
            TxnOp::put(absolute_key(&keys::reboot(index)), entry, None),
        ];
        let done = self.write(Txn::new().when([unchanged]).and_then(puts)).await?;
        Ok(format!("asks for a reboot of {node}: {done}"))
    }

    async fn write(&self, txn: Txn) -> Result<bool, Error> {
        let done = self.store.operator_client().await?.txn(txn).await?;
        if done.succeeded() {
            self.judge.user_wrote(done.header().map_or(0, |header| header.revision()), None);
        }
        Ok(done.succeeded())
    }
}

/// The number at a counter and its revision; `first` and 0 if the counter is absent.
fn read_number(stored: &Stored, counter: &str, first: i64) -> (i64, i64) {
    let known = stored.get(counter).and_then(|entry| {
        let number = std::str::from_utf8(&entry.value).ok()?.parse().ok()?;
        Some((number, entry.mod_revision))
    });
    known.unwrap_or((first, 0))
}

/// True if this value of an entry would make two control plane nodes drained, rebooting or under repair at once.
fn is_too_many(stored: &Stored, cluster: &Cluster, key: &str, put: &[u8]) -> bool {
    let mut after = stored.clone();
    if let Some(entry) = after.get_mut(key) {
        entry.value = put.to_vec().into();
    }
    let queue = RepairQueue::decode(&after, None, &mut Vec::new());
    one_api_server(&queue, Some(cluster)).is_some()
}
