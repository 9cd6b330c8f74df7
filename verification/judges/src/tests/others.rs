//! Tests of the promises about leadership, requests and placement.

use serde_json::json;

use super::*;

#[test]
fn a_leader_acts_within_its_lease_less_the_margin() {
    judges(Promise::LeaseMargin, |tape, spoiled| {
        let until = seconds(if spoiled { 55 } else { 54 });
        tape.tell(Fact::Permitted { instance: LEADER.to_owned(), until, lease_ends: seconds(60) });
    });
}

#[test]
fn pods_that_are_protected_are_not_deleted() {
    judges(Promise::ProtectedPods, |tape, spoiled| {
        tape.tell(Fact::EvictionTried { protected: true, refused: true });
        if spoiled {
            tape.kubernetes(KubernetesRequest::Delete, "n", Some("kept/a"), false);
        }
    });
}

#[test]
fn a_transaction_writes_when_all_of_its_conditions_hold() {
    judges(Promise::AllConditions, |tape, spoiled| {
        tape.tell(Fact::Transacted { held: true, written: true });
        tape.tell(Fact::Transacted { held: false, written: spoiled });
    });
}

#[test]
fn a_conditional_request_changes_the_version_that_it_names() {
    const KEY: &str = "/kubernetes/applications/n/a";
    judges(Promise::IfMatch, |tape, spoiled| {
        let version = tape.put(&[(KEY, json!(1))]);
        let other = tape.put(&[(KEY, json!(2))]);
        let tell = |tape: &mut Tape, version, status, after| {
            tape.tell(Fact::Conditional { key: KEY.to_owned(), version, status, after });
        };
        tell(tape, version, 412, None);
        let named = if spoiled { version } else { other };
        // The answer may be observed before its revision.
        tell(tape, named, 200, Some(other + 1));
        tape.put(&[(KEY, json!(3))]);
    });
}

fn cluster(state: &str) -> Value {
    json!({"metadata": {}, "spec": {"metrics": [{"name": "load"}]}, "status": {"state": state}})
}

#[test]
fn a_cluster_whose_metric_fails_turns_its_state_and_back() {
    const KEY: &str = "/kubernetes/clusters/n/c";
    let provided = |tape: &mut Tape, rounds: u32, good| {
        for _ in 0..rounds {
            tape.later(15).tell(Fact::Provided { metric: "load".to_owned(), good });
        }
    };
    let fails = |tape: &mut Tape, turns: bool| {
        tape.put(&[(KEY, cluster("ONLINE"))]);
        provided(tape, 4, true);
        provided(tape, 5, false);
        if turns {
            tape.put(&[(KEY, cluster("FAILING_METRICS"))]);
        }
        provided(tape, 10, false);
    };
    judges(Promise::FailingMetrics, |tape, spoiled| {
        fails(tape, !spoiled);
        provided(tape, 2, true);
        tape.put(&[(KEY, cluster("ONLINE"))]);
    });
    judges(Promise::FailingMetrics, |tape, spoiled| {
        fails(tape, true);
        provided(tape, 2, true);
        if !spoiled {
            tape.put(&[(KEY, cluster("ONLINE"))]);
        }
        provided(tape, 10, true);
    });
    let mut once = Tape::new();
    fails(&mut once, true);
    assert_eq!(once.of(Promise::FailingMetrics), (0, 0), "the turn back is missing");
}

#[test]
fn an_application_moves_to_the_better_cluster() {
    const KEY: &str = "/kubernetes/applications/n/a";
    judges(Promise::BetterCluster, |tape, spoiled| {
        let on = |name: &str| json!({"status": {"scheduled_to": {"name": name}}});
        tape.put(&[(KEY, on("poor")), ("/kubernetes/clusters/n/good", cluster("ONLINE"))]);
        tape.tell(Fact::Improved { application: KEY.to_owned(), cluster: "good".to_owned() });
        tape.later(100).poll(RegistryQuestion::Machines);
        // Two other applications move meanwhile, so that the move may take a minute longer.
        for other in ["b", "c"] {
            let key = format!("/kubernetes/applications/n/{other}");
            tape.put(&[(&key, on("poor"))]);
            tape.put(&[(&key, on("good"))]);
        }
        tape.later(if spoiled { 150 } else { 110 }).poll(RegistryQuestion::Machines);
        tape.put(&[(KEY, on("good"))]);
    });
}

#[test]
fn every_promise_has_a_name_of_its_own() {
    let names: std::collections::BTreeSet<&str> = Promise::ALL.iter().map(|promise| promise.name()).collect();
    assert_eq!(names.len(), Promise::ALL.len());
    assert!(Promise::ALL.iter().all(|promise| promise.text().ends_with('.')));
}
