//! The store's whole history, revision by revision, as a client of its own sees it: what every judge reads.

use std::collections::BTreeMap;

use etcd_client::{Client, Event, WatchOptions};

/// Reads each event below a prefix (empty: all keys) from the first revision on, and gives the judge what each revision
/// brought, in order. Ends with the store.
pub async fn every_revision<T>(
    mut client: Client,
    prefix: &str,
    read: impl Fn(&Event) -> T,
    mut judge: impl FnMut(i64, Vec<T>),
) {
    let options = WatchOptions::new().with_start_revision(1);
    let options = if prefix.is_empty() { options.with_all_keys() } else { options.with_prefix() };
    let mut stream = client.watch(prefix, Some(options)).await.unwrap();
    while let Ok(Some(answer)) = stream.message().await {
        assert!(!answer.canceled(), "the watch of {prefix:?} was cancelled: {}", answer.cancel_reason());
        let mut revisions: BTreeMap<i64, Vec<T>> = BTreeMap::new();
        for event in answer.events() {
            revisions.entry(event.kv().unwrap().mod_revision()).or_default().push(read(event));
        }
        for (revision, changes) in revisions {
            judge(revision, changes);
        }
    }
}
