//! Observes a rehearsal by the store's history, as a running system would show it, and by the events of instances.
//!
//! Judges I7, I8 and I10 as a simulation does: a violation counts when it begins, and when a revision adds something
//! to it. The violations of the copy itself do not count. For I11, the leader's own check before each commit counts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use etcd_client::EventType;
use madako_domain::cluster::Cluster;
use madako_domain::invariants::{Id, Violation};
use madako_domain::keys;
use madako_domain::placement::decision::{Decision, Hold, Outcome};
use madako_domain::placement::kind::{Kind, ObjectKey};
use madako_domain::placement::kubernetes::Application;
use madako_domain::placement::object_value::{Object, Resource as _};
use madako_domain::plan::{Action, Change, Outcome as RuleOutcome};
use madako_domain::repair::queue::RepairQueue;
use madako_domain::repair::{RepairQueueEntry, RepairStatus};
use madako_domain::store::Entry;
use madako_faults::Span;
use madako_judges::Exemptions;
use madako_judges::standing::{StandingViolations, check_added_records};
use madako_protocol::event::{Event, EventSink};
use serde::Deserialize;
use time::OffsetDateTime;

use super::observations::{
    PlacementObservation, PlanObservation, RemainingObstacle, RepairObservation, WaitObservation,
};
use super::obstacles::LastReports;
use super::reasons::{self, ReasonRow};
use crate::drains::Drains;
use crate::history::History;
use crate::repair::entry_of;
use crate::retries::{Retries, keys_of};
use crate::revisions::follow_revisions_from;
use crate::store_process::StoreProcess;
use crate::world::PREFIX;

/// The parts of the stored last plan that a report needs.
#[derive(Deserialize)]
struct LastPlan {
    action: Option<Action>,
    #[serde(default)]
    changes: Vec<Change>,
    #[serde(default)]
    changes_total: usize,
    #[serde(default)]
    reasons: Vec<LastReason>,
}

#[derive(Deserialize)]
struct LastReason {
    outcome: RuleOutcome,
    why: String,
}

#[derive(Default, Clone)]
pub(super) struct RehearsalObservations {
    pub(super) plans: Vec<PlanObservation>,
    pub(super) repairs: BTreeMap<(i64, i64), RepairObservation>,
    pub(super) placements: Vec<PlacementObservation>,
    pub(super) waits: Vec<WaitObservation>,
    /// Number of further waits that were not kept.
    pub(super) more_waits: usize,
    pub(super) last_change: Option<Span>,
}

#[derive(Default)]
struct ObserverState {
    observations: RehearsalObservations,
    last_reports: LastReports,
    entries: BTreeMap<String, Entry>,
    queue: RepairQueue,
    cluster: Option<Cluster>,
    /// Violations of the last judged state of the queue.
    standing: StandingViolations,
    retries: Retries,
    /// The last decision on each application, if it was written in this run.
    decisions: BTreeMap<String, Decision>,
    /// Every write with its time, and whether it is only a retry of an application without a suitable cluster.
    writes: Vec<(Duration, String, bool)>,
    violations: Vec<Violation>,
}

/// Clones share their state.
#[derive(Clone)]
pub(super) struct Observer {
    inner: Arc<Mutex<ObserverState>>,
    history: History,
    /// The world's time at the beginning.
    began: OffsetDateTime,
    drains: Option<Drains>,
}

fn application_key(key: &str) -> Option<ObjectKey> {
    ObjectKey::from_etcd_key(key).filter(|key| key.kind == Kind::Application)
}

fn to_span(duration: Duration) -> Span {
    Span::from_millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}

fn decode_entry<T: serde::de::DeserializeOwned>(entry: &Entry) -> Option<T> {
    serde_json::from_slice(&entry.value).ok()
}

/// The violations that a state of the queue adds to those of the state before. No user writes in a rehearsal: a
/// violation that merely stays is of the copy or counts already, so that no bound applies to its duration.
fn added_violations(
    standing: &mut StandingViolations,
    queue: &RepairQueue,
    cluster: Option<&Cluster>,
    now: Duration,
) -> Vec<Violation> {
    standing.added_violations(queue, cluster, now, &mut Exemptions::default())
}

