//! Wakes the watch streams when a revision was published, always in the order in which they began to wait.
//!
//! A `tokio::sync::watch` would do but for that order: it wakes who waits in an order that it draws by itself, and
//! simulations on one thread would differ from run to run.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use tokio::sync::Notify;

/// The newest published revision, and who waits for the next.
#[derive(Debug)]
pub(crate) struct Bell {
    newest: AtomicI64,
    ring: Notify,
}

impl Bell {
    pub(crate) fn new(newest: i64) -> Self {
        Self { newest: AtomicI64::new(newest), ring: Notify::new() }
    }

    pub(crate) fn publish(&self, revision: i64) {
        self.newest.store(revision, Ordering::Release);
        self.ring.notify_waiters();
    }
}

/// One who waits. It has seen the revision that was newest when it was made.
#[derive(Debug)]
pub(crate) struct Listener {
    bell: Arc<Bell>,
    seen: i64,
}

impl Listener {
    pub(crate) fn new(bell: &Arc<Bell>) -> Self {
        Self { bell: Arc::clone(bell), seen: bell.newest.load(Ordering::Acquire) }
    }

    /// What is newest now counts as seen.
    pub(crate) fn mark_seen(&mut self) {
        self.seen = self.bell.newest.load(Ordering::Acquire);
    }

    /// Returns when there is a revision that was not seen.
    pub(crate) async fn changed(&mut self) {
        loop {
            let mut rung = pin!(self.bell.ring.notified());
            // From here on no ring is missed.
            rung.as_mut().enable();
            let newest = self.bell.newest.load(Ordering::Acquire);
            if newest != self.seen {
                self.seen = newest;
                return;
            }
            rung.await;
        }
    }
}
