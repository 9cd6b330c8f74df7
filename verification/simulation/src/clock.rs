//! Simulated wall clocks that follow tokio's paused time and can be stopped.

use std::sync::Mutex;
use std::time::Duration;

use madako_protocol::ports::Clock;
use time::OffsetDateTime;
use tokio::time::Instant;

/// A wall clock that started at a given time.
pub struct SimulatedClock {
    began: OffsetDateTime,
    since: Instant,
    stopped: Mutex<Option<Duration>>,
}

impl SimulatedClock {
    /// Starts now at the time `began`.
    pub fn new(began: OffsetDateTime) -> Self {
        Self { began, since: Instant::now(), stopped: Mutex::new(None) }
    }

    /// Stops the clock at the present time.
    pub fn stop(&self) {
        *self.stopped.lock().unwrap() = Some(self.since.elapsed());
    }
}

impl Clock for SimulatedClock {
    fn now(&self) -> OffsetDateTime {
        self.began + self.stopped.lock().unwrap().unwrap_or_else(|| self.since.elapsed())
    }
}
