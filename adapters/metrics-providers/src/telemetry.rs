//! Metrics of the requests to providers.

use std::time::Duration;

use madako_domain::placement::core::MetricsProviderKind;
use madako_json::krake::tagged::Variants;
use madako_protocol::placement::providers::FetchError;

madako_protocol::declare_metrics! {
    "Metrics of placement":
    counter madako_metrics_provider_requests_total(kind, outcome)
        "HTTP requests to metrics providers. `outcome`: `ok`, `definition` (it could not be sent), `unreachable`, \
         `deadline`, `too-large`, `cut-off`, `status`.";
    histogram madako_metrics_provider_request_seconds(kind) in Seconds "Duration of requests to metrics providers.";
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
