//! What the planner wants and why: plain, immutable data that leaves no choice to who carries it out.
//!
//! A decision and its reasons are made together: [`Reason`] holds a [`Why`], which is data, and only its
//! `Display` makes a sentence of it. In JSON a plan is `{"action", "changes", "cluster", "reasons"}` and a
//! plan that cannot be made is `{"error": {"kind", "message"}}`.
//!
//! It does not decide anything: that is the planner's part.

use std::collections::BTreeMap;

use serde::ser::SerializeStruct as _;
use serde::{Deserialize, Serialize, Serializer};

use crate::cluster::Cluster;

mod why;

pub use why::{Choice, Deselection, Leaving, Rival, Score, Shortage, Source, Unpromotable, Why};

/// The one thing that a plan does, and the name of the rule that leads to it (seed 000, "Maintenance").
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
    /// Every action, in the order in which the rules are tried.
    pub const ALL: [Self; 9] = [
        Self::Initialize,
        Self::RemoveNonExistentNodes,
        Self::IncreaseControlPlane,
        Self::DecreaseControlPlane,
        Self::ReplaceControlPlane,
        Self::IncreaseWorkers,
        Self::DecreaseWorkers,
        Self::TaintNodes,
        Self::Regenerate,
    ];

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

impl ChangeKind {
    /// The name, as it stands in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Add => "add",
            Self::Remove => "remove",
            Self::Promote => "promote",
            Self::Demote => "demote",
            Self::Taint => "taint",
            Self::Untaint => "untaint",
            Self::Update => "update",
        }
    }
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

impl Part {
    /// The name, as it stands in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::ControlPlane => "control-plane",
            Self::Worker => "worker",
        }
    }
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

/// What became of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Its action is the plan's.
    Fired,
    /// It did not apply, stepped aside, or came too late.
    NotFired,
    /// It began and could not be carried through.
    Failed,
}

impl Outcome {
    /// The name, as it stands in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Fired => "fired",
            Self::NotFired => "not-fired",
            Self::Failed => "failed",
        }
    }
}

/// Why a rule fired or did not, or why a machine was chosen for it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Reason {
    /// The rule that it is about.
    pub rule: Action,
    /// What became of the rule.
    pub outcome: Outcome,
    /// The reason as data; in JSON the sentence that it renders to.
    #[serde(serialize_with = "as_sentence")]
    pub why: Why,
    /// The node or machine that it is about, if it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The score by which that machine was chosen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub score: Option<i64>,
}

impl Reason {
    /// A reason about no machine in particular.
    #[must_use]
    pub fn new(rule: Action, outcome: Outcome, why: Why) -> Self {
        Self { rule, outcome, why, address: None, score: None }
    }

    /// The same reason about a node or machine.
    #[must_use]
    pub fn about(self, address: &str) -> Self {
        Self { address: Some(address.to_owned()), ..self }
    }

    /// The same reason with the score that decided.
    #[must_use]
    pub fn scored(self, score: i64) -> Self {
        Self { score: Some(score), ..self }
    }
}

fn as_sentence<S: Serializer>(why: &Why, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(why)
}

/// An address that two or more machines of the registry claim as their first one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DuplicateAddress {
    /// The address.
    pub address: String,
    /// Serials of the machines, sorted.
    pub serials: Vec<String>,
    /// Whether a node of the current cluster has the address.
    pub in_use: bool,
}

/// What the planner wants, with its reasons.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Plan {
    /// What it does; `None` when nothing is to be done.
    pub action: Option<Action>,
    /// What happens to each node that is not as before: first those that leave, in the order of the
    /// current configuration, then the others in the order of the new one.
    pub changes: Vec<Change>,
    /// The new configuration; `Some` exactly when `action` is.
    pub cluster: Option<Cluster>,
    /// Why, in the order in which the rules were tried, then addresses that several machines claim.
    /// Every rule is there with one outcome; such addresses come with the rule that does not fire for them.
    pub reasons: Vec<Reason>,
    /// Workers of each role when the plan is carried out; every role of a worker template is there.
    #[serde(skip)]
    pub workers_by_role: BTreeMap<String, u64>,
    /// Healthy machines that are not part of the cluster when the plan is carried out.
    #[serde(skip)]
    pub unused_machines: u64,
    /// Addresses that more than one machine claims, sorted.
    #[serde(skip)]
    pub duplicates: Vec<DuplicateAddress>,
}

/// Why a plan cannot be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PlanErrorKind {
    /// Too few machines that could be chosen, so that the constraints cannot be met.
    NotAvailable,
    /// A changed template cannot be applied at once because nodes have no machine.
    MissingMachine,
    /// Half or more of the control plane no longer exists; people must repair the configuration.
    TooManyNonExistent,
    /// A worker's role is not that of any worker template.
    RoleWithoutTemplate,
}

impl PlanErrorKind {
    /// The name, as it stands in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::NotAvailable => "not-available",
            Self::MissingMachine => "missing-machine",
            Self::TooManyNonExistent => "too-many-non-existent",
            Self::RoleWithoutTemplate => "role-without-template",
        }
    }
}

/// A plan cannot be made. The last configuration stays.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("cannot plan the cluster ({}): {message}", kind.name())]
pub struct PlanError {
    /// What kind of obstacle.
    pub kind: PlanErrorKind,
    /// What is in the way, in a sentence that names it.
    pub message: String,
    /// Why, as in a plan: up to the rule that failed and the rules that were not tried.
    pub reasons: Vec<Reason>,
}

impl PlanError {
    /// `{"kind", "message"}`: what stands under `error` in JSON.
    #[must_use]
    pub fn body(&self) -> PlanErrorBody<'_> {
        PlanErrorBody { kind: self.kind, message: &self.message }
    }
}

impl Serialize for PlanError {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut outer = serializer.serialize_struct("PlanError", 1)?;
        outer.serialize_field("error", &self.body())?;
        outer.end()
    }
}

/// A plan's error as it stands within a larger JSON object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct PlanErrorBody<'a> {
    /// What kind of obstacle.
    pub kind: PlanErrorKind,
    /// What is in the way.
    pub message: &'a str,
}
