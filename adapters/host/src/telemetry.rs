//! Metrics of commands on the host.

use madako_protocol::host::{HostEnd, HostError, HostOutcome};
use metrics::{Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use tokio::time::Instant;

const COMMANDS: &str = "madako_host_commands_total";
const SECONDS: &str = "madako_host_command_seconds";
const RUNNING: &str = "madako_host_commands_running";

/// Registers the descriptions of the metrics with the installed recorder.
pub fn describe_metrics() {
    describe_counter!(
        COMMANDS,
        Unit::Count,
        "Commands on the host by outcome: ok, exit-code, signal, deadline, permit, not-started, lost, or dropped."
    );
    describe_histogram!(SECONDS, Unit::Seconds, "Duration of commands on the host.");
    describe_gauge!(RUNNING, Unit::Count, "Commands that are running on the host.");
}

/// A running command. If it is dropped before its end, leadership was lost or its actor failed.
pub(crate) struct Running {
    since: Instant,
    outcome: &'static str,
}

impl Running {
    pub(crate) fn begin(since: Instant) -> Self {
        gauge!(RUNNING).increment(1.0);
        Self { since, outcome: "dropped" }
    }

    pub(crate) fn end(mut self, result: &Result<HostOutcome, HostError>) {
        self.outcome = outcome(result);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        gauge!(RUNNING).decrement(1.0);
        counter!(COMMANDS, "outcome" => self.outcome).increment(1);
        histogram!(SECONDS).record(self.since.elapsed());
    }
}

fn outcome(result: &Result<HostOutcome, HostError>) -> &'static str {
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
