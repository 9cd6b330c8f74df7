//! Contending clients: concurrent requests for one resource, with and without the version that was read, and a second
//! operator and a second user of the repair queue.

use std::collections::BTreeMap;

use madako_domain::invariants::Id;
use madako_domain::placement::kind::{Kind, ObjectKey};
use madako_faults::Scenario;
use madako_judges::Fact;
use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::seeded_generator;
use super::simulated_clients::{CallCounts, wait_for_next};
use crate::api::{Answer, Request, send_request};
use crate::facts::Facts;
use crate::history::History;
use crate::operator::{ExpectedSize, Operator};
use crate::placement::PlacementChecker;
use crate::queue_user::QueueUser;
use crate::rivals::Rivals;
use crate::serving::{LinkedDialer, LinkedDialers};
use crate::user::api_path_of;
use crate::world::World;

/// Share of the rivals' requests that go through the API or come from the second operator.
const PART: f64 = 0.1;

pub(super) struct ConcurrentWriters {
    rivals: Rivals,
    operator: Operator,
    queue: QueueUser,
    dialers: LinkedDialers,
    placement: PlacementChecker,
    facts: Facts,
    history: History,
    chance: ChaCha8Rng,
    pub(super) calls: CallCounts,
    number: u64,
}

impl ConcurrentWriters {
    /// `None`: the world has no rivals.
    pub(super) fn new(scenario: &Scenario, seed: u64, world: &World) -> Option<Self> {
        let judge = world.hosts.as_ref()?.judge.clone();
        let mut operator = Operator::new(world.store.clone(), seeded_generator(seed, 12));
        operator.enable_repairs(judge.clone());
        operator.set_cluster_size(ExpectedSize::for_world(&scenario.world));
        if scenario.world.runs_kubernetes() {
            operator.enable_kubernetes();
        }
        let queue =
            QueueUser::new(world.store.clone(), world.registry.clone(), judge, seeded_generator(seed, 13));
        Some(Self {
            rivals: world.rivals.clone()?,
            operator,
            queue,
            dialers: world.dialers.clone(),
            placement: world.placement.clone(),
            facts: world.facts.clone(),
            history: world.history.clone(),
            chance: seeded_generator(seed, 14),
            calls: CallCounts::default(),
            number: 0,
        })
    }

    /// Works until `stop` is true.
    pub(super) async fn write_until_stopped(mut self, rate: f64, mut stop: watch::Receiver<bool>) -> Self {
        self.rivals.start_writes(rate);
        while wait_for_next(rate * PART, &mut self.chance, &mut stop).await {
            self.calls.made += 1;
            // A queue that stays disabled for most of a run sends no transaction that could be refused.
            if let Err(error) = self.queue.enable_repairs().await {
                self.history.note("contender", format_args!("cannot enable repairs: {error}"));
            }
            let done = match self.chance.random_range(0..12_u32) {
                0 => self.operator.act_randomly().await.map_err(|error| error.to_string()),
                1 => self.queue.act_randomly().await.map_err(|error| error.to_string()),
                2..=5 => Ok(self.change_concurrently(Kind::Cluster).await),
                _ => Ok(self.change_concurrently(Kind::Application).await),
            };
            self.calls.failed += u64::from(done.is_err());
            self.history.note("contender", done.unwrap_or_else(|error| format!("in vain: {error}")));
        }
        self.rivals.stop_writes().await;
        self
    }

    fn next_instance(&mut self) -> Option<LinkedDialer> {
        let dialers = self.dialers.lock().unwrap();
        let at = self.chance.random_range(0..dialers.len().max(1));
        dialers.values().nth(at).cloned()
    }

    /// Four clients change one resource at once: two only in the version that they read, two in any version.
    async fn change_concurrently(&mut self, kind: Kind) -> String {
        let there: Vec<ObjectKey> =
            self.placement.stored_revisions().into_keys().filter(|key| key.kind == kind).collect();
        if there.is_empty() {
            return format!("finds no {kind}");
        }
        let key = there[self.chance.random_range(0..there.len())].clone();
        let path = api_path_of(&key);
        let Some(dialer) = self.next_instance() else { return "finds no instance".to_owned() };
        let read = Request { method: "GET", path: &path, version: None, body: None };
        let Ok(Answer { status: 200, tag: Some(version), body: read }) = send_request(&dialer, &read).await
        else {
            return format!("cannot read {key}");
        };
        let mut requests = Vec::new();
        for conditional in [true, false, true, false] {
            self.number += 1;
            let mut body = read.clone();
            body["metadata"]["labels"]["contender"] = json!(self.number.to_string());
            requests.push((conditional.then_some(version), body));
        }
        let dialers =
            [self.next_instance(), self.next_instance(), self.next_instance(), self.next_instance()];
        let ask = |at: usize| self.put(&key, &path, dialers[at].clone(), &requests[at]);
        let answers = tokio::join!(ask(0), ask(1), ask(2), ask(3));
        let answers: BTreeMap<usize, Option<u16>> =
            [answers.0, answers.1, answers.2, answers.3].into_iter().enumerate().collect();
        format!("{key} at {version}, by four clients at once: {answers:?}")
    }

    async fn put(
        &self,
        key: &ObjectKey,
        path: &str,
        dialer: Option<LinkedDialer>,
        (version, body): &(Option<i64>, Value),
    ) -> Option<u16> {
        let request = Request { method: "PUT", path, version: *version, body: Some(body) };
        let answer = send_request(&dialer?, &request).await.ok()?;
        let Answer { status, tag, body } = answer;
        if let Some(version) = *version {
            let key = key.etcd_key();
            self.facts.report(&Fact::Conditional { key, version, status, after: tag });
        }
        match (status, tag) {
            (200..300, Some(tag)) => self.placement.note_acknowledged(key, tag),
            (500 | 422 | 415, _) => {
                self.placement
                    .record_violation(Id::I9, format!("PUT {path} is answered by {status}: {body}"));
            }
            _ => {}
        }
        Some(status)
    }
}
