//! The end of what a watcher left that was itself killed.
//!
//! Guarantees: once a watcher has ended otherwise than by itself, whatever was below it and is not below another watcher is
//! killed, also when nobody waits for its command any more.
//!
//! Assumes: this process starts nothing in a session of its own but watchers. What it starts otherwise is spared, as it is in
//! this process's session; so is everybody below a watcher that lives.
//!
//! Does not: find what a watcher left when this process was killed as well.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Mutex, PoisonError};

use rustix::process::{Pid, WaitOptions, getpid, set_child_subreaper, waitpid};
use tokio::process::{Child, Command};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time;

use crate::descendants::{Hunt, own_id, process};
use crate::notes::Note;
use crate::protocol::KILL_PATIENCE;

/// The watchers of this process, by their ids: subreapers are processes, so there is one list a process.
static WATCHERS: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());

/// A watcher that was started.
pub(crate) struct Watched {
    pub(crate) watcher: Child,
    id: i32,
    note: Option<Note>,
}

/// What watches a watcher: it outlives whoever waits for the command.
pub(crate) struct Guard {
    kill: oneshot::Sender<()>,
    swept: JoinHandle<Result<(), String>>,
}

/// Starts a watcher whose orphans this process will find.
pub(crate) fn start(watcher: &mut Command, note: Option<Note>) -> io::Result<Watched> {
    set_child_subreaper(Some(getpid()))?;
    // Held until it is on the list, so that nobody takes it for an orphan.
    let mut watchers = WATCHERS.lock().unwrap_or_else(PoisonError::into_inner);
    let watcher = watcher.spawn()?;
    let id = watcher.id().and_then(|id| i32::try_from(id).ok());
    let id = id.ok_or_else(|| io::Error::other("the system gave no process id"))?;
    watchers.insert(id);
    Ok(Watched { watcher, id, note })
}

impl Watched {
    /// From now on, what the watcher leaves is killed when it was killed.
    pub(crate) fn guard(self) -> Guard {
        let (kill, killed) = oneshot::channel();
        let swept = tokio::spawn(guard(self, killed));
        Guard { kill, swept }
    }
}

impl Guard {
    /// Kills the watcher, and what is below it.
    pub(crate) async fn kill(self) -> Result<(), String> {
        // A guard that does not listen any more has seen its end.
        let _ = self.kill.send(());
        finished(self.swept).await
    }

    /// Waits until the watcher has ended, and until what it left is killed, if that is due. An error says what cannot be
    /// killed.
    pub(crate) async fn ended(self) -> Result<(), String> {
        finished(self.swept).await
    }
}

async fn finished(swept: JoinHandle<Result<(), String>>) -> Result<(), String> {
    match swept.await {
        Ok(swept) => swept,
        Err(error) => Err(format!("what it left was not looked for: {error}")),
    }
}

async fn guard(mut watched: Watched, kill: oneshot::Receiver<()>) -> Result<(), String> {
    let killed = async {
        match kill.await {
            Ok(()) => {}
            // Nobody will ask for it: the command's end was told, or nobody waits for it.
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
    // It ends by itself when nothing is left below it, or nothing that can be killed.
    if ended_by_itself {
        return Ok(());
    }
    sweep().await?;
    // Its watcher could not remove it.
    if let Some(note) = watched.note {
        note.remove();
    }
    Ok(())
}

/// Kills the orphans of this process, until there is none.
async fn sweep() -> Result<(), String> {
    let mut hunt = Hunt::begin();
    loop {
        if !look(&mut hunt) {
            return Ok(());
        }
        if hunt.since().elapsed() > KILL_PATIENCE {
            let left = hunt.what_is_left();
            tracing::error!(left, "what a killed watcher left cannot be killed");
            return Err(left);
        }
        time::sleep(hunt.pause()).await;
    }
}

/// Kills the orphans that are there, and takes note of those that ended. False: there is none.
fn look(hunt: &mut Hunt) -> bool {
    let session = process(own_id()).map(|own| own.session);
    // Held to the end, so that no watcher is started meanwhile and gets the number of one that ended.
    let watchers = WATCHERS.lock().unwrap_or_else(PoisonError::into_inner);
    hunt.kill(|id, child| !watchers.contains(&id) && Some(child.session) != session);
    let mut is_one_left = false;
    for id in hunt.seen() {
        is_one_left = true;
        // Not a child (yet), or one that has not ended yet: the next look tells.
        let _ = waitpid(Pid::from_raw(id), WaitOptions::NOHANG);
    }
    is_one_left
}
