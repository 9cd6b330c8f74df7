//! The decoded keys of the repair queue: part of [`crate::state::ClusterState`].
//!
//! Each value is decoded by itself: an unusable value is a fault and is left out. Values that did not change since
//! the last view are reused, so that a view of a thousand entries costs little.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::de::DeserializeOwned;
use time::OffsetDateTime;

use crate::canary::{Canary, is_planted};
use crate::invariants::repair::is_active;
use crate::keys;
use crate::node_status::Bootstrap;
use crate::reboot::{RebootQueueEntry, ReleasedReboots};
use crate::record::{Record, RecordStatus};
use crate::repair::kept::KeptEntry;
use crate::repair::{RepairQueueEntry, RepairStatus};
use crate::state::{Fault, read_json};
use crate::store::{Condition, Entry};

/// The operation that forms the cluster of etcd (CKE's name).
const ETCD_BOOTSTRAP: &str = "etcd-bootstrap";
const ETCD_ADD_MEMBER: &str = "etcd-add-member";
const ETCD_DESTROY_MEMBER: &str = "etcd-destroy-member";
/// The operation that runs the reboot command of a node (CKE's name).
pub const REBOOT: &str = "reboot-reboot";

/// A value with the revisions of its key.
#[derive(Debug, PartialEq)]
pub struct Item<T> {
    /// The value, decoded from the bytes at that revision.
    pub value: T,
    /// Create revision of the key.
    pub created: i64,
    /// Mod revision of the key.
    pub revision: i64,
}

/// Values by the number in their key.
pub type Items<T> = BTreeMap<i64, Arc<Item<T>>>;

/// All inputs of the decisions on repairs, at one revision.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RepairQueue {
    /// The entries by index.
    pub entries: Items<RepairQueueEntry>,
    /// Madako's own states by index, including those of removed entries.
    pub kept: Items<KeptEntry>,
    /// The entries of the reboot queue by index. Drains for upgrades have negative ones.
    pub reboots: Items<RebootQueueEntry>,
    /// True if the reboot queue is disabled.
    pub reboots_disabled: bool,
    /// The entries of the reboot queue that no longer hold it. An unreadable value releases none.
    pub reboots_released: ReleasedReboots,
    /// True while CKE processes the reboot queue.
    pub reboots_running: bool,
    /// True if drains and commands are disabled.
    pub disabled: bool,
    /// Mod revision of `repairs/disabled`; 0 if the key does not exist.
    pub disabled_revision: i64,
    /// Index of the next entry, and the mod revision of its key (0 if the key does not exist); `None` if unreadable.
    pub write_index: Option<(i64, i64)>,
    /// Records of operations, as far as a new registration needs them.
    pub records: Records,
    /// Unreadable values, which do not count as absent.
    pub unreadable: Unreadable,
}

/// Mod revisions of unreadable values, by the number of their entry.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Unreadable {
    /// Entries that cannot be decoded.
    pub entries: BTreeMap<i64, i64>,
    /// Unreadable states of entries.
    pub kept: BTreeMap<i64, i64>,
}

/// The operation records, as far as a new registration needs them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Records {
    /// Id of the next record, and the mod revision of its key (0 if the key does not exist); `None` if unreadable.
    pub next: Option<(i64, i64)>,
    /// Mod revision of each record by id.
    pub known: BTreeMap<i64, i64>,
    /// The unfinished records.
    pub unfinished: Items<Record>,
    /// Bootstraps of etcd, additions and removals of its members, and reboots, by the id of their record.
    pub past: BTreeMap<i64, Arc<PastRecord>>,
}

/// A record of an operation on which later decisions depend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PastRecord {
    operation: String,
    status: RecordStatus,
    targets: Vec<String>,
    end_at: Option<OffsetDateTime>,
}

impl Records {
    /// The newest bootstrap of etcd.
    #[must_use]
    pub fn bootstrap(&self) -> Option<Bootstrap> {
        let newest = self.past.values().rev().find(|record| record.operation == ETCD_BOOTSTRAP)?;
        Some(Bootstrap { status: newest.status.clone(), targets: newest.targets.clone() })
    }

    /// Addresses of nodes on which a removal of a member began and did not end.
    #[must_use]
    pub fn interrupted_removals(&self) -> BTreeSet<String> {
        let mut interrupted = BTreeSet::new();
        for record in self.past.values().filter(|record| record.operation != REBOOT) {
            let is_removal = record.operation == ETCD_DESTROY_MEMBER;
            for target in &record.targets {
                if is_removal && record.status != RecordStatus::Completed {
                    interrupted.insert(target.clone());
                } else {
                    interrupted.remove(target);
                }
            }
        }
        interrupted
    }

