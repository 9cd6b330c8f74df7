//! Metrics of the registry's requests.

use std::time::Duration;

use madako_messages::ports::{Fetched, HttpError, RegistryError};
use metrics::{Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};

const REQUESTS: &str = "madako_registry_requests_total";
const SECONDS: &str = "madako_registry_request_seconds";
const MACHINES: &str = "madako_registry_machines";
const LEFT_OUT: &str = "madako_registry_machines_left_out";

/// Registers what the metrics mean with the recorder that is installed.
pub fn describe_metrics() {
    describe_counter!(
        REQUESTS,
        Unit::Count,
        "Requests to the machine registry by outcome: ok, connect, deadline, too-large, truncated, \
         invalid-request, status, graphql or malformed."
    );
    describe_histogram!(SECONDS, Unit::Seconds, "Time that requests to the machine registry took.");
    describe_gauge!(
        MACHINES,
        Unit::Count,
        "Machines in the registry's last good answer that have an address."
    );
    describe_gauge!(
        LEFT_OUT,
        Unit::Count,
        "Machines in the registry's last good answer that were left out for want of an IPv4 address."
    );
}

/// Counts and times one request.
pub(crate) fn record(result: &Result<Fetched, RegistryError>, took: Duration) {
    counter!(REQUESTS, "outcome" => outcome(result)).increment(1);
    histogram!(SECONDS).record(took);
    if let Ok(fetched) = result {
        gauge!(MACHINES).set(count(fetched.machines.len()));
        gauge!(LEFT_OUT).set(count(fetched.left_out.len()));
    }
}

fn outcome(result: &Result<Fetched, RegistryError>) -> &'static str {
    match result {
        Ok(_) => "ok",
        Err(RegistryError::Http(HttpError::Connect { .. })) => "connect",
        Err(RegistryError::Http(HttpError::Deadline { .. })) => "deadline",
        Err(RegistryError::Http(HttpError::TooLarge { .. })) => "too-large",
        Err(RegistryError::Http(HttpError::Truncated { .. })) => "truncated",
        Err(RegistryError::Http(HttpError::Invalid { .. })) => "invalid-request",
        Err(RegistryError::Status { .. }) => "status",
        Err(RegistryError::GraphQl { .. }) => "graphql",
        Err(RegistryError::Malformed { .. }) => "malformed",
    }
}

#[allow(clippy::cast_precision_loss, reason = "an answer's size limit keeps the number far below 2^52")]
fn count(machines: usize) -> f64 {
    machines as f64
}
