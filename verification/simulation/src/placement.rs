//! Judges placement from outside: by the store's own history from its root, what the simulated servers said of
//! metrics, and what the user asked for and was told.
//!
//! Each revision is judged as it comes:
//! - I11, by the predicate of the gate: who is newly bound is bound to a cluster that took it then;
//! - who binds says why in the same transaction, and owns placement at that time;
//! - moves are few, none leaves a cluster that only lacks metrics, or one that is not online for a short time;
//! - nothing is made that nobody asked for, nothing goes that nobody deleted, and what the user was told is there.
//!
//! Assumes that a value which a server gave may be decided on for [`VALUES_COUNT`].

mod bindings;
mod lives;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use etcd_client::EventType;
use madako_domain::invariants::{Id, Violation};
use madako_domain::keys;
use madako_domain::placement::core::MetricsProviderKind;
use madako_domain::placement::fit::Unmet;
use madako_domain::placement::kind::{Kind, ObjectKey};
use madako_domain::placement::kubernetes::{Application, Cluster, ClusterState};
use madako_domain::placement::metrics::{MetricKey, MetricState, Trust, Value};
use madako_domain::placement::object_value::{Object, Resource as _};
use madako_domain::placement::objects::Stored;
use madako_domain::placement::ownership;
use madako_domain::store::Entry;
use madako_judges::Exemptions;
use madako_judges::bindings::{Resources, against, read, scheduled_to, unsettled};
use madako_judges::history::{Stored as Entries, candidates, decider};
use time::OffsetDateTime;

use crate::contents::Contents;
use crate::history::History;
use crate::retries::{Retries, keys_of};
use crate::revisions::every_revision;
use crate::store_process::StoreProcess;
use crate::world::{METRICS_INTERVAL, PREFIX, SESSION_TTL};

/// Written by the user together with the deletion of everything.
pub const WIPED: &str = "/simulation/wiped";

/// A value counts for three rounds, an answer takes at most 10 s, and who decided on it may write as long as its lease
/// lives.
const VALUES_COUNT: Duration =
    Duration::from_secs(METRICS_INTERVAL.as_secs() * 3 + 10 + SESSION_TTL.as_secs());

/// One write of the store's history.
pub struct Event {
    /// The key, as etcd has it.
    pub key: String,
    /// `None`: deleted.
    pub value: Option<Vec<u8>>,
    /// Its create revision.
    pub created: i64,
    /// Its lease; 0 is none.
    pub lease: i64,
}

/// How often things were seen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Seen {
    /// Applications that were bound.
    pub bindings: u64,
    /// Of these, those that left another cluster.
    pub moves: u64,
    /// Times that everything was deleted.
    pub wipes: u64,
    /// Resources that are gone.
    pub collected: u64,
    /// Clusters whose metrics failed.
    pub failing: u64,
    /// Versions of applications that fitted nowhere.
    pub degraded: u64,
    /// Claims of placement.
    pub owners: u64,
}

/// A key that was written.
struct Written {
    at: Duration,
    key: String,
    /// Nothing changed but the attempts of an application that fits nowhere.
    is_retry: bool,
}

#[derive(Default)]
struct Judged {
    objects: Resources,
    /// Entries of keys that are no resources.
    others: Entries,
    history: BTreeMap<i64, BTreeSet<String>>,
    /// What the user was told: keys and the revisions that wrote them.
    acknowledged: Vec<(String, i64)>,
    /// Revisions that instances were told.
    committed: BTreeSet<i64>,
    /// How often the user asked for each resource, and how often it was made.
    wanted: BTreeMap<ObjectKey, (u64, u64)>,
    deleting: BTreeSet<ObjectKey>,
    /// Values that were given, by the names of metrics.
    values: BTreeMap<String, VecDeque<(Duration, f64)>>,
    /// Values that stand in definitions, by the names of metrics.
    table: BTreeMap<String, f64>,
    /// Since when a cluster is neither online nor only without metrics.
    down: BTreeMap<ObjectKey, OffsetDateTime>,
    /// From when to when it was so before.
    was_down: BTreeMap<ObjectKey, (OffsetDateTime, OffsetDateTime)>,
    /// When moves were decided, by the clock of who did, and when they were seen.
    moves: Vec<(OffsetDateTime, Duration)>,
    most_applications: u64,
    seen: Seen,
    violations: Vec<Violation>,
    exemptions: Exemptions,
    /// Every write.
    writes: Vec<Written>,
    retries: Retries,
    contents: Contents,
}