    /// The times at which the newest reboot command of each node ended, by address.
    #[must_use]
    pub fn reboot_ends(&self) -> BTreeMap<String, OffsetDateTime> {
        let reboots = self.past.values().filter(|record| record.operation == REBOOT);
        let ends = reboots.filter_map(|record| Some((&record.targets, record.end_at?)));
        ends.flat_map(|(targets, end)| targets.iter().map(move |target| (target.clone(), end))).collect()
    }
}

impl RepairQueue {
    /// Decodes the keys below the prefix and appends their faults.
    #[must_use]
    pub fn decode(entries: &BTreeMap<String, Entry>, last: Option<&Self>, faults: &mut Vec<Fault>) -> Self {
        let none = Self::default();
        // CKE compares the bytes: every value except `true` means false.
        let is_true = |key: &str| entries.get(key).is_some_and(|entry| &entry.value[..] == b"true");
        let last = last.unwrap_or(&none);
        let mut queue = Self {
            entries: decode_items(entries, keys::REPAIRS, &last.entries, faults),
            kept: decode_items(entries, keys::REPAIR_KEPT, &last.kept, faults),
            reboots: decode_reboots(entries, &last.reboots, faults),
            reboots_disabled: is_true(keys::REBOOTS_DISABLED),
            reboots_released: read_json(entries, keys::REBOOTS_RELEASED, faults)
                .map(|(value, _)| value)
                .unwrap_or_default(),
            reboots_running: is_true(keys::REBOOTS_RUNNING),
            disabled_revision: entries.get(keys::REPAIRS_DISABLED).map_or(0, |entry| entry.mod_revision),
            disabled: is_true(keys::REPAIRS_DISABLED) && !is_planted(Canary::RepairsWhileDisabled),
            write_index: read_number(entries, keys::REPAIRS_WRITE_INDEX, 0, faults),
            records: Records::decode(entries, &last.records, faults),
            unreadable: Unreadable::default(),
        };
        queue.entries.retain(|index, item| {
            let same = item.value.index == *index;
            if !same {
                let why = format!("the value names the index {}", item.value.index);
                faults.push(Fault { key: keys::repair(*index), why });
            }
            same
        });
        queue.unreadable = Unreadable {
            entries: unreadable_revisions(entries, keys::REPAIRS, &queue.entries),
            kept: unreadable_revisions(entries, keys::REPAIR_KEPT, &queue.kept),
        };
        queue
    }

    /// The state of an entry; `None` if it belongs to an earlier entry with the same index.
    #[must_use]
    pub fn kept_state_of(&self, index: i64) -> Option<&KeptEntry> {
        let entry = self.entries.get(&index)?;
        self.kept.get(&index).map(|kept| &kept.value).filter(|kept| kept.entry == entry.created)
    }

    /// The entries that clients requested: those of CKE's reboot queue.
    pub fn requested_reboots(&self) -> impl Iterator<Item = (i64, &RebootQueueEntry)> {
        self.reboots.range(0..).map(|(index, item)| (*index, &item.value))
    }

    /// The current reboots by the address of their node, and the drains for upgrades: entries whose node is drained or away.
    pub fn rebooting_nodes(&self) -> impl Iterator<Item = (&str, &RebootQueueEntry)> {
        self.reboots
            .values()
            .map(|reboot| &reboot.value)
            .filter(|reboot| reboot.is_under_way())
            .map(|reboot| (reboot.node.as_str(), reboot))
    }

    /// Addresses of the machines with an unfinished repair (even if it waits), and of those that are drained or
    /// rebooting.
    pub fn machines_under_way(&self) -> impl Iterator<Item = &str> {
        self.repaired_machines().chain(self.rebooting_nodes().map(|(node, _)| node))
    }

    /// Addresses of the nodes whose servers clients avoid: they are drained, away, or under a command of a repair. A repair that
    /// waits drains again, or its command begins, before it concerns clients. No entry of a disabled reboot queue counts, as in
    /// CKE. An upgrade of a kubelet leaves the API server of its node alone.
    pub fn leaving_machines(&self) -> impl Iterator<Item = &str> {
        let leaves = |(_, entry): &(&str, &RebootQueueEntry)| !self.reboots_disabled && !entry.is_upgrade();
        let rebooting = self.rebooting_nodes().filter(leaves);
        let repaired = self
            .entries
            .iter()
            .filter(|(index, item)| is_active(&item.value) || self.unfinished_command_of(**index).is_some());
        let repaired = repaired.map(|(_, item)| item.value.address.as_str());
        repaired.chain(rebooting.map(|(node, _)| node))
    }

    fn repaired_machines(&self) -> impl Iterator<Item = &str> {
        let begun = self.entries.values().filter(|item| item.value.status == RepairStatus::Processing);
        begun.map(|item| item.value.address.as_str())
    }

