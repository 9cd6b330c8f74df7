//! Tests of the metrics fetcher's actor on paused time, with a scripted store and scripted providers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use madako_domain::placement::core::MetricsProviderKind;
use madako_domain::placement::kind::ObjectKey;
use madako_domain::placement::metadata::ReasonCode;
use madako_domain::placement::metrics::{MetricKey, MetricsObserved};
use madako_domain::placement::object_value::Object;
use madako_domain::placement::objects::{Change, Stored, UnreadResource};
use madako_domain::placement::ownership::Ownership;
use madako_domain::state::Fault;
use madako_domain::store::{Outcome, StoreError, Transaction};
use madako_protocol::actors::FetcherMessage;
use madako_protocol::latest::{self, Subscriber};
use madako_protocol::mailbox::Envelope;
use madako_protocol::placement::objects::{Follower, FollowerGap, Objects, Selection};
use madako_protocol::placement::providers::{
    FetchError, MetricsProviders, PROVIDER_DEADLINE, Sample, Samples,
};
use madako_protocol::ports::Clock;
use ractor::{Actor, ActorRef};
use time::OffsetDateTime;
use time::macros::datetime;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::tests::store::{Store, cluster, global, metric, prometheus, reference};
use crate::{Fetcher, FetcherArguments, ROUNDS_AT_ONCE};

const INTERVAL: Duration = Duration::from_secs(15);

/// Far longer than any wait on paused time.
const PATIENCE: Duration = Duration::from_secs(600);

type FollowResult = Result<Vec<Arc<Change>>, FollowerGap>;

#[derive(Default)]
struct FakeObjects(Mutex<(Store, Vec<mpsc::UnboundedSender<FollowResult>>)>);

impl FakeObjects {
    fn put(&self, object: Object) {
        let mut inner = self.0.lock().unwrap();
        let change = inner.0.put(object);
        inner.1.retain(|follower| follower.send(Ok(vec![Arc::clone(&change)])).is_ok());
    }

    /// Ends every follower; the changes of `meanwhile` appear only in the next list.
    fn gap(&self, meanwhile: Vec<Object>) {
        let mut inner = self.0.lock().unwrap();
        for follower in std::mem::take(&mut inner.1) {
            let _ = follower.send(Err(FollowerGap::Lagged { limit: 1 }));
        }
        for object in meanwhile {
            inner.0.put(object);
        }
    }

    fn now_revision(&self) -> i64 {
        self.0.lock().unwrap().0.revision
    }
}

struct FakeFollower(mpsc::UnboundedReceiver<FollowResult>);

#[async_trait]
impl Follower for FakeFollower {
    async fn next(&mut self) -> Result<Vec<Arc<Change>>, FollowerGap> {
        match self.0.recv().await {
            Some(next) => next,
            None => std::future::pending().await,
        }
    }
}

#[async_trait]
impl Objects for FakeObjects {
    async fn refresh(&self) -> Result<i64, StoreError> {
        Ok(self.now_revision())
    }

    fn revision(&self) -> Option<i64> {
        Some(self.now_revision())
    }

    fn get(&self, key: &ObjectKey) -> Option<Arc<Stored>> {
        self.0.lock().unwrap().0.objects.get(key).cloned()
    }

    fn list(&self, _: Selection<'_>) -> (i64, Vec<Arc<Stored>>) {
        unreachable!("the fetcher follows everything")
    }

    fn unread_resource(&self, _: &ObjectKey) -> Option<UnreadResource> {
        None
    }

    fn faults(&self) -> Vec<Fault> {
        Vec::new()
    }

    fn follow_all(&self) -> (i64, Vec<Arc<Stored>>, Box<dyn Follower>) {
        let mut inner = self.0.lock().unwrap();
        let (sender, receiver) = mpsc::unbounded_channel();
        inner.1.push(sender);
        (inner.0.revision, inner.0.all(), Box::new(FakeFollower(receiver)))
    }

    fn follow(&self, _: i64) -> Result<Box<dyn Follower>, FollowerGap> {
        unreachable!("the fetcher follows everything")
    }

