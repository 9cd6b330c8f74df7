//! Reads every key below a prefix, page by page, at one revision.

use bytes::Bytes;
use etcd_client::{GetOptions, GetResponse, KeyValue};
use madako_domain::store::{Entry, Snapshot, StoreError, StoreErrorKind};

use crate::connections::{Connections, Failed};
use crate::error::answer_is_too_large;
use crate::limits::{LIST_PAGE, MOST_LISTED_BYTES, MOST_LISTED_KEYS};
use crate::namespace::{Namespace, Range};
use crate::telemetry::{self, Operation};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadExtent {
    All,
    Keys,
}

/// Every key below the prefix, at the given revision or (0) at the present one. Each page has the store's deadline.
pub(crate) async fn list_keys(
    connections: &Connections,
    namespace: &Namespace,
    prefix: &str,
    extent: ReadExtent,
    revision: i64,
) -> Result<Snapshot, Failed> {
    let Range { mut from, end } = namespace.key_range(prefix);
    let mut snapshot = Snapshot { revision, ..Snapshot::default() };
    let mut page = LIST_PAGE;
    let mut bytes = 0;
    loop {
        let mut options = GetOptions::new().with_range(end.clone()).with_limit(page);
        if snapshot.revision > 0 {
            options = options.with_revision(snapshot.revision);
        }
        if extent == ReadExtent::Keys {
            options = options.with_keys_only();
        }
        let result = connections
            .send_request(Operation::List, prefix, connections.timeout(), |connection| {
                let (from, options) = (from.clone(), options.clone());
                async move { connection.kv_client().get(from, Some(options)).await }
            })
            .await;
        let mut answer: GetResponse = match result {
            Err(failed) if page > 1 && failed.source.as_ref().is_some_and(answer_is_too_large) => {
                page = (page / 8).max(1);
                continue;
            }
            answer => answer?,
        };
        if snapshot.revision == 0 {
            snapshot.revision = answer.header().map_or(0, |header| header.revision());
        }
        let more = answer.more();
        let kvs = answer.take_kvs();
        // Continue after the last key of this page.
        if let Some(last) = kvs.last() {
            from = [last.key(), &[0]].concat();
        } else if more {
            return Err(list_failure(prefix, "the store announces further keys but returns none".into()));
        }
        for kv in kvs {
            bytes += kv.value().len();
            if let Some((key, entry)) = to_entry(namespace, kv) {
                snapshot.entries.insert(key, entry);
            }
        }
        if snapshot.entries.len() > MOST_LISTED_KEYS || bytes > MOST_LISTED_BYTES {
            return Err(list_failure(
                prefix,
                format!("more than {MOST_LISTED_KEYS} keys or {MOST_LISTED_BYTES} bytes"),
            ));
        }
        if !more {
            return Ok(snapshot);
        }
    }
}

/// A key at the root that is never written: reading it costs the store next to nothing.
const NOTHING: &str = "/madako/nothing";

/// The present revision of the store: a linearizable read of a key that does not exist.
pub(crate) async fn read_revision(connections: &Connections) -> Result<i64, Failed> {
    let ask = |connection: std::sync::Arc<crate::connections::Connection>| async move {
        connection.kv_client().get(NOTHING, Some(GetOptions::new().with_keys_only())).await
    };
    let answer = connections.send_request(Operation::Revision, "", connections.timeout(), ask).await?;
    match answer.header().map_or(0, |header| header.revision()) {
        0 => {
            let operation = Operation::Revision.describe_on("");
            let why = "the answer has no revision".to_owned();
            Err(Failed { error: StoreError { operation, kind: StoreErrorKind::Other, why }, source: None })
        }
        revision => Ok(revision),
    }
}

fn list_failure(prefix: &str, why: String) -> Failed {
    let operation = Operation::List.describe_on(prefix);
    Failed { error: StoreError { operation, kind: StoreErrorKind::Invalid, why }, source: None }
}

/// A relative key with its entry. `None` for a key that is not UTF-8, which this service never writes.
pub(crate) fn to_entry(namespace: &Namespace, kv: KeyValue) -> Option<(String, Entry)> {
    let key = relative_key(namespace, &kv)?;
    let (create_revision, mod_revision, lease) = (kv.create_revision(), kv.mod_revision(), kv.lease());
    let entry = Entry { value: Bytes::from(kv.0.value), create_revision, mod_revision, lease };
    Some((key, entry))
}

/// The relative key; a key that is not UTF-8 is counted and logged.
pub(crate) fn relative_key(namespace: &Namespace, kv: &KeyValue) -> Option<String> {
    let key = namespace.relative_key(kv.key());
    if key.is_none() {
        telemetry::madako_store_keys_skipped_total().increment(1);
        tracing::warn!(key = %kv.key().escape_ascii(), "a key in the store is left out: it is not UTF-8");
    }
    key
}