    /// The condition that an entry is unchanged since this view.
    #[must_use]
    pub fn require_unchanged_entry(&self, index: i64) -> Condition {
        let unreadable = self.unreadable.entries.get(&index).copied();
        let revision = self.entries.get(&index).map_or(unreadable.unwrap_or(0), |item| item.revision);
        Condition::Unchanged { key: keys::repair(index), revision }
    }

    /// The record of the running command of an entry, success commands included. It comes from Madako's own state,
    /// because another program may have overwritten the entry with an older or unreadable one.
    #[must_use]
    pub fn unfinished_command_of(&self, index: i64) -> Option<i64> {
        let finishing = self.kept.get(&index).and_then(|item| item.value.finishing);
        self.running_repair_of(index).or(finishing.filter(|record| self.is_unfinished_record(*record)))
    }

    /// The record of the running repair command of an entry. It excludes success commands.
    #[must_use]
    pub fn running_repair_of(&self, index: i64) -> Option<i64> {
        let started = self.kept.get(&index)?.value.started.as_ref()?;
        Some(started.record).filter(|record| self.is_unfinished_record(*record))
    }

    fn is_unfinished_record(&self, record: i64) -> bool {
        self.records.unfinished.contains_key(&record)
    }

    /// The condition that an entry of the reboot queue is unchanged since this view: a client that cancels it is not
    /// overwritten.
    #[must_use]
    pub fn require_unchanged_reboot(&self, index: i64) -> Condition {
        let revision = self.reboots.get(&index).map_or(0, |item| item.revision);
        Condition::Unchanged { key: keys::reboot(index), revision }
    }

    /// The condition that the state of an entry is unchanged since this view.
    #[must_use]
    pub fn require_unchanged_state(&self, index: i64) -> Condition {
        let unreadable = self.unreadable.kept.get(&index).copied();
        let revision = self.kept.get(&index).map_or(unreadable.unwrap_or(0), |item| item.revision);
        Condition::Unchanged { key: keys::repair_state_key(index), revision }
    }

    /// Mod revision of a key that the queue's changes compare; 0 if it does not exist, `None` if this view does not
    /// cover the key.
    #[must_use]
    pub fn revision_of(&self, key: &str) -> Option<i64> {
        let revision = |known: Option<(i64, i64)>| known.map(|(_, revision)| revision);
        match key {
            keys::RECORD_ID => return revision(self.records.next),
            keys::REPAIRS_WRITE_INDEX => return revision(self.write_index),
            keys::REPAIRS_DISABLED => return Some(self.disabled_revision),
            _ => {}
        }
        let condition = if let Some(index) = number_in_key(key, keys::REPAIRS) {
            self.require_unchanged_entry(index)
        } else if let Some(index) = number_in_key(key, keys::REBOOTS) {
            self.require_unchanged_reboot(index)
        } else if let Some(number) = number_in_key(key, keys::UPGRADE_DRAINS) {
            self.require_unchanged_reboot(!number)
        } else if let Some(index) = number_in_key(key, keys::REPAIR_KEPT) {
            self.require_unchanged_state(index)
        } else {
            let id = number_in_key(key, keys::RECORDS)?;
            return Some(self.records.known.get(&id).copied().unwrap_or(0));
        };
        match condition {
            Condition::Unchanged { revision, .. } => Some(revision),
            _ => None,
        }
    }

    /// The condition that no entry was added since this view; `None` if the counter is unreadable.
    #[must_use]
    pub fn write_index_unchanged(&self) -> Option<Condition> {
        let (_, revision) = self.write_index?;
        Some(Condition::Unchanged { key: keys::REPAIRS_WRITE_INDEX.to_owned(), revision })
    }

    /// The condition that no operation was registered since this view; `None` if the counter is unreadable.
    #[must_use]
    pub fn require_unchanged_records(&self) -> Option<Condition> {
        let (_, revision) = self.records.next?;
        Some(Condition::Unchanged { key: keys::RECORD_ID.to_owned(), revision })
    }
}

