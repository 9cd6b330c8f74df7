//! Tests of the scheduler's actor on paused time, with a store in memory that compares revisions and a leader that
//! checks invariant I11.

mod leader;
mod store;
mod world;

use std::time::Duration;

use bytes::Bytes;
use madako_domain::limits;
use madako_domain::placement::decision::{ExplainError, Outcome as Decided};
use madako_domain::placement::kind::{Kind, ObjectKey};
use madako_domain::placement::kubernetes::{Application, ApplicationState, Cluster, ClusterState};
use madako_domain::placement::metadata::ResourceRef;
use madako_domain::placement::object_value::Resource as _;
use madako_domain::placement::ownership::Ownership;
use madako_domain::store::{StoreError, StoreErrorKind, Write};
use madako_protocol::actors::CommitError;
use madako_protocol::placement::objects::FollowerGap;
use tokio::time::Instant;

use self::store::PREFIX;
use self::world::World;
use crate::SchedulerConfig;
use crate::testing::{NAMESPACE, application, begin, cluster};

fn lost() -> CommitError {
    let operation = "commit".to_owned();
    CommitError::Store(StoreError { operation, kind: StoreErrorKind::Deadline, why: "none".to_owned() })
}

#[tokio::test(start_paused = true)]
async fn an_application_is_bound_and_the_decision_is_kept_and_explained_after_a_restart() {
    let mut world = World::start(SchedulerConfig::default()).await;
    world.put(cluster("c"));
    world.put(application("a"));
    world.until("bound", |world| world.bound("a").as_deref() == Some("c")).await;
    assert_eq!(world.kept("decisions/testing/a").unwrap()["outcome"], "bound");
    world.restart().await;
    world.until("remembered", |_| true).await;
    world.wait(1).await;
    let explanation = world.explain("a").await.unwrap();
    assert!(matches!(explanation.last.unwrap().outcome, Decided::Bound { .. }));
    assert!(matches!(explanation.decision.outcome, Decided::Stays { .. }));
    assert!(matches!(world.explain("other").await, Err(ExplainError::Unknown { .. })));
}

#[tokio::test(start_paused = true)]
async fn many_applications_are_bound_in_few_transactions() {
    let world =
        World::start(SchedulerConfig { debounce: Duration::from_secs(1), ..SchedulerConfig::default() })
            .await;
    for number in 0..3 {
        world.put(cluster(&format!("c{number}")));
    }
    for number in 0..500 {
        world.put(application(&format!("a{number}")));
    }
    world
        .until("all bound", |world| (0..500).all(|number| world.bound(&format!("a{number}")).is_some()))
        .await;
    // Two writes each, 128 at most.
    assert_eq!(world.committed(), 500_usize.div_ceil(63));
}

#[tokio::test(start_paused = true)]
async fn large_applications_share_no_transaction() {
    let world =
        World::start(SchedulerConfig { debounce: Duration::from_secs(1), ..SchedulerConfig::default() })
            .await;
    world.put(cluster("c"));
    let text = "x".repeat(400_000);
    let object = format!(
        r#"{{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {{"name": "m"}}, "data": "{text}"}}"#
    );
    for number in 0..5 {
        let mut application = application(&format!("a{number}"));
        application.spec.manifest = vec![madako_json::krake::free::JsonObject::from_text(&object).unwrap()];
        world.put(application);
    }
    world.until("all bound", |world| (0..5).all(|number| world.bound(&format!("a{number}")).is_some())).await;
    assert_eq!(world.committed(), 3);
    for transaction in &world.store.lock().committed {
        let bytes: usize = transaction
            .writes
            .iter()
            .map(|write| match write {
                Write::Put { key, value, .. } => key.len() + value.len(),
                Write::Delete { key } => key.len(),
            })
            .sum();
        assert!(bytes <= limits::MOST_TRANSACTION_BYTES);
    }
}

#[tokio::test(start_paused = true)]
async fn a_change_between_decision_and_commit_is_never_overwritten() {
    let world = World::start(SchedulerConfig::default()).await;
    world.put(cluster("c"));
    world.wait(1).await;
    world.store.lock().before = Some(Box::new(|inner| {
        let mut changed = application("a");
        changed.metadata.labels.insert("by", "user".to_owned());
        inner.put(&changed.into_object());
    }));
    world.put(application("a"));
    world.until("bound", |world| world.bound("a").is_some()).await;
    let by = world.get::<Application>("a").unwrap().metadata.labels.get("by").cloned();
    assert_eq!(by.as_deref(), Some("user"));
}

