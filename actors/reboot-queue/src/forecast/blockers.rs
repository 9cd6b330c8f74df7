//! The pods of one node: which of them hold its drain, and what else the drain does to them.

use std::collections::{BTreeMap, BTreeSet};

use madako_domain::kubernetes::KubeNode;
use madako_domain::kubernetes::drain::{DrainPurpose, Treatment, treatment_of};
use madako_domain::kubernetes::workload::{BudgetIndex, DisruptionBudget, ScheduledPod, Workloads};
use madako_domain::reboot::config::RebootConfig;
use madako_domain::record::format_time;
use madako_json::named;
use serde::Serialize;
use strum::{IntoStaticStr, VariantNames};
use time::OffsetDateTime;

use super::DryRun;
use crate::limits::MAX_OWNERS;
use crate::next_action::join_shortened;

/// The kind of a blocker: as long as it lasts, the drain of its node does not begin or does not end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "kebab-case")]
pub enum BlockerKind {
    /// A pod of a job runs.
    Job,
    /// A disruption budget forbids the eviction of a protected pod.
    Budget,
    /// The API server refused a dry run for another reason.
    Refused,
    /// A pod was to end long ago, and has not.
    NotEnding,
    /// The node does not report, and has pods that must end.
    NodeDown,
    /// Kubernetes has no Node object of this name.
    NoNode,
    /// The repair queue repairs the node.
    Repaired,
}

named!(BlockerKind names);

/// The kind of a note: something that the drain does or costs, and that does not hold it now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "kebab-case")]
pub enum NoteKind {
    /// A budget lets the protected pods of one node, or of one wave, go only one after another.
    BudgetRounds,
    /// Pods outside of the protected namespaces are deleted although their budgets refuse.
    Deleted,
    /// Pods without a controller are gone for good.
    NotReplaced,
}

named!(NoteKind names);

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Owner {
    pub kind: String,
    pub name: String,
}

/// A budget with the evictions that it allows now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BudgetState {
    pub namespace: String,
    pub name: String,
    pub allowed: i64,
    pub healthy: i64,
    pub desired: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Blocker {
    /// See [`BlockerKind`].
    pub kind: &'static str,
    /// Namespace and name of the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// The owners of the pod, up to the top.
    pub owners: Vec<Owner>,
    /// The budgets that select the pod.
    pub budgets: Vec<BudgetState>,
    /// Age of the running job's pod, or of the request to end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub age_seconds: Option<u64>,
    pub why: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Note {
    /// See [`NoteKind`].
    pub kind: &'static str,
    pub pods: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget: Option<BudgetState>,
    pub why: String,
}

impl From<&DisruptionBudget> for BudgetState {
    fn from(budget: &DisruptionBudget) -> Self {
        let DisruptionBudget { namespace, name, allowed, healthy, desired, .. } = budget;
        Self {
            namespace: namespace.clone(),
            name: name.clone(),
            allowed: *allowed,
            healthy: *healthy,
            desired: *desired,
        }
    }
}

/// The workloads with their indexes, and the rules of a drain.
pub(super) struct Pods<'a> {
    pub(super) workloads: &'a Workloads,
    pub(super) nodes: BTreeMap<&'a str, &'a KubeNode>,
    by_node: BTreeMap<&'a str, Vec<&'a ScheduledPod>>,
    budgets: BudgetIndex<'a>,
    protected: &'a BTreeSet<String>,
    now: OffsetDateTime,
}

/// The findings on the pods of a node.
#[derive(Debug, Default)]
pub(super) struct NodeFindings<'a> {
    /// Pods that the drain ends.
    pub(super) ending: usize,
    pub(super) blockers: Vec<Blocker>,
    pub(super) notes: Vec<Note>,
    /// Protected pods by budget.
    pub(super) budgeted: BTreeMap<(&'a str, &'a str), (&'a DisruptionBudget, usize)>,
}

impl<'a> Pods<'a> {
    pub(super) fn new(
        workloads: &'a Workloads,
        protected: &'a BTreeSet<String>,
        now: OffsetDateTime,
    ) -> Self {
        let mut by_node: BTreeMap<&str, Vec<&ScheduledPod>> = BTreeMap::new();
        for pod in &workloads.pods {
            by_node.entry(&pod.node).or_default().push(pod);
        }
        let nodes = workloads.nodes.iter().map(|node| (node.name.as_str(), node)).collect();
        Self { workloads, nodes, by_node, budgets: BudgetIndex::new(&workloads.budgets), protected, now }
    }

    pub(super) fn pods_on_node(&self, node: &str) -> impl Iterator<Item = &'a ScheduledPod> + use<'a> {
        self.by_node.get(node).cloned().unwrap_or_default().into_iter()
    }

