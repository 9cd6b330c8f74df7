//! Metrics of the requests to providers.

use std::time::Duration;

use madako_domain::placement::core::MetricsProviderKind;
use madako_json::krake::tagged::Variants;
use madako_protocol::placement::providers::FetchError;

madako_protocol::declare_metrics! {
    counter madako_metrics_provider_requests_total(kind, outcome)
        "Requests to metrics providers by kind and outcome: ok, definition, unreachable, deadline, too-large, \
         cut-off or status.";
    histogram madako_metrics_provider_request_seconds(kind) "Duration of requests to metrics providers.";
}

/// Krake's name of the provider's kind.
pub(crate) fn kind_label(provider: &MetricsProviderKind) -> &'static str {
    provider.tag()
}

pub(crate) fn record_fetch(kind: &'static str, error: Option<&FetchError>, took: Duration) {
    let outcome = error.map_or("ok", FetchError::name);
    madako_metrics_provider_requests_total(kind, outcome).increment(1);
    madako_metrics_provider_request_seconds(kind).record(took);
}
