//! The Kubernetes of a run: it has the nodes of the cluster, pods of every kind, and occasional faults.
//!
//! Judges drains:
//! - no command of a draining step begins on a node with a pod that the drain must remove;
//! - after an abandoned drain, the back-off passes before the next one;
//! - no drain goes on for ever;
//! - no node stays cordoned when every repair has ended.
//!
//! Does not judge whether a gentler drain was possible; the drain's own tests do.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use madako_datacenter_sim::kubernetes::{Budget, Owner, SimulatedKubernetes, Workload};
use madako_domain::cluster::Cluster;
use madako_domain::invariants::{Id, Violation};
use madako_domain::kubernetes::drain::unfinished;
use madako_domain::kubernetes::{KubeNode, Pod};
use madako_domain::repair::config::RepairConfig;
use madako_domain::repair::{RepairQueueEntry, RepairStatus, RepairStepStatus};
use madako_protocol::ports::Clock;

/// Namespace whose pods may be deleted.
const OPEN: &str = "web";
/// Namespace whose pods are only evicted, never deleted.
pub const PROTECTED: &str = "kept";

/// Deployment whose budget allows a few evictions, and a deployment with an occasional budget that allows none.
const STORE: (&str, u32, u32) = ("store", 10, 8);
const LEDGER: (&str, u32) = ("ledger", 6);

/// Time-out of evictions in the configuration of the simulation.
pub const EVICTION_TIMEOUT: Duration = Duration::from_secs(120);

/// Maximum duration of a drain: the time-out, and the time until a leader observes it. Leaders are killed, paused and
/// cut off for minutes at a time, one after another.
const DRAIN_ENDS: Duration = Duration::from_secs(120 + 20 * 60);

/// Minimum back-off after an abandoned drain in seconds, and the maximum that each attempt adds (CKE).
const BACK_OFF: i64 = 300;

/// Clones share their state.
#[derive(Clone)]
pub struct Drains {
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

impl Drains {
    /// A cluster with pods of every kind and no nodes.
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

    /// Adds and removes nodes until they are those of `cluster`.
    pub fn follow(&self, cluster: &Cluster) {
        let wanted: BTreeSet<&str> = cluster.nodes.iter().map(madako_domain::cluster::Node::name).collect();
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

    /// Checks the start of a step's command: a draining step must have left no pod that it must remove. `cluster` is
    /// the cluster at that time.
    pub fn undrained(&self, cluster: &Cluster, entry: &RepairQueueEntry, step: u32) -> Option<String> {
        let node = cluster.nodes.iter().find(|node| node.address == entry.address)?;
        let config = RepairConfig::read(&cluster.repair).unwrap();
        let drains = config.of(entry).ok()?.step(step)?.need_drain;
        let left = unfinished(&self.pods_on(node.name())).filter(|_| drains)?;
        Some(format!("step {step} of entry {} drains, and {left}", entry.index))
    }

    /// A violation for each node that is cordoned for a repair; valid when no repair is in progress.
    pub fn left_cordoned(&self) -> Vec<Violation> {
        let nodes = self.kubernetes.with(|kubernetes| kubernetes.nodes());
        let cordoned = nodes.into_iter().filter(KubeNode::is_cordoned_by_us);
        cordoned.map(|node| broken(format!("peace ends with the node {} cordoned", node.name))).collect()
    }

    /// True if a pod of the budget of [`Self::forbid`] runs on the node.
    #[must_use]
    pub fn is_forbidden_on(&self, node: &str) -> bool {
        let of_ledger = |pod: &Pod| pod.id.namespace == PROTECTED && pod.id.name.starts_with(LEDGER.0);
        self.pods_on(node).iter().any(of_ledger)
    }

    /// Adds or removes a budget that allows no eviction of some protected pods.
    pub fn forbid(&self, forbidden: bool) {
        self.kubernetes.with(|kubernetes| {
            if forbidden {
                kubernetes.add_budget(budget(LEDGER));
            } else {
                kubernetes.remove_budget(PROTECTED, LEDGER.0);
            }
        });
    }

    /// Ends all faults.
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

fn broken(what: String) -> Violation {
    Violation { invariant: Id::I12, what }
}

/// Numbers of drains.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DrainsSeen {
    /// Started drains.
    pub begun: u64,
    /// Completed drains.
    pub done: u64,
    /// Abandoned drains.
    pub given_up: u64,
}

/// Counts the drain that a change of an entry starts or ends, and returns violations. `lasted` is the duration of the
/// entry's former state by the world's clock: the stored times come from a leader's clock, which may be wrong.
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
    use madako_datacenter_sim::host::RESET;
    use madako_domain::cluster::Node;
    use madako_domain::kubernetes::PodId;
    use madako_json::go::RawJson;
    use madako_protocol::kubernetes::Kubernetes as _;
    use madako_protocol::permit::Permit;
    use serde_json::json;
    use time::OffsetDateTime;

    use super::*;
    use crate::clock::SimulatedClock;

    const NODE: &str = "10.0.0.1";

