//! Judges a run from outside: by the store's own history, what instances were told, and what the
//! registry answered.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use etcd_client::{Event, EventType};
use madako_datacenter_sim::FaultSwitch;
use madako_domain::cluster::Cluster;
use madako_domain::constraints::Constraints;
use madako_domain::invariants::{
    ClusterChange, EpochLifetime, Id, Violation, Written, check_cluster_change, nothing_lost, one_writer,
};
use madako_domain::keys;
use madako_domain::machine::QueryVariables;
use madako_domain::record::Record;
use madako_domain::repair::queue::RepairQueue;
use madako_domain::repair::report::default_variables;
use madako_domain::store::Entry;
use madako_judges::{Exemption, Exemptions, Fact, Question};
use madako_protocol::ports::{Registry, RegistryError, RegistryMachines};

use crate::facts::{Facts, LastAnswers};
use crate::history::History;
use crate::repair::RepairJudge;
use crate::revisions::{every_revision, every_revision_from};
use crate::store_process::StoreProcess;
use crate::world::{INTERVAL, PREFIX};

/// What changes of the repair queue are called, and the keys of which each writes some.
const REPAIR: &str = "repair-";
const OF_REPAIRS: [&str; 4] = [keys::REPAIRS, keys::RECORDS, keys::REPAIR_KEPT, keys::REPAIR_HOLDS];

/// Changes of the repair queue that register no record, and the keys of which each writes some.
const UNRECORDED: [(&str, &[&str]); 4] = [
    ("repair-hold", &[keys::REPAIR_HOLDS]),
    ("repair-request", &[keys::REPAIRS]),
    ("repair-disown", &OF_REPAIRS),
    ("repair-forget", &OF_REPAIRS),
];

/// Polls for which an observation may be planned on, and how long a commit may be on its way after that where nothing is wrong.
const PLANNED_ON: u32 = 3;
const ON_ITS_WAY: Duration = Duration::from_secs(5);

/// How long a commit may be on its way while its leader or the store is cut off: [`Exemption::LateCommit`].
const REMEMBERED: Duration = Exemption::LateCommit.longest();

/// Keys that a revision wrote, with their values; `None` for a deleted one.
type Changes = Vec<(String, Option<Vec<u8>>)>;

fn read(event: &Event) -> (String, Option<Vec<u8>>) {
    let kv = event.kv().unwrap();
    let key = kv.key_str().unwrap().strip_prefix(PREFIX).unwrap().to_owned();
    (key, (event.event_type() == EventType::Put).then(|| kv.value().to_vec()))
}

#[derive(Default)]
struct Judged {
    values: BTreeMap<String, (Vec<u8>, i64)>,
    history: BTreeMap<i64, BTreeSet<String>>,
    acknowledged: BTreeMap<i64, BTreeSet<String>>,
    acknowledged_writes: Vec<Written>,
    terms: Vec<EpochLifetime>,
    /// Instances that candidates' keys name, by their epochs.
    writers: BTreeMap<i64, String>,
    /// When which instance observed which addresses.
    observed: VecDeque<(Duration, &'static str, BTreeSet<String>)>,
    /// Revision of the template that the newest cluster was made from: a commit compares it.
    made_from: i64,
    /// Changes of the repair queue that an instance was told of, by revision.
    acknowledged_repairs: BTreeMap<i64, String>,
    /// Operations of the records that each revision wrote.
    operations: BTreeMap<i64, BTreeSet<String>>,
    violations: Vec<Violation>,
    exemptions: Exemptions,
}

/// Clones are the same checker.
#[derive(Clone)]
pub struct Checker {
    judged: Arc<Mutex<Judged>>,
    history: History,
    /// For how long an observation may be planned on.
    planned_on: Duration,
}

impl Checker {
    /// Has seen nothing yet.
    pub fn new(history: History) -> Self {
        Self { judged: Arc::default(), history, planned_on: INTERVAL * PLANNED_ON }
    }

    /// The same where the registry is polled at this interval.
    #[must_use]
    pub fn polled_every(self, interval: Duration) -> Self {
        Self { planned_on: interval.saturating_mul(PLANNED_ON), ..self }
    }

    /// Watches the store over a client of its own.
    pub async fn watch(self, store: StoreProcess) {
        every_revision(store, PREFIX, read, |revision, changes| self.judge(revision, changes)).await;
    }

