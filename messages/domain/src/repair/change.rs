//! A change of the repair queue, as it is brought to the leader's gate.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use crate::canary::{Canary, is_planted};
use crate::keys;
use crate::limits::MAX_DELETED;
pub use crate::limits::MAX_RECORDS;
use crate::record::Record;
use crate::repair::RepairQueueEntry;
use crate::repair::hold::Hold;
use crate::repair::kept::Kept;
use crate::repair::queue::{Item, RepairQueue};
use crate::store::{Condition, Unencodable, Write};

/// One thing that a change writes.
#[derive(Debug, Clone, PartialEq)]
pub enum RepairWrite {
    /// An entry that is there is written anew.
    Entry(RepairQueueEntry),
    /// A new entry, which nobody asked for but the registry; its index is the queue's next.
    Added(RepairQueueEntry),
    /// An entry goes.
    Removed {
        /// Its index.
        index: i64,
    },
    /// An operation record: the next, or one that had not ended.
    Record(Record),
    /// What is kept of an entry; `None`: nothing any more.
    Kept {
        /// Its index.
        index: i64,
        /// What is kept.
        kept: Option<Kept>,
    },
    /// What is kept of a rack in which repairs are held back; `None`: nothing any more.
    Hold {
        /// The rack.
        rack: String,
        /// What is kept.
        hold: Option<Hold>,
    },
}

/// A change of the repair queue: one transaction.
#[derive(Debug, Clone, PartialEq)]
pub struct RepairChange {
    /// What is done, for the log and for metrics: the operation's name.
    pub what: &'static str,
    /// What must not have changed since it was decided.
    pub conditions: Vec<Condition>,
    /// What is written.
    pub writes: Vec<RepairWrite>,
}

impl RepairChange {
    /// The queue as the change leaves it. New values have revision 0.
    #[must_use]
    pub fn applied(&self, queue: &RepairQueue) -> RepairQueue {
        let mut after = queue.clone();
        for write in &self.writes {
            match write {
                RepairWrite::Entry(entry) => {
                    let created = queue.entries.get(&entry.index).map_or(0, |item| item.created);
                    let item = Item { value: entry.clone(), created, revision: 0 };
                    after.entries.insert(entry.index, Arc::new(item));
                }
                RepairWrite::Added(entry) => {
                    let item = Item { value: entry.clone(), created: 0, revision: 0 };
                    after.entries.insert(entry.index, Arc::new(item));
                    after.write_index = after.write_index.map(|(_, revision)| (entry.index + 1, revision));
                }
                RepairWrite::Removed { index } => {
                    after.entries.remove(index);
                }
                RepairWrite::Record(record) => {
                    let records = &mut after.records;
                    records.known.insert(record.id, 0);
                    records.unfinished.remove(&record.id);
                    if record.is_unfinished() {
                        let item = Item { value: record.clone(), created: 0, revision: 0 };
                        records.unfinished.insert(record.id, Arc::new(item));
                    }
                    if let Some((next, _)) = &mut records.next {
                        *next = (*next).max(record.id + 1);
                    }
                    for id in excess(&records.known) {
                        records.known.remove(&id);
                    }
                }
                RepairWrite::Kept { index, kept: Some(kept) } => {
                    let item = Item { value: kept.clone(), created: 0, revision: 0 };
                    after.kept.insert(*index, Arc::new(item));
                }
                RepairWrite::Kept { index, kept: None } => {
                    after.kept.remove(index);
                }
                // Racks are beside the queue.
                RepairWrite::Hold { .. } => {}
            }
        }
        after
    }

    /// What is written to the store, with the counters and the records that are too many.
    ///
    /// # Errors
    /// Something cannot be encoded.
    pub fn stored(&self, queue: &RepairQueue) -> Result<Vec<Write>, Unencodable> {
        let mut writes = Vec::new();
        let mut known = queue.records.known.clone();
        for write in &self.writes {
            match write {
                RepairWrite::Entry(entry) => writes.push(put(keys::repair(entry.index), entry)?),
                RepairWrite::Added(entry) => {
                    writes.push(put(keys::repair(entry.index), entry)?);
                    writes.retain(|write| !is_put(write, keys::REPAIRS_WRITE_INDEX));
                    if !is_planted(Canary::WriteIndexForgotten) {
                        writes.push(counter(keys::REPAIRS_WRITE_INDEX, entry.index + 1));
                    }
                }
                RepairWrite::Removed { index } => writes.push(Write::Delete { key: keys::repair(*index) }),
                RepairWrite::Record(record) => {
                    writes.push(put(keys::record(record.id), record)?);
                    if known.insert(record.id, 0).is_none() {
                        writes.retain(|write| !is_put(write, keys::RECORD_ID));
                        writes.push(counter(keys::RECORD_ID, record.id + 1));
                    }
                }
                RepairWrite::Kept { index, kept: Some(kept) } => {
                    writes.push(put(keys::repair_kept(*index), kept)?);
                }
                RepairWrite::Kept { index, kept: None } => {
                    writes.push(Write::Delete { key: keys::repair_kept(*index) });
                }
                RepairWrite::Hold { rack, hold: Some(hold) } => {
                    writes.push(put(keys::repair_hold(rack), hold)?);
                }
                RepairWrite::Hold { rack, hold: None } => {
                    writes.push(Write::Delete { key: keys::repair_hold(rack) });
                }
            }
        }
        writes.extend(excess(&known).into_iter().map(|id| Write::Delete { key: keys::record(id) }));
        Ok(writes)
    }
}

/// The oldest records, as far as there are too many.
fn excess(known: &BTreeMap<i64, i64>) -> Vec<i64> {
    if is_planted(Canary::RecordsKept) {
        return Vec::new();
    }
    let count = known.len().saturating_sub(MAX_RECORDS).min(MAX_DELETED);
    known.keys().take(count).copied().collect()
}

fn is_put(write: &Write, wanted: &str) -> bool {
    matches!(write, Write::Put { key, .. } if key == wanted)
}

fn counter(key: &str, next: i64) -> Write {
    Write::Put { key: key.to_owned(), value: next.to_string().into(), lease: 0 }
}

fn put<T: serde::Serialize>(key: String, value: &T) -> Result<Write, Unencodable> {
    let value = serde_json::to_vec(value)
        .map(Bytes::from)
        .map_err(|error| Unencodable { key: key.clone(), why: error.to_string() })?;
    Ok(Write::Put { key, value, lease: 0 })
}
