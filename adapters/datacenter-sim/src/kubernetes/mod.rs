//! A simulated Kubernetes, as far as draining sees it: the twin of the adapter of the real one, behind the same port.
//!
//! For: the simulation and tests of whatever drains nodes or plans with taints.
//!
//! Guarantees: a history depends on the seed, on what was done to the cluster and when, and on nothing else; the port answers as
//! the API server does (a contract test runs the same cases against both); whatever [`FaultSwitch`] says is wrong with it
//! is wrong in the way that the adapter would report.
//!
//! Assumes: a clock that does not run backward by itself (time that does is ignored).
//!
//! Does not: know what pods do, want or need beyond their owner's number of them; a pod is ready when it runs. Of disruption
//! budgets it has those with a number of pods that must be available, for all pods of one owner.

mod cluster;
mod port;
mod selector;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use madako_protocol::ports::Clock;

pub use cluster::{Budget, Cluster, Owner, Workload};

use crate::faults::FaultSwitch;

/// A running simulated Kubernetes. Clones are the same one.
///
/// Before each look and each action it is brought to the clock's time, so nothing runs in the background.
#[derive(Clone)]
pub struct SimulatedKubernetes {
    cluster: Arc<Mutex<Cluster>>,
    clock: Arc<dyn Clock>,
    faults: FaultSwitch,
}

impl std::fmt::Debug for SimulatedKubernetes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimulatedKubernetes").field("faults", &self.faults.present()).finish_non_exhaustive()
    }
}

impl SimulatedKubernetes {
    /// An empty one, moved by a clock.
    #[must_use]
    pub fn new(seed: u64, clock: Arc<dyn Clock>) -> Self {
        let cluster = Cluster::new(seed, clock.now());
        Self { cluster: Arc::new(Mutex::new(cluster)), clock, faults: FaultSwitch::new() }
    }

    /// The switch of the API server's faults. Those that speak of machines or of GraphQL do nothing here.
    #[must_use]
    pub fn faults(&self) -> &FaultSwitch {
        &self.faults
    }

    /// Brings the cluster to the present and looks at it, or acts on it.
    pub fn with<R>(&self, act: impl FnOnce(&mut Cluster) -> R) -> R {
        let mut cluster = self.lock();
        cluster.advance(self.clock.now());
        act(&mut cluster)
    }

    fn lock(&self) -> MutexGuard<'_, Cluster> {
        // A panic while the lock is held can only come from the caller's own closure in a test.
        self.cluster.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
