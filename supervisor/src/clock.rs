//! The system's wall clock: the one place that reads it.

use madako_protocol::ports::Clock;
use time::OffsetDateTime;

#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[allow(clippy::disallowed_methods, reason = "everything else takes a Clock, and this is the real one")]
    fn now(&self) -> OffsetDateTime {
        OffsetDateTime::now_utc()
    }
}
