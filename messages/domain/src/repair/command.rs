//! What became of commands that are run for a repair, in short.

/// What a health check said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HealthAnswer {
    /// It printed `true`.
    Healthy,
    /// It printed something else.
    Unhealthy,
    /// It failed, which says as little for the machine.
    Failed(String),
}

/// How a command with its retries ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandEnd {
    /// How.
    pub how: HowEnded,
    /// The same for people, with the beginning of what was printed.
    pub text: String,
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HowEnded {
    /// It did what it is for.
    Succeeded,
    /// It failed as often as it may.
    Failed,
    /// It failed and was not tried again, or did not begin, because the queue was disabled, the entry deleted, the rack held, or
    /// the machine healthy.
    Stopped,
    /// It may have run or not.
    Unknown,
}

impl HowEnded {
    /// A short name, for a metric's label.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Stopped => "stopped",
            Self::Unknown => "unknown",
        }
    }
}
