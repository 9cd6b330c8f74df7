//! Tests of plans that remove nodes of missing machines, or enlarge, reduce or replace the control plane.

use madako_domain::machine::{Machine, MachineState};
use madako_domain::plan::{Action, Change, ChangeKind, Part, PlanErrorKind, PlanReason};

use crate::testing::{Site, machine, outcome, why_not};

/// Healthy machines `10.0.<rack>.<index>` of role `a`, four racks of four.
fn machines() -> Vec<Machine> {
    (0..4)
        .flat_map(|rack| (1..=4).map(move |index| machine(&format!("10.0.{rack}.{index}"), rack, "a")))
        .collect()
}

const CONTROL_PLANE: [&str; 3] = ["10.0.0.1", "10.0.1.1", "10.0.2.1"];

fn site(workers: &[&str]) -> Site {
    Site::new(machines()).with_constraints(3, 1, 0).with_cluster(&CONTROL_PLANE, workers)
}

#[test]
fn nodes_without_a_machine_leave_and_others_take_their_place() {
    let mut site = site(&["10.0.3.1", "10.0.3.2"]);
    site.remove("10.0.1.1");
    site.remove("10.0.3.1");
    let plan = site.plan().unwrap();
    assert_eq!(
        outcome(&plan),
        (Action::RemoveNonExistentNodes, vec!["10.0.0.1", "10.0.2.1", "10.0.1.2"], vec!["10.0.3.2"])
    );
    let change = |change, address: &str, part| Change { change, address: address.to_owned(), part };
    assert_eq!(
        plan.changes,
        [
            change(ChangeKind::Remove, "10.0.1.1", Part::ControlPlane),
            change(ChangeKind::Remove, "10.0.3.1", Part::Worker),
            change(ChangeKind::Add, "10.0.1.2", Part::ControlPlane),
        ]
    );
}

#[test]
fn loss_of_half_of_the_control_plane_needs_an_operator() {
    let gone = |control_plane: &[&str], gone: &[&str]| {
        let mut site = Site::new(machines()).with_cluster(control_plane, &["10.0.3.1"]);
        site.constraints.control_plane_count = u32::try_from(control_plane.len()).unwrap();
        for address in gone {
            site.remove(address);
        }
        site.plan().map(|plan| plan.action).map_err(|error| error.kind)
    };
    let five = ["10.0.0.1", "10.0.1.1", "10.0.2.1", "10.0.3.2", "10.0.0.2"];
    let removes = Ok(Some(Action::RemoveNonExistentNodes));
    let fails = Err(PlanErrorKind::TooManyNonExistent);
    assert_eq!(gone(&five[..1], &five[..1]), fails);
    assert_eq!(gone(&five[..2], &five[..1]), fails);
    assert_eq!(gone(&five[..3], &five[..1]), removes);
    assert_eq!(gone(&five[..3], &five[..2]), fails);
    assert_eq!(gone(&five[..4], &five[..2]), fails);
    assert_eq!(gone(&five, &five[..2]), removes);
    assert_eq!(gone(&five, &five[..3]), fails);
}

#[test]
fn an_action_that_cannot_be_filled_fails_and_no_later_rule_is_tried() {
    // A worker's machine is missing and there is no other machine; a taint would be due as well.
    let mut site = Site::new(machines()[..4].to_vec())
        .with_constraints(1, 3, 0)
        .with_cluster(&["10.0.0.1"], &["10.0.0.2", "10.0.0.3", "10.0.0.4"]);
    site.remove("10.0.0.4");
    site.machine("10.0.0.3").status.state = MachineState::Retiring;
    let error = site.plan().unwrap_err();
    assert_eq!(error.kind, PlanErrorKind::NotAvailable);
    let later = error
        .reasons
        .iter()
        .filter(|reason| reason.why == PlanReason::AfterFailureOf(Action::RemoveNonExistentNodes));
    assert_eq!(later.count(), 7);
}

