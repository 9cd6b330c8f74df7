//! Notes of commands: a file for each, which its watcher locks while anything of the command runs.
//!
//! A process that takes over a directory of notes learns from the locks which commands of earlier processes still run,
//! whatever became of these processes.
//!
//! Flow: the service makes an empty note and names it in its order. The watcher locks the note, marks it as begun, starts the
//! command, and removes the note once nothing of the command runs. A watcher that was killed leaves a note that is
//! begun and not locked.
//!
//! Guarantees: a command that [`LeftCommands`] told as ended, or of which it told nothing, never begins after that.
//!
//! Assumes: one process at a time makes notes in a directory, and lists the notes of earlier ones before it makes its own; a file
//! system whose locks exclude all processes of this kernel.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use crate::protocol::monotonic;

/// What a watcher writes into its note before it starts the command.
const BEGUN: &[u8] = b"begun\n";

/// The service's side of a note. Dropping it removes the note of a command that did not begin, and only that one.
#[derive(Debug)]
pub(crate) struct Note(PathBuf);

impl Note {
    /// Makes a note. No two have one name while a host runs: a watcher that is late must not find the note of another.
    pub(crate) fn make(directory: &Path) -> io::Result<Self> {
        loop {
            let path = directory.join(format!("{:020}", monotonic()));
            match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
                Ok(_) => return Ok(Self(path)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Removes the note of a command of which nothing runs.
    pub(crate) fn remove(self) {
        remove(&self.0);
    }
}

impl Drop for Note {
    fn drop(&mut self) {
        if fs::metadata(&self.0).is_ok_and(|note| note.len() == 0) {
            // A watcher that is late finds it removed, and does not begin.
            remove(&self.0);
        }
    }
}

/// The watcher's side of a note.
#[derive(Debug)]
pub(crate) struct Held {
    path: PathBuf,
    /// Locked until it is closed.
    _file: File,
}

impl Held {
    /// Locks a note and marks it as begun. An error: the command must not begin.
    pub(crate) fn take(path: PathBuf) -> io::Result<Self> {
        let mut file = OpenOptions::new().write(true).open(&path)?;
        file.try_lock()?;
        // Removed between the two calls by a process that took over.
        if file.metadata()?.nlink() == 0 {
            return Err(io::Error::other("another process has taken over"));
        }
        file.write_all(BEGUN)?;
        Ok(Self { path, _file: file })
    }

    /// Removes the note: nothing of the command runs.
    pub(crate) fn remove(self) {
        remove(&self.path);
    }
}

fn remove(path: &Path) {
    match fs::remove_file(path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        // The next process takes it for a command whose end is not known.
        Err(error) => {
            tracing::warn!(%error, note = %path.display(), "the note of a command that has ended stays")
        }
    }
}

/// What is known of the commands that earlier processes started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommandsLeft {
    /// Nothing of them runs, and none of them will begin.
    Ended,
    /// So many of them still have a watcher, which ends them.
    Running(usize),
    /// Watchers of so many were killed, and all others have ended: processes that these commands started may run on.
    Unknown(usize),
}

/// Commands that earlier processes left.
#[derive(Debug)]
pub struct LeftCommands {
    notes: Vec<PathBuf>,
}

impl LeftCommands {
    /// Lists the notes in a directory, which is made if it is not there.
    ///
    /// # Errors
    /// The directory can neither be read nor made.
    pub fn find(directory: &Path) -> io::Result<Self> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        let notes = fs::read_dir(directory)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
        Ok(Self { notes })
    }

    /// Looks at the notes. Those of commands that cannot begin any more are removed.
    ///
    /// # Errors
    /// A note can neither be read nor removed.
    pub fn look(&self) -> io::Result<CommandsLeft> {
        let (mut running, mut unknown) = (0, 0);
        for note in &self.notes {
            match take_over(note)? {
                CommandsLeft::Running(_) => running += 1,
                CommandsLeft::Unknown(_) => unknown += 1,
                CommandsLeft::Ended => {}
            }
        }
        Ok(match (running, unknown) {
            (0, 0) => CommandsLeft::Ended,
            (0, unknown) => CommandsLeft::Unknown(unknown),
            (running, _) => CommandsLeft::Running(running),
        })
    }

    /// Removes the notes of commands whose watchers were killed. Until then every later process finds them too.
    ///
    /// # Errors
    /// A note can neither be read nor removed.
    pub fn forget_unknown(self) -> io::Result<()> {
        for note in &self.notes {
            if let CommandsLeft::Unknown(_) = take_over(note)? {
                fs::remove_file(note)?;
            }
        }
        Ok(())
    }
}

/// What became of one command. The note of one that has not begun is removed.
fn take_over(note: &Path) -> io::Result<CommandsLeft> {
    let file = match OpenOptions::new().write(true).open(note) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(CommandsLeft::Ended),
        Err(error) => return Err(error),
    };
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(CommandsLeft::Running(1)),
        Err(TryLockError::Error(error)) => return Err(error),
    }
    let metadata = file.metadata()?;
    if metadata.nlink() == 0 {
        // Its watcher removed it right before it let go of the lock.
        return Ok(CommandsLeft::Ended);
    }
    if metadata.len() > 0 {
        return Ok(CommandsLeft::Unknown(1));
    }
    // While it is locked: a watcher that opened it meanwhile finds it removed.
    fs::remove_file(note)?;
    Ok(CommandsLeft::Ended)
}

#[cfg(test)]
mod tests {
    use super::{CommandsLeft, Held, LeftCommands, Note};

    #[test]
    fn a_command_runs_as_long_as_its_watcher_holds_its_note() {
        let directory = tempfile::tempdir().unwrap();
        let notes = directory.path().join("commands");
        assert_eq!(LeftCommands::find(&notes).unwrap().look().unwrap(), CommandsLeft::Ended);
        let [first, second] = [(); 2].map(|()| Note::make(&notes).unwrap());
        let held = [&first, &second].map(|note| Held::take(note.path().to_owned()).unwrap());
        let left = LeftCommands::find(&notes).unwrap();
        assert_eq!(left.look().unwrap(), CommandsLeft::Running(2));
        let [ended, killed] = held;
        ended.remove();
        assert_eq!(left.look().unwrap(), CommandsLeft::Running(1));
        drop(killed);
        assert_eq!(left.look().unwrap(), CommandsLeft::Unknown(1));
        let again = LeftCommands::find(&notes).unwrap();
        assert_eq!(again.look().unwrap(), CommandsLeft::Unknown(1), "a third process finds it too");
        again.forget_unknown().unwrap();
        assert_eq!(left.look().unwrap(), CommandsLeft::Ended);
    }

    #[test]
    fn a_watcher_that_comes_after_another_process_took_over_does_not_begin() {
        let directory = tempfile::tempdir().unwrap();
        let note = Note::make(directory.path()).unwrap();
        assert_eq!(LeftCommands::find(directory.path()).unwrap().look().unwrap(), CommandsLeft::Ended);
        Held::take(note.path().to_owned()).unwrap_err();
    }

    #[test]
    fn two_watchers_cannot_hold_one_note() {
        let directory = tempfile::tempdir().unwrap();
        let note = Note::make(directory.path()).unwrap();
        let _held = Held::take(note.path().to_owned()).unwrap();
        Held::take(note.path().to_owned()).unwrap_err();
        note.remove();
    }
}
