//! Wakes the watch streams when a revision was published, and everybody when the store stops, always in the order in which they
//! began to wait.
//!
//! A `tokio::sync::watch` would do but for that order: it wakes who waits in an order that it draws by itself, and
//! simulations on one thread would differ from run to run.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

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
/// Something that happens once, at the latest when this is dropped; who waits is woken in the order of waiting, as above.
#[derive(Debug)]
pub(crate) struct Latch(Arc<Inside>);

#[derive(Debug)]
struct Inside {
    set: AtomicBool,
    ring: Notify,
}

/// One who waits for a [`Latch`].
#[derive(Debug, Clone)]
pub(crate) struct Latched(Arc<Inside>);

impl Latch {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Inside { set: AtomicBool::new(false), ring: Notify::new() }))
    }

    pub(crate) fn set(&self) {
        self.0.set.store(true, Ordering::Release);
        self.0.ring.notify_waiters();
    }

    pub(crate) fn subscribe(&self) -> Latched {
        Latched(Arc::clone(&self.0))
    }
}

impl Drop for Latch {
    fn drop(&mut self) {
        self.set();
    }
}

impl Latched {
    pub(crate) fn is_set(&self) -> bool {
        self.0.set.load(Ordering::Acquire)
    }

    /// Returns when it has happened.
    pub(crate) async fn wait(&self) {
        loop {
            let mut rung = pin!(self.0.ring.notified());
            // From here on no ring is missed.
            rung.as_mut().enable();
            if self.is_set() {
                return;
            }
            rung.await;
        }
    }
}
