//! The Kubernetes of a run: its nodes are those of the cluster, pods of every kind live there, and it fails now and then.
//!
//! Judges drains: that no command of a step that drains begins on a node while a pod is there that should have gone; that
//! a drain which is given up waits as long as it must before the next; that none goes on for ever; and that no node stays
//! cordoned when everything is repaired.
//!
//! What it does not judge: whether a drain could have been done in a politer way (the drain's own tests do).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use madako_datacenter_sim::Fault;
use madako_datacenter_sim::kubernetes::{Budget, Owner, SimulatedKubernetes, Workload};
use madako_domain::cluster::Cluster;
use madako_domain::invariants::{Id, Violation};
use madako_domain::kubernetes::drain::unfinished;
use madako_domain::kubernetes::{KubeNode, Pod};
use madako_domain::repair::config::RepairConfig;
use madako_domain::repair::{RepairQueueEntry, RepairStatus, RepairStepStatus};
use madako_protocol::ports::Clock;
use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;

/// The namespace whose pods may be deleted, and the one whose pods are only ever evicted.
const OPEN: &str = "web";
/// The namespace whose pods are only ever evicted, never deleted.
pub const PROTECTED: &str = "kept";

/// The deployment whose budget allows a few evictions, and the one that has a budget now and then that allows none.
const STORE: (&str, u32, u32) = ("store", 10, 8);
const LEDGER: (&str, u32) = ("ledger", 6);

/// How long pods may take to end, as the configuration of the simulation says.
pub const EVICTION_TIMEOUT: Duration = Duration::from_secs(120);

/// Longest that an entry may be drained: the time-out, and the time until a leader sees that it is over. Leaders are
/// killed, paused and cut off for minutes at a time, one after another.
const DRAIN_ENDS: Duration = Duration::from_secs(120 + 20 * 60);

/// Least pause after a drain was given up, and what is added to it at most for each time (CKE).
const BACK_OFF: i64 = 300;

/// Clones are the same Kubernetes.
#[derive(Clone)]
pub struct Drains {
    /// The Kubernetes itself.
    pub kubernetes: SimulatedKubernetes,
}

fn workload(namespace: &str, name: &str, owner: Owner) -> Workload {
    Workload {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        owner,
        grace: Duration::from_secs(30),
        ends_within: Duration::from_secs(10),
    }
}

fn budget((workload, min_available): (&str, u32)) -> Budget {
    Budget {
        namespace: PROTECTED.to_owned(),
        name: workload.to_owned(),
        workload: workload.to_owned(),
        min_available,
    }
}

/// Name of a node in Kubernetes.
fn name_of(node: &madako_domain::cluster::Node) -> &str {
    if node.hostname.is_empty() { &node.address } else { &node.hostname }
}

impl Drains {
    /// With pods of every kind and no nodes.
    pub fn new(seed: u64, clock: Arc<dyn Clock>) -> Self {
        let kubernetes = SimulatedKubernetes::new(seed, clock);
        kubernetes.with(|cluster| {
            cluster.add_namespace(OPEN, &[]);
            cluster.add_namespace(PROTECTED, &[("team", PROTECTED)]);
            cluster.add_workload(workload(OPEN, "front", Owner::ReplicaSet { replicas: 30 }));
            cluster.add_workload(workload(OPEN, "logs", Owner::DaemonSet));
            cluster.add_workload(workload(OPEN, "proxy", Owner::Static));
            cluster.add_workload(workload(OPEN, "shell", Owner::Nobody { pods: 3 }));
            let takes = Duration::from_secs(300);
            cluster.add_workload(workload(OPEN, "sums", Owner::Job { pods: 4, takes }));
            let (store, replicas, min_available) = STORE;
            cluster.add_workload(workload(PROTECTED, store, Owner::ReplicaSet { replicas }));
            cluster.add_budget(budget((store, min_available)));
            let (ledger, replicas) = LEDGER;
            cluster.add_workload(workload(PROTECTED, ledger, Owner::ReplicaSet { replicas }));
        });
        Self { kubernetes }
    }

    /// The nodes become those of the cluster.
    pub fn follow(&self, cluster: &Cluster) {
        let wanted: BTreeSet<&str> = cluster.nodes.iter().map(name_of).collect();
        self.kubernetes.with(|kubernetes| {
            let there: Vec<String> = kubernetes.nodes().into_iter().map(|node| node.name).collect();
            for gone in there.iter().filter(|name| !wanted.contains(name.as_str())) {
                kubernetes.remove_node(gone);
            }
            for new in wanted.into_iter().filter(|name| !there.iter().any(|there| there == name)) {
                kubernetes.add_node(new);
            }
        });
    }

