//! Tests of leases under paused time, and of runs that repeat exactly, on which simulations depend.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Client, EventType, GetOptions, PutOptions, WatchOptions};
use madako_embedded_etcd::{Backend, Commit, EmbeddedEtcd, Options};
use tokio::time::{Instant, advance};

use crate::disk::UnsafeDisk;

fn in_memory(seed: u64) -> EmbeddedEtcd {
    EmbeddedEtcd::open(Options::new(Backend::Memory, Commit::Inline, seed)).expect("opens")
}

async fn exists(client: &mut Client, key: &str) -> bool {
    client.get(key, None).await.expect("a get").count() == 1
}

#[tokio::test(start_paused = true)]
async fn a_lease_ends_when_its_time_is_up_and_not_before() {
    let store = in_memory(1);
    let mut client = store.direct_client().await.expect("a client");
    let lease = client.lease_grant(10, None).await.expect("granted").id();
    client.put("a", "1", Some(PutOptions::new().with_lease(lease))).await.expect("put");
    let mut watch = client.watch("a", Some(WatchOptions::new())).await.expect("a watch");
    let (mut keeper, mut kept) = client.lease_keep_alive(lease).await.expect("a stream");
    for _ in 0..5 {
        advance(Duration::from_secs(9)).await;
        keeper.keep_alive().await.expect("sent");
        assert_eq!(kept.message().await.expect("an answer").expect("an answer").ttl(), 10);
    }
    assert!(exists(&mut client, "a").await);
    assert_eq!(client.lease_time_to_live(lease, None).await.expect("a lease").ttl(), 10);
    let renewed = Instant::now();
    advance(Duration::from_millis(9_900)).await;
    assert!(exists(&mut client, "a").await);
    // The test awaits the watch, so paused time advances by itself until the lease ends.
    loop {
        let response = watch.message().await.expect("an answer").expect("an answer");
        if response.events().iter().any(|event| event.event_type() == EventType::Delete) {
            break;
        }
    }
    assert!(renewed.elapsed() < Duration::from_millis(10_010), "{:?}", renewed.elapsed());
    keeper.keep_alive().await.expect("sent");
    assert_eq!(kept.message().await.expect("an answer").expect("an answer").ttl(), 0);
    assert_eq!(client.lease_time_to_live(lease, None).await.expect("an answer").ttl(), -1);
    store.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn after_a_start_leases_have_their_full_time_and_their_keys() {
    let disk = UnsafeDisk::new();
    let options = Options::new(Backend::Custom(disk.storage()), Commit::Inline, 1);
    let store = EmbeddedEtcd::open(options.clone()).expect("opens");
    let mut client = store.direct_client().await.expect("a client");
    let lease = client.lease_grant(60, None).await.expect("granted").id();
    let revoked = client.lease_grant(60, None).await.expect("granted").id();
    client.lease_revoke(revoked).await.expect("revoked");
    client.put("a", "1", Some(PutOptions::new().with_lease(lease))).await.expect("put");
    advance(Duration::from_secs(50)).await;
    store.shutdown().await;
    drop(client);
    let store = EmbeddedEtcd::open(options).expect("opens");
    let mut client = store.direct_client().await.expect("a client");
    let with_keys = etcd_client::LeaseTimeToLiveOptions::new().with_keys();
    let found = client.lease_time_to_live(lease, Some(with_keys)).await.expect("a lease");
    assert_eq!((found.ttl(), found.keys()), (60, [b"a".to_vec()].as_slice()));
    assert_eq!(client.lease_time_to_live(revoked, None).await.expect("an answer").ttl(), -1);
    advance(Duration::from_secs(59)).await;
    assert!(exists(&mut client, "a").await);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(!exists(&mut client, "a").await);
    store.shutdown().await;
}

#[test]
fn the_same_seed_gives_the_same_history() {
    let run = || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let store = Arc::new(in_memory(7));
            let mut client = store.direct_client().await.expect("a client");
            let mut log = Vec::new();
            let mut watch =
                client.watch("", Some(WatchOptions::new().with_all_keys())).await.expect("a watch");
            let mut writers = Vec::new();
            for writer in 0..4_u64 {
                let mut client = client.clone();
                writers.push(tokio::spawn(async move {
                    let lease = client.lease_grant(5 + writer as i64, None).await.expect("granted").id();
                    for number in 0..20 {
                        let options = PutOptions::new().with_lease(lease);
                        client.put(format!("{writer}/{number}"), "v", Some(options)).await.expect("put");
                        tokio::time::sleep(Duration::from_millis(10 * (writer + 1))).await;
                    }
                }));
            }
            for writer in writers {
                writer.await.expect("it ends");
            }
            tokio::time::sleep(Duration::from_secs(20)).await;
            let left = client.get("", Some(GetOptions::new().with_all_keys())).await.expect("a get");
            log.push(format!("{left:?}"));
            let revision = left.header().expect("a header").revision();
            let mut observed = 0;
            while observed < revision {
                let response = watch.message().await.expect("an answer").expect("an answer");
                observed = response.header().expect("a header").revision();
                log.push(format!("{response:?}"));
            }
            log
        })
    };
    let first = run();
    assert!(first.len() > 3, "{} responses", first.len());
    assert_eq!(first, run());
}
