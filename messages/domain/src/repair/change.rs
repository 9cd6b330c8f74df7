//! A change of the repair queue or of operation records that an actor asks the leader to commit.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use crate::canary::{Canary, is_planted};
use crate::encryption_rotation::EncryptionRotation;
use crate::keys;
use crate::limits::MAX_DELETED;
pub use crate::limits::MAX_RECORDS;
use crate::reboot::RebootQueueEntry;
use crate::record::Record;
use crate::repair::RepairQueueEntry;
use crate::repair::hold::Hold;
use crate::repair::kept::KeptEntry;
use crate::repair::queue::{Item, RepairQueue};
use crate::restore::{RestoreRequest, Restored};
use crate::rollout::Rollout;
use crate::store::{Condition, EncodeError, Write};

/// A write of a change.
#[derive(Debug, Clone, PartialEq)]
pub enum RepairWrite {
    /// Replaces an existing entry.
    Entry(RepairQueueEntry),
    /// Adds an entry that the registry requested; its index is the queue's next.
    Added(RepairQueueEntry),
    /// Removes an entry.
    Removed {
        /// Index of the entry.
        index: i64,
    },
    /// Replaces an entry of the reboot queue.
    Reboot(RebootQueueEntry),
    /// Removes an entry of the reboot queue.
    RebootRemoved {
        /// Index of the entry.
        index: i64,
    },
    /// Notes whether the reboot queue is enabled and has entries.
    RebootsRunning(bool),
    /// Writes an operation record: the next one, or an unfinished one.
    Record(Record),
    /// Notes that the stored cluster has the form 2.
    ConfigVersion,
    /// Deletes the request to restart the member of etcd on a node.
    RestartTaken {
        /// Address of the node.
        address: String,
    },
    /// Writes the request to restore etcd; `None` deletes it.
    Restore(Option<RestoreRequest>),
    /// Notes the restore of etcd that began, or which nodes have no data of before it any more.
    Restored(Restored),
    /// Writes the state of the roll of kubelets and proxies.
    Rollout(Rollout),
    /// Writes the state of the rotation of the encryption key; `None`: it is over.
    EncryptionRotation(Option<EncryptionRotation>),
    /// Writes Madako's own state of an entry; `None` deletes it.
    Kept {
        /// Index of the entry.
        index: i64,
        /// The state to write.
        kept: Option<KeptEntry>,
    },
    /// Writes the hold of a rack; `None` deletes it.
    Hold {
        /// The value of the rack's label.
        rack: String,
        /// The hold to write.
        hold: Option<Hold>,
    },
}

/// A change of the repair queue, of the reboot queue or of records: one transaction.
#[derive(Debug, Clone, PartialEq)]
pub struct RepairChange {
    /// The operation's name for logs and metrics.
    pub what: &'static str,
    /// The inputs of the decision that must be unchanged.
    pub conditions: Vec<Condition>,
    /// The writes of the transaction.
    pub writes: Vec<RepairWrite>,
}

