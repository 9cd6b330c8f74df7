//! What the planner wants and why: plain, immutable data that leaves no choice to who carries it out.

use serde::{Deserialize, Serialize};

/// The one thing that a plan does (seed 000, "Maintenance").
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// The first cluster.
    Initialize,
    /// The same machines with a changed template.
    Regenerate,
    /// Nodes whose machines are no longer in the list leave.
    RemoveNonExistentNodes,
    /// Control plane nodes are added.
    IncreaseControlPlane,
    /// Control plane nodes become workers, or leave.
    DecreaseControlPlane,
    /// A bad control plane node is replaced.
    ReplaceControlPlane,
    /// Workers are added.
    IncreaseWorkers,
    /// A retired worker leaves.
    DecreaseWorkers,
    /// Taints follow the machines' states.
    TaintNodes,
}

impl Action {
    /// The name, as it stands in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Initialize => "initialize",
            Self::Regenerate => "regenerate",
            Self::RemoveNonExistentNodes => "remove-non-existent-nodes",
            Self::IncreaseControlPlane => "increase-control-plane",
            Self::DecreaseControlPlane => "decrease-control-plane",
            Self::ReplaceControlPlane => "replace-control-plane",
            Self::IncreaseWorkers => "increase-workers",
            Self::DecreaseWorkers => "decrease-workers",
            Self::TaintNodes => "taint-nodes",
        }
    }
}

/// What happens to one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ChangeKind {
    /// It joins.
    Add,
    /// It leaves.
    Remove,
    /// A worker becomes a control plane node.
    Promote,
    /// A control plane node becomes a worker.
    Demote,
    /// It gets the state taint, or another one.
    Taint,
    /// It loses the state taint.
    Untaint,
    /// Something else of it changes.
    Update,
}

/// The part that a node has in the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// Control plane node.
    ControlPlane,
    /// Worker.
    Worker,
}

/// A change of one node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Change {
    /// What happens.
    pub change: ChangeKind,
    /// The node's address.
    pub address: String,
    /// The part it has afterwards; of a removed node, the part it had.
    pub part: Part,
}
