//! Commands that are run on the instance's own host: the port, and what it gives back.

use std::time::Duration;

use async_trait::async_trait;

pub use crate::limits::MAX_OUTPUT;
use crate::permit::{Permit, PermitEnded};

/// A command to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostCommand {
    /// Program and arguments; never empty. The program is looked up in `PATH` as a shell would.
    pub words: Vec<String>,
    /// When everything that it started is killed. There is always one.
    pub deadline: Duration,
}

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostEnd {
    /// It exited.
    Exited {
        /// Its code.
        code: i32,
    },
    /// A signal ended it that was not ours.
    Signalled {
        /// Which.
        signal: i32,
    },
    /// It and its descendants were killed when the deadline passed.
    Deadline,
}

/// What a command did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostOutcome {
    /// How it ended.
    pub end: HostEnd,
    /// The beginning of its standard output, at most [`MAX_OUTPUT`] bytes; what is no UTF-8 is replaced.
    pub stdout: String,
    /// The beginning of its standard error, likewise.
    pub stderr: String,
    /// Whether there was more of either.
    pub cut: bool,
    /// How long it took.
    pub took: Duration,
}

impl HostOutcome {
    /// Whether it exited with 0.
    #[must_use]
    pub fn succeeded(&self) -> bool {
        self.end == HostEnd::Exited { code: 0 }
    }
}

/// Why a command was not run at all.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    /// It must not run now.
    #[error(transparent)]
    Permit(#[from] PermitEnded),
    /// It could not be started: nothing happened.
    #[error("{program} could not be started: {why}")]
    NotStarted {
        /// The program's name.
        program: String,
        /// What the system said.
        why: String,
    },
    /// What watches over commands failed: the command may have run, and whatever it started is being killed.
    #[error("{program} was lost sight of: {why}")]
    Lost {
        /// The program's name.
        program: String,
        /// What the system said.
        why: String,
    },
}

/// Runs commands on the host.
#[async_trait]
pub trait Host: Send + Sync + 'static {
    /// Runs a command to its end. The permit is asked once, before it starts; dropping the future kills the command and
    /// every descendant of it, as the end of this process does, however it ends.
    ///
    /// # Errors
    /// It was not run, or nobody knows: see [`HostError`]. Any end of a command that ran is `Ok`.
    async fn run(&self, permit: &Permit, command: HostCommand) -> Result<HostOutcome, HostError>;
}
