//! What is known of metrics, for decisions.

use std::collections::BTreeMap;

use madako_domain::placement::core::{GlobalMetric, Metric, MetricSpec};
use madako_domain::placement::fit::OfferedMetric;
use madako_domain::placement::kind::{Kind, ObjectKey};
use madako_domain::placement::metadata::Reason;
use madako_domain::placement::metrics::{MetricKey, MetricState, MetricsObserved, Value};
use madako_domain::placement::objects::Stored;
use time::OffsetDateTime;

use crate::config::{SchedulerConfig, later};
use crate::memory::Memory;
use crate::snapshot::{Seen, Snapshot};

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

/// Revisions of the definitions that a value comes by; 0: there is none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Definition {
    /// The metric's.
    pub(crate) metric: i64,
    /// Its provider's.
    pub(crate) provider: i64,
}

impl Definition {
    /// As a snapshot has it.
    pub(crate) fn of(snapshot: &Snapshot, metric: &Stored, spec: &MetricSpec) -> Self {
        let namespace = metric.key.namespace.as_deref();
        let kind = if namespace.is_some() { Kind::MetricsProvider } else { Kind::GlobalMetricsProvider };
        let provider = ObjectKey::new(kind, namespace, spec.provider.name.as_str());
        let provider = snapshot.get(&provider).map_or(0, |stored| stored.mod_revision);
        Self { metric: metric.mod_revision, provider }
    }

    /// Whether an answer is by this definition, or by one that is newer than the snapshot of a revision.
    fn answered_by(self, state: &MetricState, snapshot: i64) -> bool {
        let current = |defined: i64, answered: i64| answered == defined || answered > snapshot.max(defined);
        current(self.metric, state.metric_revision) && current(self.provider, state.provider_revision)
    }
}

/// Everything that is known of metrics.
pub(crate) struct Book<'a> {
    states: &'a BTreeMap<MetricKey, MetricState>,
    definitions: BTreeMap<MetricKey, Definition>,
    /// Revision of the snapshot that they are of.
    revision: i64,
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
        let global = snapshot.of::<GlobalMetric>().map(|Seen { stored, value }| (stored, &value.spec));
        let namespaced = snapshot.of::<Metric>().map(|Seen { stored, value }| (stored, &value.spec));
        let definitions = global.chain(namespaced).map(|(stored, spec)| {
            let key = MetricKey { namespace: stored.key.namespace.clone(), name: stored.key.name.clone() };
            (key, Definition::of(snapshot, stored, spec))
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

    /// What offers are made with.
    pub(crate) fn states(&self) -> &'a BTreeMap<MetricKey, MetricState> {
        self.states
    }

    /// What is known of a metric that something has.
    pub(crate) fn look(&mut self, metric: &OfferedMetric<'_>) -> Known {
        if let Some(reason) = metric.invalid() {
            return Known::Failing(Some(reason));
        }
        let defined = self.definitions.get(&metric.key).copied().unwrap_or_default();
        let fetched = metric.state.filter(|state| defined.answered_by(state, self.revision));
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
