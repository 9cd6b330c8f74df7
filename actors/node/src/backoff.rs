//! The pauses between attempts to connect.

use std::time::Duration;

use crate::limits::{FIRST_PAUSE, MAX_PAUSE};

#[derive(Debug, Default)]
pub(crate) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The pause after another failure, doubled each time up to the maximum. `chance` is in `0.0..1.0`: up to a quarter
    /// is left out, so that the nodes of a rack do not all connect at the same time.
    pub(crate) fn next_pause(&mut self, chance: f64) -> Duration {
        let doubled = FIRST_PAUSE.saturating_mul(1 << self.failures.min(16));
        self.failures = self.failures.saturating_add(1);
        doubled.min(MAX_PAUSE).mul_f64(1.0 - chance / 4.0)
    }

    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_maximum_and_reset_after_a_success() {
        let mut backoff = Backoff::default();
        let pauses: Vec<u64> = (0..8).map(|_| backoff.next_pause(0.0).as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        backoff.reset();
        assert_eq!(backoff.next_pause(0.0), FIRST_PAUSE);
        assert_eq!(backoff.next_pause(0.999).as_millis() / 10, 150);
    }
}
