//! Traces: what follows from what was seen, from the decision over the commit to its effects, sent to an OpenTelemetry
//! collector by OTLP over gRPC.
//!
//! Guarantees: spans wait in a bounded queue of the exporter (2,048); what a collector that is slow or gone does not take is
//! dropped, and the service is never held up. Only our own spans leave, at the level info, with the events that the log
//! hears. Their fields are those of the log, so no secrets are in them. Headers for the collector come from the variable
//! `OTEL_EXPORTER_OTLP_HEADERS` alone, which no command line shows.

use std::fmt;

use anyhow::Context as _;
use opentelemetry::KeyValue;
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing::{Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::registry::LookupSpan;

use crate::VERSION;
use crate::limits::EXPORT_DEADLINE;
use crate::log::OUR_TARGETS;

/// Where traces are sent to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Collector(String);

impl Collector {
    /// Reads `http://HOST:PORT`.
    ///
    /// # Errors
    /// It is something else; the message does not repeat it, as there may be a password in it.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let wrong =
            || "is not http://HOST:PORT of a collector that takes OTLP over gRPC (port 4317)".to_owned();
        let url = reqwest::Url::parse(text).map_err(|_| wrong())?;
        let plain = url.scheme() == "http"
            && url.host_str().is_some()
            && url.port().is_some()
            && url.username().is_empty()
            && url.password().is_none()
            && url.path() == "/"
            && url.query().is_none()
            && url.fragment().is_none();
        if plain { Ok(Self(text.trim_end_matches('/').to_owned())) } else { Err(wrong()) }
    }
}

impl fmt::Display for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What sends spans.
pub(crate) struct Traces(SdkTracerProvider);

impl Traces {
    /// Begins to send the spans of a host's service. Needs a runtime, which the exporter works on.
    ///
    /// # Errors
    /// The exporter does not start; that the collector answers is not tried.
    pub(crate) fn start(collector: &Collector, host: &str) -> anyhow::Result<Self> {
        let exporter = SpanExporter::builder()
            .with_tonic()
            .with_endpoint(collector.to_string())
            .with_timeout(EXPORT_DEADLINE)
            .build()
            .with_context(|| format!("traces cannot be sent to {collector}"))?;
        let resource = Resource::builder()
            .with_service_name("madako")
            .with_attributes([
                KeyValue::new("service.version", VERSION),
                KeyValue::new("service.instance.id", host.to_owned()),
            ])
            .build();
        Ok(Self(SdkTracerProvider::builder().with_resource(resource).with_batch_exporter(exporter).build()))
    }

    /// What takes the spans of a subscriber.
    pub(crate) fn layer<S>(&self) -> impl Layer<S> + Send + Sync + use<S>
    where
        S: Subscriber + for<'a> LookupSpan<'a> + Send + Sync,
    {
        tracing_opentelemetry::layer().with_tracer(self.0.tracer("madako")).with_filter(filter_fn(
            |metadata| metadata.target().starts_with(OUR_TARGETS) && *metadata.level() <= Level::INFO,
        ))
    }

    /// Sends what is left.
    pub(crate) fn end(&self) {
        if let Err(error) = self.0.shutdown_with_timeout(EXPORT_DEADLINE) {
            tracing::warn!(error = &error as &dyn std::error::Error, "the last traces were not sent");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collector_is_a_plain_address() {
        assert_eq!(Collector::parse("http://collector:4317/").unwrap().to_string(), "http://collector:4317");
        for wrong in
            ["", "collector:4317", "https://c:4317", "http://u:secret@c:4317", "http://c:4317/v1", "http://c"]
        {
            let error = Collector::parse(wrong).unwrap_err();
            assert!(
                error.starts_with("is not http://HOST:PORT") && !error.contains("secret"),
                "{wrong}: {error}"
            );
        }
    }
}
