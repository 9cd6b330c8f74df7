//! The values of metrics that decisions use: a value, a wait for the first fetch, or a failure with its reason.

use std::collections::BTreeMap;

use madako_domain::placement::core::{GlobalMetric, Metric, MetricSpec};
use madako_domain::placement::fit::OfferedMetric;
use madako_domain::placement::kind::{Kind, ObjectKey};
use madako_domain::placement::metadata::Reason;
use madako_domain::placement::metrics::{MetricKey, MetricState, MetricsObserved, Value};
use madako_domain::placement::objects::Stored;
use time::OffsetDateTime;

use crate::config::{SchedulerConfig, add_duration};
use crate::memory::Memory;
use crate::snapshot::{Snapshot, TypedResource};

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum MetricValue {
    Value(Value),
    /// The metric was never fetched by its present definition: decisions wait.
    Waiting {
        until: OffsetDateTime,
    },
    /// There is no value; the reason, if known: an invalid definition or an expired value.
    Failing(Option<Reason>),
}

/// Revisions of a metric's definitions; 0: there is none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct DefinitionRevisions {
    pub(crate) metric: i64,
    pub(crate) provider: i64,
}

impl DefinitionRevisions {
    pub(crate) fn for_metric(snapshot: &Snapshot, metric: &Stored, spec: &MetricSpec) -> Self {
        let namespace = metric.key.namespace.as_deref();
        let kind = if namespace.is_some() { Kind::MetricsProvider } else { Kind::GlobalMetricsProvider };
        let provider = ObjectKey::new(kind, namespace, spec.provider.name.as_str());
        let provider = snapshot.get(&provider).map_or(0, |stored| stored.mod_revision);
        Self { metric: metric.mod_revision, provider }
    }

    /// True if an answer used this definition, or one newer than the snapshot.
    fn is_answered_by(self, state: &MetricState, snapshot: i64) -> bool {
        let current = |defined: i64, answered: i64| answered == defined || answered > snapshot.max(defined);
        current(self.metric, state.metric_revision) && current(self.provider, state.provider_revision)
    }
}

pub(crate) struct MetricValues<'a> {
    states: &'a BTreeMap<MetricKey, MetricState>,
    definitions: BTreeMap<MetricKey, DefinitionRevisions>,
    revision: i64,
    config: &'a SchedulerConfig,
    now: OffsetDateTime,
    waited: &'a BTreeMap<MetricKey, OffsetDateTime>,
    /// Start of the waits for metrics requested here.
    waiting: BTreeMap<MetricKey, OffsetDateTime>,
}

static NOTHING: BTreeMap<MetricKey, MetricState> = BTreeMap::new();

impl<'a> MetricValues<'a> {
    pub(crate) fn new(
        snapshot: &Snapshot,
        observed: Option<&'a MetricsObserved>,
        config: &'a SchedulerConfig,
        memory: &'a Memory,
        now: OffsetDateTime,
    ) -> Self {
        let global =
            snapshot.of::<GlobalMetric>().map(|TypedResource { stored, value }| (stored, &value.spec));
        let namespaced = snapshot.of::<Metric>().map(|TypedResource { stored, value }| (stored, &value.spec));
        let definitions = global.chain(namespaced).map(|(stored, spec)| {
            let key = MetricKey { namespace: stored.key.namespace.clone(), name: stored.key.name.clone() };
            (key, DefinitionRevisions::for_metric(snapshot, stored, spec))
        });
        Self {
            states: observed.map_or(&NOTHING, |observed| &observed.metrics),
            definitions: definitions.collect(),
            revision: snapshot.revision(),
            config,
            now,
            waited: &memory.waiting,
            waiting: BTreeMap::new(),
        }
    }

    pub(crate) fn states(&self) -> &'a BTreeMap<MetricKey, MetricState> {
        self.states
    }

    pub(crate) fn look_up_value(&mut self, metric: &OfferedMetric<'_>) -> MetricValue {
        if let Some(reason) = metric.invalid_reference() {
            return MetricValue::Failing(Some(reason));
        }
        let defined = self.definitions.get(&metric.key).copied().unwrap_or_default();
        let fetched = metric.state.filter(|state| defined.is_answered_by(state, self.revision));
        match fetched.map(|state| (state.value, state.reason.as_ref(), state.undefined)) {
            Some((Some(value), _, false)) => MetricValue::Value(value),
            Some((_, Some(reason), _)) => MetricValue::Failing(Some(reason.clone())),
            _ => self.wait(metric),
        }
    }

    fn wait(&mut self, metric: &OfferedMetric<'_>) -> MetricValue {
        let since = self.waited.get(&metric.key).copied().unwrap_or(self.now);
        let until = add_duration(since, self.config.metric_wait);
        // It stays remembered, or the wait would start over and over.
        if !self.waiting.contains_key(&metric.key) {
            self.waiting.insert(metric.key.clone(), since);
        }
        if until > self.now {
            return MetricValue::Waiting { until };
        }
        match metric.state.filter(|state| !state.undefined).and_then(|state| state.value) {
            // A value by an earlier definition that has not expired.
            Some(value) => MetricValue::Value(value),
            None => MetricValue::Failing(None),
        }
    }

    /// Start of waits, for the memory.
    pub(crate) fn into_waiting(self) -> BTreeMap<MetricKey, OffsetDateTime> {
        self.waiting
    }
}
