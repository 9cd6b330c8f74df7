//! What is known of the values of metrics: the fetcher's word to the scheduler.

use std::collections::BTreeMap;
use std::fmt;

use time::OffsetDateTime;

use super::metadata::{MetricRef, Reason};

/// Which metric.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct MetricKey {
    /// Its namespace; `None` for a global one.
    pub namespace: Option<String>,
    /// Its name.
    pub name: String,
}

impl MetricKey {
    /// The metric that a reference means where it stands in a resource of `namespace`. `None`: a namespaced metric,
    /// in a resource without a namespace (such as a global cloud); there is none, and Krake calls it an invalid one.
    #[must_use]
    pub fn of(reference: &MetricRef, namespace: Option<&str>) -> Option<Self> {
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

/// A value that a provider gave and that its metric allows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Value {
    /// As the provider gave it.
    pub raw: f64,
    /// Brought to the range from 0 to 1 by the metric's minimum and maximum.
    pub normalized: f64,
    /// When it was fetched.
    pub at: OffsetDateTime,
}

/// How much a metric's values can be trusted; what is lost with the leader begins afresh.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Trust {
    /// Since when it was watched; what follows knows nothing older.
    pub since: OffsetDateTime,
    /// The least and the greatest value of the last hour.
    pub range: Option<(f64, f64)>,
    /// Changes of direction above 5 % of its range within the last hour.
    pub turns: u32,
}

impl Trust {
    /// More changes of direction in an hour than this are an oscillation (the number).
    pub const MOST_TURNS: u32 = 6;

    /// Whether it swings to and fro.
    #[must_use]
    pub fn oscillates(&self) -> bool {
        self.turns > Self::MOST_TURNS
    }
}

/// What is known of one metric.
#[derive(Debug, Clone, PartialEq)]
pub struct MetricState {
    /// Revision of the metric's definition that this was fetched by; 0: there is none.
    pub metric_revision: i64,
    /// Revision of its provider's definition; 0: there is none.
    pub provider_revision: i64,
    /// The last good value, as long as it is not too old (`metric_max_age`).
    pub value: Option<Value>,
    /// Why the definition is wrong, or why the last fetch gave nothing.
    pub reason: Option<Reason>,
    /// Whether it is the definition that is wrong (missing or invalid), and not a fetch.
    pub undefined: bool,
    /// What people should know of how the value was had, such as which of several series it is.
    pub note: Option<String>,
    /// How much it can be trusted.
    pub trust: Trust,
}

/// What is known of all metrics that something refers to. A metric that is not in it was never asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct MetricsObserved {
    /// The store's revision whose definitions and references it answers: every metric that something refers to at
    /// this revision is in it, as it was defined then or later. Newer metrics may be in it as well.
    pub revision: i64,
    /// When the round ended.
    pub at: OffsetDateTime,
    /// What is known of each.
    pub metrics: BTreeMap<MetricKey, MetricState>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_means_a_metric_of_its_own_namespace_or_a_global_one() {
        let key = |namespaced, namespace| MetricKey::of(&MetricRef::new("load", 1.0, namespaced), namespace);
        let name = "load".to_owned();
        let own = MetricKey { namespace: Some("n".to_owned()), name: name.clone() };
        assert_eq!(key(true, Some("n")), Some(own));
        let global = MetricKey { namespace: None, name };
        assert_eq!((key(false, Some("n")), key(false, None)), (Some(global.clone()), Some(global)));
        assert_eq!(key(true, None), None);
    }
}
