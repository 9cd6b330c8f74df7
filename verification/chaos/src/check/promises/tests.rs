//! Tests of the check of promises: the facts of a small run, and a run that breaks promises.

use madako_domain::machine::MachineState;
use madako_faults::{Injection, InstanceTarget, Span, Target};
use madako_judges::{KubernetesRequest, Promise};

use super::*;
use crate::check::linear::{CallResult, ObjectOperation};
use crate::observer::Change as StoreHistory;
use crate::world::terms_of_settings;

const SECOND: Micros = 1_000_000;

fn line(second: i64, what: LineContent) -> Line {
    Line { at: second * 1_000_000, what }
}

fn polled(second: i64, machines: Option<Vec<MachineReport>>, spoilt: Option<CorruptAnswer>) -> Line {
    line(second, LineContent::Polled { question: RegistryQuestion::Machines, machines, spoilt })
}

fn healthy(address: &str) -> MachineReport {
    MachineReport {
        address: address.to_owned(),
        state: MachineState::Healthy,
        since: Duration::from_secs(104),
    }
}

/// A run that begins at 100 s; instance 2 leads from its second 3 on.
fn facts(lines: &[Line], events: &[(Micros, Event)], act: Act) -> Vec<(Micros, Fact)> {
    let leader = StoreHistory {
        key: "/cke/leader//a".to_owned(),
        value: Some(b"host".to_vec()),
        created: 5,
        modified: 5,
        lease: 1,
    };
    let injection = Injection {
        fault: 0,
        act,
        target: Target::Instance(InstanceTarget::Leader),
        begins: Span::from_seconds(1),
        ends: None,
    };
    let outside = RunObservations {
        lines,
        unix: OffsetDateTime::UNIX_EPOCH + Duration::from_secs(100),
        revisions: &[Revision { revision: 5, at: 3 * SECOND, changes: vec![leader] }],
        events,
        schedule: &Schedule { injections: vec![injection], events: Vec::new(), draws: Vec::new() },
        leading: &[(0, None), (3 * SECOND, Some(5))],
        epochs: &BTreeMap::from([(5, 2)]),
        clusters: vec!["a-b".to_owned(), "c".to_owned()],
    };
    outside.collect_facts()
}

fn fault(change: &'static str, on: &str) -> Event {
    let on = Some(on.to_owned());
    Event::Fault { injection: 0, what: String::new(), change, on, dropped: None, why: None }
}

#[test]
fn polls_and_values_count_for_the_leader_and_unusable_answers_do_not_count() {
    let lines = [
        polled(101, Some(vec![healthy("10.0.0.4")]), None),
        polled(104, None, None),
        polled(105, None, Some(CorruptAnswer::WrongTypes)),
        line(
            106,
            LineContent::Fetched {
                request: "/query=free_a_b|free_c".to_owned(),
                values: BTreeMap::from([("free_c".to_owned(), 1.0)]),
            },
        ),
    ];
    let facts = facts(&lines, &[], Act::Kill);
    let described: Vec<String> = facts
        .iter()
        .map(|(at, fact)| match fact {
            Fact::Stored { changes, .. } => {
                format!("{at} led by {}", String::from_utf8_lossy(changes[0].value.as_deref().unwrap()))
            }
            Fact::Polled { instance, .. } => format!("{at} {instance} polls"),
            Fact::Answered { instance, machines, .. } => {
                format!("{at} {instance} hears of {} since {:?}", machines[0].address, machines[0].since)
            }
            Fact::Fetched { instance, .. } => format!("{at} {instance} fetches"),
            Fact::Provided { metric, good } => format!("{at} {metric} {good}"),
            fact => format!("{fact:?}"),
        })
        .collect();
    assert_eq!(
        described,
        [
            "1000000 client polls",
            "1000000 client hears of 10.0.0.4 since 4s",
            "3000000 led by instance=2",
            "4000000 instance=2 polls",
            "4000000 instance=2 hears of 10.0.0.4 since 4s",
            "5000000 instance=2 polls",
            "6000000 instance=2 fetches",
            "6000000 free_a_b false",
            "6000000 free_c true",
        ]
    );
}

