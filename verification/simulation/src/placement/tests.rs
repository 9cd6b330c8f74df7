//! Tests of the placement judge on invalid histories that no planted bug produces, each beside a valid one.

use std::time::Duration;

use madako_domain::invariants::Id;
use madako_domain::keys;
use madako_domain::placement::decision::{self, Decision, Move, Outcome};
use madako_domain::placement::kind::{Kind, ObjectKey};
use madako_domain::placement::ownership;
use serde_json::{Value, json};
use time::macros::datetime;

use super::{KeyChange, PlacementChecker, WIPED};
use crate::history::History;
use crate::world::PREFIX;

/// Lease of the leader, which owns placement.
const LEASE: i64 = 7;

struct World {
    checker: PlacementChecker,
    revision: i64,
}

fn key(kind: Kind, name: &str) -> ObjectKey {
    ObjectKey::new(kind, Some("n"), name)
}

fn metadata(name: &str, more: &Value) -> Value {
    let mut metadata = json!({
        "name": name, "namespace": "n", "uid": name, "finalizers": [],
        "created": "2026-01-01T00:00:00+00:00", "modified": "2026-01-01T00:00:00+00:00",
    });
    for (name, value) in more.as_object().unwrap() {
        metadata[name] = value.clone();
    }
    metadata
}

fn cluster(name: &str, state: &str, more: &Value) -> Value {
    json!({"api": "kubernetes", "kind": "Cluster", "metadata": metadata(name, more),
        "spec": {"kubeconfig": {}, "constraints": {"cloud": {}}, "metrics": [{"name": "load", "weight": 1.0}]},
        "status": {"state": state}})
}

/// An application that requires a load above 5; bound `minute` minutes after the start.
fn application(to: Option<&str>, minute: u8, more: &Value) -> Value {
    let to = to.map(|name| json!({"api": "kubernetes", "kind": "Cluster", "namespace": "n", "name": name}));
    let scheduled = to.as_ref().map(|_| format!("2026-01-01T00:{minute:02}:00+00:00"));
    let mut more = more.clone();
    more["owners"] = to.iter().cloned().collect();
    json!({"api": "kubernetes", "kind": "Application", "metadata": metadata("app", &more),
        "spec": {"manifest": [], "constraints": {"cluster": {"metrics": ["load > 5"]}, "migration": true}},
        "status": {"scheduled_to": to, "scheduled": scheduled}})
}

impl World {
    /// A leader that owns placement, two clusters and an application.
    fn new() -> Self {
        let checker = PlacementChecker::new(History::new(), datetime!(2026-01-01 00:00 UTC));
        let mut world = Self { checker, revision: 0 };
        world.commit(&[(format!("{PREFIX}{}/1", keys::LEADER), Some(json!("alpha")))]);
        world.own(PREFIX);
        world.checker.record_value("load", 9.0);
        for name in ["one", "two"] {
            world.checker.note_creation(&key(Kind::Cluster, name));
            world.put(Kind::Cluster, name, cluster(name, "ONLINE", &json!({})));
        }
        world.checker.note_creation(&key(Kind::Application, "app"));
        world.put(Kind::Application, "app", application(None, 0, &json!({})));
        assert_eq!(world.found(), []);
        world
    }

    fn commit(&mut self, writes: &[(String, Option<Value>)]) {
        self.revision += 1;
        let text = |key: &str, value: &Value| match key {
            ownership::KEY => value.as_str().unwrap().to_owned(),
            _ => value.to_string(),
        };
        let events = writes.iter().map(|(key, value)| KeyChange {
            key: key.clone(),
            value: value.as_ref().map(|value| text(key, value).into_bytes()),
            created: 1,
            lease: LEASE,
        });
        self.checker.judge_revision(self.revision, &events.collect::<Vec<_>>());
    }

    fn own(&mut self, prefix: &str) {
        self.commit(&[(ownership::KEY.to_owned(), Some(json!(prefix)))]);
    }

