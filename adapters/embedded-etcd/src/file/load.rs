//! Reads the whole file of the embedded store once and builds the state that the store needs in memory.

use redb::{ReadableDatabase, ReadableTable, ReadableTableMetadata};

use super::tables::{Identity, LEASES, META, OWNED_LEASES, REVISIONS, meta};
use crate::index::{Change, Index, SupersededChange};
use crate::leases::{LeaseChange, LeaseTable};
use crate::range::ReadableRevisions;
use crate::record::{Record, Revision};

#[derive(Debug)]
pub(crate) struct LoadedFile {
    pub(crate) index: Index,
    pub(crate) view: ReadableRevisions,
    pub(crate) leases: LeaseTable,
    pub(crate) identity: Identity,
    pub(crate) alarms: u64,
    /// Compacted changes that are still in the file.
    pub(crate) superseded: Vec<SupersededChange>,
    /// Bytes of keys and values, including compacted ones that are still in the file.
    pub(crate) data_bytes: u64,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    #[error("cannot read the records of the embedded store from its database file")]
    Read(#[from] redb::Error),
    #[error("the record of revision {main}.{sub} in the file of the embedded store has a wrong checksum")]
    Checksum { main: i64, sub: u32 },
    #[error("the file of the embedded store has {found} records, expected {expected}")]
    Missing { found: u64, expected: u64 },
    #[error("the file of the embedded store has the layout version {0}, and this program reads only version {current}", current = meta::CURRENT_FORMAT)]
    Format(u64),
    #[error("the table of settings in the file of the embedded store has no entry {0:?}")]
    NoEntry(&'static str),
}

impl LoadError {
    /// True if the storage answered with wrong contents; a retry cannot clear this.
    pub(crate) fn is_damage(&self) -> bool {
        !matches!(
            self,
            Self::Read(redb::Error::Io(_) | redb::Error::PreviousIo | redb::Error::DatabaseClosed)
        )
    }

    /// The error and its cause in one line.
    pub(crate) fn detailed_message(&self) -> String {
        match self {
            Self::Read(source) => format!("{self}: {source}"),
            _ => self.to_string(),
        }
    }
}

macro_rules! read_errors {
    ($($error:ty),*) => {
        $(impl From<$error> for LoadError {
            fn from(error: $error) -> Self {
                Self::Read(error.into())
            }
        })*
    };
}
read_errors!(redb::StorageError, redb::TableError, redb::TransactionError);

/// Reads and verifies the whole file; `None` if it has no tables yet.
pub(crate) fn load_store(database: &redb::Database) -> Result<Option<LoadedFile>, LoadError> {
    let transaction = database.begin_read()?;
    let numbers = match transaction.open_table(META) {
        Ok(numbers) => numbers,
        Err(redb::TableError::TableDoesNotExist(_)) if transaction.list_tables()?.next().is_none() => {
            return Ok(None);
        }
        Err(error) => return Err(error.into()),
    };
    let number = |name: &'static str| -> Result<u64, LoadError> {
        Ok(numbers.get(name)?.ok_or(LoadError::NoEntry(name))?.value())
    };
    let format = number(meta::FORMAT)?;
    if format != meta::CURRENT_FORMAT {
        return Err(LoadError::Format(format));
    }
    let compacted = number(meta::COMPACTED_PLUS_ONE)? as i64 - 1;
    let mut leases = LeaseTable::default();
    // A file of an earlier version has no such table.
    let owners = match transaction.open_table(OWNED_LEASES) {
        Ok(owners) => Some(owners),
        Err(redb::TableError::TableDoesNotExist(_)) => None,
        Err(error) => return Err(error.into()),
    };
    for lease in transaction.open_table(LEASES)?.iter()? {
        let (id, ttl_seconds) = lease?;
        let (id, ttl_seconds) = (id.value(), ttl_seconds.value());
        let owner = match &owners {
            Some(owners) => owners.get(id)?.map(|owner| owner.value().into()),
            None => None,
        };
        leases.apply(&LeaseChange::Granted { id, ttl_seconds, owner });
    }

    let mut index = Index::default();
    // A new store is at revision 1, and a compaction may have removed the newest change.
    let mut current = compacted.max(1);
    let mut data_bytes = 0;
    let revisions = transaction.open_table(REVISIONS)?;
    let expected = revisions.len()?;
    let mut found = 0;
    for entry in revisions.iter()? {
        let (revision, bytes) = entry?;
        let revision = Revision::from_bytes(revision.value());
        let bytes = bytes.value();
        let record = Record::decode(revision, bytes)
            .ok_or(LoadError::Checksum { main: revision.main, sub: revision.sub })?;
        let change = Change {
            revision,
            create: record.create,
            version: record.version,
            lease: record.lease,
            bytes: (record.key.len() + record.value.len()) as u32,
        };
        data_bytes += u64::from(change.bytes);
        index.push(record.key, change);
        current = current.max(revision.main);
        found += 1;
    }
    if found != expected {
        return Err(LoadError::Missing { found, expected });
    }
    for (key, change) in index.changes_in_range(crate::span::Span::From(b""), current) {
        leases.apply(&LeaseChange::Attached { id: change.lease, key: key.to_vec() });
    }
    let superseded = index.compact(compacted);
    Ok(Some(LoadedFile {
        index,
        view: ReadableRevisions { current, compacted },
        leases,
        identity: Identity {
            cluster_id: number(meta::CLUSTER_ID)?,
            member_id: number(meta::MEMBER_ID)?,
            term: number(meta::TERM)?,
        },
        alarms: number(meta::ALARMS)?,
        superseded,
        data_bytes,
    }))
}
