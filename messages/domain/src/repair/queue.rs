//! What the repair queue reads from the store, decoded: part of [`crate::state::ClusterState`].
//!
//! Each value is read by itself: one that cannot be used is a fault, and stands for nothing. A value that did not change
//! since the last view is taken over, so that a view of a thousand entries costs little.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::de::DeserializeOwned;

use crate::canary::{Canary, is_planted};
use crate::keys;
use crate::reboot::{RebootQueueEntry, RebootStatus};
use crate::record::Record;
use crate::repair::kept::Kept;
use crate::repair::{RepairQueueEntry, RepairStatus};
use crate::state::Fault;
use crate::store::{Condition, Entry};

/// A value with the revisions of its key.
#[derive(Debug, PartialEq)]
pub struct Item<T> {
    /// The value.
    pub value: T,
    /// Create revision.
    pub created: i64,
    /// Mod revision.
    pub revision: i64,
}

/// Values by their number.
pub type Items<T> = BTreeMap<i64, Arc<Item<T>>>;

/// Everything that repairs are decided on, at one revision.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RepairQueue {
    /// The entries by index.
    pub entries: Items<RepairQueueEntry>,
    /// What is kept of entries beside them, by index; also of entries that are gone.
    pub kept: Items<Kept>,
    /// The entries of the reboot queue by index.
    pub reboots: Items<RebootQueueEntry>,
    /// Whether the reboot queue is switched off.
    pub reboots_disabled: bool,
    /// Whether CKE says that it works at the reboot queue.
    pub reboots_running: bool,
    /// Whether drains and commands are switched off.
    pub disabled: bool,
    /// Mod revision of that switch; 0 when it was never set.
    pub disabled_revision: i64,
    /// Number of the next entry, and the mod revision of the key that says so (0: there is none); `None`: not readable.
    pub write_index: Option<(i64, i64)>,
    /// The operation records.
    pub records: Records,
    /// What is there and cannot be read: it is not absent.
    pub unreadable: Unreadable,
}

/// Mod revisions of values that cannot be read, by the number of their entry.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Unreadable {
    /// Of entries.
    pub entries: BTreeMap<i64, i64>,
    /// Of what is kept beside entries.
    pub kept: BTreeMap<i64, i64>,
}

/// The operation records, as far as registering another one needs them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Records {
    /// Number of the next one, and the mod revision of the key that says so (0: there is none); `None`: not readable.
    pub next: Option<(i64, i64)>,
    /// Mod revision of each record by number.
    pub known: BTreeMap<i64, i64>,
    /// Those that have not ended.
    pub unfinished: Items<Record>,
}

impl RepairQueue {
    /// Decodes what is below the prefix; faults are added.
    #[must_use]
    pub fn decode(entries: &BTreeMap<String, Entry>, last: Option<&Self>, faults: &mut Vec<Fault>) -> Self {
        let none = Self::default();
        // CKE compares the bytes: anything but `true` is no.
        let is_true = |key: &str| entries.get(key).is_some_and(|entry| &entry.value[..] == b"true");
        let last = last.unwrap_or(&none);
        let mut queue = Self {
            entries: items(entries, keys::REPAIRS, &last.entries, faults),
            kept: items(entries, keys::REPAIR_KEPT, &last.kept, faults),
            reboots: items(entries, keys::REBOOTS, &last.reboots, faults),
            reboots_disabled: is_true(keys::REBOOTS_DISABLED),
            reboots_running: is_true(keys::REBOOTS_RUNNING),
            disabled_revision: entries.get(keys::REPAIRS_DISABLED).map_or(0, |entry| entry.mod_revision),
            disabled: is_true(keys::REPAIRS_DISABLED) && !is_planted(Canary::RepairsWhileDisabled),
            write_index: number(entries, keys::REPAIRS_WRITE_INDEX, 0, faults),
            records: Records::decode(entries, &last.records, faults),
            unreadable: Unreadable::default(),
        };
        queue.entries.retain(|index, item| {
            let same = item.value.index == *index;
            if !same {
                let why = format!("it says that its index is {}", item.value.index);
                faults.push(Fault { key: keys::repair(*index), why });
            }
            same
        });
        queue.unreadable = Unreadable {
            entries: others(entries, keys::REPAIRS, &queue.entries),
            kept: others(entries, keys::REPAIR_KEPT, &queue.kept),
        };
        queue
    }

