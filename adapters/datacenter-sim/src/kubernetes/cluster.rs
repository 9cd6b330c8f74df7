//! The state of a simulated Kubernetes, and its changes over time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use madako_domain::cluster::Taint;
use madako_domain::kubernetes::selector::LabelSelector;
use madako_domain::kubernetes::workload::{DisruptionBudget, OwnerReference, ScheduledPod, Workloads};
use madako_domain::kubernetes::{
    ANNOTATION_CORDONED_BEFORE, ANNOTATION_REBOOT, EvictionOutcome, KubeNode, Pod, PodId, PodPhase,
};
use time::OffsetDateTime;

use super::selector;
use crate::chance::{Kind, SeededChance};

/// Mean time from a pod's binding until it runs.
const START_TAKES: Duration = Duration::from_secs(5);
/// Mean time from the end of a pod until its kubelet reports that its volume is not in use any more.
const DETACH_TAKES: Duration = Duration::from_secs(10);

/// Controller that creates and replaces pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodOwner {
    /// Keeps this many pods, on any nodes.
    ReplicaSet { replicas: u32 },
    /// Keeps one pod on each node, cordoned or not.
    DaemonSet,
    /// The same with the update strategy `OnDelete`.
    OnDeleteDaemonSet,
    /// Runs this many pods to completion.
    Job { pods: u32, takes: Duration },
    /// Static pods, one on each node; the API shows their mirror pods.
    Static,
    /// No controller: an evicted or deleted pod is not replaced.
    Nobody { pods: u32 },
}

impl PodOwner {
    /// Kind in a pod's owner reference. The owner of a mirror pod is its node.
    fn kind(self) -> Option<&'static str> {
        match self {
            Self::ReplicaSet { .. } => Some("ReplicaSet"),
            Self::DaemonSet | Self::OnDeleteDaemonSet => Some("DaemonSet"),
            Self::Job { .. } => Some("Job"),
            Self::Static => Some("Node"),
            Self::Nobody { .. } => None,
        }
    }

    fn is_everywhere(self) -> bool {
        matches!(self, Self::DaemonSet | Self::OnDeleteDaemonSet | Self::Static)
    }
}

#[derive(Debug, Clone)]
pub struct Workload {
    pub namespace: String,
    /// Name, and prefix of its pods' names.
    pub name: String,
    pub owner: PodOwner,
    pub grace: Duration,
    /// Mean time that its pods take to end after a request; the grace period is the upper bound.
    pub ends_within: Duration,
}

/// A disruption budget for all pods of one workload.
#[derive(Debug, Clone)]
pub struct WorkloadBudget {
    pub namespace: String,
    pub name: String,
    pub workload: String,
    /// Number of pods that must stay available.
    pub min_available: u32,
}

#[derive(Debug, Clone)]
struct SimulatedPod {
    pod: Pod,
    node: Option<String>,
    workload: usize,
    /// The process hangs and outlives its grace period.
    stuck: bool,
    /// The time at which its containers began to run.
    started_at: Option<OffsetDateTime>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum PodStep {
    Run,
    Complete,
    End,
    /// The volume of an ended pod is not in use any more.
    Detach,
}

pub struct Cluster {
    chance: SeededChance,
    now: OffsetDateTime,
    nodes: BTreeMap<String, KubeNode>,
    namespaces: BTreeMap<String, BTreeMap<String, String>>,
    workloads: Vec<Workload>,
    budgets: Vec<WorkloadBudget>,
    /// Workloads whose pods have a volume each.
    with_volumes: BTreeSet<usize>,
    /// Nodes with a volume in use, by the uid of its pod, which may have ended.
    volumes: BTreeMap<u64, String>,
    /// By uid, so that pods are ordered by age.
    pods: BTreeMap<u64, SimulatedPod>,
    due: BTreeSet<(OffsetDateTime, u64, PodStep)>,
    made: u64,
    writes: u64,
}

impl Cluster {
    pub(super) fn new(seed: u64, now: OffsetDateTime) -> Self {
        Self {
            chance: SeededChance::new(seed),
            now,
            nodes: BTreeMap::new(),
            namespaces: BTreeMap::new(),
            workloads: Vec::new(),
            budgets: Vec::new(),
            with_volumes: BTreeSet::new(),
            volumes: BTreeMap::new(),
            pods: BTreeMap::new(),
            due: BTreeSet::new(),
            made: 0,
            writes: 0,
        }
    }

    /// Adds a ready node; replaces a node of the same name.
    pub fn add_node(&mut self, name: &str) {
        let node = KubeNode { name: name.to_owned(), ready: Some(true), ..KubeNode::default() };
        self.nodes.insert(name.to_owned(), node);
        self.schedule_pods();
    }

