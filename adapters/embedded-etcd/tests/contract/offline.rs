//! Tests of the files of closed stores: verification, and creation from snapshots.

use std::path::Path;

use etcd_client::{Client, CompactionOptions, GetOptions, PutOptions};
use madako_embedded_etcd::{
    Backend, Commit, EmbeddedEtcd, OpenError, Options, Snapshot, SnapshotError, restore, save_snapshot,
    verify,
};

use crate::peers::RealEtcd;

const LEASE: i64 = 77;

/// Forty keys with histories, some of them deleted, half of the history compacted, and a lease.
async fn write_something(client: &mut Client) {
    client
        .lease_grant(1_000, Some(etcd_client::LeaseGrantOptions::new().with_id(LEASE)))
        .await
        .expect("a lease");
    for number in 0..300 {
        let key = format!("key/{}", number % 40);
        let value = format!("{number}").repeat(if number % 50 == 0 { 60_000 } else { 10 });
        let options = (number % 3 == 0).then(|| PutOptions::new().with_lease(LEASE));
        client.put(key.clone(), value, options).await.expect("a put");
        if number % 7 == 0 {
            client.delete(key, None).await.expect("a deletion");
        }
    }
    let physical = CompactionOptions::new().with_physical();
    client.compact(150, Some(physical)).await.expect("compacts");
}

async fn saved(client: &mut Client) -> Vec<u8> {
    let mut stream = client.snapshot().await.expect("a snapshot");
    let mut bytes = Vec::new();
    while let Some(part) = stream.message().await.expect("a part") {
        bytes.extend_from_slice(part.blob());
    }
    bytes
}

/// Hash and last compaction of a history; key, revision, version and lease of each pair at a revision.
type StoreContents = (u32, i64, Vec<(Vec<u8>, i64, i64, i64)>);

/// The hash of the whole history in etcd's format, and the pairs at an old revision.
async fn seen(client: &mut Client) -> StoreContents {
    let hash = client.hash_kv(0).await.expect("a hash");
    let then = GetOptions::new().with_all_keys().with_revision(200);
    let then = client.get("", Some(then)).await.expect("it is not compacted");
    let pairs = then.kvs().iter().map(|kv| (kv.key().to_vec(), kv.mod_revision(), kv.version(), kv.lease()));
    (hash.hash(), hash.compact_version(), pairs.collect())
}

fn on(directory: &Path) -> Options {
    Options::new(Backend::File(directory.into()), Commit::Thread, 1)
}

async fn is_restored(snapshot: &[u8], before: &StoreContents) {
    let directory = tempfile::tempdir().expect("a directory");
    let snapshot = Snapshot::read(snapshot).expect("it is whole");
    let revision = snapshot.revision();
    assert_eq!(restore(snapshot, directory.path(), false, 5).expect("it is restored"), None);
    let verified = verify(directory.path()).expect("it is whole");
    assert_eq!((verified.revision, verified.compacted, verified.was_closed), (revision, 150, true));
    let store = EmbeddedEtcd::open(on(directory.path())).expect("opens");
    let mut client = store.direct_client().await.expect("a client");
    assert_eq!(&seen(&mut client).await, before);
    assert!(client.lease_time_to_live(LEASE, None).await.expect("an answer").ttl() > 900, "the lease");
    let put = client.put("key/1", "more", None).await.expect("it goes on");
    assert_eq!(put.header().expect("a header").revision(), revision + 1);
    store.shutdown().await;
}

#[tokio::test]
async fn a_snapshot_of_a_store_is_restored_with_its_history_and_leases() {
    let store = EmbeddedEtcd::open(Options::new(Backend::Memory, Commit::Inline, 1)).expect("opens");
    let mut client = store.direct_client().await.expect("a client");
    write_something(&mut client).await;
    let before = seen(&mut client).await;
    is_restored(&saved(&mut client).await, &before).await;
    store.shutdown().await;
}

#[tokio::test]
async fn a_snapshot_of_a_closed_store_equals_that_of_the_open_one() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = EmbeddedEtcd::open(on(directory.path())).expect("opens");
    let mut client = store.direct_client().await.expect("a client");
    write_something(&mut client).await;
    let open = saved(&mut client).await;
    store.shutdown().await;
    let before = std::fs::read(directory.path().join("etcd.redb")).expect("the file");
    let mut closed = Vec::new();
    let taken = save_snapshot(directory.path(), |bytes| {
        closed.extend_from_slice(bytes);
        Ok(())
    });
    assert_eq!(taken.await.expect("it is saved").compacted, 150);
    assert!(closed == open, "{} bytes against {}", closed.len(), open.len());
    let full = save_snapshot(directory.path(), |_| Err(std::io::ErrorKind::StorageFull.into())).await;
    assert!(matches!(full, Err(OpenError::Io { operation: "write", .. })), "{full:?}");
    assert!(std::fs::read(directory.path().join("etcd.redb")).expect("the file") == before);
}

