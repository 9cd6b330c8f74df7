//! What the operator sets (section `placement.scheduler` of the configuration; Krake's `scheduler.yaml`).

use std::time::Duration;

use madako_domain::placement::fit::Compared;
use madako_json::krake::free::JsonObject;
use time::OffsetDateTime;

/// Settings of the scheduler.
#[derive(Debug, Clone)]
pub struct SchedulerConfig {
    /// How long an application stays at least, while its cluster fits; also how long a cluster must not have been
    /// online before applications leave it.
    pub reschedule_after: Duration,
    /// Weight of staying. Finite and not negative.
    pub stickiness: f64,
    /// How long changes are collected before a pass; none by default.
    pub debounce: Duration,
    /// What metric constraints compare.
    pub metric_constraints: Compared,
    /// How many applications may move within `reschedule_after`.
    pub max_moves: MaxMoves,
    /// How clusters are created for applications, and deleted.
    pub cluster_creation: ClusterCreation,
    /// How long a decision waits for the first value of a metric: a little more than the deadline of its provider.
    pub metric_wait: Duration,
    /// Which clusters an application may go to.
    pub candidates: Candidates,
}

/// How many applications may move within `reschedule_after`: the greater of both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MaxMoves {
    /// Percent of all applications.
    pub percent: u64,
    /// At least so many.
    pub at_least: u64,
}

/// How clusters are created for applications (`automatic_cluster_creation`).
#[derive(Debug, Clone)]
pub struct ClusterCreation {
    /// The TOSCA template that they are made from (the content of `tosca_file`); without it none is created.
    pub tosca: Option<JsonObject>,
    /// How long one that nobody uses stays.
    pub deletion_retention: Duration,
}

/// Which clusters an application may go to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Candidates {
    /// Every one: "the application handler considers every Kubernetes cluster" (seed 004).
    #[default]
    All,
    /// Those of its namespace, as Krake's code has it: for those to whom a namespace is a tenant's.
    Namespace,
}

impl Default for SchedulerConfig {
    /// Krake's defaults, and the where Krake has none.
    fn default() -> Self {
        Self {
            reschedule_after: Duration::from_secs(60),
            stickiness: 0.1,
            debounce: Duration::ZERO,
            metric_constraints: Compared::Value,
            max_moves: MaxMoves { percent: 10, at_least: 10 },
            cluster_creation: ClusterCreation { tosca: None, deletion_retention: Duration::from_secs(600) },
            metric_wait: Duration::from_secs(12),
            candidates: Candidates::All,
        }
    }
}

/// The longest span that is added to a time (ten years): what people set beyond it means the same.
const LONGEST: time::Duration = time::Duration::days(3_650);

/// A time that much later.
pub(crate) fn later(time: OffsetDateTime, by: Duration) -> OffsetDateTime {
    let by = time::Duration::try_from(by).unwrap_or(LONGEST).min(LONGEST);
    time.checked_add(by).unwrap_or(time)
}

/// A time that many seconds later.
pub(crate) fn later_by_seconds(time: OffsetDateTime, seconds: i64) -> OffsetDateTime {
    later(time, Duration::from_secs(u64::try_from(seconds).unwrap_or(0)))
}
