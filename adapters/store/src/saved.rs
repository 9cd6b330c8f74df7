//! Saves a snapshot of the whole store, in etcd's own format.

use std::io;

use madako_domain::store::{StoreError, StoreErrorKind};
use tokio::time::timeout;

use crate::connections::Failed;
use crate::error::store_error;
use crate::limits::SNAPSHOT_PART_DEADLINE;
use crate::store::EtcdStore;
use crate::telemetry::Operation;

#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("cannot write the snapshot of etcd to the output file")]
    Write(#[source] io::Error),
}

impl EtcdStore {
    /// Passes a snapshot to `take` part by part: every key of the store, regardless of the prefix, and a SHA-256 at the
    /// end.
    pub async fn save(&self, mut take: impl FnMut(&[u8]) -> io::Result<()>) -> Result<(), SaveError> {
        const SNAPSHOT: Operation = Operation::Snapshot;
        let connections = self.connections();
        let begun = connections.send_request(SNAPSHOT, "", connections.timeout(), |connection| async move {
            connection.maintenance_client().snapshot().await
        });
        let mut parts = begun.await.map_err(|Failed { error, .. }| error)?;
        loop {
            let Ok(part) = timeout(SNAPSHOT_PART_DEADLINE, parts.message()).await else {
                let why = format!(
                    "no part of the snapshot within {SNAPSHOT_PART_DEADLINE:?}, from {}",
                    self.endpoint()
                );
                let (operation, kind) = (SNAPSHOT.describe_on(""), StoreErrorKind::Deadline);
                return Err(StoreError { operation, kind, why }.into());
            };
            match part.map_err(|error| store_error(SNAPSHOT, "", self.endpoint(), &error))? {
                Some(part) => take(part.blob()).map_err(SaveError::Write)?,
                None => return Ok(()),
            }
        }
    }
}
