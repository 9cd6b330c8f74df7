use madako_domain::cluster::TAINT_STATE;
use madako_domain::machine::{Machine, MachineState};
use madako_domain::plan::{Action, Change, ChangeKind, Part, PlanErrorKind, PlanReason};
use std::time::Duration;

use crate::testing::{MachineWith as _, Site, machine, outcome, why_not};

/// Healthy machines `10.0.0.<index>` of role `a`.
fn machines(count: usize) -> Vec<Machine> {
    (1..=count).map(|index| machine(&format!("10.0.0.{index}"), 0, "a")).collect()
}

#[test]
fn only_healthy_workers_count_for_the_minimum() {
    let mut site = Site::new(machines(6)).with_constraints(1, 3, 0);
    site = site.with_cluster(&["10.0.0.1"], &["10.0.0.2", "10.0.0.3", "10.0.0.4"]);
    assert_eq!(site.plan().unwrap().action, None);
    site.machine("10.0.0.3").status.state = MachineState::Unreachable;
    site.machine("10.0.0.4").status.state = MachineState::Updating;
    assert_eq!(
        outcome(&site.plan().unwrap()),
        (
            Action::IncreaseWorkers,
            vec!["10.0.0.1"],
            vec!["10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6"]
        )
    );
}

#[test]
fn workers_are_added_up_to_the_maximum_only() {
    let mut site = Site::new(machines(6)).with_constraints(1, 3, 4);
    site = site.with_cluster(&["10.0.0.1"], &["10.0.0.2", "10.0.0.3", "10.0.0.4"]);
    site.machine("10.0.0.3").status.state = MachineState::Unreachable;
    site.machine("10.0.0.4").status.state = MachineState::Unreachable;
    assert_eq!(site.step().changes.len(), 1);
    let plan = site.plan().unwrap();
    assert_eq!(plan.action, None);
    assert_eq!(
        why_not(&plan, Action::IncreaseWorkers),
        [&PlanReason::Workers { healthy: 2, total: 4, minimum: 3, maximum: 4 }]
    );
}

#[test]
fn too_few_machines_for_the_minimum_are_added_when_the_unhealthy_ones_fill_it() {
    let mut site = Site::new(machines(5)).with_constraints(1, 3, 0);
    site = site.with_cluster(&["10.0.0.1"], &["10.0.0.2", "10.0.0.3", "10.0.0.4"]);
    site.machine("10.0.0.3").status.state = MachineState::Unreachable;
    site.machine("10.0.0.4").status.state = MachineState::Unreachable;
    assert_eq!(outcome(&site.step()).2.len(), 4);
    // No machine is left: the rule steps aside.
    assert_eq!(site.step().action, None);
}

#[test]
fn an_increase_that_has_begun_and_cannot_reach_the_minimum_fails() {
    let site = Site::new(machines(3)).with_constraints(1, 3, 0).with_cluster(&["10.0.0.1"], &["10.0.0.2"]);
    assert_eq!(site.plan().unwrap_err().kind, PlanErrorKind::NotAvailable);
}

#[test]
fn increase_and_decrease_step_aside_so_that_a_taint_is_still_tried() {
    // Of three workers only one is healthy, and no machine is unused: taints still follow.
    let mut site = Site::new(machines(4)).with_constraints(1, 3, 0);
    site = site.with_cluster(&["10.0.0.1"], &["10.0.0.2", "10.0.0.3", "10.0.0.4"]);
    site.machine("10.0.0.3").status.state = MachineState::Retiring;
    site.machine("10.0.0.4").status.state = MachineState::Retired;
    let plan = site.plan().unwrap();
    assert_eq!(plan.action, Some(Action::TaintNodes));
    assert!(matches!(
        why_not(&plan, Action::IncreaseWorkers)[..],
        [PlanReason::Workers { .. }, PlanReason::Shortage(_)]
    ));
    assert!(matches!(
        why_not(&plan, Action::DecreaseWorkers)[..],
        [PlanReason::Retired { .. }, PlanReason::NoSpare(_)]
    ));
}

#[test]
fn a_worker_is_removed_only_when_retired_for_more_than_the_wait() {
    let mut site = Site::new(machines(3)).with_constraints(1, 1, 0);
    site.retire_wait = Duration::from_secs(300);
    for (seconds, action) in
        [(0.0, Action::TaintNodes), (300.0, Action::TaintNodes), (300.001, Action::DecreaseWorkers)]
    {
        site = site.with_cluster(&["10.0.0.1"], &["10.0.0.2", "10.0.0.3"]);
        *site.machine("10.0.0.2") = machine("10.0.0.2", 0, "a").state(MachineState::Retired).lasting(seconds);
        assert_eq!(site.plan().unwrap().action, Some(action), "{seconds}");
        site.machines[1] = machine("10.0.0.2", 0, "a");
    }
}