#[tokio::test]
async fn a_snapshot_of_an_etcd_is_restored_with_its_history_and_leases() {
    let Some(real) = RealEtcd::start().await else { return };
    let mut client = Client::connect([format!("http://{}", real.address)], None).await.expect("a client");
    write_something(&mut client).await;
    let before = seen(&mut client).await;
    is_restored(&saved(&mut client).await, &before).await;
}

#[tokio::test]
async fn a_snapshot_that_is_not_whole_and_a_file_that_is_there_are_refused() {
    let store = EmbeddedEtcd::open(Options::new(Backend::Memory, Commit::Inline, 1)).expect("opens");
    let mut client = store.direct_client().await.expect("a client");
    client.put("a", "restored", None).await.expect("a put");
    let whole = saved(&mut client).await;
    store.shutdown().await;
    for spoilt in [&whole[..whole.len() - 1], &whole[1..], &[], &[0; 32]] {
        assert!(matches!(Snapshot::read(spoilt), Err(SnapshotError::Digest)));
    }
    // A correct digest over bytes that are not bbolt file.
    let digest = [
        0xe3, 0xb0, 0xc4, 0x42, 0x98, 0xfc, 0x1c, 0x14, 0x9a, 0xfb, 0xf4, 0xc8, 0x99, 0x6f, 0xb9, 0x24, 0x27,
        0xae, 0x41, 0xe4, 0x64, 0x9b, 0x93, 0x4c, 0xa4, 0x95, 0x99, 0x1b, 0x78, 0x52, 0xb8, 0x55,
    ];
    assert!(matches!(Snapshot::read(&digest), Err(SnapshotError::Format(_))));

    let directory = tempfile::tempdir().expect("a directory");
    let there = EmbeddedEtcd::open(on(directory.path())).expect("opens");
    there.direct_client().await.expect("a client").put("a", "before", None).await.expect("a put");
    let snapshot = || Snapshot::read(&whole).expect("it is whole");
    let refused = restore(snapshot(), directory.path(), true, 5).expect_err("a store has it open");
    assert!(matches!(refused, OpenError::InUse { .. }), "{refused}");
    assert!(matches!(verify(directory.path()), Err(OpenError::InUse { .. })));
    there.shutdown().await;
    let refused = restore(snapshot(), directory.path(), false, 5).expect_err("it is not to be replaced");
    assert!(matches!(refused, OpenError::Exists { .. }), "{refused}");
    let kept = restore(snapshot(), directory.path(), true, 5).expect("it is replaced").expect("and kept");
    for (file, value) in [(directory.path().join("etcd.redb"), "restored"), (kept, "before")] {
        let copy = tempfile::tempdir().expect("a directory");
        std::fs::copy(&file, copy.path().join("etcd.redb")).expect("copied");
        verify(&file).expect("it is whole");
        let store = EmbeddedEtcd::open(on(copy.path())).expect("opens");
        let found = store.direct_client().await.expect("a client").get("a", None).await.expect("a get");
        assert_eq!(found.kvs()[0].value_str().expect("text"), value);
        store.shutdown().await;
    }
}

#[tokio::test]
async fn verifying_finds_damage_and_writes_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = EmbeddedEtcd::open(on(directory.path())).expect("opens");
    store.direct_client().await.expect("a client").put("a", vec![b'v'; 200_000], None).await.expect("a put");
    store.shutdown().await;
    let file = directory.path().join("etcd.redb");
    let whole = std::fs::read(&file).expect("the file");
    verify(&file).expect("it is whole");
    let mut damaged = whole.clone();
    let at = damaged.windows(4).rposition(|bytes| bytes == b"vvvv").expect("the value is there");
    damaged[at] = b'w';
    std::fs::write(&file, &damaged).expect("written");
    let refused = verify(&file).expect_err("it is damaged");
    assert!(matches!(&refused, OpenError::Damaged { .. }), "{refused}");
    assert!(refused.to_string().contains("madako store restore"), "{refused}");
    assert!(std::fs::read(&file).expect("the file") == damaged, "it was left as it is");
}
