//! Tests of the promises about the cluster.

use madako_domain::keys;
use madako_domain::machine::MachineState::{Retired, Retiring, Unreachable};
use serde_json::json;

use super::*;
use crate::FaultPlace;

const WORKERS: [u32; 12] = [4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

#[test]
fn nothing_is_planned_while_the_integration_is_disabled() {
    judges(Promise::IntegrationDisabled, |tape, spoiled| {
        tape.put(&[(keys::SABAKAN_DISABLED, json!(true))]);
        tape.later(10).template();
        if spoiled {
            tape.plan(&[1, 2, 3], &WORKERS, &[]);
        }
    });
    judges(Promise::IntegrationDisabled, |tape, spoiled| {
        tape.put(&[(keys::SABAKAN_DISABLED, json!(true))]);
        tape.later(10).template();
        // A request of an instance that had not learned of the switch.
        tape.later(40).poll(RegistryQuestion::Machines);
        tape.later(60);
        if spoiled {
            tape.poll(RegistryQuestion::Machines);
        }
    });
}

/// A poll that may have been sent before the integration was disabled.
#[test]
fn a_poll_that_a_fault_held_back_is_excused_where_faults_hold_requests_back() {
    let uses = |holds_back| {
        let mut tape = Tape::new();
        tape.oracle = Oracle::new(PromiseTerms { holds_back, ..TERMS });
        tape.put(&[("leader//1", json!(LEADER))]);
        tape.tell(Fact::Troubled { place: FaultPlace::Registry, clock: false, begins: true });
        tape.later(10).put(&[(keys::SABAKAN_DISABLED, json!(true))]);
        tape.later(100).tell(Fact::Troubled { place: FaultPlace::Registry, clock: false, begins: false });
        tape.poll(RegistryQuestion::Machines);
        (tape.of(Promise::IntegrationDisabled).1, tape.used(Exemption::HeldBack).uses)
    };
    assert_eq!([uses(true), uses(false)], [(0, 1), (1, 0)]);
}

#[test]
fn a_changed_template_is_applied() {
    judges(Promise::TemplateApplied, |tape, spoiled| {
        tape.later(10).template();
        let template = tape.revision;
        tape.later(50).poll(RegistryQuestion::Machines);
        if !spoiled {
            tape.plan_of(template, &[1, 2, 3], &WORKERS, &[]);
        }
        for _ in 0..2 {
            tape.later(60).poll(RegistryQuestion::Machines);
        }
        tape.later(20).poll(RegistryQuestion::Reports);
    });
}

#[test]
fn a_template_may_wait_for_a_control_plane_node_that_does_not_answer() {
    judges(Promise::TemplateApplied, |tape, spoiled| {
        let silent = if spoiled { 4 } else { 1 };
        tape.tell(Fact::Silent([(address(silent), tape.at)].into()));
        tape.later(10).template();
        let template = tape.revision;
        for _ in 0..4 {
            tape.later(60).poll(RegistryQuestion::Machines);
        }
        tape.tell(Fact::Silent(BTreeMap::new()));
        tape.later(10).poll(RegistryQuestion::Machines);
        tape.plan_of(template, &[1, 2, 3], &WORKERS, &[]);
        tape.later(60).poll(RegistryQuestion::Machines);
    });
}

#[test]
fn time_with_faults_of_a_place_or_without_a_leader_is_an_exemption() {
    let mut tape = Tape::new();
    for begins in [true, true, false, false] {
        tape.later(30).tell(Fact::Troubled { place: FaultPlace::Hosts, clock: false, begins });
    }
    assert_eq!(tape.used(Exemption::Unjudged), ExemptionUse { uses: 1, longest_seconds: Some(90) });
    tape.put(&[("leader//1", json!(null))]);
    tape.later(100).put(&[("leader//2", json!(LEADER))]);
    assert_eq!(tape.used(Exemption::Unjudged), ExemptionUse { uses: 2, longest_seconds: Some(100) });
}

#[test]
fn limit_that_begins_again_is_an_exemption() {
    let mut tape = Tape::new();
    tape.later(10).template();
    tape.later(50).poll(RegistryQuestion::Machines);
    assert_eq!(tape.used(Exemption::Restarted), ExemptionUse::default());
    for begins in [true, false] {
        tape.later(30).tell(Fact::Troubled { place: FaultPlace::Store, clock: false, begins });
    }
    assert_eq!(tape.used(Exemption::Restarted), ExemptionUse { uses: 1, longest_seconds: Some(80) });
}

#[test]
fn no_plan_is_made_on_an_old_answer() {
    judges(Promise::FreshObservation, |tape, spoiled| {
        tape.later(200).template();
        let template = tape.revision;
        if !spoiled {
            tape.later(10).poll(RegistryQuestion::Machines);
        }
        tape.plan_of(template, &[1, 2, 3], &WORKERS, &[]);
    });
}

#[test]
fn nothing_is_planned_on_an_answer_that_is_held() {
    judges(Promise::HeldRemoval, |tape, spoiled| {
        tape.missing = vec![14, 15];
        for poll in 0..3 {
            tape.later(60).poll(RegistryQuestion::Machines);
            if spoiled && poll == 1 {
                tape.template();
                tape.plan(&[1, 2, 3], &WORKERS[..10], &[]);
            }
        }
        // Three answers agree.
        if !spoiled {
            tape.plan(&[1, 2, 3], &WORKERS[..10], &[]);
        }
    });
}

#[test]
fn a_removal_that_an_operator_confirms_is_not_held() {
    let mut tape = Tape::new();
    tape.missing = vec![14, 15];
    tape.later(60).poll(RegistryQuestion::Machines);
    let vanished = [address(14), address(15)];
    tape.put(&[(keys::REMOVAL_GUARD, json!({"vanished": vanished, "agreed": 1, "confirmed": true}))]);
    tape.later(10).poll(RegistryQuestion::Machines);
    tape.plan(&[1, 2, 3], &WORKERS[..10], &[]);
    tape.keeps(Promise::HeldRemoval);
}

#[test]
fn plan_on_outdated_inputs_breaks_its_promise() {
    judges(Promise::CurrentInputs, |tape, spoiled| {
        tape.later(10).template();
        let first = tape.revision;
        tape.template();
        let template = if spoiled { first } else { tape.revision };
        tape.plan_of(template, &[1, 2, 3], &WORKERS, &[]);
    });
}

#[test]
fn an_unreachable_control_plane_node_is_replaced() {
    judges(Promise::ControlPlaneReplaced, |tape, spoiled| {
        tape.state(1, Unreachable);
        for _ in 0..4 {
            tape.later(60).poll(RegistryQuestion::Machines);
            if !spoiled {
                tape.plan_of(4, &[16, 2, 3], &WORKERS, &[]);
            }
        }
    });
    // Half of the control plane is unreachable: it is not replaced.
    let mut tape = Tape::new();
    tape.state(1, Unreachable);
    tape.state(2, Unreachable);
    for _ in 0..5 {
        tape.later(60).poll(RegistryQuestion::Machines);
    }
    assert_eq!(tape.of(Promise::ControlPlaneReplaced), (0, 0));
}

#[test]
fn a_plan_may_wait_for_an_operation_on_nodes_and_for_nothing_else() {
    judges(Promise::ControlPlaneReplaced, |tape, spoiled| {
        tape.state(1, Unreachable);
        let phase = if spoiled { "completed" } else { "etcd-maintain" };
        tape.put(&[(keys::STATUS, json!({"phase": phase, "timestamp": "2026-01-01T00:00:00Z"}))]);
        for _ in 0..4 {
            tape.later(60).poll(RegistryQuestion::Machines);
        }
        tape.put(&[(keys::STATUS, json!({"phase": "completed", "timestamp": "2026-01-01T00:04:00Z"}))]);
        tape.later(60).poll(RegistryQuestion::Machines);
        tape.plan_of(4, &[16, 2, 3], &WORKERS, &[]);
    });
}

#[test]
fn a_retired_worker_leaves_when_its_time_is_over_and_not_before() {
    let leaves = |tape: &mut Tape, after: Option<u32>| {
        tape.state(15, Retired);
        for minute in 1..=9 {
            tape.later(60).poll(RegistryQuestion::Machines);
            if after == Some(minute) {
                tape.plan_of(4, &[1, 2, 3], &WORKERS[..11], &[]);
            }
        }
    };
    judges(Promise::RetiredNotEarly, |tape, spoiled| leaves(tape, Some(if spoiled { 3 } else { 6 })));
    judges(Promise::RetiredLeaves, |tape, spoiled| leaves(tape, if spoiled { None } else { Some(6) }));
}

#[test]
fn a_node_has_the_taint_of_its_machines_state() {
    judges(Promise::StateTaint, |tape, spoiled| {
        tape.state(15, Retiring);
        for _ in 0..4 {
            tape.later(60).poll(RegistryQuestion::Machines);
            if !spoiled {
                tape.plan_of(4, &[1, 2, 3], &WORKERS, &[(15, "retiring")]);
            }
        }
    });
}