    fn put(&mut self, kind: Kind, name: &str, value: Value) {
        self.commit(&[(key(kind, name).etcd_key(), Some(value))]);
    }

    /// Binds the application with a decision, as the leader does.
    fn bind(&mut self, to: Option<&str>, minute: u8) {
        self.decide(to, minute, json!({}));
    }

    /// Moves the application from `one` to `two`, with the reason in the decision.
    fn move_for(&mut self, why: Move, minute: u8) {
        let (from, to) = (key(Kind::Cluster, "one"), key(Kind::Cluster, "two"));
        let decision = Decision {
            at: datetime!(2026-01-01 00:00 UTC),
            outcome: Outcome::Moved { from, to, why },
            best: None,
            runner_up: None,
            gain: None,
            clusters: decision::Counts::default(),
        };
        self.decide(Some("two"), minute, serde_json::to_value(decision).unwrap());
    }

    fn decide(&mut self, to: Option<&str>, minute: u8, decision: Value) {
        let kept = format!("{PREFIX}{}n/app", keys::PLACEMENT_DECISIONS);
        let value = application(to, minute, &json!({}));
        self.commit(&[(key(Kind::Application, "app").etcd_key(), Some(value)), (kept, Some(decision))]);
    }

    fn found(&self) -> Vec<Id> {
        self.checker.finish().into_iter().map(|violation| violation.invariant).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn a_binding_passes_only_to_a_cluster_that_fits() {
    let mut world = World::new();
    world.bind(Some("one"), 0);
    assert_eq!(world.found(), []);
    // For a while, a decision may use a value that has been replaced.
    let mut world = World::new();
    world.checker.record_value("load", 1.0);
    world.bind(Some("one"), 0);
    assert_eq!(world.found(), []);
    let mut world = World::new();
    tokio::time::advance(Duration::from_secs(600)).await;
    world.checker.record_value("load", 1.0);
    world.bind(Some("one"), 0);
    assert_eq!(world.found(), [Id::I11], "no server said a value above 5 lately");
    let mut world = World::new();
    world.bind(Some("three"), 0);
    assert_eq!(world.found(), [Id::I11], "there is no such cluster");
}

#[tokio::test(start_paused = true)]
async fn a_binding_without_the_owner_or_its_decision_is_found() {
    let mut world = World::new();
    world.put(Kind::Application, "app", application(Some("one"), 0, &json!({})));
    assert_eq!(world.found(), [Id::I1], "there is no decision");
    let mut world = World::new();
    world.own("/other/");
    world.bind(Some("one"), 0);
    assert_eq!(world.found(), [Id::I1, Id::I1], "another prefix took the key, and did not decide");
    let mut world = World::new();
    world.commit(&[(ownership::KEY.to_owned(), None)]);
    world.bind(Some("one"), 0);
    assert_eq!(world.found(), [Id::I1], "placement has no owner");
}

#[tokio::test(start_paused = true)]
async fn too_many_moves_and_early_moves_are_found() {
    let mut world = World::new();
    world.bind(Some("one"), 0);
    for (to, minute) in [("two", 2), ("one", 2)] {
        world.bind(Some(to), minute);
    }
    assert_eq!(world.found(), []);
    world.bind(Some("two"), 2);
    assert_eq!(world.found(), [Id::I5], "three at once");
    let mut world = World::new();
    world.bind(Some("one"), 0);
    tokio::time::advance(Duration::from_secs(110)).await;
    world.put(Kind::Cluster, "one", cluster("one", "OFFLINE", &json!({})));
    world.bind(Some("two"), 2);
    assert_eq!(world.found(), [Id::I5], "after ten seconds");
    let mut world = World::new();
    world.bind(Some("one"), 0);
    world.put(Kind::Cluster, "one", cluster("one", "FAILING_METRICS", &json!({})));
    world.bind(Some("two"), 2);
    assert_eq!(world.found(), [Id::I5], "an outage of monitoring moves nothing");
}

#[tokio::test(start_paused = true)]
async fn a_move_is_early_unless_the_change_of_state_may_be_unheard() {
    let offline = || cluster("one", "OFFLINE", &json!({}));
    // The application moves two minutes after the start; at that time its cluster has been offline for `millis`.
    for (millis, why, found) in [
        (1_500, Move::Better, vec![]),
        (2_500, Move::Better, vec![Id::I5]),
        (1_500, Move::NotOnline, vec![Id::I5]),
        (1_500, Move::Misfit, vec![Id::I5]),
        (60_000, Move::NotOnline, vec![]),
    ] {
        let mut world = World::new();
        world.bind(Some("one"), 0);
        tokio::time::advance(Duration::from_millis(120_000 - millis)).await;
        world.checker.record_value("load", 9.0);
        world.put(Kind::Cluster, "one", offline());
        world.move_for(why.clone(), 2);
        assert_eq!(world.found(), found, "{why:?} {millis} ms later");
    }
    // The cluster was offline for long, then online for too short a time to be observed, or for longer.
    for (online, found) in [(1_000, vec![]), (5_000, vec![Id::I5])] {
        let mut world = World::new();
        world.bind(Some("one"), 0);
        world.put(Kind::Cluster, "one", offline());
        tokio::time::advance(Duration::from_millis(119_500 - online)).await;
        world.checker.record_value("load", 9.0);
        world.put(Kind::Cluster, "one", cluster("one", "ONLINE", &json!({})));
        tokio::time::advance(Duration::from_millis(online)).await;
        world.put(Kind::Cluster, "one", offline());
        world.move_for(Move::NotOnline, 2);
        assert_eq!(world.found(), found, "online for {online} ms");
    }
}

#[tokio::test(start_paused = true)]
async fn unrequested_deletions_and_creations_are_found() {
    let application_key = key(Kind::Application, "app").etcd_key();
    let mut world = World::new();
    world.bind(Some("one"), 0);
    world.bind(None, 0);
    assert_eq!(world.found(), [Id::I9], "its binding is lost");
    let mut world = World::new();
    world.commit(&[(application_key.clone(), None)]);
    assert_eq!(world.found(), [Id::I9], "no user deleted it");
    let mut world = World::new();
    world.commit(&[(application_key.clone(), None), (WIPED.to_owned(), Some(json!("")))]);
    assert_eq!(world.found(), [], "everything was deleted");
    world.put(Kind::Application, "app", application(None, 0, &json!({})));
    assert_eq!(world.found(), [Id::I9], "no user asked for it again");
    let world = World::new();
    world.checker.note_acknowledged(&key(Kind::Application, "app"), 99);
    world.checker.note_commit(98);
    assert_eq!(world.found(), [Id::I9, Id::I9], "neither was ever written");
    let mut world = World::new();
    let deleted = json!({"deleted": "2026-01-01T00:01:00+00:00"});
    world.put(Kind::Application, "app", application(None, 0, &deleted));
    assert_eq!(world.found(), [Id::I9], "no user asked for its deletion");
}

#[tokio::test(start_paused = true)]
async fn application_is_deleted_only_with_its_own_cluster() {
    let deleted = json!({"deleted": "2026-01-01T00:01:00+00:00"});
    for (own, found) in [("one", vec![]), ("two", vec![Id::I9])] {
        let mut world = World::new();
        world.bind(Some(own), 0);
        world.checker.note_deletion(&key(Kind::Cluster, "one"));
        world.put(Kind::Cluster, "one", cluster("one", "ONLINE", &deleted));
        world.put(Kind::Application, "app", application(Some(own), 0, &deleted));
        assert_eq!(world.found(), found, "bound to {own}");
    }
    let mut world = World::new();
    world.bind(Some("one"), 0);
    world.checker.note_deletion(&key(Kind::Cluster, "one"));
    world.put(Kind::Cluster, "one", cluster("one", "ONLINE", &deleted));
    world.commit(&[(key(Kind::Cluster, "one").etcd_key(), None)]);
    assert_eq!(world.found(), [Id::I9], "the owner was deleted before its dependents");
}
