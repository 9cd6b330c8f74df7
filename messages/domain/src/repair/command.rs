//! The results of repair commands.

use time::OffsetDateTime;

use crate::record::Record;

/// The answer of a health check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HealthAnswer {
    /// The check printed `true`.
    Healthy,
    /// The check printed something else.
    Unhealthy,
    /// The check failed: the health of the machine is unknown.
    Failed(String),
}

/// The end of a command after its retries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandEnd {
    /// The kind of end.
    pub how: CommandOutcome,
    /// The result for people, with the beginning of the output.
    pub text: String,
}

impl CommandEnd {
    /// Ends the record of the command: completed with the text as its info, or cancelled with the text as its error.
    pub fn end_record(&self, record: &mut Record, now: OffsetDateTime) {
        if self.how == CommandOutcome::Succeeded {
            record.complete(now);
            record.info.clone_from(&self.text);
        } else {
            record.cancel(now, self.text.as_str());
        }
    }
}

/// The kind of end of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum CommandOutcome {
    /// The command succeeded.
    Succeeded,
    /// All attempts failed.
    Failed,
    /// No attempt began, because the queue was disabled, the entry deleted, the rack held, the machine healthy, or the
    /// node not drained.
    NotBegun,
    /// No attempt began, for a reason that may last: the entry waits for a while.
    Refused,
    /// The command failed without a further attempt, for one of the reasons of [`Self::NotBegun`].
    Stopped,
    /// The command may have run.
    Unknown,
}

madako_json::named!(CommandOutcome);
