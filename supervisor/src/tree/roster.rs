//! What is alive below a supervisor, seen from outside of it.
//!
//! When a ractor supervisor ends, its children are sent a kill but nobody waits for them. So each supervisor
//! shares a [`Control`] with its parent: the parent can tell it to hurry, and can wait until everything below
//! is gone even if the supervisor itself was killed in the middle of something.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use ractor::{ActorCell, ActorId, ActorRef};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::event::{Meltdown, StopOutcome};
use crate::limits::SUPERVISOR_GRACES;

/// A started actor and its task, as `spawn_linked` returns them.
#[derive(Debug)]
pub struct Started {
    cell: ActorCell,
    task: JoinHandle<()>,
}

impl<M> From<(ActorRef<M>, JoinHandle<()>)> for Started {
    fn from((actor, task): (ActorRef<M>, JoinHandle<()>)) -> Self {
        Self { cell: actor.get_cell(), task }
    }
}

/// A started actor, and its control if it is a supervisor.
#[derive(Clone)]
pub(super) struct Live {
    pub(super) cell: ActorCell,
    /// Ends after the actor's state is dropped; its status says `Stopped` a moment before.
    task: Shared<BoxFuture<'static, ()>>,
    control: Option<Arc<Control>>,
}

impl fmt::Debug for Live {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Live").field("cell", &self.cell).field("control", &self.control).finish()
    }
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
    pub(super) fn leaf(started: Started) -> Self {
        let Started { cell, task } = started;
        // A task that panicked or was cancelled has ended as well.
        Self { cell, task: task.map(drop).boxed().shared(), control: None }
    }

    pub(super) fn supervisor(started: Started, control: Arc<Control>) -> Self {
        Self { control: Some(control), ..Self::leaf(started) }
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
        let Self { task, control, .. } = self.clone();
        Box::pin(async move {
            task.await;
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
        if !*hurry.borrow() {
            self.cell.stop(None);
            tokio::select! {
                biased;
                () = self.gone() => return StopOutcome::Stopped,
                () = until(hurry) => {}
                () = tokio::time::sleep(deadline) => {}
            }
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

/// Halts an actor if it is dropped before that has ended: nothing else would, once it is unlinked.
pub(super) struct HaltOnDrop(pub(super) Live);

impl Drop for HaltOnDrop {
    fn drop(&mut self) {
        // This does nothing to one that has ended.
        self.0.halt();
    }
}

/// Waits until the flag is set; for ever if its sender is gone.
pub(super) async fn until(flag: &mut watch::Receiver<bool>) {
    if flag.wait_for(|set| *set).await.is_err() {
        std::future::pending::<()>().await;
    }
}
