//! The operator's settings (section `placement.scheduler` of the configuration; Krake's `scheduler.yaml`).

use std::time::Duration;

use madako_domain::placement::fit::ComparedMetrics;
use madako_json::krake::free::JsonObject;
use time::OffsetDateTime;

#[derive(Debug, Clone)]
pub struct SchedulerConfig {
    /// Minimum stay of an application while its cluster fits; also the time for which a cluster must be not online
    /// before applications leave it.
    pub reschedule_after: Duration,
    /// Weight of staying. Finite and not negative.
    pub stickiness: f64,
    /// Time for collecting changes before a pass; default 0.
    pub debounce: Duration,
    pub metric_constraints: ComparedMetrics,
    /// Limit of moves within `reschedule_after`.
    pub max_moves: MaxMoves,
    pub cluster_creation: ClusterCreation,
    /// Maximum wait for the first value of a metric: slightly more than its provider's deadline.
    pub metric_wait: Duration,
    pub candidates: Candidates,
}

/// Limit of moves within `reschedule_after`: the greater of both numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MaxMoves {
    pub percent: u64,
    pub at_least: u64,
}

/// Settings for clusters that are created for applications (`automatic_cluster_creation`).
#[derive(Debug, Clone)]
pub struct ClusterCreation {
    /// The TOSCA template (content of `tosca_file`); `None`: no cluster is created.
    pub tosca: Option<JsonObject>,
    pub deletion_retention: Duration,
}

/// Clusters that an application may be bound to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, strum::EnumString, strum::VariantNames)]
#[strum(serialize_all = "lowercase")]
pub enum Candidates {
    /// All clusters: "the application handler considers every Kubernetes cluster" (Krake's "Scheduling").
    #[default]
    All,
    /// Clusters of the application's namespace, as in Krake's code: for namespaces that belong to tenants.
    Namespace,
}

impl Default for SchedulerConfig {
    /// Krake's defaults, and our own where Krake has none.
    fn default() -> Self {
        Self {
            reschedule_after: Duration::from_secs(60),
            stickiness: 0.1,
            debounce: Duration::ZERO,
            metric_constraints: ComparedMetrics::Value,
            max_moves: MaxMoves { percent: 10, at_least: 10 },
            cluster_creation: ClusterCreation { tosca: None, deletion_retention: Duration::from_secs(600) },
            metric_wait: Duration::from_secs(12),
            candidates: Candidates::All,
        }
    }
}

/// Maximum span that is added to a time: ten years, which serve as "for ever".
const LONGEST: time::Duration = time::Duration::days(3_650);

pub(crate) fn add_duration(time: OffsetDateTime, by: Duration) -> OffsetDateTime {
    let by = time::Duration::try_from(by).unwrap_or(LONGEST).min(LONGEST);
    time.checked_add(by).unwrap_or(time)
}

pub(crate) fn add_seconds(time: OffsetDateTime, seconds: i64) -> OffsetDateTime {
    add_duration(time, Duration::from_secs(u64::try_from(seconds).unwrap_or(0)))
}