impl Observer {
    /// Begins with the copied keys. `drains` follow the cluster.
    pub(super) fn new(
        (history, began): (History, OffsetDateTime),
        own: &BTreeMap<String, Entry>,
        revision: i64,
        drains: Option<Drains>,
    ) -> Self {
        let mut inner = ObserverState {
            entries: own.clone(),
            queue: RepairQueue::decode(own, None, &mut Vec::new()),
            cluster: own.get(keys::CLUSTER).and_then(decode_entry),
            ..ObserverState::default()
        };
        let ObserverState { standing, queue, cluster, .. } = &mut inner;
        let _of_copy = added_violations(standing, queue, cluster.as_ref(), Duration::ZERO);
        for item in inner.queue.entries.values().filter(|item| !item.value.is_finished()) {
            let observations = observe_repair(&item.value, None);
            inner.observations.repairs.insert((item.value.index, item.created), observations);
        }
        history.note("copy", format_args!("begins at revision {revision}"));
        Self { inner: Arc::new(Mutex::new(inner)), history, began, drains }
    }

    pub(super) async fn watch(self, revision: i64, store: StoreProcess) {
        let read = |event: &etcd_client::Event| {
            let kv = event.kv().expect("an event is of a key");
            let key = String::from_utf8_lossy(kv.key()).into_owned();
            (key, (event.event_type() == EventType::Put).then(|| entry_of(kv)))
        };
        follow_revisions_from(revision + 1, store, "", read, |revision, changes| {
            self.observe(revision, changes)
        })
        .await;
    }

    fn observe(&self, revision: i64, changes: Vec<(String, Option<Entry>)>) {
        let now = self.history.now();
        let mut inner = self.inner.lock().unwrap();
        let inner = &mut *inner;
        let mut own = Vec::new();
        let wall = self.began + now;
        let applications =
            changes.iter().filter_map(|(key, entry)| Some((application_key(key)?, entry.as_ref())));
        let retried: BTreeSet<String> = applications
            .filter(|(key, entry)| inner.note_retry(key, *entry, wall))
            .flat_map(|(key, _)| keys_of(&key))
            .collect();
        for (key, entry) in changes {
            self.history.note(
                "root",
                format_args!("{revision} {} {key}", if entry.is_some() { "put" } else { "delete" }),
            );
            if let Some(relative) = key.strip_prefix(PREFIX) {
                own.push((relative.to_owned(), entry));
            }
            let is_retry = retried.contains(&key);
            inner.writes.push((now, key, is_retry));
        }
        for (key, entry) in &own {
            match (key.strip_prefix(keys::PLACEMENT_DECISIONS), entry) {
                (Some(application), Some(entry)) => inner.note_decision(application, entry, now),
                _ if key == keys::LAST_PLAN => inner.note_plan(entry.as_ref(), now),
                _ => {}
            }
        }
        let clustered = own.iter().any(|(key, _)| key == keys::CLUSTER);
        self.judge_repairs(inner, own, now);
        if clustered {
            inner.cluster = inner.entries.get(keys::CLUSTER).and_then(decode_entry);
            if let (Some(drains), Some(cluster)) = (&self.drains, &inner.cluster) {
                drains.follow(cluster);
            }
        }
    }

    /// Applies a revision to the queue, and records the violations that it added.
    fn judge_repairs(&self, inner: &mut ObserverState, own: Vec<(String, Option<Entry>)>, now: Duration) {
        const OF_QUEUE: [&str; 5] =
            [keys::REPAIRS, keys::REPAIR_KEPT, keys::RECORDS, keys::REBOOTS, keys::UPGRADE_DRAINS];
        let touches = |prefix: &str| own.iter().any(|(key, _)| key.starts_with(prefix));
        let (queue, recorded) = (touches(keys::REPAIRS), touches(keys::RECORDS));
        let touched = OF_QUEUE.into_iter().any(touches) || own.iter().any(|(key, _)| key == keys::CLUSTER);
        for (key, entry) in own {
            match entry {
                Some(entry) => inner.entries.insert(key, entry),
                None => inner.entries.remove(&key),
            };
        }
        if !touched {
            return;
        }
        let after = RepairQueue::decode(&inner.entries, Some(&inner.queue), &mut Vec::new());
        let cluster: Option<Cluster> = inner.entries.get(keys::CLUSTER).and_then(decode_entry);
        let mut found = check_added_records(&inner.queue, &after);
        found.extend(added_violations(&mut inner.standing, &after, cluster.as_ref(), now));
        for violation in found {
            self.history.note("observer", &violation);
            inner.violations.push(violation);
        }
        if queue {
            self.history.count_judgement(Id::I7);
            self.history.count_judgement(Id::I8);
        }
        if recorded {
            self.history.count_judgement(Id::I10);
        }
        for item in after.entries.values() {
            let former =
                inner.queue.entries.get(&item.value.index).filter(|former| former.created == item.created);
            if former.is_none_or(|former| former.revision != item.revision) {
                inner.observations.repair(&item.value, item.created, former.map(|former| &former.value), now);
            }
        }
        inner.queue = after;
    }