#[tokio::test(start_paused = true)]
async fn cluster_that_goes_offline_before_the_commit_gets_no_application() {
    let world = World::start(SchedulerConfig::default()).await;
    world.put(cluster("c"));
    world.wait(1).await;
    world.store.lock().before = Some(Box::new(|inner| {
        let mut offline = cluster("c");
        offline.status.state = ClusterState::Offline;
        inner.put(&offline.into_object());
    }));
    world.put(application("a"));
    let degraded = |world: &World| {
        world.get::<Application>("a").is_some_and(|a| a.status.state == ApplicationState::Degraded)
    };
    world.until("degraded", degraded).await;
    assert_eq!(world.bound("a"), None);
}

#[tokio::test(start_paused = true)]
async fn an_unused_cluster_that_is_bound_to_before_its_deletion_is_committed_stays() {
    let world = World::start(SchedulerConfig::default()).await;
    let mut made = cluster("made");
    made.spec.auto_generated = true;
    world.put(made);
    // The store keeps its memory.
    world.wait(1).await;
    let begun = Instant::now();
    world.store.lock().before = Some(Box::new(|inner| {
        let mut bound = application("a");
        let to = ResourceRef::from_key(&ObjectKey::new(Kind::Cluster, Some(NAMESPACE), "made"));
        bound.metadata.owners.push(to.clone());
        bound.status.scheduled_to = Some(to);
        inner.put(&bound.into_object());
    }));
    world.until("it is to be deleted", |world| world.get::<Application>("a").is_some()).await;
    assert!(begun.elapsed() > Duration::from_secs(590), "after its retention");
    world.wait(60).await;
    assert!(world.get::<Cluster>("made").unwrap().metadata.deleted.is_none());
    assert!(world.get::<Application>("a").unwrap().metadata.deleted.is_none());
    // Unused, it is deleted.
    let key = ObjectKey::new(Kind::Application, Some(NAMESPACE), "a").etcd_key();
    world.store.lock().write(&[Write::Delete { key }]);
    let gone =
        |world: &World| world.get::<Cluster>("made").is_none_or(|cluster| cluster.metadata.deleted.is_some());
    world.until("gone", gone).await;
}

#[tokio::test(start_paused = true)]
async fn pending_bindings_are_dropped_when_their_cluster_goes_offline_in_mid_pass() {
    let config = SchedulerConfig { debounce: Duration::from_secs(1), ..SchedulerConfig::default() };
    let world = World::start(config).await;
    world.put(cluster("c"));
    for number in 0..200 {
        world.put(application(&format!("a{number}")));
    }
    // The store rejects the first transaction, and the others of the pass are outdated when their turn comes.
    world.store.lock().before = Some(Box::new(|inner| {
        let mut offline = cluster("c");
        offline.status.state = ClusterState::Offline;
        inner.put(&offline.into_object());
    }));
    let degraded = |world: &World| {
        (0..200).all(|number| {
            let application = world.get::<Application>(&format!("a{number}")).unwrap();
            application.status.state == ApplicationState::Degraded
        })
    };
    world.until("degraded", degraded).await;
    assert!((0..200).all(|number| world.bound(&format!("a{number}")).is_none()));
    world.change::<Cluster>("c", |cluster| cluster.status.state = ClusterState::Online);
    world.until("bound", |world| (0..200).all(|number| world.bound(&format!("a{number}")).is_some())).await;
}

#[tokio::test(start_paused = true)]
async fn applications_of_a_restored_store_are_scheduled_immediately() {
    let world = World::start(SchedulerConfig::default()).await;
    world.put(cluster("c"));
    let earlier = world.store.lock().saved();
    world.put(application("a"));
    world.until("bound", |world| world.bound("a").is_some()).await;
    world.wait(1).await;
    world.store.lock().restore(earlier);
    assert_eq!(world.bound("a"), None);
    world.put(application("b"));
    world.until("bound", |world| world.bound("b").is_some()).await;
}

#[tokio::test(start_paused = true)]
async fn binding_with_a_lost_answer_is_committed_exactly_once() {
    for written in [true, false] {
        let world = World::start(SchedulerConfig::default()).await;
        world.put(cluster("c"));
        world.wait(1).await;
        world.store.lock().fails = [(written, lost()), (false, lost())].into();
        world.put(application("a"));
        world.until("bound", |world| world.bound("a").is_some()).await;
        world.wait(200).await;
        let bindings = world.store.lock().committed.len();
        assert_eq!(bindings, 1, "written: {written}");
    }
}