    /// The same, from a copied store on that held this when nobody of this run had written yet.
    pub async fn watch_from(self, revision: i64, entries: BTreeMap<String, Entry>, store: StoreProcess) {
        {
            let mut judged = self.judged.lock().unwrap();
            judged.values = entries
                .iter()
                .map(|(key, entry)| {
                    let of_template = key == keys::SABAKAN_TEMPLATE;
                    let at = if of_template { entry.mod_revision } else { entry.create_revision };
                    (key.clone(), (entry.value.to_vec(), at))
                })
                .collect();
        }
        every_revision_from(revision + 1, store, PREFIX, read, |revision, changes| {
            self.judge(revision, changes);
        })
        .await;
    }

    fn judge(&self, revision: i64, changes: Changes) {
        let mut judged = self.judged.lock().unwrap();
        let judged = &mut *judged;
        let known = judged.violations.len();
        let clustered = changes.iter().any(|(key, _)| key == keys::CLUSTER);
        // What a cluster is judged by; a revision writes a key once, so that nothing else needs what was before all of it.
        let before = if clustered { judged.values.clone() } else { BTreeMap::new() };
        for (key, value) in &changes {
            self.history.note(
                "store",
                format_args!("{revision} {} {key}", if value.is_some() { "put" } else { "delete" }),
            );
            judged.history.entry(revision).or_default().insert(key.clone());
            let record = value.as_deref().filter(|_| key.starts_with(keys::RECORDS));
            if let Some(Ok(record)) = record.map(serde_json::from_slice::<Record>) {
                judged.operations.entry(revision).or_default().insert(record.operation);
            }
            if key.starts_with(keys::LEADER) {
                let created = judged.values.get(key).map(|(_, created)| *created);
                judged.leader(revision, value.is_some(), created);
                if let (Some(host), None) = (value, created) {
                    judged.writers.insert(revision, String::from_utf8_lossy(host).into_owned());
                }
            }
            if keys::NOTED.contains(&key.as_str())
                && judged.values.get(key).map(|(value, _)| value) == value.as_ref()
            {
                judged.violations.push(Violation {
                    invariant: Id::I12,
                    what: format!("revision {revision} writes {key} as it is there already"),
                });
            }
            match value {
                Some(value) => {
                    let created = judged.values.get(key).map_or(revision, |(_, created)| *created);
                    let at = if key == keys::SABAKAN_TEMPLATE { revision } else { created };
                    judged.values.insert(key.clone(), (value.clone(), at));
                }
                None => {
                    judged.values.remove(key);
                }
            }
        }
        if clustered {
            let observed = judged.cluster(revision, &before, (self.history.now(), self.planned_on));
            for invariant in [Id::I1, Id::I3, Id::I4, Id::I12] {
                self.history.judged(invariant);
            }
            if observed {
                self.history.judged(Id::I6);
            }
            if before.contains_key(keys::CLUSTER) {
                self.history.judged(Id::I5);
            }
        }
        for violation in &judged.violations[known..] {
            self.history.note("checker", violation);
        }
    }

    /// An instance was told that its commit is durable.
    pub fn acknowledge(&self, what: &str, revision: i64, epoch: i64) {
        let mut judged = self.judged.lock().unwrap();
        let key = match what {
            "cluster" => Some(keys::CLUSTER),
            "removal-guard" => Some(keys::REMOVAL_GUARD),
            // Which keys these are depends on what was done.
            what if what.starts_with(REPAIR) => {
                judged.acknowledged_repairs.insert(revision, what.to_owned());
                None
            }
            "obstacles" => Some(keys::OBSTACLES),
            // Its keys are at the root, where another checker watches.
            _ => None,
        };
        judged.acknowledged.entry(revision).or_default().extend(key.map(str::to_owned));
        judged.acknowledged_writes.push(Written { revision, epoch });
        self.history.judged(Id::I1);
        self.history.judged(Id::I9);
    }

    /// The gate of an instance refused what it was about to commit: what decided that is wrong, whether it was written or not.
    pub fn refused(&self, name: &str, violations: &[Violation]) {
        let told = violations.iter().map(|Violation { invariant, what }| Violation {
            invariant: *invariant,
            what: format!("{name} was about to commit this: {what}"),
        });
        self.judged.lock().unwrap().violations.extend(told);
    }

    fn observed(&self, instance: &'static str, addresses: BTreeSet<String>) {
        let now = self.history.now();
        let mut judged = self.judged.lock().unwrap();
        judged.observed.push_back((now, instance, addresses));
        let remembered = self.planned_on + REMEMBERED;
        while judged.observed.front().is_some_and(|(at, ..)| *at + remembered < now) {
            judged.observed.pop_front();
        }
    }

    /// Whether something was violated so far.
    #[must_use]
    pub fn found_something(&self) -> bool {
        let judged = self.judged.lock().unwrap();
        !judged.violations.is_empty() || !one_writer(&judged.acknowledged_writes, &judged.terms).is_empty()
    }

