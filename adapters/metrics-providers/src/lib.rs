//! Providers of metrics: Prometheus, InfluxDB 2, KSQL, and tables in the definition itself.
//!
//! For: the fetcher, through the port `MetricsProviders`. HTTP goes through the port `HttpTransport`, so that tests and
//! the simulation need no network.
//!
//! Guarantees:
//! - Names and columns are escaped in every query language, so none can change the meaning of a query.
//! - All names of one Prometheus or InfluxDB go in one request, up to [`prometheus::PROMETHEUS_NAMES`] and
//!   [`influx::INFLUX_NAMES`]. KSQL's interface returns one value per request, [`ksql::KSQL_AT_ONCE`] at a time.
//! - If one answer for many names is too large, each name is requested separately, so that it does not affect the
//!   others.
//! - Of several series the first in label order counts, and the sample's note says so.
//! - An answer has at most [`MAX_RESPONSE_BYTES`], and all requests of a fetch share its deadline.
//! - No token, password, path or query of an address is in an error or in `Debug`.
//!
//! Assumes: a URL's path is the server's root, for a server below another one (`http://proxy/prometheus/`).
//!
//! Does not: retry, cache, or evaluate a value by its metric's definition.

mod address;
pub mod annotated_csv;
mod exchange;
pub mod influx;
pub mod ksql;
mod limits;
mod number;
pub mod prometheus;
mod telemetry;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::{StreamExt, stream};
use madako_domain::placement::core::{MetricsProviderKind, StaticSpec};
use madako_protocol::placement::providers::{FetchError, MetricsProviders, Sample, Samples};
use madako_protocol::ports::HttpTransport;
use tokio::time::Instant;

use crate::exchange::Exchange;
use crate::limits::ALONE_AT_ONCE;
pub use crate::limits::{MAX_NAME_BYTES, MAX_RESPONSE_BYTES};
pub use crate::telemetry::METRICS;

#[derive(Debug)]
pub struct Providers<T: HttpTransport + ?Sized> {
    transport: Arc<T>,
    max_response_bytes: usize,
}

impl<T: HttpTransport + ?Sized> Providers<T> {
    /// Uses [`MAX_RESPONSE_BYTES`].
    pub fn new(transport: Arc<T>) -> Self {
        Self { transport, max_response_bytes: MAX_RESPONSE_BYTES }
    }

    #[must_use]
    pub fn with_max_response_bytes(self, max_response_bytes: usize) -> Self {
        Self { max_response_bytes, ..self }
    }

    async fn ask(
        &self,
        provider: &MetricsProviderKind,
        names: &BTreeSet<String>,
        exchange: Exchange<'_, T>,
    ) -> Samples {
        match provider {
            MetricsProviderKind::Prometheus(spec) => request_in_turn(spec, names, &exchange).await,
            MetricsProviderKind::Influx(spec) => request_in_turn(spec, names, &exchange).await,
            MetricsProviderKind::Kafka(spec) => ksql::fetch(spec, names, &exchange).await,
            MetricsProviderKind::Static(spec) => {
                names.iter().map(|name| (name.clone(), static_sample(spec, name))).collect()
            }
        }
    }
}

/// The value in a static table. Its size was bounded when it was stored.
fn static_sample(spec: &StaticSpec, name: &str) -> Result<Sample, FetchError> {
    let value = *spec.metrics.get(name).ok_or(FetchError::Unlisted)?;
    Ok(Sample { value: number::check_finite(value)?, note: None })
}

/// Refuses empty names and names that are too long.
fn check_name(name: &str) -> Result<(), FetchError> {
    if name.is_empty() {
        Err(FetchError::Name { why: "it is empty" })
    } else if name.len() > MAX_NAME_BYTES {
        Err(FetchError::Name { why: "it is longer than 1024 bytes" })
    } else {
        Ok(())
    }
}

#[async_trait]
impl<T: HttpTransport + ?Sized> MetricsProviders for Providers<T> {
    async fn fetch(
        &self,
        provider: &MetricsProviderKind,
        names: &BTreeSet<String>,
        deadline: Duration,
    ) -> Samples {
        let exchange = Exchange {
            transport: &self.transport,
            kind: telemetry::kind_label(provider),
            max_response_bytes: self.max_response_bytes,
            begun: Instant::now(),
            deadline,
        };
        if matches!(provider, MetricsProviderKind::Static(_)) {
            return self.ask(provider, names, exchange).await;
        }
        let mut samples = Samples::new();
        let mut possible = BTreeSet::new();
        for name in names {
            if let Err(error) = check_name(name) {
                samples.insert(name.clone(), Err(error));
            } else {
                possible.insert(name.clone());
            }
        }
        if !possible.is_empty() {
            samples.extend(self.ask(provider, &possible, exchange).await);
        }
        samples
    }
}

trait AnswersMany {
    const NAMES_IN_A_REQUEST: usize;

    /// Sends one request for at most that many names.
    fn ask<T: HttpTransport + ?Sized>(
        &self,
        names: &[&str],
        exchange: &Exchange<'_, T>,
    ) -> impl Future<Output = Result<Samples, FetchError>> + Send;
}

/// Requests all names, one request after the other, because each answer may be large.
async fn request_in_turn<P: AnswersMany, T: HttpTransport + ?Sized>(
    provider: &P,
    names: &BTreeSet<String>,
    exchange: &Exchange<'_, T>,
) -> Samples {
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut samples = Samples::new();
    for some in names.chunks(P::NAMES_IN_A_REQUEST) {
        samples.extend(match provider.ask(some, exchange).await {
            Ok(answered) => answered,
            // One metric with very many series does not affect the others.
            Err(FetchError::TooLarge { .. }) if some.len() > 1 => {
                request_separately(provider, some, exchange).await
            }
            Err(error) => fail_all_names(some, &error),
        });
    }
    samples
}

/// Requests each name separately, some concurrently, within the remaining deadline.
async fn request_separately<P: AnswersMany, T: HttpTransport + ?Sized>(
    provider: &P,
    names: &[&str],
    exchange: &Exchange<'_, T>,
) -> Samples {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let answers = stream::iter(names)
        .map(|name| async move {
            let alone = [name.as_str()];
            let answered = provider.ask(&alone, exchange).await;
            answered.unwrap_or_else(|error| fail_all_names(&alone, &error))
        })
        .buffer_unordered(ALONE_AT_ONCE);
    answers.collect::<Vec<_>>().await.into_iter().flatten().collect()
}

/// The answer for every name when the whole request failed.
fn fail_all_names(names: &[&str], error: &FetchError) -> Samples {
    names.iter().map(|name| ((*name).to_owned(), Err(error.clone()))).collect()
}
