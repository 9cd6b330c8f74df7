//! The process's metrics: one recorder, the help texts of every crate, and the text that `/metrics` answers.

use std::sync::Arc;

use anyhow::Context as _;
use madako_supervisor::http::MetricsText;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};

/// Buckets of every histogram of seconds: a plan takes milliseconds, a poll may take its 30 s deadline, and a command on the host
/// without one of its own 600 s.
const SECONDS: [f64; 15] =
    [0.0005, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0, 120.0, 600.0];

/// Buckets of scores: weighted means of metrics, which lie between 0 and 1.
const SCORES: [f64; 11] = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0];

/// Installs the recorder. Once in a process.
pub(crate) fn install() -> anyhow::Result<MetricsText> {
    let handle = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &SECONDS)
        .context("the buckets of the metrics are not valid")?
        .set_buckets_for_metric(Matcher::Suffix("_score".to_owned()), &SCORES)
        .context("the buckets of the scores are not valid")?
        .install_recorder()
        .context("another recorder of metrics is installed")?;
    madako_supervisor::describe_metrics();
    Ok(Arc::new(move || {
        // Keeps what histograms hold between two scrapes small.
        handle.run_upkeep();
        madako_http::metrics_text(&handle)
    }))
}