#[test]
fn a_larger_control_plane_takes_unused_machines_first() {
    let site = site(&["10.0.3.1", "10.0.3.2"]).with_constraints(5, 1, 0);
    let plan = site.plan().unwrap();
    assert_eq!(
        outcome(&plan),
        (
            Action::IncreaseControlPlane,
            vec!["10.0.0.1", "10.0.1.1", "10.0.2.1", "10.0.3.3", "10.0.0.2"],
            vec!["10.0.3.1", "10.0.3.2"]
        )
    );
}

#[test]
fn workers_are_promoted_only_while_more_than_the_minimum_remain() {
    let mut site = Site::new(machines()[..6].to_vec()).with_constraints(3, 2, 0);
    site = site.with_cluster(&["10.0.0.1"], &["10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.1.1", "10.0.1.2"]);
    let plan = site.plan().unwrap();
    assert_eq!(
        outcome(&plan),
        (
            Action::IncreaseControlPlane,
            vec!["10.0.0.1", "10.0.1.1", "10.0.0.2"],
            vec!["10.0.0.3", "10.0.0.4", "10.0.1.2"]
        )
    );
    let promoted = |address: &str| {
        let address = address.to_owned();
        Change { change: ChangeKind::Promote, address, part: Part::ControlPlane }
    };
    assert_eq!(plan.changes, [promoted("10.0.1.1"), promoted("10.0.0.2")]);
    let error = site.with_constraints(5, 2, 0).plan().unwrap_err();
    assert_eq!(error.kind, PlanErrorKind::NotAvailable);
    assert!(error.message.contains("only minimum-workers, 2"), "{}", error.message);
}

#[test]
fn unhealthy_or_tainted_workers_are_not_promoted() {
    let mut site = Site::new(machines()[..4].to_vec())
        .with_constraints(2, 1, 0)
        .with_cluster(&["10.0.0.1"], &["10.0.0.2", "10.0.0.3", "10.0.0.4"]);
    site.machine("10.0.0.2").status.state = MachineState::Updating;
    site.taint("10.0.0.3", "example.com/broken");
    assert_eq!(outcome(&site.plan().unwrap()).1, ["10.0.0.1", "10.0.0.4"]);
    site.taint("10.0.0.4", "example.com/broken");
    assert_eq!(site.plan().unwrap_err().kind, PlanErrorKind::NotAvailable);
}

#[test]
fn smaller_control_plane_drops_the_lowest_scores_and_rescores_after_each() {
    let control_plane = ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.1.1", "10.0.1.2"];
    let mut site =
        Site::new(machines()).with_constraints(1, 1, 0).with_cluster(&control_plane, &["10.0.2.1"]);
    let plan = site.plan().unwrap();
    // Rack 0 has three nodes, so two of them leave; then each rack has two, and the lowest address leaves; and so on.
    assert_eq!(outcome(&plan).1, ["10.0.1.2"]);
    assert_eq!(outcome(&plan).2, ["10.0.2.1", "10.0.0.1", "10.0.0.2", "10.0.1.1", "10.0.0.3"]);
    // An unhealthy machine leaves first, whatever its rack.
    site.machine("10.0.1.2").status.state = MachineState::Updating;
    site.constraints.control_plane_count = 4;
    assert_eq!(outcome(&site.plan().unwrap()).1, control_plane[..4]);
}

#[test]
fn a_smaller_control_plane_s_nodes_leave_when_the_workers_are_at_their_maximum_and_no_worker_does() {
    let control_plane = ["10.0.0.1", "10.0.1.1", "10.0.2.1", "10.0.3.1", "10.0.0.2"];
    let site = Site::new(machines()).with_constraints(3, 1, 2).with_cluster(&control_plane, &["10.0.3.2"]);
    let plan = site.plan().unwrap();
    assert_eq!(
        outcome(&plan),
        (
            Action::DecreaseControlPlane,
            // Rack 0 had two: its lowest address leaves first, and then rack 0 has the lowest score of all.
            vec!["10.0.1.1", "10.0.2.1", "10.0.3.1"],
            vec!["10.0.3.2", "10.0.0.1"]
        )
    );
    assert_eq!((plan.changes[0].change, plan.changes[0].address.as_str()), (ChangeKind::Remove, "10.0.0.2"));
    let above = site.with_constraints(3, 1, 1).with_cluster(&control_plane, &["10.0.3.2", "10.0.3.3"]);
    assert_eq!(outcome(&above.plan().unwrap()).2, ["10.0.3.2", "10.0.3.3"]);
}

