//! Tests of placement's changes at the leader: the transactions, and the owner's key during a leader's life, on paused
//! time.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use bytes::Bytes;
use madako_domain::invariants::BindingEvidence;
use madako_domain::limits::ADDED_BY_THE_GATE;
use madako_domain::placement::change::{KeptState, StoredObject};
use madako_domain::placement::fit::ComparedMetrics;
use madako_domain::placement::kind::Kind;
use madako_domain::placement::object_value::Object;
use madako_domain::settings::Settings;
use madako_domain::store::{Condition, Write};
use madako_protocol::actors::{Committed, LeaderMessage, Mutation};
use madako_protocol::event::{Event, EventSink};
use madako_protocol::mailbox::Envelope;
use madako_protocol::ports::Clock;
use madako_protocol::store::{CampaignEvent, CampaignOptions};
use madako_protocol::{latest, leader};
use ractor::{Actor, ActorRef};
use time::OffsetDateTime;
use time::macros::datetime;

use super::fake::{FakeObjects, FakeStore};
use super::*;
use crate::actor::{EpochActorsControl, Leader, LeaderArguments};

const CLUSTER: &str = r#"{"metadata": {"name": "c", "namespace": "n", "uid": "u", "labels": {"location": "DE"},
    "created": "2026-01-01T00:00:00", "modified": "2026-01-01T00:00:00"},
    "spec": {}, "status": {"state": "ONLINE"}}"#;

fn application(bound: bool, location: &str) -> String {
    let to = r#"{"api": "kubernetes", "kind": "Cluster", "namespace": "n", "name": "c"}"#;
    format!(
        r#"{{"metadata": {{"name": "a", "namespace": "n", "uid": "u",
            "created": "2026-01-01T00:00:00", "modified": "2026-01-01T00:00:00"}},
            "spec": {{"manifest": [], "constraints": {{"cluster": {{"labels": ["location is {location}"]}}}}}},
            "status": {{"scheduled_to": {}}}}}"#,
        if bound { to } else { "null" }
    )
}

fn stored(kind: Kind, text: &str, revision: i64) -> Arc<Stored> {
    let object = Object::from_stored(kind, text).unwrap();
    let wire = Bytes::from(object.to_json());
    Arc::new(Stored { key: object.key(), create_revision: 1, mod_revision: revision, object, wire })
}

fn evidence() -> BindingEvidence {
    BindingEvidence {
        application: stored(Kind::Application, &application(false, "DE"), 5),
        cluster: stored(Kind::Cluster, CLUSTER, 4),
        cloud: None,
        metrics: None,
        compared: ComparedMetrics::Value,
    }
}

fn unchanged(key: &str, revision: i64) -> Condition {
    Condition::Unchanged { key: key.to_owned(), revision }
}

fn put(key: &str, value: impl Into<Bytes>, lease: i64) -> Write {
    Write::Put { key: key.to_owned(), value: value.into(), lease }
}

const APPLICATION: &str = "/kubernetes/applications/n/a";
const OURS: Ownership = Ownership::Ours { revision: 3 };

fn made(owner: &Ownership, change: &PlacementMutation) -> Result<Transaction, CommitError> {
    let epoch = Epoch { number: 7, key: "leader//1f".into(), lease: 0x1f };
    placement_transaction(&epoch, "/a/", owner, change, &|_| None)
}

/// Binds the application to a cluster of a location, with evidence and without comparisons.
fn binding(location: &str) -> PlacementMutation {
    let object = Object::from_stored(Kind::Application, &application(true, location)).unwrap();
    let objects = BTreeMap::from([(object.key(), Some(StoredObject::from_object(&object)))]);
    PlacementMutation { objects, evidence: vec![evidence()], ..PlacementMutation::default() }
}

/// A change of the history of moves alone.
fn moves() -> PlacementMutation {
    let kept = BTreeMap::from([(KeptState::Moves, Some(Bytes::from_static(b"[]")))]);
    PlacementMutation { kept, ..PlacementMutation::default() }
}

fn key() -> ObjectKey {
    ObjectKey::new(Kind::Application, Some("n"), "a")
}

