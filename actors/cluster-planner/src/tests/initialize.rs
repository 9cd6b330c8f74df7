//! Tests of the first plan of a cluster, and of its choice of machines.

use madako_domain::machine::MachineState;
use madako_domain::plan::{Action, PlanErrorKind};
use time::Duration;

use crate::LeaderStage;
use crate::testing::{MachineWith as _, Site, machine, outcome};

fn healthy(addresses: &[&str], role: &str) -> Vec<madako_domain::machine::Machine> {
    addresses.iter().map(|address| machine(address, 0, role)).collect()
}

#[test]
fn control_plane_and_workers_are_chosen_from_the_lowest_addresses_when_all_else_is_equal() {
    let machines = healthy(&["10.0.0.10", "10.0.0.9", "10.0.0.100", "10.0.0.2"], "a");
    let plan = Site::new(machines).with_constraints(1, 2, 0).plan().unwrap();
    assert_eq!(outcome(&plan), (Action::Initialize, vec!["10.0.0.2"], vec!["10.0.0.9", "10.0.0.10"]));
}

#[test]
fn first_cluster_takes_all_fields_but_nodes_from_the_template() {
    let site = Site::new(healthy(&["10.0.0.1", "10.0.0.2"], "a"));
    let plan = site.plan().unwrap();
    let cluster = plan.cluster.unwrap();
    assert_eq!(cluster.name, "cluster");
    assert_eq!(cluster.service_subnet, "10.68.0.0/16");
    assert!(cluster.nodes.iter().all(|node| node.user == "cybozu"));
}

#[test]
fn only_healthy_machines_are_chosen() {
    let states = MachineState::ALL.iter().copied().enumerate();
    let machines = states
        .map(|(index, state)| machine(&format!("10.0.0.{index}"), 0, "a").state(state))
        .chain([machine("10.0.1.1", 0, "a")])
        .collect();
    let mut site = Site::new(machines);
    let plan = site.plan().unwrap();
    // Healthy is the second of all states.
    assert_eq!(outcome(&plan), (Action::Initialize, vec!["10.0.0.1"], vec!["10.0.1.1"]));
    site.constraints.minimum_workers = 2;
    assert_eq!(site.plan().unwrap_err().kind, PlanErrorKind::NotAvailable);
}

#[test]
fn racks_are_filled_evenly_and_scores_are_recomputed_after_every_pick() {
    let addresses = |rack: i64| (1..=4).map(move |index| (rack, format!("10.0.{rack}.{index}")));
    let machines = (0..3).flat_map(addresses).map(|(rack, ip)| machine(&ip, rack, "a")).collect();
    let plan = Site::new(machines).with_constraints(3, 6, 0).plan().unwrap();
    let (_, control_plane, workers) = outcome(&plan);
    assert_eq!(control_plane, ["10.0.0.1", "10.0.1.1", "10.0.2.1"]);
    // The control plane does not count for workers.
    assert_eq!(workers, ["10.0.0.2", "10.0.1.2", "10.0.2.2", "10.0.0.3", "10.0.1.3", "10.0.2.3"]);
}

#[test]
fn a_longer_lifetime_wins_within_a_rack_but_not_over_a_node_less_in_the_rack() {
    let day = Duration::days(1);
    let machines = vec![
        machine("10.0.0.1", 0, "a"),
        machine("10.0.0.2", 0, "a").due_in(day * 1_001),
        machine("10.0.0.3", 0, "a").due_in(day * 501),
        machine("10.0.1.1", 1, "a").due_in(day * -1_001),
    ];
    let plan = Site::new(machines).with_constraints(3, 1, 0).plan().unwrap();
    assert_eq!(outcome(&plan).1, ["10.0.0.2", "10.0.1.1", "10.0.0.3"]);
}

#[test]
fn the_control_plane_role_is_strict() {
    let mut machines = healthy(&["10.0.0.1", "10.0.0.2"], "storage");
    machines.push(machine("10.0.0.9", 0, "compute"));
    let site = Site::new(machines).with_template("compute", &[("storage", "")]);
    assert_eq!(outcome(&site.plan().unwrap()).1, ["10.0.0.9"]);
    let site = site.with_constraints(2, 1, 0);
    let error = site.plan().unwrap_err();
    assert_eq!(error.kind, PlanErrorKind::NotAvailable);
    assert_eq!(
        error.message,
        "no healthy machine of role \"compute\" is available as control plane node (1 of 2): \
         of 3 machines, 2 of another role, 1 in the cluster; \
         no worker is promoted while there are only minimum-workers, 1"
    );
}

