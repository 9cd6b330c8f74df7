//! Tests of unusual inputs: from operators, faulty registries and old configurations.

use madako_domain::machine::{Machine, MachineLabel, MachineState};
use madako_domain::plan::{Action, ChangeKind, LeavingReason, Plan, PlanErrorKind, PlanReason};

use crate::testing::{MachineWith as _, Site, machine, outcome, reasons_of, why_not};

#[test]
fn neither_of_two_machines_at_one_address_is_newly_chosen_and_both_are_reported() {
    let mut machines =
        vec![machine("10.0.0.1", 0, "a").serial("s1"), machine("10.0.0.1", 1, "a").serial("s2")];
    machines.extend(["10.0.0.2", "10.0.0.3"].map(|address| machine(address, 0, "a")));
    let site = Site::new(machines);
    let plan = site.plan().unwrap();
    assert_eq!(outcome(&plan), (Action::Initialize, vec!["10.0.0.2"], vec!["10.0.0.3"]));
    assert_eq!(plan.duplicates[0].serials, ["s1", "s2"]);
    let reason = plan.reasons.last().unwrap();
    assert_eq!(reason.address.as_deref(), Some("10.0.0.1"));
    assert_eq!(reason.why.to_string(), "2 machines claim this address (s1, s2), none of them is chosen");
    let error = site.with_constraints(1, 2, 0).plan().unwrap_err();
    assert!(error.message.contains("1 with an address of several machines"), "{}", error.message);
}

