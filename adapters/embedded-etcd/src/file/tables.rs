//! The tables of the file.

use redb::{ReadableTable, TableDefinition};

use crate::range::Values;
use crate::record::{REVISION_BYTES, Record, Revision};
use crate::refusal::Refusal;

/// Every change that is not compacted: revision to record. A write touches only this table.
pub(crate) const REVISIONS: TableDefinition<'static, &'static [u8; REVISION_BYTES], &'static [u8]> =
    TableDefinition::new("revisions");
/// Leases: id to TTL in seconds. Which keys hang on a lease is in the records.
pub(crate) const LEASES: TableDefinition<'static, i64, i64> = TableDefinition::new("leases");
/// Leases of owners' own clients: id to the owner's mark ([`crate::Options::owner`]). A row without a lease means nothing.
pub(crate) const OWNED_LEASES: TableDefinition<'static, i64, &'static str> =
    TableDefinition::new("owned-leases");
/// Single numbers, by the names in [`meta`].
pub(crate) const META: TableDefinition<'static, &'static str, u64> = TableDefinition::new("meta");

/// Names in [`META`].
pub(crate) mod meta {
    /// The layout that this file has.
    pub(crate) const FORMAT: &str = "format";
    pub(crate) const CLUSTER_ID: &str = "cluster-id";
    pub(crate) const MEMBER_ID: &str = "member-id";
    /// Grows by one with each start, as the term of a lone etcd member does.
    pub(crate) const TERM: &str = "term";
    /// Revision of the last compaction, plus one: etcd's "none yet" is -1.
    pub(crate) const COMPACTED_PLUS_ONE: &str = "compacted-plus-one";
    /// Alarms that were switched on, one bit for each type.
    pub(crate) const ALARMS: &str = "alarms";

    /// The layout that this code reads and writes.
    pub(crate) const CURRENT_FORMAT: u64 = 1;
}

/// Who this store says it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) cluster_id: u64,
    pub(crate) member_id: u64,
    pub(crate) term: u64,
}

/// Values from the file, as a transaction sees it.
pub(crate) struct StoredValues<'a, T>(pub(crate) &'a T);

impl<T: ReadableTable<&'static [u8; REVISION_BYTES], &'static [u8]>> Values for StoredValues<'_, T> {
    fn record<R>(&self, revision: Revision, show: impl FnOnce(Record<'_>) -> R) -> Result<R, Refusal> {
        let failed = |what: &dyn std::fmt::Display| {
            Refusal::Failed(format!("reading revision {}.{}: {what}", revision.main, revision.sub))
        };
        let stored = self.0.get(&revision.to_bytes()).map_err(|error| failed(&error))?;
        let bytes = stored.as_ref().ok_or_else(|| failed(&"it is not there"))?;
        let record =
            Record::decode(revision, bytes.value()).ok_or_else(|| failed(&"its checksum is wrong"))?;
        Ok(show(record))
    }
}
