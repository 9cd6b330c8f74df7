//! Simulated wall clocks that follow tokio's paused time.

use madako_protocol::ports::Clock;
use time::OffsetDateTime;
use tokio::time::Instant;

/// A wall clock that started at a given time.
pub struct SimulatedClock {
    began: OffsetDateTime,
    since: Instant,
}

impl SimulatedClock {
    /// Starts now at the time `began`.
    pub fn new(began: OffsetDateTime) -> Self {
        Self { began, since: Instant::now() }
    }
}

impl Clock for SimulatedClock {
    fn now(&self) -> OffsetDateTime {
        self.began + self.since.elapsed()
    }
}
