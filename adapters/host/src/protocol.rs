//! What the service and a watcher tell each other: one order, then signs of life; at most two reports. Each is a line of JSON.

use std::path::PathBuf;

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

pub(crate) use crate::limits::{KILL_PATIENCE, MAX_ORDER, MAX_REPORTS};

/// The word that makes the program a watcher.
pub(crate) const WATCH: &str = "__watch-command";

/// The word that makes the program a command. The moment follows before which it must begin, and then the command's words.
pub(crate) const START: &str = "__start-command";

/// This program, also when its file was replaced by a newer one since it started.
pub(crate) const THIS_PROGRAM: &str = "/proc/self/exe";

/// What a watcher is to do.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    /// Program and arguments.
    pub(crate) words: Vec<String>,
    /// After how many milliseconds everything is killed.
    pub(crate) deadline_ms: u64,
    /// After how many milliseconds without a sign of life from the service everything is killed.
    pub(crate) silence_ms: u64,
    /// The moment before which the command must begin, see [`monotonic`].
    pub(crate) begin_before: u64,
    /// The note that the watcher holds while anything of the command runs.
    pub(crate) note: Option<PathBuf>,
}

/// What a watcher tells.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Report {
    /// From now on something may happen. Another report follows, or the watcher itself was killed.
    Begins,
    /// Nothing happened: the permit had ended.
    TooLate,
    /// Nothing happened.
    NotStarted { why: String },
    /// The command is over, and nothing of it runs any more.
    Ended(Ended),
    /// Something of the command may still run.
    Lost { why: String },
}

/// What became of a command.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Ended {
    pub(crate) end: End,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) cut: bool,
    pub(crate) took_us: u64,
    /// Whether the command itself had ended by then, and what it left running was killed at the deadline.
    pub(crate) left_running: bool,
}

/// How a command's first process ended.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum End {
    Exited(i32),
    Signalled(i32),
    Deadline,
}

/// What goes wrong between the start of a process and the moment when it becomes the command.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum StartFailure {
    TooLate,
    Failed(String),
}

/// Now, in nanoseconds of the system's monotonic clock, which all processes of a host share.
pub(crate) fn monotonic() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    // Neither is ever negative on this clock.
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(u64::try_from(now.tv_nsec).unwrap_or(0))
}
