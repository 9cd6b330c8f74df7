//! The port to the metrics providers, and the errors of a fetch.
//!
//! Guarantees of every implementation of [`MetricsProviders`]:
//! - Each requested name has exactly one answer; no other name has one.
//! - A value is finite.
//! - The call ends within its deadline, and the amount of read data is bounded.
//! - No error contains a token or the secret part of an address.
//!
//! Does not: compare a value with its metric's definition, remember, or retry.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use async_trait::async_trait;

use madako_domain::placement::core::MetricsProviderKind;
use madako_domain::placement::metadata::ReasonCode;
use madako_json::named;
use strum::IntoStaticStr;

pub use crate::limits::{MAX_AGE_INTERVALS, PROVIDER_DEADLINE};

/// A value from a provider.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// The value, which is finite.
    pub value: f64,
    /// A remark for people: the value is one of several series, with the name of that series.
    pub note: Option<String>,
}

/// The reason why a provider gave no value. Addresses consist of scheme, host and port only.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum FetchError {
    /// The provider's definition is unusable.
    #[error("cannot use the definition of the metrics provider: {why}")]
    Definition {
        /// The fault, in words.
        why: String,
    },
    /// The connection failed.
    #[error("cannot connect to {address}: {why}")]
    Unreachable {
        /// Address of the provider.
        address: String,
        /// The message of the system.
        why: String,
    },
    /// The deadline passed.
    #[error("no complete answer from {address} within {} s", deadline.as_secs_f64())]
    Deadline {
        /// Address of the provider.
        address: String,
        /// The deadline of the whole fetch.
        deadline: Duration,
    },
    /// The answer exceeds the limit.
    #[error("the answer of {address} is longer than {limit} bytes")]
    TooLarge {
        /// Address of the provider.
        address: String,
        /// The limit in bytes.
        limit: usize,
    },
    /// The connection ended within the answer.
    #[error("the answer of {address} was cut off: {why}")]
    CutOff {
        /// Address of the provider.
        address: String,
        /// The message of the system.
        why: String,
    },
    /// The provider refused the request.
    #[error("{address} answered with status {status}: {message}")]
    Status {
        /// Address of the provider.
        address: String,
        /// HTTP status code, such as 503.
        status: u16,
        /// The body of the answer, shortened.
        message: String,
    },
    /// The provider's answer is an error in its own format.
    #[error("{address} answered with an error: {message}")]
    Refused {
        /// Address of the provider.
        address: String,
        /// The provider's message, shortened.
        message: String,
    },
    /// The answer does not follow the provider's interface.
    #[error("the answer of {address} is malformed: {why}")]
    Malformed {
        /// Address of the provider.
        address: String,
        /// The position in the answer, and the expected value.
        why: String,
    },
    /// The name is invalid for the provider.
    #[error("the metrics provider allows no metric with this name: {why}")]
    Name {
        /// The rule that the name breaks.
        why: &'static str,
    },
    /// The static provider does not list the metric.
    #[error("the static metrics provider does not list the metric: add it to the provider's spec")]
    Unlisted,
    /// The provider does not have the metric, or has no value of it.
    #[error("the metrics provider's answer has no value of the metric: expected {expected}")]
    NotFound {
        /// The object that the provider's answer lacks.
        expected: &'static str,
    },
    /// The provider's value is not a number.
    #[error("the metrics provider returned a value that is not a number: {got}")]
    NotANumber {
        /// The value that the provider gave, shortened for messages.
        got: String,
    },
    /// The provider's value is NaN or infinite.
    #[error("the metrics provider returned a value that is not finite: {got}")]
    NotFinite {
        /// The value, as text.
        got: String,
    },
}

named!(FetchError);

impl FetchError {
    /// Krake's code, which says whether the provider or the metric is at fault.
    #[must_use]
    pub fn code(&self) -> ReasonCode {
        if self.is_providers() { ReasonCode::UnreachableMetricsProvider } else { ReasonCode::InvalidMetric }
    }

    /// True if the error concerns the provider and therefore all its metrics.
    #[must_use]
    pub fn is_providers(&self) -> bool {
        match self {
            Self::Definition { .. }
            | Self::Unreachable { .. }
            | Self::Deadline { .. }
            | Self::TooLarge { .. }
            | Self::CutOff { .. }
            | Self::Status { .. }
            | Self::Refused { .. }
            | Self::Malformed { .. } => true,
            Self::Name { .. }
            | Self::Unlisted
            | Self::NotFound { .. }
            | Self::NotANumber { .. }
            | Self::NotFinite { .. } => false,
        }
    }

    /// True if a stored definition is at fault: no fetch can succeed before it changes.
    #[must_use]
    pub fn is_definition(&self) -> bool {
        matches!(self, Self::Definition { .. } | Self::Name { .. } | Self::Unlisted)
    }
}

/// The results of a fetch, by the requested name.
pub type Samples = BTreeMap<String, Result<Sample, FetchError>>;

/// The port to metrics providers of all kinds.
#[async_trait]
pub trait MetricsProviders: Send + Sync + 'static {
    /// The present values of some metrics of one provider, by the provider's own names.
    async fn fetch(
        &self,
        provider: &MetricsProviderKind,
        names: &BTreeSet<String>,
        deadline: Duration,
    ) -> Samples;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_of_providers_and_of_metrics_are_distinguished() {
        let address = || "http://p".to_owned();
        let why = String::new;
        let providers = [
            FetchError::Definition { why: why() },
            FetchError::Unreachable { address: address(), why: why() },
            FetchError::Deadline { address: address(), deadline: PROVIDER_DEADLINE },
            FetchError::TooLarge { address: address(), limit: 1 },
            FetchError::CutOff { address: address(), why: why() },
            FetchError::Status { address: address(), status: 500, message: why() },
            FetchError::Refused { address: address(), message: why() },
            FetchError::Malformed { address: address(), why: why() },
        ];
        let metrics = [
            FetchError::Name { why: "" },
            FetchError::Unlisted,
            FetchError::NotFound { expected: "" },
            FetchError::NotANumber { got: why() },
            FetchError::NotFinite { got: why() },
        ];
        for error in &providers {
            assert!(
                error.is_providers() && error.code() == ReasonCode::UnreachableMetricsProvider,
                "{error}"
            );
        }
        for error in &metrics {
            assert!(!error.is_providers() && error.code() == ReasonCode::InvalidMetric, "{error}");
        }
        let all = || providers.iter().chain(&metrics);
        let stored: Vec<&str> = all().filter(|error| error.is_definition()).map(FetchError::name).collect();
        assert_eq!(stored, ["definition", "name", "unlisted"]);
        let names: BTreeSet<&str> = all().map(FetchError::name).collect();
        assert_eq!(names.len(), providers.len() + metrics.len(), "each has a name of its own");
    }
}
