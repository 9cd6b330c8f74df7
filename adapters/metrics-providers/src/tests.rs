//! Tests of the metrics providers against fake servers on loopback, and against a real Prometheus.

mod by_definition;
mod fake;
mod faults;
mod flux;
mod influx;
mod ksql;
mod languages;
mod prometheus;
mod real_prometheus;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use madako_domain::placement::core::MetricsProviderKind;
use madako_http_client::ReqwestTransport;
use madako_protocol::placement::providers::{FetchError, MetricsProviders, Sample, Samples};
use serde_json::{Value, json};

use crate::Providers;

const LIMIT: usize = 200_000;

/// Longer than any answer takes that arrives at all.
const DEADLINE: Duration = Duration::from_secs(20);

const TOKEN: &str = "t0p-s3cret==";

fn providers() -> Providers<ReqwestTransport> {
    let transport = ReqwestTransport::with_roots(rustls::RootCertStore::empty()).unwrap();
    Providers::new(Arc::new(transport)).with_max_response_bytes(LIMIT)
}

fn kind(spec: &Value) -> MetricsProviderKind {
    let text = json!({ "type": spec["type"], spec["type"].as_str().unwrap(): spec["of"] }).to_string();
    serde_json::from_str::<madako_domain::placement::core::MetricsProviderSpec>(&text).unwrap().value
}

fn prometheus_at(url: &str) -> MetricsProviderKind {
    kind(&json!({ "type": "prometheus", "of": { "url": url } }))
}

fn influx_at(url: &str) -> MetricsProviderKind {
    let of = json!({ "url": url, "token": TOKEN, "org": "an org", "bucket": "a \"bucket\"" });
    kind(&json!({ "type": "influx", "of": of }))
}

fn ksql_at(url: &str) -> MetricsProviderKind {
    let of = json!({ "url": url, "comparison_column": "name", "value_column": "value", "table": "metrics" });
    kind(&json!({ "type": "kafka", "of": of }))
}

fn names(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

async fn fetch(provider: &MetricsProviderKind, wanted: &[&str]) -> Samples {
    let samples = providers().fetch(provider, &names(wanted), DEADLINE).await;
    let answered: Vec<&str> = samples.keys().map(String::as_str).collect();
    let mut expected = wanted.to_vec();
    expected.sort_unstable();
    expected.dedup();
    assert_eq!(answered, expected, "one answer for each name, and no other");
    samples
}

fn value(value: f64) -> Result<Sample, FetchError> {
    Ok(Sample { value, note: None })
}

/// Names that would change a query if they were not escaped.
const HOSTILE: [&str; 18] = [
    "\"",
    "\\",
    "a\"} or {b=\"",
    "a|load",
    ".*",
    "load.*",
    "lo(a)d",
    "a\nb",
    "a\r\n|> yield()",
    "tab\tand\u{7f}\u{85}",
    "${1 + 1}",
    "$${}",
    "' OR 'a' = 'a",
    "'; DROP TABLE metrics; --",
    "`",
    "\u{0}",
    "größe 大きさ 😀",
    " ",
];
