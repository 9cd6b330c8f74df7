//! Judges a simulated run from outside: by the store's history, the acknowledgements of instances, and the registry's
//! answers.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use madako_datacenter_sim::FaultSwitch;
use madako_domain::cluster::Cluster;
use madako_domain::invariants::{Id, Violation, WrittenKey, check_no_lost_writes, check_one_writer};
use madako_domain::keys;
use madako_domain::machine::QueryVariables;
use madako_domain::record::Record;
use madako_domain::repair::report::default_variables;
use madako_judges::history::{ByObservation, Change, Clusters, Stored};
use madako_judges::{Exemption, Exemptions, Fact, RegistryQuestion};
use madako_protocol::ports::{Registry, RegistryError, RegistryMachines};

use crate::facts::{Facts, LastAnswers};
use crate::history::History;
use crate::repair::{RepairJudge, change_of};
use crate::revisions::{follow_revisions, follow_revisions_from};
use crate::store_process::StoreProcess;
use crate::world::{INTERVAL, PREFIX};

/// A write of each change of one name, by which the store's history shows the change.
#[derive(Debug, Clone, Copy)]
enum ChangeTrace {
    Key(&'static str),
    /// A key with this prefix.
    Below(&'static str),
    /// A record of an operation that is named like the change.
    Record,
    /// A key at the root, where another checker watches.
    AtRoot,
}

/// `None`: no change of the service has this name.
fn trace_of_change(what: &str) -> Option<ChangeTrace> {
    use ChangeTrace::{AtRoot, Below, Key, Record};
    Some(match what {
        "cluster" => Key(keys::CLUSTER),
        "removal-guard" => Key(keys::REMOVAL_GUARD),
        "obstacles" => Key(keys::OBSTACLES),
        "phase" => Key(keys::STATUS),
        "host-key" => Below(keys::HOST_KEYS),
        "etcd-backup" => Key(keys::ETCD_BACKUP),
        "placement" => AtRoot,
        "repair-hold" => Below(keys::REPAIR_HOLDS),
        "repair-request" => Below(keys::REPAIRS),
        "repair-forget" => Below(keys::REPAIR_KEPT),
        "reboot-running" => Key(keys::REBOOTS_RUNNING),
        "upgrade-drains" | "upgrade-drained" => Below(keys::UPGRADE_DRAINS),
        "restart-forget" => Below(keys::ETCD_RESTARTS),
        "restore-refuse" | "restore-forget" => Key(keys::ETCD_RESTORE),
        "rollout" => Key(keys::ROLLOUT),
        // These change a record of any operation.
        "repair-disown" | "reboot-disown" | "operation-begin" | "operation-command"
        | "operation-complete" | "operation-cancel" | "operation-disown" => Below(keys::RECORDS),
        _ if what.starts_with("repair-") || what.starts_with("reboot-") => Record,
        _ => return None,
    })
}

/// Maximum age, in polls, of an observation that a plan uses, and the maximum time until the commit without faults.
const PLANNED_ON: u32 = 3;
const ON_ITS_WAY: Duration = Duration::from_secs(5);

/// Maximum time until a commit while its leader or the store is cut off: [`Exemption::LateCommit`].
const REMEMBERED: Duration = Exemption::LateCommit.longest_use().expect("a commit is late for a time");

#[derive(Default)]
struct CheckedRun {
    clusters: Clusters,
    history: BTreeMap<i64, BTreeSet<String>>,
    acknowledged: BTreeMap<i64, BTreeSet<String>>,
    acknowledged_writes: Vec<WrittenKey>,
    observed: VecDeque<RegistryObservation>,
    /// Acknowledged changes whose keys depend on the change, by revision.
    acknowledged_changes: BTreeMap<i64, (String, ChangeTrace)>,
    /// Operations of the records that each revision wrote.
    operations: BTreeMap<i64, BTreeSet<String>>,
    violations: Vec<Violation>,
    exemptions: Exemptions,
}

/// Clones share their state.
#[derive(Clone)]
pub struct Checker {
    judged: Arc<Mutex<CheckedRun>>,
    history: History,
    /// Knows the faults. Without an oracle, no fault excuses a late commit.
    facts: Facts,
    /// Maximum age of an observation that a plan uses.
    planned_on: Duration,
}

impl Checker {
    pub fn new(history: History) -> Self {
        let (judged, facts) = (Arc::default(), Facts::default());
        Self { judged, history, facts, planned_on: INTERVAL * PLANNED_ON }
    }

    #[must_use]
    pub fn with_facts(self, facts: Facts) -> Self {
        Self { facts, ..self }
    }

    #[must_use]
    pub fn with_poll_interval(self, interval: Duration) -> Self {
        Self { planned_on: interval.saturating_mul(PLANNED_ON), ..self }
    }

    /// Reads the store's history with its own client.
    pub async fn watch(self, store: StoreProcess) {
        follow_revisions(store, PREFIX, change_of, |revision, changes| {
            self.judge_revision(revision, changes)
        })
        .await;
    }

    /// As [`Self::watch`], for a copied store: `revision` and `entries` are its state before the first write of the
    /// run.
    pub async fn watch_from(self, revision: i64, entries: Stored, store: StoreProcess) {
        self.judged.lock().unwrap().clusters = Clusters::from_stored(entries);
        follow_revisions_from(revision + 1, store, PREFIX, change_of, |revision, changes| {
            self.judge_revision(revision, changes);
        })
        .await;
    }

    fn judge_revision(&self, revision: i64, changes: Vec<Change>) {
        let mut judged = self.judged.lock().unwrap();
        let CheckedRun { clusters, history, observed, operations, violations, exemptions, .. } = &mut *judged;
        for (key, entry) in &changes {
            let what = if entry.is_some() { "put" } else { "delete" };
            self.history.note("store", format_args!("{revision} {what} {key}"));
            history.entry(revision).or_default().insert(key.clone());
            let record = entry.as_ref().filter(|_| key.starts_with(keys::RECORDS));
            if let Some(Ok(record)) = record.map(|entry| serde_json::from_slice::<Record>(&entry.value)) {
                operations.entry(revision).or_default().insert(record.operation);
            }
        }
        let judge = ObservationJudge {
            observed,
            now: self.history.now(),
            planned_on: self.planned_on,
            is_troubled: &|since| self.facts.is_leading_troubled(since),
        };
        let ruled = clusters.observe(revision, &changes, |writer, judged_by| {
            judge.evaluate_cluster(writer, judged_by, exemptions)
        });
        for violation in &ruled.violations {
            self.history.note("checker", violation);
        }
        violations.extend(ruled.violations);
        ruled.judged.into_iter().for_each(|invariant| self.history.count_judgement(invariant));
    }

    /// Records a commit that an instance knows to be durable.
    pub fn note_acknowledged_write(&self, what: &str, revision: i64, epoch: i64) {
        let mut judged = self.judged.lock().unwrap();
        judged.acknowledged_writes.push(WrittenKey { revision, epoch });
        self.history.count_judgement(Id::I1);
        match trace_of_change(what) {
            Some(ChangeTrace::Key(key)) => {
                judged.acknowledged.entry(revision).or_default().insert(key.to_owned());
            }
            Some(trace @ (ChangeTrace::Below(_) | ChangeTrace::Record)) => {
                judged.acknowledged_changes.insert(revision, (what.to_owned(), trace));
            }
            // The other checker counts the judgement.
            Some(ChangeTrace::AtRoot) => return,
            None => {
                let what = format!("{what} was acknowledged at {revision}, and no judge knows its keys");
                judged.violations.push(Violation { invariant: Id::I9, what });
            }
        }
        self.history.count_judgement(Id::I9);
    }

    /// Records a commit that the leader of an instance refused: the decision is wrong even if nothing was written.
    pub fn record_refusal(&self, name: &str, violations: &[Violation]) {
        let named = violations.iter().map(|Violation { invariant, what }| Violation {
            invariant: *invariant,
            what: format!("{name} was about to commit this: {what}"),
        });
        self.judged.lock().unwrap().violations.extend(named);
    }

    fn note_observation(&self, instance: &'static str, addresses: BTreeSet<String>) {
        let now = self.history.now();
        let mut judged = self.judged.lock().unwrap();
        judged.observed.push_back((now, instance, addresses));
        let remembered = self.planned_on + REMEMBERED;
        while judged.observed.front().is_some_and(|(at, ..)| *at + remembered < now) {
            judged.observed.pop_front();
        }
    }

    #[must_use]
    pub fn has_findings(&self) -> bool {
        let judged = self.judged.lock().unwrap();
        !judged.violations.is_empty()
            || !check_one_writer(&judged.acknowledged_writes, judged.clusters.terms()).is_empty()
    }

    /// Violations so far, without a comparison of acknowledged changes with the store's history: in a world whose
    /// history no judge reads, they are the commits that leaders refused, and changes with unknown names.
    #[must_use]
    pub fn known_violations(&self) -> Vec<Violation> {
        self.judged.lock().unwrap().violations.clone()
    }

    /// All violations, at the end of the run.
    pub fn finish(&self) -> Vec<Violation> {
        let mut judged = self.judged.lock().unwrap();
        let judged = &mut *judged;
        let mut violations = std::mem::take(&mut judged.violations);
        violations.extend(check_one_writer(&judged.acknowledged_writes, judged.clusters.terms()));
        violations.extend(check_no_lost_writes(&judged.acknowledged, &judged.history));
        violations.extend(judged.unshown_changes());
        violations
    }

    #[must_use]
    pub fn exemptions(&self) -> Exemptions {
        self.judged.lock().unwrap().exemptions.clone()
    }

    /// True if the newest cluster was made from the stored template, by the order of their revisions.
    #[must_use]
    pub fn is_template_applied(&self) -> bool {
        self.judged.lock().unwrap().clusters.is_template_applied()
    }

    pub fn current_cluster(&self) -> Option<Cluster> {
        self.judged.lock().unwrap().clusters.current_cluster()
    }
}

impl CheckedRun {
    /// Violations for changes that were acknowledged at a revision which does not contain them.
    fn unshown_changes(&self) -> impl Iterator<Item = Violation> {
        self.acknowledged_changes.iter().filter_map(|(revision, (what, trace))| {
            let shown = match trace {
                ChangeTrace::Below(prefix) => {
                    let keys = self.history.get(revision);
                    keys.is_some_and(|keys| keys.iter().any(|key| key.starts_with(*prefix)))
                }
                _ => self.operations.get(revision).is_some_and(|operations| operations.contains(what)),
            };
            let what = format!("{what} was acknowledged at {revision}, which does not show it");
            (!shown).then_some(Violation { invariant: Id::I9, what })
        })
    }
}

/// Time of an observation, the observing instance, and the addresses.
type RegistryObservation = (Duration, &'static str, BTreeSet<String>);

struct ObservationJudge<'a> {
    observed: &'a VecDeque<RegistryObservation>,
    now: Duration,
    /// Maximum age of an observation that a plan uses.
    planned_on: Duration,
    /// True if leader or store have a fault, or had one since the given time.
    is_troubled: &'a dyn Fn(Duration) -> bool,
}

impl ObservationJudge<'_> {
    /// Evaluates a cluster by each recent observation of its writer, and returns the fewest violations; `None` without a
    /// recent observation. An older observation counts if a fault since then explains the late commit.
    fn evaluate_cluster(
        &self,
        writer: Option<&str>,
        judged_by: ByObservation<'_>,
        exemptions: &mut Exemptions,
    ) -> Option<Vec<Violation>> {
        // A plan uses the observations of its own instance only.
        let own = || self.observed.iter().filter(|(_, by, _)| writer.is_none_or(|writer| writer == *by));
        let since = |age: Duration| own().filter(move |(at, ..)| *at + age >= self.now);
        let recent = since(self.planned_on + ON_ITS_WAY);
        let best = recent.map(|(_, _, observed)| judged_by(observed)).min_by_key(Vec::len);
        if best.as_ref().is_none_or(|wrong| !wrong.is_empty())
            && let Some((at, ..)) = since(self.planned_on + REMEMBERED)
                .filter(|(_, _, observed)| judged_by(observed).is_empty())
                .last()
            && (self.is_troubled)(*at)
        {
            exemptions.record_use(Exemption::LateCommit, self.now.saturating_sub(*at + self.planned_on));
            return Some(Vec::new());
        }
        best
    }
}

pub struct ReportingRegistry<R> {
    pub registry: R,
    /// Name of the requesting instance, the answers that it received, and the receiver of facts.
    pub heard: (&'static str, LastAnswers, Facts),
    pub checker: Checker,
    /// The instance's name for the judge of repairs, that judge, and the faults of the registry.
    pub repairs: Option<(&'static str, RepairJudge, FaultSwitch)>,
}

#[async_trait]
impl<R: Registry> Registry for ReportingRegistry<R> {
    async fn machines(
        &self,
        url: &str,
        variables: Option<&QueryVariables>,
    ) -> Result<RegistryMachines, RegistryError> {
        let fetched = self.registry.machines(url, variables).await;
        if let Ok(fetched) = &fetched {
            let is_reports = variables == Some(&default_variables());
            let question = if is_reports { RegistryQuestion::Reports } else { RegistryQuestion::Machines };
            let (instance, answers, facts) = &self.heard;
            let machines = answers.answer_to(question);
            if !is_reports {
                let addresses = machines.iter().map(|machine| machine.address.clone()).collect();
                self.checker.note_observation(instance, addresses);
            }
            facts.report(&Fact::Answered { instance: (*instance).to_owned(), question, machines });
            if let Some((name, judge, faults)) = &self.repairs
                && is_reports
            {
                judge.record_answer(name, fetched, &faults.present_faults());
            }
        }
        fetched
    }
}

#[cfg(test)]
mod tests {
    use madako_domain::store::Entry;
    use madako_judges::{ExemptionUse, FaultPlace, PromiseTerms};
    use serde_json::json;

    use super::*;
    use crate::run::terms_of_settings;
    use crate::world::ServiceSettings;

    fn put(revision: i64, key: &str, value: &serde_json::Value) -> Change {
        let value = value.to_string().into_bytes().into();
        let entry = Entry { value, create_revision: revision, mod_revision: revision, lease: 0 };
        (key.to_owned(), Some(entry))
    }

    /// A leader that writes a cluster of one node and notes the revision of the template that it used.
    fn makes(revision: i64, noted: i64) -> Vec<Change> {
        let cluster = json!({
            "name": "c", "service_subnet": "10.68.0.0/16",
            "nodes": [{"address": "10.0.0.1", "control_plane": true, "user": "u"}],
        });
        vec![
            put(revision, keys::CLUSTER, &cluster),
            put(revision, keys::CLUSTER_REVISION, &json!(noted)),
            put(revision, keys::LAST_PLAN, &json!({"epoch": 1})),
        ]
    }

    fn found(checker: &Checker) -> Vec<Id> {
        checker.judged.lock().unwrap().violations.iter().map(|violation| violation.invariant).collect()
    }

    /// Begins a history in which the leader observed a machine.
    fn observe_machine(checker: &Checker) {
        checker.judge_revision(1, vec![put(1, &format!("{}1", keys::LEADER), &json!("alpha"))]);
        checker.judge_revision(
            2,
            vec![put(2, keys::CONSTRAINTS, &json!({"control-plane-count": 1, "minimum-workers": 0}))],
        );
        checker.judge_revision(3, vec![put(3, keys::SABAKAN_TEMPLATE, &json!({}))]);
        checker.note_observation("\"alpha\"", ["10.0.0.1".to_owned()].into());
    }

    #[tokio::test(start_paused = true)]
    async fn late_commit_is_excused_only_after_a_fault() {
        let late = ExemptionUse { uses: 1, longest_seconds: Some(120) };
        let oracles: [fn(PromiseTerms, History) -> Facts; 2] = [Facts::for_terms, Facts::without_promises];
        for (new_facts, faulty) in oracles.into_iter().flat_map(|it| [(it, false), (it, true)]) {
            let (violations, used) =
                if faulty { (vec![], late) } else { (vec![Id::I6], ExemptionUse::default()) };
            let history = History::new();
            let facts = new_facts(terms_of_settings(&ServiceSettings::default()), history.clone());
            let checker = Checker::new(history).with_facts(facts.clone());
            let value = Some(Arc::from(&b"alpha"[..]));
            let leads = madako_judges::Change { key: format!("{}1", keys::LEADER), value };
            facts.report(&Fact::Stored { revision: 1, changes: vec![leads] });
            observe_machine(&checker);
            tokio::time::advance(Duration::from_secs(300)).await;
            if faulty {
                facts.report_strike(&FaultPlace::Store);
            }
            checker.judge_revision(4, makes(4, 3));
            assert_eq!(found(&checker), violations);
            let used_here = |(exemption, used)| (exemption == Exemption::LateCommit).then_some(used);
            assert_eq!(checker.exemptions().list_uses().into_iter().find_map(used_here), Some(used));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn acknowledged_change_must_show_in_its_revision() {
        let lost = |what: &str, key: &str, operation: &str| {
            let checker = Checker::new(History::new());
            checker.judge_revision(1, vec![put(1, &format!("{}1", keys::LEADER), &json!("alpha"))]);
            let value = json!({"id": "1", "status": "completed", "operation": operation, "targets": []});
            checker.judge_revision(2, vec![put(2, key, &value)]);
            checker.note_acknowledged_write(what, 2, 1);
            checker.finish().iter().any(|violation| violation.invariant == Id::I9)
        };
        let record = keys::record(1);
        for (what, key, operation) in [
            ("repair-execute", record.clone(), "repair-execute"),
            ("reboot-reboot", record.clone(), "reboot-reboot"),
            ("reboot-disown", record.clone(), "reboot-prepare"),
            ("reboot-running", keys::REBOOTS_RUNNING.to_owned(), ""),
            ("operation-begin", record.clone(), "etcd-restart"),
            ("upgrade-drained", keys::reboot(-1), ""),
            ("host-key", keys::host_key("10.0.0.1"), ""),
            ("phase", keys::STATUS.to_owned(), ""),
        ] {
            assert!(!lost(what, &key, operation), "{what}");
            assert!(lost(what, keys::REBOOTS_DISABLED, ""), "{what}");
        }
        assert!(lost("reboot-reboot", &record, "reboot-prepare"), "a record of another operation");
        assert!(lost("another-queue", &record, "another-queue"), "a name without a known key");
    }

    #[tokio::test(start_paused = true)]
    async fn late_commit_in_a_world_without_an_oracle_is_not_excused() {
        let checker = Checker::new(History::new());
        observe_machine(&checker);
        tokio::time::advance(Duration::from_secs(300)).await;
        checker.judge_revision(4, makes(4, 3));
        assert_eq!(found(&checker), [Id::I6]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_same_cluster_is_written_again_for_another_template_alone() {
        let checker = Checker::new(History::new());
        observe_machine(&checker);
        checker.judge_revision(4, makes(4, 3));
        checker.judge_revision(5, vec![put(5, keys::SABAKAN_TEMPLATE, &json!({}))]);
        // The first cluster after a template is made from it, whatever revision the leader notes.
        checker.judge_revision(6, makes(6, 4));
        assert_eq!(found(&checker), []);
        checker.judge_revision(7, makes(7, 4));
        assert_eq!(found(&checker), [Id::I12]);
    }
}
