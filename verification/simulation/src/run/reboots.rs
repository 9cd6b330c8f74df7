//! Reboots: operators request, cancel and hold them as `ckecli reboot-queue` does. While a control plane node reboots,
//! operators request repairs of control plane nodes. The service carries the reboots out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use etcd_client::{Error, GetOptions, Txn, TxnOp};
use madako_datacenter_sim::nodes::{NodeFault, NodePlace, SimulatedNodes};
use madako_domain::cluster::Cluster;
use madako_domain::keys;
use madako_domain::reboot::{RebootQueueEntry, RebootStatus};
use madako_domain::record::Record;
use madako_domain::repair::change::MAX_RECORDS;
use madako_domain::store::Entry;
use madako_judges::workload::{GuardedPuts, ReadKey};
use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;
use time::OffsetDateTime;
use tokio::sync::watch;

use super::seeded_generator;
use super::simulated_clients::{CallCounts, wait_for_next};
use crate::cancels::Cancels;
use crate::history::History;
use crate::queue_user::QueueUser;
use crate::repair::{RepairJudge, entry_of};
use crate::store_process::StoreProcess;
use crate::world::{CommandHosts, PREFIX, World};

/// Number of old records of CKE: more than Madako keeps, by more than one.
const LEFT: usize = MAX_RECORDS + 50;

/// Maximum operations of a transaction: etcd takes 128.
const MOST: usize = 100;

fn absolute_key(key: &str) -> String {
    format!("{PREFIX}{key}")
}

fn encode_reboot_record(id: i64, operation: &str) -> Vec<u8> {
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
                TxnOp::put(
                    absolute_key(&keys::record(*id)),
                    encode_reboot_record(*id, "kubelet-restart"),
                    None,
                )
            })
            .collect();
        let last = some.last().copied().unwrap_or_default();
        puts.push(TxnOp::put(absolute_key(keys::RECORD_ID), (last + 1).to_string(), None));
        let done = store.operator_client().await?.txn(Txn::new().and_then(puts)).await?;
        judge.note_user_write(done.header().map_or(0, |header| header.revision()), None);
    }
    Ok(())
}

/// Acts of the operators until one of them also cancels at the worst moment: many reboots are whole before.
const UNTIL_CANCELS: u64 = 40;

/// Maximum number of unfinished entries: above it, operators cancel.
const FULL: usize = 6;

/// Lets a rebooted machine be away until it has booted: from the network of the nodes and from Kubernetes.
pub fn reboot_machines(hosts: &CommandHosts, nodes: Option<SimulatedNodes>) {
    let kubernetes = hosts.kubernetes.clone();
    hosts.host.watch_reboots(Arc::new(move |address, boot| {
        let (kubernetes, nodes, address) = (kubernetes.clone(), nodes.clone(), address.to_owned());
        tokio::spawn(async move {
            let place = NodePlace::Address(address.clone());
            kubernetes.with_cluster(|cluster| cluster.set_ready(&address, false));
            if let Some(nodes) = &nodes {
                nodes.note_reboot(&address);
                nodes.begin(&place, NodeFault::Kill);
            }
            boot.await;
            if let Some(nodes) = &nodes {
                nodes.end(&place, NodeFault::Kill);
            }
            kubernetes.with_cluster(|cluster| cluster.set_ready(&address, true));
        });
    }));
}

/// The operators that request reboots.
pub(super) struct RebootClients {
    store: StoreProcess,
    judge: RepairJudge,
    queue: QueueUser,
    history: History,
    chance: ChaCha8Rng,
    /// Cancels at the worst moment.
    cancels: Option<Cancels>,
    /// Keys of reboots beside which they asked for repairs.
    asked_beside: BTreeSet<String>,
    pub(super) calls: CallCounts,
}

/// All stored keys of cluster keeping.
type Stored = BTreeMap<String, Entry>;

impl RebootClients {
    /// `None`: this world has no repairs.
    pub(super) fn new(seed: u64, world: &World) -> Option<Self> {
        let judge = world.hosts.as_ref()?.judge.clone();
        let queue = QueueUser::new(
            world.store.clone(),
            world.registry.clone(),
            judge.clone(),
            seeded_generator(seed, 15),
        );
        let (store, history) = (world.store.clone(), world.history.clone());
        Some(Self {
            store,
            judge,
            queue,
            history,
            chance: seeded_generator(seed, 16),
            cancels: world.cancels.clone(),
            asked_beside: BTreeSet::new(),
            calls: CallCounts::default(),
        })
    }

    /// Works until `stop` is true, and then enables the queue and cancels all reboots.
    pub(super) async fn run_until_stopped(mut self, rate: f64, mut stop: watch::Receiver<bool>) -> Self {
        while wait_for_next(rate, &mut self.chance, &mut stop).await {
            self.calls.made += 1;
            if let Some(cancels) = self.cancels.as_ref().filter(|_| self.calls.made == UNTIL_CANCELS) {
                cancels.start();
            }
            let done = self.continue_or_request_reboot().await.map_err(|error| error.to_string());
            self.calls.failed += u64::from(done.is_err());
            self.history.note("reboots", done.unwrap_or_else(|error| format!("in vain: {error}")));
        }
        if let Some(cancels) = &self.cancels {
            cancels.stop();
        }
        if let Err(error) = self.cancel_all().await {
            self.history.note("reboots", format!("cancels nothing: {error}"));
        }
        self
    }