    /// Every violation, when the run is over.
    pub fn finish(&self) -> Vec<Violation> {
        let mut judged = self.judged.lock().unwrap();
        let judged = &mut *judged;
        let mut violations = std::mem::take(&mut judged.violations);
        violations.extend(one_writer(&judged.acknowledged_writes, &judged.terms));
        violations.extend(nothing_lost(&judged.acknowledged, &judged.history));
        violations.extend(judged.unshown_repairs());
        violations
    }

    /// What was excused.
    #[must_use]
    pub fn exemptions(&self) -> Exemptions {
        self.judged.lock().unwrap().exemptions.clone()
    }

    /// Whether the newest cluster was made from the template that is stored, by what was committed when.
    #[must_use]
    pub fn is_template_applied(&self) -> bool {
        let judged = self.judged.lock().unwrap();
        let template = judged.values.get(keys::SABAKAN_TEMPLATE).map_or(0, |(_, revision)| *revision);
        judged.made_from == template
    }

    /// The newest cluster.
    pub fn cluster(&self) -> Option<Cluster> {
        let judged = self.judged.lock().unwrap();
        judged.values.get(keys::CLUSTER).map(|(value, _)| serde_json::from_slice(value).unwrap())
    }
}

impl Judged {
    /// Changes of the repair queue that were acknowledged at a revision which does not show them.
    fn unshown_repairs(&self) -> impl Iterator<Item = Violation> {
        self.acknowledged_repairs.iter().filter_map(|(revision, what)| {
            let wrote = |prefix: &&str| {
                self.history.get(revision).is_some_and(|keys| keys.iter().any(|key| key.starts_with(*prefix)))
            };
            let unrecorded = UNRECORDED.iter().find(|(name, _)| name == what);
            let shown = unrecorded.map_or_else(
                || self.operations.get(revision).is_some_and(|operations| operations.contains(what)),
                |(_, keys)| keys.iter().any(wrote),
            );
            let what = format!("{what} was acknowledged at {revision}, which does not show it");
            (!shown).then_some(Violation { invariant: Id::I9, what })
        })
    }

    fn leader(&mut self, revision: i64, put: bool, created: Option<i64>) {
        if !put {
            let term = self.terms.iter_mut().find(|term| Some(term.epoch) == created && term.ended.is_none());
            term.expect("a leader key that is deleted was there").ended = Some(revision);
        } else if created.is_none() {
            self.terms.push(EpochLifetime { epoch: revision, ended: None });
        }
    }

