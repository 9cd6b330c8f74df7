//! Properties over random data centers and histories: machines fail, retire, vanish, return and share addresses;
//! constraints, templates and leaders change. After each event the planner plans until no action is left.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use madako_domain::cluster::Cluster;
use madako_domain::invariants::{ClusterChange, check_cluster_change};
use madako_domain::machine::{Machine, MachineState};
use madako_domain::plan::{
    Action, ChangeKind, Outcome, Part, Plan, PlanError, PlanErrorKind, PlanReason, Reason,
};
use madako_domain::repair::queue::{Item, RepairQueue};
use madako_domain::repair::{RepairQueueEntry, RepairStatus, RepairStepStatus};
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;

use crate::testing::Site;
use crate::{LeaderStage, plan};

mod history;

use history::{history, live};

/// Histories for the invariants in each run.
const HISTORIES: u32 = 10_000;
/// Histories for each other property in each run.
const FEWER_HISTORIES: u32 = 1_500;
/// Environment variable that selects the long form, with 20 times as many.
const LONG: &str = "MADAKO_TEST_LONG";
/// Histories that must reach every action and every error: the rarest is in 1 of about 100.
const HISTORIES_THAT_REACH_ALL: usize = 1_000;

fn histories(count: u32) -> ProptestConfig {
    let times = if std::env::var_os(LONG).is_some() { 20 } else { 1 };
    ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(count * times) }
}

/// The repair queue in which every machine of the site that is under repair is watched after its repair's command.
fn repairs_of(site: &Site) -> RepairQueue {
    let entry = |(index, address): (i64, &String)| {
        let value = RepairQueueEntry {
            index,
            status: RepairStatus::Processing,
            step_status: RepairStepStatus::Watching,
            ..RepairQueueEntry::new("o", "t", address)
        };
        (index, Arc::new(Item { value, created: 1, revision: 1 }))
    };
    RepairQueue { entries: (0..).zip(&site.under_repair).map(entry).collect(), ..RepairQueue::default() }
}

fn parts(cluster: &Cluster) -> BTreeMap<&str, Part> {
    let part = |control_plane| if control_plane { Part::ControlPlane } else { Part::Worker };
    cluster.nodes.iter().map(|node| (&*node.address, part(node.control_plane))).collect()
}

proptest! {
    #![proptest_config(histories(HISTORIES))]

    /// I3 to I6, I8 and I12, as the leader checks them before a commit. The planner comes to rest; then the control
    /// plane has its size (I3) and the constraints hold as far as the machines allow.
    ///
    /// Stored constraints may be contradictory. With `control-plane-count` 0 the last control plane nodes stay; with
    /// `maximum-workers` below `minimum-workers` no plan adds a worker above the maximum or leaves fewer than the
    /// minimum. Plans that would have to do so fail, and name the constraint.
    #[test]
    fn every_plan_keeps_the_invariants_and_planning_ends_with_the_constraints_met(history in history()) {
        let mut violations = Vec::new();
        live(&history, |site, planned| {
            constraints_hold_at_rest(site, planned);
            contradictions_are_refused(site, planned);
            let Ok(Plan { cluster: Some(after), .. }) = planned else { return };
            let observed: BTreeSet<String> =
                site.machines.iter().filter_map(|machine| machine.address().map(str::to_owned)).collect();
            violations.extend(check_cluster_change(&ClusterChange {
                before: site.current.as_ref(),
                after,
                constraints: &site.constraints,
                observed: &observed,
                template_changed: site.template_changed,
                repairs: &repairs_of(site),
            }));
        });
        prop_assert_eq!(violations, []);
    }
}

proptest! {
    #![proptest_config(histories(FEWER_HISTORIES))]

    #[test]
    fn plans_and_errors_are_consistent_with_their_reasons(history in history()) {
        live(&history, |site, planned| match planned {
            Ok(plan) => assert_plan_is_consistent(site, plan),
            Err(error) => assert_error_is_consistent(site, error),
        });
    }

    #[test]
    fn the_order_of_the_machines_does_not_matter(history in history(), turn in 0..30_usize) {
        live(&history, |site, planned| {
            let mut machines = site.machines.clone();
            machines.reverse();
            let middle = turn % machines.len().max(1);
            machines.rotate_left(middle);
            let again = plan(&crate::PlanInput { machines: &machines, ..site.input() });
            assert_eq!(&again, planned);
        });
    }

    /// Without an external change no node that joined leaves again, and no node is promoted and demoted.
    #[test]
    fn plans_that_follow_each_other_do_not_undo_each_other(history in history()) {
        let mut joined: BTreeSet<String> = BTreeSet::new();
        live(&history, |_, planned| {
            let Ok(plan) = planned else { return joined.clear() };
            if plan.action.is_none() {
                return joined.clear();
            }
            for change in &plan.changes {
                match change.change {
                    ChangeKind::Add | ChangeKind::Promote => {
                        joined.insert(change.address.clone());
                    }
                    ChangeKind::Remove | ChangeKind::Demote => {
                        assert!(!joined.contains(&change.address), "{}", change.address);
                    }
                    ChangeKind::Taint | ChangeKind::Untaint | ChangeKind::Update => {}
                }
            }
        });
    }
}