#[test]
fn binding_compares_the_leader_the_owner_and_all_evidence() {
    let unchanged_application = BTreeMap::from([(key(), 5)]);
    let change = PlacementMutation { unchanged: unchanged_application, kept: moves().kept, ..binding("DE") };
    let made = made(&OURS, &change).unwrap();
    assert_eq!(
        made.conditions,
        [
            Condition::Created { key: "/a/leader//1f".into(), revision: 7 },
            unchanged(ownership::KEY, 3),
            unchanged(APPLICATION, 5),
            unchanged("/kubernetes/clusters/n/c", 4),
        ]
    );
    let [Write::Put { key, .. }, kept] = &made.writes[..] else { panic!("{:?}", made.writes) };
    assert_eq!((key.as_str(), kept), (APPLICATION, &put("/a/madako/placement/moves", "[]", 0)));
}

#[test]
fn forbidden_placement_mutation_makes_no_transaction() {
    let conflict = |keys: &[&str]| {
        Err(CommitError::Conflict { keys: keys.iter().map(|key| (*key).to_owned()).collect() })
    };
    for owner in [Ownership::Unknown, Ownership::Theirs { prefix: "/b/".into() }] {
        assert_eq!(made(&owner, &binding("DE")), conflict(&[ownership::KEY]));
    }
    let error = made(&OURS, &binding("SK")).unwrap_err();
    let CommitError::Invariant { violations } = error else { panic!("{error}") };
    assert_eq!(
        violations[0].to_string(),
        "I11: Application n/a: it is bound to Cluster n/c: location is SK: the label is DE"
    );
    // It was decided on another revision than it compares.
    let later = PlacementMutation { unchanged: BTreeMap::from([(key(), 6)]), ..binding("DE") };
    assert_eq!(made(&OURS, &later), conflict(&[APPLICATION]));
    // Without evidence: the compared revision of the application is outdated.
    let kept = PlacementMutation { evidence: vec![], ..later };
    assert_eq!(made(&OURS, &kept), conflict(&[APPLICATION]));
    for (kind, namespace, name) in [
        (Kind::Application, None, "a"),
        (Kind::Application, Some("n"), "a/b"),
        (Kind::Application, Some(""), "a"),
        (Kind::Role, None, ""),
    ] {
        let key = ObjectKey::new(kind, namespace, name);
        let objects = BTreeMap::from([(key.clone(), None)]);
        let misnamed = PlacementMutation { objects, ..PlacementMutation::default() };
        let error = made(&OURS, &misnamed).unwrap_err();
        assert_eq!(error, CommitError::ForeignKey { key: key.etcd_key() });
    }
}

#[test]
fn a_transaction_that_etcd_would_not_take_is_refused_before_it_is_sent() {
    let key = |n: usize| ObjectKey::new(Kind::Role, None, n.to_string());
    let conditions = |count| (0..count).map(|n| (key(n), 1)).collect::<BTreeMap<_, _>>();
    let writes = |count| (0..count).map(|n| (key(n), None)).collect::<BTreeMap<_, _>>();
    let made = |unchanged, objects| {
        made(&OURS, &PlacementMutation { unchanged, objects, ..PlacementMutation::default() })
    };
    let most = MOST_OPERATIONS - ADDED_BY_THE_GATE;
    assert_eq!(made(conditions(most), writes(1)).unwrap().conditions.len(), MOST_OPERATIONS);
    assert!(made(BTreeMap::new(), writes(MOST_OPERATIONS)).is_ok());
    for (operations, conditions, writes) in [
        ("comparisons", conditions(most + 1), writes(1)),
        ("writes", BTreeMap::new(), writes(MOST_OPERATIONS + 1)),
    ] {
        let error = made(conditions, writes).unwrap_err();
        let count = MOST_OPERATIONS + 1;
        assert_eq!(
            error,
            CommitError::TooLarge { what: "placement", operations, count, most: MOST_OPERATIONS }
        );
    }
}

struct FixedClock;

impl Clock for FixedClock {
    fn now(&self) -> OffsetDateTime {
        datetime!(2026-01-01 12:00 UTC)
    }
}

#[derive(Default)]
struct Events(Mutex<Vec<String>>);