    /// Removes a node and its pods at once.
    pub fn remove_node(&mut self, name: &str) {
        self.nodes.remove(name);
        self.pods.retain(|_, kept| kept.node.as_deref() != Some(name));
        self.volumes.retain(|_, node| node != name);
        self.schedule_pods();
    }

    pub fn set_taints(&mut self, name: &str, taints: Vec<Taint>) {
        if let Some(node) = self.nodes.get_mut(name) {
            node.taints = taints;
        }
    }

    /// Sets whether a node's kubelet answers. While it does not, no pod there starts or ends.
    pub fn set_ready(&mut self, name: &str, ready: bool) {
        let Some(node) = self.nodes.get_mut(name) else { return };
        // The API server learns only that the kubelet does not report any more.
        node.ready = ready.then_some(true);
        if ready {
            let waiting: Vec<u64> =
                self.pods_on_node(name).filter(|(_, kept)| !kept.stuck).map(|(uid, _)| uid).collect();
            for uid in waiting {
                self.plan(uid);
            }
            let unused =
                self.volumes.iter().filter(|(uid, node)| *node == name && !self.pods.contains_key(uid));
            let unused: Vec<u64> = unused.map(|(uid, _)| *uid).collect();
            for uid in unused {
                self.plan_detachment(uid);
            }
        }
        self.schedule_pods();
    }

    /// Adds a namespace, or replaces its labels.
    pub fn add_namespace(&mut self, name: &str, labels: &[(&str, &str)]) {
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        self.namespaces.insert(name.to_owned(), labels);
    }

    pub fn add_workload(&mut self, workload: Workload) {
        let (owner, index) = (workload.owner, self.workloads.len());
        self.workloads.push(workload);
        if let PodOwner::Nobody { pods } = owner {
            for _ in 0..pods {
                self.create_pod(index, None);
            }
        }
        self.schedule_pods();
    }

    /// Gives a volume to each pod of a workload that starts from now on.
    pub fn give_volumes(&mut self, namespace: &str, name: &str) {
        let is_asked =
            |(_, workload): &(usize, &Workload)| workload.namespace == namespace && workload.name == name;
        self.with_volumes.extend(self.workloads.iter().enumerate().filter(is_asked).map(|(index, _)| index));
    }

    pub fn add_budget(&mut self, budget: WorkloadBudget) {
        self.budgets.push(budget);
    }

    pub fn remove_budget(&mut self, namespace: &str, name: &str) {
        self.budgets.retain(|budget| budget.namespace != namespace || budget.name != name);
    }

    /// Sets whether a pod hangs. A hanging pod never ends; its grace period has no effect.
    pub fn set_stuck(&mut self, pod: &PodId, stuck: bool) {
        let Some(uid) = self.find_pod(pod) else { return };
        if let Some(kept) = self.pods.get_mut(&uid) {
            kept.stuck = stuck;
        }
        if !stuck {
            self.plan(uid);
        }
    }

    #[must_use]
    pub fn nodes(&self) -> Vec<KubeNode> {
        let with_volumes = |node: &KubeNode| {
            let of_node = self.volumes.iter().filter(|(_, on)| **on == node.name);
            let volumes_in_use = of_node.map(|(uid, _)| format!("kubernetes.io/csi/sim^{uid:05x}")).collect();
            KubeNode { volumes_in_use, ..node.clone() }
        };
        self.nodes.values().map(with_volumes).collect()
    }

    /// All pods, each with the node that it is bound to.
    #[must_use]
    pub fn pods(&self) -> Vec<(Option<String>, Pod)> {
        self.pods.values().map(|kept| (kept.node.clone(), kept.pod.clone())).collect()
    }

    /// Number of writes that changed the state. Invariant I12 forbids writes without a reason.
    #[must_use]
    pub fn writes(&self) -> u64 {
        self.writes
    }

    /// Names of the namespaces that a label selector in API notation matches; an empty selector matches all.
    ///
    /// # Errors
    /// The selector is invalid for the API server.
    pub fn matching_namespaces(&self, selector: &str) -> Result<BTreeSet<String>, String> {
        let mut chosen = BTreeSet::new();
        for (name, labels) in &self.namespaces {
            if selector::selector_matches(selector, labels)? {
                chosen.insert(name.clone());
            }
        }
        Ok(chosen)
    }

    #[must_use]
    pub fn pods_on(&self, node: &str) -> Vec<Pod> {
        let mut pods: Vec<Pod> = self.pods_on_node(node).map(|(_, kept)| kept.pod.clone()).collect();
        // The order of the API server's lists.
        pods.sort_by(|one, other| one.id.cmp(&other.id));
        pods
    }