    pub(super) fn found_violations(&self) -> Vec<Violation> {
        self.inner.lock().unwrap().violations.clone()
    }

    /// Time of the last write since `since`, except retries of applications without a suitable cluster.
    pub(super) fn time_of_last_write(&self, since: Duration) -> Option<Duration> {
        let inner = self.inner.lock().unwrap();
        inner.time_of_last_write(since)
    }

    /// Keys that were written since `since`, with the same exception.
    pub(super) fn keys_written_since(&self, since: Duration) -> BTreeSet<String> {
        let inner = self.inner.lock().unwrap();
        let first = inner.writes.partition_point(|(at, ..)| *at < since);
        inner.writes[first..].iter().filter(|(.., retry)| !retry).map(|(_, key, _)| key.clone()).collect()
    }

    pub(super) fn count_unfinished(&self) -> usize {
        let inner = self.inner.lock().unwrap();
        inner.queue.entries.values().filter(|item| !item.value.is_finished()).count()
    }

    pub(super) fn collect_observations(&self) -> RehearsalObservations {
        let inner = self.inner.lock().unwrap();
        let last_change = inner.time_of_last_write(Duration::ZERO).map(to_span);
        RehearsalObservations { last_change, ..inner.observations.clone() }
    }

    pub(super) fn remaining_obstacles(&self, leader: Option<&str>) -> Vec<RemainingObstacle> {
        let inner = self.inner.lock().unwrap();
        let mut held = Vec::new();
        if leader.is_none() {
            held.push(RemainingObstacle {
                what: "everything".to_owned(),
                why: "no instance leads".to_owned(),
            });
        }
        held.extend(inner.last_reports.remaining_obstacles(&inner.queue));
        let mut add = |what: String, why: String| held.push(RemainingObstacle { what, why });
        for (application, decision) in &inner.decisions {
            match &decision.outcome {
                Outcome::Degraded { .. } | Outcome::Failed => {
                    add(
                        format!("placement of {application}"),
                        reasons::reasons_without_fit(&decision.clusters),
                    );
                }
                Outcome::Held { to, rule: Hold::MaxMoves { limit, .. }, .. } => {
                    let why = format!("{limit} applications may move at a time, and it should to {to}");
                    add(format!("move of {application}"), why);
                }
                _ => {}
            }
        }
        held
    }
}

impl ObserverState {
    /// Records a changed or deleted application. Returns true if the write is only a retry.
    fn note_retry(&mut self, key: &ObjectKey, entry: Option<&Entry>, wall: OffsetDateTime) -> bool {
        let text = entry.and_then(|entry| std::str::from_utf8(&entry.value).ok());
        // An unreadable application is not a retry.
        let object = text.and_then(|text| Object::from_stored(key.kind, text).ok());
        self.retries.record_version(key, object.as_ref().and_then(Application::from_object), wall)
    }

    fn time_of_last_write(&self, since: Duration) -> Option<Duration> {
        let counts = |(at, _, is_retry): &&(Duration, String, bool)| *at >= since && !is_retry;
        self.writes.iter().rev().find(counts).map(|(at, ..)| *at)
    }

    fn note_plan(&mut self, entry: Option<&Entry>, now: Duration) {
        let Some(plan) = entry.and_then(decode_entry::<LastPlan>) else { return };
        let fired = plan.reasons.into_iter().filter(|reason| reason.outcome == RuleOutcome::Fired);
        self.observations.plans.push(PlanObservation {
            at: to_span(now),
            action: plan.action.map_or("nothing", |action| action.name()).to_owned(),
            changes: plan.changes,
            changes_total: plan.changes_total,
            reasons: fired.map(|reason| reason.why).collect(),
        });
    }