    /// What is kept of an entry: nothing, when that was another one with the same number.
    #[must_use]
    pub fn kept_of(&self, index: i64) -> Option<&Kept> {
        let entry = self.entries.get(&index)?;
        self.kept.get(&index).map(|kept| &kept.value).filter(|kept| kept.entry == entry.created)
    }

    /// Reboots that are under way, by the address of their node: drained, or rebooting.
    pub fn rebooting(&self) -> impl Iterator<Item = (&str, &RebootQueueEntry)> {
        self.reboots
            .values()
            .map(|reboot| &reboot.value)
            .filter(|reboot| matches!(reboot.status, RebootStatus::Draining | RebootStatus::Rebooting))
            .map(|reboot| (reboot.node.as_str(), reboot))
    }

    /// Addresses of the machines whose repair has begun and not ended, though it may wait, and of those that are drained for
    /// a reboot or rebooting.
    pub fn under_way(&self) -> impl Iterator<Item = &str> {
        let begun = self.entries.values().filter(|item| item.value.status == RepairStatus::Processing);
        begun.map(|item| item.value.address.as_str()).chain(self.rebooting().map(|(node, _)| node))
    }

    /// The condition that an entry is as this view shows it.
    #[must_use]
    pub fn entry_unchanged(&self, index: i64) -> Condition {
        let unreadable = self.unreadable.entries.get(&index).copied();
        let revision = self.entries.get(&index).map_or(unreadable.unwrap_or(0), |item| item.revision);
        Condition::Unchanged { key: keys::repair(index), revision }
    }

    /// The record of the command that runs for an entry, its success command included, by what is kept beside it and whatever the
    /// entry says itself: somebody may have written an older state over it, or something that nobody can read.
    #[must_use]
    pub fn command_of(&self, index: i64) -> Option<i64> {
        let finishing = self.kept.get(&index).and_then(|item| item.value.finishing);
        self.repair_of(index).or(finishing.filter(|record| self.runs(*record)))
    }

    /// The same of the command of a step: the machine is under repair.
    #[must_use]
    pub fn repair_of(&self, index: i64) -> Option<i64> {
        let started = self.kept.get(&index)?.value.started.as_ref()?;
        Some(started.record).filter(|record| self.runs(*record))
    }

    fn runs(&self, record: i64) -> bool {
        self.records.unfinished.contains_key(&record)
    }

    /// The condition that nothing more is kept of an entry than this view shows.
    #[must_use]
    pub fn kept_unchanged(&self, index: i64) -> Condition {
        let unreadable = self.unreadable.kept.get(&index).copied();
        let revision = self.kept.get(&index).map_or(unreadable.unwrap_or(0), |item| item.revision);
        Condition::Unchanged { key: keys::repair_kept(index), revision }
    }

    /// Mod revision of a key that changes of the queue compare, 0 where it is not there; `None`: of that key nothing is known here.
    #[must_use]
    pub fn revision_of(&self, key: &str) -> Option<i64> {
        let revision = |known: Option<(i64, i64)>| known.map(|(_, revision)| revision);
        match key {
            keys::RECORD_ID => return revision(self.records.next),
            keys::REPAIRS_WRITE_INDEX => return revision(self.write_index),
            keys::REPAIRS_DISABLED => return Some(self.disabled_revision),
            _ => {}
        }
        let condition = if let Some(index) = number_of(key, keys::REPAIRS) {
            self.entry_unchanged(index)
        } else if let Some(index) = number_of(key, keys::REPAIR_KEPT) {
            self.kept_unchanged(index)
        } else {
            let id = number_of(key, keys::RECORDS)?;
            return Some(self.records.known.get(&id).copied().unwrap_or(0));
        };
        match condition {
            Condition::Unchanged { revision, .. } => Some(revision),
            _ => None,
        }
    }

