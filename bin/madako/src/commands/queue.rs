//! Adds entries to the repair queue and the reboot queue under the next number, and changes them by compare-and-swap.

use std::ops::RangeInclusive;

use madako_domain::keys;
use madako_domain::reboot::RebootQueueEntry;
use madako_domain::repair::RepairQueueEntry;
use madako_domain::store::{Condition, Entry, Outcome, Transaction, Write};
use madako_json::go::{escape_html, to_pretty_json};
use madako_protocol::store::Store;
use madako_supervisor::clock::SystemClock;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use time::OffsetDateTime;

use crate::access::{
    concurrent_change_failure, decode, get_entry, list_entries, put_if, unchanged_condition,
};
use crate::cli::whole_number;
use crate::commands::node::format_age;
use crate::commands::repair_queue::format_time;
use crate::failure::Failure;
use crate::limits::{LIST_PAUSE, MAX_ADD_TRIES, MAX_CHANGE_TRIES};
use crate::list::{AsList, Cell, CkeListArgs, List, Tone};
use crate::output::{OutputArgs, Table, print_text, show_value};

/// An entry of the repair queue or of the reboot queue.
pub(crate) trait QueueEntry: Serialize + DeserializeOwned {
    /// The name of the queue in messages.
    const QUEUE: &str;
    /// The prefix of the entries' keys.
    const PREFIX: &str;

    fn key(index: i64) -> String;

    fn index(&self) -> i64;

    /// The entry in a message, such as `entry 3 (10.0.0.4, queued)`.
    fn describe(&self) -> String;

    /// The number of aborted drains, and the end of the back-off after them.
    fn backoff(&mut self) -> (&mut u32, &mut Option<OffsetDateTime>);
}

impl QueueEntry for RepairQueueEntry {
    const QUEUE: &str = "repair queue";
    const PREFIX: &str = keys::REPAIRS;

    fn key(index: i64) -> String {
        keys::repair(index)
    }

    fn index(&self) -> i64 {
        self.index
    }

    fn describe(&self) -> String {
        format!("entry {} ({} of {}, {})", self.index, self.operation, self.address, self.status)
    }

    fn backoff(&mut self) -> (&mut u32, &mut Option<OffsetDateTime>) {
        (&mut self.drain_backoff_count, &mut self.drain_backoff_expire)
    }
}

impl QueueEntry for RebootQueueEntry {
    const QUEUE: &str = "reboot queue";
    const PREFIX: &str = keys::REBOOTS;

    fn key(index: i64) -> String {
        keys::reboot(index)
    }

    fn index(&self) -> i64 {
        self.index
    }

    fn describe(&self) -> String {
        format!("entry {} ({}, {})", self.index, self.node, self.status)
    }

    fn backoff(&mut self) -> (&mut u32, &mut Option<OffsetDateTime>) {
        (&mut self.drain_backoff_count, &mut self.drain_backoff_expire)
    }
}

/// A number of an entry on the command line.
pub(crate) fn parse_index(text: &str) -> Result<i64, String> {
    const INDEXES: RangeInclusive<u64> = 0..=i64::MAX.cast_unsigned();
    whole_number(text, INDEXES).map(u64::cast_signed)
}

/// All entries in the order of their numbers.
pub(crate) async fn queue_entries<T: QueueEntry>(store: &dyn Store) -> Result<Vec<T>, Failure> {
    list_entries(store, T::PREFIX).await?.iter().map(|(key, entry)| decode(key, entry)).collect()
}

/// Shows all entries. `columns`: the list without lines.
pub(crate) async fn show_list<T: QueueEntry>(
    args: &CkeListArgs,
    store: &dyn Store,
    columns: List,
) -> Result<(), Failure>
where
    Vec<T>: AsList,
{
    let in_cke = |entries: &Vec<T>| {
        // Go writes a nil slice as null, and escapes some characters.
        Ok(if entries.is_empty() { "null\n".to_owned() } else { escape_html(to_pretty_json(entries)?) })
    };
    args.show(columns, &SystemClock, LIST_PAUSE, async || queue_entries(store).await, in_cke).await
}

/// The remaining time of a back-off; the first end is first.
pub(crate) fn backoff_cell(until: Option<OffsetDateTime>, now: OffsetDateTime) -> Cell {
    let Some(until) = until.filter(|until| *until > now) else { return Cell::new("-").with_order(i64::MAX) };
    Cell::new(format_age(until - now))
        .with_order(until.unix_timestamp())
        .with_exact_text(format_time(Some(until)))
        .with_tone(Tone::Notice)
}

