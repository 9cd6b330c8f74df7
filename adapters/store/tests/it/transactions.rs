//! Tests of lists and transactions on etcd.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use madako_domain::store::{Condition, Outcome, StoreErrorKind, Transaction, Write};
use madako_protocol::store::Store as _;
use madako_store::{EtcdStore, StoreConfig};
use metrics_exporter_prometheus::PrometheusBuilder;
use rustix::process::Signal;
use tokio::time::Instant;

use crate::etcd::{Etcd, config_at, eventually, put, within, write, write_if};

fn created(key: &str, revision: i64) -> Condition {
    Condition::Created { key: key.into(), revision }
}

fn unchanged(key: &str, revision: i64) -> Condition {
    Condition::Unchanged { key: key.into(), revision }
}

#[tokio::test]
async fn writes_below_a_prefix_since_a_revision_refuse_a_transaction() {
    let Some(etcd) = Etcd::start(&[]).await else { return };
    let store = etcd.store("/cke/");
    let none_since = |prefix: &str, revision| Condition::NoneSince { prefix: prefix.into(), revision };
    let first = write_if(&store, vec![none_since("a/", 0)], vec![put("a/1", "1"), put("b", "1")]).await;
    let second = write_if(&store, vec![none_since("a/", first)], vec![put("a/2", "1"), put("a0", "1")]).await;
    let third =
        write_if(&store, vec![none_since("a/", second), none_since("c", 0)], vec![put("b", "2")]).await;
    let transaction = Transaction {
        conditions: vec![none_since("a/", first), none_since("b", second), none_since("a/", third)],
        writes: vec![put("a/3", "1")],
    };
    let failed = vec![none_since("a/", first), none_since("b", second)];
    assert_eq!(store.commit(transaction).await.unwrap(), Outcome::Refused { failed });
    // A deleted key does not fail the condition.
    let gone = vec![Write::Delete { key: "b".into() }];
    write_if(&store, vec![], gone).await;
    write_if(&store, vec![none_since("b", first)], vec![put("c", "1")]).await;
}

#[tokio::test]
async fn transaction_is_atomic_and_a_refusal_names_the_failed_conditions() {
    let Some(etcd) = Etcd::start(&[]).await else { return };
    let store = etcd.store("/cke/");
    let first = write_if(&store, vec![unchanged("a", 0)], vec![put("a", "1"), put("b", "1")]).await;
    let second =
        write_if(&store, vec![created("a", first), unchanged("a", first)], vec![put("a", "2")]).await;
    assert_eq!(second, first + 1);

    let all = vec![
        created("a", first),
        created("a", second),
        created("gone", first),
        unchanged("a", second),
        unchanged("a", first),
        unchanged("a", 0),
        unchanged("gone", 0),
        unchanged("gone", first),
    ];
    let transaction = Transaction { conditions: all, writes: vec![put("a", "3"), put("c", "3")] };
    let failed = vec![
        created("a", second),
        created("gone", first),
        unchanged("a", first),
        unchanged("a", 0),
        unchanged("gone", first),
    ];
    assert_eq!(store.commit(transaction).await.unwrap(), Outcome::Refused { failed });

    let observed = store.list("").await.unwrap();
    assert_eq!(observed.revision, second);
    let values: BTreeMap<_, _> =
        observed.entries.iter().map(|(key, e)| (key.as_str(), &e.value[..])).collect();
    assert_eq!(values, BTreeMap::from([("a", &b"2"[..]), ("b", b"1")]));
    let a = &observed.entries["a"];
    assert_eq!((a.create_revision, a.mod_revision, a.lease), (first, second, 0));

    write(&store, vec![Write::Delete { key: "a".into() }, put("b", "2")]).await;
    assert_eq!(store.list("a").await.unwrap().entries.len(), 0);
}

#[tokio::test]
async fn keys_are_below_the_prefix_as_it_is_and_others_are_not_seen() {
    let Some(etcd) = Etcd::start(&[]).await else { return };
    for prefix in ["/cke/", "/cke", ""] {
        let store = etcd.store(prefix);
        write(&store, vec![put("cluster", prefix.to_owned())]).await;
    }
    let mut by_hand = etcd.by_hand().await;
    for prefix in ["/cke/", "/cke", ""] {
        let kept = by_hand.get(format!("{prefix}cluster"), None).await.unwrap();
        assert_eq!(kept.kvs()[0].value(), prefix.as_bytes());
    }
    by_hand.put("/cke0", "another's", None).await.unwrap();
    by_hand.put(b"/cke/\xff".to_vec(), "no text", None).await.unwrap();
    let keys = |prefix| {
        let store = etcd.store(prefix);
        async move { store.list("").await.unwrap().entries.into_keys().collect::<Vec<_>>() }
    };
    let recorder = PrometheusBuilder::new().build_recorder();
    let counted = metrics::set_default_local_recorder(&recorder);
    assert_eq!(keys("/cke/").await, ["cluster"]);
    drop(counted);
    let shown = recorder.handle().render();
    assert!(shown.contains("madako_store_keys_skipped_total 1\n"), "{shown}");
    assert_eq!(keys("/cke").await, ["/cluster", "0", "cluster"]);
    assert_eq!(keys("").await, ["/cke/cluster", "/cke0", "/ckecluster", "cluster"]);
}

