use std::sync::Arc;

use bytes::Bytes;
use madako_domain::observation::Query;
use madako_domain::store::{Condition, Entry};

use super::*;
use crate::machines::{holds_at, machine, now};

fn state(values: &[(&str, &str)]) -> ClusterState {
    let entry = |(at, (key, value)): (usize, &(&str, &str))| {
        let revision = i64::try_from(at).unwrap() + 1;
        let value = Bytes::from((*value).to_owned());
        ((*key).to_owned(), Entry { value, create_revision: revision, mod_revision: revision, lease: 0 })
    };
    ClusterState::decode(100, &values.iter().enumerate().map(entry).collect(), None)
}

const OPEN: (&str, &str) = (keys::CONSTRAINTS, r#"{"maximum-repair-queue-entries":200}"#);
const URL: (&str, &str) = (keys::SABAKAN_URL, "http://10.0.0.1/graphql");

fn reports(machines: Vec<Machine>) -> Reports {
    let query = Query { url: 1, variables: 0 };
    Reports { machines: Arc::new(machines), at: now(), received: Monotonic::now(), query, revision: 100 }
}

const INTERVAL: Duration = Duration::from_secs(60);

fn decided_at(state: &ClusterState, reports: &Reports, now: Monotonic) -> Option<Decision> {
    let hold = HoldSettings::default();
    let came = (reports.at, Some(reports.received));
    let times =
        Times::from_answer(&reports.machines, came, Some(&hold), &readable_holds(state), &Times::default());
    decide(state, reports, (&times, &RemovedEntries::default()), Some(&hold), (INTERVAL, now))
}

fn decided(state: &ClusterState, reports: &Reports) -> Option<Decision> {
    decided_at(state, reports, reports.received)
}

#[test]
fn entries_are_added_with_the_next_numbers_and_compare_their_evidence() {
    let state = state(&[URL, OPEN, (keys::REPAIRS_WRITE_INDEX, "7")]);
    let decision = decided(&state, &reports(vec![machine(1, 1, 9.0), machine(2, 2, 9.0)])).unwrap();
    let change = change(&state, &decision).unwrap();
    assert_eq!(change.what, "repair-request");
    let indices: Vec<i64> = change
        .writes
        .iter()
        .map(|write| match write {
            RepairWrite::Added(entry) => entry.index,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(indices, [7, 8]);
    for (key, revision) in
        [(keys::REPAIRS_WRITE_INDEX, 3), (keys::CONSTRAINTS, 2), (keys::AUTO_REPAIR_DISABLED, 0)]
    {
        let compared = Condition::Unchanged { key: key.to_owned(), revision };
        assert!(change.conditions.contains(&compared), "{key}: {:?}", change.conditions);
    }
}

#[test]
fn many_entries_are_added_in_several_changes() {
    let many = (1..=120).map(|id| machine(id, i64::from(id), 9.0)).collect();
    let state = state(&[URL, OPEN]);
    let decision = decided(&state, &reports(many)).unwrap();
    assert_eq!(decision.add.len(), 120);
    assert_eq!(change(&state, &decision).unwrap().writes.len(), MOST_REQUESTS);
}

#[test]
fn a_hold_is_written_before_anything_is_added() {
    let mut machines: Vec<Machine> = (1..=3).map(|id| machine(id, 3, 9.0)).collect();
    machines.push(machine(4, 5, 9.0));
    let first = state(&[URL, OPEN]);
    let decision = decided(&first, &reports(machines.clone())).unwrap();
    let held = change(&first, &decision).unwrap();
    assert_eq!(held.what, "repair-hold");
    let compared = Condition::Unchanged { key: keys::repair_hold_key("3"), revision: 0 };
    assert!(held.conditions.contains(&compared), "{:?}", held.conditions);
    let [RepairWrite::Hold { rack, hold: Some(hold) }] = &held.writes[..] else { panic!("{held:?}") };
    assert_eq!(rack, "3");

    let stored = serde_json::to_string(hold).unwrap();
    let second = state(&[URL, OPEN, ("madako/repair/holds/3", &stored)]);
    let decision = decided(&second, &reports(machines.clone())).unwrap();
    let added = change(&second, &decision).unwrap();
    assert_eq!((added.what, added.writes.len()), ("repair-request", 1));
    // No machine is reported any more: the hold is deleted.
    let decision = decided(&second, &reports(vec![])).unwrap();
    let gone = change(&second, &decision).unwrap();
    assert_eq!(gone.writes, [RepairWrite::Hold { rack: "3".to_owned(), hold: None }]);
}

#[test]
fn an_unchanged_decision_writes_nothing() {
    let state = state(&[URL, (keys::CONSTRAINTS, "{}")]);
    let decision = decided(&state, &reports(vec![machine(1, 1, 9.0)])).unwrap();
    assert_eq!((decision.refused.len(), change(&state, &decision)), (1, None));
}

#[test]
fn nothing_is_decided_on_old_reports_or_on_the_answer_to_another_question() {
    let machines = vec![machine(1, 1, 9.0)];
    let good = state(&[URL, OPEN]);
    assert!(decided(&good, &reports(machines.clone())).is_some());
    let given = reports(machines);
    let later = given.received + INTERVAL * 3 + Duration::from_millis(1);
    assert_eq!(decided_at(&good, &given, later), None);
    for other in [
        vec![OPEN, URL],
        vec![URL, OPEN, (keys::AUTO_REPAIR_VARIABLES, "{}")],
        vec![URL, OPEN, (keys::AUTO_REPAIR_VARIABLES, "[")],
        vec![URL, OPEN, (keys::AUTO_REPAIR_DISABLED, "true")],
        vec![("x", ""), OPEN],
    ] {
        assert_eq!(decided(&state(&other), &given), None, "{other:?}");
    }
    let on = state(&[URL, OPEN, (keys::AUTO_REPAIR_DISABLED, "false"), (keys::SABAKAN_DISABLED, "true")]);
    assert!(decided(&on, &given).is_some(), "the integration for clusters is another switch");
}

#[test]
fn unreadable_input_stops_new_entries_but_not_holds() {
    let mut machines: Vec<Machine> = (1..=3).map(|id| machine(id, 3, 9.0)).collect();
    machines.push(machine(9, 1, 9.0));
    let given = reports(machines);
    for (key, value) in [
        ("repairs/data/0000000000000000", "["),
        ("repairs/write-index", "x"),
        ("reboots/data/0000000000000000", "["),
        ("madako/repair/holds/4", "["),
        ("cluster", "["),
        (keys::CONSTRAINTS, "["),
    ] {
        let state = state(&[URL, if key == OPEN.0 { ("x", "") } else { OPEN }, (key, value)]);
        assert_eq!(first_unreadable_key(&state), Some(key));
        let decision = decided(&state, &given).unwrap();
        assert_eq!(decision.stop, Some(AdditionStop::Unreadable { key: key.to_owned() }));
        assert_eq!((&decision.add[..], &decision.refused[..]), (&[][..], &[][..]));
        let held = change(&state, &decision).unwrap();
        let [RepairWrite::Hold { rack, hold: Some(hold) }] = &held.writes[..] else { panic!("{held:?}") };
        assert_eq!((rack.as_str(), hold.machines().len()), ("3", 3), "{key}");
    }
}

#[test]
fn unreadable_hold_is_not_overwritten() {
    let given = reports((1..=3).map(|id| machine(id, 3, 9.0)).collect());
    let state = state(&[URL, OPEN, ("madako/repair/holds/3", "[")]);
    let decision = decided(&state, &given).unwrap();
    assert_eq!(change(&state, &decision), None);
}

#[test]
fn while_it_is_switched_off_a_held_rack_is_followed_to_its_recovery_and_nothing_is_added() {
    const OFF: (&str, &str) = (keys::AUTO_REPAIR_DISABLED, "true");
    let three: Vec<Machine> = (1..=3).map(|id| machine(id, 3, 9.0)).collect();
    let settings = HoldSettings::default();
    let holds = holds_at(&three, Some(&settings), &Holds::new(), now());
    let held = serde_json::to_string(&holds["3"]).unwrap();
    let mut released = Hold::clone(&holds["3"]);
    released.release();
    let released = serde_json::to_string(&released).unwrap();
    let stored = [URL, OPEN, OFF, ("madako/repair/holds/3", &held), ("madako/repair/holds/9", &released)];
    let off = state(&stored);
    assert_eq!((racks_held(&off, Some(&settings)), racks_held(&off, None)), (1, 0));

    // Another rack fails as a whole, and one machine alone.
    let mut others: Vec<Machine> = (4..=6).map(|id| machine(id, 4, 9.0)).collect();
    others.push(machine(7, 5, 9.0));
    let decision = decided(&off, &reports([&three[..], &others].concat())).expect("a rack is held");
    assert!(decision.add.is_empty() && decision.refused.is_empty(), "{decision:?}");
    assert_eq!(change(&off, &decision), None, "nothing begins, and nothing else is touched");

    let decision = decided(&off, &reports([&three[..2], &others].concat())).unwrap();
    let gone = change(&off, &decision).unwrap();
    assert_eq!(gone.writes, [RepairWrite::Hold { rack: "3".to_owned(), hold: None }]);
    let compared = Condition::Unchanged { key: keys::AUTO_REPAIR_DISABLED.to_owned(), revision: 3 };
    assert!(gone.conditions.contains(&compared), "{:?}", gone.conditions);

    // Without held racks no lookup happens.
    assert_eq!(
        decided(&state(&[URL, OPEN, OFF, ("madako/repair/holds/9", &released)]), &reports(three)),
        None
    );
}
