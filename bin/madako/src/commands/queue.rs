//! Entries of CKE's queues: added under the next number, and changed by compare-and-swap.

use std::ops::RangeInclusive;

use madako_domain::store::{Condition, Entry, Outcome, Transaction, Write};
use madako_json::go::escaped;
use madako_protocol::store::Store;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::access::{changed_meanwhile, decode, get, list, put_if, unchanged};
use crate::cli::whole_number;
use crate::failure::Failure;
use crate::limits::{MAX_ADD_TRIES, MAX_CHANGE_TRIES};

/// A number of an entry on the command line.
pub(crate) fn index(text: &str) -> Result<i64, String> {
    const INDEXES: RangeInclusive<u64> = 0..=i64::MAX.cast_unsigned();
    whole_number(text, INDEXES).map(u64::cast_signed)
}

/// All entries in the order of their numbers.
pub(crate) async fn entries<T: DeserializeOwned>(store: &dyn Store, prefix: &str) -> Result<Vec<T>, Failure> {
    list(store, prefix).await?.iter().map(|(key, entry)| decode(key, entry)).collect()
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
        let stored = get(store, counter).await?;
        let first = next_index(counter, stored.as_ref(), entries.len())?;
        let mut next = first;
        let mut conditions = vec![unchanged(counter, stored.as_ref())];
        let mut writes = Vec::new();
        let put = |key: String, value: String| Write::Put { key, value: value.into_bytes().into(), lease: 0 };
        for entry in &mut *entries {
            number(entry, next);
            // An existing entry is not overwritten, whatever the counter says.
            conditions.push(Condition::Unchanged { key: key(next), revision: 0 });
            writes.push(put(key(next), escaped(serde_json::to_string(entry)?)));
            next += 1;
        }
        writes.push(put(counter.to_owned(), next.to_string()));
        if let Outcome::Committed { .. } = store.commit(Transaction { conditions, writes }).await? {
            return Ok(());
        }
    }
    Err(changed_meanwhile(counter))
}

fn next_index(counter: &str, stored: Option<&Entry>, added: usize) -> Result<i64, Failure> {
    let Some(stored) = stored else { return Ok(0) };
    let fits = |index: &i64| *index >= 0 && i64::try_from(added).is_ok_and(|added| *index < i64::MAX - added);
    let index = std::str::from_utf8(&stored.value).ok().and_then(|text| text.parse().ok()).filter(fits);
    index.ok_or_else(|| Failure::failed(format_args!("the stored value of {counter} is not a number")))
}

/// Changes an entry if `change` returns true. After a concurrent change the entry is read again, so that no write of
/// the service is undone. Returns whether the entry changed, with the entry; `None`: the entry is gone.
pub(crate) async fn change_entry<T: Serialize + DeserializeOwned>(
    store: &dyn Store,
    key: &str,
    change: impl Fn(&mut T) -> bool,
) -> Result<Option<(bool, T)>, Failure> {
    for _ in 0..MAX_CHANGE_TRIES {
        let Some(stored) = get(store, key).await? else { return Ok(None) };
        let mut entry: T = decode(key, &stored)?;
        if !change(&mut entry) {
            return Ok(Some((false, entry)));
        }
        let conditions = vec![unchanged(key, Some(&stored))];
        if put_if(store, key, escaped(serde_json::to_string(&entry)?).into_bytes(), conditions).await? {
            return Ok(Some((true, entry)));
        }
    }
    Err(changed_meanwhile(key))
}
