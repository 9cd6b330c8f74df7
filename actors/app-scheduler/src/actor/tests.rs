//! The shell, on paused time, with a store that compares and a leader that judges.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use madako_messages::actors::{CommitError, Committed, LeaderMessage, Mutation, SchedulerMessage};
use madako_messages::event::{Event, EventSink};
use madako_messages::invariants::{PlacementChange, placed_where_allowed};
use madako_messages::latest::{self, Publisher};
use madako_messages::mailbox::Letter;
use madako_messages::placement::decision::{ExplainError, Explanation, Outcome as Decided, WhatIf};
use madako_messages::placement::kind::{Kind, ObjectKey};
use madako_messages::placement::kubernetes::{Application, ApplicationState, Cluster, ClusterState};
use madako_messages::placement::limits;
use madako_messages::placement::metrics::{MetricKey, MetricState, MetricsObserved, Trust, Value};
use madako_messages::placement::object_value::{Object, Resource};
use madako_messages::placement::objects::{Change, Follower, Gap, Objects, Selection, Stored};
use madako_messages::placement::ownership::Ownership;
use madako_messages::ports::Clock;
use madako_messages::state::Fault;
use madako_messages::store::{
    Campaign, CampaignOptions, Condition, Entry, Epoch, Outcome, Snapshot, Store, StoreError, StoreErrorKind,
    Transaction, WatchEvent, Write,
};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use time::OffsetDateTime;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::testing::{NAMESPACE, application, begin, cluster, metric};
use crate::{Scheduler, SchedulerArguments, SchedulerConfig};

const PREFIX: &str = "/cke/";
const EPOCH: i64 = 7;

/// Far more than anything takes on paused time.
const PATIENCE: Duration = Duration::from_secs(3_000);

type Followed = Result<Vec<Arc<Change>>, Gap>;
type Meanwhile = Box<dyn FnOnce(&mut Inner) + Send>;

/// An etcd: keys, revisions, and who follows them.
#[derive(Default)]
struct Inner {
    revision: i64,
    entries: BTreeMap<String, Entry>,
    objects: BTreeMap<ObjectKey, Arc<Stored>>,
    followers: Vec<mpsc::UnboundedSender<Followed>>,
    /// Transactions that were committed.
    committed: Vec<Transaction>,
    /// How the next ones fail, though they may be written.
    fails: VecDeque<(bool, CommitError)>,
    /// Done by somebody else just before the next transaction.
    before: Option<Meanwhile>,
}

impl Inner {
    fn write(&mut self, writes: &[Write]) -> i64 {
        self.revision += 1;
        let revision = self.revision;
        let mut changes = Vec::new();
        for write in writes {
            let (Write::Put { key, .. } | Write::Delete { key }) = write;
            let known = self.entries.get(key).map(|entry| entry.create_revision);
            let entry = match write {
                Write::Put { value, .. } => Some(Entry {
                    value: value.clone(),
                    create_revision: known.unwrap_or(revision),
                    mod_revision: revision,
                    lease: 0,
                }),
                Write::Delete { .. } => None,
            };
            if let Some(of) = ObjectKey::from_etcd_key(key) {
                let after = entry.as_ref().map(|entry| stored(&of, entry));
                match &after {
                    Some(after) => self.objects.insert(of.clone(), Arc::clone(after)),
                    None => self.objects.remove(&of),
                };
                changes.push(Arc::new(Change { revision, key: of, before: None, after }));
            }
            match entry {
                Some(entry) => self.entries.insert(key.clone(), entry),
                None => self.entries.remove(key),
            };
        }
        if !changes.is_empty() {
            self.followers.retain(|follower| follower.send(Ok(changes.clone())).is_ok());
        }
        revision
    }

    fn put(&mut self, object: &Object) {
        let value = Bytes::from(object.to_json());
        self.write(&[Write::Put { key: object.key().etcd_key(), value, lease: 0 }]);
    }

