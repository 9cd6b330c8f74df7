//! The API server of a simulated Kubernetes: its changes, and their restoration from the journal.
//!
//! Each machine is a node. A disruption budget delays the evictions of some pods; of others it forbids every eviction,
//! so that they are deleted in the end.
//!
//! Guarantees: every request for a change is in the journal before it is answered, with the requesting instance.
//! Repeating the requests at the journal's times restores the same nodes and pods.
//!
//! Does not: simulate failing kubelets. A node is ready while its machine is healthy; pods begin and end on it in any
//! case.

mod http;
mod objects;
#[cfg(test)]
mod tests;
mod watch;

use std::fmt::Display;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use madako_datacenter_sim::SimulatedRegistry;
use madako_datacenter_sim::kubernetes::{Cluster, PodOwner, SimulatedKubernetes, Workload, WorkloadBudget};
use madako_domain::kubernetes::{EvictionOutcome, Pod};
use madako_judges::KubernetesRequest;
use madako_protocol::ports::Clock;
use time::OffsetDateTime;

use self::watch::NodeHistory;
use super::journal::{JournalError, Line, LineContent};
use super::tap::AnswerTap;

/// The namespace whose pods are only evicted, never deleted; also the value of its label `team`.
pub(crate) const PROTECTED: &str = "kept";
/// The namespace whose pods may be deleted.
const OPEN: &str = "web";
/// Pods of [`PROTECTED`] for each machine, and the number of all of them that may be away at a time: a drain waits for
/// a pod that begins elsewhere.
const KEPT: u32 = 3;
const AWAY: u32 = 2;
/// Maximum pods of an owner, to limit the work in a large world.
const MOST: u32 = 120;
/// Grace period of a pod, and the mean duration of its end.
const GRACE: Duration = Duration::from_secs(5);
const ENDS_WITHIN: Duration = Duration::from_secs(2);

/// Base path of an instance's API server. Each instance learns only its own, so that the path identifies it.
pub(crate) fn base_path_of_instance(instance: impl Display) -> String {
    format!("/instances/{instance}")
}

/// Time of the last change, in microseconds as in the journal.
struct LastChangeClock(AtomicI64);

impl Clock for LastChangeClock {
    fn now(&self) -> OffsetDateTime {
        Line { at: self.0.load(Ordering::Relaxed), what: LineContent::Started }.wall_clock_time()
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) action: KubernetesRequest,
    pub(super) node: String,
    /// `NAMESPACE/NAME`.
    pub(super) pod: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ChangeOutcome {
    Done,
    /// A disruption budget forbids it.
    Refused(String),
    /// The object does not exist; nothing happened.
    NotThere,
}

/// See the module. A clone is the same server.
#[derive(Clone)]
pub(super) struct ApiServer {
    cluster: SimulatedKubernetes,
    time: Arc<LastChangeClock>,
    registry: SimulatedRegistry,
    tap: Arc<AnswerTap>,
    /// Serializes each change with its line in the journal.
    turn: Arc<Mutex<()>>,
    history: Arc<Mutex<NodeHistory>>,
}

impl ApiServer {
    /// Restores the server that began at `start` from the journal.
    pub(super) fn new(
        seed: u64,
        registry: SimulatedRegistry,
        tap: Arc<AnswerTap>,
        start: OffsetDateTime,
        journal: &[Line],
    ) -> Self {
        let time = Arc::new(LastChangeClock(AtomicI64::new(to_microseconds(start))));
        let cluster = SimulatedKubernetes::new(seed, Arc::clone(&time) as Arc<dyn Clock>);
        let machines = registry.list_machines();
        cluster.with_cluster(|cluster| {
            machines.iter().filter_map(|machine| machine.address()).for_each(|name| cluster.add_node(name));
            create_pods(cluster, u32::try_from(machines.len()).unwrap_or(u32::MAX));
        });
        let version = u64::try_from(to_microseconds(tap.journal.now())).unwrap_or_default();
        let history = Arc::new(Mutex::new(NodeHistory::new(version)));
        let server = Self { cluster, time, registry, tap, turn: Arc::default(), history };
        for line in journal {
            if let LineContent::Kubernetes { action, node, pod, .. } = &line.what {
                let change = Change { action: *action, node: node.clone(), pod: pod.clone() };
                // A change that was refused then is refused again.
                server.change_cluster_at(line.at, |cluster| apply_cluster_change(cluster, &change));
            }
        }
        server
    }

