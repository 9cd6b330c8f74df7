//! The API server of a simulated Kubernetes: what changes there, and how the journal brings it back.
//!
//! Each machine is a node. Some pods may not be evicted at once, as a disruption budget wants most of them to run; others may not be
//! evicted at all, and are deleted in the end.
//!
//! Guarantees: whatever was asked for that changes something is a line of the journal before it is answered, with who asked; done
//! again at the times that the journal has, all of it comes to the same nodes and pods.
//!
//! Does not: let kubelets fail. A node is shown as ready while its machine is healthy, and pods begin and end there all the same.

mod http;
mod objects;
#[cfg(test)]
mod tests;

use std::fmt::Display;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use madako_datacenter_sim::SimulatedRegistry;
use madako_datacenter_sim::kubernetes::{Budget, Cluster, Owner, SimulatedKubernetes, Workload};
use madako_domain::kubernetes::{Eviction, Pod};
use madako_protocol::ports::Clock;
use time::OffsetDateTime;

use super::journal::{Asked, JournalError, Line, What};
use super::tap::Tap;

/// The namespace whose pods are only ever evicted, never deleted; it is also the value of its label `team`.
pub(crate) const PROTECTED: &str = "kept";
/// The namespace whose pods may be deleted.
const OPEN: &str = "web";
/// Pods of [`PROTECTED`] for each machine, and how many of all of them may be away at a time: one drain waits for a pod that begins
/// elsewhere.
const KEPT: u32 = 3;
const AWAY: u32 = 2;
/// Pods of an owner at most, so that a large world has time for something else.
const MOST: u32 = 120;
/// Time that a pod has to end, and the mean of what it takes.
const GRACE: Duration = Duration::from_secs(5);
const ENDS_WITHIN: Duration = Duration::from_secs(2);

/// Where an instance finds its API server: nobody else is told the same path.
pub(crate) fn path_of(instance: impl Display) -> String {
    format!("/instances/{instance}")
}

/// The time of what was done last, in microseconds as the journal has it.
struct Told(AtomicI64);

impl Clock for Told {
    fn now(&self) -> OffsetDateTime {
        Line { at: self.0.load(Ordering::Relaxed), what: What::Started }.time()
    }
}

/// What is asked for, and of whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) asked: Asked,
    pub(super) node: String,
    /// `NAMESPACE/NAME`.
    pub(super) pod: Option<String>,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Came {
    Done,
    /// A disruption budget forbids it.
    Refused(String),
    /// There is no such thing, and nothing happened.
    NotThere,
}

/// See the module. Clones are the same one.
#[derive(Clone)]
pub(super) struct ApiServer {
    cluster: SimulatedKubernetes,
    time: Arc<Told>,
    registry: SimulatedRegistry,
    tap: Arc<Tap>,
    /// One thing is done and written down after the other.
    turn: Arc<Mutex<()>>,
}

impl ApiServer {
    /// One that began at `start`, as the journal leaves it.
    pub(super) fn new(
        seed: u64,
        registry: SimulatedRegistry,
        tap: Arc<Tap>,
        start: OffsetDateTime,
        journal: &[Line],
    ) -> Self {
        let time = Arc::new(Told(AtomicI64::new(micros(start))));
        let cluster = SimulatedKubernetes::new(seed, Arc::clone(&time) as Arc<dyn Clock>);
        let machines = registry.machines();
        cluster.with(|cluster| {
            machines.iter().filter_map(|machine| machine.address()).for_each(|name| cluster.add_node(name));
            equip(cluster, u32::try_from(machines.len()).unwrap_or(u32::MAX));
        });
        let server = Self { cluster, time, registry, tap, turn: Arc::default() };
        for line in journal {
            if let What::Kubernetes { asked, node, pod, .. } = &line.what {
                let change = Change { asked: *asked, node: node.clone(), pod: pod.clone() };
                // What was refused then is refused again.
                server.at(line.at, |cluster| carry_out(cluster, &change));
            }
        }
        server
    }

    /// Looks at the cluster as it is now.
    fn look<R>(&self, look: impl FnOnce(&mut Cluster) -> R) -> R {
        self.in_turn(|server| server.at(micros(server.tap.journal.now()), look))
    }

    /// Does what an instance asks for, and writes it down unless there is nothing that it could be done to.
    fn change(&self, instance: u32, change: &Change) -> Result<Came, JournalError> {
        self.in_turn(|server| {
            let now = micros(server.tap.journal.now());
            let came = server.at(now, |cluster| carry_out(cluster, change));
            if came != Came::NotThere {
                let Change { asked, node, pod } = change.clone();
                let refused = matches!(came, Came::Refused(_));
                let what = What::Kubernetes { instance, asked, node, pod, refused };
                server.tap.journal.write_as_of(server.time.now(), what)?;
            }
            Ok(came)
        })
    }

    fn in_turn<R>(&self, act: impl FnOnce(&Self) -> R) -> R {
        // Nothing panics while it holds the lock.
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        act(self)
    }

    fn at<R>(&self, time: i64, act: impl FnOnce(&mut Cluster) -> R) -> R {
        // A clock that was set back brings nothing back.
        self.time.0.fetch_max(time, Ordering::Relaxed);
        self.cluster.with(act)
    }
}

/// Namespaces, pods and their budgets for so many machines.
fn equip(cluster: &mut Cluster, machines: u32) {
    cluster.add_namespace(OPEN, &[]);
    cluster.add_namespace(PROTECTED, &[("team", PROTECTED)]);
    let kept = machines.saturating_mul(KEPT).min(MOST);
    let open = machines.min(MOST);
    // Of the open ones none may be evicted.
    for (namespace, name, replicas, away) in [(PROTECTED, "ledger", kept, AWAY), (OPEN, "front", open, 0)] {
        cluster.add_workload(Workload {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            owner: Owner::ReplicaSet { replicas },
            grace: GRACE,
            ends_within: ENDS_WITHIN,
        });
        cluster.add_budget(Budget {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            workload: name.to_owned(),
            min_available: replicas.saturating_sub(away),
        });
    }
}

fn carry_out(cluster: &mut Cluster, change: &Change) -> Came {
    let there = |done| if done { Came::Done } else { Came::NotThere };
    let pod = change.pod.as_deref().and_then(|name| find(cluster, name)).map(|(_, pod)| pod.id);
    match (change.asked, pod) {
        (Asked::Cordon, _) => there(cluster.set_cordon(&change.node, true)),
        (Asked::Uncordon, _) => there(cluster.set_cordon(&change.node, false)),
        (_, None) => Came::NotThere,
        (Asked::Evict, Some(pod)) => match cluster.evict(&pod, false) {
            Ok(Eviction::Accepted) => Came::Done,
            Ok(Eviction::Gone) => Came::NotThere,
            Ok(Eviction::Refused { why }) | Err(why) => Came::Refused(why),
        },
        (Asked::Delete, Some(pod)) => {
            cluster.delete(&pod);
            Came::Done
        }
    }
}

/// A pod by its name, and the node that it is bound to.
fn find(cluster: &Cluster, name: &str) -> Option<(Option<String>, Pod)> {
    cluster.pods().into_iter().find(|(_, pod)| pod.id.to_string() == name)
}

/// Microseconds since 1970.
fn micros(time: OffsetDateTime) -> i64 {
    i64::try_from(time.unix_timestamp_nanos() / 1_000).unwrap_or(i64::MAX)
}
