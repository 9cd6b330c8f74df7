//! Kills the processes that a killed watcher leaves.
//!
//! Guarantees: once a watcher has ended abnormally, its remaining descendants are killed unless they are below another
//! watcher. This also happens if no task waits for the command.
//!
//! Assumes: only watchers leave this process's session. Other children stay in that session and are spared, as are all
//! processes below a living watcher.
//!
//! Does not: find the processes of a killed watcher if this process was killed as well.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Mutex, PoisonError};

use rustix::process::{Pid, WaitOptions, getpid, set_child_subreaper, waitpid};
use tokio::process::{Child, Command};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time;

use crate::descendants::{DescendantKiller, own_id, read_process};
use crate::notes::CommandNote;
use crate::protocol::KILL_PATIENCE;

/// Process ids of this process's watchers. Static, because the subreaper attribute belongs to the process.
static WATCHERS: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());

pub(crate) struct WatchedCommand {
    pub(crate) watcher: Child,
    id: i32,
    note: Option<CommandNote>,
}

/// Task that waits for the end of a watcher; it outlives the caller of the command.
pub(crate) struct Guard {
    kill: oneshot::Sender<()>,
    swept: JoinHandle<Result<(), String>>,
}

/// Starts a watcher and makes this process the subreaper of its orphans.
pub(crate) fn start(watcher: &mut Command, note: Option<CommandNote>) -> io::Result<WatchedCommand> {
    set_child_subreaper(Some(getpid()))?;
    // Held until the watcher is listed, so that no sweep takes it for an orphan.
    let mut watchers = WATCHERS.lock().unwrap_or_else(PoisonError::into_inner);
    let watcher = watcher.spawn()?;
    let id = watcher.id().and_then(|id| i32::try_from(id).ok());
    let id = id.ok_or_else(|| io::Error::other("the system gave no process id"))?;
    watchers.insert(id);
    Ok(WatchedCommand { watcher, id, note })
}

impl WatchedCommand {
    /// Starts the task that kills the descendants if the watcher is killed.
    pub(crate) fn start_guard(self) -> Guard {
        let (kill, killed) = oneshot::channel();
        let swept = tokio::spawn(guard_command(self, killed));
        Guard { kill, swept }
    }
}

impl Guard {
    pub(crate) async fn kill(self) -> Result<(), String> {
        // If the guard no longer listens, the watcher has ended.
        let _ = self.kill.send(());
        sweep_result(self.swept).await
    }

    /// Waits until the watcher has ended and, if necessary, its descendants are killed. The error names processes that
    /// cannot be killed.
    pub(crate) async fn wait_for_end(self) -> Result<(), String> {
        sweep_result(self.swept).await
    }
}

async fn sweep_result(swept: JoinHandle<Result<(), String>>) -> Result<(), String> {
    match swept.await {
        Ok(swept) => swept,
        Err(error) => Err(format!("the search for its remaining processes failed: {error}")),
    }
}

async fn guard_command(mut watched: WatchedCommand, kill: oneshot::Receiver<()>) -> Result<(), String> {
    let killed = async {
        match kill.await {
            Ok(()) => {}
            // No kill will be requested: the end of the command was reported, or its caller is gone.
            Err(_) => std::future::pending().await,
        }
    };
    let ended = tokio::select! {
        biased;
        ended = watched.watcher.wait() => ended,
        () = killed => {
            if let Err(error) = watched.watcher.start_kill() {
                tracing::warn!(%error, "a watcher that does not answer cannot be killed");
            }
            match time::timeout(KILL_PATIENCE, watched.watcher.wait()).await {
                Ok(ended) => ended,
                Err(_) => return Err(format!("its watcher ({}) cannot be killed", watched.id)),
            }
        }
    };
    let ended_by_itself = ended.is_ok_and(|status| status.code().is_some());
    WATCHERS.lock().unwrap_or_else(PoisonError::into_inner).remove(&watched.id);
    // A watcher that exits by itself leaves no descendants, or only ones that cannot be killed.
    if ended_by_itself {
        return Ok(());
    }
    kill_orphans().await?;
    // The killed watcher could not remove its note.
    if let Some(note) = watched.note {
        note.remove();
    }
    Ok(())
}

/// Kills the orphans of this process until none is left.
async fn kill_orphans() -> Result<(), String> {
    let mut hunt = DescendantKiller::begin();
    loop {
        if !kill_present(&mut hunt) {
            return Ok(());
        }
        if hunt.start_time().elapsed() > KILL_PATIENCE {
            let left = hunt.describe_survivors();
            tracing::error!(left, "processes of a killed watcher cannot be killed");
            return Err(left);
        }
        time::sleep(hunt.time_until_next_scan()).await;
    }
}

/// Kills the present orphans and reaps ended ones. Returns whether any was left.
fn kill_present(hunt: &mut DescendantKiller) -> bool {
    let session = read_process(own_id()).map(|own| own.session);
    // Held to the end, so that no new watcher starts with the id of an ended process.
    let watchers = WATCHERS.lock().unwrap_or_else(PoisonError::into_inner);
    hunt.kill(|id, child| !watchers.contains(&id) && Some(child.session) != session);
    let mut is_one_left = false;
    for id in hunt.process_ids() {
        is_one_left = true;
        // Not yet a child, or not yet ended; the next scan checks again.
        let _ = waitpid(Pid::from_raw(id), WaitOptions::NOHANG);
    }
    is_one_left
}
