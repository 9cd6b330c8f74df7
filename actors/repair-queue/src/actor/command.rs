//! Runs commands on this host through the host port: attempts of an announced command, and health checks.

use std::sync::Arc;
use std::time::Duration;

use madako_domain::repair::command::{CommandEnd, HealthAnswer};
use madako_domain::repair::kept::KeptEntry;
use madako_effects::{AttemptEnd, Attempts, Effect, Permits, attempt_command, run_check};
use madako_protocol::host::{Host, HostCommand};
use madako_protocol::permit::Permit;
use tokio::time::Instant;
use tracing::Span;

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
    /// True if the data kept for its entry names this record for a command of this kind.
    pub(super) fn is_kept_as(&self, kept: &KeptEntry) -> bool {
        let record = match self.kind {
            CommandKind::Success => kept.finishing,
            CommandKind::Repair => kept.started.as_ref().map(|started| started.record),
        };
        record == Some(self.record)
    }

    pub(super) async fn run_attempt(
        &self,
        host: &dyn Host,
        permit: Permit,
        attempt: u32,
    ) -> AttemptEnd<CommandEnd> {
        let command = HostCommand { words: self.words.clone(), deadline: self.deadline };
        // As CKE, which repeats a command after its time-out.
        let attempts = Attempts { number: attempt, most: self.attempts, repeats_killed: true };
        attempt_command(host, &permit, command, self.kind.name(), attempts).await
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
            let answer = run_check(Arc::clone(&host), permits.clone(), words.clone(), *deadline).await;
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
