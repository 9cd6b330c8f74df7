//! Between the watcher and the command: a process that leaves the watcher's session and becomes the command.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Signal, set_parent_process_death_signal, setsid};
use rustix::stdio::{dup2_stdin, stdin};

use crate::protocol::{StartFailure, monotonic};

/// Becomes the command that `words` name: the moment before which it must begin, its program, its arguments. Returns only
/// when that fails, which the watcher reads from what was the standard input; by becoming the command this end of the pipe
/// is closed, which tells that it was started.
pub(super) fn become_command(words: impl Iterator<Item = OsString>) -> ExitCode {
    let mut watcher = match fcntl_dupfd_cloexec(stdin(), 3) {
        Ok(pipe) => File::from(pipe),
        // Without the pipe nobody can be told; the watcher sees the code.
        Err(_) => return ExitCode::FAILURE,
    };
    let failure = match begin(words) {
        Ok(failure) => failure,
        Err(error) => StartFailure::Failed(error.to_string()),
    };
    // A watcher that is gone needs no telling.
    let _ = serde_json::to_vec(&failure).map_err(io::Error::from).and_then(|line| watcher.write_all(&line));
    ExitCode::FAILURE
}

/// Returns when the command does not begin.
fn begin(mut words: impl Iterator<Item = OsString>) -> io::Result<StartFailure> {
    let incomplete = || io::Error::other("its watcher named no command");
    let before: u64 = words.next().and_then(|moment| moment.to_str()?.parse().ok()).ok_or_else(incomplete)?;
    let program = words.next().ok_or_else(incomplete)?;
    dup2_stdin(File::open("/dev/null")?)?;
    // Signals that it sends to its process group, and those of a terminal, reach neither the watcher nor the service.
    setsid()?;
    // A watcher that is killed cannot kill any more: the command goes with it.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let mut command = Command::new(program);
    command.args(words);
    if monotonic() >= before {
        return Ok(StartFailure::TooLate);
    }
    Err(command.exec())
}
