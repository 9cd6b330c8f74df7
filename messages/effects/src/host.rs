//! Commands on the host that a workflow or a periodic check runs.

use std::sync::Arc;
use std::time::Duration;

use madako_domain::repair::command::{CommandEnd, CommandOutcome, HealthAnswer};
use madako_protocol::effect::AttemptEnd;
use madako_protocol::host::{Host, HostCommand, HostEnd, HostError, HostOutcome};
use madako_protocol::permit::Permit;
use tracing::{Instrument as _, field, info_span};

use crate::action::Conclusion;
use crate::permits::Permits;

/// The attempts at a command.
#[derive(Debug, Clone, Copy)]
pub struct Attempts {
    /// Number of the attempt, from 1.
    pub number: u32,
    /// Maximum number.
    pub most: u32,
    /// A command that was killed, whose outcome is unknown, runs again.
    pub repeats_killed: bool,
}

/// Runs an attempt at a command. `kind` names the command in its span.
pub async fn attempt_command(
    host: &dyn Host,
    permit: &Permit,
    command: HostCommand,
    kind: &'static str,
    Attempts { number: attempt, most: attempts, repeats_killed }: Attempts,
) -> AttemptEnd<CommandEnd> {
    let span = info_span!("command", kind, attempt, outcome = field::Empty);
    let ended = host.run(permit, command).instrument(span.clone()).await;
    span.record("outcome", outcome_name(&ended));
    let text = match ended {
        Ok(outcome) if outcome.succeeded() => {
            return AttemptEnd::Final(CommandEnd {
                how: CommandOutcome::Succeeded,
                text: describe_outcome(&outcome),
            });
        }
        Ok(outcome) if !repeats_killed && !matches!(outcome.end, HostEnd::Exited { .. }) => {
            let text = format!("outcome unknown: {}", describe_outcome(&outcome));
            return AttemptEnd::Final(CommandEnd { how: CommandOutcome::Unknown, text });
        }
        Ok(outcome) => describe_outcome(&outcome),
        Err(HostError::Permit(_)) => return AttemptEnd::NotBegun,
        // The command may have run, and is not run again.
        Err(error @ HostError::Lost { .. }) => {
            let text = format!("outcome unknown: {error}");
            return AttemptEnd::Final(CommandEnd { how: CommandOutcome::Unknown, text });
        }
        Err(error @ HostError::NotStarted { .. }) => error.to_string(),
    };
    let text = if attempts > 1 { format!("attempt {attempt} of {attempts}: {text}") } else { text };
    AttemptEnd::Failed(CommandEnd { how: CommandOutcome::Failed, text })
}

/// The end of a command that is recorded for a conclusion of the workflow.
#[must_use]
pub fn command_end(conclusion: &Conclusion<CommandEnd>) -> CommandEnd {
    match conclusion {
        Conclusion::Ended(end) => end.clone(),
        Conclusion::Withdrawn { why, last } => {
            let (how, text) = match last {
                Some(last) => (CommandOutcome::Stopped, format!("not tried again, {why}; {}", last.text)),
                None => (CommandOutcome::NotBegun, format!("not started, {why}")),
            };
            CommandEnd { how, text }
        }
        Conclusion::Unheard { limit } => {
            let text = format!("outcome unknown: no report of the command arrived within {limit:?}");
            CommandEnd { how: CommandOutcome::Unknown, text }
        }
    }
}

/// Name of an attempt's result, for its span.
fn outcome_name(ended: &Result<HostOutcome, HostError>) -> &'static str {
    match ended {
        Ok(outcome) if outcome.succeeded() => "succeeded",
        Ok(_) => "failed",
        Err(HostError::Permit(_)) => "permit",
        Err(HostError::NotStarted { .. }) => "not-started",
        Err(HostError::Lost { .. }) => "lost",
    }
}

/// Runs a check, whose command prints `true` where the machine is as wanted. `None`: the check did not run.
pub async fn run_check(
    host: Arc<dyn Host>,
    permits: Permits,
    words: Vec<String>,
    deadline: Duration,
) -> Option<HealthAnswer> {
    let permit = permits.get().await;
    match host.run(&permit, HostCommand { words, deadline }).await {
        Ok(outcome) if !outcome.succeeded() => Some(HealthAnswer::Failed(describe_outcome(&outcome))),
        Ok(outcome) if outcome.stdout.trim() == "true" => Some(HealthAnswer::Healthy),
        Ok(_) => Some(HealthAnswer::Unhealthy),
        Err(HostError::Permit(_)) => None,
        Err(error) => Some(HealthAnswer::Failed(error.to_string())),
    }
}

/// Result and output of a command as text. The port bounds both outputs.
fn describe_outcome(outcome: &HostOutcome) -> String {
    let seconds = outcome.took.as_secs_f64();
    let mut text = match outcome.end {
        HostEnd::Exited { code } => format!("exit code {code} after {seconds:.1} s"),
        HostEnd::Signalled { signal } => format!("ended by signal {signal} after {seconds:.1} s"),
        HostEnd::Deadline => format!("killed at its deadline after {seconds:.1} s"),
    };
    for (name, output) in [("output", &outcome.stdout), ("errors", &outcome.stderr)] {
        let output = output.trim_end();
        if !output.is_empty() {
            text.push_str(&format!("; {name}: {output}"));
        }
    }
    if outcome.cut {
        text.push_str(" (cut)");
    }
    text
}
