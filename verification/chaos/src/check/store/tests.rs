//! Tests of the check of the store's history: a valid history, and a violation of each rule.

use std::collections::BTreeMap;

use madako_domain::cluster::{Cluster, Node};
use madako_domain::record::{Record, RecordStatus};
use madako_domain::repair::{RepairQueueEntry, RepairStatus, RepairStepStatus};
use madako_judges::{ExemptionUse, FaultPlace};
use serde_json::json;
use time::OffsetDateTime;

use super::*;
use crate::observer::Change;

/// Lease of the leader, whose epoch is 2.
const LEASE: i64 = 11;

#[derive(Default)]
struct Story {
    revisions: Vec<Revision>,
    created: BTreeMap<String, i64>,
}

impl Story {
    /// A leader, constraints, a template, and a cluster of one control plane node and one worker.
    fn good() -> Self {
        let mut story = Self::default();
        story.write(vec![("/cke/leader//b", Some(b"host".to_vec()), LEASE)]);
        story.write(vec![(ownership::KEY, Some(PREFIX.as_bytes().to_vec()), LEASE)]);
        story.constrain(1, 1);
        story.write(vec![("/cke/sabakan/template", Some(b"{}".to_vec()), 0)]);
        story.cluster(&["10.0.0.1"], &["10.0.0.2"], 2);
        story
    }

    /// Adds a revision; the first has number 2, as in an empty store.
    fn write(&mut self, changes: Vec<(&str, Option<Vec<u8>>, i64)>) {
        let revision = self.revisions.len() as i64 + 2;
        let changes = changes
            .into_iter()
            .map(|(key, value, lease)| {
                let created = match &value {
                    Some(_) => *self.created.entry(key.to_owned()).or_insert(revision),
                    None => {
                        self.created.remove(key);
                        0
                    }
                };
                Change { key: key.to_owned(), value, created, modified: revision, lease }
            })
            .collect();
        self.revisions.push(Revision { revision, at: 0, changes });
    }

    fn put(&mut self, key: &str, value: &impl serde::Serialize) {
        let value = serde_json::to_vec(value).unwrap();
        self.write(vec![(&format!("{PREFIX}{key}"), Some(value), 0)]);
    }

    fn constrain(&mut self, control_plane_count: u32, minimum_workers: u32) {
        let constraints = Constraints { control_plane_count, minimum_workers, ..Constraints::default() };
        self.put(keys::CONSTRAINTS, &constraints);
    }

    fn cluster(&mut self, control_plane: &[&str], workers: &[&str], epoch: i64) {
        let node = |address: &&str, control_plane| Node {
            address: (*address).to_owned(),
            control_plane,
            ..Node::default()
        };
        let nodes = control_plane.iter().map(|address| node(address, true));
        let nodes = nodes.chain(workers.iter().map(|address| node(address, false))).collect();
        let cluster = serde_json::to_vec(&Cluster { nodes, ..Cluster::default() }).unwrap();
        let plan = json!({"epoch": epoch}).to_string().into_bytes();
        self.write(vec![
            ("/cke/cluster", Some(cluster), 0),
            ("/cke/cluster-revision", Some(b"5".to_vec()), 0),
            ("/cke/madako/decisions/cluster-plan", Some(plan), 0),
        ]);
    }

    fn repair(&mut self, index: i64, address: &str) {
        let entry = RepairQueueEntry {
            index,
            status: RepairStatus::Processing,
            step_status: RepairStepStatus::Watching,
            ..RepairQueueEntry::new("unreachable", "t", address)
        };
        self.put(&keys::repair(index), &entry);
    }

    fn record(&mut self, id: i64) {
        let record = Record {
            status: RecordStatus::Running,
            ..Record::new(id, "repair", Vec::new(), OffsetDateTime::UNIX_EPOCH)
        };
        self.put(&keys::record(id), &record);
    }

    /// Names of the violations if the registry answered with these machines.
    fn broken_with(&self, answered: &[&str]) -> Vec<String> {
        self.broken_at_the_end(&[(0, answered)], false)
    }

    /// Names of the violations if the registry answered at these times.
    fn broken_at_the_end(&self, answered: &[(Micros, &[&str])], calm: bool) -> Vec<String> {
        let (verdicts, _excused) = self.judged(&healthy(answered), &[], calm);
        broken_of(verdicts)
    }

    /// The verdicts and exemptions if instance 1 leads all the time, and the store has faults at these times.
    fn judged(&self, answered: &RegistryAnswers, faults: &[Micros], calm: bool) -> (Verdicts, Exemptions) {
        let value = Some(Arc::from(&b"instance=1"[..]));
        let change = madako_judges::Change { key: "leader//b".to_owned(), value };
        let mut facts = vec![(0, Fact::Stored { revision: 2, changes: vec![change] })];
        facts.extend(faults.iter().flat_map(|at| {
            let fault = |begins| Fact::Troubled { place: FaultPlace::Store, clock: false, begins };
            [(*at, fault(true)), (*at, fault(false))]
        }));
        let mut verdicts = Verdicts::default();
        let observed = StoreObservations {
            revisions: &self.revisions,
            answered,
            leading: &[(0, Some(2))],
            epochs: &BTreeMap::from([(2, 1)]),
            facts: &facts,
        };
        let excused = judge_store(observed, calm, &mut verdicts);
        (verdicts, excused)
    }

