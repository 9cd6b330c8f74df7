//! Spares a provider that is down: what failed several times is asked for in fewer rounds. What is new is asked for at
//! once all the same: nothing that others met says how it is.

pub use crate::limits::{FAILURES, MOST_SKIPPED};

/// The breaker of one provider.
#[derive(Debug, Clone, Default)]
pub struct Breaker {
    failures: u32,
    skip: u32,
}

impl Breaker {
    /// A fetch gave nothing because of the provider. Whether it counts as down from now on.
    pub fn failed(&mut self) -> bool {
        self.failures = self.failures.saturating_add(1);
        if self.failures >= FAILURES {
            // 1, then 3.
            let times = (self.failures - FAILURES + 1).min(MOST_SKIPPED);
            self.skip = ((1_u32 << times) - 1).min(MOST_SKIPPED);
        }
        self.failures == FAILURES
    }

    /// The provider answered. Whether it counted as down until now.
    pub fn answered(&mut self) -> bool {
        let was_down = self.is_down();
        *self = Self::default();
        was_down
    }

    /// Whether the provider is asked in a round that begins now.
    pub fn round(&mut self) -> bool {
        let asks = self.skip == 0;
        self.skip = self.skip.saturating_sub(1);
        asks
    }

    /// Fetches that failed one after the other until now.
    #[must_use]
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Whether the provider counts as down.
    #[must_use]
    pub fn is_down(&self) -> bool {
        self.failures >= FAILURES
    }
}