/// The properties prove nothing about actions and errors that no history reaches.
#[test]
fn the_histories_reach_every_action_and_every_error() {
    let mut runner = TestRunner::deterministic();
    let mut actions = BTreeSet::new();
    let mut errors = BTreeSet::new();
    for _ in 0..HISTORIES_THAT_REACH_ALL {
        let history = history().new_tree(&mut runner).unwrap().current();
        live(&history, |_, planned| match planned {
            Ok(plan) => actions.extend(plan.action),
            Err(error) => {
                errors.insert(error.kind);
            }
        });
    }
    assert_eq!(actions, Action::ALL.iter().copied().collect());
    assert_eq!(
        errors,
        BTreeSet::from([
            PlanErrorKind::NotAvailable,
            PlanErrorKind::MissingMachine,
            PlanErrorKind::TooManyNonExistent,
            PlanErrorKind::RoleWithoutTemplate,
        ])
    );
}

fn constraints_hold_at_rest(site: &Site, planned: &Result<Plan, PlanError>) {
    let Ok(Plan { action: None, reasons, .. }) = planned else { return };
    let Some(current) = &site.current else { return };
    if site.moment == LeaderStage::LeaderStart {
        return;
    }
    let at = |address: &str| {
        let address = address.to_owned();
        site.machines.iter().filter(move |machine| machine.address() == Some(&address))
    };
    let wanted = site.constraints.control_plane_count as usize;
    let control_plane = current.control_plane().count();
    // More only if each of them has a shared address: such nodes stay.
    let all_stay = current.control_plane().all(|node| at(&node.address).count() > 1);
    assert!(control_plane == wanted || (control_plane > wanted && all_stay));
    assert!(!site.template_changed);
    let workers = current.workers().count();
    let minimum = site.constraints.minimum_workers as usize;
    let maximum = site.constraints.maximum_workers as usize;
    let is_healthy = |address: &str| at(address).any(|machine| machine.status.state == MachineState::Healthy);
    let healthy = current.workers().filter(|node| is_healthy(&node.address)).count();
    let nothing_to_add = reasons.iter().any(|reason| {
        reason.rule == Action::IncreaseWorkers && matches!(reason.why, PlanReason::Shortage(_))
    });
    assert!(healthy >= minimum || nothing_to_add || (maximum != 0 && workers >= maximum));
}

/// Checks plans with contradictory or impossible constraints. Invariant I4 covers too few or too many workers.
fn contradictions_are_refused(site: &Site, planned: &Result<Plan, PlanError>) {
    let constraints = &site.constraints;
    let before = site.current.as_ref().map_or(0, |cluster| cluster.control_plane().count());
    let no_control_plane = constraints.control_plane_count == 0;
    if no_control_plane && let Ok(Plan { cluster: Some(after), .. }) = planned {
        assert!(before == 0 || after.control_plane().count() > 0, "the last control plane node left");
    }
    if site.current.is_some() || site.moment == LeaderStage::LeaderStart {
        return;
    }
    let (minimum, maximum) = (constraints.minimum_workers, constraints.maximum_workers);
    if no_control_plane {
        assert!(planned.as_ref().is_err_and(|error| error.message.contains("control-plane-count is 0")));
    } else if maximum != 0 && minimum > maximum {
        let named = |error: &PlanError| error.message.contains("is above maximum-workers");
        let too_few = |error: &PlanError| error.message.contains("no healthy machine");
        assert!(planned.as_ref().is_err_and(|error| named(error) || too_few(error)));
    }
}

