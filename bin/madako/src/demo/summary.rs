//! The summary that `madako demo` prints at its end.

use std::collections::BTreeMap;

use madako_console::count_with_noun;
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
    /// Ended repairs that were good, and those that failed.
    pub(crate) repairs: RepairCounts,
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

#[derive(Debug, Serialize)]
pub(crate) struct RepairCounts {
    pub(crate) succeeded: usize,
    pub(crate) failed: usize,
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
        let (succeeded, failed) = tally.count_repairs();
        Self {
            seconds: picture.elapsed.as_secs(),
            seed,
            machines: tally.machines,
            commits: tally.commits,
            plans: tally.plans,
            // The first election is not a change.
            leader_changes: tally.elections.saturating_sub(1),
            actor_restarts: tally.actor_restarts,
            repairs: RepairCounts { succeeded, failed },
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
        let count =
            |count: usize, one, many| count_with_noun(u64::try_from(count).unwrap_or(u64::MAX), one, many);
        let plans: Vec<String> =
            self.plans.iter().map(|(action, count)| format!("{action} {count}")).collect();
        format!(
            "{} s with seed {}: {} machines, {} and {}; {} ({}); {}, {} of them failed; {} on {}: {}, {}; {}, {}, {}",
            self.seconds,
            self.seed,
            self.machines,
            count(self.cluster.control_plane, "control plane node", "control plane nodes"),
            count(self.cluster.workers, "worker", "workers"),
            count_with_noun(self.commits, "commit", "commits"),
            plans.join(", "),
            count(self.repairs.succeeded + self.repairs.failed, "repair", "repairs"),
            self.repairs.failed,
            count(self.placement.applications, "application", "applications"),
            count(self.placement.clusters, "cluster", "clusters"),
            count_with_noun(self.placement.bindings, "binding", "bindings"),
            count_with_noun(self.placement.moves, "move", "moves"),
            count_with_noun(self.leader_changes, "leader change", "leader changes"),
            count_with_noun(self.actor_restarts, "restart of an actor", "restarts of actors"),
            count_with_noun(
                self.invariant_violations,
                "violation of an invariant",
                "violations of invariants"
            ),
        )
    }
}
