//! The port for commands on the instance's own host.

use std::time::Duration;

use async_trait::async_trait;

pub use crate::limits::MAX_OUTPUT;
use crate::permit::{Permit, PermitEnded};

/// A command to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostCommand {
    /// Program and arguments; never empty. The program is looked up in `PATH`, as in a shell.
    pub words: Vec<String>,
    /// Time after which the command and all its descendants are killed.
    pub deadline: Duration,
}

/// The end of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostEnd {
    /// The command exited by itself, with or without success.
    Exited {
        /// Exit code from 0 to 255; 0 means success.
        code: i32,
    },
    /// A signal of another process ended the command.
    Signalled {
        /// Number of the signal.
        signal: i32,
    },
    /// The command and its descendants were killed at the deadline.
    Deadline,
}

/// The result of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostOutcome {
    /// The end of the command.
    pub end: HostEnd,
    /// The beginning of its standard output, at most [`MAX_OUTPUT`] bytes; bytes outside UTF-8 are replaced.
    pub stdout: String,
    /// The beginning of its standard error, with the same limit.
    pub stderr: String,
    /// True if either output was longer.
    pub cut: bool,
    /// Duration of the command.
    pub took: Duration,
}

impl HostOutcome {
    /// True if the command exited with code 0.
    #[must_use]
    pub fn succeeded(&self) -> bool {
        self.end == HostEnd::Exited { code: 0 }
    }
}

/// The reason why the result of a command is missing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    /// The permit had expired; the command did not run.
    #[error(transparent)]
    Permit(#[from] PermitEnded),
    /// The command could not be started and had no effect.
    #[error("cannot start the command {program}: {why}")]
    NotStarted {
        /// Name of the program.
        program: String,
        /// The message of the system.
        why: String,
    },
    /// The supervision of the command failed: the command may have run, and all its descendants are being killed.
    #[error("the outcome of the command {program} is unknown: {why}")]
    Lost {
        /// Name of the program.
        program: String,
        /// The message of the system.
        why: String,
    },
}

/// The port that runs commands on the host.
#[async_trait]
pub trait Host: Send + Sync + 'static {
    /// Runs a command to its end. Checks the permit once, before the start. Dropping the future kills the command and
    /// all its descendants, and so does every end of this process.
    ///
    /// # Errors
    /// The command did not run, or its result is unknown: see [`HostError`]. Every end of a command that ran is `Ok`.
    async fn run(&self, permit: &Permit, command: HostCommand) -> Result<HostOutcome, HostError>;
}