fn assert_plan_is_consistent(site: &Site, plan: &Plan) {
    assert_eq!(plan.action.is_some(), plan.cluster.is_some());
    let failed = plan.reasons.iter().any(|reason| reason.outcome == Outcome::Failed);
    assert!(!failed);
    for &rule in Action::ALL {
        let fired = outcome_of(&plan.reasons, rule) == Outcome::Fired;
        assert_eq!(fired, plan.action == Some(rule), "{rule:?}");
    }
    let no_nodes = Cluster::default();
    let before = parts(site.current.as_ref().unwrap_or(&no_nodes));
    let Some(cluster) = &plan.cluster else {
        return assert!(plan.changes.is_empty());
    };
    cluster.check().unwrap();
    let after = parts(cluster);
    assert_eq!(after.len(), cluster.nodes.len(), "an address twice");
    let split = cluster.nodes.iter().position(|node| !node.control_plane).unwrap_or(cluster.nodes.len());
    assert!(cluster.nodes[split..].iter().all(|node| !node.control_plane), "control plane first");
    let claims = |address: &str| {
        let claiming = site.machines.iter().filter(|machine| machine.address() == Some(address));
        claiming.map(|machine| &*machine.spec.serial).collect::<BTreeSet<_>>().len()
    };
    for change in &plan.changes {
        let address = &*change.address;
        let is_shared = claims(address) > 1;
        assert!(
            !is_shared
                || !matches!(change.change, ChangeKind::Add | ChangeKind::Promote | ChangeKind::Remove)
        );
        let expected = match (before.get(address), after.get(address)) {
            (None, Some(part)) => (ChangeKind::Add, *part),
            (Some(part), None) => (ChangeKind::Remove, *part),
            (Some(Part::Worker), Some(Part::ControlPlane)) => (ChangeKind::Promote, Part::ControlPlane),
            (Some(Part::ControlPlane), Some(Part::Worker)) => (ChangeKind::Demote, Part::Worker),
            (Some(_), Some(part)) => {
                assert!(matches!(
                    change.change,
                    ChangeKind::Taint | ChangeKind::Untaint | ChangeKind::Update
                ));
                (change.change, *part)
            }
            (None, None) => panic!("a change without a node: {change:?}"),
        };
        assert_eq!((change.change, change.part), expected);
    }
    let changed: BTreeSet<&str> = plan.changes.iter().map(|change| &*change.address).collect();
    assert_eq!(changed.len(), plan.changes.len(), "two changes of one node");
    let node =
        |cluster: &Cluster, address: &str| cluster.nodes.iter().find(|node| node.address == address).cloned();
    let current = site.current.as_ref().unwrap_or(&no_nodes);
    for address in before.keys().chain(after.keys()) {
        let same = node(current, address) == node(cluster, address);
        assert_eq!(same, !changed.contains(address), "{address}");
    }
    for (address, part) in after {
        if before.get(address) != Some(&part) {
            joined_honestly(site, plan, address, part);
        }
    }
}

/// A machine with a new part is healthy, has an unshared address and the right role; demoted machines are exempt.
fn joined_honestly(site: &Site, plan: &Plan, address: &str, part: Part) {
    let before = parts(site.current.as_ref().unwrap_or(&Cluster::default())).contains_key(address);
    if before && part == Part::Worker {
        return;
    }
    let mut machines: Vec<&Machine> =
        site.machines.iter().filter(|machine| machine.address() == Some(address)).collect();
    machines.sort_by_key(|machine| machine.status.state);
    machines.dedup_by_key(|machine| &machine.spec.serial);
    assert_eq!(machines.len(), 1, "several machines claim {address}");
    // A machine that is listed again counts with the first of its states.
    assert_eq!(machines[0].status.state, MachineState::Healthy);
    assert!(machines[0].has_good_labels());
    assert!(part == Part::Worker || !site.under_repair.contains(address), "{address} is under repair");
    let role = machines[0].spec.role.as_str();
    match part {
        Part::ControlPlane => assert!(site.template.control_plane_role().is_none_or(|wanted| wanted == role)),
        Part::Worker => {
            let roles = site.template.workers().iter().map(|worker| worker.role.as_deref());
            assert!(roles.into_iter().any(|wanted| wanted.is_none_or(|wanted| wanted == role)));
        }
    }
    let chosen = plan.reasons.iter().find(|reason| {
        matches!(reason.why, PlanReason::Chosen(_)) && reason.address.as_deref() == Some(address)
    });
    assert!(chosen.is_some_and(|reason| reason.score.is_some()), "{address} was chosen without a reason");
}

fn assert_error_is_consistent(site: &Site, error: &PlanError) {
    assert!(!error.message.is_empty());
    let failed =
        Action::ALL.iter().filter(|rule| outcome_of(&error.reasons, **rule) == Outcome::Failed).count();
    assert_eq!(failed, 1);
    assert!(error.reasons.iter().all(|reason| reason.outcome != Outcome::Fired));
    match error.kind {
        PlanErrorKind::MissingMachine => assert_eq!(site.moment, LeaderStage::LeaderStart),
        PlanErrorKind::TooManyNonExistent => assert!(site.current.is_some()),
        PlanErrorKind::RoleWithoutTemplate | PlanErrorKind::NotAvailable => {}
    }
}

/// The one outcome of a rule, apart from reports of shared or repeated addresses.
fn outcome_of(reasons: &[Reason], rule: Action) -> Outcome {
    let apart = |reason: &&Reason| {
        matches!(reason.why, PlanReason::DuplicateAddress { .. } | PlanReason::ListedAgain { .. })
    };
    let of_rule = reasons.iter().filter(|reason| reason.rule == rule && !apart(reason));
    let outcomes: Vec<Outcome> = of_rule.map(|reason| reason.outcome).collect();
    assert!(!outcomes.is_empty() && outcomes.iter().all(|outcome| *outcome == outcomes[0]), "{rule:?}");
    outcomes[0]
}