#[test]
fn command_without_a_reported_end_ends_at_its_deadline() {
    let acts = LineContent::Acts {
        number: 7,
        instance: 2,
        address: "10.0.0.4".to_owned(),
        waited: SECOND,
        gone: false,
        beside: std::collections::BTreeSet::new(),
    };
    let (begin, end) =
        (|facts: &[(Micros, Fact)]| facts[1].clone(), |facts: &[(Micros, Fact)]| facts[2].clone());
    let lost = facts(&[line(105, acts.clone())], &[], Act::Kill);
    assert!(matches!(begin(&lost), (at, Fact::Began { command: Command::Repair, .. }) if at == 4 * SECOND));
    assert!(matches!(end(&lost), (at, Fact::Ended { good: false, .. }) if at == 15 * SECOND));
    let acted = LineContent::Acted { number: 7, whole: true, ran: true };
    let whole = facts(&[line(105, acts), line(107, acted)], &[], Act::Kill);
    assert!(matches!(end(&whole), (at, Fact::Ended { good: true, .. }) if at == 7 * SECOND));
}

#[test]
fn facts_of_faults_name_the_faulty_places() {
    let places = |act, change, on: &str| -> Vec<(FaultPlace, bool, bool)> {
        let facts = facts(&[], &[(4 * SECOND, fault(change, on))], act);
        let place = |(_, fact): (Micros, Fact)| match fact {
            Fact::Troubled { place, clock, begins } => Some((place, clock, begins)),
            _ => None,
        };
        facts.into_iter().filter_map(place).collect()
    };
    let leader = || FaultPlace::Instance("instance=2".to_owned());
    assert_eq!(places(Act::Pause, "begins", "instance=2"), [(leader(), false, true)]);
    assert_eq!(places(Act::ClockJump, "ends", "instance=2"), [(leader(), true, false)]);
    assert_eq!(
        places(Act::Compact, "strikes", "store=1"),
        [(FaultPlace::Store, false, true), (FaultPlace::Store, false, false)]
    );
    let begin = |of: &[FaultPlace]| -> Vec<(FaultPlace, bool, bool)> {
        of.iter().map(|place| (place.clone(), false, true)).collect()
    };
    let [registry, hosts, kubernetes] = [FaultPlace::Registry, FaultPlace::Hosts, FaultPlace::Kubernetes];
    assert_eq!(places(Act::Corrupt, "begins", "registry"), begin(std::slice::from_ref(&registry)));
    assert_eq!(places(Act::Cut, "begins", "registry"), begin(&[registry.clone(), kubernetes.clone()]));
    assert_eq!(places(Act::Kill, "begins", "registry"), begin(&[registry, hosts, kubernetes]));
    assert_eq!(places(Act::Corrupt, "begins", "provider=prometheus"), [(FaultPlace::Providers, false, true)]);
    assert_eq!(places(Act::Kill, "begins", "rack=1"), []);
}

#[test]
fn outcomes_of_conditional_transactions_are_facts() {
    let facts = facts(&[], &[(4 * SECOND, Event::Transacted { held: false, written: true })], Act::Kill);
    assert_eq!(facts[1..], [(4 * SECOND, Fact::Transacted { held: false, written: true })]);
}

#[test]
fn a_write_with_if_match_compares_the_version() {
    let end = RequestEnd::Answered {
        status: 200,
        result: CallResult::Done { value: None, deleting: false },
        revision: Some(9),
    };
    let op = ObjectOperation::Write { value: 2, over: Some(1) };
    let object = "/kubernetes/applications/chaos/a".to_owned();
    let call = Call {
        client: 1,
        instance: 1,
        object: object.clone(),
        op,
        expected: Some(8),
        called: 0,
        returned: 1,
        end,
    };
    let named = Fact::Conditional { key: object, version: 8, status: 200, after: Some(9) };
    let facts = facts(&[], &[(4 * SECOND, Event::Call(call))], Act::Kill);
    assert_eq!(facts[1..], [(4 * SECOND, named), (4 * SECOND, Fact::ByUser { revision: 9 })]);
}

#[test]
fn broken_promise_is_reported() {
    let protected = |second: i64, action, refused| {
        let (node, pod) = ("10.0.0.4".to_owned(), Some(format!("{PROTECTED}/a")));
        line(100 + second, LineContent::Kubernetes { instance: 2, action, node, pod, refused })
    };
    let lines =
        [protected(3, KubernetesRequest::Evict, true), protected(4, KubernetesRequest::Delete, false)];
    let mut verdicts = Verdicts::default();
    let length = Duration::from_secs(60);
    let exemptions = judge_promises(
        &facts(&lines, &[], Act::Kill),
        (terms_of_settings(), length),
        Exemptions::default(),
        &mut verdicts,
    );
    assert_eq!(verdicts.verdict_of(Promise::ProtectedPods.name()).broken, 1);
    assert_eq!(verdicts.0.values().map(|verdict| verdict.broken).sum::<u64>(), 1, "{verdicts:?}");
    assert_eq!(exemptions, Exemptions::default());
}
