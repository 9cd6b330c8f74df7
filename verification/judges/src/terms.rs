//! The times within which promises must be kept, from the service's settings and a tolerance.

use std::time::Duration;

/// Settings and tolerance of a world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PromiseTerms {
    /// Time between polls of the registry.
    pub interval: Duration,
    /// Time to live of a leader's lease.
    pub session_ttl: Duration,
    /// Minimum time between retirement of a worker and its removal.
    pub retire_wait: Duration,
    /// Time between metrics rounds.
    pub metrics_interval: Duration,
    /// Maximum age of a metric's last good value.
    pub metric_max_age: Duration,
    /// Minimum time that an application stays on its cluster.
    pub reschedule_after: Duration,
    /// Time after which a drain is given up.
    pub eviction_timeout: Duration,
    /// Maximum time until an instance has the answer to its write, and until the world observes a revision.
    pub answer_within: Duration,
    /// Maximum difference between a fact's time and its observation, and maximum duration of a request.
    pub tolerance: Duration,
    /// True if a fault holds back requests that arrive all at once after its end.
    pub holds_back: bool,
}

/// Maximum age, in polls, of an answer of the registry that is planned on (guide: `stale-observation`).
pub(crate) const STALE_AFTER_POLLS: u32 = 3;
/// Poll intervals for which the answer of a health check counts (guide: Repairs).
pub(crate) const FRESH_INTERVALS: u32 = 2;
/// Consecutive polls that must agree on a removal (guide: The removal guard).
pub(crate) const POLLS_TO_AGREE: usize = 3;
/// The guard lets more than one node vanish only up to one in this many nodes (guide: The removal guard).
pub(crate) const SHARE: usize = 10;
/// Maximum metrics rounds that are skipped while a provider is down.
pub(crate) const MOST_SKIPPED: u32 = 3;
/// Divisor and maximum of the part of the lease's time in which its holder no longer acts.
const LEASE_MARGIN: (u32, Duration) = (10, Duration::from_secs(5));

impl PromiseTerms {
    /// Maximum age of an answer of the registry that is planned on.
    #[must_use]
    pub fn stale_after(&self) -> Duration {
        self.interval * STALE_AFTER_POLLS
    }

    /// Maximum time until an effect of an answer of the registry: the next poll brings the answer, one more may pass.
    #[must_use]
    pub fn reaction_time(&self) -> Duration {
        self.interval * 2 + self.tolerance
    }

    /// Time before the end of its lease at which the leader stops acting.
    #[must_use]
    pub fn lease_margin(&self) -> Duration {
        (self.session_ttl / LEASE_MARGIN.0).min(LEASE_MARGIN.1) + madako_protocol::permit::PERMIT_MARGIN
    }
}