#[tokio::test]
async fn a_list_of_many_pages_is_of_one_revision() {
    let Some(etcd) = Etcd::start(&[]).await else { return };
    let store = etcd.store("/cke/");
    for chunk in (0..2500).collect::<Vec<_>>().chunks(100) {
        write(&store, chunk.iter().map(|n| put(&format!("records/{n:05}"), "r")).collect()).await;
    }
    let ends = |n: u64| vec![put("records/", n.to_string()), put("records/~", n.to_string())];
    write(&store, ends(0)).await;
    let writer = async {
        for n in 1..=150 {
            write(&store, ends(n)).await;
        }
    };
    let reader = async {
        let mut observed = 0;
        for _ in 0..15 {
            let all = store.list("records/").await.unwrap();
            assert_eq!(all.entries.len(), 2502);
            let (first, last) = (&all.entries["records/"], &all.entries["records/~"]);
            assert_eq!(first.value, last.value, "two pages of different revisions");
            assert!(last.mod_revision <= all.revision);
            observed = observed.max(last.mod_revision);
        }
        observed
    };
    let before = store.list("records/~").await.unwrap().revision;
    let ((), seen) = within("both end", async { tokio::join!(writer, reader) }).await;
    assert!(seen > before, "the lists were not made while the writer wrote");
}

#[tokio::test]
async fn values_that_do_not_fit_into_one_answer_come_in_several() {
    let Some(etcd) = Etcd::start(&[]).await else { return };
    let store = etcd.store("/cke/");
    let large = Bytes::from(vec![b'x'; 1 << 20]);
    for n in 0..70 {
        write(&store, vec![put(&format!("large/{n}"), large.clone())]).await;
    }
    let patient = StoreConfig { timeout: Duration::from_secs(20), ..etcd.config("/cke/") };
    let all = EtcdStore::open(&patient, 1).unwrap().list("large/").await.unwrap();
    assert_eq!(all.entries.values().map(|entry| entry.value.len()).sum::<usize>(), 70 << 20);
}

#[tokio::test]
async fn oversized_and_contradictory_transactions_are_invalid_without_effect() {
    let Some(etcd) = Etcd::start(&[]).await else { return };
    let store = etcd.store("/cke/");
    let many = (0..200).map(|n| put(&n.to_string(), "")).collect();
    for (writes, conditions) in [
        (vec![put("a", vec![0; 2 << 20])], vec![]),
        (vec![put("a", "1"), put("a", "2")], vec![]),
        (many, vec![]),
        (vec![Write::Put { key: "a".into(), value: Bytes::new(), lease: 77 }], vec![]),
        (vec![put("a", "1")], vec![created("b", 0)]),
    ] {
        let error = store.commit(Transaction { conditions, writes }).await.unwrap_err();
        assert_eq!(error.kind, StoreErrorKind::Invalid, "{error}");
    }
    assert!(store.list("").await.unwrap().entries.is_empty());
}

#[tokio::test]
async fn full_store_is_reported_as_full() {
    let Some(etcd) = Etcd::start(&["--quota-backend-bytes=100000"]).await else { return };
    let store = etcd.store("/cke/");
    let error = eventually("the store is full", async || {
        let transaction = Transaction { conditions: vec![], writes: vec![put("a", vec![0; 60_000])] };
        store.commit(transaction).await.err()
    })
    .await;
    assert_eq!(error.kind, StoreErrorKind::Full, "{error}");
    store.list("").await.unwrap();
}

#[tokio::test]
async fn a_store_that_does_not_answer_is_given_up_in_time_and_works_when_it_is_back() {
    let Some(mut etcd) = Etcd::start(&[]).await else { return };
    let short = StoreConfig { timeout: Duration::from_millis(300), ..etcd.config("/cke/") };
    let store = EtcdStore::open(&short, 1).unwrap();
    write(&store, vec![put("a", "1")]).await;

    etcd.signal(Signal::STOP);
    let error = eventually("it has stopped", async || store.list("a").await.err()).await;
    assert_eq!(error.kind, StoreErrorKind::Deadline, "{error}");
    let began = Instant::now();
    let error =
        store.commit(Transaction { conditions: vec![], writes: vec![put("a", "2")] }).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Deadline, "{error}");
    assert!(began.elapsed() < Duration::from_secs(2));
    etcd.signal(Signal::CONT);
    eventually("it answers again", async || store.list("a").await.ok()).await;

    etcd.kill().await;
    let error = eventually("no server listens", async || {
        let error = store.list("a").await.unwrap_err();
        assert_eq!(error.kind, StoreErrorKind::Unavailable, "{error}");
        // The first error may be that of the broken connection.
        error.why.contains("refused").then_some(error)
    })
    .await;
    assert!(error.to_string().starts_with("cannot complete the read of a in etcd: "), "{error}");
    assert!(error.why.ends_with(&etcd.endpoint()), "{error}");
    etcd.start_again().await;
    eventually("it answers again", async || store.list("a").await.ok()).await;
}

#[tokio::test]
async fn an_endpoint_that_is_down_costs_no_transaction() {
    let Some(etcd) = Etcd::start(&[]).await else { return };
    let dead = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().to_string()
    };
    let config =
        StoreConfig { endpoints: vec![dead.clone(), etcd.endpoint(), dead], ..config_at("", "/cke/") };
    let store = EtcdStore::open(&config, 1).unwrap();
    write(&store, vec![put("a", "1")]).await;
    assert_eq!(store.list("").await.unwrap().entries.len(), 1);
}