    fn broken(&self) -> Vec<String> {
        self.broken_with(&["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"])
    }
}

/// Answers at these times with healthy machines. A plan may be made from the last 10 us.
fn healthy(answered: &[(Micros, &[&str])]) -> RegistryAnswers {
    let list =
        |(at, list): &(Micros, &[&str])| (*at, list.iter().map(|address| (*address).to_owned()).collect());
    let (at, last) = answered.last().copied().unwrap_or_default();
    let machine = |address: &&str| MachineReport {
        address: (*address).to_owned(),
        state: MachineState::Healthy,
        since: Duration::ZERO,
    };
    RegistryAnswers {
        lists: answered.iter().map(list).collect(),
        oldest: 10,
        last: (at, Arc::new(last.iter().map(machine).collect())),
    }
}

fn broken_of(verdicts: Verdicts) -> Vec<String> {
    let broken = verdicts.0.into_iter().filter(|(_, verdict)| verdict.broken > 0);
    broken.map(|(name, _)| name).collect()
}

#[test]
fn a_valid_history_breaks_no_promise_and_exercises_many() {
    let mut story = Story::good();
    story.cluster(&["10.0.0.1"], &["10.0.0.2", "10.0.0.3"], 2);
    story.write(vec![("/cke/madako/placement/moves", Some(b"[]".to_vec()), 0)]);
    story.repair(0, "10.0.0.2");
    story.record(1);
    assert_eq!(story.broken(), Vec::<String>::new());
    let (mut verdicts, excused) = story.judged(&RegistryAnswers::default(), &[], false);
    assert_eq!(excused, Exemptions::default());
    for (name, judged) in
        [("I1", 3), ("I3", 2), ("I5", 1), ("I6", 0), ("I7", 2), ("I8", 0), ("I10", 2), ("I12", 2)]
    {
        assert_eq!(verdicts.verdict_of(name).judged, judged, "{name}");
    }
    assert_eq!(verdicts.verdict_of("I6").broken, 5, "without an answer nothing is honest");
}

#[test]
fn only_a_repair_of_a_control_plane_node_is_a_case_of_i8() {
    let judged = |address| {
        let mut story = Story::good();
        story.repair(0, address);
        let (mut verdicts, _excused) = story.judged(&RegistryAnswers::default(), &[], false);
        verdicts.verdict_of("I8").judged
    };
    assert_eq!(["10.0.0.1", "10.0.0.2"].map(judged), [1, 0]);
}

#[test]
fn a_cluster_that_breaks_a_rule_is_found() {
    for (control_plane, workers, found) in [
        (vec!["10.0.0.1", "10.0.0.3"], vec!["10.0.0.2"], "I3"),
        (vec!["10.0.0.1"], vec![], "I4"),
        (vec!["10.0.0.3"], vec!["10.0.0.2"], "I5"),
        (vec!["10.0.0.1"], vec!["10.0.0.9"], "I6"),
        (vec!["10.0.0.1"], vec!["10.0.0.2"], "I12"),
    ] {
        let mut story = Story::good();
        story.cluster(&control_plane, &workers, 2);
        assert_eq!(story.broken(), [found]);
    }
}

#[test]
fn cluster_committed_without_leadership_is_found() {
    let mut story = Story::good();
    story.cluster(&["10.0.0.1"], &["10.0.0.3"], 4);
    assert_eq!(story.broken(), ["I1"], "there is no such epoch");
    let mut story = Story::good();
    story.write(vec![("/cke/leader//b", None, 0)]);
    story.cluster(&["10.0.0.1"], &["10.0.0.3"], 2);
    assert_eq!(story.broken(), ["I1"], "its epoch is over");
}

#[test]
fn placement_decided_without_ownership_is_found() {
    for spoil in [
        (ownership::KEY, Some(b"/other/".to_vec()), LEASE),
        (ownership::KEY, Some(PREFIX.as_bytes().to_vec()), LEASE + 1),
        (ownership::KEY, None, 0),
        ("/cke/leader//b", None, 0),
    ] {
        let mut story = Story::good();
        story.write(vec![spoil]);
        story.write(vec![("/cke/madako/placement/moves", Some(b"[]".to_vec()), 0)]);
        assert_eq!(story.broken(), ["I1"]);
    }
}

#[test]
fn unchanged_guard_state_is_not_written() {
    let mut story = Story::good();
    story.put(keys::REMOVAL_GUARD, &json!({"agreed": 1}));
    assert_eq!(story.broken(), Vec::<String>::new());
    story.put(keys::REMOVAL_GUARD, &json!({"agreed": 1}));
    assert_eq!(story.broken(), ["I12"]);
}