#[tokio::test(start_paused = true)]
async fn repeatedly_refused_commits_back_off() {
    let owned_by_another =
        CommitError::Conflict { keys: vec![madako_domain::placement::ownership::KEY.to_owned()] };
    let full =
        StoreError { operation: "commit".to_owned(), kind: StoreErrorKind::Full, why: "full".to_owned() };
    for refused in [owned_by_another, CommitError::Store(full)] {
        let world = World::start(SchedulerConfig::default()).await;
        world.put(cluster("c"));
        world.wait(1).await;
        world.store.lock().fails = std::iter::repeat_n((false, refused.clone()), 20).collect();
        world.put(application("a"));
        world.wait(240).await;
        let left = world.store.lock().fails.len();
        // Attempts after 0.5, 1, 2, 4, 8, 16 and then every 30 seconds.
        assert!((5..=12).contains(&left), "{left} tries are left: {refused}");
        assert_eq!(world.bound("a"), None);
        world.wait(600).await;
        assert_eq!(world.bound("a").as_deref(), Some("c"));
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_decided_before_placement_is_owned() {
    let world = World::start(SchedulerConfig::default()).await;
    for owner in [Ownership::Unknown, Ownership::Theirs { prefix: "/other/".to_owned() }] {
        world.ownership.send_replace(owner.clone());
        world.put(cluster("c"));
        world.put(application("a"));
        world.wait(120).await;
        assert_eq!((world.bound("a"), world.committed()), (None, 0), "{owner:?}");
    }
    world.ownership.send_replace(Ownership::Ours { revision: 2 });
    world.until("bound", |world| world.bound("a").is_some()).await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_written_while_nothing_changes() {
    let world = World::start(SchedulerConfig::default()).await;
    world.scored("c");
    world.put(application("a"));
    world.put({
        let mut nowhere = application("nowhere");
        nowhere.spec.constraints.cluster.labels = Some(vec!["no is where".parse().unwrap()]);
        nowhere
    });
    world.score(&[("c", 0.5)]);
    world.until("bound", |world| world.bound("a").is_some()).await;
    world.wait(10).await;
    let before = world.committed();
    for _ in 0..240 {
        world.wait(15).await;
        world.score(&[("c", 0.5)]);
    }
    assert_eq!(world.committed(), before);
}

#[tokio::test(start_paused = true)]
async fn start_of_a_cluster_outage_survives_a_restart() {
    let mut world = World::start(SchedulerConfig::default()).await;
    world.scored("own");
    world.scored("other");
    world.score(&[("own", 0.9), ("other", 0.1)]);
    world.put(application("a"));
    world.until("bound", |world| world.bound("a").as_deref() == Some("own")).await;
    world.wait(100).await;
    world.change::<Cluster>("own", |own| own.status.state = ClusterState::Offline);
    world.wait(50).await;
    assert!(world.kept("clusters/testing/own").unwrap()["not_online_since"].is_string());
    world.restart().await;
    world.wait(9).await;
    assert_eq!(world.bound("a").as_deref(), Some("own"));
    world.wait(2).await;
    assert_eq!(world.bound("a").as_deref(), Some("other"));
    world.change::<Cluster>("own", |own| own.status.state = ClusterState::Online);
    world.wait(1).await;
    assert_eq!(world.kept("clusters/testing/own"), None);
}

#[tokio::test(start_paused = true)]
async fn cluster_that_was_online_between_two_observations_restarts_its_offline_time() {
    for restarts in [true, false] {
        let debounce = Duration::from_secs(2);
        let mut world = World::start(SchedulerConfig { debounce, ..SchedulerConfig::default() }).await;
        world.scored("own");
        world.scored("other");
        world.score(&[("own", 0.9), ("other", 0.1)]);
        world.put(application("a"));
        world.until("bound", |world| world.bound("a").as_deref() == Some("own")).await;
        world.wait(100).await;
        world.change::<Cluster>("own", |own| own.status.state = ClusterState::Offline);
        world.wait(50).await;
        let interrupted = |world: &World| {
            world.change::<Cluster>("own", |own| own.status.state = ClusterState::Online);
            world.change::<Cluster>("own", |own| own.status.state = ClusterState::Offline);
        };
        if restarts {
            world.restart_after(interrupted).await;
        } else {
            interrupted(&world);
        }
        world.wait(55).await;
        assert_eq!(world.bound("a").as_deref(), Some("own"), "restarts: {restarts}");
        world.wait(10).await;
        assert_eq!(world.bound("a").as_deref(), Some("other"), "restarts: {restarts}");
    }
}

#[tokio::test(start_paused = true)]
async fn count_of_moves_survives_a_restart() {
    let config = SchedulerConfig {
        max_moves: crate::MaxMoves { percent: 0, at_least: 2 },
        ..SchedulerConfig::default()
    };
    let mut world = World::start(config).await;
    world.scored("low");
    world.score(&[("low", 0.1)]);
    for number in 0..6 {
        world.put(application(&format!("a{number}")));
    }
    let on = |world: &World, cluster: &str| {
        (0..6).filter(|number| world.bound(&format!("a{number}")).as_deref() == Some(cluster)).count()
    };
    world.until("bound", |world| on(world, "low") == 6).await;
    world.wait(100).await;
    world.scored("high");
    world.score(&[("low", 0.1), ("high", 0.9)]);
    world.wait(5).await;
    assert_eq!(on(&world, "high"), 2);
    world.restart().await;
    world.wait(50).await;
    assert_eq!(on(&world, "high"), 2);
    world.wait(10).await;
    assert_eq!(on(&world, "high"), 4);
    world.wait(120).await;
    assert_eq!(on(&world, "high"), 6);
}

#[tokio::test(start_paused = true)]
async fn moves_with_a_lost_answer_count_against_the_limit() {
    let config = SchedulerConfig {
        max_moves: crate::MaxMoves { percent: 0, at_least: 1 },
        ..SchedulerConfig::default()
    };
    let world = World::start(config).await;
    world.scored("low");
    world.score(&[("low", 0.1)]);
    world.put(application("a"));
    world.put(application("b"));
    world.until("bound", |world| world.bound("a").is_some() && world.bound("b").is_some()).await;
    world.wait(100).await;
    // The write happens, and its answer is lost.
    world.store.lock().fails = [(true, lost())].into();
    world.scored("high");
    world.score(&[("low", 0.1), ("high", 0.9)]);
    world.wait(50).await;
    let high =
        |world: &World| ["a", "b"].iter().filter(|a| world.bound(a).as_deref() == Some("high")).count();
    assert_eq!(high(&world), 1);
    world.wait(15).await;
    assert_eq!(high(&world), 2);
    // A count that another client changed is read again before the next change.
    world.wait(100).await;
    world.store.lock().before = Some(Box::new(|inner| {
        let key = format!("{PREFIX}{}", madako_domain::keys::PLACEMENT_MOVES);
        let now = (begin() + Duration::from_secs(270)).format(&time::format_description::well_known::Rfc3339);
        let value = format!(r#"[{{"at": "{}", "count": 1}}]"#, now.unwrap());
        inner.write(&[Write::Put { key, value: value.into(), lease: 0 }]);
    }));
    world.score(&[("low", 0.9), ("high", 0.1)]);
    world.wait(30).await;
    assert_eq!(high(&world), 2);
    world.wait(60).await;
    assert_eq!(high(&world), 1);
}

#[tokio::test(start_paused = true)]
async fn a_retry_takes_place_when_its_time_comes() {
    let world = World::start(SchedulerConfig::default()).await;
    let mut nowhere = application("a");
    nowhere.spec.backoff_limit = 2;
    nowhere.spec.backoff_delay = 100;
    world.put(nowhere);
    let status = |world: &World| world.get::<Application>("a").unwrap().status;
    world.wait(1).await;
    assert_eq!((status(&world).state, status(&world).retries), (ApplicationState::Degraded, Some(1)));
    world.wait(100).await;
    assert_eq!(status(&world).retries, Some(0));
    world.wait(100).await;
    assert_eq!(status(&world).state, ApplicationState::Failed);
}

#[tokio::test(start_paused = true)]
async fn changes_that_were_missed_are_listed_again() {
    let world = World::start(SchedulerConfig::default()).await;
    world.put(cluster("c"));
    world.wait(1).await;
    let followers = std::mem::take(&mut world.store.lock().followers);
    world.put(application("a"));
    for follower in followers {
        follower.send(Err(FollowerGap::Lagged { limit: 1 })).unwrap();
    }
    world.until("bound", |world| world.bound("a").is_some()).await;
}

#[tokio::test(start_paused = true)]
async fn the_decision_on_a_deleted_application_is_forgotten() {
    let world = World::start(SchedulerConfig::default()).await;
    world.put(cluster("c"));
    world.put(application("a"));
    world.until("kept", |world| world.kept("decisions/testing/a").is_some()).await;
    let key = ObjectKey::new(Kind::Application, Some(NAMESPACE), "a").etcd_key();
    world.store.lock().write(&[Write::Delete { key }]);
    world.until("forgotten", |world| world.kept("decisions/testing/a").is_none()).await;
}

#[tokio::test(start_paused = true)]
async fn unreadable_stored_memory_of_the_scheduler_is_replaced() {
    let world = World::start(SchedulerConfig::default()).await;
    let mut world = world;
    for key in ["moves", "clusters/testing/c", "decisions/testing/a", "decisions/odd", "other"] {
        let key = format!("{PREFIX}madako/placement/{key}");
        world.store.lock().write(&[Write::Put { key, value: Bytes::from_static(b"{"), lease: 0 }]);
    }
    world.restart().await;
    world.put(cluster("c"));
    world.put(application("a"));
    world.until("bound", |world| world.bound("a").is_some()).await;
}
