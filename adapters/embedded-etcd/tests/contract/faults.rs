//! Tests of the embedded store on full disks, with damaged files, and in directories in use.

use std::path::Path;
use std::time::Duration;

use etcd_client::{Client, GetOptions, Txn, TxnOp};
use madako_embedded_etcd::{Backend, Commit, EmbeddedEtcd, OpenError, Options};
use tokio::time::Instant;
use tonic::Code;

use crate::disk::UnsafeDisk;
use crate::generate::Dice;
use crate::peers::DEADLINE;

fn on(directory: &Path) -> Options {
    Options::new(Backend::File(directory.into()), Commit::Thread, 1)
}

/// The store retries by itself; the first accepted write shows that there is space.
async fn until_there_is_room(client: &mut Client) {
    let start = Instant::now();
    while let Err(error) = client.put("another", "v", None).await {
        assert_eq!(refusal(&error), NO_SPACE);
        assert!(start.elapsed() < DEADLINE, "it does not try again");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn refusal(error: &etcd_client::Error) -> (Code, &str) {
    match error {
        etcd_client::Error::GRpcStatus(status) => (status.code(), status.message()),
        other => panic!("{other}"),
    }
}

const NO_SPACE: (Code, &str) = (Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded");

async fn count(client: &mut Client) -> i64 {
    client
        .get("", Some(GetOptions::new().with_all_keys().with_count_only()))
        .await
        .expect("reads go on")
        .count()
}

async fn put_until_refused(client: &mut Client, from: i64) -> i64 {
    for number in from..from + 10_000 {
        if let Err(error) = client.put(format!("key/{number:06}"), vec![b'v'; 2_000], None).await {
            assert_eq!(refusal(&error), NO_SPACE);
            return number;
        }
    }
    panic!("the disk never filled up");
}

#[tokio::test]
async fn store_on_a_full_disk_refuses_writes_keeps_its_data_and_resumes() {
    const MIB: u64 = 1024 * 1024;
    let disk = UnsafeDisk::new();
    let options = Options::new(Backend::Custom(disk.storage()), Commit::Thread, 1);
    let store = EmbeddedEtcd::open(options.clone()).expect("opens");
    let mut client = store.direct_client().await.expect("a client");
    disk.set_room(Some(2 * MIB));
    let written = put_until_refused(&mut client, 0).await;
    assert!(written > 100, "{written}");
    assert_eq!(count(&mut client).await, written, "acknowledged writes are stored, refused writes are not");
    assert_eq!(
        refusal(&client.put("another", vec![b'v'; 300_000], None).await.expect_err("still full")),
        NO_SPACE
    );
    disk.set_room(Some(4 * MIB));
    until_there_is_room(&mut client).await;
    let more = put_until_refused(&mut client, written).await;
    assert!(more > written + 100);
    assert_eq!(count(&mut client).await, more + 1);
    // Overwriting fails too.
    disk.set_full(true);
    assert_eq!(refusal(&client.put("another", "v", None).await.expect_err("full")), NO_SPACE);
    disk.set_full(false);
    disk.set_room(None);
    until_there_is_room(&mut client).await;
    assert_eq!(count(&mut client).await, more + 1);
    store.shutdown().await;
    let store = EmbeddedEtcd::open(options).expect("opens");
    assert_eq!(count(&mut store.direct_client().await.expect("a client")).await, more + 1);
    store.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn reads_succeed_while_the_disk_refuses_all_writes() {
    let disk = UnsafeDisk::new();
    let options = Options::new(Backend::Custom(disk.storage()), Commit::Inline, 1);
    let store = EmbeddedEtcd::open(options.clone()).expect("opens");
    let mut client = store.direct_client().await.expect("a client");
    client.put("key", "before", None).await.expect("there is room");
    disk.set_full(true);
    // The store refuses some without a disk access; the disk refuses the others.
    for _ in 0..20 {
        let refused = client.put("key", "after", None).await.expect_err("full");
        assert_eq!(refusal(&refused), NO_SPACE);
        assert_eq!(refusal(&client.put("other", "after", None).await.expect_err("full")), NO_SPACE);
        let all = GetOptions::new().with_all_keys();
        let read = client.get("", Some(all.clone())).await.expect("reads go on");
        let pairs =
            read.kvs().iter().map(|kv| (kv.key_str().unwrap(), kv.value_str().unwrap(), kv.version()));
        assert_eq!(pairs.collect::<Vec<_>>(), [("key", "before", 1)], "nothing that was refused is shown");
        let keys = client.get("", Some(all.with_keys_only())).await.expect("reads go on");
        assert_eq!(keys.count(), 1);
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    disk.set_full(false);
    tokio::time::sleep(Duration::from_secs(2)).await;
    client.put("key", "after", None).await.expect("there is room again");
    let now = client.get("key", None).await.expect("reads");
    assert_eq!((now.kvs()[0].value(), now.kvs()[0].version()), (&b"after"[..], 2));
    store.shutdown().await;
    let store = EmbeddedEtcd::open(options).expect("opens");
    let kept = store.direct_client().await.expect("a client").get("key", None).await.expect("reads");
    assert_eq!(kept.kvs()[0].value(), b"after");
    store.shutdown().await;
}

#[tokio::test]
async fn the_limit_of_a_request_can_be_raised() {
    let mut options = Options::new(Backend::Memory, Commit::Inline, 1);
    options.max_request_bytes = 4_000_000;
    let store = EmbeddedEtcd::open(options).expect("opens");
    let mut client = store.direct_client().await.expect("a client");
    client.put("large", vec![b'v'; 3_900_000], None).await.expect("within the limit");
    assert_eq!(
        refusal(&client.put("larger", vec![b'v'; 4_000_000], None).await.expect_err("above it")),
        (Code::InvalidArgument, "etcdserver: request is too large")
    );
    let stored = client.get("large", Some(GetOptions::new().with_count_only())).await.expect("reads");
    assert_eq!(stored.count(), 1);
    store.shutdown().await;
}

#[tokio::test]
async fn after_a_failed_sync_nothing_is_acknowledged_any_more() {
    let disk = UnsafeDisk::new();
    let store =
        EmbeddedEtcd::open(Options::new(Backend::Custom(disk.storage()), Commit::Thread, 1)).expect("opens");
    let mut client = store.direct_client().await.expect("a client");
    client.put("a", "1", None).await.expect("put");
    disk.fail_sync(true);
    let error = client.put("b", "1", None).await.expect_err("it is not on disk");
    assert_eq!(refusal(&error).0, Code::Unavailable);
    disk.fail_sync(false);
    let error = client.put("c", "1", None).await.expect_err("what is on disk is unknown");
    assert!(refusal(&error).1.contains("until the process restarts"), "{error}");
    assert!(store.failure_reason().is_some());
    store.shutdown().await;
}

/// Requests fail with this text after the store has failed, reads included, so that `/health` reports it.
async fn assert_failed(store: &EmbeddedEtcd, client: &mut Client, why: &str) {
    let reason = tokio::time::timeout(DEADLINE, store.wait_for_failure()).await.expect("it says so at once");
    assert!(reason.contains(why), "{reason}");
    assert_eq!(store.failure_reason(), Some(reason));
    for refused in [client.put("b", "1", None).await.err(), client.get("a", None).await.err()] {
        let refused = refused.expect("nothing is answered any more");
        assert!(refusal(&refused).1.contains("until the process restarts"), "{refused}");
    }
}

#[tokio::test]
async fn a_writer_that_panics_fails_the_store_for_readers_too() {
    for commit in [Commit::Thread, Commit::Inline] {
        let disk = UnsafeDisk::new();
        let options = Options::new(Backend::Custom(disk.storage()), commit, 1);
        let store = EmbeddedEtcd::open(options.clone()).expect("opens");
        let mut client = store.direct_client().await.expect("a client");
        client.put("a", "1", None).await.expect("put");
        disk.set_panics(true);
        let error = client.put("b", "1", None).await.expect_err("the write was refused");
        assert_eq!(refusal(&error).0, Code::Unavailable);
        assert_failed(&store, &mut client, "its writer panicked").await;
        disk.set_panics(false);
        store.shutdown().await;
        let store = EmbeddedEtcd::open(options).expect("opens again");
        let kept = store
            .direct_client()
            .await
            .expect("a client")
            .get("", Some(GetOptions::new().with_all_keys()))
            .await;
        assert_eq!(kept.expect("reads").kvs()[0].key(), b"a");
        store.shutdown().await;
    }
}

#[tokio::test]
async fn emptied_storage_fails_the_store_and_is_not_initialised_again() {
    let disk = UnsafeDisk::new();
    let mut options = Options::new(Backend::Custom(disk.storage()), Commit::Thread, 1);
    options.cache_bytes = 64 * 1024;
    let store = EmbeddedEtcd::open(options).expect("opens");
    let mut client = store.direct_client().await.expect("a client");
    for key in ["a", "b", "c"] {
        client.put(key, vec![b'v'; 200_000], None).await.expect("put");
    }
    disk.empty();
    client.get("a", None).await.expect_err("it is not there");
    client.put("b", "1", None).await.expect_err("there is nothing to add to");
    assert_failed(&store, &mut client, "reopening the file").await;
    assert_eq!(disk.storage().len().expect("a length"), 0, "nothing was begun in its place");
    store.shutdown().await;
}

/// Like an error of the kernel for the disk: the disk is not full and no sync failed.
#[tokio::test(start_paused = true)]
async fn failed_write_is_retried_after_a_pause_and_a_failed_sync_is_final() {
    let disk = UnsafeDisk::new();
    let store =
        EmbeddedEtcd::open(Options::new(Backend::Custom(disk.storage()), Commit::Inline, 1)).expect("opens");
    let mut client = store.direct_client().await.expect("a client");
    client.put("key", "before", None).await.expect("put");
    disk.fail_writes(true);
    let refused = client.put("key", "after", None).await.expect_err("it is not on disk");
    assert_eq!(refusal(&refused).0, Code::Unavailable);
    // During the pause the store does not access the disk.
    let looks = disk.looks();
    for _ in 0..10 {
        assert_eq!(
            refusal(&client.put("key", "after", None).await.expect_err("not yet")).0,
            Code::Unavailable
        );
    }
    assert_eq!(disk.looks(), looks);
    tokio::time::sleep(Duration::from_secs(2)).await;
    client.put("key", "after", None).await.expect_err("not yet");
    assert!(disk.looks() > looks, "it was tried again");
    disk.fail_writes(false);
    disk.fail_sync(true);
    tokio::time::sleep(Duration::from_secs(2)).await;
    client.put("key", "after", None).await.expect_err("it is not on disk");
    assert!(store.failure_reason().is_some());
    disk.fail_sync(false);
    tokio::time::sleep(Duration::from_secs(2)).await;
    let refused = client.put("key", "after", None).await.expect_err("what is on disk is unknown");
    assert!(refusal(&refused).1.contains("until the process restarts"), "{refused}");
    store.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn background_removal_is_not_retried_without_a_request() {
    let disk = UnsafeDisk::new();
    let store =
        EmbeddedEtcd::open(Options::new(Backend::Custom(disk.storage()), Commit::Inline, 1)).expect("opens");
    let mut client = store.direct_client().await.expect("a client");
    for _ in 0..100 {
        let puts = (0..128).map(|key| TxnOp::put(format!("key/{key}"), "v", None)).collect::<Vec<_>>();
        client.txn(Txn::new().and_then(puts)).await.expect("put");
    }
    // Twelve thousand changes wait for removal, some hundred per commit, when the disk stops accepting writes.
    let newest = client.get("key/0", None).await.expect("reads").header().expect("a header").revision();
    client.compact(newest, None).await.expect("compacts");
    disk.fail_writes(true);
    let looks = disk.looks();
    // Paused time does not advance while a task works without a pause.
    tokio::time::sleep(Duration::from_secs(10)).await;
    let tried = disk.looks();
    assert!(tried > looks, "it was not tried");
    // The store retries only after the next request.
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(disk.looks(), tried);
    disk.fail_writes(false);
    client.put("key", "after", None).await.expect("it is taken again");
    store.shutdown().await;
}

#[tokio::test]
async fn above_the_quota_puts_are_refused_and_deleting_and_compacting_makes_room() {
    let mut options = Options::new(Backend::Memory, Commit::Inline, 1);
    options.quota_bytes = 1_000_000;
    let store = EmbeddedEtcd::open(options).expect("opens");
    let mut client = store.direct_client().await.expect("a client");
    let written = put_until_refused(&mut client, 0).await;
    assert!((490..=501).contains(&written), "{written}");
    let deleted =
        client.delete("", Some(etcd_client::DeleteOptions::new().with_all_keys())).await.expect("deletes");
    let revision = deleted.header().expect("a header").revision();
    let physical = etcd_client::CompactionOptions::new().with_physical();
    client.compact(revision, Some(physical)).await.expect("compacts");
    client.put("a", "1", None).await.expect("there is room again");
    store.shutdown().await;
}

#[tokio::test]
async fn a_directory_in_use_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = EmbeddedEtcd::open(on(directory.path())).expect("opens");
    let error = EmbeddedEtcd::open(on(directory.path())).expect_err("it is in use");
    assert!(matches!(&error, OpenError::InUse { .. }), "{error}");
    store.shutdown().await;
    EmbeddedEtcd::open(on(directory.path())).expect("it is free again").shutdown().await;
}

/// A closed store with a few hundred changes: its file and the file's contents.
async fn closed_store(directory: &Path) -> (std::path::PathBuf, Vec<u8>) {
    let store = EmbeddedEtcd::open(on(directory)).expect("opens");
    let mut client = store.direct_client().await.expect("a client");
    for number in 0..300 {
        client.put(format!("key/{}", number % 40), format!("{number}").repeat(100), None).await.expect("put");
    }
    store.shutdown().await;
    let path = directory.join("etcd.redb");
    let bytes = std::fs::read(&path).expect("the file");
    (path, bytes)
}

#[tokio::test]
async fn a_damaged_file_is_refused_and_left_as_it_was() {
    let directory = tempfile::tempdir().expect("a directory");
    let (path, whole) = closed_store(directory.path()).await;
    let mut dice = Dice::new(4);
    let mut damages: Vec<Vec<u8>> = vec![
        b"not a store at all".to_vec(),
        vec![0; whole.len()],
        whole[..whole.len() / 2].to_vec(),
        whole[..100].to_vec(),
        Vec::new(),
    ];
    for _ in 0..150 {
        let mut damaged = whole.clone();
        let at = dice.below(whole.len() as u64) as usize;
        damaged[at] ^= 1 << dice.below(8);
        damages.push(damaged);
    }
    for _ in 0..30 {
        let mut damaged = whole.clone();
        let page = dice.below(whole.len() as u64 / 4096) as usize * 4096;
        damaged[page..page + 4096].fill(dice.next() as u8);
        damages.push(damaged);
    }
    let mut refused = 0;
    for (number, damaged) in damages.iter().enumerate() {
        std::fs::write(&path, damaged).expect("written");
        match EmbeddedEtcd::open(on(directory.path())) {
            Err(error) => {
                assert!(matches!(&error, OpenError::Damaged { .. }), "damage {number}: {error}");
                assert!(error.to_string().contains("was not changed"), "{error}");
                assert!(
                    std::fs::read(&path).expect("the file") == *damaged,
                    "damage {number} was written over"
                );
                refused += 1;
            }
            // The damage hit an unused part of the file, so all contents are there.
            Ok(store) => {
                let mut client = store.direct_client().await.expect("a client");
                for key in 0..40 {
                    let last = if key < 20 { 280 + key } else { 240 + key };
                    let found = client.get(format!("key/{key}"), None).await.expect("a get");
                    assert_eq!(found.kvs()[0].value_str().expect("text"), format!("{last}").repeat(100));
                }
                store.shutdown().await;
            }
        }
    }
    assert!(refused > damages.len() / 4, "{refused} of {} damages were noticed", damages.len());
}

#[tokio::test]
async fn the_file_does_not_grow_for_ever() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut options = on(directory.path());
    options.auto_compaction.keep_bytes = 1024 * 1024;
    let store = EmbeddedEtcd::open(options).expect("opens");
    let client = store.direct_client().await.expect("a client");
    let writers = (0..32).map(|writer| {
        let mut client = client.clone();
        tokio::spawn(async move {
            for _ in 0..300 {
                client.put(format!("key/{writer}"), vec![b'v'; 2_000], None).await.expect("put");
            }
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.expect("it ends");
    }
    let bytes = std::fs::metadata(directory.path().join("etcd.redb")).expect("the file").len();
    assert!(
        bytes < 10 * 1024 * 1024,
        "19 MB were written, 1 MB of history is kept, the file has {bytes} bytes"
    );
    let mut client = client;
    let error = client.get("key/1", Some(GetOptions::new().with_revision(2))).await.expect_err("compacted");
    assert_eq!(refusal(&error), (Code::OutOfRange, "etcdserver: mvcc: required revision has been compacted"));
    store.shutdown().await;
}