    fn pods_on(&self, node: &str) -> Vec<Pod> {
        let pods = self.kubernetes.with(|kubernetes| kubernetes.pods());
        pods.into_iter().filter(|(on, _)| on.as_deref() == Some(node)).map(|(_, pod)| pod).collect()
    }

    /// That the command of a step begins, by the cluster of that time: what is wrong with it.
    pub fn undrained(&self, cluster: &Cluster, entry: &RepairQueueEntry, step: u32) -> Option<String> {
        let node = cluster.nodes.iter().find(|node| node.address == entry.address)?;
        let config = RepairConfig::read(&cluster.repair).unwrap();
        let drains = config.of(entry).ok()?.step(step)?.need_drain;
        let left = unfinished(&self.pods_on(name_of(node))).filter(|_| drains)?;
        Some(format!("step {step} of entry {} drains, and {left}", entry.index))
    }

    /// Nodes that are still cordoned for a repair: none may be when nothing is repaired.
    pub fn left_cordoned(&self) -> Vec<Violation> {
        let nodes = self.kubernetes.with(|kubernetes| kubernetes.nodes());
        let cordoned = nodes.into_iter().filter(KubeNode::is_cordoned_by_us);
        cordoned.map(|node| broken(format!("peace ends with the node {} cordoned", node.name))).collect()
    }

    /// Something goes wrong with Kubernetes, or with what runs there, for a while. Says what.
    pub fn trouble(&self, chance: &mut ChaCha8Rng) -> Option<String> {
        let hour = chance.random_range(0..10_u32) == 0;
        let seconds = if hour { 3600.0 } else { chance.random_range(30.0..600.0) };
        let length = Duration::from_secs_f64(seconds);
        let drains = self.clone();
        match chance.random_range(0..30_u32) {
            0 | 1 => {
                let faults = [
                    Fault::RefuseConnections,
                    Fault::Hang,
                    Fault::Slow(Duration::from_secs(7)),
                    Fault::Status(403),
                    Fault::TruncateBody,
                ];
                let fault = faults[chance.random_range(0..faults.len())].clone();
                let told = format!("Kubernetes: {fault:?} for {length:?}");
                self.kubernetes.faults().set(fault.clone());
                after(length, move || drains.kubernetes.faults().clear(&fault));
                Some(told)
            }
            2 => {
                let (ledger, _) = LEDGER;
                self.kubernetes.with(|kubernetes| kubernetes.add_budget(budget(LEDGER)));
                after(length, move || {
                    drains.kubernetes.with(|kubernetes| kubernetes.remove_budget(PROTECTED, ledger));
                });
                Some(format!("Kubernetes: a budget never allows an eviction for {length:?}"))
            }
            3 | 4 => {
                let pods = self.kubernetes.with(|kubernetes| kubernetes.pods());
                let goes =
                    |(_, pod): &&(Option<String>, Pod)| unfinished(std::slice::from_ref(pod)).is_some();
                let pods: Vec<_> = pods.iter().filter(goes).map(|(_, pod)| pod.id.clone()).collect();
                if pods.is_empty() {
                    return None;
                }
                let stuck: Vec<_> =
                    (0..6).map(|_| pods[chance.random_range(0..pods.len())].clone()).collect();
                let told = format!("Kubernetes: {} pods never end for {length:?}", stuck.len());
                self.kubernetes.with(|kubernetes| {
                    stuck.iter().for_each(|pod| kubernetes.set_stuck(pod, true));
                });
                after(length, move || {
                    drains.kubernetes.with(|kubernetes| {
                        stuck.iter().for_each(|pod| kubernetes.set_stuck(pod, false));
                    });
                });
                Some(told)
            }
            5 | 6 => {
                let nodes = self.kubernetes.with(|kubernetes| kubernetes.nodes());
                if nodes.is_empty() {
                    return None;
                }
                let node = nodes[chance.random_range(0..nodes.len())].name.clone();
                let told = format!("Kubernetes: the kubelet of {node} hangs for {length:?}");
                self.kubernetes.with(|kubernetes| kubernetes.set_ready(&node, false));
                after(length, move || {
                    drains.kubernetes.with(|kubernetes| kubernetes.set_ready(&node, true));
                });
                Some(told)
            }
            _ => None,
        }
    }

    /// Whether a pod that [`Self::forbid`] is about runs on a node.
    #[must_use]
    pub fn is_forbidden_on(&self, node: &str) -> bool {
        let of_ledger = |pod: &Pod| pod.id.namespace == PROTECTED && pod.id.name.starts_with(LEDGER.0);
        self.pods_on(node).iter().any(of_ledger)
    }

