//! A simulated Kubernetes with the API that draining uses. It implements the same port as the adapter of the real API
//! server.
//!
//! For: the simulation, and tests of drains and of planning with taints.
//!
//! Guarantees: a history depends only on the seed and on the actions on the cluster with their times. The port answers
//! as the API server does; a contract test runs the same cases against both. Each fault of [`FaultSwitch`] produces the
//! error that the adapter of the real API server would report.
//!
//! Assumes: a clock that does not run backward (an earlier time is ignored).
//!
//! Does not: simulate pods beyond the number that their owner keeps; a pod is ready when it runs. Disruption budgets
//! only have `minAvailable` as a number of pods, for all pods of one owner.

mod cluster;
mod port;
mod selector;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use madako_protocol::ports::Clock;

pub use cluster::{Cluster, PodOwner, Workload, WorkloadBudget};

use crate::faults::FaultSwitch;

/// A running simulated Kubernetes. Clones share the same cluster.
///
/// Each read and each action first advances the cluster to the clock's time, so no background task is needed.
#[derive(Clone)]
pub struct SimulatedKubernetes {
    cluster: Arc<Mutex<Cluster>>,
    clock: Arc<dyn Clock>,
    faults: FaultSwitch,
}

impl std::fmt::Debug for SimulatedKubernetes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimulatedKubernetes")
            .field("faults", &self.faults.present_faults())
            .finish_non_exhaustive()
    }
}

impl SimulatedKubernetes {
    /// An empty cluster, driven by a clock.
    #[must_use]
    pub fn new(seed: u64, clock: Arc<dyn Clock>) -> Self {
        let cluster = Cluster::new(seed, clock.now());
        Self { cluster: Arc::new(Mutex::new(cluster)), clock, faults: FaultSwitch::new() }
    }

    /// The switch of the API server's faults. Faults of machines or of GraphQL have no effect here.
    #[must_use]
    pub fn faults(&self) -> &FaultSwitch {
        &self.faults
    }

    /// Advances the cluster to the present, then reads or changes it.
    pub fn with_cluster<R>(&self, act: impl FnOnce(&mut Cluster) -> R) -> R {
        let mut cluster = self.lock();
        cluster.advance(self.clock.now());
        act(&mut cluster)
    }

    fn lock(&self) -> MutexGuard<'_, Cluster> {
        // Only a caller's closure in a test can panic while the lock is held.
        self.cluster.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
