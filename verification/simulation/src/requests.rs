//! Judges, at each revision of the store, the entries and the holds of racks that the service makes from the registry's
//! reports.
//!
//! Does not judge whether a rack should have been held ([`crate::holding`] does), or machines of a held rack that do
//! not belong to the event.

use std::collections::{BTreeMap, BTreeSet};

use madako_domain::constraints::Constraints;
use madako_domain::invariants::{Id, Violation};
use madako_domain::keys;
use madako_domain::repair::hold::Hold;
use madako_domain::repair::{RepairQueueEntry, RepairStatus};
use madako_domain::store::Entry;
use serde::de::DeserializeOwned;

pub use madako_judges::history::{Change, with_prefix};

pub fn read_json<T: DeserializeOwned>(entry: &Entry) -> Option<T> {
    serde_json::from_slice(&entry.value).ok()
}

pub fn count_added(before: &BTreeMap<String, Entry>, changes: &[Change]) -> u64 {
    let is_new = |(key, after): &&Change| {
        key.starts_with(keys::REPAIRS) && after.is_some() && !before.contains_key(key)
    };
    changes.iter().filter(is_new).count() as u64
}

/// Number of racks whose hold begins with a revision.
pub fn count_new_holds(before: &BTreeMap<String, Entry>, changes: &[Change]) -> u64 {
    let is_held =
        |entry: Option<&Entry>| entry.and_then(read_json::<Hold>).is_some_and(|hold| hold.is_held());
    let begins = |(key, after): &&Change| {
        key.starts_with(keys::REPAIR_HOLDS) && is_held(after.as_ref()) && !is_held(before.get(key))
    };
    changes.iter().filter(begins).count() as u64
}

/// Violations in the additions and starts of a revision. `before` is the state before the revision.
pub fn find_violations(before: &BTreeMap<String, Entry>, changes: &[Change]) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut wrong = |what: String| found.push(Violation { invariant: Id::I7, what });
    let held: BTreeMap<String, &str> = with_prefix(before, keys::REPAIR_HOLDS)
        .filter_map(|(key, entry)| Some((key.strip_prefix(keys::REPAIR_HOLDS)?, read_json::<Hold>(entry)?)))
        .flat_map(|(rack, hold)| {
            let addresses: Vec<String> =
                hold.machines().into_values().map(|machine| machine.address.clone()).collect();
            addresses.into_iter().map(move |address| (address, rack))
        })
        .collect();
    let mut taken: BTreeSet<String> = with_prefix(before, keys::REPAIRS)
        .filter_map(|(_, entry)| read_json::<RepairQueueEntry>(entry))
        .map(|entry| entry.address)
        .collect();
    for (key, after) in changes.iter().filter(|(key, _)| key.starts_with(keys::REPAIRS)) {
        let Some(entry) = after.as_ref().and_then(read_json::<RepairQueueEntry>) else { continue };
        let rack = held.get(&entry.address);
        let was = before.get(key).and_then(read_json::<RepairQueueEntry>);
        match was {
            None => {
                if !taken.insert(entry.address.clone()) {
                    wrong(format!("{key} is for {}, which has an entry", entry.address));
                }
                if let Some(rack) = rack {
                    wrong(format!("{key} is for {} in rack {rack}, which is held", entry.address));
                }
            }
            Some(was) if was.status == RepairStatus::Queued && entry.status == RepairStatus::Processing => {
                if let Some(rack) = rack {
                    wrong(format!("{key} begins for {} in rack {rack}, which is held", entry.address));
                }
            }
            Some(_) => {}
        }
    }
    let new = count_added(before, changes);
    if new > 0 {
        let maximum = before.get(keys::CONSTRAINTS).and_then(read_json::<Constraints>);
        let maximum = maximum.map_or(0, |constraints| constraints.maximum_repair_queue_entries);
        let entries = with_prefix(before, keys::REPAIRS).count() as u64 + new;
        if i64::try_from(entries).is_ok_and(|entries| entries > maximum) {
            wrong(format!("{new} new entries make {entries}, of at most {maximum}"));
        }
    }
    found
}
