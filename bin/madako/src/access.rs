//! Access of operators' commands to etcd: reads a key, and changes it by compare-and-swap.

use std::collections::BTreeMap;

use bytes::Bytes;
use madako_domain::keys;
use madako_domain::record::Record;
use madako_domain::store::{Condition, Entry, Outcome, Snapshot, StoreErrorKind, Transaction, Write};
use madako_protocol::store::Store;
use madako_store::EtcdStore;
use madako_supervisor::config::Config;
use serde::de::DeserializeOwned;

use crate::cli::Global;
use crate::failure::Failure;
use crate::limits::{MAX_ACCESS_TRIES, MAX_VALUE};
use crate::output::print_warning;

/// Seed of the jitter between connection attempts. A command makes so few requests that its jitter need not vary.
const SEED: u64 = 0;

/// Opens a client of the configured store.
///
/// # Errors
/// The configuration is not usable.
pub(crate) fn open_store(global: &Global) -> Result<EtcdStore, Failure> {
    open_configured_store(&Config::load(global.config.as_deref())?)
}

/// Opens a client of the store of a configuration.
///
/// # Errors
/// The configuration is not usable.
pub(crate) fn open_configured_store(config: &Config) -> Result<EtcdStore, Failure> {
    EtcdStore::open(&config.clients, SEED).map_err(|error| Failure::BadInput(error.into()))
}

/// # Errors
/// The store cannot be read.
pub(crate) async fn list_entries(
    store: &dyn Store,
    prefix: &str,
) -> Result<BTreeMap<String, Entry>, Failure> {
    Ok(store.list(prefix).await?.entries)
}

/// # Errors
/// The store cannot be read.
pub(crate) async fn get_entry(store: &dyn Store, key: &str) -> Result<Option<Entry>, Failure> {
    Ok(store.list(key).await?.entries.remove(key))
}

/// Parses a stored JSON value.
///
/// # Errors
/// The value has another form.
pub(crate) fn decode<T: DeserializeOwned>(key: &str, entry: &Entry) -> Result<T, Failure> {
    serde_json::from_slice(&entry.value)
        .map_err(|error| Failure::failed(format_args!("the stored value of {key} cannot be read: {error}")))
}

/// The readable records, the oldest first. A warning names each other one.
pub(crate) fn read_records(snapshot: &Snapshot) -> Vec<Record> {
    let stored = snapshot.entries.iter().filter(|(key, _)| key.starts_with(keys::RECORDS));
    let mut records: Vec<Record> = Vec::new();
    for (key, entry) in stored {
        match decode(key, entry) {
            Ok(record) => records.push(record),
            Err(failure) => print_warning(failure.message().unwrap_or_default()),
        }
    }
    records
}

pub(crate) fn unchanged_condition(key: &str, entry: Option<&Entry>) -> Condition {
    Condition::Unchanged { key: key.to_owned(), revision: entry.map_or(0, |entry| entry.mod_revision) }
}

/// Puts a value if all conditions hold; returns whether they did.
///
/// # Errors
/// The store refused, or did not answer: then the value may have been written or not.
pub(crate) async fn put_if(
    store: &dyn Store,
    key: &str,
    value: Vec<u8>,
    conditions: Vec<Condition>,
) -> Result<bool, Failure> {
    if value.len() > MAX_VALUE {
        return Err(Failure::bad_input(format_args!(
            "the new value of {key} has {} bytes; the limit is {MAX_VALUE} bytes",
            value.len()
        )));
    }
    write_if(store, Write::Put { key: key.to_owned(), value: Bytes::from(value), lease: 0 }, conditions).await
}

/// Removes a key unless it changed since it was read; returns whether it did.
///
/// # Errors
/// The store refused, or did not answer: then the key may have been removed or not.
pub(crate) async fn remove_if(store: &dyn Store, key: &str, read: &Entry) -> Result<bool, Failure> {
    write_if(store, Write::Delete { key: key.to_owned() }, vec![unchanged_condition(key, Some(read))]).await
}

async fn write_if(store: &dyn Store, write: Write, conditions: Vec<Condition>) -> Result<bool, Failure> {
    let key = match &write {
        Write::Put { key, .. } | Write::Delete { key } => key.clone(),
    };
    let outcome = store.commit(Transaction { conditions, writes: vec![write] }).await.map_err(|error| {
        let unsure = matches!(error.kind, StoreErrorKind::Unavailable | StoreErrorKind::Deadline);
        match Failure::from(error) {
            Failure::Failed(error) if unsure => Failure::Failed(anyhow::anyhow!(
                "{error}; it is unknown whether {key} was written: read it before you try again"
            )),
            other => other,
        }
    })?;
    Ok(matches!(outcome, Outcome::Committed { .. }))
}

/// Replaces the present value of a key, unless it changes at the same moment. Returns the former value.
///
/// # Errors
/// See [`put_if`]; or another client changed the key first.
pub(crate) async fn replace(store: &dyn Store, key: &str, value: Vec<u8>) -> Result<Option<Entry>, Failure> {
    let read = get_entry(store, key).await?;
    if put_if(store, key, value, vec![unchanged_condition(key, read.as_ref())]).await? {
        return Ok(read);
    }
    Err(concurrent_change_failure(key))
}

/// Computes a new value from the present one; repeats that after a concurrent change.
///
/// # Errors
/// See [`put_if`]; `change` refused; or another client changed the key first at each attempt.
pub(crate) async fn modify_entry<T>(
    store: &dyn Store,
    key: &str,
    mut change: impl FnMut(Option<&Entry>) -> Result<(Vec<u8>, T), Failure>,
) -> Result<T, Failure> {
    for _ in 0..MAX_ACCESS_TRIES {
        let read = get_entry(store, key).await?;
        let (value, outcome) = change(read.as_ref())?;
        if put_if(store, key, value, vec![unchanged_condition(key, read.as_ref())]).await? {
            return Ok(outcome);
        }
    }
    Err(concurrent_change_failure(key))
}

/// Another client changed the key first.
pub(crate) fn concurrent_change_failure(key: &str) -> Failure {
    Failure::failed(format_args!(
        "another client changed {key} at the same time; nothing was written: run the command again"
    ))
}