    fn treatment_of_pod(&self, pod: &ScheduledPod) -> Treatment {
        treatment_of(&pod.pod, self.protected, DrainPurpose::Reboot)
    }

    /// True for a pod whose eviction a budget may refuse, so that the drain is aborted.
    pub(super) fn is_guarded(&self, pod: &ScheduledPod) -> bool {
        let is_evicted = self.treatment_of_pod(pod) == Treatment::Evict && pod.pod.deleted_at.is_none();
        is_evicted && !self.budgets.budgets_of(pod).is_empty()
    }

    /// The findings on the pods of a node, by its name in Kubernetes.
    pub(super) fn inspect(
        &self,
        node: &str,
        config: Option<&RebootConfig>,
        answers: &BTreeMap<String, DryRun>,
    ) -> NodeFindings<'a> {
        let mut found = NodeFindings::default();
        let (mut deleted, mut alone) = (Vec::new(), Vec::new());
        for pod in self.pods_on_node(node) {
            let treatment = self.treatment_of_pod(pod);
            match treatment {
                Treatment::Stay => continue,
                Treatment::AwaitJob => {
                    found.blockers.push(self.running_job(pod));
                    continue;
                }
                Treatment::Evict | Treatment::EvictOrDelete => found.ending += 1,
            }
            if let Some(since) = pod.pod.deleted_at {
                let late = config.is_some_and(|config| since + config.eviction_timeout < self.now);
                found.blockers.extend(late.then(|| self.not_ending(pod, since)));
                continue;
            }
            if pod.owner.is_none() {
                alone.push(&pod.pod.id);
            }
            let budgets = self.budgets.budgets_of(pod);
            if treatment == Treatment::Evict {
                let answer = answers.get(&pod.pod.id.uid);
                found.blockers.extend(self.find_refusal(pod, &budgets, answer));
                if pod.is_budgeted() {
                    for budget in budgets {
                        let key = (&*budget.namespace, &*budget.name);
                        found.budgeted.entry(key).or_insert((budget, 0)).1 += 1;
                    }
                }
            } else if pod.is_budgeted() && budgets.iter().any(|budget| budget.allowed <= 0) {
                deleted.push(&pod.pod.id);
            }
        }
        found.notes.extend(
            found.budgeted.values().filter_map(|(budget, pods)| eviction_rounds_note(budget, *pods, config)),
        );
        if !deleted.is_empty() {
            let why = format!(
                "outside of the protected namespaces, pods are deleted if their budgets refuse the eviction, as they do \
                 now: {}",
                join_shortened(deleted.iter())
            );
            found.notes.push(Note { kind: NoteKind::Deleted.name(), pods: deleted.len(), budget: None, why });
        }
        if !alone.is_empty() {
            let why = format!("pods without a controller end for good: {}", join_shortened(alone.iter()));
            found.notes.push(Note {
                kind: NoteKind::NotReplaced.name(),
                pods: alone.len(),
                budget: None,
                why,
            });
        }
        let is_down = self.nodes.get(node).is_some_and(|node| node.ready.is_none());
        let waits = found.ending + found.blockers.len();
        if is_down && waits > 0 {
            let why = "the node does not report: its kubelet ends none of its pods".to_owned();
            found.blockers.insert(0, of_node(BlockerKind::NodeDown, why));
        }
        if !self.nodes.contains_key(node) {
            let why = format!("Kubernetes has no node {node}, so that it cannot be cordoned");
            found.blockers.insert(0, of_node(BlockerKind::NoNode, why));
        }
        found
    }

    fn running_job(&self, pod: &ScheduledPod) -> Blocker {
        let since = pod.started_at.map(|at| format!(" since {}", format_time(at))).unwrap_or_default();
        let why = format!("{} of a job runs{since}: no drain begins before it ends", self.describe(pod));
        Blocker {
            age_seconds: pod.started_at.and_then(|at| self.seconds_since(at)),
            ..self.pod_blocker(BlockerKind::Job, pod, why)
        }
    }

    fn not_ending(&self, pod: &ScheduledPod, since: OffsetDateTime) -> Blocker {
        let why = format!("{} was to end at {}, and has not ended", self.describe(pod), format_time(since));
        Blocker {
            age_seconds: self.seconds_since(since),
            ..self.pod_blocker(BlockerKind::NotEnding, pod, why)
        }
    }

    /// The blocker if the pod cannot be evicted now. Without a dry run, the state of its budgets decides.
    fn find_refusal(
        &self,
        pod: &ScheduledPod,
        budgets: &[&DisruptionBudget],
        answer: Option<&DryRun>,
    ) -> Option<Blocker> {
        let (kind, why) = match answer {
            Some(DryRun::Accepted) => return None,
            Some(DryRun::Refused { why }) => (BlockerKind::Budget, why.clone()),
            Some(DryRun::Failed { why }) => (BlockerKind::Refused, why.clone()),
            None => {
                let tight =
                    budgets.iter().find(|budget| budget.allowed <= 0).filter(|_| pod.is_budgeted())?;
                let DisruptionBudget { namespace, name, healthy, desired, .. } = tight;
                let why = format!(
                    "the budget {namespace}/{name} allows no eviction: {healthy} pods are healthy, and it demands {desired}"
                );
                (BlockerKind::Budget, why)
            }
        };
        let why = format!("{} cannot be evicted: {why}", self.describe(pod));
        let budgets = budgets.iter().map(|budget| BudgetState::from(*budget)).collect();
        Some(Blocker { budgets, ..self.pod_blocker(kind, pod, why) })
    }

    fn pod_blocker(&self, kind: BlockerKind, pod: &ScheduledPod, why: String) -> Blocker {
        Blocker { pod: Some(pod.pod.id.to_string()), owners: self.owners_of(pod), ..of_node(kind, why) }
    }

    /// The owners of a pod, up to the top.
    fn owners_of(&self, pod: &ScheduledPod) -> Vec<Owner> {
        let mut owners = Vec::new();
        let mut owner = pod.owner.as_ref();
        while let Some(found) = owner.filter(|_| owners.len() < MAX_OWNERS) {
            owners.push(Owner { kind: found.kind.clone(), name: found.name.clone() });
            owner = self.workloads.owners.get(&found.uid);
        }
        owners
    }

    /// The pod with its owners, for a sentence.
    fn describe(&self, pod: &ScheduledPod) -> String {
        let owners = self.owners_of(pod);
        let owners: Vec<String> =
            owners.iter().map(|owner| format!("{} {}", owner.kind, owner.name)).collect();
        match owners.is_empty() {
            true => format!("the pod {}", pod.pod.id),
            false => format!("the pod {} ({})", pod.pod.id, owners.join(", ")),
        }
    }

    fn seconds_since(&self, since: OffsetDateTime) -> Option<u64> {
        u64::try_from((self.now - since).whole_seconds()).ok()
    }
}

