//! The store's whole history, revision by revision, as a client of its own reads it: the input of every judge of a
//! simulated run.

use std::collections::BTreeMap;

use etcd_client::{Event, WatchOptions};

use crate::store_process::StoreProcess;

/// Reads each event below `prefix` (empty: all keys) from revision `next` on, and passes the events of each revision
/// to the judge, in order. Continues at the same revision after a restart of the store.
///
/// The watch is on all keys, so that it observes every revision: a watch on the prefix alone would resume before a
/// compaction if no key below the prefix was written for a while.
///
/// # Panics
/// The store refuses the watch: a revision was compacted before it was read.
pub async fn follow_revisions_from<T>(
    mut next: i64,
    store: StoreProcess,
    prefix: &str,
    read: impl Fn(&Event) -> T,
    mut judge: impl FnMut(i64, Vec<T>),
) {
    loop {
        let mut client = store.next_client().await;
        let options = WatchOptions::new().with_start_revision(next).with_all_keys();
        // The store was just killed; wait for the next one.
        let Ok(mut stream) = client.watch("", Some(options)).await else {
            tokio::task::yield_now().await;
            continue;
        };
        while let Ok(Some(answer)) = stream.message().await {
            assert!(
                !answer.canceled(),
                "the watch from {next} on was cancelled, compacted at {}: {}",
                answer.compact_revision(),
                answer.cancel_reason()
            );
            let mut revisions: BTreeMap<i64, Vec<T>> = BTreeMap::new();
            for event in answer.events() {
                let kv = event.kv().unwrap();
                let changes = revisions.entry(kv.mod_revision()).or_default();
                if kv.key().starts_with(prefix.as_bytes()) {
                    changes.push(read(event));
                }
            }
            for (revision, changes) in revisions {
                next = revision + 1;
                if !changes.is_empty() {
                    judge(revision, changes);
                }
            }
        }
        tokio::task::yield_now().await;
    }
}

/// As [`follow_revisions_from`], from the first revision on.
pub async fn follow_revisions<T>(
    store: StoreProcess,
    prefix: &str,
    read: impl Fn(&Event) -> T,
    judge: impl FnMut(i64, Vec<T>),
) {
    follow_revisions_from(1, store, prefix, read, judge).await;
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use rand::SeedableRng as _;
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::disk::ForgetfulDisk;

    #[tokio::test(start_paused = true)]
    async fn judge_of_a_prefix_continues_after_a_compaction_of_foreign_writes() {
        let store = StoreProcess::on_disk(ForgetfulDisk::new(ChaCha8Rng::seed_from_u64(1)), 1);
        store.start().unwrap();
        let observed = Arc::new(Mutex::new(Vec::new()));
        let judge = {
            let (store, observed) = (store.clone(), Arc::clone(&observed));
            let read = |event: &Event| event.kv().unwrap().key_str().unwrap().to_owned();
            let judge = move |revision, keys: Vec<String>| observed.lock().unwrap().push((revision, keys));
            tokio::spawn(async move { follow_revisions(store, "/ours/", read, judge).await })
        };
        let put = async |key: &str| {
            store.next_client().await.put(key, "", None).await.unwrap().header().unwrap().revision()
        };
        let first = put("/ours/a").await;
        let mut last = first;
        for _ in 0..3 {
            last = put("/theirs/b").await;
        }
        store.next_client().await.compact(last, None).await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        store.kill();
        store.start().unwrap();
        let second = put("/ours/c").await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!judge.is_finished());
        let reported = [(first, vec!["/ours/a".to_owned()]), (second, vec!["/ours/c".to_owned()])];
        assert_eq!(*observed.lock().unwrap(), reported);
    }
}