#[test]
fn one_retired_worker_leaves_at_a_time_in_the_order_of_the_configuration() {
    let mut site = Site::new(machines(5)).with_constraints(1, 1, 0);
    site = site.with_cluster(&["10.0.0.1"], &["10.0.0.5", "10.0.0.4", "10.0.0.3", "10.0.0.2"]);
    for address in ["10.0.0.2", "10.0.0.3", "10.0.0.4"] {
        site.machine(address).status.state = MachineState::Retired;
    }
    let mut left = Vec::new();
    while let Some(Action::DecreaseWorkers) = site.plan().unwrap().action {
        let plan = site.step();
        left.extend(
            plan.changes.iter().filter(|c| c.change == ChangeKind::Remove).map(|c| c.address.clone()),
        );
    }
    assert_eq!(left, ["10.0.0.4", "10.0.0.3", "10.0.0.2"]);
}

#[test]
fn at_the_minimum_a_retired_worker_is_replaced_or_stays() {
    let mut site = Site::new(machines(4)).with_constraints(1, 2, 2);
    site = site.with_cluster(&["10.0.0.1"], &["10.0.0.2", "10.0.0.3"]);
    site.machine("10.0.0.2").status.state = MachineState::Retired;
    assert_eq!(
        outcome(&site.plan().unwrap()),
        (Action::DecreaseWorkers, vec!["10.0.0.1"], vec!["10.0.0.3", "10.0.0.4"])
    );
    site.machine("10.0.0.4").status.state = MachineState::Unhealthy;
    site.step();
    assert_eq!(site.step().action, None);
}

#[test]
fn the_spare_is_of_the_template_that_is_next_while_the_retired_node_still_counts() {
    // With the retired compute node the shares are 2/1 and 1/1: storage is next; without it, compute is.
    let with_spare = |spare: &str| {
        let mut machines = vec![machine("10.0.0.1", 0, "compute")];
        machines.extend(["10.0.0.2", "10.0.0.3"].map(|address| machine(address, 0, "compute")));
        machines.push(machine("10.0.1.1", 1, "storage"));
        machines.push(machine("10.0.9.9", 2, spare));
        let mut site = Site::new(machines)
            .with_template("compute", &[("compute", ""), ("storage", "")])
            .with_constraints(1, 3, 3)
            .with_cluster(&["10.0.0.1"], &["10.0.0.2", "10.0.0.3", "10.0.1.1"]);
        site.machine("10.0.0.2").status.state = MachineState::Retired;
        site.plan()
    };
    // A spare compute machine does not count, though it is the one to take.
    assert_eq!(with_spare("compute").unwrap().action, Some(Action::TaintNodes));
    // A spare storage machine lets the rule begin; then compute is next, and no such machine exists.
    assert_eq!(with_spare("storage").unwrap_err().kind, PlanErrorKind::NotAvailable);
}

#[test]
fn taints_follow_the_state_of_every_node() {
    let mut site = Site::new(machines(4)).with_constraints(1, 3, 3);
    site = site.with_cluster(&["10.0.0.1"], &["10.0.0.2", "10.0.0.3", "10.0.0.4"]);
    site.machine("10.0.0.1").status.state = MachineState::Retiring;
    site.machine("10.0.0.3").status.state = MachineState::Retired;
    let plan = site.step();
    assert_eq!(plan.action, Some(Action::TaintNodes));
    let taint = |change, address: &str, part| Change { change, address: address.to_owned(), part };
    assert_eq!(
        plan.changes,
        [
            taint(ChangeKind::Taint, "10.0.0.1", Part::ControlPlane),
            taint(ChangeKind::Taint, "10.0.0.3", Part::Worker)
        ]
    );
    assert_eq!(site.step().action, None);

    site.machine("10.0.0.1").status.state = MachineState::Retired;
    site.machine("10.0.0.3").status.state = MachineState::Healthy;
    let plan = site.step();
    assert_eq!(
        plan.changes,
        [
            taint(ChangeKind::Taint, "10.0.0.1", Part::ControlPlane),
            taint(ChangeKind::Untaint, "10.0.0.3", Part::Worker)
        ]
    );
    let node = &site.current.as_ref().unwrap().nodes[0];
    assert_eq!(
        node.taints.iter().map(|t| (&*t.key, &*t.value)).collect::<Vec<_>>(),
        [(TAINT_STATE, "retired")]
    );
    assert_eq!(site.step().action, None);
}

#[test]
fn an_unreachable_or_updating_node_is_neither_removed_nor_tainted() {
    let mut site = Site::new(machines(3)).with_constraints(1, 1, 1);
    site = site.with_cluster(&["10.0.0.1"], &["10.0.0.2"]);
    for state in [MachineState::Unreachable, MachineState::Updating, MachineState::Unhealthy] {
        site.machine("10.0.0.2").status.state = state;
        site.machine("10.0.0.2").status.duration = 1e9;
        assert_eq!(site.plan().unwrap().action, None);
    }
}