    /// Judges a cluster; whether there was an observation that it may come from.
    fn cluster(
        &mut self,
        revision: i64,
        before: &BTreeMap<String, (Vec<u8>, i64)>,
        (now, planned_on): (Duration, Duration),
    ) -> bool {
        let json = |key: &str| self.values.get(key).map(|(value, _)| value.as_slice());
        let after: Cluster = serde_json::from_slice(json(keys::CLUSTER).unwrap()).unwrap();
        let old: Option<Cluster> =
            before.get(keys::CLUSTER).map(|(value, _)| serde_json::from_slice(value).unwrap());
        let constraints: Constraints = before
            .get(keys::CONSTRAINTS)
            .map_or_else(Constraints::default, |(value, _)| serde_json::from_slice(value).unwrap());
        let template = before.get(keys::SABAKAN_TEMPLATE).map_or(0, |(_, revision)| *revision);
        // Not by what the service notes of it: that may be what is wrong.
        let made_from = std::mem::replace(&mut self.made_from, template);
        let repairs = repairs(before);
        // Any observation that may be planned on may be the one; with none there is nothing to be honest about.
        let judged_by = |observed: &BTreeSet<String>| {
            check_cluster_change(&ClusterChange {
                before: old.as_ref(),
                after: &after,
                constraints: &constraints,
                observed,
                template_changed: template != made_from,
                repairs: &repairs,
            })
        };
        let last: serde_json::Value = serde_json::from_slice(json(keys::LAST_PLAN).unwrap()).unwrap();
        let written = Written { revision, epoch: last["epoch"].as_i64().unwrap() };
        let writer = self.writers.get(&written.epoch);
        // A plan is made from what its own instance was answered.
        let own = || self.observed.iter().filter(|(_, by, _)| writer.is_none_or(|writer| writer == by));
        let best_since = |oldest: Duration| {
            let recent = own().filter(|(at, ..)| *at + oldest >= now);
            recent.map(|(_, _, observed)| judged_by(observed)).min_by_key(Vec::len)
        };
        let mut best = best_since(planned_on + ON_ITS_WAY);
        if best.as_ref().is_none_or(|wrong| !wrong.is_empty())
            && let Some(late) = best_since(planned_on + REMEMBERED).filter(Vec::is_empty)
        {
            let age = |(at, _, observed): &(Duration, &'static str, BTreeSet<String>)| {
                judged_by(observed).is_empty().then(|| now.saturating_sub(*at + planned_on))
            };
            let lasted = own().filter_map(age).min().unwrap_or_default();
            self.exemptions.used(Exemption::LateCommit, lasted);
            best = Some(late);
        }
        let observed = best.is_some();
        self.violations.extend(best.unwrap_or_else(|| judged_by(&BTreeSet::new())));
        self.violations.extend(one_writer(&[written], &self.terms));
        observed
    }
}

/// The repairs and reboots among stored values. Their revisions do not matter here.
fn repairs(values: &BTreeMap<String, (Vec<u8>, i64)>) -> RepairQueue {
    let counts = |key: &str| key.starts_with(keys::REPAIRS) || key.starts_with(keys::REBOOTS);
    let entry = |(value, created): &(Vec<u8>, i64)| Entry {
        value: value.clone().into(),
        create_revision: *created,
        mod_revision: *created,
        lease: 0,
    };
    let entries = values
        .iter()
        .filter(|(key, _)| counts(key))
        .map(|(key, value)| (key.clone(), entry(value)))
        .collect();
    RepairQueue::decode(&entries, None, &mut Vec::new())
}

/// A registry that tells the checker what it answered.
pub struct Overheard<R> {
    /// The registry itself.
    pub registry: R,
    /// The instance that asks, what came on its way from the registry, and where that is told.
    pub heard: (&'static str, LastAnswers, Facts),
    /// Who is told.
    pub checker: Checker,
    /// The judge of repairs, who knows the instance by a name, and what is wrong with the registry.
    pub repairs: Option<(&'static str, RepairJudge, FaultSwitch)>,
}

#[async_trait]
impl<R: Registry> Registry for Overheard<R> {
    async fn machines(
        &self,
        url: &str,
        variables: Option<&QueryVariables>,
    ) -> Result<RegistryMachines, RegistryError> {
        let fetched = self.registry.machines(url, variables).await;
        if let Ok(fetched) = &fetched {
            let is_reports = variables == Some(&default_variables());
            let question = if is_reports { Question::Reports } else { Question::Machines };
            let (instance, answers, facts) = &self.heard;
            let machines = answers.to(question);
            if !is_reports {
                let addresses = machines.iter().map(|machine| machine.address.clone()).collect();
                self.checker.observed(instance, addresses);
            }
            facts.tell(&Fact::Answered { instance: (*instance).to_owned(), question, machines });
            if let Some((name, judge, faults)) = &self.repairs
                && is_reports
            {
                judge.answered(name, fetched, &faults.present());
            }
        }
        fetched
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn put(key: &str, value: &serde_json::Value) -> (String, Option<Vec<u8>>) {
        (key.to_owned(), Some(value.to_string().into_bytes()))
    }

    /// A leader that makes a cluster of one node, and notes that it made it from the template of a revision.
    fn makes(noted: i64) -> Changes {
        let cluster = json!({
            "name": "c", "service_subnet": "10.68.0.0/16",
            "nodes": [{"address": "10.0.0.1", "control_plane": true, "user": "u"}],
        });
        vec![
            put(keys::CLUSTER, &cluster),
            put(keys::CLUSTER_REVISION, &json!(noted)),
            put(keys::LAST_PLAN, &json!({"epoch": 1})),
        ]
    }

    fn found(checker: &Checker) -> Vec<Id> {
        checker.judged.lock().unwrap().violations.iter().map(|violation| violation.invariant).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn the_same_cluster_is_written_again_for_another_template_alone() {
        let checker = Checker::new(History::new());
        checker.judge(1, vec![(format!("{}1", keys::LEADER), Some(b"alpha".to_vec()))]);
        checker
            .judge(2, vec![put(keys::CONSTRAINTS, &json!({"control-plane-count": 1, "minimum-workers": 0}))]);
        checker.judge(3, vec![put(keys::SABAKAN_TEMPLATE, &json!({}))]);
        checker.observed("alpha", ["10.0.0.1".to_owned()].into());
        checker.judge(4, makes(3));
        checker.judge(5, vec![put(keys::SABAKAN_TEMPLATE, &json!({}))]);
        // Whatever is noted, the first cluster after a template is made from it.
        checker.judge(6, makes(4));
        assert_eq!(found(&checker), []);
        checker.judge(7, makes(4));
        assert_eq!(found(&checker), [Id::I12]);
    }
}