    fn note_decision(&mut self, application: &str, entry: &Entry, now: Duration) {
        let Some(decision) = decode_entry::<Decision>(entry) else { return };
        let row = reasons::decision_row(&decision);
        // A mere retry adds no row.
        if self.decisions.get(application).is_none_or(|before| reasons::decision_row(before) != row) {
            let ReasonRow { what, from, to, why } = row;
            let (at, application) = (to_span(now), application.to_owned());
            self.observations.placements.push(PlacementObservation {
                at,
                application,
                what: what.to_owned(),
                from,
                to,
                why,
            });
        }
        self.decisions.insert(application.to_owned(), decision);
    }
}

fn observe_repair(entry: &RepairQueueEntry, requested: Option<Span>) -> RepairObservation {
    RepairObservation {
        index: entry.index,
        address: entry.address.clone(),
        machine_type: entry.machine_type.clone(),
        operation: entry.operation.clone(),
        requested,
        begins: None,
        ends: None,
        status: entry.status.to_string(),
        steps: Vec::new(),
    }
}

impl RehearsalObservations {
    fn repair(
        &mut self,
        entry: &RepairQueueEntry,
        created: i64,
        former: Option<&RepairQueueEntry>,
        now: Duration,
    ) {
        let now = to_span(now);
        let observations = self
            .repairs
            .entry((entry.index, created))
            .or_insert_with(|| observe_repair(entry, former.is_none().then_some(now)));
        let was = former.map(|former| &former.status);
        if entry.status == RepairStatus::Processing && was != Some(&RepairStatus::Processing) {
            observations.begins.get_or_insert(now);
        }
        if entry.is_finished() && !former.is_some_and(RepairQueueEntry::is_finished) {
            observations.ends = Some(now);
        }
        observations.status = entry.status.to_string();
    }
}

impl EventSink for Observer {
    fn emit(&self, event: Event) {
        let now = to_span(self.history.now());
        if let Event::Decided { decision, .. } = &event
            && matches!(decision.outcome, Outcome::Bound { .. } | Outcome::Moved { .. })
        {
            self.history.count_judgement(Id::I11);
        }
        let mut inner = self.inner.lock().unwrap();
        let ObserverState { last_reports, observations, .. } = &mut *inner;
        last_reports.note_event(event, now, observations);
    }
}

#[cfg(test)]
mod tests {
    use serde::Serialize;
    use serde_json::json;
    use time::macros::datetime;

    use super::*;

    fn entry(revision: i64, value: &impl Serialize) -> Entry {
        let value = serde_json::to_vec(value).unwrap().into();
        Entry { value, create_revision: revision, mod_revision: revision, lease: 0 }
    }

    /// A repair of one and the same machine, between two steps.
    fn repair(index: i64) -> (String, Entry) {
        let status = RepairStatus::Processing;
        let repair = RepairQueueEntry { index, status, ..RepairQueueEntry::new("o", "t", "10.0.0.1") };
        (keys::repair(index), entry(index + 1, &repair))
    }

    #[tokio::test(start_paused = true)]
    async fn a_violation_of_the_copy_counts_when_a_revision_adds_to_it() {
        let own = BTreeMap::from([repair(0), repair(1)]);
        let began = datetime!(2026-01-01 00:00 UTC);
        let observer = Observer::new((History::new(), began), &own, 9, None);
        let found = |revision, changes: Vec<(String, Option<Entry>)>| -> Vec<Id> {
            let absolute = |(key, entry)| (format!("{PREFIX}{key}"), entry);
            observer.observe(revision, changes.into_iter().map(absolute).collect());
            observer.found_violations().into_iter().map(|found| found.invariant).collect()
        };
        let put = |(key, entry)| (key, Some(entry));
        assert_eq!(found(10, vec![put(repair(1))]), [], "it is of the copy");
        // The number of repairs stays two.
        assert_eq!(found(11, vec![(keys::repair(0), None), put(repair(2))]), [Id::I7]);
        let record = |id: i64| {
            let record =
                json!({"id": id.to_string(), "status": "completed", "operation": "o", "targets": []});
            put((keys::record(id), entry(12, &record)))
        };
        assert_eq!(found(12, vec![record(1)]), [Id::I7]);
        assert_eq!(found(13, vec![record(3)]), [Id::I7, Id::I10], "record 2 is missing");
    }
}
