//! The port to the providers of metrics, and every way in which one may fail to give a value.
//!
//! Guarantees, of whatever implements [`MetricsProviders`]:
//! - each name that was asked for has exactly one answer, and nothing else has one;
//! - a value is finite;
//! - the call ends within its deadline, and what it reads is bounded;
//! - tokens, and what of an address may be a secret, are in no error.
//!
//! Does not: judge a value by its metric's definition, remember, or retry.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use async_trait::async_trait;

use madako_domain::placement::core::MetricsProviderKind;
use madako_domain::placement::metadata::ReasonCode;

pub use crate::limits::{MAX_AGE_INTERVALS, PROVIDER_DEADLINE};

/// A value as a provider gave it.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// The value; finite.
    pub value: f64,
    /// What people should know of it: that it is one of several series, and which.
    pub note: Option<String>,
}

/// Why a provider gave no value. Addresses are shown by scheme, host and port alone.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FetchError {
    /// The provider's definition cannot be used.
    #[error("its definition cannot be used: {why}")]
    Definition {
        /// What is wrong with it.
        why: String,
    },
    /// No connection.
    #[error("cannot connect to {address}: {why}")]
    Unreachable {
        /// Where it should be.
        address: String,
        /// What the system said.
        why: String,
    },
    /// The deadline passed.
    #[error("no whole answer from {address} within {} s", deadline.as_secs_f64())]
    Deadline {
        /// Where it is.
        address: String,
        /// The deadline of the whole fetch.
        deadline: Duration,
    },
    /// The answer is longer than what is read.
    #[error("the answer of {address} is longer than {limit} bytes")]
    TooLarge {
        /// Where it is.
        address: String,
        /// The limit in bytes.
        limit: usize,
    },
    /// The connection ended within the answer.
    #[error("the answer of {address} was cut off: {why}")]
    CutOff {
        /// Where it is.
        address: String,
        /// What the system said.
        why: String,
    },
    /// It refused the request.
    #[error("{address} answered with status {status}: {said}")]
    Status {
        /// Where it is.
        address: String,
        /// The HTTP status.
        status: u16,
        /// What it said, shortened.
        said: String,
    },
    /// It answered the request with an error of its own.
    #[error("{address} answered with an error: {said}")]
    Refused {
        /// Where it is.
        address: String,
        /// What it said, shortened.
        said: String,
    },
    /// The answer is none of the provider's interface.
    #[error("the answer of {address} is malformed: {why}")]
    Malformed {
        /// Where it is.
        address: String,
        /// Where in the answer, and what was expected.
        why: String,
    },
    /// The name is none that the provider can have.
    #[error("no metric can have this name there: {why}")]
    Name {
        /// Why not.
        why: &'static str,
    },
    /// A static provider that does not list it.
    #[error("the static provider does not list it")]
    Unlisted,
    /// It has no such metric, or no value of it.
    #[error("it has no value: {expected}")]
    NotFound {
        /// What was looked for.
        expected: &'static str,
    },
    /// What it has is no number.
    #[error("its value is no number: {got}")]
    NotANumber {
        /// What it is, shortened.
        got: String,
    },
    /// What it has is NaN or infinite.
    #[error("its value is not finite: {got}")]
    NotFinite {
        /// What it is.
        got: String,
    },
}

impl FetchError {
    /// Krake's code: whether it is the provider that is wrong, or the metric.
    #[must_use]
    pub fn code(&self) -> ReasonCode {
        if self.is_providers() { ReasonCode::UnreachableMetricsProvider } else { ReasonCode::InvalidMetric }
    }

    /// Whether it says something about the provider, and so about all its metrics.
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

    /// Whether it is what is stored that is wrong: as long as that does not change, no fetch can help.
    #[must_use]
    pub fn is_definition(&self) -> bool {
        matches!(self, Self::Definition { .. } | Self::Name { .. } | Self::Unlisted)
    }

    /// A short name for a metric's label.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Definition { .. } => "definition",
            Self::Unreachable { .. } => "unreachable",
            Self::Deadline { .. } => "deadline",
            Self::TooLarge { .. } => "too-large",
            Self::CutOff { .. } => "cut-off",
            Self::Status { .. } => "status",
            Self::Refused { .. } => "refused",
            Self::Malformed { .. } => "malformed",
            Self::Name { .. } => "name",
            Self::Unlisted => "unlisted",
            Self::NotFound { .. } => "not-found",
            Self::NotANumber { .. } => "not-a-number",
            Self::NotFinite { .. } => "not-finite",
        }
    }
}

/// What a fetch gave for each name.
pub type Samples = BTreeMap<String, Result<Sample, FetchError>>;

/// Providers of metrics, of every kind.
#[async_trait]
pub trait MetricsProviders: Send + Sync + 'static {
    /// The present values of some metrics of one provider, by the names that they have there.
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
    fn what_the_provider_does_wrong_is_told_apart_from_what_its_metric_does() {
        let address = || "http://p".to_owned();
        let why = String::new;
        let providers = [
            FetchError::Definition { why: why() },
            FetchError::Unreachable { address: address(), why: why() },
            FetchError::Deadline { address: address(), deadline: PROVIDER_DEADLINE },
            FetchError::TooLarge { address: address(), limit: 1 },
            FetchError::CutOff { address: address(), why: why() },
            FetchError::Status { address: address(), status: 500, said: why() },
            FetchError::Refused { address: address(), said: why() },
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
