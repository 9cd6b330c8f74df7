//! The observations of a rehearsal that its report shows. Times count from its beginning.

use madako_domain::plan::Change;
use madako_faults::Span;
use serde::Serialize;

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PlanObservation {
    pub at: Span,
    pub action: String,
    /// Changed nodes that the stored plan names.
    pub changes: Vec<Change>,
    /// Number of all changed nodes.
    pub changes_total: usize,
    /// Reasons of the rule that led to the plan.
    pub reasons: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RepairObservation {
    pub index: i64,
    pub address: String,
    pub machine_type: String,
    pub operation: String,
    /// Time of its addition to the queue; `None`: before the rehearsal.
    pub requested: Option<Span>,
    /// Time of its beginning; `None`: not begun, or begun before the rehearsal.
    pub begins: Option<Span>,
    /// Time of its end; `None`: not ended.
    pub ends: Option<Span>,
    pub status: String,
    /// In order of time.
    pub steps: Vec<StepObservation>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StepObservation {
    pub at: Span,
    pub what: String,
}

/// A decision about an application with a new result.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PlacementObservation {
    pub at: Span,
    /// Namespace and name.
    pub application: String,
    /// Outcome: `bound`, `moved` and so on.
    pub what: String,
    /// Previous cluster, or the cloud of a created cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// New or intended cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Reason for the outcome, or the obstacle.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct RemainingObstacle {
    /// The blocked object.
    pub what: String,
    pub why: String,
}

/// An obstacle, or its end, that an instance reported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WaitObservation {
    pub at: Span,
    /// The blocked object.
    pub what: String,
    /// The obstacle, or a note that it is gone.
    pub why: String,
}
