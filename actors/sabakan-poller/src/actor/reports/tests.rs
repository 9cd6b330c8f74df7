use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use madako_domain::keys;
use madako_domain::machine::{Machine, QueryVariables};
use madako_domain::store::Entry;
use madako_protocol::event::EventSink;
use madako_protocol::latest::{self, Publisher, Subscriber};
use madako_protocol::ports::{Clock, Registry};
use ractor::Actor;
use time::OffsetDateTime;

use super::*;
use crate::Poller;

const INTERVAL: Duration = Duration::from_secs(60);

/// Time for three polls, and less than for four.
const THREE_POLLS: Duration = Duration::from_secs(210);

const HELD: &str = r#"{"label":"rack","events":[{"since":"2026-11-21T10:00:00Z","machines":[
    {"changed":"2026-11-21T09:58:00Z","serial":"s1","address":"10.0.0.1"}]}]}"#;

const RELEASED: &str = r#"{"label":"rack","released":[
    {"changed":"2026-11-21T09:58:00Z","serial":"s1","address":"10.0.0.1"}]}"#;

/// A registry that records its questions. Answers come in order; without one, no machine is reported.
#[derive(Default)]
struct Notes {
    asked: Vec<(String, Option<QueryVariables>)>,
    answers: VecDeque<Result<RegistryMachines, RegistryError>>,
    takes: Duration,
}

#[derive(Default)]
struct FakeRegistry(Mutex<Notes>);

#[async_trait]
impl Registry for FakeRegistry {
    async fn machines(
        &self,
        url: &str,
        variables: Option<&QueryVariables>,
    ) -> Result<RegistryMachines, RegistryError> {
        let takes = {
            let mut notes = self.0.lock().unwrap();
            notes.asked.push((url.to_owned(), variables.cloned()));
            notes.takes
        };
        tokio::time::sleep(takes).await;
        let mut notes = self.0.lock().unwrap();
        notes.answers.pop_front().unwrap_or_else(|| Ok(fetched(&[], &[])))
    }
}

struct FixedClock;

impl Clock for FixedClock {
    fn now(&self) -> OffsetDateTime {
        OffsetDateTime::from_unix_timestamp(1_795_262_400).unwrap()
    }
}

#[derive(Default)]
struct Events(Mutex<Vec<Event>>);

impl EventSink for Events {
    fn emit(&self, event: Event) {
        self.0.lock().unwrap().push(event);
    }
}

fn machine(serial: &str, ipv4: &[&str]) -> Machine {
    let machine = serde_json::json!({
        "spec": {
            "serial": serial, "labels": [], "rack": 1, "indexInRack": 1, "role": "compute", "ipv4": ipv4,
            "registerDate": "2026-01-01T00:00:00Z", "retireDate": "2030-01-01T00:00:00Z", "bmc": {"bmcType": "t"}
        },
        "status": {"state": "UNREACHABLE", "duration": 5.0}
    });
    serde_json::from_value(machine).unwrap()
}

fn fetched(machines: &[&str], left_out: &[&str]) -> RegistryMachines {
    RegistryMachines {
        machines: machines.iter().map(|serial| machine(serial, &["10.0.0.1"])).collect(),
        left_out: left_out.iter().map(|serial| machine(serial, &[])).collect(),
    }
}

struct World {
    registry: Arc<FakeRegistry>,
    events: Arc<Events>,
    state: Publisher<Arc<ClusterState>>,
    reports: Subscriber<Arc<Reports>>,
    revision: i64,
}

impl World {
    /// A running poller. The cluster integration is disabled, so that only the second question is asked.
    async fn new() -> Self {
        let (registry, events) = (Arc::new(FakeRegistry::default()), Arc::new(Events::default()));
        let (state, states) = latest::channel();
        let (observations, _) = latest::channel();
        let (publisher, reports) = latest::channel();
        let given = PollerArguments {
            epoch: 1,
            leader: "nobody".to_owned(),
            interval: INTERVAL,
            registry: Arc::clone(&registry) as Arc<dyn Registry>,
            clock: Arc::new(FixedClock),
            events: Arc::clone(&events) as Arc<dyn EventSink>,
            state: states,
            observations,
            reports: publisher,
        };
        Actor::spawn(None, Poller, given).await.unwrap();
        Self { registry, events, state, reports, revision: 0 }
    }

