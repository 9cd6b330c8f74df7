//! The process between the watcher process and the command: it leaves the watcher's session and becomes the command.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Signal, set_parent_process_death_signal, setsid};
use rustix::stdio::{dup2_stdin, stdin};

use crate::protocol::{StartFailure, monotonic_nanoseconds};

/// Executes the command in `words`: its latest start time, its program, its arguments. Returns only on failure, which
/// it reports to the watcher through the former standard input. A successful `exec` closes this end of the pipe, so the
/// watcher learns of the start.
pub(super) fn become_command(words: impl Iterator<Item = OsString>) -> ExitCode {
    let mut watcher = match fcntl_dupfd_cloexec(stdin(), 3) {
        Ok(pipe) => File::from(pipe),
        // Without the pipe no report is possible; the watcher sees the exit code.
        Err(_) => return ExitCode::FAILURE,
    };
    let failure = match start_command(words) {
        Ok(failure) => failure,
        Err(error) => StartFailure::Failed(error.to_string()),
    };
    // If the watcher is gone, the report is not needed.
    let _ = serde_json::to_vec(&failure).map_err(io::Error::from).and_then(|line| watcher.write_all(&line));
    ExitCode::FAILURE
}

/// Returns only if the command does not start.
fn start_command(mut words: impl Iterator<Item = OsString>) -> io::Result<StartFailure> {
    let incomplete = || io::Error::other("the watcher of the command passed no command");
    let before: u64 = words.next().and_then(|moment| moment.to_str()?.parse().ok()).ok_or_else(incomplete)?;
    let program = words.next().ok_or_else(incomplete)?;
    dup2_stdin(File::open("/dev/null")?)?;
    // Signals to the command's process group or terminal must reach neither the watcher nor the service.
    setsid()?;
    // A killed watcher cannot kill its command, so the kernel does.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let mut command = Command::new(program);
    command.args(words);
    if monotonic_nanoseconds() >= before {
        return Ok(StartFailure::TooLate);
    }
    Err(command.exec())
}
