//! Benchmark support: a client that writes to etcd as an operator does, and records when changes arrive.

use std::collections::BTreeMap;

use anyhow::Context as _;
use bytes::Bytes;
use madako_domain::cluster::Cluster;
use madako_domain::keys;
use madako_domain::store::{Entry, Outcome, Snapshot, Transaction, Write};
use madako_protocol::feed::Task;
use madako_protocol::store::{Store as _, WatchEvent};
use madako_store::{EtcdStore, StoreConfig};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};

use crate::processes::PATIENCE;

/// CKE's prefix.
const PREFIX: &str = "/cke/";

/// A change that arrived.
#[derive(Debug, Clone)]
pub(crate) struct TimedChange {
    pub(crate) at: Instant,
    pub(crate) key: String,
    /// `None`: deleted.
    pub(crate) entry: Option<Entry>,
}

impl TimedChange {
    /// The cluster, if its key changed.
    pub(crate) fn written_cluster(&self) -> Option<Cluster> {
        let entry = self.entry.as_ref().filter(|_| self.key == keys::CLUSTER)?;
        serde_json::from_slice(&entry.value).ok()
    }
}

/// Watches the keys that show the work of the service.
pub(crate) struct Witness {
    store: EtcdStore,
    seen: mpsc::UnboundedReceiver<TimedChange>,
    /// Commits of clusters since the watch began.
    pub(crate) commits: usize,
    leaders: BTreeMap<String, Entry>,
    cluster: Option<Cluster>,
    _watches: Vec<Task>,
}

impl Witness {
    /// Begins to watch a store, which may still be starting.
    pub(crate) async fn new(endpoint: &str) -> anyhow::Result<Self> {
        let settings = StoreConfig {
            endpoints: vec![endpoint.to_owned()],
            prefix: PREFIX.to_owned(),
            ..StoreConfig::default()
        };
        let answers = async {
            let mut store = EtcdStore::open(&settings, 1)?;
            while store.list("ready").await.is_err() {
                sleep(std::time::Duration::from_millis(5)).await;
                // A new client has no back-off from the failed attempt.
                store = EtcdStore::open(&settings, 1)?;
            }
            anyhow::Ok(store)
        };
        let store = timeout(PATIENCE, answers).await.context("the store does not answer")??;
        let (sender, seen) = mpsc::unbounded_channel();
        let watches = [keys::CLUSTER, keys::LEADER, keys::STATUS]
            .into_iter()
            .map(|key| {
                let (mut watch, sender) = (store.watch(key), sender.clone());
                Task::start(async move {
                    while let Some(event) = watch.recv().await {
                        let at = Instant::now();
                        for (key, entry) in changes_of(event) {
                            // An error means that the witness is gone, and this task ends with it.
                            let _ = sender.send(TimedChange { at, key, entry });
                        }
                    }
                })
            })
            .collect();
        Ok(Self { store, seen, commits: 0, leaders: BTreeMap::new(), cluster: None, _watches: watches })
    }

    /// Writes a key unconditionally.
    pub(crate) async fn put(&self, key: &str, value: impl Into<Bytes>) -> anyhow::Result<()> {
        self.write(Write::Put { key: key.to_owned(), value: value.into(), lease: 0 }).await
    }

    pub(crate) async fn delete(&self, key: &str) -> anyhow::Result<()> {
        self.write(Write::Delete { key: key.to_owned() }).await
    }

    async fn write(&self, write: Write) -> anyhow::Result<()> {
        let outcome = self.store.commit(Transaction { conditions: vec![], writes: vec![write] }).await?;
        anyhow::ensure!(
            matches!(outcome, Outcome::Committed { .. }),
            "a write without conditions is refused"
        );
        Ok(())
    }

    pub(crate) async fn list(&self) -> anyhow::Result<Snapshot> {
        Ok(self.store.list("").await?)
    }

    /// Waits for a matching change.
    pub(crate) async fn wait_for_change(
        &mut self,
        what: &str,
        mut is: impl FnMut(&Self, &TimedChange) -> bool,
    ) -> anyhow::Result<TimedChange> {
        let seen = async {
            loop {
                let seen = self.seen.recv().await.context("the watches ended")?;
                self.record_change(&seen);
                if is(self, &seen) {
                    return anyhow::Ok(seen);
                }
            }
        };
        timeout(PATIENCE, seen).await.with_context(|| format!("did not happen: {what}"))?
    }

    /// Waits for a cluster with this many workers.
    pub(crate) async fn wait_until_workers(&mut self, workers: usize) -> anyhow::Result<Instant> {
        let is = |seen: &TimedChange| {
            seen.written_cluster().is_some_and(|cluster| cluster.workers().count() == workers)
        };
        Ok(self.wait_for_change(&format!("{workers} workers"), |_, seen| is(seen)).await?.at)
    }

    /// Waits until the node with this address has a taint.
    pub(crate) async fn wait_until_tainted(&mut self, address: &str) -> anyhow::Result<Instant> {
        let is = |seen: &TimedChange| {
            let cluster = seen.written_cluster();
            let mut nodes = cluster.iter().flat_map(|cluster| &cluster.nodes);
            nodes.any(|node| {
                node.address == address && node.taints.iter().any(|taint| taint.value == "retiring")
            })
        };
        Ok(self.wait_for_change("a taint", |_, seen| is(seen)).await?.at)
    }

    /// Records the changes that have arrived.
    pub(crate) fn catch_up(&mut self) {
        while let Ok(seen) = self.seen.try_recv() {
            self.record_change(&seen);
        }
    }

    /// Key of the leader: the oldest of all candidates.
    pub(crate) fn leader(&self) -> Option<&str> {
        let oldest = self.leaders.iter().min_by_key(|(_, entry)| entry.create_revision);
        oldest.map(|(key, _)| key.as_str())
    }

    /// The last cluster that arrived.
    pub(crate) fn cluster(&self) -> anyhow::Result<&Cluster> {
        self.cluster.as_ref().context("there is no cluster")
    }

    /// The `place`th worker of the cluster without a taint.
    pub(crate) fn untainted_worker(&self, place: usize) -> anyhow::Result<String> {
        let good = self.cluster()?.workers().filter(|node| node.taints.is_empty());
        let good: Vec<&str> = good.map(|node| node.address.as_str()).collect();
        anyhow::ensure!(!good.is_empty(), "every worker is tainted");
        Ok(good[place % good.len()].to_owned())
    }

    fn record_change(&mut self, seen: &TimedChange) {
        if seen.key.starts_with(keys::LEADER) {
            match &seen.entry {
                Some(entry) => self.leaders.insert(seen.key.clone(), entry.clone()),
                None => self.leaders.remove(&seen.key),
            };
        } else if let Some(cluster) = seen.written_cluster() {
            self.commits += 1;
            self.cluster = Some(cluster);
        }
    }
}

fn changes_of(event: WatchEvent) -> Vec<(String, Option<Entry>)> {
    match event {
        WatchEvent::Listed(snapshot) => {
            snapshot.entries.into_iter().map(|(key, entry)| (key, Some(entry))).collect()
        }
        WatchEvent::Changed { changes, .. } => {
            changes.into_iter().map(|change| (change.key, change.entry)).collect()
        }
        WatchEvent::Interrupted(_) => Vec::new(),
    }
}
