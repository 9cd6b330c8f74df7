//! Tests of concurrent transactions, on a real etcd and on the embedded store.

use std::collections::BTreeMap;
use std::sync::Arc;

use madako_domain::store::{Condition, Outcome, StoreErrorKind, Transaction};
use madako_protocol::placement::objects::Objects as _;
use madako_store::{CachedObjects, EtcdStore};

use crate::embedded::Address;
use crate::etcd::Etcd;
use crate::objects::{fresh, key, role};

/// Concurrent clients create the same names: each name gets the value of exactly one creator, and the others get a
/// conflict.
async fn many_create_at_a_time(store: &EtcdStore) {
    let objects = Arc::new(CachedObjects::start(store));
    let tasks: Vec<_> = (0..200)
        .map(|n| {
            let objects = Arc::clone(&objects);
            tokio::spawn(async move {
                let (name, uid) = (format!("name{}", n % 50), n.to_string());
                let absent = Condition::Unchanged { key: key(&name).etcd_key(), revision: 0 };
                let conditions = vec![absent.clone()];
                let created = Transaction { conditions, writes: vec![role(&name, &uid)] };
                match objects.commit(created).await.unwrap() {
                    Outcome::Committed { revision } => Some((name, (uid, revision))),
                    Outcome::Refused { failed } => {
                        assert_eq!(failed, [absent]);
                        None
                    }
                }
            })
        })
        .collect();
    let mut creators = BTreeMap::new();
    for task in tasks {
        if let Some((name, creator)) = task.await.unwrap() {
            assert_eq!(creators.insert(name, creator), None, "two created one");
        }
    }
    assert_eq!(creators.len(), 50);
    objects.refresh().await.unwrap();
    for (name, (uid, revision)) in creators {
        let stored = objects.get(&key(&name)).unwrap();
        assert_eq!((&stored.object.metadata().uid, stored.mod_revision), (&uid, revision), "{name}");
    }
}

#[tokio::test]
async fn concurrent_creations_in_etcd_have_individual_answers() {
    let Some(etcd) = Etcd::start(&[]).await else { return };
    many_create_at_a_time(&etcd.store("/cke/")).await;
}

#[tokio::test(start_paused = true)]
async fn concurrent_creations_in_the_embedded_store_have_individual_answers() {
    many_create_at_a_time(&Address::new(1).dial(1).0).await;
}

#[tokio::test]
async fn writes_that_etcd_refuses_together_are_sent_alone() {
    let Some(etcd) = Etcd::start(&["--max-txn-ops", "3"]).await else { return };
    let objects = Arc::new(CachedObjects::start(&etcd.store("/cke/")));
    let tasks: Vec<_> = (0..60)
        .map(|n| {
            let objects = Arc::clone(&objects);
            tokio::spawn(async move {
                let uid = if n == 30 { "u".repeat(2 << 20) } else { n.to_string() };
                let writes = vec![role(&format!("name{n}"), uid)];
                objects.commit(Transaction { conditions: vec![], writes }).await
            })
        })
        .collect();
    for (n, task) in tasks.into_iter().enumerate() {
        match task.await.unwrap() {
            Ok(outcome) => assert!(n != 30 && matches!(outcome, Outcome::Committed { .. })),
            Err(error) => assert_eq!((n, error.kind), (30, StoreErrorKind::Invalid), "{error}"),
        }
    }
    assert_eq!(fresh(&objects).await.len(), 59);
}