    async fn commit(&self, _: Transaction) -> Result<Outcome, StoreError> {
        unreachable!("the fetcher writes nothing")
    }
}

/// Delay and result of a provider.
type ProviderAnswer = (Duration, Result<f64, FetchError>);

/// Providers by their URL.
#[derive(Default)]
struct FakeProviders {
    says: Mutex<BTreeMap<String, ProviderAnswer>>,
    /// Time, URL and names of each fetch.
    asked: Mutex<Vec<(Instant, String, BTreeSet<String>)>>,
    running: AtomicUsize,
    most: AtomicUsize,
}

impl FakeProviders {
    fn say(&self, url: &str, after: Duration, says: Result<f64, FetchError>) {
        self.says.lock().unwrap().insert(url.to_owned(), (after, says));
    }

    fn asked(&self) -> Vec<(Instant, String, BTreeSet<String>)> {
        self.asked.lock().unwrap().clone()
    }
}

#[async_trait]
impl MetricsProviders for FakeProviders {
    async fn fetch(
        &self,
        provider: &MetricsProviderKind,
        names: &BTreeSet<String>,
        deadline: Duration,
    ) -> Samples {
        let MetricsProviderKind::Prometheus(spec) = provider else { panic!("{provider:?}") };
        let url = spec.url.clone();
        self.asked.lock().unwrap().push((Instant::now(), url.clone(), names.clone()));
        let (after, says) = self.says.lock().unwrap().get(&url).cloned().unwrap_or((Duration::ZERO, Ok(1.0)));
        let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(running, Ordering::SeqCst);
        let late = FetchError::Deadline { address: url, deadline };
        tokio::time::sleep(after.min(deadline)).await;
        self.running.fetch_sub(1, Ordering::SeqCst);
        let says = if after > deadline { Err(late) } else { says };
        names
            .iter()
            .map(|name| (name.clone(), says.clone().map(|value| Sample { value, note: None })))
            .collect()
    }
}

/// A wall clock that follows tokio's clock.
struct PausedClock(Instant);

impl Clock for PausedClock {
    fn now(&self) -> OffsetDateTime {
        datetime!(2026-01-01 00:00 UTC) + self.0.elapsed()
    }
}

struct World {
    objects: Arc<FakeObjects>,
    providers: Arc<FakeProviders>,
    observed: Subscriber<Arc<MetricsObserved>>,
    actor: ActorRef<Envelope<FetcherMessage>>,
    ownership: watch::Sender<Ownership>,
}

impl World {
    async fn start(objects: Vec<Object>) -> Self {
        Self::start_as(Ownership::Ours { revision: 1 }, objects).await
    }

    async fn start_as(owner: Ownership, objects: Vec<Object>) -> Self {
        let (ownership, owned) = watch::channel(owner);
        let store = Arc::new(FakeObjects::default());
        for object in objects {
            store.put(object);
        }
        let providers = Arc::new(FakeProviders::default());
        let (publisher, observed) = latest::channel();
        let given = FetcherArguments {
            interval: INTERVAL,
            max_age: INTERVAL * 3,
            objects: Arc::clone(&store) as Arc<dyn Objects>,
            providers: Arc::clone(&providers) as Arc<dyn MetricsProviders>,
            clock: Arc::new(PausedClock(Instant::now())),
            observed: publisher,
            ownership: owned,
        };
        let (actor, _) = Actor::spawn(None, Fetcher, given).await.unwrap();
        Self { objects: store, providers, observed, actor, ownership }
    }

    async fn until(&mut self, expected: impl Fn(&MetricsObserved) -> bool) -> Arc<MetricsObserved> {
        let wait = async {
            loop {
                let observed = self.observed.next().await;
                if expected(&observed) {
                    return observed;
                }
            }
        };
        tokio::time::timeout(PATIENCE, wait).await.expect("it is observed in time")
    }

    async fn until_value(&mut self, name: &str, raw: Option<f64>) -> Arc<MetricsObserved> {
        let key = global(name);
        self.until(|observed| {
            observed.metrics.get(&key).is_some_and(|state| state.value.map(|value| value.raw) == raw)
        })
        .await
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.actor.stop(None);
    }
}