    fn commit(&mut self, transaction: Transaction) -> Outcome {
        assert!(transaction.conditions.len() <= limits::MOST_CONDITIONS, "too many comparisons");
        assert!(transaction.writes.len() <= limits::MOST_OPERATIONS, "too many writes");
        let failed = transaction.conditions.iter().filter(|condition| match condition {
            Condition::Unchanged { key, revision } => {
                self.entries.get(key).map_or(0, |entry| entry.mod_revision) != *revision
            }
            Condition::Created { .. } => panic!("placement compares what changed last"),
        });
        let failed: Vec<Condition> = failed.cloned().collect();
        if !failed.is_empty() {
            return Outcome::Refused { failed };
        }
        let revision = self.write(&transaction.writes);
        self.committed.push(transaction);
        Outcome::Committed { revision }
    }
}

fn stored(key: &ObjectKey, entry: &Entry) -> Arc<Stored> {
    Arc::new(Stored {
        key: key.clone(),
        create_revision: entry.create_revision,
        mod_revision: entry.mod_revision,
        object: Object::from_stored(key.kind, std::str::from_utf8(&entry.value).unwrap()).unwrap(),
        wire: entry.value.clone(),
    })
}

#[derive(Default)]
struct FakeStore(Mutex<Inner>);

impl FakeStore {
    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.0.lock().unwrap()
    }
}

struct FakeFollower(mpsc::UnboundedReceiver<Followed>);

#[async_trait]
impl Follower for FakeFollower {
    async fn next(&mut self) -> Followed {
        match self.0.recv().await {
            Some(next) => next,
            None => std::future::pending().await,
        }
    }
}

#[async_trait]
impl Objects for FakeStore {
    async fn fresh(&self) -> Result<i64, StoreError> {
        Ok(self.lock().revision)
    }

    fn revision(&self) -> Option<i64> {
        Some(self.lock().revision)
    }

    fn get(&self, key: &ObjectKey) -> Option<Arc<Stored>> {
        self.lock().objects.get(key).cloned()
    }

    fn list(&self, _: Selection<'_>) -> (i64, Vec<Arc<Stored>>) {
        unreachable!("the scheduler follows everything")
    }

    fn faults(&self) -> Vec<Fault> {
        Vec::new()
    }

    fn follow_all(&self) -> (i64, Vec<Arc<Stored>>, Box<dyn Follower>) {
        let mut inner = self.lock();
        let (sender, receiver) = mpsc::unbounded_channel();
        inner.followers.push(sender);
        (inner.revision, inner.objects.values().cloned().collect(), Box::new(FakeFollower(receiver)))
    }

    fn follow(&self, _: i64) -> Result<Box<dyn Follower>, Gap> {
        unreachable!("the scheduler follows everything")
    }

    async fn commit(&self, _: Transaction) -> Result<Outcome, StoreError> {
        unreachable!("the scheduler writes through the leader")
    }
}

#[async_trait]
impl Store for FakeStore {
    async fn list(&self, prefix: &str) -> Result<Snapshot, StoreError> {
        let inner = self.lock();
        let below = inner.entries.iter().filter_map(|(key, entry)| {
            let key = key.strip_prefix(PREFIX)?;
            key.starts_with(prefix).then(|| (key.to_owned(), entry.clone()))
        });
        Ok(Snapshot { revision: inner.revision, entries: below.collect() })
    }

    async fn commit(&self, _: Transaction) -> Result<Outcome, StoreError> {
        unreachable!("the scheduler writes through the leader")
    }

    fn watch(&self, _: &str) -> mpsc::Receiver<WatchEvent> {
        unreachable!("the scheduler follows resources")
    }

    fn campaign(&self, _: CampaignOptions) -> Campaign {
        unreachable!("the scheduler does not campaign")
    }

    fn holds_until(&self, _: &Epoch) -> Option<Instant> {
        unreachable!("the leader asks")
    }
}

/// A leader that judges by I11 and commits at once.
struct FakeLeader;

impl Actor for FakeLeader {
    type Msg = Letter<LeaderMessage>;
    type State = Arc<FakeStore>;
    type Arguments = Arc<FakeStore>;

    async fn pre_start(
        &self,
        _: ActorRef<Letter<LeaderMessage>>,
        store: Arc<FakeStore>,
    ) -> Result<Arc<FakeStore>, ActorProcessingErr> {
        Ok(store)
    }

