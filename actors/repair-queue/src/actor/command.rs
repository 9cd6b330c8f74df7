//! Commands over the port: a repair's with its retries, and health checks.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use madako_messages::host::{Host, HostCommand, HostEnd, HostError, HostOutcome};
use madako_messages::repair::command::{CommandEnd, HealthAnswer, HowEnded};

use super::permits::Permits;

/// A command to run, as often as it may while it fails.
pub(super) struct Order {
    pub(super) host: Arc<dyn Host>,
    pub(super) permits: Permits,
    pub(super) words: Vec<String>,
    pub(super) deadline: Duration,
    pub(super) attempts: u32,
    pub(super) interval: Duration,
    /// Set to the reason when it is not to be tried again.
    pub(super) stop: Arc<OnceLock<String>>,
}

impl Order {
    pub(super) async fn carry_out(self) -> CommandEnd {
        let mut attempt = 1;
        loop {
            let text = match self.run().await {
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
            if !self.interval.is_zero() {
                tokio::time::sleep(self.interval).await;
            }
            if let Some(why) = self.stop.get() {
                let text = format!("not tried again, {why}; {text}");
                return CommandEnd { how: HowEnded::Stopped, text };
            }
            attempt += 1;
        }
    }

    async fn run(&self) -> Result<HostOutcome, HostError> {
        let permit = self.permits.get().await;
        let command = HostCommand { words: self.words.clone(), deadline: self.deadline };
        self.host.run(&permit, command).await
    }
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
