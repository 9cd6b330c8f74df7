//! Promises that something happens to the cluster, each within a time limit.
//!
//! The limit runs while the leader could act: leader, store and registry are without fault, planning is enabled, no
//! operation on nodes is due, and a plan is possible. An interruption restarts the limit: [`Exemption::Restarted`].

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use madako_domain::cluster::{Node, TAINT_STATE};
use madako_domain::keys;
use madako_domain::machine::MachineState;
use madako_domain::repair::RepairStatus;
use serde_json::Value as Json;

use crate::exemptions::Exemption;
use crate::fact::{Fact, FactTime, FaultPlace};
use crate::observed_world::{Answer, ObservedWorld, StoredValue, changes_planning_inputs};
use crate::oracle::{Context, FactJudgement, Predicate};

/// Healthy machines outside the cluster that suffice to replace any single node, whatever its role and rack.
const SPARE: usize = 4;

/// Objects that wait for an action, each with the time since which it waits.
pub(crate) struct Waiting<K> {
    since: BTreeMap<K, (FactTime, bool)>,
}

impl<K> Default for Waiting<K> {
    fn default() -> Self {
        Self { since: BTreeMap::new() }
    }
}

impl<K: Ord + Clone> Waiting<K> {
    /// Restarts the limit of every object, and counts the longest wait so far as excused.
    pub(crate) fn interrupt(&mut self, at: FactTime, ruling: &mut FactJudgement<'_>) {
        let since = std::mem::take(&mut self.since).into_values().map(|(since, _)| since).min();
        if let Some(since) = since {
            ruling.exemptions.record_use(Exemption::Restarted, at.saturating_sub(since));
        }
    }

    pub(crate) fn objects_done_waiting<'a>(&'a self, wrong: &BTreeSet<K>) -> Vec<&'a K> {
        self.since.keys().filter(|key| !wrong.contains(key)).collect()
    }

    /// Replaces the set of waiting objects; an object that waited already keeps its time.
    pub(crate) fn update(&mut self, wrong: BTreeSet<K>, at: FactTime) {
        self.since.retain(|key, _| wrong.contains(key));
        for key in wrong {
            self.since.entry(key).or_insert((at, false));
        }
    }

    /// Objects that have waited longer than `limit`; reports each once.
    pub(crate) fn report_overdue(&mut self, at: FactTime, limit: Duration) -> Vec<K> {
        let mut overdue = Vec::new();
        for (key, (since, reported)) in &mut self.since {
            if at > *since + limit && !*reported {
                *reported = true;
                overdue.push(key.clone());
            }
        }
        overdue
    }
}

/// Judges that no object of the cluster stays wrong for longer than the limit.
fn judge_waiting<K: Ord + Clone + std::fmt::Debug>(
    waiting: &mut Waiting<K>,
    context: &Context<'_>,
    ruling: &mut FactJudgement<'_>,
    (limit, what): (Duration, &str),
    wrong: impl FnOnce(&Cluster<'_>) -> BTreeSet<K>,
) {
    let Context { at, fact, written, now, .. } = context;
    let counts = match fact {
        Fact::Troubled { place, .. } => {
            let leads = |name: &String| now.leader.as_ref().is_some_and(|leader| leader.instance == *name);
            if matches!(place, FaultPlace::Store | FaultPlace::Registry)
                || matches!(place, FaultPlace::Instance(name) if leads(name))
            {
                waiting.interrupt(*at, ruling);
            }
            false
        }
        Fact::Stored { .. } => {
            if changes_planning_inputs(written)
                || written.iter().any(|written| written.key.starts_with(keys::LEADER))
            {
                waiting.interrupt(*at, ruling);
            }
            true
        }
        Fact::Answered { .. } | Fact::Polled { .. } => true,
        _ => false,
    };
    if !counts {
        return;
    }
    let Some(cluster) = Cluster::from_complete_world(now) else {
        waiting.interrupt(*at, ruling);
        return;
    };
    let wrong = wrong(&cluster);
    for _ in waiting.objects_done_waiting(&wrong) {
        ruling.count_test();
    }
    waiting.update(wrong, *at);
    for key in waiting.report_overdue(*at, limit) {
        ruling.report_broken(format_args!("{key:?} {what} after {limit:?}"));
    }
}

/// A cluster that the leader can plan on now, with the leader's observation of the machines.
struct Cluster<'a> {
    nodes: &'a [Node],
    answer: &'a Answer,
}

