//! Preparation of a new leader before its reign begins: it cancels the unfinished operations of an earlier leader
//! instead of continuing them.

use madako_domain::keys;
use madako_domain::settings::Settings;
use madako_domain::state::Fault;
use madako_domain::status::OperationPhase;
use madako_domain::store::{Epoch, Outcome, Transaction};
use madako_protocol::actors::CommitError;
use madako_protocol::event::Event;

use crate::actor::LeaderArguments;
use crate::transaction::{
    UnfinishedRecord, find_unfinished_record, settings_transaction, status_transaction, url_transaction,
};

pub(crate) enum PreparedTransaction {
    Ready {
        /// The status was written, because there is a cluster.
        with_status: bool,
    },
    Deposed,
}

/// Marks an orphaned record cancelled, writes the leader's settings if the stored ones differ, and writes the status
/// if there is a cluster.
pub(crate) async fn prepare_epoch(
    given: &LeaderArguments,
    epoch: &Epoch,
) -> Result<PreparedTransaction, CommitError> {
    loop {
        let records = given.store.list(keys::RECORDS).await.map_err(CommitError::Store)?;
        let (id, transaction) = match find_unfinished_record(&records, epoch, given.clock.now())? {
            UnfinishedRecord::None => break,
            UnfinishedRecord::Unreadable { key, why } => {
                given.events.emit(Event::StateFaults { faults: vec![Fault { key, why }] });
                break;
            }
            UnfinishedRecord::Cancel { id, transaction } => (id, transaction),
        };
        match commit_fenced(given, epoch, transaction).await? {
            FencedOutcome::Committed => {
                given.events.emit(Event::RecordCancelled { id });
            }
            FencedOutcome::Deposed => return Ok(PreparedTransaction::Deposed),
            // Another client wrote the record in the meantime: read it again.
            FencedOutcome::Conflict => {}
        }
    }
    if store_settings(given).await?.as_ref() != Some(&given.settings) {
        let transaction = settings_transaction(epoch, &given.settings)?;
        if let FencedOutcome::Deposed = commit_fenced(given, epoch, transaction).await? {
            return Ok(PreparedTransaction::Deposed);
        }
    }
    if !given.url.is_empty()
        && let FencedOutcome::Deposed =
            commit_fenced(given, epoch, url_transaction(epoch, &given.url)).await?
    {
        return Ok(PreparedTransaction::Deposed);
    }
    let clusters = given.store.list(keys::CLUSTER).await.map_err(CommitError::Store)?;
    let with_status = clusters.entries.contains_key(keys::CLUSTER);
    if with_status {
        let transaction = status_transaction(epoch, &OperationPhase::Completed, given.clock.now())?;
        if let FencedOutcome::Deposed = commit_fenced(given, epoch, transaction).await? {
            return Ok(PreparedTransaction::Deposed);
        }
    }
    Ok(PreparedTransaction::Ready { with_status })
}

/// Stored settings; `None`: missing or unreadable.
async fn store_settings(given: &LeaderArguments) -> Result<Option<Settings>, CommitError> {
    let stored = given.store.list(keys::SETTINGS).await.map_err(CommitError::Store)?;
    let entry = stored.entries.get(keys::SETTINGS);
    Ok(entry.and_then(|entry| serde_json::from_slice(&entry.value).ok()))
}

enum FencedOutcome {
    Committed,
    Deposed,
    Conflict,
}

async fn commit_fenced(
    given: &LeaderArguments,
    epoch: &Epoch,
    transaction: Transaction,
) -> Result<FencedOutcome, CommitError> {
    Ok(match given.store.commit(transaction).await.map_err(CommitError::Store)? {
        Outcome::Committed { .. } => FencedOutcome::Committed,
        Outcome::Refused { failed } if failed.contains(&epoch.fencing_condition()) => FencedOutcome::Deposed,
        Outcome::Refused { .. } => FencedOutcome::Conflict,
    })
}
