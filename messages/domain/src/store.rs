//! What is read from and written to etcd below one prefix: entries, conditions, transactions, epochs.
//!
//! Keys are relative to the prefix. A transaction is all or nothing.

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;

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

/// A value cannot be written as JSON, so nothing of its transaction is sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {why}")]
pub struct Unencodable {
    /// Relative key.
    pub key: String,
    /// What the encoder says.
    pub why: String,
}
