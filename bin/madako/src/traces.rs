//! Traces: the chain from an observation over the decision and the commit to its effects, sent to an OpenTelemetry
//! collector by OTLP over gRPC.
//!
//! Guarantees: spans wait in a bounded queue of the exporter (2,048); spans that a slow or absent collector does not
//! accept are dropped, and the service never waits. Only this project's spans are exported, at the level info, with the
//! events that the log accepts. Their fields are those of the log, so that they contain no secrets. Headers for the
//! collector come only from the variable `OTEL_EXPORTER_OTLP_HEADERS`, which no command line shows.

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

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Collector(String);

impl Collector {
    /// Reads `http://HOST:PORT`.
    ///
    /// # Errors
    /// The text has another form; the message does not repeat it, as it may contain a password.
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

pub(crate) struct Traces(SdkTracerProvider);

impl Traces {
    /// Starts exporting the spans of a host's service. Needs a runtime for the exporter.
    ///
    /// # Errors
    /// The exporter does not start; no connection to the collector is tried.
    pub(crate) fn start(collector: &Collector, host: &str) -> anyhow::Result<Self> {
        let exporter = SpanExporter::builder()
            .with_tonic()
            .with_endpoint(collector.to_string())
            .with_timeout(EXPORT_DEADLINE)
            .build()
            .with_context(|| format!("cannot send traces to {collector}"))?;
        let resource = Resource::builder()
            .with_service_name("madako")
            .with_attributes([
                KeyValue::new("service.version", VERSION),
                KeyValue::new("service.instance.id", host.to_owned()),
            ])
            .build();
        Ok(Self(SdkTracerProvider::builder().with_resource(resource).with_batch_exporter(exporter).build()))
    }

    /// The layer of a subscriber that collects spans.
    pub(crate) fn tracing_layer<S>(&self) -> impl Layer<S> + Send + Sync + use<S>
    where
        S: Subscriber + for<'a> LookupSpan<'a> + Send + Sync,
    {
        tracing_opentelemetry::layer().with_tracer(self.0.tracer("madako")).with_filter(filter_fn(
            |metadata| metadata.target().starts_with(OUR_TARGETS) && *metadata.level() <= Level::INFO,
        ))
    }

    /// Exports the remaining spans.
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
    fn a_trace_collector_is_a_plain_address() {
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
