//! Tests of the report on the history of a run, and on versions of it with a violation.

use std::collections::BTreeSet;
use std::sync::Arc;

use madako_domain::cluster::{Cluster, Node};
use madako_domain::constraints::Constraints;
use madako_domain::machine::MachineState;
use madako_domain::placement::ownership;
use madako_judges::MachineReport;
use serde_json::{Value, json};

use super::*;
use crate::check::linear::{CallResult, ObjectOperation};
use crate::history::RequestEnd;
use crate::observer::Change;

/// Lease of the leader, whose epoch is 2.
const LEASE: i64 = 11;
/// The object of the clients.
const OBJECT: &str = "/kubernetes/applications/chaos/app-1-0";

fn put(key: &str, value: &str, lease: i64) -> Change {
    Change { key: key.to_owned(), value: Some(value.as_bytes().to_vec()), created: 0, modified: 0, lease }
}

fn application(value: u64) -> Change {
    let object = json!({
        "metadata": {"name": "app-1-0", "namespace": "chaos", "uid": "u", "labels": {"value": value.to_string()},
            "created": "2026-01-01T00:00:00Z", "modified": format!("2026-01-01T00:00:{value:02}Z")},
        "spec": {"manifest": [], "constraints": {"cluster": {"labels": []}}},
        "status": {},
    });
    put(OBJECT, &object.to_string(), 0)
}

/// A cluster of one control plane node and some workers, committed by an epoch.
fn cluster(workers: &[&str], epoch: i64) -> Vec<Change> {
    let node =
        |address: &str, control_plane| Node { address: address.to_owned(), control_plane, ..Node::default() };
    let nodes = workers.iter().map(|address| node(address, false)).chain([node("10.0.0.1", true)]).collect();
    let cluster = serde_json::to_string(&Cluster { nodes, ..Cluster::default() }).unwrap();
    let plan = json!({"epoch": epoch}).to_string();
    vec![
        put("/cke/cluster", &cluster, 0),
        put("/cke/cluster-revision", "5", 0),
        put("/cke/madako/decisions/cluster-plan", &plan, 0),
    ]
}

/// Revisions from 2 on, with the metadata of their keys.
fn revisions(all: Vec<Vec<Change>>) -> Vec<Revision> {
    let mut created: BTreeMap<String, i64> = BTreeMap::new();
    let revision = |(number, mut changes): (i64, Vec<Change>)| {
        for change in &mut changes {
            change.modified = number;
            change.created = *created.entry(change.key.clone()).or_insert(number);
        }
        Revision { revision: number, at: 10 * number.unsigned_abs(), changes }
    };
    (2..).zip(all).map(revision).collect()
}

fn call(at: Micros, op: ObjectOperation, value: Option<u64>, revision: Option<i64>) -> (Micros, Event) {
    let end =
        RequestEnd::Answered { status: 200, result: CallResult::Done { value, deleting: false }, revision };
    let object = OBJECT.to_owned();
    (
        at,
        Event::Call(Call {
            client: 1,
            instance: 1,
            object,
            op,
            expected: None,
            called: at - 1,
            returned: at,
            end,
        }),
    )
}

fn healthy(address: String) -> MachineReport {
    MachineReport { address, state: MachineState::Healthy, since: Duration::ZERO }
}

