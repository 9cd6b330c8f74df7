//! The tables in the redb file of the embedded store: the changes of keys, the leases with their owners, and numbers
//! such as the last compacted revision.

use redb::{ReadableTable, TableDefinition};

use crate::range::RecordSource;
use crate::record::{REVISION_BYTES, Record, Revision};
use crate::request_error::RequestError;

/// Every change that is not compacted: revision to record. A put or a deletion touches only this table.
pub(crate) const REVISIONS: TableDefinition<'static, &'static [u8; REVISION_BYTES], &'static [u8]> =
    TableDefinition::new("revisions");
/// Leases: id to TTL in seconds. The records contain the attached keys.
pub(crate) const LEASES: TableDefinition<'static, i64, i64> = TableDefinition::new("leases");
/// Leases of owners' own clients: id to the owner's mark ([`crate::Options::owner`]). A row whose lease does not exist
/// is ignored.
pub(crate) const OWNED_LEASES: TableDefinition<'static, i64, &'static str> =
    TableDefinition::new("owned-leases");
/// Single numbers, by the names in [`meta`].
pub(crate) const META: TableDefinition<'static, &'static str, u64> = TableDefinition::new("meta");

pub(crate) mod meta {
    pub(crate) const FORMAT: &str = "format";
    pub(crate) const CLUSTER_ID: &str = "cluster-id";
    pub(crate) const MEMBER_ID: &str = "member-id";
    /// Incremented by each start, like the term of a single etcd member.
    pub(crate) const TERM: &str = "term";
    /// Revision of the last compaction plus one, because etcd's "none yet" is -1.
    pub(crate) const COMPACTED_PLUS_ONE: &str = "compacted-plus-one";
    /// Active alarms, one bit per type.
    pub(crate) const ALARMS: &str = "alarms";

    /// The layout version that this code reads and writes.
    pub(crate) const CURRENT_FORMAT: u64 = 1;
}

/// Cluster id, member id and term of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) cluster_id: u64,
    pub(crate) member_id: u64,
    pub(crate) term: u64,
}

/// Reads values within a transaction.
pub(crate) struct StoredValues<'a, T>(pub(crate) &'a T);

impl<T: ReadableTable<&'static [u8; REVISION_BYTES], &'static [u8]>> RecordSource for StoredValues<'_, T> {
    fn record<R>(&self, revision: Revision, show: impl FnOnce(Record<'_>) -> R) -> Result<R, RequestError> {
        let failed = |what: &dyn std::fmt::Display| {
            RequestError::Failed(format!("reading revision {}.{}: {what}", revision.main, revision.sub))
        };
        let stored = self.0.get(&revision.to_bytes()).map_err(|error| failed(&error))?;
        let bytes = stored.as_ref().ok_or_else(|| failed(&"the record is missing"))?;
        let record = Record::decode(revision, bytes.value())
            .ok_or_else(|| failed(&"the record's checksum is wrong"))?;
        Ok(show(record))
    }
}
