//! Metrics of the requests to providers.

use std::time::Duration;

use madako_domain::placement::core::MetricsProviderKind;
use madako_json::krake::tagged::Variants;
use madako_protocol::placement::providers::FetchError;
use metrics::{Unit, counter, describe_counter, describe_histogram, histogram};

const REQUESTS: &str = "madako_metrics_provider_requests_total";
const SECONDS: &str = "madako_metrics_provider_request_seconds";

/// Registers the descriptions of the metrics with the installed recorder.
pub fn describe_metrics() {
    describe_counter!(
        REQUESTS,
        Unit::Count,
        "Requests to metrics providers by kind and outcome: ok, definition, unreachable, deadline, too-large, \
         cut-off or status."
    );
    describe_histogram!(SECONDS, Unit::Seconds, "Duration of requests to metrics providers.");
}

/// Krake's name of the provider's kind.
pub(crate) fn kind(provider: &MetricsProviderKind) -> &'static str {
    provider.tag()
}

pub(crate) fn record(kind: &'static str, error: Option<&FetchError>, took: Duration) {
    let outcome = error.map_or("ok", FetchError::name);
    counter!(REQUESTS, "kind" => kind, "outcome" => outcome).increment(1);
    histogram!(SECONDS, "kind" => kind).record(took);
}