    async fn handle(
        &self,
        _: ActorRef<Letter<LeaderMessage>>,
        letter: Letter<LeaderMessage>,
        store: &mut Arc<FakeStore>,
    ) -> Result<(), ActorProcessingErr> {
        let LeaderMessage::Commit { epoch, mutation, reply } = letter.open() else { panic!("not a commit") };
        assert_eq!(epoch, EPOCH);
        let Mutation::Placement { conditions, writes, evidence, .. } = mutation else {
            panic!("{mutation:?}")
        };
        let mut inner = store.lock();
        if let Some(before) = inner.before.take() {
            before(&mut inner);
        }
        let objects = inner.objects.clone();
        let find = move |key: &ObjectKey| objects.get(key).cloned();
        let change =
            PlacementChange { conditions: &conditions, writes: &writes, evidence: &evidence, stored: &find };
        let judged = placed_where_allowed(&change);
        assert_eq!(judged.violations, []);
        let fails = inner.fails.pop_front();
        let written = fails.as_ref().is_none_or(|(written, _)| *written);
        let result = if written {
            match inner.commit(Transaction { conditions, writes }) {
                Outcome::Committed { revision } => Ok(Committed { revision }),
                Outcome::Refused { failed } => Err(CommitError::Conflict {
                    keys: failed
                        .into_iter()
                        .map(|condition| match condition {
                            Condition::Unchanged { key, .. } | Condition::Created { key, .. } => key,
                        })
                        .collect(),
                }),
            }
        } else {
            Ok(Committed { revision: 0 })
        };
        let _ = reply.send(fails.map_or(result, |(_, error)| Err(error)));
        Ok(())
    }
}

/// The wall clock, as far from the beginning as tokio's.
struct PausedClock(Instant);

impl Clock for PausedClock {
    fn now(&self) -> OffsetDateTime {
        begin() + self.0.elapsed()
    }
}

struct Quiet;

impl EventSink for Quiet {
    fn emit(&self, _: Event) {}
}

struct World {
    store: Arc<FakeStore>,
    metrics: Publisher<Arc<MetricsObserved>>,
    ownership: watch::Sender<Ownership>,
    given: SchedulerArguments,
    actor: ActorRef<Letter<SchedulerMessage>>,
}

