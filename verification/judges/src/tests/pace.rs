//! Tests of the promises about periodic requests.

use serde_json::json;

use super::*;
use crate::FaultPlace;

fn polls(tape: &mut Tape, every: u64, question: RegistryQuestion) {
    for _ in 0..600 / every {
        tape.later(every).poll(question);
    }
}

#[test]
fn the_registry_is_asked_at_the_interval() {
    for (promise, question) in [
        (Promise::MachinePolls, RegistryQuestion::Machines),
        (Promise::ReportPolls, RegistryQuestion::Reports),
    ] {
        let often = |every: u64| {
            let mut tape = Tape::new();
            polls(&mut tape, every, question);
            tape.of(promise)
        };
        let (judged, broken) = often(60);
        assert!(judged > 5 && broken == 0, "{judged}, {broken}");
        assert!(often(20).1 > 0, "too often");
        assert!(often(100).1 > 0, "too rarely");
    }
}

#[test]
fn a_registry_that_is_cut_off_is_asked_less() {
    let mut tape = Tape::new();
    polls(&mut tape, 60, RegistryQuestion::Machines);
    let trouble = |begins| Fact::Troubled { place: FaultPlace::Registry, clock: false, begins };
    tape.tell(trouble(true));
    tape.later(200).tell(trouble(false));
    tape.later(50).poll(RegistryQuestion::Machines);
    tape.keeps(Promise::MachinePolls);
}

#[test]
fn each_metric_is_fetched_once_a_metrics_round() {
    let fetched = |pauses: &[u64]| {
        let mut tape = Tape::new();
        let cluster = json!({"spec": {"metrics": [{"name": "load"}]}, "status": {"state": "ONLINE"}});
        tape.put(&[("/kubernetes/clusters/n/c", cluster)]);
        for pause in pauses {
            tape.later(*pause)
                .tell(Fact::Fetched { instance: LEADER.to_owned(), what: "query=load".to_owned() });
        }
        tape
    };
    fetched(&[15; 20]).keeps(Promise::MetricRounds);
    fetched(&[15, 15, 40, 15]).breaks(Promise::MetricRounds);
    assert!(fetched(&[5; 20]).of(Promise::MetricRounds).1 > 0, "too often");
}

#[test]
fn the_health_of_a_machine_is_checked_once_an_interval() {
    let ask = |pauses: &[u64]| {
        let mut tape = Tape::new();
        tape.write_entry(0, "queued", 0, "waiting");
        for pause in pauses {
            tape.later(*pause).health(0, false);
        }
        tape
    };
    ask(&[60; 8]).keeps(Promise::HealthChecks);
    ask(&[60, 60, 100, 60]).breaks(Promise::HealthChecks);
    assert!(ask(&[10; 40]).of(Promise::HealthChecks).1 > 0, "too often");
}

#[test]
fn each_entry_of_a_machine_has_its_own_health_checks() {
    let machine = |entries: i64, checks: usize| {
        let mut tape = Tape::new();
        for index in 0..entries {
            let (_, mut entry) = tape.entry(index, "queued", 0, "waiting");
            entry["address"] = tape.entry(0, "queued", 0, "waiting").1["address"].clone();
            tape.put(&[(&keys::repair(index), entry)]);
        }
        for _ in 0..20 {
            tape.later(57);
            for _ in 0..checks {
                tape.later(1).health(0, false);
            }
        }
        tape
    };
    machine(3, 3).keeps(Promise::HealthChecks);
    assert!(machine(3, 6).of(Promise::HealthChecks).1 > 0, "too often");
    assert!(machine(1, 3).of(Promise::HealthChecks).1 > 0, "too often");
}

#[test]
fn polls_that_a_fault_held_back_are_not_too_many_where_requests_are_held_back() {
    let often = |holds_back: bool, calm: u64| {
        let mut tape = Tape::new();
        tape.oracle = Oracle::new(PromiseTerms { holds_back, ..TERMS });
        tape.tell(Fact::Troubled { place: FaultPlace::Registry, clock: false, begins: true });
        tape.later(300).tell(Fact::Troubled { place: FaultPlace::Registry, clock: false, begins: false });
        tape.later(calm);
        for _ in 0..20 {
            tape.later(1).poll(RegistryQuestion::Machines);
        }
        (tape.of(Promise::MachinePolls).1 > 0, tape.used(Exemption::Bunched))
    };
    let unused = ExemptionUse::default();
    assert_eq!(often(false, 1), (true, unused), "in the simulation requests are not held back");
    let bunched = ExemptionUse { uses: 12, longest_seconds: Some(21) };
    assert_eq!(often(true, 1), (false, bunched), "they arrive at once when the fault is over");
    assert_eq!(often(true, 700), (true, unused), "no fault held for long");
}
