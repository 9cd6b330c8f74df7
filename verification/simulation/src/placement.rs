//! Judges placement from outside: by the store's history from its root, the metric values of the simulated servers,
//! and the user's requests with their answers.
//!
//! Checks each revision on its arrival:
//! - I11, by the predicate of the leader: an application is newly bound only to a cluster that accepted it at that
//!   time;
//! - the same transaction gives the reason of a binding, and its leader owns placement at that time;
//! - moves are few; no application leaves a cluster that only lacks metrics or has not been online for a short time
//!   only;
//! - the user asked for each creation and each deletion, and acknowledged writes exist.
//!
//! Assumes that a decision may use the value of a server for [`VALUES_COUNT`].

mod bindings;
mod creations;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use etcd_client::EventType;
use madako_domain::invariants::{Id, Violation};
use madako_domain::keys;
use madako_domain::placement::core::MetricsProviderKind;
use madako_domain::placement::fit::UnmetConstraint;
use madako_domain::placement::kind::{Kind, ObjectKey};
use madako_domain::placement::kubernetes::{Application, Cluster, ClusterState};
use madako_domain::placement::metrics::{MetricKey, MetricState, Trust, Value};
use madako_domain::placement::object_value::{Object, Resource as _};
use madako_domain::placement::objects::Stored;
use madako_domain::placement::ownership;
use madako_domain::store::Entry;
use madako_judges::Exemptions;
use madako_judges::bindings::{
    Resources, find_unsettled, read_bound_cluster, read_resource, violations_against,
};
use madako_judges::history::{Stored as Entries, candidate_revisions, find_decider};
use time::OffsetDateTime;

use crate::contents::Contents;
use crate::history::History;
use crate::retries::{Retries, keys_of};
use crate::revisions::follow_revisions;
use crate::store_process::StoreProcess;
use crate::world::{METRICS_INTERVAL, PREFIX, SESSION_TTL};

/// Key that the user writes together with the deletion of everything.
pub const WIPED: &str = "/simulation/wiped";

/// Maximum age of a value at the write of a decision: a value is valid for three passes of the metrics fetcher, an
/// answer takes at most 10 s, and a leader may write as long as its lease lives.
const VALUES_COUNT: Duration =
    Duration::from_secs(METRICS_INTERVAL.as_secs() * 3 + 10 + SESSION_TTL.as_secs());

pub struct KeyChange {
    /// The full key in etcd.
    pub key: String,
    /// `None` is a deletion.
    pub value: Option<Vec<u8>>,
    /// Create revision of the key.
    pub created: i64,
    /// Lease of the key; 0 is none.
    pub lease: i64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PlacementCounts {
    pub bindings: u64,
    /// Bindings to another cluster than before.
    pub moves: u64,
    /// Deletions of everything.
    pub wipes: u64,
    /// Deleted resources that are gone.
    pub collected: u64,
    /// Clusters whose metrics failed.
    pub failing: u64,
    /// Versions of applications that no cluster fits.
    pub degraded: u64,
    pub owners: u64,
}

struct PlacementWrite {
    at: Duration,
    key: String,
    /// True if only the attempts of an application that no cluster fits changed, or a scheduled backup is noted: both go on
    /// in a quiet period.
    is_periodic: bool,
}

#[derive(Default)]
struct JudgedPlacement {
    objects: Resources,
    others: Entries,
    history: BTreeMap<i64, BTreeSet<String>>,
    /// Keys and revisions of the user's acknowledged writes.
    acknowledged: Vec<(String, i64)>,
    /// Revisions of the instances' acknowledged commits.
    committed: BTreeSet<i64>,
    /// Numbers of requested and of observed creations of each resource.
    wanted: BTreeMap<ObjectKey, (u64, u64)>,
    deleting: BTreeSet<ObjectKey>,
    /// Recent values of the servers, by metric.
    values: BTreeMap<String, VecDeque<(Duration, f64)>>,
    /// Values of static providers, by metric.
    table: BTreeMap<String, f64>,
    /// Start of a cluster's current outage; a cluster that only lacks metrics has none.
    down: BTreeMap<ObjectKey, OffsetDateTime>,
    /// Start and end of a cluster's last outage.
    was_down: BTreeMap<ObjectKey, (OffsetDateTime, OffsetDateTime)>,
    /// Decision time of each move, by the clock of its leader, and time of its observation.
    moves: Vec<(OffsetDateTime, Duration)>,
    most_applications: u64,
    counts: PlacementCounts,
    violations: Vec<Violation>,
    exemptions: Exemptions,
    writes: Vec<PlacementWrite>,
    retries: Retries,
    contents: Contents,
}

/// Clones share their state.
#[derive(Clone)]
pub struct PlacementChecker {
    judged: Arc<Mutex<JudgedPlacement>>,
    history: History,
    began: OffsetDateTime,
}

impl PlacementChecker {
    pub fn new(history: History, began: OffsetDateTime) -> Self {
        Self { judged: Arc::default(), history, began }
    }

