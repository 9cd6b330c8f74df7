//! The real clock since some time: how long a person waited.

use std::time::{Duration, Instant};

/// Measures what something takes, and decides nothing about what happens in it.
#[derive(Debug, Clone, Copy)]
pub struct Stopwatch(Instant);

#[expect(
    clippy::disallowed_methods,
    reason = "the edge: a person waits by the real clock, not by the simulated one"
)]
impl Stopwatch {
    /// Begins now.
    #[must_use]
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// Since then.
    #[must_use]
    pub fn elapsed(self) -> Duration {
        self.0.elapsed()
    }
}
