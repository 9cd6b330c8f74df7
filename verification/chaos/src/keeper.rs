//! Makes the processes of a run end with their parent.
//!
//! Every process of a run is started as this same program with a hidden word before its own command line. It asks the
//! kernel for a SIGKILL at the end of its parent, however the parent ends, and then becomes the command.
//!
//! Assumes: the parent starts it on a thread that lives as long as itself (the kernel counts the thread).

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode};

use rustix::process::{Signal, getppid, set_parent_process_death_signal};

const WORD: &str = "__keep";

/// Becomes the command if this program was started with the hidden word; otherwise returns `None`.
pub fn keeper_main(mut words: impl Iterator<Item = OsString>) -> Option<ExitCode> {
    let _program = words.next();
    if words.next().as_deref() != Some(OsStr::new(WORD)) {
        return None;
    }
    Some(become_command(words))
}

/// Returns only on failure.
fn become_command(mut words: impl Iterator<Item = OsString>) -> ExitCode {
    let parent = words.next().and_then(|word| word.to_str()?.parse::<i32>().ok());
    let Some((parent, program)) = parent.zip(words.next()) else { return ExitCode::FAILURE };
    if set_parent_process_death_signal(Some(Signal::KILL)).is_err() {
        return ExitCode::FAILURE;
    }
    // The parent may have ended before the request to the kernel.
    if getppid().map(rustix::process::Pid::as_raw_nonzero).map(i32::from) != Some(parent) {
        return ExitCode::FAILURE;
    }
    let error = Command::new(&program).args(words).exec();
    // Only the file behind the process's standard error can report this.
    let _ = std::io::Write::write_fmt(
        &mut std::io::stderr(),
        format_args!("{} cannot be started: {error}\n", Path::new(&program).display()),
    );
    ExitCode::FAILURE
}

/// The arguments after `own` that start a command under the keeper.
pub(crate) fn keeper_arguments(program: &Path) -> [OsString; 3] {
    let parent = rustix::process::getpid().as_raw_nonzero().to_string();
    [WORD.into(), parent.into(), program.into()]
}