    /// The condition that nobody added an entry since this view; `None`: their number is not readable.
    #[must_use]
    pub fn write_index_unchanged(&self) -> Option<Condition> {
        let (_, revision) = self.write_index?;
        Some(Condition::Unchanged { key: keys::REPAIRS_WRITE_INDEX.to_owned(), revision })
    }

    /// The condition that no operation was registered since this view; `None`: their number is not readable.
    #[must_use]
    pub fn records_unchanged(&self) -> Option<Condition> {
        let (_, revision) = self.records.next?;
        Some(Condition::Unchanged { key: keys::RECORD_ID.to_owned(), revision })
    }
}

impl Records {
    fn decode(entries: &BTreeMap<String, Entry>, last: &Self, faults: &mut Vec<Fault>) -> Self {
        // CKE's first record is number 1.
        let mut next = number(entries, keys::RECORD_ID, 1, faults);
        let mut known = BTreeMap::new();
        let mut unfinished = BTreeMap::new();
        for (key, entry) in below(entries, keys::RECORDS) {
            let Some(id) = number_of(key, keys::RECORDS) else { continue };
            known.insert(id, entry.mod_revision);
            if last.known.get(&id) == Some(&entry.mod_revision) {
                if let Some(item) = last.unfinished.get(&id) {
                    unfinished.insert(id, Arc::clone(item));
                }
                continue;
            }
            // Old records are history: one that cannot be read hinders nothing.
            if let Ok(record) = serde_json::from_slice::<Record>(&entry.value)
                && record.is_unfinished()
            {
                unfinished.insert(id, item(record, entry));
            }
        }
        // A number that was given already would hide a record.
        if let (Some((next, _)), Some((newest, _))) = (&mut next, known.last_key_value()) {
            *next = (*next).max(newest + 1);
        }
        Self { next, known, unfinished }
    }
}

fn below<'a>(
    entries: &'a BTreeMap<String, Entry>,
    prefix: &'a str,
) -> impl Iterator<Item = (&'a String, &'a Entry)> {
    entries.range(prefix.to_owned()..).take_while(move |(key, _)| key.starts_with(prefix))
}

/// The number at the end of a key, which CKE writes with 16 hexadecimal digits.
fn number_of(key: &str, prefix: &str) -> Option<i64> {
    let digits = key.strip_prefix(prefix)?;
    let plain = digits.len() == 16 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    plain.then(|| i64::from_str_radix(digits, 16).ok())?
}

fn item<T>(value: T, entry: &Entry) -> Arc<Item<T>> {
    Arc::new(Item { value, created: entry.create_revision, revision: entry.mod_revision })
}

fn items<T: DeserializeOwned>(
    entries: &BTreeMap<String, Entry>,
    prefix: &str,
    last: &Items<T>,
    faults: &mut Vec<Fault>,
) -> Items<T> {
    let mut items = BTreeMap::new();
    for (key, entry) in below(entries, prefix) {
        let mut fault = |why: String| faults.push(Fault { key: key.clone(), why });
        let Some(number) = number_of(key, prefix) else {
            fault("its key does not end in 16 hexadecimal digits".to_owned());
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
                items.insert(number, item(value, entry));
            }
            Err(error) => fault(format!("not readable: {error}")),
        }
    }
    items
}

/// Mod revisions of the numbered values below a prefix that are not among those that could be read.
fn others<T>(entries: &BTreeMap<String, Entry>, prefix: &str, read: &Items<T>) -> BTreeMap<i64, i64> {
    let numbered = below(entries, prefix).filter_map(|(key, entry)| Some((number_of(key, prefix)?, entry)));
    numbered
        .filter(|(number, _)| !read.contains_key(number))
        .map(|(number, entry)| (number, entry.mod_revision))
        .collect()
}

fn number(
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
