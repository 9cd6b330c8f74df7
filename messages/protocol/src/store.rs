//! The store port: etcd below one prefix, as far as actors need it.
//!
//! Reads are linearizable. A deposed leader's transaction fails in etcd, because it compares the leader key's create
//! revision.

use std::time::Duration;

use async_trait::async_trait;
use madako_domain::store::{Epoch, KeyChange, Outcome, Snapshot, StoreError, Transaction};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

/// What a watch tells, in the order of the revisions.
#[derive(Debug, Clone)]
pub enum WatchEvent {
    /// Everything: first of all, and again whenever changes may have been missed (a compaction, a
    /// store that was restored).
    Listed(Snapshot),
    /// All changes of one or more revisions up to `revision`.
    Changed {
        /// The last revision of these.
        revision: i64,
        /// The changes.
        changes: Vec<KeyChange>,
    },
    /// The connection is gone; the watch goes on by itself from where it was.
    Interrupted(StoreError),
}

/// What a campaign tells.
#[derive(Debug, Clone)]
pub enum CampaignEvent {
    /// A candidate now, behind others.
    Waiting {
        /// Host name of the leader, as its key tells.
        leader: String,
    },
    /// Elected.
    Elected(Epoch),
    /// No longer leader: the lease ran out (by this instance's own clock at the latest), the key
    /// vanished, or it was given up. The campaign goes on by itself with a new session.
    Lost {
        /// Which term ended.
        epoch: Epoch,
        /// Why.
        why: String,
    },
    /// The store cannot be reached to campaign.
    Unavailable(StoreError),
}

/// What a campaign is told.
#[derive(Debug)]
pub enum CampaignCommand {
    /// Give up leadership or candidacy, so that another can lead, and campaign again after the pause.
    Yield {
        /// How long to stay away.
        pause: Duration,
    },
    /// Give up for good: revoke the lease, answer, end.
    Stop {
        /// Answered when the lease is revoked, or when that could not be done in time.
        done: oneshot::Sender<()>,
    },
}

/// A running campaign. Dropping it stops it and gives the lease back in the background, as far as the
/// store can be reached: an actor that fails must not leave its successor waiting for the lease to end.
#[derive(Debug)]
pub struct Campaign {
    /// What happens. Bounded; the sender waits.
    pub events: mpsc::Receiver<CampaignEvent>,
    /// Commands.
    pub commands: mpsc::Sender<CampaignCommand>,
}

/// How to campaign.
#[derive(Debug, Clone)]
pub struct CampaignOptions {
    /// Value of the key: the host name.
    pub host: String,
    /// Time to live of the session lease, whole seconds.
    pub ttl: Duration,
}

/// etcd below one prefix.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Every key that starts with the relative prefix.
    ///
    /// # Errors
    /// See [`StoreErrorKind`]. The deadline is the store's own time-out.
    async fn list(&self, prefix: &str) -> Result<Snapshot, StoreError>;

    /// One transaction. Not retried.
    ///
    /// # Errors
    /// See [`StoreErrorKind`]; a refused transaction is no error.
    async fn commit(&self, transaction: Transaction) -> Result<Outcome, StoreError>;

    /// Watches every key that starts with the relative prefix. The receiver gets
    /// [`WatchEvent::Listed`] first; the watch reconnects for ever, and ends when the receiver is dropped.
    fn watch(&self, prefix: &str) -> mpsc::Receiver<WatchEvent>;

    /// Campaigns for leadership with the key `leader//<lease in hex>`, until stopped or dropped.
    fn campaign(&self, options: CampaignOptions) -> Campaign;

    /// Until when an epoch of this store's campaigns holds, by this instance's own clock: the lease's
    /// end less a safety margin, as of now; later answers may be later. `None`: it is over, or it is
    /// not ours. It is `None` before [`CampaignEvent::Lost`] is received: ask it before every effect,
    /// since a process that was paused past its lease may be handed other messages first.
    fn holds_until(&self, epoch: &Epoch) -> Option<Instant>;
}