    async fn read_stored(&self) -> Result<Stored, Error> {
        let answer =
            self.store.operator_client().await?.get(PREFIX, Some(GetOptions::new().with_prefix())).await?;
        let entry = |kv: &etcd_client::KeyValue| {
            Some((kv.key_str().ok()?.strip_prefix(PREFIX)?.to_owned(), entry_of(kv)))
        };
        Ok(answer.kvs().iter().filter_map(entry).collect())
    }

    async fn continue_or_request_reboot(&mut self) -> Result<String, Error> {
        let stored = self.read_stored().await?;
        let cluster = stored.get(keys::CLUSTER).and_then(|entry| serde_json::from_slice(&entry.value).ok());
        let Some(cluster): Option<Cluster> = cluster else { return Ok("finds no cluster".to_owned()) };
        let entries = decode_entries(&stored);
        let is_disabled = stored.get(keys::REBOOTS_DISABLED).is_some_and(|entry| entry.value == "true");
        if is_disabled {
            self.set_disabled(false).await?;
            return Ok("enables the queue".to_owned());
        }
        let is_control_plane = |node: &str| cluster.control_plane().any(|known| known.address == node);
        let under_way = |entry: &RebootQueueEntry| {
            matches!(entry.status, RebootStatus::Draining | RebootStatus::Rebooting)
        };
        let reboot = entries.iter().find(|(_, _, entry)| under_way(entry) && is_control_plane(&entry.node));
        // Once for each reboot: a boot may hang for long.
        if reboot.is_some_and(|(key, ..)| self.asked_beside.insert(key.clone())) {
            let request = self.queue.add_control_plane().await?;
            return Ok(format!("a control plane node reboots; {request}"));
        }
        match self.chance.random_range(0..12_u32) {
            0 => {
                self.set_disabled(true).await?;
                Ok("disables the queue".to_owned())
            }
            1 | 2 => self.cancel(&entries).await,
            _ if entries.len() >= FULL => self.cancel(&entries).await,
            _ => self.ask(&stored, &cluster).await,
        }
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
        let counter = keys::REBOOTS_WRITE_INDEX;
        let counter = ReadKey::of_entry(&absolute_key(counter), stored.get(counter));
        let entry = |index| RebootQueueEntry { index, ..RebootQueueEntry::new(node) };
        let added = counter.take_number(0, |index| {
            Some((absolute_key(&keys::reboot(index)), serde_json::to_vec(&entry(index)).ok()?))
        });
        let (_, writes) = added.expect("the counter has a number, and an entry is JSON");
        let done = self.write(writes.into()).await?;
        Ok(format!("asks for a reboot of {node}: {done}"))
    }

    /// Cancels an entry as `ckecli reboot-queue cancel` does: it writes over the entry that it has read.
    async fn cancel(&mut self, entries: &[(String, i64, RebootQueueEntry)]) -> Result<String, Error> {
        if entries.is_empty() {
            return Ok("finds nothing to cancel".to_owned());
        }
        let (key, revision, entry) = &entries[self.chance.random_range(0..entries.len())];
        let cancelled = RebootQueueEntry { status: RebootStatus::Cancelled, ..entry.clone() };
        let value = serde_json::to_vec(&cancelled).expect("an entry is JSON");
        let done = self.write(GuardedPuts::replace(absolute_key(key), *revision, value).into()).await?;
        Ok(format!("cancels the reboot of {} ({}): {done}", entry.node, entry.status))
    }

    async fn set_disabled(&self, disabled: bool) -> Result<(), Error> {
        let put = TxnOp::put(absolute_key(keys::REBOOTS_DISABLED), disabled.to_string(), None);
        self.write(Txn::new().and_then([put])).await.map(drop)
    }

    async fn cancel_all(&mut self) -> Result<(), Error> {
        self.set_disabled(false).await?;
        loop {
            let stored = self.read_stored().await?;
            let open: Vec<_> = decode_entries(&stored)
                .into_iter()
                .filter(|(_, _, entry)| entry.status != RebootStatus::Cancelled)
                .collect();
            if open.is_empty() {
                return Ok(());
            }
            self.cancel(&open).await?;
        }
    }

    async fn write(&self, txn: Txn) -> Result<bool, Error> {
        let done = self.store.operator_client().await?.txn(txn).await?;
        if done.succeeded() {
            self.judge.note_user_write(done.header().map_or(0, |header| header.revision()), None);
        }
        Ok(done.succeeded())
    }
}

/// Key, revision and value of each readable entry.
fn decode_entries(stored: &Stored) -> Vec<(String, i64, RebootQueueEntry)> {
    let below = stored.iter().filter(|(key, _)| key.starts_with(keys::REBOOTS));
    let read = |(key, entry): (&String, &Entry)| {
        Some((key.clone(), entry.mod_revision, serde_json::from_slice(&entry.value).ok()?))
    };
    below.filter_map(read).collect()
}
