//! Metrics of the requests to the API server.

use std::time::Duration;

use madako_messages::kubernetes::KubernetesError;
use metrics::{Unit, counter, describe_counter, describe_histogram, histogram};

use crate::exchange::Failed;

const REQUESTS: &str = "madako_kubernetes_requests_total";
const SECONDS: &str = "madako_kubernetes_request_seconds";

/// Registers what the metrics mean with the recorder that is installed.
pub fn describe_metrics() {
    describe_counter!(
        REQUESTS,
        Unit::Count,
        "Requests to the API server of Kubernetes by call (nodes, namespaces, pods, pod, cordon, uncordon, dry-run, evict, \
         delete) and outcome: ok, not-found, budget, unavailable, refused or malformed."
    );
    describe_histogram!(
        SECONDS,
        Unit::Seconds,
        "Time that requests to the API server of Kubernetes took, by call."
    );
}

/// Counts and times one request.
pub(crate) fn record(call: &'static str, failed: Option<&Failed>, took: Duration) {
    let outcome = match failed.map(|failed| &failed.error) {
        None => "ok",
        Some(_) if failed.is_some_and(|failed| failed.budget.is_some()) => "budget",
        Some(KubernetesError::NotFound { .. }) => "not-found",
        Some(KubernetesError::Unavailable { .. } | KubernetesError::Permit(_)) => "unavailable",
        Some(KubernetesError::Refused { .. }) => "refused",
        Some(KubernetesError::Malformed { .. }) => "malformed",
    };
    counter!(REQUESTS, "call" => call, "outcome" => outcome).increment(1);
    histogram!(SECONDS, "call" => call).record(took.as_secs_f64());
}