#[test]
fn a_node_in_use_stays_when_a_second_machine_claims_its_address() {
    let mut site = Site::new(["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(|ip| machine(ip, 0, "a")).to_vec())
        .with_constraints(1, 1, 0)
        .with_cluster(&["10.0.0.1"], &["10.0.0.2"]);
    let impostor = machine("10.0.0.2", 5, "b").serial("impostor").state(MachineState::Retired).lasting(1e6);
    site.machines.push(impostor);
    let plan = site.plan().unwrap();
    assert_eq!(plan.action, None);
    assert!(plan.duplicates[0].in_use);
    // Even if the node's own machine is the retired one.
    site.machine("10.0.0.2").status.state = MachineState::Retired;
    let plan = site.step();
    assert_ne!(plan.action, Some(Action::DecreaseWorkers));
    // Nor is it promoted.
    let mut site = site.with_constraints(2, 0, 0);
    site.remove("10.0.0.3");
    assert_eq!(site.plan().unwrap_err().kind, PlanErrorKind::NotAvailable);
}

/// Three control plane nodes and a worker that cannot be promoted, at `maximum-workers`; two machines claim the
/// address of the control plane node 10.0.0.1.
fn claimed_twice(control_plane_count: u32) -> Site {
    let mut machines =
        ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5"].map(|ip| machine(ip, 0, "a")).to_vec();
    machines[3].status.state = MachineState::Updating;
    machines.push(machine("10.0.0.1", 1, "a").serial("dup"));
    let mut site = Site::new(machines)
        .with_constraints(control_plane_count, 1, 1)
        .with_cluster(&["10.0.0.1", "10.0.0.2", "10.0.0.3"], &["10.0.0.4"]);
    site.machine("10.0.0.1").status.state = MachineState::Unreachable;
    site
}

/// Asserts that no reason reports a node as staying that the plan removes.
fn assert_kept_nodes_are_not_removed(plan: &Plan) {
    for change in plan.changes.iter().filter(|change| change.change == ChangeKind::Remove) {
        let of_it = plan.reasons.iter().filter(|reason| reason.address.as_ref() == Some(&change.address));
        assert!(of_it.into_iter().all(|reason| !reason.why.to_string().contains("stays")), "{plan:?}");
    }
}

#[test]
fn a_bad_control_plane_node_that_could_only_leave_stays_when_two_machines_claim_its_address() {
    let mut site = claimed_twice(3);
    let plan = site.plan().unwrap();
    assert_eq!(plan.action, None, "an unused machine would be there, but no room for the bad one");
    let no_room = LeavingReason::NoRoom { maximum: 1 };
    assert_eq!(
        why_not(&plan, Action::ReplaceControlPlane),
        [&PlanReason::BadState(MachineState::Unreachable), &PlanReason::SharedAddressStays(no_room.clone())]
    );
    // The next bad node, with an unshared address, is considered then; it leaves.
    site.machine("10.0.0.3").status.state = MachineState::Unhealthy;
    let plan = site.plan().unwrap();
    assert_eq!(
        outcome(&plan),
        (Action::ReplaceControlPlane, vec!["10.0.0.1", "10.0.0.2", "10.0.0.5"], vec!["10.0.0.4"])
    );
    assert!(plan.reasons.iter().any(|reason| reason.why == PlanReason::SharedAddressStays(no_room.clone())));
    assert_kept_nodes_are_not_removed(&plan);
    // With room, or a promotable worker in exchange, it is demoted and stays in the cluster.
    let mut site = claimed_twice(3);
    site.machine("10.0.0.4").status.state = MachineState::Healthy;
    let plan = site.plan().unwrap();
    assert_eq!(
        outcome(&plan),
        (Action::ReplaceControlPlane, vec!["10.0.0.2", "10.0.0.3", "10.0.0.4"], vec!["10.0.0.1"])
    );
    assert_kept_nodes_are_not_removed(&plan);
    let mut site = claimed_twice(3).with_constraints(3, 1, 2);
    assert_eq!(outcome(&site.step()).2, ["10.0.0.4", "10.0.0.1"]);
}

#[test]
fn smaller_control_plane_keeps_the_node_with_a_disputed_address() {
    let site = claimed_twice(2);
    let plan = site.plan().unwrap();
    // Its score is the lowest, but the next lowest leaves.
    assert_eq!(
        outcome(&plan),
        (Action::DecreaseControlPlane, vec!["10.0.0.1", "10.0.0.3"], vec!["10.0.0.4"])
    );
    assert_kept_nodes_are_not_removed(&plan);
    assert!(plan.reasons.iter().any(|reason| {
        reason.why == PlanReason::SharedAddressStays(LeavingReason::NoRoom { maximum: 1 })
            && reason.address.as_deref() == Some("10.0.0.1")
    }));
    // It stays as a worker, too.
    let site = claimed_twice(2).with_constraints(2, 1, 2);
    assert_eq!(
        outcome(&site.plan().unwrap()),
        (Action::DecreaseControlPlane, vec!["10.0.0.2", "10.0.0.3"], vec!["10.0.0.4", "10.0.0.1"])
    );
    // If all control plane addresses are shared, the control plane keeps its size.
    let mut site = claimed_twice(2);
    for address in ["10.0.0.2", "10.0.0.3"] {
        site.machines.push(machine(address, 1, "a").serial("dup"));
    }
    site.machine("10.0.0.1").status.state = MachineState::Healthy;
    let plan = site.plan().unwrap();
    assert_eq!(plan.action, None);
    assert_eq!(why_not(&plan, Action::DecreaseControlPlane).len(), 4);
}

#[test]
fn a_machine_that_is_listed_again_counts_once_and_is_reported() {
    let mut machines =
        ["10.0.0.1", "10.0.0.2"].map(|ip| machine(ip, 0, "a").serial(&format!("s{ip}"))).to_vec();
    let mut again = machines[0].clone();
    again.status.duration = 5.0;
    machines.push(again);
    let plan = Site::new(machines).plan().unwrap();
    assert_eq!(outcome(&plan).1, ["10.0.0.1"]);
    assert_eq!(plan.duplicates, []);
    let reasons: Vec<String> = plan.reasons.iter().map(|reason| reason.why.to_string()).collect();
    assert!(
        reasons.iter().any(|reasons| reasons
            == "the list holds the machine s10.0.0.1 2 times with this address; it counts once, as HEALTHY"),
        "{reasons:?}"
    );
}

fn labelled(address: &str, role: &str, labels: &[(&str, &str)]) -> Machine {
    let mut machine = machine(address, 0, role);
    let label = |(name, value): &(&str, &str)| MachineLabel { name: (*name).into(), value: (*value).into() };
    machine.spec.labels = labels.iter().map(label).collect();
    machine
}

#[test]
fn a_machine_with_labels_that_kubernetes_does_not_have_is_not_chosen_and_reported() {
    let odd: [(&str, &[(&str, &str)]); 6] = [
        ("a/b c", &[]),
        ("日本", &[]),
        (&"a".repeat(80), &[]),
        ("a", &[("", "v")]),
        ("a", &[("foo bar", "v")]),
        ("a", &[("good", "v"), ("foo", "v v")]),
    ];
    for (role, labels) in odd {
        let mut machines = ["10.0.0.2", "10.0.0.3"].map(|ip| machine(ip, 0, "a")).to_vec();
        machines.push(labelled("10.0.0.1", role, labels));
        let site = Site::new(machines);
        let plan = site.plan().unwrap();
        assert_eq!(outcome(&plan), (Action::Initialize, vec!["10.0.0.2"], vec!["10.0.0.3"]));
        plan.cluster.as_ref().unwrap().check().unwrap();
        let bad = labelled("10.0.0.1", role, labels).bad_labels().into_boxed_slice();
        assert!(plan.reasons.iter().any(|reason| {
            reason.address.as_deref() == Some("10.0.0.1")
                && reason.why == PlanReason::NoSuchLabels(bad.clone())
        }));
        let error = site.with_constraints(1, 2, 0).plan().unwrap_err();
        assert!(error.message.contains("1 with an invalid role or label"), "{error}");
        assert!(error.reasons.iter().any(|reason| reason.why == PlanReason::NoSuchLabels(bad.clone())));
    }
}

#[test]
fn a_node_in_use_is_kept_without_labels_that_kubernetes_does_not_have() {
    let mut site = Site::new(["10.0.0.1", "10.0.0.2"].map(|ip| machine(ip, 0, "a")).to_vec())
        .with_cluster(&["10.0.0.1"], &["10.0.0.2"]);
    *site.machine("10.0.0.2") =
        labelled("10.0.0.2", "a/b c", &[("fine", "yes"), ("foo bar", "v"), ("x", "v v")])
            .state(MachineState::Retiring);
    site.machine("10.0.0.2").spec.rack = -3;
    site.constraints.minimum_workers = 0;
    let plan = site.step();
    assert_eq!(plan.action, Some(Action::TaintNodes));
    let cluster = plan.cluster.as_ref().unwrap();
    cluster.check().unwrap();
    let labels = &cluster.nodes[1].labels;
    assert_eq!(labels["sabakan.cke.cybozu.com/fine"], "yes");
    assert_eq!(labels["topology.kubernetes.io/zone"], "rack-3");
    assert!(!labels.contains_key("cke.cybozu.com/rack") && !labels.contains_key("cke.cybozu.com/role"));
    let message = reasons_of(&plan.reasons, Action::TaintNodes);
    assert_eq!(
        message.last().unwrap().why.to_string(),
        "the node lacks labels that would be invalid: its role \"a/b c\", its rack -3, \
         its label \"foo bar\", the value \"v v\" of its label \"x\""
    );
    assert_eq!(site.plan().unwrap().action, None, "which changes nothing the next time");
}

#[test]
fn a_serial_that_changed_its_address_leaves_at_the_old_and_may_come_at_the_new() {
    let mut site = Site::new(["10.0.0.1", "10.0.0.2"].map(|ip| machine(ip, 0, "a")).to_vec())
        .with_cluster(&["10.0.0.1"], &["10.0.0.2"]);
    site.machine("10.0.0.2").spec.ipv4 = vec!["10.0.0.7".to_owned()];
    let plan = site.plan().unwrap();
    assert_eq!(outcome(&plan), (Action::RemoveNonExistentNodes, vec!["10.0.0.1"], vec!["10.0.0.7"]));
}

#[test]
fn a_machine_that_changed_its_serial_at_the_same_address_changes_nothing_by_itself() {
    let mut site = Site::new(["10.0.0.1", "10.0.0.2"].map(|ip| machine(ip, 0, "a")).to_vec())
        .with_cluster(&["10.0.0.1"], &["10.0.0.2"]);
    site.machine("10.0.0.2").spec.serial = "new".to_owned();
    assert_eq!(site.plan().unwrap().action, None);
}

#[test]
fn machines_without_an_ipv4_address_are_never_chosen() {
    let mut machines =
        ["fd00::1", "", "not an address", "10.0.0.256", "010.0.0.1"].map(|ip| machine(ip, 0, "a")).to_vec();
    let mut without = machine("10.0.0.9", 0, "a");
    without.spec.ipv4.clear();
    machines.push(without);
    assert_eq!(Site::new(machines).plan().unwrap_err().kind, PlanErrorKind::NotAvailable);
}

#[test]
fn nodes_with_odd_addresses_that_have_a_machine_stay() {
    let machines = ["fd00::1", "host", "10.0.0.1"].map(|ip| machine(ip, 0, "a")).to_vec();
    let mut site = Site::new(machines).with_cluster(&["fd00::1"], &["host"]);
    assert_eq!(site.plan().unwrap().action, None);
    site.machine("host").status.state = MachineState::Retiring;
    assert_eq!(
        outcome(&site.plan().unwrap()),
        (Action::IncreaseWorkers, vec!["fd00::1"], vec!["host", "10.0.0.1"])
    );
    let site = Site::new(["fd00::1", "fd00::2", "host"].map(|ip| machine(ip, 0, "a")).to_vec())
        .with_constraints(1, 0, 0)
        .with_cluster(&["host", "fd00::2", "fd00::1"], &[]);
    assert_eq!(outcome(&site.plan().unwrap()).1, ["host"]);
}

#[test]
fn an_address_that_is_twice_in_the_configuration_counts_once_and_the_control_plane_keeps_it() {
    let machines = ["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(|ip| machine(ip, 0, "a")).to_vec();
    let mut site = Site::new(machines).with_constraints(1, 2, 0);
    site = site.with_cluster(&["10.0.0.1"], &["10.0.0.1", "10.0.0.2", "10.0.0.2"]);
    let plan = site.step();
    assert_eq!(outcome(&plan), (Action::IncreaseWorkers, vec!["10.0.0.1"], vec!["10.0.0.2", "10.0.0.3"]));
    let changes: Vec<_> = plan.changes.iter().map(|change| (change.change, &*change.address)).collect();
    assert_eq!(
        changes,
        [(ChangeKind::Update, "10.0.0.1"), (ChangeKind::Update, "10.0.0.2"), (ChangeKind::Add, "10.0.0.3")]
    );
    assert_eq!(site.step().action, None);
}

#[test]
fn a_lost_control_plane_node_that_is_listed_twice_is_lost_once() {
    let machines = ["10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5"].map(|ip| machine(ip, 0, "a")).to_vec();
    let site = Site::new(machines)
        .with_constraints(3, 1, 0)
        .with_cluster(&["10.0.0.1", "10.0.0.1", "10.0.0.2", "10.0.0.3"], &["10.0.0.4"]);
    assert_eq!(outcome(&site.plan().unwrap()).1, ["10.0.0.2", "10.0.0.3", "10.0.0.5"]);
}

#[test]
fn an_empty_cluster_gets_its_nodes() {
    let machines = ["10.0.0.1", "10.0.0.2"].map(|ip| machine(ip, 0, "a")).to_vec();
    let mut site = Site::new(machines).with_cluster(&[], &[]);
    let plan = site.step();
    assert_eq!(outcome(&plan), (Action::IncreaseControlPlane, vec!["10.0.0.1"], vec!["10.0.0.2"]));
    assert_eq!(site.step().action, None);
}

#[test]
fn an_empty_list_of_machines_is_no_reason_to_remove_a_control_plane() {
    let mut site = Site::new(["10.0.0.1", "10.0.0.2"].map(|ip| machine(ip, 0, "a")).to_vec())
        .with_cluster(&["10.0.0.1"], &["10.0.0.2"]);
    site.machines.clear();
    assert_eq!(site.plan().unwrap_err().kind, PlanErrorKind::TooManyNonExistent);
    site.current = None;
    let error = site.plan().unwrap_err();
    assert_eq!(
        error.message,
        "no healthy machine is available as control plane node (0 of 1): of 0 machines, none is left; \
         no worker is promoted while there are only minimum-workers, 1"
    );
}

#[test]
fn duration_that_is_nan_removes_no_node() {
    let mut site = Site::new(["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(|ip| machine(ip, 0, "a")).to_vec())
        .with_cluster(&["10.0.0.1"], &["10.0.0.2", "10.0.0.3"]);
    *site.machine("10.0.0.2") = machine("10.0.0.2", 0, "a").state(MachineState::Retired).lasting(f64::NAN);
    let plan = site.step();
    assert_eq!(plan.action, Some(Action::TaintNodes));
    let plan = site.step();
    assert_eq!(plan.action, None);
    assert!(
        plan.reasons
            .iter()
            .any(|reason| reason.why == PlanReason::NoneRetired { retired: 1, wait_seconds: 300.0 })
    );
}