impl Records {
    fn decode(entries: &BTreeMap<String, Entry>, last: &Self, faults: &mut Vec<Fault>) -> Self {
        // CKE's first record has id 1.
        let mut next = read_number(entries, keys::RECORD_ID, 1, faults);
        let mut known = BTreeMap::new();
        let mut unfinished = BTreeMap::new();
        let mut past = BTreeMap::new();
        for (key, entry) in entries_below(entries, keys::RECORDS) {
            let Some(id) = number_in_key(key, keys::RECORDS) else { continue };
            known.insert(id, entry.mod_revision);
            if last.known.get(&id) == Some(&entry.mod_revision) {
                if let Some(item) = last.unfinished.get(&id) {
                    unfinished.insert(id, Arc::clone(item));
                }
                if let Some(same) = last.past.get(&id) {
                    past.insert(id, Arc::clone(same));
                }
                continue;
            }
            // Old records are history: an unreadable one blocks nothing.
            let Ok(record) = serde_json::from_slice::<Record>(&entry.value) else { continue };
            if [ETCD_BOOTSTRAP, ETCD_ADD_MEMBER, ETCD_DESTROY_MEMBER, REBOOT].contains(&&*record.operation) {
                let Record { operation, status, targets, end_at, .. } = record.clone();
                past.insert(id, Arc::new(PastRecord { operation, status, targets, end_at }));
            }
            if record.is_unfinished() {
                unfinished.insert(id, read_item(record, entry));
            }
        }
        // Reusing an id would overwrite a record.
        if let (Some((next, _)), Some((newest, _))) = (&mut next, known.last_key_value()) {
            *next = (*next).max(newest + 1);
        }
        Self { next, known, unfinished, past }
    }
}

fn entries_below<'a>(
    entries: &'a BTreeMap<String, Entry>,
    prefix: &'a str,
) -> impl Iterator<Item = (&'a String, &'a Entry)> {
    entries.range(prefix.to_owned()..).take_while(move |(key, _)| key.starts_with(prefix))
}

/// The number at the end of a key, which CKE writes with 16 hexadecimal digits.
fn number_in_key(key: &str, prefix: &str) -> Option<i64> {
    let digits = key.strip_prefix(prefix)?;
    let plain = digits.len() == 16 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    plain.then(|| i64::from_str_radix(digits, 16).ok())?
}

fn read_item<T>(value: T, entry: &Entry) -> Arc<Item<T>> {
    Arc::new(Item { value, created: entry.create_revision, revision: entry.mod_revision })
}

fn decode_items<T: DeserializeOwned>(
    entries: &BTreeMap<String, Entry>,
    prefix: &str,
    last: &Items<T>,
    faults: &mut Vec<Fault>,
) -> Items<T> {
    let mut items = BTreeMap::new();
    for (key, entry) in entries_below(entries, prefix) {
        let mut fault = |why: String| faults.push(Fault { key: key.clone(), why });
        let Some(number) = number_in_key(key, prefix) else {
            fault("the key does not end in 16 hexadecimal digits".to_owned());
            continue;
        };
        let kept = last
            .get(&number)
            .filter(|item| item.revision == entry.mod_revision && item.created == entry.create_revision);
        if let Some(kept) = kept {
            items.insert(number, Arc::clone(kept));
            continue;
        }
        match serde_json::from_slice::<T>(&entry.value) {
            Ok(value) => {
                items.insert(number, read_item(value, entry));
            }
            Err(error) => fault(format!("not readable: {error}")),
        }
    }
    items
}

/// The entries of the reboot queue, and the drains for upgrades with the complements of their numbers as indexes.
fn decode_reboots(
    entries: &BTreeMap<String, Entry>,
    last: &Items<RebootQueueEntry>,
    faults: &mut Vec<Fault>,
) -> Items<RebootQueueEntry> {
    let mut reboots = decode_items(entries, keys::REBOOTS, last, faults);
    let last = last.range(..0).map(|(index, item)| (!index, Arc::clone(item))).collect();
    for (number, item) in decode_items(entries, keys::UPGRADE_DRAINS, &last, faults) {
        if item.value.index == !number {
            reboots.insert(!number, item);
        } else {
            let why = format!("the value names the index {}, expected {}", item.value.index, !number);
            faults.push(Fault { key: keys::reboot(!number), why });
        }
    }
    reboots
}

/// Mod revisions of the numbered values below a prefix that could not be decoded.
fn unreadable_revisions<T>(
    entries: &BTreeMap<String, Entry>,
    prefix: &str,
    read: &Items<T>,
) -> BTreeMap<i64, i64> {
    let numbered =
        entries_below(entries, prefix).filter_map(|(key, entry)| Some((number_in_key(key, prefix)?, entry)));
    numbered
        .filter(|(number, _)| !read.contains_key(number))
        .map(|(number, entry)| (number, entry.mod_revision))
        .collect()
}

fn read_number(
    entries: &BTreeMap<String, Entry>,
    key: &str,
    absent: i64,
    faults: &mut Vec<Fault>,
) -> Option<(i64, i64)> {
    let Some(entry) = entries.get(key) else { return Some((absent, 0)) };
    let text = String::from_utf8_lossy(&entry.value);
    match text.parse::<i64>() {
        Ok(number) if number >= 0 => Some((number, entry.mod_revision)),
        _ => {
            let why = format!("got {text:?}, expected a decimal number");
            faults.push(Fault { key: key.to_owned(), why });
            None
        }
    }
}

#[cfg(test)]
mod tests;
