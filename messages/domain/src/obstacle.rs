//! Obstacles to planning and repairing, each with its start (`madako/obstacles`).
//!
//! The leader writes the key when an obstacle appears, changes or ends, so that another process or a new leader knows
//! more than the operator's keys tell: how long the registry has been silent, and why there is no plan.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use crate::limits::MOST_CHARACTERS;

/// The integration with the registry is disabled.
pub const INTEGRATION_DISABLED: &str = "integration-disabled";
/// The registry gave no good answer for more than three poll intervals.
pub const REGISTRY_SILENT: &str = "registry-silent";
/// The removal guard holds an observation back.
pub const REMOVAL_GUARD: &str = "removal-guard";
/// No plan satisfies the template and the constraints.
pub const NO_PLAN: &str = "no-plan";
/// A stored value that a plan needs cannot be used.
pub const UNUSABLE_VALUE: &str = "unusable-value";
/// The repair queue is disabled.
pub const REPAIR_QUEUE_DISABLED: &str = "repair-queue-disabled";
/// Repairs that the registry asks for are disabled.
pub const AUTO_REPAIR_DISABLED: &str = "auto-repair-disabled";
/// Repairs in a rack are held back; the rack's own key says since when.
pub const RACK_HELD: &str = "rack-held";
/// Every rule, as the status and the guide name them.
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

/// One obstacle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Obstacle {
    /// Since when.
    #[serde(with = "time::serde::rfc3339")]
    pub since: OffsetDateTime,
    /// Why, for people; empty where the rule says it all.
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

/// Obstacles by their rule.
pub type Obstacles = BTreeMap<String, Obstacle>;
