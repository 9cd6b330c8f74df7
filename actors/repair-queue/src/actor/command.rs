//! Commands over the port: a repair's with its retries, and health checks.

use std::sync::Arc;
use std::time::Duration;

use madako_messages::host::{Host, HostCommand, HostEnd, HostError, HostOutcome};
use madako_messages::repair::command::{CommandEnd, HealthAnswer, HowEnded};
use tokio::sync::SetOnce;
use tokio::time::Instant;
use tracing::{Instrument as _, field, info_span};

use super::permits::Permits;
use super::telemetry;

/// A command to run, as often as it may while it fails.
pub(super) struct Order {
    pub(super) host: Arc<dyn Host>,
    pub(super) permits: Permits,
    /// What it is called in traces.
    pub(super) kind: &'static str,
    pub(super) words: Vec<String>,
    pub(super) deadline: Duration,
    pub(super) attempts: u32,
    pub(super) interval: Duration,
    /// The machine's health check, which is asked before each further attempt; `None`: it has none.
    pub(super) health: Option<HealthCheck>,
    /// Set to the reason when no attempt is to begin any more.
    pub(super) stop: Arc<SetOnce<String>>,
}

/// Why a machine's command is not run.
pub(super) const HEALTHY: &str = "the machine is healthy";

/// How a machine's health is asked between two attempts.
pub(super) struct HealthCheck {
    pub(super) words: Vec<String>,
    pub(super) deadline: Duration,
    /// Time between two of them.
    pub(super) round: Duration,
}

impl Order {
    pub(super) async fn carry_out(self) -> CommandEnd {
        let mut attempt = 1;
        let mut before = None;
        loop {
            // A permit may take long to come, and what speaks against the attempt comes meanwhile.
            let permit = tokio::select! {
                biased;
                why = self.stop.wait() => return stopped(why, before),
                permit = self.permits.get() => permit,
            };
            let command = HostCommand { words: self.words.clone(), deadline: self.deadline };
            let span = info_span!("command", kind = self.kind, attempt, outcome = field::Empty);
            let ended = self.host.run(&permit, command).instrument(span.clone()).await;
            span.record("outcome", outcome_name(&ended));
            let text = match ended {
                Ok(outcome) if outcome.succeeded() => {
                    return CommandEnd { how: HowEnded::Succeeded, text: told(&outcome) };
                }
                Ok(outcome) => told(&outcome),
                Err(HostError::Permit(_)) => continue,
                // It may have run, and is not run again.
                Err(error @ HostError::Lost { .. }) => {
                    let text = format!("outcome unknown: {error}");
                    return CommandEnd { how: HowEnded::Unknown, text };
                }
                Err(error @ HostError::NotStarted { .. }) => error.to_string(),
            };
            let text = if self.attempts > 1 {
                format!("attempt {attempt} of {}: {text}", self.attempts)
            } else {
                text
            };
            if attempt >= self.attempts {
                return CommandEnd { how: HowEnded::Failed, text };
            }
            if let Some(why) = self.pause().await {
                return stopped(&why, Some(text));
            }
            (attempt, before) = (attempt + 1, Some(text));
        }
    }

    /// The pause between two attempts; what speaks against another ends it at once, and is returned.
    async fn pause(&self) -> Option<String> {
        tokio::select! {
            biased;
            why = self.stop.wait() => Some(why.clone()),
            healthy = self.becomes_healthy() => healthy.then(|| HEALTHY.to_owned()),
        }
    }

    /// Asks the machine's health each round of the pause, and once more when that is over; whether it is healthy. Every check
    /// begins after the attempt that failed, so that its answer is about the machine as that left it.
    async fn becomes_healthy(&self) -> bool {
        let over = Instant::now() + self.interval;
        let Some(health) = &self.health else {
            tokio::time::sleep_until(over).await;
            return false;
        };
        loop {
            let begun = Instant::now();
            let words = health.words.clone();
            let answer = check(Arc::clone(&self.host), self.permits.clone(), words, health.deadline).await;
            telemetry::checked(answer.as_ref());
            match answer {
                // It was not run.
                None => continue,
                Some(HealthAnswer::Healthy) => return true,
                Some(HealthAnswer::Unhealthy | HealthAnswer::Failed(_)) => {}
            }
            if Instant::now() >= over {
                return false;
            }
            tokio::time::sleep_until(over.min(begun + health.round)).await;
        }
    }
}

/// How an attempt ended, for its span.
fn outcome_name(ended: &Result<HostOutcome, HostError>) -> &'static str {
    match ended {
        Ok(outcome) if outcome.succeeded() => "succeeded",
        Ok(_) => "failed",
        Err(HostError::Permit(_)) => "permit",
        Err(HostError::NotStarted { .. }) => "not-started",
        Err(HostError::Lost { .. }) => "lost",
    }
}

/// The end of a command of which no other attempt begins, and what became of the last one.
pub(super) fn stopped(why: &str, before: Option<String>) -> CommandEnd {
    let text = match before {
        Some(before) => format!("not tried again, {why}; {before}"),
        None => format!("not started, {why}"),
    };
    CommandEnd { how: HowEnded::Stopped, text }
}

/// Asks a machine's health. `None`: the check was not run.
pub(super) async fn check(
    host: Arc<dyn Host>,
    permits: Permits,
    words: Vec<String>,
    deadline: Duration,
) -> Option<HealthAnswer> {
    let permit = permits.get().await;
    match host.run(&permit, HostCommand { words, deadline }).await {
        Ok(outcome) if !outcome.succeeded() => Some(HealthAnswer::Failed(told(&outcome))),
        Ok(outcome) if outcome.stdout.trim() == "true" => Some(HealthAnswer::Healthy),
        Ok(_) => Some(HealthAnswer::Unhealthy),
        Err(HostError::Permit(_)) => None,
        Err(error) => Some(HealthAnswer::Failed(error.to_string())),
    }
}

/// How a command ended and what it printed, for people. Both outputs are bounded by the port.
fn told(outcome: &HostOutcome) -> String {
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
