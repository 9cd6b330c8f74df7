//! Measures the real time that a user waits for a command.

use std::time::{Duration, Instant};

/// Measures durations for messages; no decision depends on them.
#[derive(Debug, Clone, Copy)]
pub struct Stopwatch(Instant);

#[expect(
    clippy::disallowed_methods,
    reason = "the edge: a person waits by the real clock, not by the simulated one"
)]
impl Stopwatch {
    #[must_use]
    pub fn start() -> Self {
        Self(Instant::now())
    }

    #[must_use]
    pub fn elapsed(self) -> Duration {
        self.0.elapsed()
    }
}