impl<'a> Cluster<'a> {
    fn from_complete_world(now: &'a ObservedWorld) -> Option<Self> {
        let (Some(cluster), Some(answer)) = (&now.cluster, now.last_machine_answer()) else { return None };
        let template = now.values.get(keys::SABAKAN_TEMPLATE).and_then(StoredValue::read::<Json>);
        let switched = now.switched_on_since(keys::SABAKAN_DISABLED).is_none()
            && template.is_some()
            && !now.values.contains_key(keys::REMOVAL_GUARD)
            && now.is_quiet(&[FaultPlace::Registry])
            && !now.is_operation_due();
        let constraints = now.current_constraints();
        let (control_plane, workers) = (cluster.control_plane().count(), cluster.workers().count());
        let sized = control_plane == constraints.control_plane_count as usize
            && workers >= constraints.minimum_workers as usize
            && (constraints.maximum_workers == 0 || workers <= constraints.maximum_workers as usize);
        let repaired: BTreeSet<&str> = now
            .entries
            .values()
            .filter(|item| item.entry.status == RepairStatus::Processing)
            .map(|item| &*item.entry.address)
            .collect();
        let is_node = |address: &str| cluster.nodes.iter().any(|node| node.address == address);
        let spare = answer.machines.iter().filter(|machine| {
            machine.state == MachineState::Healthy
                && !is_node(&machine.address)
                && !repaired.contains(&*machine.address)
        });
        let all_exist = cluster.nodes.iter().all(|node| answer.machine_at(&node.address).is_some());
        (switched && sized && all_exist && spare.count() >= SPARE)
            .then_some(Self { nodes: &cluster.nodes, answer })
    }

    fn state_of_node(&self, node: &Node) -> Option<MachineState> {
        self.answer.machine_at(&node.address).map(|machine| machine.state)
    }
}

#[derive(Default)]
pub(crate) struct TemplateApplied(Waiting<()>);

impl Predicate for TemplateApplied {
    fn observe(&mut self, context: &Context<'_>, ruling: &mut FactJudgement<'_>) {
        let now = context.now;
        // Invariant I2 may forbid plans while a control plane node is down, also if it only reboots.
        let is_silent = |node: &Node| now.silent.contains_key(&node.address);
        if now.cluster.as_ref().is_some_and(|cluster| cluster.control_plane().any(is_silent)) {
            self.0.interrupt(context.at, ruling);
            return;
        }
        let noted = now.values.get(keys::CLUSTER_REVISION).and_then(StoredValue::read::<i64>);
        let template = now.values.get(keys::SABAKAN_TEMPLATE).map(|value| value.modified);
        let limit = context.terms.reaction_time();
        judge_waiting(&mut self.0, context, ruling, (limit, "of the template is not applied"), |_| {
            if noted == template { BTreeSet::new() } else { [()].into() }
        });
    }
}

#[derive(Default)]
pub(crate) struct ControlPlaneReplaced(Waiting<String>);

impl Predicate for ControlPlaneReplaced {
    fn observe(&mut self, context: &Context<'_>, ruling: &mut FactJudgement<'_>) {
        let limit = context.terms.reaction_time();
        judge_waiting(
            &mut self.0,
            context,
            ruling,
            (limit, "is unreachable and in the control plane"),
            |cluster| {
                let control_plane = || cluster.nodes.iter().filter(|node| node.control_plane);
                let bad: BTreeSet<String> = control_plane()
                    .filter(|node| cluster.state_of_node(node) == Some(MachineState::Unreachable))
                    .map(|node| node.address.clone())
                    .collect();
                // Half or more of the control plane is never replaced at once.
                let few = bad.len() * 2 < control_plane().count();
                if few { bad } else { BTreeSet::new() }
            },
        );
    }
}

#[derive(Default)]
pub(crate) struct RetiredLeaves(Waiting<String>);

impl Predicate for RetiredLeaves {
    fn observe(&mut self, context: &Context<'_>, ruling: &mut FactJudgement<'_>) {
        let (limit, wait, at) = (context.terms.reaction_time(), context.terms.retire_wait, context.at);
        judge_waiting(
            &mut self.0,
            context,
            ruling,
            (limit, "is retired for long and in the cluster"),
            |cluster| {
                let retired = |node: &&Node| {
                    let machine = cluster.answer.machine_at(&node.address);
                    machine.is_some_and(|machine| {
                        machine.state == MachineState::Retired && machine.since + wait < at
                    })
                };
                let workers = cluster.nodes.iter().filter(|node| !node.control_plane);
                workers.filter(retired).map(|node| node.address.clone()).collect()
            },
        );
    }
}

#[derive(Default)]
pub(crate) struct StateTaint(Waiting<String>);

impl Predicate for StateTaint {
    fn observe(&mut self, context: &Context<'_>, ruling: &mut FactJudgement<'_>) {
        let limit = context.terms.reaction_time();
        judge_waiting(
            &mut self.0,
            context,
            ruling,
            (limit, "has not the taint of its machine's state"),
            |cluster| {
                let wrong = |node: &&Node| {
                    let wanted = match cluster.state_of_node(node) {
                        Some(MachineState::Retiring) => Some("retiring"),
                        Some(MachineState::Retired) => Some("retired"),
                        _ => None,
                    };
                    let taint = node.taints.iter().find(|taint| taint.key == TAINT_STATE);
                    taint.map(|taint| &*taint.value) != wanted
                };
                cluster.nodes.iter().filter(wrong).map(|node| node.address.clone()).collect()
            },
        );
    }
}
