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

fn fetch(tape: &mut Tape, what: &str) {
    tape.tell(Fact::Fetched { instance: LEADER.to_owned(), what: format!("query={what}") });
}

/// A cluster with these metrics.
fn uses(tape: &mut Tape, metrics: &[&str]) {
    let metrics: Vec<Value> = metrics.iter().map(|name| json!({ "name": name })).collect();
    let cluster = json!({"spec": {"metrics": metrics}, "status": {"state": "ONLINE"}});
    tape.put(&[("/kubernetes/clusters/n/c", cluster)]);
}

/// Rounds of 15 s with a fetch of each metric.
fn rounds(tape: &mut Tape, count: u32, what: &str) {
    for _ in 0..count {
        fetch(tape.later(15), what);
    }
}

fn fails(tape: &mut Tape, metric: &str) {
    tape.tell(Fact::Provided { metric: metric.to_owned(), good: false });
}

#[test]
fn each_metric_is_fetched_once_a_metrics_round() {
    let fetched = |pauses: &[u64]| {
        let mut tape = Tape::new();
        uses(&mut tape, &["load"]);
        for pause in pauses {
            fetch(tape.later(*pause), "load");
        }
        tape
    };
    fetched(&[15; 20]).keeps(Promise::MetricRounds);
    fetched(&[15, 15, 40, 15]).breaks(Promise::MetricRounds);
    assert!(fetched(&[5; 20]).of(Promise::MetricRounds).1 > 0, "too often");
}

#[test]
fn metric_that_is_never_fetched_again_breaks_its_promise() {
    judges(Promise::MetricRounds, |tape, spoiled| {
        uses(tape, &["load", "heat"]);
        rounds(tape, 10, "load|heat");
        fails(tape, "load");
        rounds(tape, 8, if spoiled { "heat" } else { "load|heat" });
    });
    // All fetches end, and those of a new leader do not begin.
    for leads in [false, true] {
        let mut tape = Tape::new();
        uses(&mut tape, &["load"]);
        rounds(&mut tape, 10, "load");
        if leads {
            tape.put(&[("leader//1", json!(null)), ("leader//2", json!("beta"))]);
        }
        for _ in 0..9 {
            tape.later(10).poll(RegistryQuestion::Machines);
        }
        tape.breaks(Promise::MetricRounds);
    }
}

#[test]
fn failing_metric_excuses_no_pause_of_another() {
    judges(Promise::MetricRounds, |tape, spoiled| {
        uses(tape, &["load", "heat"]);
        for round in 0..8 {
            fetch(tape.later(if spoiled && round == 4 { 40 } else { 15 }), "load|heat");
            fails(tape, "load");
        }
    });
}

#[test]
fn metric_without_a_definition_or_a_use_or_a_provider_is_not_awaited() {
    let pause = |change: &dyn Fn(&mut Tape)| {
        let mut tape = Tape::new();
        uses(&mut tape, &["load"]);
        rounds(&mut tape, 10, "load");
        change(&mut tape);
        for _ in 0..30 {
            tape.later(10).poll(RegistryQuestion::Machines);
        }
        tape.keeps(Promise::MetricRounds);
    };
    pause(&|tape| {
        tape.put(&[("/core/globalmetrics/load", json!(null))]);
        // The instance has not received the deletion.
        rounds(tape, 1, "load");
    });
    pause(&|tape| uses(tape, &[]));
    pause(&|tape| {
        tape.put(&[("/kubernetes/clusters/n/c", json!(null))]);
    });
    pause(&|tape| tape.tell(Fact::Troubled { place: FaultPlace::Providers, clock: false, begins: true }));
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
