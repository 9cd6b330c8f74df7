//! Metrics of commands on the host.

use madako_protocol::host::{HostEnd, HostError, HostOutcome};
use tokio::time::Instant;

madako_protocol::declare_metrics! {
    "Commands on the host":
    counter madako_host_commands_total(outcome)
        "Commands on the host. `outcome`: `ok` (exit code 0), `exit-code` (another one), `signal`, `deadline` \
         (killed), `permit` (leadership was lost before it began), `not-started` (nothing happened), `lost` (the \
         result is unknown), `dropped` (killed, because leadership was lost or its actor failed).";
    histogram madako_host_command_seconds() in Seconds "Duration of commands on the host.";
    gauge madako_host_commands_running() "Running commands on the host.";
}

/// A running command. If it is dropped before its end, leadership was lost or its actor failed.
pub(crate) struct RunningCommand {
    since: Instant,
    outcome: &'static str,
}

impl RunningCommand {
    pub(crate) fn begin(since: Instant) -> Self {
        madako_host_commands_running().increment(1.0);
        Self { since, outcome: "dropped" }
    }

    pub(crate) fn end(mut self, result: &Result<HostOutcome, HostError>) {
        self.outcome = outcome_label(result);
    }
}

impl Drop for RunningCommand {
    fn drop(&mut self) {
        madako_host_commands_running().decrement(1.0);
        madako_host_commands_total(self.outcome).increment(1);
        madako_host_command_seconds().record(self.since.elapsed());
    }
}

fn outcome_label(result: &Result<HostOutcome, HostError>) -> &'static str {
    match result {
        Ok(outcome) => match outcome.end {
            HostEnd::Exited { code: 0 } => "ok",
            HostEnd::Exited { .. } => "exit-code",
            HostEnd::Signalled { .. } => "signal",
            HostEnd::Deadline => "deadline",
        },
        Err(HostError::Permit(_)) => "permit",
        Err(HostError::NotStarted { .. }) => "not-started",
        Err(HostError::Lost { .. }) => "lost",
    }
}