/// A leader commits a cluster; a client creates, reads and changes an application; then all is calm.
fn observed() -> Observations {
    let constraints = Constraints { control_plane_count: 1, minimum_workers: 1, ..Constraints::default() };
    let all = vec![
        vec![put("/cke/leader//b", "host", LEASE)],
        vec![put(ownership::KEY, PREFIX, LEASE)],
        vec![put("/cke/constraints", &serde_json::to_string(&constraints).unwrap(), 0)],
        vec![put("/cke/sabakan/template", "{}", 0)],
        cluster(&["10.0.0.2"], 2),
        vec![application(1)],
        vec![application(2)],
    ];
    let scenario =
        "name: sample\nworld: {clusters: 0, applications: 1}\nclients: [{kind: placement, rate: 1}]\n";
    let answered = ["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(str::to_owned);
    Observations {
        scenario: Scenario::parse(scenario).unwrap(),
        seed: 1,
        length: Span::from_seconds(10),
        network: NetworkCarrier::Namespaces,
        schedule: Schedule { injections: Vec::new(), events: Vec::new(), draws: Vec::new() },
        events: vec![
            call(71, ObjectOperation::Create { value: 1 }, None, Some(7)),
            call(73, ObjectOperation::Read, Some(1), Some(7)),
            call(81, ObjectOperation::Write { value: 2, over: Some(1) }, None, Some(8)),
            call(83, ObjectOperation::Read, Some(2), Some(8)),
        ],
        revisions: revisions(all),
        facts: Vec::new(),
        wrong: Vec::new(),
        leading: vec![(20, Some(2))],
        epochs: BTreeMap::from([(2, 1)]),
        refused: 0,
        gate: BTreeMap::new(),
        answered: RegistryAnswers {
            lists: vec![(0, BTreeSet::from(answered.clone()))],
            oldest: 1_000,
            last: (0, Arc::new(answered.map(healthy).into())),
        },
        registry_requests: RegistryRequests { answers: 1, changes: Vec::new() },
        looked: ProcessChecks { times: 5, ..ProcessChecks::default() },
        acts: Vec::new(),
        kubernetes: Vec::new(),
        began: 70,
        ended: 90,
        skipped: BTreeMap::new(),
        calm_after: Some(Span::from_seconds(1)),
        settings_allow: Span::from_seconds(30),
        unwritten: None,
    }
}

/// Outcome and violations, as the report prints them.
fn reported(seen: Observations) -> (Outcome, Vec<String>) {
    let report = make_report(seen);
    let passed = report.outcome == Outcome::Passed;
    assert_eq!(report.reason_of_outcome().is_empty(), passed, "{:?}", report.reason_of_outcome());
    assert_eq!(report.to_string().starts_with("# sample: passed\n"), passed, "{report}");
    let document: Value = serde_json::to_value(&report).unwrap();
    assert_eq!(document["outcome"] == "passed", passed, "{document}");
    let broken = report.verdicts.0.iter().filter(|(_, verdict)| verdict.broken > 0);
    (report.outcome, broken.map(|(name, _)| name.clone()).collect())
}

fn failed(broken: &str) -> (Outcome, Vec<String>) {
    (Outcome::Failed, vec![broken.to_owned()])
}

#[test]
fn an_unaltered_history_passes_the_checks() {
    assert_eq!(reported(observed()), (Outcome::Passed, Vec::new()));
}

#[test]
fn a_run_with_an_answer_that_is_not_linearizable_does_not_pass() {
    let mut doctored = observed();
    *doctored.events.last_mut().unwrap() = call(83, ObjectOperation::Read, Some(1), Some(7));
    assert_eq!(reported(doctored), failed("linearizable"));
}

#[test]
fn a_run_that_loses_an_acknowledged_write_does_not_pass() {
    let mut doctored = observed();
    doctored.revisions.last_mut().unwrap().changes.clear();
    assert_eq!(reported(doctored), failed("I9"));
}

#[test]
fn a_run_with_a_write_of_a_second_leader_does_not_pass() {
    // A second instance is a candidate during the first one's term, and writes without having been elected.
    let doctored = |epoch| {
        let mut doctored = observed();
        let mut all: Vec<Vec<Change>> =
            doctored.revisions.into_iter().map(|revision| revision.changes).collect();
        all.push(vec![put("/cke/leader//c", "other", LEASE + 1)]);
        all.push(cluster(&["10.0.0.3"], epoch));
        doctored.revisions = revisions(all);
        doctored
    };
    assert_eq!(reported(doctored(9)), failed("I1"));
    assert_eq!(reported(doctored(2)), (Outcome::Passed, Vec::new()), "the first one may");
}

#[test]
fn watch_with_a_value_that_never_existed_fails() {
    let follower = 0;
    let item =
        |value| -> Value { serde_json::from_slice(application(value).value.as_deref().unwrap()).unwrap() };
    let watched = |value| {
        let mut doctored = observed();
        let listed = |requested_at, value| {
            (requested_at, Event::Listed { follower, requested_at, answer: json!({"items": [item(value)]}) })
        };
        doctored.events.extend([
            (74, Event::Opened { follower, instance: 1, requested_at: 74 }),
            listed(75, 1),
            (82, Event::WatchLine { follower, line: json!({"type": "MODIFIED", "object": item(value)}) }),
            listed(85, 2),
            (89, Event::Closed { follower, why: None }),
        ]);
        doctored
    };
    assert_eq!(reported(watched(2)), (Outcome::Passed, Vec::new()));
    assert_eq!(reported(watched(3)), failed("api-watches"));
}

#[test]
fn required_check_without_cases_fails() {
    let mut idle = observed();
    idle.length = Span::from_seconds(120);
    let report = make_report(idle);
    assert_eq!(report.outcome, Outcome::Failed);
    let idle = ["api-watches", "lists", "machine-polls", "metric-rounds", "report-polls"];
    assert_eq!(report.not_exercised, idle);
    let line = "- lists had nothing to judge, which this scenario is bound to give it\n";
    assert!(report.to_string().contains(line), "{report}");
    // A run of ten seconds may miss it by chance.
    assert_eq!(make_report(observed()).not_exercised, Vec::<String>::new());
}

#[test]
fn a_run_with_a_process_that_ended_by_itself_does_not_pass() {
    let mut doctored = observed();
    doctored.looked.ended.insert("instance-1 ended by itself: exit status: 101".to_owned());
    assert_eq!(reported(doctored), failed("processes"));
}

#[test]
fn a_run_in_which_the_service_changes_the_registry_does_not_pass() {
    let mut doctored = observed();
    doctored.registry_requests.changes.push("POST /graphql mutation".to_owned());
    assert_eq!(reported(doctored), failed("registry"));
}

#[test]
fn refused_or_empty_read_prevents_a_pass() {
    for result in [CallResult::Refused, CallResult::Done { value: None, deleting: false }] {
        let mut doctored = observed();
        let Some((_, Event::Call(call))) = doctored.events.last_mut() else { panic!("it is a call") };
        call.end = RequestEnd::Answered { status: 400, result, revision: None };
        assert_eq!(reported(doctored), failed("linearizable"), "{result:?}");
    }
}

fn fault(at: Micros, change: &'static str, dropped: Option<u64>, why: Option<&str>) -> (Micros, Event) {
    let (what, on) = ("cut store=1".to_owned(), Some("store=1".to_owned()));
    let why = why.map(str::to_owned);
    (at, Event::Fault { injection: 0, what, change, on, dropped, why })
}

/// A history with the two events of a fault.
fn with_fault(begin_and_end: [(Micros, Event); 2]) -> Observations {
    let mut observed = observed();
    observed.schedule.injections.push(madako_faults::Injection {
        fault: 0,
        act: madako_faults::Act::Cut,
        target: madako_faults::Target::Store(1),
        begins: Span::from_seconds(1),
        ends: Some(Span::from_seconds(2)),
    });
    observed.events.extend(begin_and_end);
    observed
}

#[test]
fn a_fault_without_effect_does_not_count() {
    for (dropped, counts) in [(None, 1), (Some(3), 1), (Some(0), 0)] {
        let report =
            make_report(with_fault([fault(84, "begins", None, None), fault(86, "ends", dropped, None)]));
        assert_eq!(report.counts.faults, counts, "{dropped:?}");
        let line = "cut store=1: did nothing, and does not count";
        assert_eq!(report.to_string().contains(line), counts == 0, "{report}");
    }
}

#[test]
fn fault_that_cannot_be_ended_is_reported_as_skipped() {
    let why = "the counters cannot be read";
    let mut doctored = with_fault([fault(84, "begins", None, None), fault(86, "skipped", None, Some(why))]);
    doctored.skipped.insert(0, why.to_owned());
    let report = make_report(doctored);
    assert_eq!(report.outcome, Outcome::Skipped);
    assert_eq!(report.faults[0].skipped.as_deref(), Some(why));
    assert!(report.to_string().contains(&format!("cut store=1: skipped, {why}")), "{report}");
}
