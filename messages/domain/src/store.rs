//! The data that is read from and written to etcd below one prefix: entries, conditions, transactions, epochs.
//!
//! Keys are relative to the prefix. A transaction is atomic.

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;
use madako_json::named;
use strum::IntoStaticStr;

/// A stored value with its revisions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The value, which the store does not interpret.
    pub value: Bytes,
    /// Revision of its creation.
    pub create_revision: i64,
    /// Revision of its last change.
    pub mod_revision: i64,
    /// The lease of the key; 0 for none.
    pub lease: i64,
}

/// All keys below a relative prefix at one revision.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// The store's revision of the snapshot.
    pub revision: i64,
    /// Entries by relative key.
    pub entries: BTreeMap<String, Entry>,
}

/// A change that a watch delivered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyChange {
    /// Key relative to the prefix.
    pub key: String,
    /// The new entry; `None` if the key was deleted.
    pub entry: Option<Entry>,
}

/// A comparison of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// The key was created at this revision and still exists.
    Created {
        /// Key relative to the prefix.
        key: String,
        /// Create revision of the key.
        revision: i64,
    },
    /// The key's last change was at this revision; 0 means that it does not exist.
    Unchanged {
        /// Key relative to the prefix.
        key: String,
        /// Mod revision of the key; 0 means absent.
        revision: i64,
    },
    /// No existing key below the prefix was written after this revision. Deleted keys do not count.
    NoneSince {
        /// Prefix of the keys, relative to the store's own prefix.
        prefix: String,
        /// The highest allowed mod revision.
        revision: i64,
    },
}

impl Condition {
    /// The key or prefix of the comparison.
    #[must_use]
    pub fn compared_key(&self) -> &str {
        match self {
            Self::Created { key, .. } | Self::Unchanged { key, .. } => key,
            Self::NoneSince { prefix, .. } => prefix,
        }
    }
}

/// A write of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Write {
    /// Creates or overwrites a key.
    Put {
        /// Key relative to the prefix.
        key: String,
        /// The new value in bytes; the store does not interpret it.
        value: Bytes,
        /// The lease of the key; 0 for none.
        lease: i64,
    },
    /// Deletes a key; an absent one stays absent without an error.
    Delete {
        /// Key relative to the prefix.
        key: String,
    },
}

/// Conditions and writes of one atomic step.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Transaction {
    /// The conditions, which must all hold.
    pub conditions: Vec<Condition>,
    /// The writes, of which all or none happen.
    pub writes: Vec<Write>,
}

/// The result of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Every write is durable.
    Committed {
        /// The revision of the writes.
        revision: i64,
    },
    /// Nothing was written, because conditions did not hold.
    Refused {
        /// The failed conditions, as read in the same transaction.
        failed: Vec<Condition>,
    },
}

/// The class of a failed store operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum StoreErrorKind {
    /// The store does not answer, or has no leader of its own.
    Unavailable,
    /// The store did not answer within the deadline.
    Deadline,
    /// The store refused user, password or permission.
    Denied,
    /// The store refused the request itself, for example because it is too large.
    Invalid,
    /// The store has no room left.
    Full,
    /// A failure that fits no other class; its message tells more.
    Other,
}

named!(StoreErrorKind);

/// A failed operation on the store. After `Unavailable` or `Deadline` a write may have happened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot complete the {operation} in etcd: {why}")]
pub struct StoreError {
    /// The operation and its object, such as `read of sabakan/`.
    pub operation: String,
    /// The class of the failure.
    pub kind: StoreErrorKind,
    /// The message of the store or the system, without secrets.
    pub why: String,
}

/// The time in which one instance leads without a gap. Epochs are ordered: a later one is greater.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Epoch {
    /// Create revision of the leader key: unique in a store, and greater for every later epoch.
    pub number: i64,
    /// The relative leader key.
    pub key: String,
    /// The lease of the leader's session.
    pub lease: i64,
}

impl Epoch {
    /// The condition that fences every write of this epoch: the leader key still exists.
    #[must_use]
    pub fn fencing_condition(&self) -> Condition {
        Condition::Created { key: self.key.clone(), revision: self.number }
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.number)
    }
}

/// A value that cannot be written as JSON; its transaction is not sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {why}")]
pub struct EncodeError {
    /// Key relative to the prefix.
    pub key: String,
    /// The message of the encoder.
    pub why: String,
}
