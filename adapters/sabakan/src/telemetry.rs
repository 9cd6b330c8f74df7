//! Metrics of the registry's requests.

use std::time::Duration;

use madako_protocol::ports::{HttpError, RegistryError, RegistryMachines};

madako_protocol::declare_metrics! {
    "The registry":
    counter madako_registry_requests_total(outcome)
        "Requests to the machine registry by outcome: `ok`, `connect`, `deadline`, `too-large`, `truncated`, \
         `invalid-request`, `status`, `graphql`, `malformed`.";
    histogram madako_registry_request_seconds() in Seconds "Duration of requests to the machine registry.";
}

pub(crate) fn record_request(result: &Result<RegistryMachines, RegistryError>, took: Duration) {
    madako_registry_requests_total(outcome_label(result)).increment(1);
    madako_registry_request_seconds().record(took);
}

fn outcome_label(result: &Result<RegistryMachines, RegistryError>) -> &'static str {
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