/// A provider `name` at the URL `name` with one metric `name`, and a cluster that refers to it.
fn one(name: &str) -> Vec<Object> {
    one_in(None, name)
}

/// The same in a namespace.
fn one_in(namespace: Option<&str>, name: &str) -> Vec<Object> {
    let key = MetricKey { namespace: namespace.map(str::to_owned), name: name.to_owned() };
    vec![
        prometheus(namespace, name, name),
        metric(&key, name, name, 0.0, 10.0),
        cluster(namespace.unwrap_or("n"), name, &[reference(name, namespace.is_some())]),
    ]
}

#[tokio::test(start_paused = true)]
async fn providers_are_queried_only_while_this_instance_decides() {
    let theirs = Ownership::Theirs { prefix: "/b/".into() };
    let mut world = World::start_as(theirs.clone(), one("p")).await;
    let key = global("p");
    // It follows the store, and rounds pass.
    tokio::time::sleep(INTERVAL * 3).await;
    world.objects.put(cluster("n", "other", &[reference("p", false)]));
    tokio::time::sleep(INTERVAL).await;
    assert!(world.providers.asked().is_empty());
    let begun = Instant::now();
    world.ownership.send_replace(Ownership::Ours { revision: 5 });
    world.until_value("p", Some(1.0)).await;
    assert_eq!(begun.elapsed(), Duration::ZERO, "at once");
    // Another instance becomes the owner again.
    world.ownership.send_replace(theirs);
    let asked = world.providers.asked().len();
    let before = Instant::now();
    world.until(|observed| observed.metrics[&key].value.is_none()).await;
    assert!(before.elapsed() >= INTERVAL * 2);
    assert_eq!(world.providers.asked().len(), asked);
}

#[tokio::test(start_paused = true)]
async fn a_metrics_round_fetches_each_name_once_an_interval() {
    let mut world = World::start(one("p")).await;
    let begun = Instant::now();
    world.until_value("p", Some(1.0)).await;
    world.providers.say("p", Duration::ZERO, Ok(2.0));
    world.until_value("p", Some(2.0)).await;
    world.providers.say("p", Duration::ZERO, Ok(3.0));
    let observed = world.until_value("p", Some(3.0)).await;
    let times: Vec<u64> = world.providers.asked().iter().map(|(at, ..)| (*at - begun).as_secs()).collect();
    assert_eq!(times, [0, 15, 30]);
    assert_eq!(observed.revision, 3);
    let trust = observed.metrics[&global("p")].trust;
    assert_eq!((trust.range, trust.since), (Some((1.0, 3.0)), datetime!(2026-01-01 00:00 UTC)));
}

