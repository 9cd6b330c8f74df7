//! Simulated wall clocks: they follow tokio's paused time and can stand still.

use std::sync::Mutex;
use std::time::Duration;

use madako_protocol::ports::Clock;
use time::OffsetDateTime;
use tokio::time::Instant;

/// A wall clock that began at a given time.
pub struct SimulatedClock {
    began: OffsetDateTime,
    since: Instant,
    stopped: Mutex<Option<Duration>>,
}

impl SimulatedClock {
    /// Begins to run now.
    pub fn new(began: OffsetDateTime) -> Self {
        Self { began, since: Instant::now(), stopped: Mutex::new(None) }
    }

    /// From now on it stands still.
    pub fn stop(&self) {
        *self.stopped.lock().unwrap() = Some(self.since.elapsed());
    }
}

impl Clock for SimulatedClock {
    fn now(&self) -> OffsetDateTime {
        self.began + self.stopped.lock().unwrap().unwrap_or_else(|| self.since.elapsed())
    }
}
