//! The back-off between retries of requests to etcd, with jitter.

use std::time::Duration;

use rand::{RngExt as _, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::limits::{FIRST_PAUSE, LONGEST_PAUSE};

/// Capped exponential backoff with jitter.
#[derive(Debug)]
pub(crate) struct Backoff {
    rng: ChaCha8Rng,
    next: Duration,
}

impl Backoff {
    /// A back-off with its own generator per purpose: its draws do not depend on those of other purposes.
    pub(crate) fn new(seed: u64, purpose: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(purpose);
        Self { rng, next: FIRST_PAUSE }
    }

    /// The next wait: between half of the step and the whole step. The step doubles.
    pub(crate) fn wait(&mut self) -> Duration {
        let step = self.next;
        self.next = (step * 2).min(LONGEST_PAUSE);
        step.mul_f64(self.rng.random_range(0.5..=1.0))
    }

    pub(crate) fn reset(&mut self) {
        self.next = FIRST_PAUSE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_cap_and_reset_after_a_success() {
        let mut backoff = Backoff::new(1, 1);
        let mut step = FIRST_PAUSE;
        for _ in 0..20 {
            let wait = backoff.wait();
            assert!(wait >= step / 2 && wait <= step, "{wait:?} is not between half of {step:?} and it");
            step = (step * 2).min(LONGEST_PAUSE);
        }
        backoff.reset();
        assert!(backoff.wait() <= FIRST_PAUSE);
    }

    #[test]
    fn waits_follow_from_the_seed_and_the_purpose() {
        let draw = |seed, purpose| {
            let mut backoff = Backoff::new(seed, purpose);
            (0..5).map(|_| backoff.wait()).collect::<Vec<_>>()
        };
        assert_eq!(draw(1, 1), draw(1, 1));
        assert_ne!(draw(1, 1), draw(1, 2));
        assert_ne!(draw(1, 1), draw(2, 1));
    }
}
