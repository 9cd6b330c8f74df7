//! The store port: etcd below one prefix, as far as actors need it.
//!
//! Keys are relative to the prefix. Reads are linearizable. A transaction is all or nothing; a
//! deposed leader's transaction fails in etcd, because it compares the leader key's create revision.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

/// A value as the store holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The value.
    pub value: Bytes,
    /// Revision of its creation.
    pub create_revision: i64,
    /// Revision of its last change.
    pub mod_revision: i64,
    /// The lease it hangs on; 0 for none.
    pub lease: i64,
}

/// All keys below a relative prefix at one revision.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// The store's revision at that moment.
    pub revision: i64,
    /// Relative keys and what they hold.
    pub entries: BTreeMap<String, Entry>,
}

/// One change that a watch saw.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyChange {
    /// Relative key.
    pub key: String,
    /// What it holds now; `None` when it was deleted.
    pub entry: Option<Entry>,
}

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

/// What a transaction compares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// The key was created at this revision and is still there.
    Created {
        /// Relative key.
        key: String,
        /// Create revision.
        revision: i64,
    },
    /// The key's last change was at this revision; 0: it does not exist.
    Unchanged {
        /// Relative key.
        key: String,
        /// Mod revision.
        revision: i64,
    },
    /// No key below the prefix was written after this revision. What was deleted since does not count.
    NoneSince {
        /// Relative prefix.
        prefix: String,
        /// Mod revision.
        revision: i64,
    },
}

impl Condition {
    /// The key, or the prefix, that is compared.
    #[must_use]
    pub fn compared(&self) -> &str {
        match self {
            Self::Created { key, .. } | Self::Unchanged { key, .. } => key,
            Self::NoneSince { prefix, .. } => prefix,
        }
    }
}

/// What a transaction writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Write {
    /// Sets a key.
    Put {
        /// Relative key.
        key: String,
        /// Value.
        value: Bytes,
        /// The lease it hangs on; 0 for none.
        lease: i64,
    },
    /// Deletes a key.
    Delete {
        /// Relative key.
        key: String,
    },
}

/// Conditions and writes that belong together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Transaction {
    /// All must hold.
    pub conditions: Vec<Condition>,
    /// All are done, or none.
    pub writes: Vec<Write>,
}

/// How a transaction ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Every write is durable.
    Committed {
        /// The revision of the writes.
        revision: i64,
    },
    /// Nothing was written, because these conditions did not hold.
    Refused {
        /// The conditions that failed (as read in the same transaction).
        failed: Vec<Condition>,
    },
}

/// What kind of failure an operation on the store met.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum StoreErrorKind {
    /// Nobody answers, or the store has no leader of its own.
    Unavailable,
    /// No answer within the deadline.
    Deadline,
    /// User, password or permission.
    Denied,
    /// The request is refused as it is (too large, for example).
    Invalid,
    /// The store has no room left.
    Full,
    /// Anything else.
    Other,
}

/// An operation on the store that failed. After an `Unavailable` or `Deadline` a write may have happened or not.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{operation} failed: {why}")]
pub struct StoreError {
    /// The operation and its object, such as `read of sabakan/`.
    pub operation: String,
    /// What kind of failure.
    pub kind: StoreErrorKind,
    /// What the store or the system said, without secrets.
    pub why: String,
}

/// One term of one leader. Ordered: a later epoch is greater.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Epoch {
    /// Create revision of the leader key: unique, and greater for every later epoch of one store.
    pub number: i64,
    /// The leader key, relative.
    pub key: String,
    /// The session lease.
    pub lease: i64,
}

impl Epoch {
    /// The condition that fences every write of this epoch.
    #[must_use]
    pub fn fence(&self) -> Condition {
        Condition::Created { key: self.key.clone(), revision: self.number }
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.number)
    }
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