    /// The pods on a node that belong to DaemonSets with the update strategy `OnDelete`.
    #[must_use]
    pub fn on_delete_pods(&self, node: &str) -> Vec<PodId> {
        let is_on_delete = |kept: &SimulatedPod| {
            let workload = self.workloads.get(kept.workload);
            workload.is_some_and(|workload| workload.owner == PodOwner::OnDeleteDaemonSet)
        };
        let kept = self.pods_on_node(node).map(|(_, kept)| kept).filter(|kept| is_on_delete(kept));
        kept.map(|kept| kept.pod.id.clone()).collect()
    }

    /// The view of a forecast. Each pod has the label `app` with the name of its workload, which its budgets select.
    #[must_use]
    pub fn workloads(&self) -> Workloads {
        let mut pods: Vec<ScheduledPod> =
            self.pods.values().filter_map(|kept| self.scheduled_pod(kept)).collect();
        pods.sort_by(|one, other| one.pod.id.cmp(&other.pod.id));
        let budgets = self.budgets.iter().map(|budget| {
            let (healthy, desired) = (self.count_healthy(budget), i64::from(budget.min_available));
            DisruptionBudget {
                namespace: budget.namespace.clone(),
                name: budget.name.clone(),
                selector: Some(LabelSelector {
                    match_labels: labels_of(&budget.workload),
                    ..LabelSelector::default()
                }),
                allowed: (healthy - desired).max(0),
                healthy,
                desired,
            }
        });
        let budgets = budgets.collect();
        Workloads { nodes: self.nodes(), pods, owners: BTreeMap::new(), budgets }
    }

    fn scheduled_pod(&self, kept: &SimulatedPod) -> Option<ScheduledPod> {
        let node = kept.node.clone()?;
        let workload = &self.workloads[kept.workload];
        let owner = workload.owner.kind().map(|kind| OwnerReference {
            kind: kind.to_owned(),
            name: if kind == "Node" { node.clone() } else { workload.name.clone() },
            uid: format!("00000000-0000-4000-9000-{:012x}", kept.workload),
        });
        let labels = labels_of(&workload.name);
        Some(ScheduledPod { pod: kept.pod.clone(), node, labels, owner, started_at: kept.started_at })
    }

    /// Healthy pods of a budget's workload.
    fn count_healthy(&self, budget: &WorkloadBudget) -> i64 {
        let is_healthy = |kept: &&SimulatedPod| {
            let workload = &self.workloads[kept.workload];
            (workload.namespace == budget.namespace && workload.name == budget.workload)
                && kept.pod.phase == PodPhase::Running
                && kept.pod.deleted_at.is_none()
        };
        i64::try_from(self.pods.values().filter(is_healthy).count()).unwrap_or(i64::MAX)
    }

    /// Cordons or uncordons a node as the service does; returns whether the node exists. The cordon of another client stays.
    pub fn set_cordon(&mut self, name: &str, cordoned: bool) -> bool {
        let Some(node) = self.nodes.get_mut(name) else { return false };
        let before = (node.unschedulable, node.annotations.clone());
        if cordoned {
            if node.is_cordoned_by_another() {
                node.annotations.insert(ANNOTATION_CORDONED_BEFORE.to_owned(), "true".to_owned());
            } else if !node.unschedulable {
                node.annotations.remove(ANNOTATION_CORDONED_BEFORE);
            }
            node.annotations.insert(ANNOTATION_REBOOT.to_owned(), "true".to_owned());
            node.unschedulable = true;
        } else {
            node.unschedulable &= node.is_cordoned_by_another() || node.was_cordoned_before();
            node.annotations.remove(ANNOTATION_REBOOT);
            node.annotations.remove(ANNOTATION_CORDONED_BEFORE);
        }
        if before != (node.unschedulable, node.annotations.clone()) {
            self.writes += 1;
        }
        self.schedule_pods();
        true
    }

    /// Cordons or uncordons a node as `kubectl` does.
    pub fn cordon_as_another(&mut self, name: &str, cordoned: bool) {
        if let Some(node) = self.nodes.get_mut(name) {
            node.unschedulable = cordoned;
        }
    }