/// Adds entries under the next numbers, all or none, as ckecli adds one. `number` sets the number of an entry.
pub(crate) async fn append<T: Serialize>(
    store: &dyn Store,
    counter: &str,
    key: impl Fn(i64) -> String,
    entries: &mut [T],
    number: impl Fn(&mut T, i64),
) -> Result<(), Failure> {
    for _ in 0..MAX_ADD_TRIES {
        let stored = get_entry(store, counter).await?;
        let first = next_index(counter, stored.as_ref(), entries.len())?;
        let mut next = first;
        let mut conditions = vec![unchanged_condition(counter, stored.as_ref())];
        let mut writes = Vec::new();
        let put = |key: String, value: String| Write::Put { key, value: value.into_bytes().into(), lease: 0 };
        for entry in &mut *entries {
            number(entry, next);
            // An existing entry is not overwritten, whatever the counter says.
            conditions.push(Condition::Unchanged { key: key(next), revision: 0 });
            writes.push(put(key(next), escape_html(serde_json::to_string(entry)?)));
            next += 1;
        }
        writes.push(put(counter.to_owned(), next.to_string()));
        if let Outcome::Committed { .. } = store.commit(Transaction { conditions, writes }).await? {
            return Ok(());
        }
    }
    Err(concurrent_change_failure(counter))
}

fn next_index(counter: &str, stored: Option<&Entry>, added: usize) -> Result<i64, Failure> {
    let Some(stored) = stored else { return Ok(0) };
    let fits = |index: &i64| *index >= 0 && i64::try_from(added).is_ok_and(|added| *index < i64::MAX - added);
    let index = std::str::from_utf8(&stored.value).ok().and_then(|text| text.parse().ok()).filter(fits);
    index.ok_or_else(|| {
        Failure::failed(format_args!(
            "the key {counter} of the store, the index of the next entry, is not a number from 0: correct it"
        ))
    })
}

/// Changes an entry if `change` returns true. After a concurrent change the entry is read again, so that no write of
/// the service is undone. Returns whether the entry changed, with the entry; `None`: the entry is gone.
pub(crate) async fn change_entry<T: Serialize + DeserializeOwned>(
    store: &dyn Store,
    key: &str,
    change: impl Fn(&mut T) -> bool,
) -> Result<Option<(bool, T)>, Failure> {
    for _ in 0..MAX_CHANGE_TRIES {
        let Some(stored) = get_entry(store, key).await? else { return Ok(None) };
        let mut entry: T = decode(key, &stored)?;
        if !change(&mut entry) {
            return Ok(Some((false, entry)));
        }
        let conditions = vec![unchanged_condition(key, Some(&stored))];
        if put_if(store, key, escape_html(serde_json::to_string(&entry)?).into_bytes(), conditions).await? {
            return Ok(Some((true, entry)));
        }
    }
    Err(concurrent_change_failure(key))
}

/// Requests the removal of an entry by `mark`, which returns false if it was requested before.
pub(crate) async fn remove<T: QueueEntry>(
    store: &dyn Store,
    index: i64,
    mark: impl Fn(&mut T) -> bool,
) -> Result<(), Failure> {
    let Some((changed, entry)) = change_entry(store, &T::key(index), mark).await? else {
        return Err(Failure::failed(format_args!(
            "the {} has no entry {index}: madako {} list shows all entries",
            T::QUEUE,
            T::QUEUE.replace(' ', "-")
        )));
    };
    let before = if changed { "" } else { ", as before" };
    print_text(&format!("{}: to be removed{before}\n", entry.describe()))
}

/// Requests the removal of all entries for which `mark` returns true, and shows their numbers. `done` says in the output
/// that it was requested.
pub(crate) async fn remove_all<T: QueueEntry>(
    args: &OutputArgs,
    store: &dyn Store,
    done: &'static str,
    mark: impl Fn(&mut T) -> bool,
) -> Result<(), Failure> {
    let mut removed = Vec::new();
    for (key, _) in list_entries(store, T::PREFIX).await? {
        if let Some((true, entry)) = change_entry(store, &key, &mark).await? {
            removed.push(entry.index());
            if args.output.is_none() {
                // Printed one by one, as ckecli does: a later removal may fail.
                print_text(&format!("{}\n", entry.index()))?;
            }
        }
    }
    match args.output {
        None => Ok(()),
        Some(format) => show_value(format, &json!({ (done): removed }), |_| {
            let mut table = Table::new([&*done.to_uppercase()]);
            for index in &removed {
                table.add_row([index.to_string()]);
            }
            table.to_text()
        }),
    }
}

/// Ends the back-off of all entries with aborted drains, and shows them.
pub(crate) async fn reset_backoff<T: QueueEntry>(store: &dyn Store) -> Result<(), Failure> {
    for (key, _) in list_entries(store, T::PREFIX).await? {
        let reset = |entry: &mut T| {
            let (count, expire) = entry.backoff();
            let had_end = expire.take().is_some();
            std::mem::take(count) != 0 || had_end
        };
        if let Some((true, entry)) = change_entry(store, &key, reset).await? {
            print_text(&format!("{}: retried at once\n", entry.describe()))?;
        }
    }
    Ok(())
}