impl EventSink for Events {
    fn emit(&self, event: Event) {
        self.0.lock().unwrap().push(match event {
            Event::PlacementHeld { owner } => format!("held by {owner}"),
            Event::PlacementOwned => "owned".into(),
            Event::CommitFailed { what, .. } => format!("failed: {what}"),
            _ => return,
        });
    }
}

struct EpochRecorder(watch::Sender<Option<i64>>);

impl EpochActorsControl for EpochRecorder {
    fn begin(&self, epoch: &Epoch) {
        self.0.send_replace(Some(epoch.number));
    }

    fn end(&self, _: &Epoch) {
        self.0.send_replace(None);
    }
}

struct LeaderFixture {
    root: FakeStore,
    leader: ActorRef<Envelope<LeaderMessage>>,
    name: String,
    events: Arc<Events>,
    reign: watch::Receiver<Option<i64>>,
    ownership: watch::Receiver<Ownership>,
}

/// Maximum wait on paused time.
const PATIENCE: Duration = Duration::from_secs(60);

impl LeaderFixture {
    async fn start(name: &str, root: &FakeStore) -> Self {
        let (ownership_sender, ownership) = watch::channel(Ownership::Unknown);
        let (reign_sender, reign) = watch::channel(None);
        let events = Arc::new(Events::default());
        let (state, _) = latest::channel();
        let arguments = LeaderArguments {
            url: String::new(),
            store: Arc::new(root.below("/a/")),
            campaign: Some(CampaignOptions { host: "host".into(), ttl: PATIENCE }),
            settings: Settings::DEFAULT,
            clock: Arc::new(FixedClock),
            events: Arc::clone(&events) as Arc<dyn EventSink>,
            state,
            reign: Arc::new(EpochRecorder(reign_sender)),
            placement: Some(PlacementAccess {
                root: Arc::new(root.clone()),
                objects: Arc::new(FakeObjects::default()),
                prefix: "/a/".into(),
                ownership: ownership_sender,
            }),
        };
        let (leader, _) = Actor::spawn(Some(name.to_owned()), Leader, arguments).await.unwrap();
        let mut fixture =
            Self { root: root.clone(), leader, name: name.to_owned(), events, reign, ownership };
        tokio::time::timeout(PATIENCE, fixture.reign.wait_for(Option::is_some)).await.unwrap().unwrap();
        fixture
    }

    async fn until(&mut self, is: impl FnMut(&Ownership) -> bool) -> Ownership {
        tokio::time::timeout(PATIENCE, self.ownership.wait_for(is)).await.unwrap().unwrap().clone()
    }

    async fn commit(&self) -> Result<Committed, CommitError> {
        let epoch = self.reign.borrow().unwrap_or_default();
        leader::commit(&self.name, epoch, Mutation::Placement(Box::new(moves()))).await
    }

    fn events(&self) -> Vec<String> {
        self.events.0.lock().unwrap().clone()
    }

    fn owner(&self) -> Option<(String, i64)> {
        let entry = self.root.entry(ownership::KEY)?;
        Some((String::from_utf8_lossy(&entry.value).into_owned(), entry.lease))
    }
}

fn ours(ownership: &Ownership) -> bool {
    matches!(ownership, Ownership::Ours { .. })
}

fn conflict(result: &Result<Committed, CommitError>) -> bool {
    matches!(result, Err(CommitError::Conflict { keys }) if *keys == [ownership::KEY])
}

#[tokio::test(start_paused = true)]
async fn leader_owns_placement_from_the_start_of_its_epoch_while_it_holds_the_key() {
    let root = FakeStore::default();
    let mut fixture = LeaderFixture::start("owns", &root).await;
    assert!(ours(&fixture.ownership.borrow()), "settled before the actors of the epoch begin");
    assert_eq!(fixture.owner(), Some(("/a/".into(), 1)));
    fixture.commit().await.unwrap();
    assert_eq!(fixture.events(), ["owned"]);

    // Another client deletes the key: the store rejects commits until the leader owns the key again.
    let before = fixture.ownership.borrow().clone();
    root.write(Write::Delete { key: ownership::KEY.into() }).await;
    let decided = Transaction { conditions: before.condition().into_iter().collect(), writes: vec![] };
    assert!(matches!(root.commit(decided).await, Ok(Outcome::Refused { .. })));
    let again = fixture.until(|now| ours(now) && *now != before).await;
    assert!(ours(&again));
    fixture.commit().await.unwrap();

    // The leader is deposed.
    let epoch = Epoch { number: fixture.reign.borrow().unwrap(), key: "leader//1".into(), lease: 1 };
    root.tell(CampaignEvent::Lost { epoch, why: "test".into() }).await;
    fixture.until(|now| *now == Ownership::Unknown).await;
    assert!(matches!(fixture.commit().await, Err(CommitError::NotLeader { .. })));
    fixture.leader.stop(None);
}