#[test]
fn roles_are_filled_by_weight_and_the_first_template_wins_a_tie() {
    let roles = [("compute", 10), ("storage", 10), ("gpu", 10)];
    let mut machines = Vec::new();
    for (net, (role, count)) in roles.into_iter().enumerate() {
        machines.extend((0..count).map(|index| machine(&format!("10.{net}.0.{index}"), 0, role)));
    }
    let site = Site::new(machines)
        .with_template("gpu", &[("compute", "6.0"), ("storage", "3.0"), ("gpu", "1.0")])
        .with_constraints(1, 10, 0);
    let plan = site.plan().unwrap();
    let (_, _, workers) = outcome(&plan);
    let nets: Vec<&str> = workers.iter().map(|address| address.split('.').with_number(1).unwrap()).collect();
    // Shares: 0/6 0/3 0/1 -> compute, storage, gpu; then 1/6 < 1/3 < 1/1, and so on.
    assert_eq!(nets, ["0", "1", "2", "0", "0", "1", "0", "0", "1", "0"]);
    assert_eq!(
        plan.workers_by_role.iter().map(|(role, count)| (&**role, *count)).collect::<Vec<_>>(),
        [("compute", 6), ("gpu", 1), ("storage", 3)]
    );
    assert_eq!(plan.unused_machines, 19);
}

#[test]
fn no_other_template_is_tried_when_the_next_one_has_no_machine() {
    let mut machines = healthy(&["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"], "compute");
    machines.push(machine("10.0.1.1", 0, "storage").state(MachineState::Unhealthy));
    let site = Site::new(machines)
        .with_template("compute", &[("storage", ""), ("compute", "")])
        .with_constraints(1, 2, 0);
    let error = site.plan().unwrap_err();
    assert_eq!(error.kind, PlanErrorKind::NotAvailable);
    assert_eq!(
        error.message,
        "no healthy machine of role \"storage\" is available as worker (0 of 2): \
         of 5 machines, 4 of another role, 1 not healthy"
    );
}

#[test]
fn racks_count_the_workers_of_the_template_s_role_only() {
    // Rack 0 holds all storage; a compute machine there is as good as one in rack 1.
    let mut machines = healthy(&["10.0.0.1", "10.0.0.2", "10.0.0.3"], "storage");
    machines.extend([machine("10.0.0.9", 0, "compute"), machine("10.0.1.1", 1, "compute")]);
    let site = Site::new(machines)
        .with_template("storage", &[("storage", "2"), ("compute", "1")])
        .with_constraints(1, 2, 0);
    assert_eq!(outcome(&site.plan().unwrap()).2, ["10.0.0.2", "10.0.0.9"]);
}

#[test]
fn without_a_role_racks_count_all_workers() {
    let mut machines = healthy(&["10.0.0.1", "10.0.0.2", "10.0.0.3"], "storage");
    machines.extend([machine("10.0.0.9", 0, "compute"), machine("10.0.1.1", 1, "compute")]);
    let site = Site::new(machines).with_template("storage", &[("", "")]).with_constraints(1, 3, 0);
    assert_eq!(outcome(&site.plan().unwrap()).2, ["10.0.0.2", "10.0.1.1", "10.0.0.3"]);
}

#[test]
fn a_tainted_machine_is_not_chosen_for_the_control_plane_but_may_be_a_worker() {
    let mut site = Site::new(healthy(&["10.0.0.1", "10.0.0.2"], "a"));
    site.taint("10.0.0.1", "example.com/broken");
    assert_eq!(outcome(&site.plan().unwrap()), (Action::Initialize, vec!["10.0.0.2"], vec!["10.0.0.1"]));
}

#[test]
fn a_leader_that_starts_makes_no_first_cluster() {
    let mut site = Site::new(healthy(&["10.0.0.1", "10.0.0.2"], "a"));
    site.moment = LeaderStage::LeaderStart;
    for changed in [false, true] {
        site.template_changed = changed;
        let plan = site.plan().unwrap();
        assert_eq!((plan.action, plan.cluster, plan.changes), (None, None, vec![]));
    }
}

#[test]
fn a_cluster_without_a_control_plane_is_refused() {
    let site = Site::new(healthy(&["10.0.0.1", "10.0.0.2"], "a")).with_constraints(0, 1, 0);
    let error = site.plan().unwrap_err();
    assert_eq!(error.kind, PlanErrorKind::NotAvailable);
    assert_eq!(error.message, "control-plane-count is 0, but a cluster needs a control plane node");
}

#[test]
fn constraints_that_contradict_each_other_are_refused_and_named() {
    let site = Site::new(healthy(&["10.0.0.1", "10.0.0.2", "10.0.0.3"], "a")).with_constraints(1, 2, 1);
    let error = site.plan().unwrap_err();
    assert_eq!(error.kind, PlanErrorKind::NotAvailable);
    assert_eq!(error.message, "minimum-workers, 2, is above maximum-workers, 1");
}
