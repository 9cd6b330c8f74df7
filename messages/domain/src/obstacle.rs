//! Obstacles to planning and repairing, each with its start time (`madako/obstacles`).
//!
//! The leader writes the key when an obstacle appears, changes or ends. Another process or a new leader then knows
//! more than the operator's keys say: for how long the registry has been silent, and why there is no plan.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use crate::limits::MOST_CHARACTERS;

/// An operator disabled the integration with the registry.
pub const INTEGRATION_DISABLED: &str = "integration-disabled";
/// The registry gave no valid answer for more than three poll intervals.
pub const REGISTRY_SILENT: &str = "registry-silent";
/// The removal guard holds an observation back.
pub const REMOVAL_GUARD: &str = "removal-guard";
/// No plan satisfies the template and the constraints.
pub const NO_PLAN: &str = "no-plan";
/// A stored value that a plan needs is unusable.
pub const UNUSABLE_VALUE: &str = "unusable-value";
/// An operator disabled the repair queue.
pub const REPAIR_QUEUE_DISABLED: &str = "repair-queue-disabled";
/// An operator disabled repairs that the registry requests.
pub const AUTO_REPAIR_DISABLED: &str = "auto-repair-disabled";
/// Repairs in a rack are held back; the rack's own key has the start time.
pub const RACK_HELD: &str = "rack-held";
/// All rules, in the wording of the status and the guide.
pub const RULES: [&str; 8] = [
    INTEGRATION_DISABLED,
    REGISTRY_SILENT,
    REMOVAL_GUARD,
    NO_PLAN,
    UNUSABLE_VALUE,
    REPAIR_QUEUE_DISABLED,
    AUTO_REPAIR_DISABLED,
    RACK_HELD,
];

/// An obstacle that exists now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Obstacle {
    /// Start time, to the second.
    #[serde(with = "time::serde::rfc3339")]
    pub since: OffsetDateTime,
    /// The reason in words; empty if the name of the rule suffices.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
}

impl Obstacle {
    /// An obstacle with its time to the second, and its reason cut to 1,000 characters.
    #[must_use]
    pub fn new(since: OffsetDateTime, why: &str) -> Self {
        let since = since.replace_nanosecond(0).unwrap_or(since);
        Self { since, why: why.chars().take(MOST_CHARACTERS).collect() }
    }
}

/// Obstacles by the name of their rule.
pub type Obstacles = BTreeMap<String, Obstacle>;