impl World {
    async fn start(config: SchedulerConfig) -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let leader = format!("leader of scheduler test {}", NUMBER.fetch_add(1, Ordering::SeqCst));
        let store = Arc::new(FakeStore::default());
        Actor::spawn(Some(leader.clone()), FakeLeader, Arc::clone(&store)).await.unwrap();
        let (metrics, observed) = latest::channel();
        let (ownership, owned) = watch::channel(Ownership::Ours { revision: 1 });
        let given = SchedulerArguments {
            epoch: EPOCH,
            leader,
            prefix: PREFIX.to_owned(),
            objects: Arc::clone(&store) as Arc<dyn Objects>,
            store: Arc::clone(&store) as Arc<dyn Store>,
            metrics: observed,
            clock: Arc::new(PausedClock(Instant::now())),
            events: Arc::new(Quiet),
            seed: 1,
            config: Arc::new(config),
            ownership: owned,
        };
        let (actor, _) = Actor::spawn(None, Scheduler, given.clone()).await.unwrap();
        Self { store, metrics, ownership, given, actor }
    }

    /// Another scheduler takes over: it knows only what is stored.
    async fn restart(&mut self) {
        self.actor.stop_and_wait(None, None).await.unwrap();
        self.actor = Actor::spawn(None, Scheduler, self.given.clone()).await.unwrap().0;
    }

    fn put<T: Resource>(&self, value: T) {
        self.store.lock().put(&value.into_object());
    }

    fn change<T: Resource>(&self, name: &str, change: impl FnOnce(&mut T)) {
        let mut value = self.get::<T>(name).unwrap();
        change(&mut value);
        self.put(value);
    }

    fn get<T: Resource>(&self, name: &str) -> Option<T> {
        let key = ObjectKey::new(T::KIND, Some(NAMESPACE), name);
        Some(T::of(&self.store.lock().objects.get(&key)?.object)?.clone())
    }

    fn bound(&self, name: &str) -> Option<String> {
        self.get::<Application>(name)?.status.scheduled_to.map(|to| to.name)
    }

    /// Metrics from 0 to 1, named after the clusters that have them.
    fn score(&self, values: &[(&str, f64)]) {
        let at = self.given.clock.now();
        let metrics = values.iter().map(|(name, value)| {
            let state = MetricState {
                metric_revision: i64::MAX,
                provider_revision: 1,
                value: Some(Value { raw: *value, normalized: *value, at }),
                reason: None,
                undefined: false,
                note: None,
                trust: Trust { since: at, range: None, turns: 0 },
            };
            (MetricKey { namespace: None, name: (*name).to_owned() }, state)
        });
        let observed = MetricsObserved { revision: i64::MAX, at, metrics: metrics.collect() };
        self.metrics.publish(Arc::new(observed));
    }

    fn scored(&self, name: &str) {
        self.put(metric(name));
        let mut cluster = cluster(name);
        cluster.spec.metrics = vec![madako_messages::placement::metadata::MetricRef::new(name, 1.0, false)];
        self.put(cluster);
    }

    /// Waits for a state, as long as it may take.
    async fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let began = Instant::now();
        while !holds(self) {
            assert!(began.elapsed() < PATIENCE, "never: {what}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Lets everything happen that happens by itself.
    async fn wait(&self, seconds: u64) {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
    }

    async fn explain(&self, name: &str) -> Result<Box<Explanation>, ExplainError> {
        let application = ObjectKey::new(Kind::Application, Some(NAMESPACE), name);
        let letter =
            |reply| SchedulerMessage::Explain { application, what_if: WhatIf::default(), reply }.into();
        self.actor.call(letter, Some(PATIENCE)).await.unwrap().unwrap()
    }

    fn committed(&self) -> usize {
        self.store.lock().committed.len()
    }

    fn kept(&self, key: &str) -> Option<serde_json::Value> {
        let inner = self.store.lock();
        Some(
            serde_json::from_slice(&inner.entries.get(&format!("{PREFIX}madako/placement/{key}"))?.value)
                .unwrap(),
        )
    }
}

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
        application.spec.manifest =
            vec![madako_messages::placement::free::JsonObject::from_text(&object).unwrap()];
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
        assert!(bytes <= limits::MOST_BYTES);
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
async fn a_cluster_that_goes_offline_before_the_commit_gets_nothing() {
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
async fn what_nobody_knows_whether_it_was_written_is_found_out_and_done_once() {
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
async fn while_another_prefix_owns_placement_it_is_asked_less_and_less() {
    let world = World::start(SchedulerConfig::default()).await;
    let owner =
        || CommitError::Conflict { keys: vec![madako_messages::placement::ownership::KEY.to_owned()] };
    world.put(cluster("c"));
    world.wait(1).await;
    world.store.lock().fails = std::iter::repeat_with(|| (false, owner())).take(20).collect();
    world.put(application("a"));
    world.wait(240).await;
    let left = world.store.lock().fails.len();
    // After 0.5, 1, 2, 4, 8, 16 and then each 30 seconds.
    assert!((5..=12).contains(&left), "{left} tries are left");
    assert_eq!(world.bound("a"), None);
    world.wait(600).await;
    assert_eq!(world.bound("a").as_deref(), Some("c"));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_decided_until_placement_is_ours() {
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
async fn since_when_a_cluster_is_offline_survives_a_restart() {
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
async fn how_many_moved_survives_a_restart() {
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
async fn moves_that_nobody_knew_were_made_count() {
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
    // It is written, and the answer is lost.
    world.store.lock().fails = [(true, lost())].into();
    world.scored("high");
    world.score(&[("low", 0.1), ("high", 0.9)]);
    world.wait(50).await;
    let high =
        |world: &World| ["a", "b"].iter().filter(|a| world.bound(a).as_deref() == Some("high")).count();
    assert_eq!(high(&world), 1);
    world.wait(15).await;
    assert_eq!(high(&world), 2);
    // A count that somebody else changed is read again before it is changed.
    world.wait(100).await;
    world.store.lock().before = Some(Box::new(|inner| {
        let key = format!("{PREFIX}{}", madako_messages::keys::PLACEMENT_MOVES);
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
        follower.send(Err(Gap::Lagged { limit: 1 })).unwrap();
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
async fn what_was_kept_and_cannot_be_read_begins_afresh() {
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
