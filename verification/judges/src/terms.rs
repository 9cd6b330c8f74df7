//! What the settings of a world promise.

use std::time::Duration;

/// Settings and tolerance of a world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// Time between polls of the registry.
    pub interval: Duration,
    /// Time to live of a leader's lease.
    pub session_ttl: Duration,
    /// How long a worker must have been retired before it leaves.
    pub retire_wait: Duration,
    /// Time between rounds of metrics.
    pub metrics_interval: Duration,
    /// How long the last good value of a metric counts.
    pub metric_max_age: Duration,
    /// How long an application stays at least where it is.
    pub reschedule_after: Duration,
    /// By how much what is seen may be earlier or later than it happened, and requests be under way.
    pub tolerance: Duration,
    /// Whether a fault holds back requests that arrive all at once when it is over.
    pub holds_back: bool,
}

/// Polls that an answer of the registry may be planned on for (guide: `stale-observation`).
pub(crate) const STALE_AFTER_POLLS: u32 = 3;
/// Rounds that the answer of a health check counts for (guide: Repairs).
pub(crate) const FRESH_ROUNDS: u32 = 2;
/// Polls in a row that must agree on a removal (guide: The removal guard).
pub(crate) const POLLS_TO_AGREE: usize = 3;
/// Of so many nodes more than one may vanish (guide: The removal guard).
pub(crate) const SHARE: usize = 10;
/// Rounds of metrics that are skipped at most while a provider is down.
pub(crate) const MOST_SKIPPED: u32 = 3;
/// The part of a lease that its holder does not believe in, and the longest such part.
const LEASE_MARGIN: (u32, Duration) = (10, Duration::from_secs(5));

impl Terms {
    /// How long an answer of the registry may be planned on.
    #[must_use]
    pub fn stale(&self) -> Duration {
        self.interval * STALE_AFTER_POLLS
    }

    /// How long what follows from an answer of the registry may take, by the next poll that brings it and one more.
    #[must_use]
    pub fn reaction(&self) -> Duration {
        self.interval * 2 + self.tolerance
    }

    /// How long before its lease ends the leader acts no more.
    #[must_use]
    pub fn lease_margin(&self) -> Duration {
        (self.session_ttl / LEASE_MARGIN.0).min(LEASE_MARGIN.1) + madako_protocol::permit::PERMIT_MARGIN
    }
}