    /// Reads the history of the whole store with its own client.
    pub async fn watch(self, store: StoreProcess) {
        let read = |event: &etcd_client::Event| {
            let kv = event.kv().unwrap();
            KeyChange {
                key: kv.key_str().unwrap().to_owned(),
                value: (event.event_type() == EventType::Put).then(|| kv.value().to_vec()),
                created: kv.create_revision(),
                lease: kv.lease(),
            }
        };
        follow_revisions(store, "", read, |revision, events| self.judge_revision(revision, &events)).await;
    }

    pub fn judge_revision(&self, revision: i64, events: &[KeyChange]) {
        let (bindings, violations) = {
            let mut judged = self.judged.lock().unwrap();
            let before = judged.counts.bindings;
            let violations = judged.judge_revision(revision, events, self);
            (judged.counts.bindings - before, violations)
        };
        (0..bindings).for_each(|_| self.history.count_judgement(Id::I11));
        for violation in violations {
            self.history.note("placement", &violation);
        }
    }

    /// Records a value that a server is about to send.
    pub fn record_value(&self, metric: &str, value: f64) {
        self.judged.lock().unwrap().note_value(metric, value, self.history.now());
    }

    /// Records the user's request for a new resource.
    pub fn note_creation(&self, key: &ObjectKey) {
        self.judged.lock().unwrap().wanted.entry(key.clone()).or_default().0 += 1;
    }

    /// Records the user's request for a deletion.
    pub fn note_deletion(&self, key: &ObjectKey) {
        self.judged.lock().unwrap().deleting.insert(key.clone());
    }

    /// Records an acknowledged write of the user.
    pub fn note_acknowledged(&self, key: &ObjectKey, revision: i64) {
        self.judged.lock().unwrap().acknowledged.push((key.etcd_key(), revision));
        self.history.count_judgement(Id::I9);
    }

    /// Records a commit that an instance knows to be durable.
    pub fn note_commit(&self, revision: i64) {
        self.judged.lock().unwrap().committed.insert(revision);
        self.history.count_judgement(Id::I9);
    }

    /// Resources in the store by the last observed revision, with their create revisions.
    pub fn stored_revisions(&self) -> BTreeMap<ObjectKey, i64> {
        let judged = self.judged.lock().unwrap();
        judged.objects.iter().map(|(key, stored)| (key.clone(), stored.create_revision)).collect()
    }

    /// Records a violation that the user found.
    pub fn record_violation(&self, invariant: Id, what: String) {
        self.history.note("placement", &what);
        self.judged.lock().unwrap().violations.push(Violation { invariant, what });
    }

    pub fn read_counts(&self) -> PlacementCounts {
        self.judged.lock().unwrap().counts
    }

    /// Compares a restarted store with the observed contents. True if it has all of them or does not answer.
    pub async fn note_store_start(&self, store: &StoreProcess) -> bool {
        let contents = self.judged.lock().unwrap().contents.clone();
        let Some(mut client) = store.connect_client().await else { return true };
        let Some((compared, lost)) = contents.find_differences_from(&mut client).await else { return true };
        (0..compared).for_each(|_| self.history.count_judgement(Id::I9));
        let has_all = lost.is_empty();
        for what in lost {
            self.record_violation(Id::I9, what);
        }
        has_all
    }

    pub fn last_revision(&self) -> i64 {
        self.judged.lock().unwrap().history.keys().next_back().copied().unwrap_or(0)
    }

    /// Keys that were written since a time, without retries that the back-off of an application without a fitting
    /// cluster permits, and without backups.
    #[must_use]
    pub fn changes_since(&self, since: Duration) -> Vec<(Duration, String)> {
        let judged = self.judged.lock().unwrap();
        let first = judged.writes.partition_point(|written| written.at < since);
        let counted = judged.writes[first..].iter().filter(|written| !written.is_periodic);
        counted.map(|written| (written.at, written.key.clone())).collect()
    }

    /// Violations of the state, if it no longer changes.
    pub fn find_unsettled(&self) -> Vec<Violation> {
        let judged = self.judged.lock().unwrap();
        find_unsettled(&judged.objects, &judged.latest_values(self.history.now()))
    }

    #[must_use]
    pub fn has_findings(&self) -> bool {
        !self.judged.lock().unwrap().violations.is_empty()
    }

    pub fn exemptions(&self) -> Exemptions {
        self.judged.lock().unwrap().exemptions.clone()
    }

    /// All violations, at the end of the run.
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
            violations.push(lost(format!("placement received revision {revision}, which is missing")));
        }
        violations
    }
}

impl JudgedPlacement {
    fn note_value(&mut self, metric: &str, value: f64, now: Duration) {
        let values = self.values.entry(metric.to_owned()).or_default();
        values.push_back((now, value));
        while values.front().is_some_and(|(at, _)| *at + VALUES_COUNT < now) {
            values.pop_front();
        }
    }

    /// The last value of each metric with a recent value.
    fn latest_values(&self, now: Duration) -> BTreeMap<MetricKey, MetricState> {
        let last = self.values.iter().filter_map(|(name, values)| {
            let (at, value) = values.back()?;
            (*at + VALUES_COUNT >= now).then(|| (key_of(name), metric_state(*value)))
        });
        last.chain(self.table.iter().map(|(name, value)| (key_of(name), metric_state(*value)))).collect()
    }

