//! What was seen of a rehearsal, as its report tells it. Times count from its beginning.

use madako_domain::plan::Change;
use madako_faults::Span;
use serde::Serialize;

/// A plan that was committed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PlanSeen {
    /// When.
    pub at: Span,
    /// What it does.
    pub action: String,
    /// The nodes that it changes, as far as they are kept with it.
    pub changes: Vec<Change>,
    /// How many it changes.
    pub changes_total: usize,
    /// Why: the reasons of the rule that led to it.
    pub reasons: Vec<String>,
}

/// An entry of the repair queue.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RepairSeen {
    /// Its number.
    pub index: i64,
    /// Address of its machine.
    pub address: String,
    /// Type of its machine.
    pub machine_type: String,
    /// The operation.
    pub operation: String,
    /// When it came into the queue; `None`: before the rehearsal.
    pub requested: Option<Span>,
    /// When it was begun; `None`: it was not, or before the rehearsal.
    pub begins: Option<Span>,
    /// When it ended; `None`: it did not.
    pub ends: Option<Span>,
    /// How far it came.
    pub status: String,
    /// What was done, in order.
    pub steps: Vec<StepSeen>,
}

/// Something that was done for an entry.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StepSeen {
    /// When.
    pub at: Span,
    /// What.
    pub what: String,
}

/// A decision about an application that led to something.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PlacementSeen {
    /// When.
    pub at: Span,
    /// Its namespace and name.
    pub application: String,
    /// What: `bound`, `moved` and the like.
    pub what: String,
    /// Where it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Where it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Why it left, or what holds it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// Something that stood in the way of something at the end.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Held {
    /// Of what.
    pub what: String,
    /// What stood in its way.
    pub why: String,
}

/// Something that was held back for a while, when instances said so.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WaitSeen {
    /// When.
    pub at: Span,
    /// Of what.
    pub what: String,
    /// What stood in its way, or that it does not any more.
    pub why: String,
}
