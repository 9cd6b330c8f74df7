//! The register of the live actors below a supervisor, readable from outside of it.
//!
//! When a ractor supervisor ends, its children receive a kill but nothing waits for them. So each supervisor shares a
//! [`SupervisorControl`] with its parent: through it the parent can hurry the supervisor, and can wait until everything below
//! is gone even if the supervisor was killed in mid-operation.

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
pub struct StartedActor {
    cell: ActorCell,
    task: JoinHandle<()>,
}

impl<M> From<(ActorRef<M>, JoinHandle<()>)> for StartedActor {
    fn from((actor, task): (ActorRef<M>, JoinHandle<()>)) -> Self {
        Self { cell: actor.get_cell(), task }
    }
}

#[derive(Clone)]
pub(super) struct LiveChild {
    pub(super) cell: ActorCell,
    /// Ends after the drop of the actor's state; the actor's status becomes `Stopped` slightly earlier.
    task: Shared<BoxFuture<'static, ()>>,
    control: Option<Arc<SupervisorControl>>,
}

impl fmt::Debug for LiveChild {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Live").field("cell", &self.cell).field("control", &self.control).finish()
    }
}

#[derive(Debug, Clone)]
pub(super) struct Entry {
    /// Position in the order of starts.
    pub(super) order: u64,
    pub(super) live: LiveChild,
}

/// Shared between a supervisor and its parent.
#[derive(Debug, Default)]
pub(super) struct SupervisorControl {
    hurry: watch::Sender<bool>,
    starting: watch::Sender<usize>,
    roster: Mutex<BTreeMap<ActorId, Entry>>,
    meltdown: Mutex<Option<Meltdown>>,
}

fn lock_unpoisoned<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code under these locks panics; the data is consistent in any case.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts a start in flight while it lives.
pub(super) struct StartInFlight(Arc<SupervisorControl>);

impl Drop for StartInFlight {
    fn drop(&mut self) {
        self.0.starting.send_modify(|n| *n = n.saturating_sub(1));
    }
}

impl SupervisorControl {
    pub(super) fn begin_start(self: &Arc<Self>) -> StartInFlight {
        self.starting.send_modify(|n| *n += 1);
        StartInFlight(Arc::clone(self))
    }

    pub(super) async fn wait_until_no_start(&self) {
        // The sender lives in `self`, so this cannot fail.
        let _ = self.starting.subscribe().wait_for(|n| *n == 0).await;
    }

    pub(super) fn insert(&self, order: u64, live: LiveChild) {
        lock_unpoisoned(&self.roster).insert(live.cell.get_id(), Entry { order, live });
    }

    pub(super) fn remove(&self, id: ActorId) {
        lock_unpoisoned(&self.roster).remove(&id);
    }

    /// Everything that is not known to be gone, in the order of starts.
    pub(super) fn roster(&self) -> Vec<Entry> {
        let mut entries: Vec<Entry> = lock_unpoisoned(&self.roster).values().cloned().collect();
        entries.sort_by_key(|e| e.order);
        entries
    }

    pub(super) fn watch_end_request(&self) -> watch::Receiver<bool> {
        self.hurry.subscribe()
    }

    /// Ends everything below at once; the caller stops the supervisor first.
    fn end_everything_below(&self) {
        self.hurry.send_replace(true);
        for entry in self.roster() {
            entry.live.halt();
        }
    }

    pub(super) fn set_meltdown(&self, meltdown: Meltdown) {
        *lock_unpoisoned(&self.meltdown) = Some(meltdown);
    }

    pub(super) fn meltdown(&self) -> Option<Meltdown> {
        lock_unpoisoned(&self.meltdown).clone()
    }
}

impl LiveChild {
    pub(super) fn for_actor(started: StartedActor) -> Self {
        let StartedActor { cell, task } = started;
        // A task that panicked or was cancelled has ended as well.
        Self { cell, task: task.map(drop).boxed().shared(), control: None }
    }

    pub(super) fn for_supervisor(started: StartedActor, control: Arc<SupervisorControl>) -> Self {
        Self { control: Some(control), ..Self::for_actor(started) }
    }

    pub(super) fn is_supervisor(&self) -> bool {
        self.control.is_some()
    }

    /// Ends the actor and everything below it at once: handlers are cancelled at their next await. A supervisor is
    /// stopped, not killed, so that it can wait for its children.
    pub(super) fn halt(&self) {
        match &self.control {
            None => self.cell.kill(),
            Some(control) => {
                // Stop first: the supervisor must already be stopping when its children end.
                self.cell.stop(None);
                control.end_everything_below();
            }
        }
    }

    /// Waits until the actor and everything below it has ended.
    pub(super) fn wait_until_ended(&self) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let Self { task, control, .. } = self.clone();
        Box::pin(async move {
            task.await;
            let Some(control) = control else { return };
            control.wait_until_no_start().await;
            for entry in control.roster() {
                entry.live.wait_until_ended().await;
                control.remove(entry.live.cell.get_id());
            }
        })
    }

    /// Stops the actor; kills it after `deadline` or at `hurry`; gives up `grace` later.
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
                () = self.wait_until_ended() => return StopOutcome::Stopped,
                () = wait_for_flag(hurry) => {}
                () = tokio::time::sleep(deadline) => {}
            }
        }
        self.halt();
        if !self.is_supervisor() {
            return match tokio::time::timeout(grace, self.wait_until_ended()).await {
                Ok(()) => StopOutcome::Killed,
                Err(_) => StopOutcome::Stuck,
            };
        }
        if tokio::time::timeout(grace * SUPERVISOR_GRACES, self.wait_until_ended()).await.is_ok() {
            return StopOutcome::Killed;
        }
        self.cell.kill();
        match tokio::time::timeout(grace, self.wait_until_ended()).await {
            Ok(()) => StopOutcome::Killed,
            Err(_) => StopOutcome::Stuck,
        }
    }
}

/// Halts an unlinked actor when dropped: without a supervisor nothing else ends it.
pub(super) struct HaltOnDrop(pub(super) LiveChild);

impl Drop for HaltOnDrop {
    fn drop(&mut self) {
        // No effect on an ended actor.
        self.0.halt();
    }
}

/// Waits until the flag is set; for ever if its sender is gone.
pub(super) async fn wait_for_flag(flag: &mut watch::Receiver<bool>) {
    if flag.wait_for(|set| *set).await.is_err() {
        std::future::pending::<()>().await;
    }
}