    fn stored_object(&self, key: &ObjectKey) -> Option<Arc<Stored>> {
        self.objects.get(key).cloned()
    }

    /// Unmet constraints of an application on a cluster; `None` if the resource is not a cluster.
    fn unmet_requirements(
        &self,
        application: &Application,
        cluster: &Stored,
        values: &BTreeMap<MetricKey, MetricState>,
    ) -> Option<Vec<UnmetConstraint>> {
        violations_against(application, cluster, values, &self.objects)
    }

    /// Judges a revision by the state before it, and returns its violations.
    fn judge_revision(
        &mut self,
        revision: i64,
        events: &[KeyChange],
        checker: &PlacementChecker,
    ) -> Vec<String> {
        let now = checker.history.now();
        let found = self.violations.len();
        let wiped = events.iter().any(|event| event.key == WIPED);
        self.counts.wipes += u64::from(wiped);
        let deciding = events
            .iter()
            .any(|event| event.key.strip_prefix(PREFIX).is_some_and(|key| key.starts_with(keys::PLACEMENT)));
        if deciding {
            self.check_decider(revision);
        }
        let mut after = Vec::new();
        for event in events {
            self.history.entry(revision).or_default().insert(event.key.clone());
            self.contents.apply_write(revision, &event.key, event.value.as_deref());
            match ObjectKey::from_etcd_key(&event.key) {
                Some(key) => {
                    let stored = event
                        .value
                        .as_ref()
                        .map(|value| read_resource(&key, value, event.created, revision).unwrap());
                    let what = stored.as_ref().map_or("delete".to_owned(), |stored| describe_version(stored));
                    checker.history.note("root", format_args!("{revision} {key}: {what}"));
                    after.push((key, stored));
                }
                None => self.apply_other(revision, event),
            }
        }
        let mut retried = BTreeSet::new();
        for (key, stored) in after.iter().filter(|(key, _)| key.kind == Kind::Application) {
            let application = stored.as_ref().and_then(|stored| Application::from_object(&stored.object));
            if self.retries.record_version(key, application, checker.began + now) {
                retried.extend(keys_of(key));
            }
        }
        self.writes.extend(events.iter().map(|event| PlacementWrite {
            at: now,
            key: event.key.clone(),
            is_periodic: retried.contains(&event.key) || event.key.ends_with(keys::ETCD_BACKUP),
        }));
        for (key, stored) in &after {
            match stored {
                Some(stored) if key.kind == Kind::Application => {
                    self.judge_application(revision, stored, events, now);
                    self.check_written(revision, stored, &after);
                }
                Some(stored) => self.check_written(revision, stored, &after),
                None if !wiped => self.check_deleted(revision, key, &after),
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

    fn record_violation(&mut self, invariant: Id, revision: i64, what: impl std::fmt::Display) {
        self.violations.push(Violation { invariant, what: format!("revision {revision}: {what}") });
    }

    /// Checks that the deciding leader is the oldest candidate and owns placement.
    fn check_decider(&mut self, revision: i64) {
        let owner = self.others.get(ownership::KEY).map(|owner| (&*owner.value, owner.lease));
        self.violations.extend(find_decider(
            revision,
            PREFIX,
            candidate_revisions(&self.others, PREFIX),
            owner,
        ));
    }

    fn apply_other(&mut self, revision: i64, event: &KeyChange) {
        let before = self.others.remove(&event.key);
        let Some(value) = event.value.clone() else { return };
        if event.key == ownership::KEY {
            self.counts.owners += 1;
            if before.as_ref().is_some_and(|before| before.value != value) {
                self.record_violation(
                    Id::I1,
                    revision,
                    "placement was taken from another prefix that owned it",
                );
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
                let before = self.objects.get(&key).and_then(|before| Cluster::from_object(&before.object));
                let failed = before.is_none_or(|before| before.status.state != state);
                self.counts.failing += u64::from(state == ClusterState::FailingMetrics && failed);
                if matches!(state, ClusterState::Online | ClusterState::FailingMetrics) {
                    if let Some(since) = self.down.remove(&key) {
                        self.was_down.insert(key.clone(), (since, wall));
                    }
                } else {
                    self.down.entry(key.clone()).or_insert(wall);
                }
            }
            Object::Application(application) => {
                self.counts.degraded += u64::from(application.status.scheduled_retry.is_some());
            }
            // The values of a table are valid as soon as it is written.
            Object::GlobalMetricsProvider(provider) => {
                if let MetricsProviderKind::Static(table) = &provider.spec.value {
                    let listed: Vec<(String, f64)> =
                        table.metrics.iter().map(|(name, value)| (name.to_owned(), *value)).collect();
                    for (name, value) in listed {
                        // A decision may still use the former value.
                        if let Some(former) = self.table.insert(name.clone(), value) {
                            self.note_value(&name, former, now);
                        }
                    }
                }
            }
            _ => {}
        }
        self.objects.insert(key, stored);
    }
}

fn describe_version(stored: &Stored) -> String {
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

fn metric_state(raw: f64) -> MetricState {
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
