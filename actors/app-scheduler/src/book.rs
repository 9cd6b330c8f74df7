//! What is known of metrics, for decisions.

use std::collections::BTreeMap;

use madako_messages::placement::core::{GlobalMetric, Metric};
use madako_messages::placement::fit::OfferedMetric;
use madako_messages::placement::metadata::{Reason, ReasonCode};
use madako_messages::placement::metrics::{MetricKey, MetricState, MetricsObserved, Value};
use time::OffsetDateTime;

use crate::config::{SchedulerConfig, later};
use crate::memory::Memory;
use crate::snapshot::Snapshot;

/// What is known of a metric, for a decision.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Known {
    /// It has a value.
    Value(Value),
    /// It was never fetched as it is defined now: decisions wait.
    Waiting {
        /// Until then.
        until: OffsetDateTime,
    },
    /// There is no value, and why, if that is known: a definition that is wrong, a value that is too old.
    Failing(Option<Reason>),
}

/// Everything that is known of metrics.
pub(crate) struct Book<'a> {
    states: &'a BTreeMap<MetricKey, MetricState>,
    /// Revision of each definition.
    definitions: BTreeMap<MetricKey, i64>,
    config: &'a SchedulerConfig,
    now: OffsetDateTime,
    waited: &'a BTreeMap<MetricKey, OffsetDateTime>,
    /// Since when is waited for what was asked for here.
    waiting: BTreeMap<MetricKey, OffsetDateTime>,
}

static NOTHING: BTreeMap<MetricKey, MetricState> = BTreeMap::new();

impl<'a> Book<'a> {
    pub(crate) fn new(
        snapshot: &Snapshot,
        observed: Option<&'a MetricsObserved>,
        config: &'a SchedulerConfig,
        memory: &'a Memory,
        now: OffsetDateTime,
    ) -> Self {
        let global = snapshot.of::<GlobalMetric>().map(|seen| seen.stored);
        let namespaced = snapshot.of::<Metric>().map(|seen| seen.stored);
        let definitions = global.chain(namespaced).map(|stored| {
            let key = MetricKey { namespace: stored.key.namespace.clone(), name: stored.key.name.clone() };
            (key, stored.mod_revision)
        });
        Self {
            states: observed.map_or(&NOTHING, |observed| &observed.metrics),
            definitions: definitions.collect(),
            config,
            now,
            waited: &memory.waiting,
            waiting: BTreeMap::new(),
        }
    }

    /// What offers are made with.
    pub(crate) fn states(&self) -> &'a BTreeMap<MetricKey, MetricState> {
        self.states
    }

    /// What is known of a metric that something has.
    pub(crate) fn look(&mut self, metric: &OfferedMetric<'_>) -> Known {
        if metric.reference.namespaced && metric.key.namespace.is_none() {
            return Known::Failing(Some(Reason::new(
                ReasonCode::InvalidMetric,
                format!(
                    "The metric {} is one of a namespace, and what refers to it has none",
                    metric.reference.name
                ),
            )));
        }
        let defined = self.definitions.get(&metric.key).copied().unwrap_or(0);
        let fetched = metric.state.filter(|state| state.metric_revision >= defined);
        match fetched.map(|state| (state.value, state.reason.as_ref(), state.undefined)) {
            Some((Some(value), _, false)) => Known::Value(value),
            Some((_, Some(reason), _)) => Known::Failing(Some(reason.clone())),
            _ => self.wait(metric),
        }
    }

    fn wait(&mut self, metric: &OfferedMetric<'_>) -> Known {
        let since = self.waited.get(&metric.key).copied().unwrap_or(self.now);
        let until = later(since, self.config.metric_wait);
        // It stays remembered afterwards, too: or else it would be waited for over and over.
        if !self.waiting.contains_key(&metric.key) {
            self.waiting.insert(metric.key.clone(), since);
        }
        if until > self.now {
            return Known::Waiting { until };
        }
        match metric.state.filter(|state| !state.undefined).and_then(|state| state.value) {
            // By a former definition, but young enough.
            Some(value) => Known::Value(value),
            None => Known::Failing(None),
        }
    }

    /// Since when is waited for metrics, to be remembered.
    pub(crate) fn into_waiting(self) -> BTreeMap<MetricKey, OffsetDateTime> {
        self.waiting
    }
}
