//! Metrics of the registry's requests.

use std::time::Duration;

use madako_protocol::ports::{HttpError, RegistryError, RegistryMachines};
use metrics::{Unit, counter, describe_counter, describe_histogram, histogram};

const REQUESTS: &str = "madako_registry_requests_total";
const SECONDS: &str = "madako_registry_request_seconds";

/// Registers the descriptions of the metrics with the installed recorder.
pub fn describe_metrics() {
    describe_counter!(
        REQUESTS,
        Unit::Count,
        "Requests to the machine registry by outcome: ok, connect, deadline, too-large, truncated, \
         invalid-request, status, graphql or malformed."
    );
    describe_histogram!(SECONDS, Unit::Seconds, "Duration of requests to the machine registry.");
}

pub(crate) fn record(result: &Result<RegistryMachines, RegistryError>, took: Duration) {
    counter!(REQUESTS, "outcome" => outcome(result)).increment(1);
    histogram!(SECONDS).record(took);
}

fn outcome(result: &Result<RegistryMachines, RegistryError>) -> &'static str {
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