#[tokio::test(start_paused = true)]
async fn prefix_without_placement_ownership_leads_but_decides_nothing() {
    let root = FakeStore::default();
    root.write(put(ownership::KEY, "/b/", 77)).await;
    let mut fixture = LeaderFixture::start("held", &root).await;
    assert_eq!(*fixture.ownership.borrow(), Ownership::Theirs { prefix: "/b/".into() });
    assert!(conflict(&fixture.commit().await));
    root.write(put(ownership::KEY, "/c/", 78)).await;
    fixture.until(|now| *now == Ownership::Theirs { prefix: "/c/".into() }).await;
    // The owner's lease ends.
    root.write(Write::Delete { key: ownership::KEY.into() }).await;
    fixture.until(ours).await;
    fixture.commit().await.unwrap();
    assert_eq!(fixture.events(), ["held by /b/", "held by /c/", "owned"]);
    // Another prefix takes over by force: this leader yields.
    root.write(put(ownership::KEY, "/b/", 79)).await;
    fixture.until(|now| !ours(now)).await;
    assert!(conflict(&fixture.commit().await));
    fixture.leader.stop(None);
}

#[tokio::test(start_paused = true)]
async fn ownership_follows_a_store_that_was_restored_to_an_earlier_claim() {
    let root = FakeStore::default();
    let mut fixture = LeaderFixture::start("restored", &root).await;
    let before = fixture.ownership.borrow().clone();
    for _ in 0..5 {
        root.write(put("/x", "", 0)).await;
    }
    // The leader claims again at a later revision, and then the store is restored to an earlier one.
    root.write(Write::Delete { key: ownership::KEY.into() }).await;
    let later = fixture.until(|now| ours(now) && *now != before).await;
    let Ownership::Ours { revision } = before else { panic!() };
    root.restore(ownership::KEY, revision);
    assert_eq!(fixture.until(|now| *now != later).await, before);
    fixture.commit().await.unwrap();
    fixture.leader.stop(None);
}

#[tokio::test(start_paused = true)]
async fn new_leader_takes_over_ownership_from_its_predecessor() {
    let root = FakeStore::default();
    root.write(put(ownership::KEY, "/a/", 77)).await;
    let fixture = LeaderFixture::start("takes-over", &root).await;
    assert_eq!(fixture.owner(), Some(("/a/".into(), 1)), "on its own lease");
    fixture.commit().await.unwrap();
    fixture.leader.stop(None);
}

#[tokio::test(start_paused = true)]
async fn leader_with_a_refused_ownership_claim_leads_and_retries() {
    let root = FakeStore::default();
    root.deny(Some(ownership::KEY));
    let mut fixture = LeaderFixture::start("denied", &root).await;
    assert_eq!(*fixture.ownership.borrow(), Ownership::Unknown);
    assert!(conflict(&fixture.commit().await));
    root.deny(None);
    fixture.until(ours).await;
    fixture.commit().await.unwrap();
    let events = fixture.events();
    assert!(events[0] == "failed: claim of placement" && events.last().unwrap() == "owned", "{events:?}");
    fixture.leader.stop(None);
}

#[tokio::test(start_paused = true)]
async fn store_refuses_writes_of_a_leader_without_its_key() {
    let root = FakeStore::default();
    let fixture = LeaderFixture::start("deposed", &root).await;
    root.write(Write::Delete { key: "/a/leader//1".into() }).await;
    assert!(matches!(fixture.commit().await, Err(CommitError::NotLeader { .. })));
    fixture.leader.stop(None);
}
