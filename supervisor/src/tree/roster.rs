//! What is alive below a supervisor, seen from outside of it.
//!
//! When a ractor supervisor ends, its children are sent a kill but nobody waits for them. So each supervisor
//! shares a [`Control`] with its parent: the parent can tell it to hurry, and can wait until everything below
//! is gone even if the supervisor itself was killed in the middle of something.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ractor::{ActorCell, ActorId, ActorStatus};
use tokio::sync::watch;

use super::event::{Meltdown, StopOutcome};

/// A supervisor that was told to hurry first gives up a start in flight, then a stuck child, each after one
/// grace time; only after both is it stuck itself.
const SUPERVISOR_GRACES: u32 = 3;

/// A started actor, and its control if it is a supervisor.
#[derive(Debug, Clone)]
pub(super) struct Live {
    pub(super) cell: ActorCell,
    control: Option<Arc<Control>>,
}

/// An entry of a supervisor's roster.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    /// Place in the order of starts.
    pub(super) order: u64,
    pub(super) live: Live,
}

/// Shared by a supervisor and whoever stops it.
#[derive(Debug, Default)]
pub(super) struct Control {
    hurry: watch::Sender<bool>,
    starting: watch::Sender<usize>,
    roster: Mutex<BTreeMap<ActorId, Entry>>,
    meltdown: Mutex<Option<Meltdown>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that can panic runs under these locks; the data is whole in any case.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts a start in flight for as long as it lives.
pub(super) struct Starting(Arc<Control>);

impl Drop for Starting {
    fn drop(&mut self) {
        self.0.starting.send_modify(|n| *n = n.saturating_sub(1));
    }
}

impl Control {
    pub(super) fn begin_start(self: &Arc<Self>) -> Starting {
        self.starting.send_modify(|n| *n += 1);
        Starting(Arc::clone(self))
    }

    pub(super) async fn no_start_in_flight(&self) {
        // The sender lives in `self`, so this cannot fail.
        let _ = self.starting.subscribe().wait_for(|n| *n == 0).await;
    }

    pub(super) fn insert(&self, order: u64, live: Live) {
        lock(&self.roster).insert(live.cell.get_id(), Entry { order, live });
    }

    pub(super) fn remove(&self, id: ActorId) {
        lock(&self.roster).remove(&id);
    }

    /// Everything alive or not yet known to be gone, in the order of starts.
    pub(super) fn roster(&self) -> Vec<Entry> {
        let mut entries: Vec<Entry> = lock(&self.roster).values().cloned().collect();
        entries.sort_by_key(|e| e.order);
        entries
    }

    pub(super) fn hurried(&self) -> watch::Receiver<bool> {
        self.hurry.subscribe()
    }

    /// Ends everything below at once; the supervisor must have been told to stop before.
    fn hurry(&self) {
        self.hurry.send_replace(true);
        for entry in self.roster() {
            entry.live.halt();
        }
    }

    pub(super) fn set_meltdown(&self, meltdown: Meltdown) {
        *lock(&self.meltdown) = Some(meltdown);
    }

    pub(super) fn meltdown(&self) -> Option<Meltdown> {
        lock(&self.meltdown).clone()
    }
}

impl Live {
    pub(super) fn leaf(cell: ActorCell) -> Self {
        Self { cell, control: None }
    }

    pub(super) fn supervisor(cell: ActorCell, control: Arc<Control>) -> Self {
        Self { cell, control: Some(control) }
    }

    pub(super) fn is_supervisor(&self) -> bool {
        self.control.is_some()
    }

    /// Ends it, and everything below it, at once: handlers are cancelled at their next await.
    /// A supervisor is stopped, not killed, so that it can wait for its children.
    pub(super) fn halt(&self) {
        match &self.control {
            None => self.cell.kill(),
            Some(control) => {
                // First: what the children's ends make of it must find it stopping.
                self.cell.stop(None);
                control.hurry();
            }
        }
    }

    /// Waits until it and everything below it has ended.
    pub(super) fn gone(&self) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let Self { cell, control } = self.clone();
        Box::pin(async move {
            // Without a time limit it cannot fail.
            let _ = cell.wait(None).await;
            let Some(control) = control else { return };
            control.no_start_in_flight().await;
            for entry in control.roster() {
                entry.live.gone().await;
                control.remove(entry.live.cell.get_id());
            }
        })
    }

    /// Stops it; kills it after `deadline` or as soon as `hurry` says so; gives up `grace` after that.
    pub(super) async fn stop(
        &self,
        deadline: Duration,
        hurry: &mut watch::Receiver<bool>,
        grace: Duration,
    ) -> StopOutcome {
        if !*hurry.borrow_and_update() {
            self.cell.stop(None);
            tokio::select! {
                biased;
                () = self.gone() => return StopOutcome::Stopped,
                () = until(hurry) => {}
                () = tokio::time::sleep(deadline) => {}
            }
        } else if self.cell.get_status() == ActorStatus::Stopped {
            self.gone().await;
            return StopOutcome::Stopped;
        }
        self.halt();
        if !self.is_supervisor() {
            return match tokio::time::timeout(grace, self.gone()).await {
                Ok(()) => StopOutcome::Killed,
                Err(_) => StopOutcome::Stuck,
            };
        }
        if tokio::time::timeout(grace * SUPERVISOR_GRACES, self.gone()).await.is_ok() {
            return StopOutcome::Killed;
        }
        self.cell.kill();
        match tokio::time::timeout(grace, self.gone()).await {
            Ok(()) => StopOutcome::Killed,
            Err(_) => StopOutcome::Stuck,
        }
    }
}

/// Waits until the flag is set; for ever if its sender is gone.
pub(super) async fn until(flag: &mut watch::Receiver<bool>) {
    if flag.wait_for(|set| *set).await.is_err() {
        std::future::pending::<()>().await;
    }
}
