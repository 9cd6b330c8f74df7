//! Tests of plans after a change of the template.

use madako_domain::cluster::LABEL_ROLE;
use madako_domain::machine::{Machine, MachineState};
use madako_domain::plan::{Action, ChangeKind, PlanErrorKind, PlanReason};
use madako_domain::template::Template;

use crate::LeaderStage;
use crate::testing::{Site, machine, outcome, why_not};

fn site() -> Site {
    let machines: Vec<Machine> =
        (1..=5).map(|index| machine(&format!("10.0.0.{index}"), index, "a")).collect();
    let mut site =
        Site::new(machines).with_constraints(1, 2, 0).with_cluster(&["10.0.0.3"], &["10.0.0.5", "10.0.0.1"]);
    let mut template = site.template.cluster().clone();
    template.name = "renamed".to_owned();
    template.nodes[1].user = "other".to_owned();
    site.template = Template::new(template).unwrap();
    site.template_changed = true;
    site
}

#[test]
fn the_same_machines_are_kept_in_their_order_when_no_rule_fires() {
    let mut site = site();
    let plan = site.step();
    assert_eq!(outcome(&plan), (Action::Regenerate, vec!["10.0.0.3"], vec!["10.0.0.5", "10.0.0.1"]));
    let changes: Vec<_> = plan.changes.iter().map(|change| (change.change, &*change.address)).collect();
    assert_eq!(changes, [(ChangeKind::Update, "10.0.0.5"), (ChangeKind::Update, "10.0.0.1")]);
    assert_eq!(site.current.as_ref().unwrap().name, "renamed");
    assert_eq!(site.step().action, None);
}

#[test]
fn an_action_comes_first_and_uses_the_changed_template() {
    let mut site = site();
    site.machine("10.0.0.1").status.state = MachineState::Retiring;
    site.constraints.minimum_workers = 1;
    let plan = site.step();
    assert_eq!(plan.action, Some(Action::TaintNodes));
    assert_eq!(plan.cluster.as_ref().unwrap().name, "renamed");
    assert_eq!(why_not(&plan, Action::Regenerate), [&PlanReason::TemplateUsedBy(Action::TaintNodes)]);
    assert_eq!(site.step().action, None);
}

#[test]
fn when_a_leader_starts_a_changed_template_comes_before_any_rule_and_an_unchanged_one_is_nothing() {
    let mut site = site();
    site.moment = LeaderStage::LeaderStart;
    site.machine("10.0.0.1").status.state = MachineState::Retiring;
    let plan = site.step();
    assert_eq!(plan.action, Some(Action::Regenerate));
    assert_eq!(why_not(&plan, Action::TaintNodes), [&PlanReason::LeaderStarts]);
    site.constraints.control_plane_count = 3;
    assert_eq!(site.step().action, None);
    site.moment = LeaderStage::Running;
    assert_eq!(site.step().action, Some(Action::IncreaseControlPlane));
}

#[test]
fn a_template_that_is_new_by_its_revision_only_is_written_once_more() {
    let mut site = site();
    site.step();
    site.template_changed = true;
    let plan = site.plan().unwrap();
    assert_eq!((plan.action, plan.changes.len()), (Some(Action::Regenerate), 0));
    assert_eq!(plan.cluster, site.current);
}

#[test]
fn constraints_are_filled_up_with_the_changed_template() {
    let mut site = site().with_constraints(1, 3, 0);
    site.moment = LeaderStage::LeaderStart;
    assert_eq!(outcome(&site.plan().unwrap()).2, ["10.0.0.5", "10.0.0.1", "10.0.0.2"]);
}

#[test]
fn a_node_without_a_machine_keeps_a_leader_from_regenerating_at_its_start() {
    let mut site = site();
    site.moment = LeaderStage::LeaderStart;
    site.remove("10.0.0.1");
    let error = site.plan().unwrap_err();
    assert_eq!(error.kind, PlanErrorKind::MissingMachine);
    assert_eq!(
        error.message,
        "the changed template cannot be applied: no machine in the list has the address of 10.0.0.1"
    );
    site.moment = LeaderStage::Running;
    assert_eq!(site.plan().unwrap().action, Some(Action::RemoveNonExistentNodes));
}

#[test]
fn a_template_that_drops_the_role_of_workers_fails_and_names_role_and_nodes() {
    let mut site = site();
    let mut template = site.template.cluster().clone();
    template.nodes[1].labels.insert(LABEL_ROLE.to_owned(), "b".to_owned());
    site.template = Template::new(template).unwrap();
    for moment in [LeaderStage::LeaderStart, LeaderStage::Running] {
        site.moment = moment;
        let error = site.plan().unwrap_err();
        assert_eq!(error.kind, PlanErrorKind::RoleWithoutTemplate);
        assert_eq!(error.message, "no worker template has role \"a\" of 10.0.0.5, 10.0.0.1");
    }
    // Also when another rule fires, even if the cluster cannot be filled up after it.
    site.machine("10.0.0.1").status.state = MachineState::Retiring;
    site.constraints.minimum_workers = 9;
    assert_eq!(site.plan().unwrap_err().kind, PlanErrorKind::RoleWithoutTemplate);
}

#[test]
fn the_last_worker_of_a_dropped_role_may_leave() {
    let mut machines = vec![machine("10.0.0.1", 0, "a"), machine("10.0.0.2", 0, "a")];
    machines.push(machine("10.0.0.3", 0, "b"));
    let mut site = Site::new(machines)
        .with_template("a", &[("a", ""), ("b", "")])
        .with_cluster(&["10.0.0.1"], &["10.0.0.2", "10.0.0.3"])
        .with_template("a", &[("b", "")]);
    site.template_changed = true;
    assert_eq!(site.plan().unwrap_err().kind, PlanErrorKind::RoleWithoutTemplate);
    site.machine("10.0.0.2").status.state = MachineState::Retired;
    assert_eq!(outcome(&site.plan().unwrap()), (Action::DecreaseWorkers, vec!["10.0.0.1"], vec!["10.0.0.3"]));
}
