//! Restart policy: back-off and budget, as pure functions of the given time.

use std::collections::VecDeque;
use std::time::Duration;

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use tokio::time::Instant;

use crate::limits::LONGEST_WAIT;

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Backoff {
    /// Wait before the first restart; doubles with each further failure.
    pub first: Duration,
    pub max: Duration,
    /// Random part of the wait, 0.0 to 1.0: with 0.5 the wait is between half and all of it.
    pub jitter: f64,
    /// A child that ran for this long before its failure starts again at `first`.
    pub quiet: Duration,
}

impl Backoff {
    /// For a child that is cheap to start: immediate restarts without a busy loop.
    pub const DEFAULT: Self = Self {
        first: Duration::from_millis(100),
        max: Duration::from_secs(10),
        jitter: 0.5,
        quiet: Duration::from_secs(60),
    };

    /// Wait before consecutive restart number `attempt` (from 1); `chance` is in 0.0..1.0.
    fn delay(&self, attempt: u32, chance: f64) -> Duration {
        let doublings = attempt.saturating_sub(1).min(31);
        let full = self.first.saturating_mul(1 << doublings).min(self.max).min(LONGEST_WAIT);
        full.mul_f64(1.0 - self.jitter.clamp(0.0, 1.0) * chance)
    }
}

/// Maximum rate of restarts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Restarts within the window; one more failure exceeds the budget. 0: the first failure does.
    pub restarts: u32,
    pub window: Duration,
}

impl Budget {
    /// Eight a minute. With [`Backoff::DEFAULT`] a child that fails at once exhausts it after 23 s.
    pub const DEFAULT: Self = Self { restarts: 8, window: Duration::from_secs(60) };
}

#[derive(Debug)]
pub(super) struct Account {
    budget: Budget,
    charged: VecDeque<Instant>,
}

impl Account {
    pub(super) fn new(budget: Budget) -> Self {
        Self { budget, charged: VecDeque::new() }
    }

    pub(super) fn budget(&self) -> Budget {
        self.budget
    }

    /// Charges one restart; false: the budget is exhausted.
    pub(super) fn charge_restart(&mut self, now: Instant) -> bool {
        while self.charged.front().is_some_and(|t| now.duration_since(*t) >= self.budget.window) {
            self.charged.pop_front();
        }
        // Not longer than the budget: an excess restart is not stored.
        if self.charged.len() >= usize::try_from(self.budget.restarts).unwrap_or(usize::MAX) {
            return false;
        }
        self.charged.push_back(now);
        true
    }
}

/// Waits of one child. Each child has its own random stream, so that adding a child does not change the waits of
/// others.
#[derive(Debug)]
pub(super) struct RestartWaits {
    backoff: Backoff,
    in_a_row: u32,
    chance: ChaCha8Rng,
}

impl RestartWaits {
    pub(super) fn new(backoff: Backoff, seed: u64, child: &str) -> Self {
        let mut chance = ChaCha8Rng::seed_from_u64(seed);
        chance.set_stream(random_stream(child));
        Self { backoff, in_a_row: 0, chance }
    }

    /// Wait after a failure of a child that had run for `ran`.
    pub(super) fn next(&mut self, ran: Duration) -> Duration {
        if ran >= self.backoff.quiet {
            self.in_a_row = 0;
        }
        self.in_a_row = self.in_a_row.saturating_add(1);
        self.backoff.delay(self.in_a_row, self.chance.random_range(0.0..1.0))
    }
}

/// FNV-1a: gives a name the same number in every process.
fn random_stream(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXACT: Backoff = Backoff { jitter: 0.0, ..Backoff::DEFAULT };

    #[test]
    fn waits_double_up_to_the_longest() {
        let mut waits = RestartWaits::new(EXACT, 1, "a");
        let got: Vec<u128> = (0..9).map(|_| waits.next(Duration::ZERO).as_millis()).collect();
        assert_eq!(got, [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]);
    }

    #[test]
    fn long_run_resets_the_back_off_and_a_shorter_run_does_not() {
        let mut waits = RestartWaits::new(EXACT, 1, "a");
        waits.next(Duration::ZERO);
        waits.next(Duration::ZERO);
        assert_eq!(waits.next(EXACT.quiet - Duration::from_millis(1)).as_millis(), 400);
        assert_eq!(waits.next(EXACT.quiet).as_millis(), 100);
    }

    #[test]
    fn jitter_stays_within_its_part_and_follows_the_seed_and_the_name() {
        let draw = |seed, name: &str| -> Vec<Duration> {
            let mut waits = RestartWaits::new(Backoff::DEFAULT, seed, name);
            (0..200).map(|_| waits.next(Backoff::DEFAULT.quiet)).collect()
        };
        let a = draw(1, "a");
        assert_eq!(a, draw(1, "a"));
        assert_ne!(a, draw(2, "a"));
        assert_ne!(a, draw(1, "b"));
        for wait in a {
            assert!(wait > Duration::from_millis(50) && wait <= Duration::from_millis(100), "{wait:?}");
        }
    }

    #[test]
    fn many_failures_in_a_row_do_not_overflow() {
        let endless = Backoff { first: Duration::from_secs(1 << 40), max: Duration::MAX, ..EXACT };
        let mut waits = RestartWaits::new(endless, 1, "a");
        for _ in 0..100 {
            assert_eq!(waits.next(Duration::ZERO), LONGEST_WAIT);
        }
    }

    #[test]
    fn a_budget_counts_within_a_sliding_window() {
        let start = Instant::now();
        let at = |s: u64| start + Duration::from_secs(s);
        let mut account = Account::new(Budget { restarts: 2, window: Duration::from_secs(10) });
        assert!(account.charge_restart(at(0)));
        assert!(account.charge_restart(at(6)));
        assert!(!account.charge_restart(at(9)), "a third within the window");
        assert!(account.charge_restart(at(10)), "the first has left the window");
        assert!(!account.charge_restart(at(15)));
        assert!(account.charge_restart(at(16)));
    }

    #[test]
    fn restart_budget_of_zero_is_exceeded_immediately() {
        let mut account = Account::new(Budget { restarts: 0, window: Duration::from_secs(1) });
        assert!(!account.charge_restart(Instant::now()));
    }

    #[test]
    fn the_default_budget_can_be_exceeded_with_the_default_backoff() {
        let mut waits = RestartWaits::new(EXACT, 1, "a");
        let all: Duration = (0..Budget::DEFAULT.restarts).map(|_| waits.next(Duration::ZERO)).sum();
        assert!(all < Budget::DEFAULT.window, "{all:?}");
    }
}