/// A blocker that no single pod causes.
pub(super) fn of_node(kind: BlockerKind, why: String) -> Blocker {
    let (owners, budgets) = (Vec::new(), Vec::new());
    Blocker { kind: kind.name(), pod: None, owners, budgets, age_seconds: None, why }
}

/// The note if a budget lets the pods of a node go only in several rounds.
fn eviction_rounds_note(
    budget: &DisruptionBudget,
    pods: usize,
    config: Option<&RebootConfig>,
) -> Option<Note> {
    let (count, each) = (i64::try_from(pods).unwrap_or(i64::MAX), budget.allowed.max(1));
    if count <= each {
        return None;
    }
    let rounds = count.saturating_add(each - 1) / each;
    let attempts = config.map_or(1, |config| config.evict_attempts);
    let times = if attempts == 1 { "once".to_owned() } else { format!("{attempts} times") };
    let why = format!(
        "the budget {}/{} allows {} evictions now, and {pods} of its pods are on the node: they end in {rounds} rounds or \
         more, each after replacements became healthy; a pod that is refused {times} aborts the drain",
        budget.namespace, budget.name, budget.allowed
    );
    Some(Note { kind: NoteKind::BudgetRounds.name(), pods, budget: Some(budget.into()), why })
}

/// The notes on budgets that are shared by several nodes of a wave.
pub(super) fn shared_budgets(nodes: &[NodeFindings<'_>]) -> Vec<Note> {
    let mut shared: BTreeMap<(&str, &str), (&DisruptionBudget, usize, usize)> = BTreeMap::new();
    for node in nodes {
        for (key, (budget, pods)) in &node.budgeted {
            let (_, all, of_nodes) = shared.entry(*key).or_insert((budget, 0, 0));
            *all += pods;
            *of_nodes += 1;
        }
    }
    let is_short = |(budget, pods, nodes): &&(&DisruptionBudget, usize, usize)| {
        *nodes > 1 && i64::try_from(*pods).unwrap_or(i64::MAX) > budget.allowed
    };
    let notes = shared.values().filter(is_short).map(|(budget, pods, nodes)| {
        let why = format!(
            "the budget {}/{} allows {} evictions now, and {pods} of its pods are on {nodes} nodes that drain together",
            budget.namespace, budget.name, budget.allowed
        );
        Note { kind: NoteKind::BudgetRounds.name(), pods: *pods, budget: Some((*budget).into()), why }
    });
    notes.collect()
}
