//! The store's whole history, revision by revision, as a client of its own sees it: what every judge reads.

use std::collections::BTreeMap;

use etcd_client::{Event, WatchOptions};

use crate::store_process::StoreProcess;

/// Reads each event below a prefix (empty: all keys) from the first revision on, and gives the judge what each revision
/// brought, in order. Goes on where it was when the store was started again.
///
/// # Panics
/// The store refuses the watch: a revision was compacted before it was read.
pub async fn every_revision<T>(
    store: StoreProcess,
    prefix: &str,
    read: impl Fn(&Event) -> T,
    mut judge: impl FnMut(i64, Vec<T>),
) {
    let mut next = 1;
    loop {
        let mut client = store.next_client().await;
        let options = WatchOptions::new().with_start_revision(next);
        let options = if prefix.is_empty() { options.with_all_keys() } else { options.with_prefix() };
        // A store that was killed just now; the next one is waited for.
        let Ok(mut stream) = client.watch(prefix, Some(options)).await else {
            tokio::task::yield_now().await;
            continue;
        };
        while let Ok(Some(answer)) = stream.message().await {
            assert!(!answer.canceled(), "the watch of {prefix:?} was cancelled: {}", answer.cancel_reason());
            let mut revisions: BTreeMap<i64, Vec<T>> = BTreeMap::new();
            for event in answer.events() {
                revisions.entry(event.kv().unwrap().mod_revision()).or_default().push(read(event));
            }
            for (revision, changes) in revisions {
                next = revision + 1;
                judge(revision, changes);
            }
        }
        tokio::task::yield_now().await;
    }
}
