//! Protocol of the service and a watcher: the service sends one order, then heartbeats; the watcher sends at most two
//! reports. Each is a line of JSON.

use std::path::PathBuf;

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

pub(crate) use crate::limits::{KILL_PATIENCE, MAX_ORDER, MAX_REPORTS};

/// Word that makes the program a watcher.
pub(crate) const WATCH: &str = "__watch-command";

/// Word that makes the program a command. The latest start time and the command's words follow.
pub(crate) const START: &str = "__start-command";

/// This program, even if its file was replaced since the start.
pub(crate) const THIS_PROGRAM: &str = "/proc/self/exe";

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) words: Vec<String>,
    /// Milliseconds until everything is killed.
    pub(crate) deadline_ms: u64,
    /// Milliseconds without a heartbeat from the service until everything is killed.
    pub(crate) silence_ms: u64,
    /// Latest start time of the command, on the clock of [`monotonic_nanoseconds`].
    pub(crate) begin_before: u64,
    /// Note that the watcher holds while a process of the command runs.
    pub(crate) note: Option<PathBuf>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Report {
    /// From now on the command may have effects. Another report follows unless the watcher is killed.
    Begins,
    /// The permit had ended; the command had no effect.
    TooLate,
    /// The command had no effect.
    NotStarted { why: String },
    /// The command is over, and none of its processes runs.
    Ended(EndedCommand),
    /// Processes of the command may still run.
    Lost { why: String },
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct EndedCommand {
    pub(crate) end: ProcessEnd,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) cut: bool,
    pub(crate) took_us: u64,
    /// True if only the first process had ended at the deadline and its remaining processes were killed.
    pub(crate) left_running: bool,
}

/// End of a command's first process.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ProcessEnd {
    Exited(i32),
    Signalled(i32),
    Deadline,
}

/// Failure between the start of a process and the moment when it becomes the command.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum StartFailure {
    TooLate,
    Failed(String),
}

/// The present in nanoseconds of the system's monotonic clock, which all processes of a host share.
pub(crate) fn monotonic_nanoseconds() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    // On this clock neither is ever negative.
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(u64::try_from(now.tv_nsec).unwrap_or(0))
}