#[test]
fn the_last_control_plane_node_does_not_go() {
    let site = site(&["10.0.3.1"]).with_constraints(0, 1, 0);
    let error = site.plan().unwrap_err();
    assert_eq!(error.message, "control-plane-count is 0, but a cluster needs a control plane node");
}

#[test]
fn a_bad_control_plane_node_becomes_a_worker_and_an_unused_machine_takes_its_place() {
    for &state in MachineState::ALL {
        let mut site = site(&["10.0.3.1"]);
        site.machine("10.0.1.1").status.state = state;
        let plan = site.plan().unwrap();
        match state {
            MachineState::Healthy | MachineState::Updating | MachineState::Uninitialized => {
                assert_eq!(plan.action, None, "{state:?}");
            }
            _ => assert_eq!(
                outcome(&plan),
                (
                    Action::ReplaceControlPlane,
                    // The bad node no longer counts: rack 1 is as empty as rack 3.
                    vec!["10.0.0.1", "10.0.2.1", "10.0.1.2"],
                    vec!["10.0.3.1", "10.0.1.1"]
                )
            ),
        }
    }
}

#[test]
fn one_bad_node_is_replaced_at_a_time_the_first_of_the_configuration() {
    let mut site = site(&["10.0.3.1"]);
    site.current = site.clone().with_cluster(&["10.0.2.1", "10.0.1.1", "10.0.0.1"], &["10.0.3.1"]).current;
    site.machine("10.0.0.1").status.state = MachineState::Unreachable;
    site.machine("10.0.2.1").status.state = MachineState::Unreachable;
    let plan = site.step();
    assert_eq!(outcome(&plan).1, ["10.0.1.1", "10.0.0.1", "10.0.2.2"]);
    let plan = site.step();
    assert_eq!(outcome(&plan).1, ["10.0.1.1", "10.0.2.2", "10.0.0.2"]);
    assert_eq!(site.step().action, None);
}

#[test]
fn taints_that_are_not_tolerated_lead_to_a_replacement() {
    for (key, tolerated) in [
        ("node.kubernetes.io/not-ready", true),
        ("node.kubernetes.io/anything", true),
        ("cke.cybozu.com/state", true),
        ("cke.cybozu.com/master", true),
        ("example.com/tolerated", true),
        ("example.com/other", false),
        ("cke.cybozu.com/other", false),
        ("node.kubernetes.io", false),
    ] {
        let mut site = site(&["10.0.3.1"]);
        let mut template = site.template.cluster().clone();
        template.control_plane_tolerations = vec!["example.com/tolerated".to_owned()];
        site.template = madako_domain::template::Template::new(template).unwrap();
        site.current = site.clone().with_cluster(&CONTROL_PLANE, &["10.0.3.1"]).current;
        site.taint("10.0.2.1", key);
        let expected = if tolerated { None } else { Some(Action::ReplaceControlPlane) };
        assert_eq!(site.plan().unwrap().action, expected, "{key}");
    }
}

#[test]
fn a_single_node_is_never_replaced_nor_one_of_two() {
    for (control_plane, workers) in [(&CONTROL_PLANE[..1], 1), (&CONTROL_PLANE[..2], 1)] {
        let size = u32::try_from(control_plane.len()).unwrap();
        let mut site = Site::new(machines())
            .with_constraints(size, workers, 0)
            .with_cluster(control_plane, &["10.0.3.1"]);
        site.machine(control_plane[0]).status.state = MachineState::Unreachable;
        let plan = site.plan().unwrap();
        assert_eq!(plan.action, None);
        let nodes = u64::from(size);
        assert_eq!(
            why_not(&plan, Action::ReplaceControlPlane),
            [&PlanReason::BadState(MachineState::Unreachable), &PlanReason::TooFewToReplace { nodes }]
        );
    }
}

