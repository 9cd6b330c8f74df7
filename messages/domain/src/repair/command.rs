//! The results of repair commands.

/// The answer of a health check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HealthAnswer {
    /// The check printed `true`.
    Healthy,
    /// The check printed something else.
    Unhealthy,
    /// The check failed, which says nothing about the machine.
    Failed(String),
}

/// The end of a command after its retries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandEnd {
    /// The kind of end.
    pub how: HowEnded,
    /// The result for people, with the beginning of the output.
    pub text: String,
}

/// The kind of end of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum HowEnded {
    /// The command succeeded.
    Succeeded,
    /// All attempts failed.
    Failed,
    /// The command failed without a further attempt, or did not start, because the queue was disabled, the entry
    /// deleted, the rack held, or the machine healthy.
    Stopped,
    /// The command may have run.
    Unknown,
}

madako_json::named!(HowEnded);