    /// Sets the store's keys; a key with an unchanged value keeps its revision.
    async fn store(&mut self, values: &[(&str, &str)]) {
        self.revision += 1;
        let off = [(keys::SABAKAN_DISABLED, "true")];
        let entries = off.iter().chain(values).map(|(key, value)| {
            // A revision that depends on the value alone.
            let revision = value.bytes().fold(1, |sum, byte| (sum * 31 + i64::from(byte)) % 1_000_007);
            let value = value.as_bytes().to_vec().into();
            let entry = Entry { value, create_revision: revision, mod_revision: revision, lease: 0 };
            ((*key).to_owned(), entry)
        });
        let state = ClusterState::decode(self.revision, &entries.collect(), None);
        self.state.publish(Arc::new(state));
        self.settle().await;
    }

    /// Runs all due tasks.
    async fn settle(&self) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }

    fn slow(&self, takes: Duration) {
        self.registry.0.lock().unwrap().takes = takes;
    }

    /// Questions since the last call.
    fn asked(&self) -> Vec<(String, Option<QueryVariables>)> {
        std::mem::take(&mut self.registry.0.lock().unwrap().asked)
    }

    fn answers(&self, answer: Result<RegistryMachines, RegistryError>) {
        self.registry.0.lock().unwrap().answers.push_back(answer);
    }

    /// Serials and time of the last reports.
    fn reported(&self) -> Option<(Vec<String>, Instant)> {
        let reports = self.reports.newest()?;
        Some((reports.machines.iter().map(|machine| machine.spec.serial.clone()).collect(), reports.received))
    }

    fn failures(&self) -> Vec<String> {
        let events = self.events.0.lock().unwrap();
        let failures = events.iter().filter_map(|event| match event {
            Event::ReportsFailed { why } => Some(why.clone()),
            _ => None,
        });
        failures.collect()
    }
}

const URL: (&str, &str) = (keys::SABAKAN_URL, "http://registry/graphql");
const OFF: (&str, &str) = (keys::AUTO_REPAIR_DISABLED, "true");

#[tokio::test(start_paused = true)]
async fn without_variables_of_the_user_the_defaults_of_repairs_are_sent() {
    let mut world = World::new().await;
    world.store(&[URL]).await;
    let asked = world.asked();
    assert_eq!(asked.len(), 1);
    assert_eq!(asked[0].0, URL.1);
    let sent = serde_json::to_value(asked[0].1.as_ref().expect("they are sent explicitly")).unwrap();
    assert_eq!(sent["having"]["states"], serde_json::json!(["UNHEALTHY", "UNREACHABLE"]));
    assert_eq!(sent["notHaving"]["roles"], serde_json::json!(["boot"]));
    assert_eq!(asked[0].1, Some(default_variables()), "and nothing else");
    tokio::time::sleep(THREE_POLLS).await;
    assert_eq!(world.asked(), vec![asked[0].clone(); 3], "once an interval");
}

#[tokio::test(start_paused = true)]
async fn variables_of_the_user_are_sent_as_soon_as_they_are_stored_and_unusable_ones_ask_nothing() {
    const OWN: &str = r#"{"having":{"states":["UNREACHABLE"],"racks":[7]}}"#;
    let mut world = World::new().await;
    world.store(&[URL]).await;
    world.asked();
    world.store(&[URL, (keys::AUTO_REPAIR_VARIABLES, OWN)]).await;
    let own: QueryVariables = serde_json::from_str(OWN).unwrap();
    assert_eq!(world.asked(), [(URL.1.to_owned(), Some(own))]);
    // Variables of the other question are not used here.
    world.store(&[URL, (keys::AUTO_REPAIR_VARIABLES, "["), (keys::SABAKAN_VARIABLES, OWN)]).await;
    tokio::time::sleep(THREE_POLLS).await;
    assert_eq!(world.asked(), [], "they must not turn into the defaults");
}