#[test]
fn repairs_that_break_a_rule_are_found() {
    let mut twice = Story::good();
    twice.repair(0, "10.0.0.2");
    twice.repair(1, "10.0.0.2");
    assert_eq!(twice.broken(), ["I7"]);
    let mut records = Story::good();
    records.record(1);
    records.record(2);
    assert_eq!(records.broken(), ["I10"]);
    let mut gap = Story::good();
    gap.record(2);
    assert_eq!(gap.broken(), ["I10"]);
    let mut servers = Story::default();
    servers.write(vec![("/cke/leader//b", Some(b"host".to_vec()), LEASE)]);
    servers.constrain(2, 1);
    servers.cluster(&["10.0.0.1", "10.0.0.3"], &["10.0.0.2"], 2);
    servers.repair(0, "10.0.0.1");
    servers.repair(1, "10.0.0.3");
    assert_eq!(servers.broken(), ["I8"]);
}

#[test]
fn a_cluster_of_an_old_answer_or_of_one_that_comes_later_is_found() {
    let mut story = Story::good();
    story.cluster(&["10.0.0.1"], &["10.0.0.3"], 2);
    story.revisions.last_mut().unwrap().at = 100;
    let (before, after): (&[&str], &[&str]) = (&["10.0.0.1", "10.0.0.2"], &["10.0.0.1", "10.0.0.3"]);
    let when = |at| story.broken_at_the_end(&[(0, before), (at, after)], false);
    assert_eq!(when(90), Vec::<String>::new());
    assert_eq!(when(89), ["I6"], "it is too old");
    assert_eq!(when(101), ["I6"], "it was not there yet");
}

#[test]
fn late_cluster_is_excused_only_after_a_fault() {
    let mut story = Story::good();
    story.cluster(&["10.0.0.1"], &["10.0.0.3"], 2);
    story.revisions.last_mut().unwrap().at = 100;
    let answers: [(Micros, &[&str]); 2] =
        [(0, &["10.0.0.1", "10.0.0.2", "10.0.0.3"]), (95, &["10.0.0.1", "10.0.0.2"])];
    let late = |faults: &[Micros]| {
        let (verdicts, excused) = story.judged(&healthy(&answers), faults, false);
        let late = excused.list_uses().into_iter().find(|(it, _)| *it == Exemption::LateCommit);
        (broken_of(verdicts), late.map(|(_, used)| used))
    };
    assert_eq!(late(&[]), (vec!["I6".to_owned()], Some(ExemptionUse::default())));
    assert_eq!(late(&[101]), late(&[]), "the fault came later");
    let used = ExemptionUse { uses: 1, longest_seconds: Some(0) };
    assert_eq!(late(&[50]), (Vec::new(), Some(used)));
}

#[test]
fn unchanged_cluster_needs_another_template_despite_its_noted_revision() {
    let mut story = Story::good();
    story.write(vec![("/cke/sabakan/template", Some(b"{\"name\": \"b\"}".to_vec()), 0)]);
    story.cluster(&["10.0.0.1"], &["10.0.0.2"], 2);
    assert_eq!(story.broken(), Vec::<String>::new());
    // The cluster notes the same revision as before, which is not the template's.
    story.cluster(&["10.0.0.1"], &["10.0.0.2"], 2);
    assert_eq!(story.broken(), ["I12"]);
}

#[test]
fn retired_worker_may_stay_until_its_time_is_over() {
    let all: (Micros, &[&str]) = (0, &["10.0.0.1", "10.0.0.2"]);
    let retired = |seconds: u64| {
        let mut answers = healthy(&[all]);
        let (at, machines) = &mut answers.last;
        *at = seconds * 1_000_000;
        Arc::make_mut(machines)[1].state = MachineState::Retired;
        broken_of(Story::good().judged(&answers, &[], true).0)
    };
    assert_eq!(retired(300), Vec::<String>::new());
    assert_eq!(retired(400), ["I12"]);
}

#[test]
fn quiescent_system_has_finished_its_work() {
    let all: (Micros, &[&str]) = (0, &["10.0.0.1", "10.0.0.2"]);
    let mut story = Story::good();
    assert_eq!(story.broken_at_the_end(&[all], true), Vec::<String>::new());
    story.repair(0, "10.0.0.2");
    assert_eq!(story.broken_at_the_end(&[all], true), ["I12"], "a repair is left in the middle");
    let one: (Micros, &[&str]) = (0, &["10.0.0.1"]);
    assert_eq!(Story::good().broken_at_the_end(&[all, one], true), ["I12"], "a node is no machine");
    let mut story = Story::good();
    story.write(vec![("/cke/sabakan/template", Some(b"{\"name\": \"b\"}".to_vec()), 0)]);
    assert_eq!(story.broken_at_the_end(&[all], true), ["I12"], "the template is not applied");
    let mut story = Story::good();
    story.constrain(1, 2);
    assert_eq!(story.broken_at_the_end(&[all], true), ["I12"], "a worker is missing");
    assert_eq!(story.broken_at_the_end(&[all], false), Vec::<String>::new());
    assert_eq!(Story::default().broken_at_the_end(&[all], true), ["I12"], "there is no cluster");
}