/// Clones are the same checker.
#[derive(Clone)]
pub struct PlacementChecker {
    judged: Arc<Mutex<Judged>>,
    history: History,
    began: OffsetDateTime,
}

impl PlacementChecker {
    /// Has seen nothing yet.
    pub fn new(history: History, began: OffsetDateTime) -> Self {
        Self { judged: Arc::default(), history, began }
    }

    /// Watches the whole store over a client of its own.
    pub async fn watch(self, store: StoreProcess) {
        let read = |event: &etcd_client::Event| {
            let kv = event.kv().unwrap();
            Event {
                key: kv.key_str().unwrap().to_owned(),
                value: (event.event_type() == EventType::Put).then(|| kv.value().to_vec()),
                created: kv.create_revision(),
                lease: kv.lease(),
            }
        };
        every_revision(store, "", read, |revision, events| self.judge(revision, &events)).await;
    }

    /// Judges a revision.
    pub fn judge(&self, revision: i64, events: &[Event]) {
        let (bindings, violations) = {
            let mut judged = self.judged.lock().unwrap();
            let before = judged.seen.bindings;
            let violations = judged.judge(revision, events, self);
            (judged.seen.bindings - before, violations)
        };
        (0..bindings).for_each(|_| self.history.judged(Id::I11));
        for violation in violations {
            self.history.note("placement", &violation);
        }
    }

    /// A server is about to give a value.
    pub fn told(&self, metric: &str, value: f64) {
        self.judged.lock().unwrap().value(metric, value, self.history.now());
    }

    /// The user asks for a new resource.
    pub fn creates(&self, key: &ObjectKey) {
        self.judged.lock().unwrap().wanted.entry(key.clone()).or_default().0 += 1;
    }

    /// The user asks for a deletion.
    pub fn deletes(&self, key: &ObjectKey) {
        self.judged.lock().unwrap().deleting.insert(key.clone());
    }

    /// The user was told that a resource was written.
    pub fn acknowledged(&self, key: &ObjectKey, revision: i64) {
        self.judged.lock().unwrap().acknowledged.push((key.etcd_key(), revision));
        self.history.judged(Id::I9);
    }

    /// An instance was told that its commit is durable.
    pub fn committed(&self, revision: i64) {
        self.judged.lock().unwrap().committed.insert(revision);
        self.history.judged(Id::I9);
    }

    /// What was seen in the store so far: resources with the revisions of their creation.
    pub fn standing(&self) -> BTreeMap<ObjectKey, i64> {
        let judged = self.judged.lock().unwrap();
        judged.objects.iter().map(|(key, stored)| (key.clone(), stored.create_revision)).collect()
    }

    /// What the user found wrong.
    pub fn violate(&self, invariant: Id, what: String) {
        self.history.note("placement", &what);
        self.judged.lock().unwrap().violations.push(Violation { invariant, what });
    }

    /// How often things were seen.
    pub fn seen(&self) -> Seen {
        self.judged.lock().unwrap().seen
    }

    /// A store was started again: whether it has everything that was seen, as far as it answers.
    pub async fn started(&self, store: &StoreProcess) -> bool {
        let contents = self.judged.lock().unwrap().contents.clone();
        let Some(mut client) = store.client().await else { return true };
        let Some((compared, lost)) = contents.lost_in(&mut client).await else { return true };
        (0..compared).for_each(|_| self.history.judged(Id::I9));
        let has_all = lost.is_empty();
        for what in lost {
            self.violate(Id::I9, what);
        }
        has_all
    }

    /// The last revision that was seen.
    pub fn revision(&self) -> i64 {
        self.judged.lock().unwrap().history.keys().next_back().copied().unwrap_or(0)
    }

    /// Keys that were written since a time, but for retries of applications that fit nowhere, as far as their back-off allows them.
    #[must_use]
    pub fn changes_since(&self, since: Duration) -> Vec<(Duration, String)> {
        let judged = self.judged.lock().unwrap();
        let first = judged.writes.partition_point(|written| written.at < since);
        let counted = judged.writes[first..].iter().filter(|written| !written.is_retry);
        counted.map(|written| (written.at, written.key.clone())).collect()
    }

