//! Cancels of a simulated operator between the read of an instance and its transaction.
//!
//! For: the moment that shows whether a transaction compares the entry on which it was decided. Only the end of a drain is
//! such a moment: a transaction that begins a drain compares both queues as a whole.
//!
//! Guarantees: the cancel is one that `ckecli reboot-queue cancel` sends. It compares the entry that the operator has read, and
//! is durable before the instance sends its transaction.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use madako_domain::keys;
use madako_domain::reboot::{RebootQueueEntry, RebootStatus};
use madako_domain::store::{Epoch, Outcome, Snapshot, StoreError, Transaction, Write};
use madako_judges::workload::ReadKey;
use madako_protocol::store::{Campaign, CampaignOptions, Store, WatchEvent};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::history::History;
use crate::repair::RepairJudge;
use crate::store_process::StoreProcess;
use crate::world::PREFIX;

/// Time between two cancels: most reboots go on.
const PAUSE: Duration = Duration::from_secs(300);

struct CancelsState {
    store: StoreProcess,
    judge: RepairJudge,
    history: History,
    /// Earliest time of the next cancel; `None`: the operator rests.
    next: Mutex<Option<Instant>>,
}

/// The operator, for all instances. Clones share their state.
#[derive(Clone)]
pub struct Cancels(Arc<CancelsState>);

impl Cancels {
    #[must_use]
    pub fn new(store: StoreProcess, judge: RepairJudge, history: History) -> Self {
        Self(Arc::new(CancelsState { store, judge, history, next: Mutex::default() }))
    }

    pub fn start(&self) {
        self.0.next.lock().unwrap().get_or_insert(Instant::now());
    }

    pub fn stop(&self) {
        *self.0.next.lock().unwrap() = None;
    }

    /// A store whose transactions meet the operator.
    #[must_use]
    pub fn wrap_store(&self, inner: Arc<dyn Store>) -> Arc<dyn Store> {
        Arc::new(CancelledStore { inner, cancels: self.clone() })
    }

    /// Cancels the reboot whose drain ends with the transaction.
    async fn cancel_first(&self, transaction: &Transaction) {
        if self.0.next.lock().unwrap().is_none_or(|next| next > Instant::now()) {
            return;
        }
        let entries = transaction.writes.iter().filter_map(|write| match write {
            Write::Put { key, .. } if key.starts_with(keys::REBOOTS) => Some(key),
            _ => None,
        });
        for key in entries {
            if let Some(node) = self.cancel(key).await {
                // It may have been stopped meanwhile.
                if let Some(next) = &mut *self.0.next.lock().unwrap() {
                    *next = Instant::now() + PAUSE;
                }
                self.0.history.note("reboots", format_args!("cancels the reboot of {node} before a write"));
            }
        }
    }

    /// Cancels an entry that is drained, and returns its node; `None` if there is none or the store does not run.
    async fn cancel(&self, key: &str) -> Option<String> {
        let mut client = self.0.store.connect_client().await?;
        let key = format!("{PREFIX}{key}");
        let answer = client.get(key, None).await.ok()?;
        let kv = answer.kvs().first()?;
        let mut entry: RebootQueueEntry = serde_json::from_slice(kv.value()).ok()?;
        if entry.status != RebootStatus::Draining {
            return None;
        }
        entry.status = RebootStatus::Cancelled;
        let write = ReadKey::from(kv).replace_with(serde_json::to_vec(&entry).ok()?);
        let done = client.txn(write.into()).await.ok()?;
        if !done.succeeded() {
            return None;
        }
        self.0.judge.note_user_write(done.header()?.revision(), None);
        Some(entry.node)
    }
}

struct CancelledStore {
    inner: Arc<dyn Store>,
    cancels: Cancels,
}

#[async_trait]
impl Store for CancelledStore {
    async fn list(&self, prefix: &str) -> Result<Snapshot, StoreError> {
        self.inner.list(prefix).await
    }

    async fn commit(&self, transaction: Transaction) -> Result<Outcome, StoreError> {
        self.cancels.cancel_first(&transaction).await;
        self.inner.commit(transaction).await
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

#[cfg(test)]
mod tests {
    use madako_domain::store::Condition;
    use madako_store::{EtcdStore, StoreConfig};
    use time::macros::datetime;

    use super::*;
    use crate::clock::SimulatedClock;
    use crate::drains::Drains;
    use crate::network::{Endpoint, Network};

    #[tokio::test(start_paused = true)]
    async fn a_drain_that_ends_is_cancelled_before_the_write_of_its_end() {
        let store = StoreProcess::start_in_memory(1);
        let history = History::new();
        let clock = Arc::new(SimulatedClock::new(datetime!(2026-01-01 00:00 UTC)));
        let judge = RepairJudge::new(history.clone(), Drains::new(1, clock));
        let cancels = Cancels::new(store.clone(), judge, history);
        let link = Network::new(1).link(Endpoint::Instance(1), Endpoint::Store);
        let config = StoreConfig { prefix: PREFIX.to_owned(), ..StoreConfig::default() };
        let own = EtcdStore::with_connector(link.make_connector(store.clone()), &config, 1).unwrap();
        let contended = cancels.wrap_store(Arc::new(own));
        let key = keys::reboot(0);
        let write = |status: RebootStatus, compared: Option<i64>| {
            let entry = RebootQueueEntry { status, ..RebootQueueEntry::new("n") };
            let value = serde_json::to_string(&entry).unwrap().into();
            Transaction {
                conditions: compared
                    .map(|revision| Condition::Unchanged { key: key.clone(), revision })
                    .into_iter()
                    .collect(),
                writes: vec![Write::Put { key: key.clone(), value, lease: 0 }],
            }
        };
        let commit = async |transaction| contended.commit(transaction).await.unwrap();
        let Outcome::Committed { revision } = commit(write(RebootStatus::Draining, None)).await else {
            panic!()
        };
        cancels.start();
        // A transaction that compares the entry is refused.
        let refused = commit(write(RebootStatus::Rebooting, Some(revision))).await;
        assert!(matches!(refused, Outcome::Refused { .. }), "{refused:?}");
        // The next cancel comes later.
        commit(write(RebootStatus::Draining, None)).await;
        let undisturbed = commit(write(RebootStatus::Draining, None)).await;
        assert!(matches!(undisturbed, Outcome::Committed { .. }), "{undisturbed:?}");
        tokio::time::advance(PAUSE).await;
        // One that compares nothing writes over the cancel.
        let overwritten = commit(write(RebootStatus::Rebooting, None)).await;
        assert!(matches!(overwritten, Outcome::Committed { .. }), "{overwritten:?}");
        let status = async || {
            let entries = contended.list(keys::REBOOTS).await.unwrap().entries;
            let text = entries.values().next().unwrap().value.to_vec();
            serde_json::from_slice::<RebootQueueEntry>(&text).unwrap().status
        };
        assert_eq!(status().await, RebootStatus::Rebooting);
    }
}
