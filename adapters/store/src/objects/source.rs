//! What the cache needs of the store.

use std::time::Duration;

use async_trait::async_trait;
use madako_domain::store::{Outcome, StoreError, Transaction};
use tokio::sync::mpsc;

use crate::sealing::Sealing;
use crate::store::EtcdStore;
use crate::watch::{Interest, Seen};

/// The store at its root.
#[async_trait]
pub(super) trait Source: Send + Sync + 'static {
    /// One watch of the whole store, which tells of every revision.
    fn watch(&self, interest: Interest) -> mpsc::Receiver<Seen>;

    /// The store's revision now, linearizably.
    async fn revision(&self) -> Result<i64, StoreError>;

    /// One transaction.
    async fn commit(&self, transaction: Transaction) -> Result<Outcome, StoreError>;

    /// How secrets are kept.
    fn sealing(&self) -> Sealing;

    /// Several transactions in one request, each by its own conditions. No two touch the same key.
    async fn commit_together(&self, transactions: Vec<Transaction>) -> Result<Vec<Outcome>, StoreError>;

    /// How long a reader waits at most.
    fn deadline(&self) -> Duration;
}

#[async_trait]
impl Source for EtcdStore {
    fn watch(&self, interest: Interest) -> mpsc::Receiver<Seen> {
        self.watch_every_revision(interest)
    }

    async fn revision(&self) -> Result<i64, StoreError> {
        Self::revision(self).await
    }

    async fn commit(&self, transaction: Transaction) -> Result<Outcome, StoreError> {
        madako_protocol::store::Store::commit(self, transaction).await
    }

    fn sealing(&self) -> Sealing {
        Self::sealing(self).clone()
    }

    async fn commit_together(&self, transactions: Vec<Transaction>) -> Result<Vec<Outcome>, StoreError> {
        Self::commit_together(self, transactions).await
    }

    fn deadline(&self) -> Duration {
        Self::deadline(self)
    }
}