    /// Violations of the state when nothing changes any more.
    pub fn unsettled(&self) -> Vec<Violation> {
        let judged = self.judged.lock().unwrap();
        unsettled(&judged.objects, &judged.latest(self.history.now()))
    }

    /// Whether something was violated so far.
    #[must_use]
    pub fn found_something(&self) -> bool {
        !self.judged.lock().unwrap().violations.is_empty()
    }

    pub fn exemptions(&self) -> Exemptions {
        self.judged.lock().unwrap().exemptions.clone()
    }

    /// Every violation, when the run is over.
    pub fn finish(&self) -> Vec<Violation> {
        let mut judged = self.judged.lock().unwrap();
        let judged = &mut *judged;
        let mut violations = std::mem::take(&mut judged.violations);
        let lost = |what: String| Violation { invariant: Id::I9, what };
        for (key, revision) in &judged.acknowledged {
            if !judged.history.get(revision).is_some_and(|keys| keys.contains(key)) {
                violations
                    .push(lost(format!("{key} was acknowledged at revision {revision}, which lacks it")));
            }
        }
        for revision in judged.committed.iter().filter(|revision| !judged.history.contains_key(revision)) {
            violations.push(lost(format!("placement was told of revision {revision}, which is not there")));
        }
        violations
    }
}

impl Judged {
    fn value(&mut self, metric: &str, value: f64, now: Duration) {
        let values = self.values.entry(metric.to_owned()).or_default();
        values.push_back((now, value));
        while values.front().is_some_and(|(at, _)| *at + VALUES_COUNT < now) {
            values.pop_front();
        }
    }

    /// The last value of each metric that was given lately.
    fn latest(&self, now: Duration) -> BTreeMap<MetricKey, MetricState> {
        let last = self.values.iter().filter_map(|(name, values)| {
            let (at, value) = values.back()?;
            (*at + VALUES_COUNT >= now).then(|| (key_of(name), state(*value)))
        });
        last.chain(self.table.iter().map(|(name, value)| (key_of(name), state(*value)))).collect()
    }

    fn stored(&self, key: &ObjectKey) -> Option<Arc<Stored>> {
        self.objects.get(key).cloned()
    }

    /// What keeps an application off a cluster; `None`: it is no cluster.
    fn unmet(
        &self,
        application: &Application,
        cluster: &Stored,
        values: &BTreeMap<MetricKey, MetricState>,
    ) -> Option<Vec<Unmet>> {
        against(application, cluster, values, &self.objects)
    }

    /// Judges a revision; what is known is what was before it. Says what it found.
    fn judge(&mut self, revision: i64, events: &[Event], checker: &PlacementChecker) -> Vec<String> {
        let now = checker.history.now();
        let found = self.violations.len();
        let wiped = events.iter().any(|event| event.key == WIPED);
        self.seen.wipes += u64::from(wiped);
        let deciding = events
            .iter()
            .any(|event| event.key.strip_prefix(PREFIX).is_some_and(|key| key.starts_with(keys::PLACEMENT)));
        if deciding {
            self.decider(revision);
        }
        let mut after = Vec::new();
        for event in events {
            self.history.entry(revision).or_default().insert(event.key.clone());
            self.contents.wrote(revision, &event.key, event.value.as_deref());
            match ObjectKey::from_etcd_key(&event.key) {
                Some(key) => {
                    let stored =
                        event.value.as_ref().map(|value| read(&key, value, event.created, revision).unwrap());
                    let what = stored.as_ref().map_or("delete".to_owned(), |stored| told(stored));
                    checker.history.note("root", format_args!("{revision} {key}: {what}"));
                    after.push((key, stored));
                }
                None => self.other(revision, event),
            }
        }
        let mut retried = BTreeSet::new();
        for (key, stored) in after.iter().filter(|(key, _)| key.kind == Kind::Application) {
            let application = stored.as_ref().and_then(|stored| Application::of(&stored.object));
            if self.retries.wrote(key, application, checker.began + now) {
                retried.extend(keys_of(key));
            }
        }
        self.writes.extend(events.iter().map(|event| Written {
            at: now,
            key: event.key.clone(),
            is_retry: retried.contains(&event.key),
        }));
        for (key, stored) in &after {
            match stored {
                Some(stored) if key.kind == Kind::Application => {
                    self.application(revision, stored, events, now);
                    self.kept(revision, stored, &after);
                }
                Some(stored) => self.kept(revision, stored, &after),
                None if !wiped => self.gone(revision, key, &after),
                None => {}
            }
        }
        for (key, stored) in after {
            self.apply(key, stored, now, checker.began + now);
        }
        let applications = self.objects.keys().filter(|key| key.kind == Kind::Application).count() as u64;
        self.most_applications = self.most_applications.max(applications);
        self.violations[found..].iter().map(ToString::to_string).collect()
    }