#[tokio::test(start_paused = true)]
async fn registry_is_not_asked_without_a_url_or_while_disabled() {
    let mut world = World::new().await;
    for stored in [&[][..], &[OFF], &[URL, OFF], &[URL, OFF, ("madako/repair/holds/3", RELEASED)]] {
        world.store(stored).await;
        tokio::time::sleep(THREE_POLLS).await;
        assert_eq!(world.asked(), [], "{stored:?}");
    }
    world.store(&[URL, (keys::AUTO_REPAIR_DISABLED, "false")]).await;
    assert_eq!(world.asked().len(), 1, "at once");
}

#[tokio::test(start_paused = true)]
async fn while_a_rack_is_held_its_recovery_is_asked_for_also_when_it_is_switched_off() {
    let mut world = World::new().await;
    let held = ("madako/repair/holds/3", HELD);
    world.store(&[URL, OFF, held]).await;
    assert_eq!(world.asked().len(), 1);
    tokio::time::sleep(THREE_POLLS).await;
    assert_eq!(world.asked().len(), 3);
    world.store(&[URL, OFF]).await;
    tokio::time::sleep(THREE_POLLS).await;
    assert_eq!(world.asked(), [], "nothing is held any more");
}

#[tokio::test(start_paused = true)]
async fn failed_poll_changes_nothing_and_is_reported_once() {
    let mut world = World::new().await;
    world.answers(Ok(fetched(&["a", "b"], &["c"])));
    world.store(&[URL]).await;
    let first = world.reported().unwrap();
    assert_eq!(first.0, ["a", "b", "c"], "those without an address as well");
    let down = || Err(RegistryError::Status { status: 503, body: "later".to_owned() });
    (0..2).for_each(|_| world.answers(down()));
    world.answers(Err(RegistryError::Malformed { why: "no spec".to_owned() }));
    tokio::time::sleep(THREE_POLLS).await;
    assert_eq!(world.asked().len(), 4);
    assert_eq!(world.reported(), Some(first.clone()), "as old as it is");
    assert_eq!(world.failures().len(), 2, "{:?}", world.failures());
    // Consumers see their age: they are valid for three intervals.
    let reports = world.reports.newest().unwrap();
    let query = Some(reports.query);
    assert!(reports.are_good(query, INTERVAL, first.1 + INTERVAL * 3));
    assert!(!reports.are_good(query, INTERVAL, first.1 + INTERVAL * 3 + Duration::from_millis(1)));

    world.answers(Ok(fetched(&["b"], &[])));
    world.answers(down());
    tokio::time::sleep(INTERVAL * 2).await;
    let (serials, received) = world.reported().unwrap();
    assert_eq!(serials, ["b"]);
    assert!(received > first.1);
    assert_eq!(world.failures().len(), 3, "a failure after an answer is reported again");
}

#[tokio::test(start_paused = true)]
async fn answer_has_the_store_revision_of_its_request() {
    let mut world = World::new().await;
    world.store(&[URL]).await;
    assert_eq!(world.reports.newest().map(|reports| reports.revision), Some(1));
    // Another key changes, which the present answer does not include.
    world.store(&[URL, ("x", "y")]).await;
    assert_eq!(world.reports.newest().map(|reports| reports.revision), Some(1));
    tokio::time::sleep(INTERVAL).await;
    assert_eq!(world.reports.newest().map(|reports| reports.revision), Some(2));
    // A slow answer is as old as its question.
    world.slow(INTERVAL / 2);
    tokio::time::sleep(INTERVAL).await;
    world.store(&[URL, ("x", "z")]).await;
    tokio::time::sleep(INTERVAL / 2).await;
    assert_eq!(
        world.reports.newest().map(|reports| (reports.revision, reports.received.elapsed() < INTERVAL / 2)),
        Some((2, true))
    );
}
