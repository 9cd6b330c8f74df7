//! Makes passes of the scheduler last as long as a scripted alert scenario says.
//!
//! Simulated time stands still within a handler. Therefore this subscriber advances the clock when the span of a pass
//! is entered, as if the thread got no processor then. Measurements of the pass show the long duration.

use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::time::Duration;

use tokio::time::{Instant, advance};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Duration of passes, and end of their slowness.
pub type Slow = Arc<Mutex<Option<(Duration, Instant)>>>;

/// Subscriber to the spans of placement passes only.
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
            // The first poll of `advance` moves the clock; the second one only yields to other tasks.
            let moved = pin!(advance(long)).poll(&mut Context::from_waker(Waker::noop()));
            assert!(moved.is_pending());
        }
    }

    fn exit(&self, _: &Id) {}
}
