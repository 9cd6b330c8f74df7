//! Wakes the watch streams after a publication, and all tasks of the store when it stops, always in FIFO order.
//!
//! `tokio::sync::watch` wakes its waiters in a random order, so runs of simulations on one thread would differ.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use tokio::sync::Notify;

/// The latest published revision, and its waiters.
#[derive(Debug)]
pub(crate) struct RevisionBell {
    newest: AtomicI64,
    ring: Notify,
}

impl RevisionBell {
    pub(crate) fn new(newest: i64) -> Self {
        Self { newest: AtomicI64::new(newest), ring: Notify::new() }
    }

    pub(crate) fn publish(&self, revision: i64) {
        self.newest.store(revision, Ordering::Release);
        self.ring.notify_waiters();
    }
}

/// A waiter. The revision published when it was created counts as seen.
#[derive(Debug)]
pub(crate) struct Listener {
    bell: Arc<RevisionBell>,
    last_revision: i64,
}

impl Listener {
    pub(crate) fn new(bell: &Arc<RevisionBell>) -> Self {
        Self { bell: Arc::clone(bell), last_revision: bell.newest.load(Ordering::Acquire) }
    }

    /// Marks the latest published revision as seen.
    pub(crate) fn mark_seen(&mut self) {
        self.last_revision = self.bell.newest.load(Ordering::Acquire);
    }

    /// Returns when an unseen revision is published.
    pub(crate) async fn wait_for_change(&mut self) {
        loop {
            let mut rung = pin!(self.bell.ring.notified());
            // From here on no notification is lost.
            rung.as_mut().enable();
            let newest = self.bell.newest.load(Ordering::Acquire);
            if newest != self.last_revision {
                self.last_revision = newest;
                return;
            }
            rung.await;
        }
    }
}
/// A one-time event, set at the latest when this is dropped. Waiters are woken in FIFO order.
#[derive(Debug)]
pub(crate) struct Latch(Arc<LatchState>);

#[derive(Debug)]
struct LatchState {
    set: AtomicBool,
    ring: Notify,
}

#[derive(Debug, Clone)]
pub(crate) struct Latched(Arc<LatchState>);

impl Latch {
    pub(crate) fn new() -> Self {
        Self(Arc::new(LatchState { set: AtomicBool::new(false), ring: Notify::new() }))
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

    pub(crate) async fn wait(&self) {
        loop {
            let mut rung = pin!(self.0.ring.notified());
            // From here on no notification is lost.
            rung.as_mut().enable();
            if self.is_set() {
                return;
            }
            rung.await;
        }
    }
}