#[tokio::test(start_paused = true)]
async fn new_metric_is_fetched_before_the_next_pass() {
    let mut world = World::start(one("p")).await;
    world.until_value("p", Some(1.0)).await;
    tokio::time::advance(Duration::from_secs(3)).await;
    let begun = Instant::now();
    for object in [metric(&global("q"), "p", "q", 0.0, 10.0), cluster("n", "q", &[reference("q", false)])] {
        world.objects.put(object);
    }
    let revision = world.objects.now_revision();
    let observed = world.until(|observed| observed.revision == revision).await;
    assert_eq!(observed.metrics[&global("q")].value.unwrap().raw, 1.0);
    assert_eq!(begun.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_slow_provider_delays_no_other_and_has_one_deadline() {
    let slow: Vec<String> = (0..ROUNDS_AT_ONCE / 2 - 1).map(|number| format!("slow{number}")).collect();
    let mut objects: Vec<Object> = slow.iter().flat_map(|name| one(name)).collect();
    objects.extend(one("quick"));
    let mut world = World::start(Vec::new()).await;
    for name in &slow {
        world.providers.say(name, PATIENCE, Ok(1.0));
    }
    let begun = Instant::now();
    for object in objects {
        world.objects.put(object);
    }
    let observed = world.until_value("quick", Some(1.0)).await;
    assert_eq!(begun.elapsed(), Duration::ZERO);
    assert!(!observed.metrics.contains_key(&global("slow0")), "it was not answered yet");
    let revision = world.objects.now_revision();
    assert!(observed.revision < revision);
    let observed = world.until(|observed| observed.revision == revision).await;
    assert_eq!(begun.elapsed(), PROVIDER_DEADLINE);
    let reason = observed.metrics[&global("slow0")].reason.clone().unwrap();
    assert_eq!(reason.code, ReasonCode::UnreachableMetricsProvider);
    assert!(reason.message.contains("no complete answer from slow0 within 10 s"), "{}", reason.message);
}

#[tokio::test(start_paused = true)]
async fn concurrent_provider_requests_stay_within_their_limit() {
    let names: Vec<String> = (0..3 * ROUNDS_AT_ONCE).map(|number| format!("p{number}")).collect();
    let mut world = World::start(Vec::new()).await;
    for name in &names {
        world.providers.say(name, Duration::from_secs(1), Ok(1.0));
    }
    for (number, name) in names.iter().enumerate() {
        for object in one_in(["n", "m", "k"].get(number % 4).copied(), name) {
            world.objects.put(object);
        }
    }
    let revision = world.objects.now_revision();
    let observed = world.until(|observed| observed.revision == revision).await;
    assert_eq!(observed.metrics.len(), names.len());
    assert_eq!(world.providers.most.load(Ordering::SeqCst), ROUNDS_AT_ONCE);
}

#[tokio::test(start_paused = true)]
async fn an_outage_keeps_values_for_exactly_three_intervals() {
    let mut world = World::start(one("p")).await;
    let begun = Instant::now();
    world.until_value("p", Some(1.0)).await;
    let error = FetchError::Unreachable { address: "p".to_owned(), why: "refused".to_owned() };
    world.providers.say("p", Duration::from_secs(1), Err(error));
    let observed = world.until(|observed| observed.metrics[&global("p")].reason.is_some()).await;
    assert_eq!(begun.elapsed(), Duration::from_secs(16));
    assert!(observed.metrics[&global("p")].value.is_some());
    let observed = world.until_value("p", None).await;
    assert_eq!(begun.elapsed().as_millis() / 10, 4500, "on tokio's clock of milliseconds");
    assert!(!observed.metrics[&global("p")].undefined);
    world.providers.say("p", Duration::ZERO, Ok(4.0));
    world.until_value("p", Some(4.0)).await;
}

#[tokio::test(start_paused = true)]
async fn missed_changes_are_listed_again() {
    let mut world = World::start(one("p")).await;
    world.until_value("p", Some(1.0)).await;
    world.objects.gap(one("q"));
    let observed = world.until_value("q", Some(1.0)).await;
    assert_eq!(observed.metrics[&global("p")].value.unwrap().raw, 1.0);
    world.objects.put(cluster("n", "q", &[]));
    world.until(|observed| !observed.metrics.contains_key(&global("q"))).await;
}

#[tokio::test(start_paused = true)]
async fn fetch_of_an_unreferenced_metric_is_given_up() {
    let mut world = World::start(Vec::new()).await;
    world.providers.say("p", Duration::from_secs(5), Ok(1.0));
    for object in one("p") {
        world.objects.put(object);
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(world.providers.asked().len(), 1);
    world.objects.put(cluster("n", "p", &[]));
    let revision = world.objects.now_revision();
    let observed = world.until(|observed| observed.revision == revision).await;
    assert_eq!(observed.metrics.len(), 0);
    tokio::time::sleep(INTERVAL * 3).await;
    assert_eq!(world.providers.asked().len(), 1, "no object refers to the metric");
    assert_eq!(world.observed.newest().unwrap().metrics.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn unchanged_observations_are_published_once() {
    let mut world = World::start(vec![cluster("n", "c", &[reference("nowhere", false)])]).await;
    let observed = world.until(|observed| observed.revision == 1).await;
    assert!(observed.metrics[&global("nowhere")].undefined);
    let again = tokio::time::timeout(PATIENCE, world.observed.next()).await;
    assert!(again.is_err(), "{again:?}");
}
