//! Passes of placement that take as long as a script says.
//!
//! Simulated time does not pass within a handler. So it is moved on when the span of a pass is entered, as it goes on for a thread
//! that just then gets no processor; who measures the pass sees that it took long.

use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::time::Duration;

use tokio::time::{Instant, advance};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// How long passes take, and until when.
pub type Slow = Arc<Mutex<Option<(Duration, Instant)>>>;

/// What is told of the spans of passes, and of no other.
pub struct SlowPasses(pub Slow);

impl Subscriber for SlowPasses {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_span() && metadata.name() == "placement" && metadata.target().contains("app_scheduler")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {}

    fn enter(&self, _: &Id) {
        let slow = *self.0.lock().unwrap();
        if let Some((long, until)) = slow
            && Instant::now() < until
        {
            // Its first step moves the clock on; the other one only lets others have their turn.
            let moved = pin!(advance(long)).poll(&mut Context::from_waker(Waker::noop()));
            assert!(moved.is_pending());
        }
    }

    fn exit(&self, _: &Id) {}
}