    fn violate(&mut self, invariant: Id, revision: i64, what: impl std::fmt::Display) {
        self.violations.push(Violation { invariant, what: format!("revision {revision}: {what}") });
    }

    /// Whoever decides about placement is the oldest candidate, and owns it.
    fn decider(&mut self, revision: i64) {
        let owner = self.others.get(ownership::KEY).map(|owner| (&*owner.value, owner.lease));
        self.violations.extend(decider(revision, PREFIX, candidates(&self.others, PREFIX), owner));
    }

    fn other(&mut self, revision: i64, event: &Event) {
        let before = self.others.remove(&event.key);
        let Some(value) = event.value.clone() else { return };
        if event.key == ownership::KEY {
            self.seen.owners += 1;
            if before.as_ref().is_some_and(|before| before.value != value) {
                self.violate(Id::I1, revision, "placement was taken from another prefix that owned it");
            }
        }
        let (create_revision, lease) = (event.created, event.lease);
        let entry = Entry { value: value.into(), create_revision, mod_revision: revision, lease };
        self.others.insert(event.key.clone(), entry);
    }

    fn apply(&mut self, key: ObjectKey, stored: Option<Arc<Stored>>, now: Duration, wall: OffsetDateTime) {
        let Some(stored) = stored else {
            self.objects.remove(&key);
            self.down.remove(&key);
            self.was_down.remove(&key);
            self.deleting.remove(&key);
            return;
        };
        match &stored.object {
            Object::Cluster(cluster) => {
                let state = cluster.status.state;
                let before = self.objects.get(&key).and_then(|before| Cluster::of(&before.object));
                let failed = before.is_none_or(|before| before.status.state != state);
                self.seen.failing += u64::from(state == ClusterState::FailingMetrics && failed);
                if matches!(state, ClusterState::Online | ClusterState::FailingMetrics) {
                    if let Some(since) = self.down.remove(&key) {
                        self.was_down.insert(key.clone(), (since, wall));
                    }
                } else {
                    self.down.entry(key.clone()).or_insert(wall);
                }
            }
            Object::Application(application) => {
                self.seen.degraded += u64::from(application.status.scheduled_retry.is_some());
            }
            // The values of a table count as soon as it is written.
            Object::GlobalMetricsProvider(provider) => {
                if let MetricsProviderKind::Static(table) = &provider.spec.value {
                    let listed: Vec<(String, f64)> =
                        table.metrics.iter().map(|(name, value)| (name.to_owned(), *value)).collect();
                    for (name, value) in listed {
                        // The former one may still be decided on.
                        if let Some(former) = self.table.insert(name.clone(), value) {
                            self.value(&name, former, now);
                        }
                    }
                }
            }
            _ => {}
        }
        self.objects.insert(key, stored);
    }
}

/// A version of a resource in a word or two.
fn told(stored: &Stored) -> String {
    let deleted = if stored.object.metadata().deleted.is_some() { ", deleted" } else { "" };
    match &stored.object {
        Object::Application(application) => {
            let to = application.status.scheduled_to.as_ref().map_or("nothing", |to| to.name.as_str());
            format!("{} on {to}{deleted}", application.status.state)
        }
        Object::Cluster(cluster) => format!("{}{deleted}", cluster.status.state),
        _ => format!("put{deleted}"),
    }
}

fn key_of(name: &str) -> MetricKey {
    MetricKey { namespace: None, name: name.to_owned() }
}

fn state(raw: f64) -> MetricState {
    let at = OffsetDateTime::UNIX_EPOCH;
    MetricState {
        metric_revision: 1,
        provider_revision: 1,
        value: Some(Value { raw, normalized: raw / 100.0, at }),
        reason: None,
        undefined: false,
        note: None,
        trust: Trust { since: at, range: None, turns: 0 },
    }
}

#[cfg(test)]
mod tests;
