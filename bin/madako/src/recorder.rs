//! The process's metrics: one recorder, the help texts of every crate, and the text that `/metrics` answers.

use std::sync::Arc;

use anyhow::Context as _;
use madako_supervisor::http::MetricsText;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};

/// Buckets of every histogram of seconds: a plan takes milliseconds, a poll may take its 30 s deadline.
const SECONDS: [f64; 12] = [0.0005, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 2.5, 10.0, 30.0];

/// Installs the recorder. Once in a process.
pub(crate) fn install() -> anyhow::Result<MetricsText> {
    let handle = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &SECONDS)
        .context("the buckets of the metrics are not valid")?
        .install_recorder()
        .context("another recorder of metrics is installed")?;
    madako_supervisor::describe_metrics();
    Ok(Arc::new(move || {
        // Keeps what histograms hold between two scrapes small.
        handle.run_upkeep();
        madako_http::metrics_text(&handle)
    }))
}