    /// Evicts a pod; with `dry_run`, only reports whether the API server would accept the eviction.
    ///
    /// # Errors
    /// Several budgets apply to the pod.
    pub fn evict(&mut self, id: &PodId, dry_run: bool) -> Result<EvictionOutcome, String> {
        let Some(uid) = self.find_pod(id) else { return Ok(EvictionOutcome::Gone) };
        let kept = &self.pods[&uid];
        let workload = &self.workloads[kept.workload];
        let mut budgets = self
            .budgets
            .iter()
            .filter(|budget| budget.namespace == workload.namespace && budget.workload == workload.name);
        // A pod that has ended or not started does not count against a budget.
        if kept.pod.phase == PodPhase::Running && kept.pod.deleted_at.is_none() {
            let budget = budgets.next();
            if budget.is_some() && budgets.next().is_some() {
                return Err("This pod has more than one PodDisruptionBudget".to_owned());
            }
            let of_owner = self.pods.values().filter(|other| other.workload == kept.workload);
            let healthy = of_owner
                .filter(|other| other.pod.phase == PodPhase::Running && other.pod.deleted_at.is_none())
                .count();
            if let Some(budget) = budget
                && healthy <= budget.min_available as usize
            {
                let why = format!(
                    "Cannot evict pod as it would violate the pod's disruption budget. The disruption budget {} needs {} \
                     healthy pods and has {healthy} currently",
                    budget.name, budget.min_available
                );
                return Ok(EvictionOutcome::Refused { why });
            }
        }
        if !dry_run {
            self.delete(id);
        }
        Ok(EvictionOutcome::Accepted)
    }

    /// Starts the deletion of a pod. A pod that is gone or being deleted is unchanged.
    pub fn delete(&mut self, id: &PodId) {
        let Some(uid) = self.find_pod(id) else { return };
        let now = self.now;
        let Some(kept) = self.pods.get_mut(&uid) else { return };
        if kept.pod.deleted_at.is_none() {
            self.writes += 1;
            kept.pod.deleted_at = Some(now);
        }
        if kept.node.is_none() {
            self.pods.remove(&uid);
        } else {
            self.plan(uid);
        }
        self.schedule_pods();
    }

    pub(super) fn advance(&mut self, to: OffsetDateTime) {
        while let Some(first) = self.due.first().copied().filter(|(at, ..)| *at <= to) {
            self.due.remove(&first);
            let (at, uid, step) = first;
            self.now = self.now.max(at);
            self.step(uid, step);
        }
        self.now = self.now.max(to);
    }

    fn step(&mut self, uid: u64, step: PodStep) {
        if step == PodStep::Detach {
            let node = self.volumes.get(&uid).and_then(|node| self.nodes.get(node));
            if node.is_some_and(|node| node.ready == Some(true)) {
                self.volumes.remove(&uid);
            }
            return;
        }
        let Some(kept) = self.pods.get_mut(&uid) else { return };
        let node = kept.node.as_deref().and_then(|node| self.nodes.get(node));
        if kept.stuck || node.is_none_or(|node| node.ready != Some(true)) {
            return;
        }
        match (step, kept.pod.phase, kept.pod.deleted_at) {
            (PodStep::Run, PodPhase::Pending, None) => {
                kept.pod.phase = PodPhase::Running;
                kept.started_at = Some(self.now);
                let node = kept.node.clone().filter(|_| self.with_volumes.contains(&kept.workload));
                self.volumes.extend(node.map(|node| (uid, node)));
                self.plan(uid);
            }
            (PodStep::Complete, PodPhase::Running, None) => kept.pod.phase = PodPhase::Succeeded,
            (PodStep::End, _, Some(_)) => {
                self.pods.remove(&uid);
                self.plan_detachment(uid);
                self.schedule_pods();
            }
            // The pod's state changed before the planned step.
            _ => {}
        }
    }

    fn plan(&mut self, uid: u64) {
        let Some(kept) = self.pods.get(&uid) else { return };
        let workload = &self.workloads[kept.workload];
        let (subject, nth) = (saturating_number(kept.workload as u64), saturating_number(uid));
        let taking = |kind, mean| self.chance.draw_duration(kind, subject, nth, mean);
        let (after, step) = match (kept.pod.deleted_at, kept.pod.phase, workload.owner) {
            (Some(_), ..) => {
                (taking(Kind::PodEndTakes, workload.ends_within).min(workload.grace), PodStep::End)
            }
            (None, PodPhase::Pending, _) => (taking(Kind::PodStartTakes, START_TAKES), PodStep::Run),
            (None, PodPhase::Running, PodOwner::Job { takes, .. }) => {
                (taking(Kind::JobTakes, takes), PodStep::Complete)
            }
            _ => return,
        };
        self.due.insert((self.now + after, uid, step));
    }

    fn plan_detachment(&mut self, uid: u64) {
        if self.volumes.contains_key(&uid) {
            let nth = saturating_number(uid);
            let after = self.chance.draw_duration(Kind::VolumeDetachTakes, 0, nth, DETACH_TAKES);
            self.due.insert((self.now + after, uid, PodStep::Detach));
        }
    }

