//! The summary that `madako demo` prints at its end.

use std::collections::BTreeMap;

use serde::Serialize;

use super::picture::ScreenState;

/// The summary, as `-o json` prints it.
#[derive(Debug, Serialize)]
pub(crate) struct DemoSummary {
    pub(crate) seconds: u64,
    pub(crate) seed: u64,
    /// Machines in the last observation.
    pub(crate) machines: usize,
    pub(crate) commits: u64,
    pub(crate) plans: BTreeMap<&'static str, u64>,
    pub(crate) leader_changes: u64,
    pub(crate) actor_restarts: u64,
    pub(crate) invariant_violations: u64,
    pub(crate) cluster: NodeCounts,
    pub(crate) placement: PlacementSummary,
}

#[derive(Debug, Serialize)]
pub(crate) struct PlacementSummary {
    pub(crate) applications: usize,
    /// Clusters that they may be bound to.
    pub(crate) clusters: usize,
    /// First bindings of applications.
    pub(crate) bindings: u64,
    pub(crate) moves: u64,
}

/// Numbers of a cluster's nodes.
#[derive(Debug, Serialize)]
pub(crate) struct NodeCounts {
    pub(crate) control_plane: usize,
    pub(crate) workers: usize,
}

impl DemoSummary {
    pub(crate) fn new(picture: &ScreenState, seed: u64) -> Self {
        let tally = picture.tally.clone();
        Self {
            seconds: picture.elapsed.as_secs(),
            seed,
            machines: tally.machines,
            commits: tally.commits,
            plans: tally.plans,
            // The first election is not a change.
            leader_changes: tally.elections.saturating_sub(1),
            actor_restarts: tally.actor_restarts,
            invariant_violations: tally.violations,
            cluster: NodeCounts { control_plane: picture.control_plane, workers: picture.workers },
            placement: PlacementSummary {
                applications: picture.landscape.count_applications(),
                clusters: picture.landscape.places.len(),
                bindings: tally.bindings,
                moves: tally.moves,
            },
        }
    }

    pub(crate) fn to_text(&self) -> String {
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
