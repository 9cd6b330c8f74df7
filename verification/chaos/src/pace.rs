//! Draws the random times of a client's calls, with a mean rate, until the client stops.

use std::time::Duration;

use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// The longest pause between calls, however low the rate.
const LONGEST: Duration = Duration::from_secs(3600);

/// The pace of one client. A delayed client does not catch up.
pub(crate) struct ClientPace {
    pause: Duration,
    next: Instant,
    stop: watch::Receiver<bool>,
}

impl ClientPace {
    /// About `rate` calls a second until `stop` is set or its sender is gone. The first call comes after the share
    /// `first` of a pause.
    pub(crate) fn new(rate: f64, first: f64, stop: watch::Receiver<bool>) -> Self {
        let pause = Duration::from_secs_f64(1.0 / rate.max(f64::MIN_POSITIVE)).min(LONGEST);
        Self { pause, next: Instant::now() + pause.mul_f64(first), stop }
    }

    /// Waits until the next call is due; returns `false` when the client must stop.
    pub(crate) async fn wait_for_next_call(&mut self, chance: &mut ChaCha8Rng) -> bool {
        tokio::select! {
            biased;
            _ = self.stop.wait_for(|stop| *stop) => return false,
            () = sleep_until(self.next) => {}
        }
        self.next = (self.next + self.pause.mul_f64(chance.random_range(0.5..1.5))).max(Instant::now());
        true
    }
}
