//! The machine-readable form of a forecast.

use serde::Serialize;

use super::{Blocker, MeasuredDuration, Note};

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Forecast {
    /// An obstacle or a blocker holds at least one reboot.
    pub is_blocked: bool,
    /// Obstacles to every reboot that has not begun.
    pub obstacles: Vec<Obstacle>,
    pub nodes_down: Vec<NodeDown>,
    pub under_way: Vec<UnderWay>,
    pub waves: Vec<Wave>,
    pub duration: ExpectedDuration,
    /// Answered dry runs of evictions.
    pub dry_runs: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Obstacle {
    /// Name of a [`BlockedBy`](crate::next_action::BlockedBy).
    pub name: &'static str,
    pub why: String,
}

/// A node of the cluster that is not ready.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NodeDown {
    pub node: String,
    pub why: &'static str,
}

/// An entry that is drained or reboots.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UnderWay {
    pub index: i64,
    pub node: String,
    pub status: String,
    /// `None`: the history has no reboot, or the node is overdue.
    pub ends_after_seconds: Option<u64>,
}

/// Nodes whose drains begin together. Times count from now; `None`: the history has no reboot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Wave {
    pub number: usize,
    pub is_control_plane: bool,
    pub begins_after_seconds: Option<u64>,
    pub ends_after_seconds: Option<u64>,
    pub nodes: Vec<NodeForecast>,
    /// Budgets that several nodes of the wave share.
    pub notes: Vec<Note>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NodeForecast {
    /// Number of the entry; `None`: the node is not in the queue yet.
    pub index: Option<i64>,
    pub node: String,
    /// Pods that the drain ends.
    pub pods: usize,
    pub blockers: Vec<Blocker>,
    pub notes: Vec<Note>,
}

/// The expected duration of everything, if all blockers are gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ExpectedDuration {
    /// From the start of a drain to the reboot command.
    pub drains: Option<MeasuredDuration>,
    /// From the reboot command until the node has booted.
    pub boots: Option<MeasuredDuration>,
    /// Drains in the history that were aborted.
    pub aborted_drains: usize,
    /// With the medians.
    pub expected_seconds: Option<u64>,
    /// With each drain and boot as slow as the slowest one.
    pub worst_seconds: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unknown: Option<&'static str>,
}
