//! The recorder of a process's metrics, with the buckets of its histograms.

use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusRecorder};

/// Buckets of every histogram of seconds: a plan takes milliseconds, a poll up to its deadline of 30 s, and a command
/// on the host up to its default deadline of 600 s.
const SECONDS: [f64; 15] =
    [0.0005, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0, 120.0, 600.0];

/// Buckets of scores: weighted means of metrics, which lie between 0 and 1.
const SCORES: [f64; 11] = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0];

/// A recorder that is not installed yet.
///
/// # Errors
/// The buckets are invalid, which would be a bug of this module.
pub fn build_recorder() -> Result<PrometheusRecorder, BuildError> {
    let builder = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &SECONDS)?
        .set_buckets_for_metric(Matcher::Suffix("_score".to_owned()), &SCORES)?;
    Ok(builder.build_recorder())
}
