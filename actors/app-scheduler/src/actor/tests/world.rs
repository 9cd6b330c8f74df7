//! The surroundings of the scheduler's actor in tests: store, leader and metrics, on paused time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use madako_domain::placement::decision::{ExplainError, Explanation, WhatIf};
use madako_domain::placement::kind::{Kind, ObjectKey};
use madako_domain::placement::kubernetes::Application;
use madako_domain::placement::metrics::{MetricKey, MetricState, MetricsObserved, Trust, Value};
use madako_domain::placement::object_value::Resource;
use madako_domain::placement::ownership::Ownership;
use madako_protocol::actors::SchedulerMessage;
use madako_protocol::event::{Event, EventSink};
use madako_protocol::latest::{self, Publisher};
use madako_protocol::mailbox::Envelope;
use madako_protocol::placement::objects::Objects;
use madako_protocol::ports::Clock;
use madako_protocol::store::Store;
use ractor::{Actor, ActorRef};
use time::OffsetDateTime;
use tokio::sync::watch;
use tokio::time::Instant;

use super::leader::{EPOCH, FakeLeader};
use super::store::{FakeStore, PREFIX};
use crate::testing::{NAMESPACE, begin, cluster, metric};
use crate::{Scheduler, SchedulerArguments, SchedulerConfig};

/// Far longer than any wait on paused time.
pub(super) const PATIENCE: Duration = Duration::from_secs(3_000);

/// A wall clock that follows tokio's clock.
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

pub(super) struct World {
    pub(super) store: Arc<FakeStore>,
    pub(super) metrics: Publisher<Arc<MetricsObserved>>,
    pub(super) ownership: watch::Sender<Ownership>,
    pub(super) given: SchedulerArguments,
    pub(super) actor: ActorRef<Envelope<SchedulerMessage>>,
}

impl World {
    pub(super) async fn start(config: SchedulerConfig) -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let leader = format!("leader of scheduler test {}", NUMBER.fetch_add(1, Ordering::SeqCst));
        let store = Arc::new(FakeStore::default());
        Actor::spawn(Some(leader.clone()), FakeLeader, Arc::clone(&store)).await.unwrap();
        let (metrics, observed) = latest::channel();
        let (ownership, owned) = watch::channel(Ownership::Ours { revision: 1 });
        let given = SchedulerArguments {
            epoch: EPOCH,
            leader,
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

    /// Replaces the scheduler by one that knows only the store.
    pub(super) async fn restart(&mut self) {
        self.restart_after(|_| {}).await;
    }

    /// The same, after a change that no scheduler observed.
    pub(super) async fn restart_after(&mut self, meanwhile: impl FnOnce(&Self)) {
        self.actor.stop_and_wait(None, None).await.unwrap();
        meanwhile(self);
        self.actor = Actor::spawn(None, Scheduler, self.given.clone()).await.unwrap().0;
    }

    pub(super) fn put<T: Resource>(&self, value: T) {
        self.store.lock().put(&value.into_object());
    }

    pub(super) fn change<T: Resource>(&self, name: &str, change: impl FnOnce(&mut T)) {
        let mut value = self.get::<T>(name).unwrap();
        change(&mut value);
        self.put(value);
    }

    pub(super) fn get<T: Resource>(&self, name: &str) -> Option<T> {
        let key = ObjectKey::new(T::KIND, Some(NAMESPACE), name);
        Some(T::from_object(&self.store.lock().objects.get(&key)?.object)?.clone())
    }

    pub(super) fn bound(&self, name: &str) -> Option<String> {
        self.get::<Application>(name)?.status.scheduled_to.map(|to| to.name)
    }

    /// Metrics from 0 to 1, named after the clusters that have them.
    pub(super) fn score(&self, values: &[(&str, f64)]) {
        let at = self.given.clock.now();
        let metrics = values.iter().map(|(name, value)| {
            let state = MetricState {
                metric_revision: i64::MAX,
                provider_revision: i64::MAX,
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

    pub(super) fn scored(&self, name: &str) {
        self.put(metric(name));
        let mut cluster = cluster(name);
        cluster.spec.metrics = vec![madako_domain::placement::metadata::MetricRef::new(name, 1.0, false)];
        self.put(cluster);
    }

    pub(super) async fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let began = Instant::now();
        while !holds(self) {
            assert!(began.elapsed() < PATIENCE, "never: {what}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Lets time pass.
    pub(super) async fn wait(&self, seconds: u64) {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
    }

    pub(super) async fn explain(&self, name: &str) -> Result<Box<Explanation>, ExplainError> {
        let application = ObjectKey::new(Kind::Application, Some(NAMESPACE), name);
        let envelope =
            |reply| SchedulerMessage::Explain { application, what_if: WhatIf::default(), reply }.into();
        self.actor.call(envelope, Some(PATIENCE)).await.unwrap().unwrap()
    }

    pub(super) fn committed(&self) -> usize {
        self.store.lock().committed.len()
    }

    pub(super) fn kept(&self, key: &str) -> Option<serde_json::Value> {
        let inner = self.store.lock();
        Some(
            serde_json::from_slice(&inner.entries.get(&format!("{PREFIX}madako/placement/{key}"))?.value)
                .unwrap(),
        )
    }
}
