//! Notes of commands: one file per command, locked by its watcher while a process of the command runs.
//!
//! The locks show a process that takes over a directory of notes which commands of earlier processes still run,
//! regardless of the fate of these processes.
//!
//! Flow: the service creates an empty note and names it in its order. The watcher locks the note, marks it as begun,
//! starts the command, and removes the note once no process of the command runs. A killed watcher leaves a note that is
//! begun and not locked. An effect without a watcher has such a note from its beginning.
//!
//! Guarantees: a command that [`LeftCommands`] reported as ended, or did not report, never begins afterwards.
//!
//! Assumes: one process at a time creates notes in a directory, and it lists the notes of earlier processes first; a
//! file system whose locks exclude all processes of this kernel.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use crate::protocol::monotonic_nanoseconds;

const BEGUN: &[u8] = b"begun\n";

fn create_note(directory: &Path) -> io::Result<(PathBuf, File)> {
    loop {
        let path = directory.join(format!("{:020}", monotonic_nanoseconds()));
        match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
            Ok(file) => return Ok((path, file)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
}

/// The service's side of a note. Dropping it removes the note only if its command has not begun.
#[derive(Debug)]
pub(crate) struct CommandNote(PathBuf);

impl CommandNote {
    /// Creates a note with a name that is unique until the host reboots: a late watcher must not find the note of
    /// another command.
    pub(crate) fn create(directory: &Path) -> io::Result<Self> {
        create_note(directory).map(|(path, _)| Self(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Removes the note after all processes of the command have ended.
    pub(crate) fn remove(self) {
        remove(&self.0);
    }
}

impl Drop for CommandNote {
    fn drop(&mut self) {
        if fs::metadata(&self.0).is_ok_and(|note| note.len() == 0) {
            // A late watcher finds the note removed and does not begin.
            remove(&self.0);
        }
    }
}

/// A note of an effect without a watcher, which may go on after this process was killed: later processes treat it as a command
/// with an unknown end. Dropping it removes the note.
#[derive(Debug)]
pub struct EffectNote(PathBuf);

impl EffectNote {
    /// Creates the note of an effect that is about to begin.
    ///
    /// # Errors
    /// The note cannot be written. The effect must not begin.
    pub fn create(directory: &Path) -> io::Result<Self> {
        let (path, mut file) = create_note(directory)?;
        let note = Self(path);
        file.write_all(BEGUN)?;
        Ok(note)
    }
}

impl Drop for EffectNote {
    fn drop(&mut self) {
        remove(&self.0);
    }
}

#[derive(Debug)]
pub(crate) struct HeldNote {
    path: PathBuf,
    /// Locked until it is closed.
    _file: File,
}

impl HeldNote {
    /// Locks a note and marks it as begun. After an error the command must not begin.
    pub(crate) fn take(path: PathBuf) -> io::Result<Self> {
        let mut file = OpenOptions::new().write(true).open(&path)?;
        file.try_lock()?;
        // A process that took over removed the note between the two calls.
        if file.metadata()?.nlink() == 0 {
            return Err(io::Error::other("another process has taken over the directory of notes"));
        }
        file.write_all(BEGUN)?;
        Ok(Self { path, _file: file })
    }

    /// Removes the note, because no process of the command runs.
    pub(crate) fn remove(self) {
        remove(&self.path);
    }
}

fn remove(path: &Path) {
    match fs::remove_file(path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        // The next process treats it as a command with an unknown end.
        Err(error) => {
            tracing::warn!(%error, note = %path.display(), "the note of an ended command cannot be deleted")
        }
    }
}

/// State of the commands that earlier processes started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommandsLeft {
    /// No process of them runs, and none of them will begin.
    Ended,
    /// This many still have a watcher, which ends them.
    Running(usize),
    /// The watchers of this many were killed, and all others have ended. Processes of these commands may still run.
    Unknown(usize),
}

#[derive(Debug)]
pub struct LeftCommands {
    notes: Vec<PathBuf>,
}

impl LeftCommands {
    /// Lists the notes in a directory; creates the directory if it is missing.
    ///
    /// # Errors
    /// The directory can neither be read nor created.
    pub fn list_notes(directory: &Path) -> io::Result<Self> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        let notes = fs::read_dir(directory)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
        Ok(Self { notes })
    }

    /// Checks the notes. Removes those of commands that can no longer begin.
    ///
    /// # Errors
    /// A note can neither be read nor removed.
    pub fn check(&self) -> io::Result<CommandsLeft> {
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

/// State of one command. Removes the note of a command that has not begun.
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
        // The watcher removed the note directly before it released the lock.
        return Ok(CommandsLeft::Ended);
    }
    if metadata.len() > 0 {
        return Ok(CommandsLeft::Unknown(1));
    }
    // Remove it under the lock: a watcher that has opened it meanwhile finds it removed.
    fs::remove_file(note)?;
    Ok(CommandsLeft::Ended)
}

#[cfg(test)]
mod tests {
    use super::{CommandNote, CommandsLeft, HeldNote, LeftCommands};

    #[test]
    fn a_command_runs_as_long_as_its_watcher_holds_its_note() {
        let directory = tempfile::tempdir().unwrap();
        let notes = directory.path().join("commands");
        assert_eq!(LeftCommands::list_notes(&notes).unwrap().check().unwrap(), CommandsLeft::Ended);
        let [first, second] = [(); 2].map(|()| CommandNote::create(&notes).unwrap());
        let held = [&first, &second].map(|note| HeldNote::take(note.path().to_owned()).unwrap());
        let left = LeftCommands::list_notes(&notes).unwrap();
        assert_eq!(left.check().unwrap(), CommandsLeft::Running(2));
        let [ended, killed] = held;
        ended.remove();
        assert_eq!(left.check().unwrap(), CommandsLeft::Running(1));
        drop(killed);
        assert_eq!(left.check().unwrap(), CommandsLeft::Unknown(1));
        let again = LeftCommands::list_notes(&notes).unwrap();
        assert_eq!(again.check().unwrap(), CommandsLeft::Unknown(1), "a third process finds it too");
        again.forget_unknown().unwrap();
        assert_eq!(left.check().unwrap(), CommandsLeft::Ended);
    }

    #[test]
    fn a_watcher_that_comes_after_another_process_took_over_does_not_begin() {
        let directory = tempfile::tempdir().unwrap();
        let note = CommandNote::create(directory.path()).unwrap();
        assert_eq!(LeftCommands::list_notes(directory.path()).unwrap().check().unwrap(), CommandsLeft::Ended);
        HeldNote::take(note.path().to_owned()).unwrap_err();
    }

    #[test]
    fn two_watchers_cannot_hold_one_note() {
        let directory = tempfile::tempdir().unwrap();
        let note = CommandNote::create(directory.path()).unwrap();
        let _held = HeldNote::take(note.path().to_owned()).unwrap();
        HeldNote::take(note.path().to_owned()).unwrap_err();
        note.remove();
    }
}
