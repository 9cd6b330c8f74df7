//! The observed values of metrics, as the fetcher reports them to the scheduler.

use std::collections::BTreeMap;
use std::fmt;

use time::OffsetDateTime;

use super::metadata::{MetricRef, Reason};

/// The identity of a metric.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct MetricKey {
    /// Namespace; `None` for a global metric.
    pub namespace: Option<String>,
    /// Name of the metric, unique in the namespace or among global metrics.
    pub name: String,
}

impl MetricKey {
    /// The metric of a reference in a resource of `namespace`. `None` for a namespaced metric in a resource without a
    /// namespace (such as a global cloud); Krake calls such a metric invalid.
    #[must_use]
    pub fn from_reference(reference: &MetricRef, namespace: Option<&str>) -> Option<Self> {
        let namespace = if reference.namespaced { Some(namespace?.to_owned()) } else { None };
        Some(Self { namespace, name: reference.name.clone() })
    }
}

impl fmt::Display for MetricKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{namespace}/{}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

/// A value that a provider gave within the limits of its metric.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Value {
    /// The value from the provider, before normalization.
    pub raw: f64,
    /// The value normalized to the range from 0 to 1 by the metric's minimum and maximum.
    pub normalized: f64,
    /// Time of the fetch.
    pub at: OffsetDateTime,
}

/// The stability of a metric's values. A new leader starts without it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Trust {
    /// Start of the observation; `range` and `turns` cover no earlier time.
    pub since: OffsetDateTime,
    /// Minimum and maximum of the last hour.
    pub range: Option<(f64, f64)>,
    /// Changes of direction within the last hour that exceed 5 % of the metric's range.
    pub turns: u32,
}

impl Trust {
    /// Number of changes of direction in an hour above which a metric oscillates.
    pub const MOST_TURNS: u32 = 6;

    /// True if the value oscillates.
    #[must_use]
    pub fn is_oscillating(&self) -> bool {
        self.turns > Self::MOST_TURNS
    }
}

/// The observed state of one metric.
#[derive(Debug, Clone, PartialEq)]
pub struct MetricState {
    /// Revision of the metric's definition at the fetch; 0 if it does not exist.
    pub metric_revision: i64,
    /// Revision of the provider's definition; 0 if it does not exist.
    pub provider_revision: i64,
    /// The last valid value, unless it is older than `metric_max_age`.
    pub value: Option<Value>,
    /// The reason why the definition is wrong or the last fetch gave no value.
    pub reason: Option<Reason>,
    /// True if the definition is the fault (missing or invalid), not the fetch.
    pub undefined: bool,
    /// A remark for people about the value, such as the choice among several series.
    pub note: Option<String>,
    /// The stability of the values.
    pub trust: Trust,
}

/// The observed states of all referenced metrics. A metric that is absent here was never fetched.
#[derive(Debug, Clone, PartialEq)]
pub struct MetricsObserved {
    /// The store's revision that this observation covers: it has every metric that is referenced at this revision, in
    /// its definition of that revision or later. It may have newer metrics as well.
    pub revision: i64,
    /// End of the metrics round.
    pub at: OffsetDateTime,
    /// The state of each metric.
    pub metrics: BTreeMap<MetricKey, MetricState>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_means_a_metric_of_its_own_namespace_or_a_global_one() {
        let key = |namespaced, namespace| {
            MetricKey::from_reference(&MetricRef::new("load", 1.0, namespaced), namespace)
        };
        let name = "load".to_owned();
        let own = MetricKey { namespace: Some("n".to_owned()), name: name.clone() };
        assert_eq!(key(true, Some("n")), Some(own));
        let global = MetricKey { namespace: None, name };
        assert_eq!((key(false, Some("n")), key(false, None)), (Some(global.clone()), Some(global)));
        assert_eq!(key(true, None), None);
    }
}
