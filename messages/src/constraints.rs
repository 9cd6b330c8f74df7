//! The operator's constraints (CKE's `constraints`, its `docs/constraints.md`).

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Conditions that a cluster must satisfy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Constraints {
    /// Exact number of control plane nodes.
    #[serde(default = "one")]
    pub control_plane_count: u32,
    /// Least number of workers.
    #[serde(default = "one")]
    pub minimum_workers: u32,
    /// Greatest number of workers; 0 means no maximum (CKE's meaning).
    #[serde(default)]
    pub maximum_workers: u32,
    /// Reboots wait while more nodes than this are unreachable.
    #[serde(default)]
    pub maximum_unreachable_nodes_for_reboot: u32,
    /// Greatest number of repair entries when one is added automatically.
    #[serde(default)]
    pub maximum_repair_queue_entries: u32,
    /// Seconds for which an unreachable machine that reboots is left alone.
    #[serde(default)]
    pub wait_seconds_to_repair_rebooting: u32,
    /// Fields that this version does not know.
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

fn one() -> u32 {
    1
}

impl Default for Constraints {
    fn default() -> Self {
        Self {
            control_plane_count: 1,
            minimum_workers: 1,
            maximum_workers: 0,
            maximum_unreachable_nodes_for_reboot: 0,
            maximum_repair_queue_entries: 0,
            wait_seconds_to_repair_rebooting: 0,
            rest: Map::new(),
        }
    }
}
