//! The port to the store: etcd below one prefix.
//!
//! Reads are linearizable. A deposed leader's transaction fails in etcd, because it compares the leader key's create
//! revision.

use std::time::Duration;

use async_trait::async_trait;
use madako_domain::store::{Epoch, KeyChange, Outcome, Snapshot, StoreError, Transaction};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

/// An event of a watch; events come in the order of the revisions.
#[derive(Debug, Clone)]
pub enum WatchEvent {
    /// The full content: the first event, and again whenever the watch may have missed changes (after a compaction,
    /// or when the store was restored).
    Listed(Snapshot),
    /// All changes of one or more revisions up to `revision`.
    Changed {
        /// The last revision of these changes.
        revision: i64,
        /// The changes in the order of their revisions.
        changes: Vec<KeyChange>,
    },
    /// The connection broke; the watch reconnects by itself and continues where it was.
    Interrupted(StoreError),
}

/// A change of an instance's candidacy or leadership.
#[derive(Debug, Clone)]
pub enum CampaignEvent {
    /// The instance is a candidate behind others.
    Waiting {
        /// Host name in the leader's key.
        leader: String,
    },
    /// The instance became leader.
    Elected(Epoch),
    /// The instance is no longer leader: its lease ended (by its own clock at the latest), its key vanished, or it
    /// gave up leadership. The campaign continues by itself with a new session.
    Lost {
        /// The epoch that ended.
        epoch: Epoch,
        /// The reason, in words.
        why: String,
    },
    /// The campaign cannot reach the store.
    Unavailable(StoreError),
}

/// A request of the leader's actor to its campaign.
#[derive(Debug)]
pub enum CampaignCommand {
    /// Gives up leadership or candidacy, so that another instance can lead, and campaigns again after the pause.
    Yield {
        /// Time without candidacy.
        pause: Duration,
    },
    /// Ends the campaign: revokes the lease, replies, ends.
    Stop {
        /// Replied to after the lease is revoked, or after the time for that is over.
        done: oneshot::Sender<()>,
    },
}

/// A running campaign. Dropping it stops it and revokes the lease in the background if the store can be reached: the
/// successor of a failed actor must not wait for the lease to expire.
#[derive(Debug)]
pub struct Campaign {
    /// The events. Bounded; the sender waits for space.
    pub events: mpsc::Receiver<CampaignEvent>,
    /// The commands. Bounded; the campaign handles them in order.
    pub commands: mpsc::Sender<CampaignCommand>,
}

/// The settings of a campaign.
#[derive(Debug, Clone)]
pub struct CampaignOptions {
    /// Value of the leader key: the host name.
    pub host: String,
    /// Time to live of the session's lease, in whole seconds.
    pub ttl: Duration,
}

/// etcd below one prefix.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// All keys that start with the relative prefix.
    ///
    /// # Errors
    /// See [`StoreErrorKind`](madako_domain::store::StoreErrorKind). The deadline is the store's own time-out.
    async fn list(&self, prefix: &str) -> Result<Snapshot, StoreError>;

    /// Runs one transaction. Does not retry.
    ///
    /// # Errors
    /// See [`StoreErrorKind`](madako_domain::store::StoreErrorKind). A refused transaction is not an error.
    async fn commit(&self, transaction: Transaction) -> Result<Outcome, StoreError>;

    /// Watches all keys that start with the relative prefix. The receiver gets [`WatchEvent::Listed`] first. The
    /// watch reconnects for ever and ends when the receiver is dropped.
    fn watch(&self, prefix: &str) -> mpsc::Receiver<WatchEvent>;

    /// Campaigns for leadership with the key `leader//<lease in hex>`, until stopped or dropped.
    fn campaign(&self, options: CampaignOptions) -> Campaign;

    /// The time until which an epoch of this store's campaigns holds, by this instance's own clock: the lease's
    /// present end minus a safety margin. Later calls may return later times. `None` if the epoch is over or belongs
    /// to another instance. It becomes `None` before [`CampaignEvent::Lost`] is received: call it before every
    /// effect, because a process that was paused beyond its lease may receive other messages first.
    fn holds_until(&self, epoch: &Epoch) -> Option<Instant>;
}
