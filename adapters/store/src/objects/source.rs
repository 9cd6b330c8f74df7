//! The requests of the resource cache to etcd, as a trait that tests replace.

use std::time::Duration;

use async_trait::async_trait;
use madako_domain::store::{Outcome, StoreError, Transaction};
use tokio::sync::mpsc;

use crate::encryption::Encryption;
use crate::store::EtcdStore;
use crate::watch::{FeedEvent, WatchedKeys};

#[async_trait]
pub(super) trait Source: Send + Sync + 'static {
    /// One watch of the whole store, with every revision.
    fn watch(&self, interest: WatchedKeys) -> mpsc::Receiver<FeedEvent>;

    /// The store's present revision, read linearizably.
    async fn revision(&self) -> Result<i64, StoreError>;

    async fn commit(&self, transaction: Transaction) -> Result<Outcome, StoreError>;

    fn encryption(&self) -> Encryption;

    /// Several transactions in one request, each with its own conditions. No two touch the same key.
    async fn commit_together(&self, transactions: Vec<Transaction>) -> Result<Vec<Outcome>, StoreError>;

    /// Upper bound of a reader's wait.
    fn deadline(&self) -> Duration;
}

#[async_trait]
impl Source for EtcdStore {
    fn watch(&self, interest: WatchedKeys) -> mpsc::Receiver<FeedEvent> {
        self.watch_every_revision(interest)
    }

    async fn revision(&self) -> Result<i64, StoreError> {
        Self::revision(self).await
    }

    async fn commit(&self, transaction: Transaction) -> Result<Outcome, StoreError> {
        madako_protocol::store::Store::commit(self, transaction).await
    }

    fn encryption(&self) -> Encryption {
        Self::encryption(self).clone()
    }

    async fn commit_together(&self, transactions: Vec<Transaction>) -> Result<Vec<Outcome>, StoreError> {
        Self::commit_together(self, transactions).await
    }

    fn deadline(&self) -> Duration {
        Self::deadline(self)
    }
}
