//! Runs commands on this host through the host port: attempts of an announced command, and health checks.

use std::sync::Arc;
use std::time::Duration;

use madako_domain::repair::command::{CommandEnd, HealthAnswer, HowEnded};
use madako_domain::repair::kept::KeptEntry;
use madako_effects::{AttemptEnd, Conclusion, Effect, Permits};
use madako_protocol::host::{Host, HostCommand, HostEnd, HostError, HostOutcome};
use madako_protocol::permit::Permit;
use tokio::time::Instant;
use tracing::{Instrument as _, Span, field, info_span};

use super::telemetry;
use crate::limits::HEARD_WITHIN;

/// Reason for not running a command on a healthy machine.
pub(super) const HEALTHY: &str = "the machine is healthy";

#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub(super) enum CommandKind {
    Repair,
    Success,
}

madako_json::named!(CommandKind);

/// A command of an entry, and the number of the record that announces it.
#[derive(Debug, Clone)]
pub(super) struct Command {
    pub(super) index: i64,
    pub(super) record: i64,
    pub(super) kind: CommandKind,
    pub(super) words: Vec<String>,
    pub(super) deadline: Duration,
    pub(super) attempts: u32,
    pub(super) interval: Duration,
    /// Arguments and deadline of the health check between attempts; `None`: the machine has none.
    pub(super) health: Option<(Vec<String>, Duration)>,
}

/// A command with the span of its decision.
#[derive(Debug, Clone)]
pub(super) struct AnnouncedCommand {
    pub(super) command: Command,
    pub(super) span: Span,
}

impl Effect for AnnouncedCommand {
    type Outcome = CommandEnd;

    fn attempts(&self) -> u32 {
        self.command.attempts
    }

    fn attempt_limit(&self) -> Duration {
        self.command.deadline + HEARD_WITHIN
    }

    fn pause_limit(&self) -> Duration {
        let check = self.command.health.as_ref().map_or(Duration::ZERO, |(_, deadline)| *deadline);
        self.command.interval + check + HEARD_WITHIN
    }
}

impl Command {
    /// Whether the data kept for its entry names this record for a command of this kind.
    pub(super) fn is_kept_as(&self, kept: &KeptEntry) -> bool {
        let record = match self.kind {
            CommandKind::Success => kept.finishing,
            CommandKind::Repair => kept.started.as_ref().map(|started| started.record),
        };
        record == Some(self.record)
    }

    pub(super) async fn attempt(
        &self,
        host: &dyn Host,
        permit: Permit,
        attempt: u32,
    ) -> AttemptEnd<CommandEnd> {
        let command = HostCommand { words: self.words.clone(), deadline: self.deadline };
        let span = info_span!("command", kind = self.kind.name(), attempt, outcome = field::Empty);
        let ended = host.run(&permit, command).instrument(span.clone()).await;
        span.record("outcome", outcome_name(&ended));
        let text = match ended {
            Ok(outcome) if outcome.succeeded() => {
                return AttemptEnd::Final(CommandEnd {
                    how: HowEnded::Succeeded,
                    text: describe_outcome(&outcome),
                });
            }
            Ok(outcome) => describe_outcome(&outcome),
            Err(HostError::Permit(_)) => return AttemptEnd::NotBegun,
            // The command may have run, and is not run again.
            Err(error @ HostError::Lost { .. }) => {
                let text = format!("outcome unknown: {error}");
                return AttemptEnd::Final(CommandEnd { how: HowEnded::Unknown, text });
            }
            Err(error @ HostError::NotStarted { .. }) => error.to_string(),
        };
        let text =
            if self.attempts > 1 { format!("attempt {attempt} of {}: {text}", self.attempts) } else { text };
        AttemptEnd::Failed(CommandEnd { how: HowEnded::Failed, text })
    }

    /// Pauses before another attempt. Returns the reason if no further attempt may begin. Checks the machine's health
    /// each interval and once more at the end of the pause. Each check begins after the failed attempt, so that its
    /// answer describes the machine as that attempt left it.
    pub(super) async fn pause(
        &self,
        host: Arc<dyn Host>,
        permits: Permits,
        interval: Duration,
    ) -> Option<String> {
        let over = Instant::now() + self.interval;
        let Some((words, deadline)) = &self.health else {
            tokio::time::sleep_until(over).await;
            return None;
        };
        loop {
            let begun = Instant::now();
            let answer = run_health_check(Arc::clone(&host), permits.clone(), words.clone(), *deadline).await;
            telemetry::count_health_check(answer.as_ref());
            match answer {
                // The check did not run.
                None => continue,
                Some(HealthAnswer::Healthy) => return Some(HEALTHY.to_owned()),
                Some(HealthAnswer::Unhealthy | HealthAnswer::Failed(_)) => {}
            }
            if Instant::now() >= over {
                return None;
            }
            tokio::time::sleep_until(over.min(begun + interval)).await;
        }
    }
}

/// Maps the workflow's conclusion to the end that is recorded.
pub(super) fn end_of_command(conclusion: &Conclusion<CommandEnd>) -> CommandEnd {
    match conclusion {
        Conclusion::Ended(end) => end.clone(),
        Conclusion::Withdrawn { why, last } => {
            let text = match last {
                Some(last) => format!("not tried again, {why}; {}", last.text),
                None => format!("not started, {why}"),
            };
            CommandEnd { how: HowEnded::Stopped, text }
        }
        Conclusion::Unheard { limit } => {
            let text = format!("outcome unknown: no report of the command arrived within {limit:?}");
            CommandEnd { how: HowEnded::Unknown, text }
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

/// Runs a health check. `None`: the check did not run.
pub(super) async fn run_health_check(
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