impl RepairChange {
    /// The queue after the change. New values have revision 0.
    #[must_use]
    pub fn apply_to(&self, queue: &RepairQueue) -> RepairQueue {
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
                RepairWrite::Reboot(entry) => {
                    let created = queue.reboots.get(&entry.index).map_or(0, |item| item.created);
                    let item = Item { value: entry.clone(), created, revision: 0 };
                    after.reboots.insert(entry.index, Arc::new(item));
                }
                RepairWrite::RebootRemoved { index } => {
                    after.reboots.remove(index);
                }
                RepairWrite::RebootsRunning(is_running) => after.reboots_running = *is_running,
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
                    for id in select_excess_records(&records.known) {
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
                // The queue does not contain racks, the form of the cluster or requests.
                RepairWrite::Hold { .. }
                | RepairWrite::ConfigVersion
                | RepairWrite::RestartTaken { .. }
                | RepairWrite::Restore(_)
                | RepairWrite::Restored(_)
                | RepairWrite::Rollout(_)
                | RepairWrite::EncryptionRotation(_) => {}
            }
        }
        after
    }

    /// The store's writes, including the counters and the deletion of excess records.
    ///
    /// # Errors
    /// A value cannot be encoded.
    pub fn encode_writes(&self, queue: &RepairQueue) -> Result<Vec<Write>, EncodeError> {
        let mut writes = Vec::new();
        let mut known = queue.records.known.clone();
        for write in &self.writes {
            match write {
                RepairWrite::Entry(entry) => writes.push(put_json(keys::repair(entry.index), entry)?),
                RepairWrite::Added(entry) => {
                    writes.push(put_json(keys::repair(entry.index), entry)?);
                    writes.retain(|write| !is_put(write, keys::REPAIRS_WRITE_INDEX));
                    if !is_planted(Canary::WriteIndexForgotten) {
                        writes.push(counter_write(keys::REPAIRS_WRITE_INDEX, entry.index + 1));
                    }
                }
                RepairWrite::Removed { index } => writes.push(Write::Delete { key: keys::repair(*index) }),
                RepairWrite::Reboot(entry) => writes.push(put_json(keys::reboot(entry.index), entry)?),
                RepairWrite::RebootRemoved { index } => {
                    writes.push(Write::Delete { key: keys::reboot(*index) });
                }
                RepairWrite::RebootsRunning(is_running) => {
                    let value = is_running.to_string().into();
                    writes.push(Write::Put { key: keys::REBOOTS_RUNNING.to_owned(), value, lease: 0 });
                }
                RepairWrite::Record(record) => {
                    writes.push(put_json(keys::record(record.id), record)?);
                    if known.insert(record.id, 0).is_none() {
                        writes.retain(|write| !is_put(write, keys::RECORD_ID));
                        writes.push(counter_write(keys::RECORD_ID, record.id + 1));
                    }
                }
                RepairWrite::ConfigVersion => writes.push(counter_write(keys::CONFIG_VERSION, 2)),
                RepairWrite::RestartTaken { address } => {
                    writes.push(Write::Delete { key: keys::etcd_restart(address) });
                }
                RepairWrite::Restore(Some(request)) => {
                    writes.push(put_json(keys::ETCD_RESTORE.to_owned(), request)?);
                }
                RepairWrite::Restore(None) => {
                    writes.push(Write::Delete { key: keys::ETCD_RESTORE.to_owned() });
                }
                RepairWrite::Restored(restored) => {
                    writes.push(put_json(keys::ETCD_RESTORED.to_owned(), restored)?);
                }
                RepairWrite::Rollout(rollout) => writes.push(put_json(keys::ROLLOUT.to_owned(), rollout)?),
                RepairWrite::EncryptionRotation(Some(rotation)) => {
                    writes.push(put_json(keys::ENCRYPTION_ROTATION.to_owned(), rotation)?);
                }
                RepairWrite::EncryptionRotation(None) => {
                    writes.push(Write::Delete { key: keys::ENCRYPTION_ROTATION.to_owned() });
                }
                RepairWrite::Kept { index, kept: Some(kept) } => {
                    writes.push(put_json(keys::repair_state_key(*index), kept)?);
                }
                RepairWrite::Kept { index, kept: None } => {
                    writes.push(Write::Delete { key: keys::repair_state_key(*index) });
                }
                RepairWrite::Hold { rack, hold: Some(hold) } => {
                    writes.push(put_json(keys::repair_hold_key(rack), hold)?);
                }
                RepairWrite::Hold { rack, hold: None } => {
                    writes.push(Write::Delete { key: keys::repair_hold_key(rack) });
                }
            }
        }
        writes.extend(
            select_excess_records(&known).into_iter().map(|id| Write::Delete { key: keys::record(id) }),
        );
        Ok(writes)
    }
}

/// The ids of the oldest records beyond the maximum.
fn select_excess_records(known: &BTreeMap<i64, i64>) -> Vec<i64> {
    if is_planted(Canary::RecordsKept) {
        return Vec::new();
    }
    let count = known.len().saturating_sub(MAX_RECORDS).min(MAX_DELETED);
    known.keys().take(count).copied().collect()
}

fn is_put(write: &Write, wanted: &str) -> bool {
    matches!(write, Write::Put { key, .. } if key == wanted)
}

fn counter_write(key: &str, next: i64) -> Write {
    Write::Put { key: key.to_owned(), value: next.to_string().into(), lease: 0 }
}

fn put_json<T: serde::Serialize>(key: String, value: &T) -> Result<Write, EncodeError> {
    let value = serde_json::to_vec(value)
        .map(Bytes::from)
        .map_err(|error| EncodeError { key: key.clone(), why: error.to_string() })?;
    Ok(Write::Put { key, value, lease: 0 })
}