    /// Creates missing pods and binds pending ones.
    fn schedule_pods(&mut self) {
        for index in 0..self.workloads.len() {
            let workload = &self.workloads[index];
            match workload.owner {
                PodOwner::ReplicaSet { replicas } => {
                    let alive =
                        self.pods_of_workload(index).filter(|kept| kept.pod.deleted_at.is_none()).count();
                    for _ in alive..replicas as usize {
                        self.create_pod(index, None);
                    }
                }
                PodOwner::Job { pods, .. } => {
                    let there =
                        self.pods_of_workload(index).filter(|kept| kept.pod.deleted_at.is_none()).count();
                    for _ in there..pods as usize {
                        self.create_pod(index, None);
                    }
                }
                PodOwner::DaemonSet | PodOwner::OnDeleteDaemonSet | PodOwner::Static => {
                    let names: Vec<String> = self.nodes.keys().cloned().collect();
                    for node in names {
                        if !self.pods_of_workload(index).any(|kept| kept.node.as_ref() == Some(&node)) {
                            self.create_pod(index, Some(node));
                        }
                    }
                }
                PodOwner::Nobody { .. } => {}
            }
        }
        let unbound: Vec<u64> =
            self.pods.iter().filter(|(_, kept)| kept.node.is_none()).map(|(uid, _)| *uid).collect();
        for uid in unbound {
            let Some(node) = self.choose_node(uid) else { return };
            if let Some(kept) = self.pods.get_mut(&uid) {
                kept.node = Some(node);
            }
            self.plan(uid);
        }
    }

    fn create_pod(&mut self, index: usize, node: Option<String>) {
        self.made += 1;
        let uid = self.made;
        let workload = &self.workloads[index];
        let name = match &node {
            // Static pods are named after their node; other pods get a unique suffix.
            Some(node) if workload.owner == PodOwner::Static => format!("{}-{node}", workload.name),
            _ => format!("{}-{uid:05x}", workload.name),
        };
        let pod = Pod {
            id: PodId {
                namespace: workload.namespace.clone(),
                name,
                uid: format!("00000000-0000-4000-8000-{uid:012x}"),
            },
            phase: PodPhase::Pending,
            controller: workload.owner.kind().map(str::to_owned),
            mirror: workload.owner == PodOwner::Static,
            deleted_at: None,
        };
        let bound = node.is_some() && workload.owner.is_everywhere();
        self.pods.insert(uid, SimulatedPod { pod, node, workload: index, stuck: false, started_at: None });
        if bound {
            self.plan(uid);
        }
    }

    /// Node for a pod: a random one of the nodes with the fewest pods.
    fn choose_node(&self, uid: u64) -> Option<String> {
        let open = |node: &&KubeNode| {
            let repels = |taint: &Taint| matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute");
            !node.unschedulable && node.ready == Some(true) && !node.taints.iter().any(repels)
        };
        let loads: Vec<(usize, &String)> = self
            .nodes
            .values()
            .filter(open)
            .map(|node| (self.pods_on_node(&node.name).count(), &node.name))
            .collect();
        let least = loads.iter().map(|(load, _)| *load).min()?;
        let equal: Vec<&String> =
            loads.into_iter().filter(|(load, _)| *load == least).map(|(_, name)| name).collect();
        let which = self.chance.number_below(Kind::PodNode, 0, saturating_number(uid), equal.len() as u64);
        equal.get(usize::try_from(which).ok()?).map(|name| (*name).clone())
    }

    fn find_pod(&self, id: &PodId) -> Option<u64> {
        self.pods.iter().find(|(_, kept)| kept.pod.id == *id).map(|(uid, _)| *uid)
    }

    fn pods_of_workload(&self, index: usize) -> impl Iterator<Item = &SimulatedPod> {
        self.pods.values().filter(move |kept| kept.workload == index)
    }

    fn pods_on_node(&self, node: &str) -> impl Iterator<Item = (u64, &SimulatedPod)> {
        self.pods
            .iter()
            .filter(move |(_, kept)| kept.node.as_deref() == Some(node))
            .map(|(uid, kept)| (*uid, kept))
    }
}

fn labels_of(workload: &str) -> BTreeMap<String, String> {
    BTreeMap::from([("app".to_owned(), workload.to_owned())])
}

/// A count modulo 2^32 - 1, as the subject of a choice.
fn saturating_number(count: u64) -> u32 {
    u32::try_from(count % u64::from(u32::MAX)).unwrap_or_default()
}