    /// An entry whose leader's clock is `ahead` of another leader's clock.
    fn entry(step_status: RepairStepStatus, ahead: Duration) -> RepairQueueEntry {
        RepairQueueEntry {
            status: RepairStatus::Processing,
            step_status,
            last_transition_time: Some(OffsetDateTime::UNIX_EPOCH + ahead),
            ..RepairQueueEntry::new("unreachable", "iDRAC-9", NODE)
        }
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn how_long_a_drain_lasted_is_told_by_the_clock_of_the_world() {
        let drained = |ahead, lasted| {
            let [before, after] =
                [entry(RepairStepStatus::Draining, Duration::ZERO), entry(RepairStepStatus::Watching, ahead)];
            changed(&before, &after, lasted, &mut DrainsSeen::default()).len()
        };
        assert_eq!(drained(seconds(3600), seconds(60)), 0, "clocks of leaders differ");
        assert_eq!(drained(seconds(60), seconds(3600)), 1, "it lasted for an hour");
    }

    /// An entry with an abandoned drain and a back-off of `pause` seconds.
    fn given_up(at: u64, count: u32, pause: i64) -> RepairQueueEntry {
        let waiting = entry(RepairStepStatus::Waiting, seconds(at));
        let expire = waiting.last_transition_time.map(|now| now + time::Duration::seconds(pause));
        RepairQueueEntry { drain_backoff_count: count, drain_backoff_expire: expire, ..waiting }
    }

    #[test]
    fn a_drain_that_is_given_up_late_or_without_its_back_off_is_found() {
        for (at, count, pause, expected) in [
            (130, 1, 300, 0),
            (130, 1, 600, 0),
            (130, 1, 299, 1),
            (130, 1, 601, 1),
            (130, 0, 300, 1),
            (7200, 1, 300, 1),
        ] {
            let (before, mut seen) =
                (entry(RepairStepStatus::Draining, Duration::ZERO), DrainsSeen::default());
            let found = changed(&before, &given_up(at, count, pause), seconds(at), &mut seen);
            assert_eq!((found.len(), seen.given_up), (expected, 1), "after {at} s, for {pause} s, {count}");
        }
    }

    #[test]
    fn a_step_that_begins_before_its_back_off_is_over_is_found() {
        for (at, expected) in [(430, 0), (429, 1)] {
            let again = entry(RepairStepStatus::Draining, seconds(at));
            let found = changed(&given_up(130, 1, 300), &again, Duration::ZERO, &mut DrainsSeen::default());
            assert_eq!(found.len(), expected, "after {at} s");
        }
    }

    /// A Kubernetes whose only node runs pods, and a cluster whose procedure drains the node in its first step.
    async fn drained_first() -> (Drains, Cluster) {
        let drains = Drains::new(1, Arc::new(SimulatedClock::new(OffsetDateTime::UNIX_EPOCH)));
        let steps = json!([{"repair_command": [RESET], "need_drain": true}, {"repair_command": [RESET]}]);
        let repair = json!({"repair_procedures": [{
            "machine_types": ["iDRAC-9"],
            "repair_operations": [{"operation": "unreachable", "repair_steps": steps}],
        }]});
        let nodes = vec![Node { address: NODE.to_owned(), ..Node::default() }];
        let repair = RawJson::from_text(repair.to_string()).unwrap();
        let cluster = Cluster { nodes, repair, ..Cluster::default() };
        drains.follow(&cluster);
        tokio::time::sleep(seconds(60)).await;
        (drains, cluster)
    }

    fn permit() -> Permit {
        Permit::give(1, tokio::time::Instant::now() + seconds(600))
    }

    /// Ends the pods that the drain must remove, except one.
    async fn evict(drains: &Drains, but: Option<&PodId>) {
        drains.kubernetes.cordon(&permit(), NODE).await.unwrap();
        for pod in drains.kubernetes.pods_on(NODE).await.unwrap() {
            let stays = pod.mirror || pod.controller.as_deref() == Some("DaemonSet");
            if !stays && but != Some(&pod.id) {
                drains.kubernetes.delete(&permit(), &pod.id).await.unwrap();
            }
        }
        tokio::time::sleep(seconds(60)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_command_beside_a_pod_that_should_have_gone_is_found() {
        let begun = entry(RepairStepStatus::Watching, Duration::ZERO);
        let (drains, cluster) = drained_first().await;
        assert!(drains.undrained(&cluster, &begun, 0).is_some(), "nothing was evicted");
        assert_eq!(drains.undrained(&cluster, &begun, 1), None, "the step does not drain");
        let outside = RepairQueueEntry { address: "10.0.0.99".to_owned(), ..begun.clone() };
        assert_eq!(drains.undrained(&cluster, &outside, 0), None, "no node of the cluster");
        evict(&drains, None).await;
        assert_eq!(drains.undrained(&cluster, &begun, 0), None);

        for (owner, is_stuck) in [("ReplicaSet", false), ("Job", false), ("ReplicaSet", true)] {
            let (drains, cluster) = drained_first().await;
            let pods = drains.kubernetes.pods_on(NODE).await.unwrap();
            let kept = pods.iter().find(|pod| pod.controller.as_deref() == Some(owner)).unwrap();
            drains.kubernetes.with(|kubernetes| kubernetes.set_stuck(&kept.id, is_stuck));
            evict(&drains, Some(&kept.id).filter(|_| !is_stuck)).await;
            assert!(drains.undrained(&cluster, &begun, 0).is_some(), "a pod of a {owner} is left");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_stays_cordoned_is_found() {
        let (drains, _) = drained_first().await;
        assert_eq!(drains.left_cordoned(), []);
        drains.kubernetes.cordon(&permit(), NODE).await.unwrap();
        assert_eq!(drains.left_cordoned().len(), 1);
        drains.kubernetes.uncordon(&permit(), NODE).await.unwrap();
        assert_eq!(drains.left_cordoned(), []);
    }
}