    fn read_cluster<R>(&self, look: impl FnOnce(&mut Cluster) -> R) -> R {
        self.serialize_access(|server| {
            server.change_cluster_at(to_microseconds(server.tap.journal.now()), look)
        })
    }

    /// Makes a change that an instance requests, and records it unless its object does not exist.
    fn change(&self, instance: u32, change: &Change) -> Result<ChangeOutcome, JournalError> {
        self.serialize_access(|server| {
            let now = to_microseconds(server.tap.journal.now());
            let came = server.change_cluster_at(now, |cluster| apply_cluster_change(cluster, change));
            if came != ChangeOutcome::NotThere {
                let Change { action, node, pod } = change.clone();
                let refused = matches!(came, ChangeOutcome::Refused(_));
                let what = LineContent::Kubernetes { instance, action, node, pod, refused };
                server.tap.journal.write_as_of(server.time.now(), what)?;
            }
            Ok(came)
        })
    }

    fn serialize_access<R>(&self, act: impl FnOnce(&Self) -> R) -> R {
        // No panic happens under the lock.
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        act(self)
    }

    fn change_cluster_at<R>(&self, time: i64, act: impl FnOnce(&mut Cluster) -> R) -> R {
        // A clock that was set back does not set the cluster back.
        self.time.0.fetch_max(time, Ordering::Relaxed);
        self.cluster.with_cluster(act)
    }
}

/// Creates namespaces, pods and their budgets for this many machines.
fn create_pods(cluster: &mut Cluster, machines: u32) {
    cluster.add_namespace(OPEN, &[]);
    cluster.add_namespace(PROTECTED, &[("team", PROTECTED)]);
    let kept = machines.saturating_mul(KEPT).min(MOST);
    let open = machines.min(MOST);
    // No pod of the open namespace may be evicted.
    for (namespace, name, replicas, away) in [(PROTECTED, "ledger", kept, AWAY), (OPEN, "front", open, 0)] {
        cluster.add_workload(Workload {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            owner: PodOwner::ReplicaSet { replicas },
            grace: GRACE,
            ends_within: ENDS_WITHIN,
        });
        cluster.add_budget(WorkloadBudget {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            workload: name.to_owned(),
            min_available: replicas.saturating_sub(away),
        });
    }
}

fn apply_cluster_change(cluster: &mut Cluster, change: &Change) -> ChangeOutcome {
    let there = |done| if done { ChangeOutcome::Done } else { ChangeOutcome::NotThere };
    let pod = change.pod.as_deref().and_then(|name| find_pod(cluster, name)).map(|(_, pod)| pod.id);
    match (change.action, pod) {
        (KubernetesRequest::Cordon, _) => there(cluster.set_cordon(&change.node, true)),
        (KubernetesRequest::Uncordon, _) => there(cluster.set_cordon(&change.node, false)),
        (_, None) => ChangeOutcome::NotThere,
        (KubernetesRequest::Evict, Some(pod)) => match cluster.evict(&pod, false) {
            Ok(EvictionOutcome::Accepted) => ChangeOutcome::Done,
            Ok(EvictionOutcome::Gone) => ChangeOutcome::NotThere,
            Ok(EvictionOutcome::Refused { why }) | Err(why) => ChangeOutcome::Refused(why),
        },
        (KubernetesRequest::Delete, Some(pod)) => {
            cluster.delete(&pod);
            ChangeOutcome::Done
        }
    }
}

fn find_pod(cluster: &Cluster, name: &str) -> Option<(Option<String>, Pod)> {
    cluster.pods().into_iter().find(|(_, pod)| pod.id.to_string() == name)
}

/// Microseconds since 1970.
fn to_microseconds(time: OffsetDateTime) -> i64 {
    i64::try_from(time.unix_timestamp_nanos() / 1_000).unwrap_or(i64::MAX)
}