#[test]
fn without_an_unused_machine_a_worker_is_promoted_while_the_demoted_node_counts_as_worker() {
    let mut site = Site::new(machines()[..4].to_vec())
        .with_constraints(3, 1, 0)
        .with_cluster(&["10.0.0.1", "10.0.0.2", "10.0.0.3"], &["10.0.0.4"]);
    site.machine("10.0.0.2").status.state = MachineState::Unhealthy;
    assert_eq!(
        outcome(&site.plan().unwrap()),
        (Action::ReplaceControlPlane, vec!["10.0.0.1", "10.0.0.3", "10.0.0.4"], vec!["10.0.0.2"])
    );
}

#[test]
fn a_replacement_that_cannot_be_found_fails() {
    let mut site = Site::new(machines()[..4].to_vec())
        .with_constraints(3, 1, 0)
        .with_cluster(&["10.0.0.1", "10.0.0.2", "10.0.0.3"], &["10.0.0.4"]);
    site.machine("10.0.0.2").status.state = MachineState::Unhealthy;
    site.machine("10.0.0.4").status.state = MachineState::Updating;
    assert_eq!(site.plan().unwrap_err().kind, PlanErrorKind::NotAvailable);
}

#[test]
fn at_the_maximum_of_workers_a_healthy_untainted_worker_is_promoted_in_exchange() {
    let mut site = site(&["10.0.3.1", "10.0.3.2", "10.0.3.3"]).with_constraints(3, 1, 3);
    site.machine("10.0.0.1").status.state = MachineState::Retiring;
    site.taint("10.0.3.1", "example.com/broken");
    site.machine("10.0.3.2").status.state = MachineState::Updating;
    assert_eq!(
        outcome(&site.plan().unwrap()),
        (
            Action::ReplaceControlPlane,
            vec!["10.0.1.1", "10.0.2.1", "10.0.3.3"],
            vec!["10.0.3.1", "10.0.3.2", "10.0.0.1"]
        )
    );
    // Also when the maximum was lowered below the number of workers.
    site.constraints.maximum_workers = 2;
    assert_eq!(outcome(&site.plan().unwrap()).2, ["10.0.3.1", "10.0.3.2", "10.0.0.1"]);
}

#[test]
fn at_the_maximum_of_workers_without_one_to_promote_the_bad_node_leaves() {
    let mut site = site(&["10.0.3.1"]).with_constraints(3, 1, 1);
    site.machine("10.0.0.1").status.state = MachineState::Retiring;
    site.taint("10.0.3.1", "example.com/broken");
    let plan = site.plan().unwrap();
    assert_eq!(
        outcome(&plan),
        (Action::ReplaceControlPlane, vec!["10.0.1.1", "10.0.2.1", "10.0.0.2"], vec!["10.0.3.1"])
    );
    assert_eq!((plan.changes[0].change, plan.changes[0].address.as_str()), (ChangeKind::Remove, "10.0.0.1"));
}

#[test]
fn a_node_whose_role_no_worker_template_has_leaves_when_it_is_demoted() {
    let mut machines: Vec<Machine> = ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"]
        .map(|address| machine(address, 0, "master"))
        .to_vec();
    machines.extend(["10.0.1.1", "10.0.1.2"].map(|address| machine(address, 1, "compute")));
    let mut site = Site::new(machines).with_template("master", &[("compute", "")]).with_constraints(3, 1, 0);
    site = site.with_cluster(&["10.0.0.1", "10.0.0.2", "10.0.0.3"], &["10.0.1.1"]);
    site.machine("10.0.0.2").status.state = MachineState::Unhealthy;
    assert_eq!(
        outcome(&site.plan().unwrap()),
        (Action::ReplaceControlPlane, vec!["10.0.0.1", "10.0.0.3", "10.0.0.4"], vec!["10.0.1.1"])
    );
    // Nor is a worker promoted in exchange for a node that leaves anyway.
    site.constraints.maximum_workers = 1;
    assert_eq!(outcome(&site.plan().unwrap()).2, ["10.0.1.1"]);
    site.machine("10.0.0.2").status.state = MachineState::Healthy;
    site.constraints.control_plane_count = 1;
    assert_eq!(
        outcome(&site.plan().unwrap()),
        (Action::DecreaseControlPlane, vec!["10.0.0.3"], vec!["10.0.1.1"])
    );
}
