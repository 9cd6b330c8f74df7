//! What a demo came to.

use std::collections::BTreeMap;

use serde::Serialize;

use super::picture::Picture;

/// The summary, as `-o json` prints it.
#[derive(Debug, Serialize)]
pub(crate) struct Summary {
    /// How long it ran.
    pub(crate) seconds: u64,
    /// The seed of machines and chance.
    pub(crate) seed: u64,
    /// Machines in the last observation.
    pub(crate) machines: usize,
    /// Clusters that were committed.
    pub(crate) commits: u64,
    /// Plans by action.
    pub(crate) plans: BTreeMap<&'static str, u64>,
    /// How often leadership changed hands.
    pub(crate) leader_changes: u64,
    /// Restarts of actors.
    pub(crate) actor_restarts: u64,
    /// Violations of invariants.
    pub(crate) invariant_violations: u64,
    /// The last committed cluster.
    pub(crate) cluster: Size,
    /// What became of applications.
    pub(crate) placement: Placed,
}

/// How many applications were placed.
#[derive(Debug, Serialize)]
pub(crate) struct Placed {
    /// Applications.
    pub(crate) applications: usize,
    /// Clusters that they may be bound to.
    pub(crate) clusters: usize,
    /// Applications that were bound for the first time.
    pub(crate) bindings: u64,
    /// How often one was bound elsewhere.
    pub(crate) moves: u64,
}

/// How large a cluster is.
#[derive(Debug, Serialize)]
pub(crate) struct Size {
    /// Control plane nodes.
    pub(crate) control_plane: usize,
    /// Workers.
    pub(crate) workers: usize,
}

impl Summary {
    /// Of a picture.
    pub(crate) fn new(picture: &Picture, seed: u64) -> Self {
        let tally = picture.tally.clone();
        Self {
            seconds: picture.elapsed.as_secs(),
            seed,
            machines: tally.machines,
            commits: tally.commits,
            plans: tally.plans,
            // The first election takes leadership from nobody.
            leader_changes: tally.elections.saturating_sub(1),
            actor_restarts: tally.actor_restarts,
            invariant_violations: tally.violations,
            cluster: Size { control_plane: picture.control_plane, workers: picture.workers },
            placement: Placed {
                applications: picture.landscape.applications(),
                clusters: picture.landscape.places.len(),
                bindings: tally.bindings,
                moves: tally.moves,
            },
        }
    }

    /// A few lines for people.
    pub(crate) fn text(&self) -> String {
        let plans: Vec<String> =
            self.plans.iter().map(|(action, count)| format!("{action} {count}")).collect();
        format!(
            "{} s with seed {}: {} machines, {} control plane nodes and {} workers; {} commits ({}); \
             {} applications on {} clusters: {} bindings, {} moves; \
             {} leader changes, {} restarts of actors, {} violations of invariants",
            self.seconds,
            self.seed,
            self.machines,
            self.cluster.control_plane,
            self.cluster.workers,
            self.commits,
            plans.join(", "),
            self.placement.applications,
            self.placement.clusters,
            self.placement.bindings,
            self.placement.moves,
            self.leader_changes,
            self.actor_restarts,
            self.invariant_violations,
        )
    }
}
