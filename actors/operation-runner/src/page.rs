//! The content of the page `/ops`: the phase, the running command, the next operations, and the held ones.

use std::collections::BTreeMap;
use std::sync::Arc;

use madako_domain::status::OperationPhase;
use serde::Serialize;

use crate::held::Held;
use crate::operation::Operation;
use crate::stories::NodeStories;

/// The right to act.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, strum::IntoStaticStr, strum::EnumString)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum Mode {
    /// Operations run.
    Act,
    /// The runner reads, decides and shows; it changes nothing.
    Observe,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OpsPage {
    /// `None` before the first decision.
    pub phase: Option<OperationPhase>,
    pub mode: Mode,
    /// The nodes of the cluster, by address.
    pub nodes: BTreeMap<String, NodePage>,
    pub running: Option<RunningCommandPage>,
    pub next: Vec<Operation>,
    pub held: Vec<HeldPage>,
    /// Seconds for which nodes are left out, because a command failed on them.
    pub backing_off: BTreeMap<String, u64>,
    /// The last error of each of them.
    pub back_off_errors: BTreeMap<String, String>,
    /// The page `/nodes`, of the last decision.
    #[serde(skip)]
    pub stories: Arc<NodeStories>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NodePage {
    pub reachable: bool,
    /// The reason why its state is unknown.
    pub error: Option<String>,
    pub age_seconds: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RunningCommandPage {
    pub record: i64,
    pub operation: String,
    pub command: String,
    pub targets: Vec<String>,
}

/// An operation that waits.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HeldPage {
    #[serde(flatten)]
    pub held: Held,
    /// The reason in words.
    pub why: String,
}
