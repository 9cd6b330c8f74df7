//! Spares a provider that is down: after several failures it is fetched in fewer rounds. New metrics are still
//! fetched at once: errors of other metrics do not predict them.

pub use crate::limits::{FAILURES, MOST_SKIPPED};

#[derive(Debug, Clone, Default)]
pub struct Breaker {
    failures: u32,
    skip: u32,
}

impl Breaker {
    /// Records a failure of the provider. Returns whether it counts as down from now on.
    pub fn record_failure(&mut self) -> bool {
        self.failures = self.failures.saturating_add(1);
        if self.failures >= FAILURES {
            // 1, then 3.
            let times = (self.failures - FAILURES + 1).min(MOST_SKIPPED);
            self.skip = ((1_u32 << times) - 1).min(MOST_SKIPPED);
        }
        self.failures == FAILURES
    }

    /// Records an answer. Returns whether the provider counted as down until now.
    pub fn record_answer(&mut self) -> bool {
        let was_down = self.is_down();
        *self = Self::default();
        was_down
    }

    /// Begins a round. Returns whether the provider is fetched in it.
    pub fn begin_round(&mut self) -> bool {
        let asks = self.skip == 0;
        self.skip = self.skip.saturating_sub(1);
        asks
    }

    #[must_use]
    pub fn failures(&self) -> u32 {
        self.failures
    }

    #[must_use]
    pub fn is_down(&self) -> bool {
        self.failures >= FAILURES
    }
}