    /// A budget that allows no eviction of some protected pods, or none any more.
    pub fn forbid(&self, forbidden: bool) {
        self.kubernetes.with(|kubernetes| {
            if forbidden {
                kubernetes.add_budget(budget(LEDGER));
            } else {
                kubernetes.remove_budget(PROTECTED, LEDGER.0);
            }
        });
    }

    /// Everything works again.
    pub fn heal(&self) {
        self.kubernetes.faults().clear_all();
        self.kubernetes.with(|kubernetes| {
            kubernetes.remove_budget(PROTECTED, LEDGER.0);
            for node in kubernetes.nodes() {
                kubernetes.set_ready(&node.name, true);
            }
            for (_, pod) in kubernetes.pods() {
                kubernetes.set_stuck(&pod.id, false);
            }
        });
    }
}

fn after(length: Duration, then: impl FnOnce() + Send + 'static) {
    tokio::spawn(async move {
        tokio::time::sleep(length).await;
        then();
    });
}

fn broken(what: String) -> Violation {
    Violation { invariant: Id::I12, what }
}

/// How often drains came to what.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DrainsSeen {
    /// Drains that were begun.
    pub begun: u64,
    /// Nodes that were drained.
    pub done: u64,
    /// Drains that were given up.
    pub given_up: u64,
}

/// What a change of an entry says of drains, and what is wrong with that. `lasted` is how long the entry was what it was before by
/// the world's clock: what is stored is by a leader's, which may be wrong.
pub fn changed(
    before: &RepairQueueEntry,
    after: &RepairQueueEntry,
    lasted: Duration,
    seen: &mut DrainsSeen,
) -> Vec<String> {
    let processed = |entry: &RepairQueueEntry, step_status| {
        entry.status == RepairStatus::Processing && entry.step_status == step_status
    };
    let (was, is) =
        (|step_status| processed(before, step_status), |step_status| processed(after, step_status));
    let (Some(since), Some(now)) = (before.last_transition_time, after.last_transition_time) else {
        seen.begun += u64::from(is(RepairStepStatus::Draining) && !was(RepairStepStatus::Draining));
        return Vec::new();
    };
    let mut found = Vec::new();
    let drained = was(RepairStepStatus::Draining) && !is(RepairStepStatus::Draining);
    if drained && lasted > DRAIN_ENDS {
        found.push(format!("entry {} was drained for {lasted:?}, from {since} to {now}", after.index));
    }
    if drained && is(RepairStepStatus::Waiting) {
        seen.given_up += 1;
        let count = i64::from(before.drain_backoff_count) + 1;
        let pause = after.drain_backoff_expire.map(|until| (until - now).whole_seconds());
        let right = pause.is_some_and(|pause| (BACK_OFF..=BACK_OFF * (count + 1)).contains(&pause));
        if !right || i64::from(after.drain_backoff_count) != count {
            found.push(format!(
                "the drain of entry {} is given up for the {}. time, not the {count}., for {pause:?} s",
                after.index, after.drain_backoff_count
            ));
        }
    }
    seen.done += u64::from(drained && is(RepairStepStatus::Watching));
    seen.begun += u64::from(is(RepairStepStatus::Draining) && !was(RepairStepStatus::Draining));
    let begins = was(RepairStepStatus::Waiting) && !is(RepairStepStatus::Waiting);
    if begins
        && after.status == RepairStatus::Processing
        && let Some(until) =
            before.drain_backoff_expire.filter(|until| *until > now && *until > since + lasted)
    {
        found.push(format!("entry {} is begun at {now} and waits until {until}", after.index));
    }
    found
}

#[cfg(test)]
mod tests {
    use time::OffsetDateTime;

    use super::*;

    /// An entry whose leader's clock says `ahead` more than another's.
    fn entry(step_status: RepairStepStatus, ahead: Duration) -> RepairQueueEntry {
        RepairQueueEntry {
            status: RepairStatus::Processing,
            step_status,
            last_transition_time: Some(OffsetDateTime::UNIX_EPOCH + ahead),
            ..RepairQueueEntry::new("remote", "worker", "10.0.0.1")
        }
    }

    #[test]
    fn how_long_a_drain_lasted_is_told_by_the_clock_of_the_world() {
        let hour = Duration::from_secs(3600);
        let drained = |ahead, lasted| {
            let [before, after] =
                [entry(RepairStepStatus::Draining, Duration::ZERO), entry(RepairStepStatus::Watching, ahead)];
            changed(&before, &after, lasted, &mut DrainsSeen::default())
        };
        assert_eq!(drained(hour, Duration::from_secs(60)), [""; 0], "clocks of leaders differ");
        assert_eq!(drained(Duration::from_secs(60), hour).len(), 1, "it lasted for an hour");
    }
}
