//! The planner's result with its reasons: plain, immutable data that leaves no choice to its executor.
//!
//! The planner creates a decision together with its reasons. [`Reason`] holds a [`PlanReason`], which is data; only its
//! `Display` makes a sentence. In JSON a plan is `{"action", "changes", "cluster", "reasons"}`, and a failed plan is
//! `{"error": {"kind", "message"}}`.
//!
//! This module decides nothing; the planner does.

use std::collections::BTreeMap;

use madako_json::named;
use serde::ser::SerializeStruct as _;
use serde::{Deserialize, Serialize, Serializer};
use strum::{IntoStaticStr, VariantArray};

use crate::cluster::Cluster;

mod why;

pub use why::{
    Choice, Deselection, LeavingReason, PlanReason, RunnerUp, Score, Shortage, Source, Unpromotable,
};

/// The action of a plan, named like the rule that leads to it (CKE's `sabakan-integration.md`, "Maintenance"). A plan has at most one.
/// The planner tries the rules in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[derive(Serialize, Deserialize, IntoStaticStr, VariantArray)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum Action {
    /// Creates the first cluster.
    Initialize,
    /// Removes nodes whose machines are no longer in the list.
    RemoveNonExistentNodes,
    /// Adds control plane nodes.
    IncreaseControlPlane,
    /// Turns control plane nodes into workers, or removes them.
    DecreaseControlPlane,
    /// Replaces a bad control plane node.
    ReplaceControlPlane,
    /// Adds workers from unused machines.
    IncreaseWorkers,
    /// Removes a retired worker.
    DecreaseWorkers,
    /// Changes taints according to the machines' states.
    TaintNodes,
    /// Keeps the machines and applies a changed template.
    Regenerate,
}

named!(Action all, ChangeKind, Part, Outcome, PlanErrorKind);

/// The change of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, IntoStaticStr)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum ChangeKind {
    /// The node joins the cluster.
    Add,
    /// The node leaves the cluster.
    Remove,
    /// A worker becomes a control plane node.
    Promote,
    /// A control plane node becomes a worker.
    Demote,
    /// The node gets the state taint, or a different value of it.
    Taint,
    /// It loses the state taint.
    Untaint,
    /// Another property of the node changes.
    Update,
}

/// The role of a node within the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, IntoStaticStr)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum Part {
    /// Runs the control plane.
    ControlPlane,
    /// Runs only workloads.
    Worker,
}

/// A change of one node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Change {
    /// The kind of change.
    pub change: ChangeKind,
    /// Address of the node, as in the cluster configuration.
    pub address: String,
    /// The part of the node after the change, or before its removal.
    pub part: Part,
}

/// The result of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, IntoStaticStr)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum Outcome {
    /// The rule's action is the plan's action.
    Fired,
    /// The rule did not apply, gave way to another one, or came after the action.
    NotFired,
    /// The rule applied but could not be completed.
    Failed,
}

/// The reason for a rule's result, or for the choice of a machine.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Reason {
    /// The rule, identified by its action.
    pub rule: Action,
    /// The result of the rule.
    pub outcome: Outcome,
    /// The reason as data; JSON has the rendered sentence.
    #[serde(serialize_with = "as_sentence")]
    pub why: PlanReason,
    /// The address of the node or machine, if the reason concerns one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The score of the chosen machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub score: Option<i64>,
}

impl Reason {
    /// A reason that concerns no particular machine.
    #[must_use]
    pub fn new(rule: Action, outcome: Outcome, why: PlanReason) -> Self {
        Self { rule, outcome, why, address: None, score: None }
    }

    /// The same reason for a node or machine.
    #[must_use]
    pub fn with_address(self, address: &str) -> Self {
        Self { address: Some(address.to_owned()), ..self }
    }

    /// The same reason with the decisive score.
    #[must_use]
    pub fn with_score(self, score: i64) -> Self {
        Self { score: Some(score), ..self }
    }
}

fn as_sentence<S: Serializer>(why: &PlanReason, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(why)
}

/// An address that two or more machines of the registry have as their first one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DuplicateAddress {
    /// The address that the machines share.
    pub address: String,
    /// Serials of the machines, sorted.
    pub serials: Vec<String>,
    /// True if a node of the current cluster has the address.
    pub in_use: bool,
}

/// The planner's result with its reasons.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Plan {
    /// The action; `None` when nothing is to be done.
    pub action: Option<Action>,
    /// The changed nodes: first those that leave, in the order of the current configuration, then the others in the
    /// order of the new one.
    pub changes: Vec<Change>,
    /// The new configuration; present exactly if `action` is.
    pub cluster: Option<Cluster>,
    /// The reasons in the order in which the planner tried the rules, then shared addresses. Every rule has one
    /// result here; a shared address comes with the rule that it blocks.
    pub reasons: Vec<Reason>,
    /// Workers of each role after the plan; every role of a worker template is present.
    #[serde(skip)]
    pub workers_by_role: BTreeMap<String, u64>,
    /// Healthy machines outside the cluster after the plan.
    #[serde(skip)]
    pub unused_machines: u64,
    /// The shared addresses, sorted.
    #[serde(skip)]
    pub duplicates: Vec<DuplicateAddress>,
}

/// The class of a planning failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, IntoStaticStr)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum PlanErrorKind {
    /// Too few eligible machines to satisfy the constraints.
    NotAvailable,
    /// A changed template cannot be applied because nodes have no machine.
    MissingMachine,
    /// At least half of the control plane no longer exists; an operator must repair the configuration.
    TooManyNonExistent,
    /// A worker's role is not in any worker template.
    RoleWithoutTemplate,
}

/// The planner found no plan. The last configuration stays.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("cannot plan the cluster ({}): {message}", kind.name())]
pub struct PlanError {
    /// The class of the failure.
    pub kind: PlanErrorKind,
    /// The failure as a sentence that names its object.
    pub message: String,
    /// The reasons, as in a plan: up to the failed rule and the rules after it.
    pub reasons: Vec<Reason>,
}

impl PlanError {
    /// The value of `error` in JSON: `{"kind", "message"}`.
    #[must_use]
    pub fn response_body(&self) -> PlanErrorBody<'_> {
        PlanErrorBody { kind: self.kind, message: &self.message }
    }
}

impl Serialize for PlanError {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut outer = serializer.serialize_struct("PlanError", 1)?;
        outer.serialize_field("error", &self.response_body())?;
        outer.end()
    }
}

/// A planning failure as part of a larger JSON object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct PlanErrorBody<'a> {
    /// The class of the failure.
    pub kind: PlanErrorKind,
    /// The failure as a sentence.
    pub message: &'a str,
}
