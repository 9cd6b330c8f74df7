//! Explains one decision with every candidate, and the effect of another metric value or of a missing cluster.
//!
//! Guarantees: an explanation comes from a real pass over the same snapshot, so that it never contradicts the
//! decision. It is computed on demand; passes do not pay for it. The explanations of a list share one pass.

use std::collections::BTreeMap;
use std::sync::Arc;

use madako_domain::placement::core::{GlobalMetric, Metric, MetricSpec};
use madako_domain::placement::decision::{
    Candidate, Decision, DropReason, ExplainError, Explanation, MetricPart, WhatIf,
};
use madako_domain::placement::fit::{Requirements, UnmetConstraint, unavailable_reasons};
use madako_domain::placement::infrastructure::CloudState;
use madako_domain::placement::kind::{Kind, ObjectKey};
use madako_domain::placement::kubernetes::{Application, Cluster, ClusterState};
use madako_domain::placement::metadata::Reason;
use madako_domain::placement::metrics::{MetricKey, MetricState, MetricsObserved, Trust, Value};
use madako_domain::placement::object_value::Object;
use madako_domain::placement::objects::Stored;
use madako_json::krake::entries::Entries;
use time::OffsetDateTime;

use crate::config::Candidates;
use crate::gc;
use crate::limits::EXPLAINED_PASS_AGE;
use crate::metric_values::{DefinitionRevisions, MetricValue, MetricValues};
use crate::pass::{PassInput, Scopes, make_pass};
use crate::scope::{ConstraintResult, Scope};
use crate::snapshot::TypedResource;
use crate::target::{Availability, Target};

/// The decisions of the pass of the last explanation without an assumption. The owner drops it when the snapshot, the metrics
/// or the memory change.
#[derive(Debug, Default)]
pub struct ExplainedPass(Option<(OffsetDateTime, BTreeMap<ObjectKey, Decision>)>);

impl ExplainedPass {
    /// The decision of this pass, or of a new one if this pass is not of the last [`EXPLAINED_PASS_AGE`].
    fn decide(&mut self, input: &PassInput<'_>, key: &ObjectKey) -> Option<Decision> {
        let is_recent = |at: OffsetDateTime| (at..at + EXPLAINED_PASS_AGE).contains(&input.now);
        if !self.0.as_ref().is_some_and(|(at, _)| is_recent(*at)) {
            self.0 = Some((input.now, make_pass(input).decisions));
        }
        self.0.as_ref().and_then(|(_, decisions)| decisions.get(key).cloned())
    }
}

/// Explains the decision on an application. `last`: the kept decision on it; `pass`: the pass of earlier explanations.
///
/// # Errors
/// The application or an assumed object does not exist, or the assumption is invalid.
pub fn explain(
    input: &PassInput<'_>,
    key: &ObjectKey,
    what_if: &WhatIf,
    last: Option<Decision>,
    pass: &mut ExplainedPass,
) -> Result<Explanation, ExplainError> {
    let unknown = || ExplainError::Unknown { application: key.clone() };
    let resource = input.snapshot.typed::<Application>(key).ok_or_else(unknown)?;
    let replaced = replace_metrics(input, key, what_if)?;
    let left_out = candidates_left_out(input, key, what_if)?;
    let recovered =
        replaced.as_ref().map(|metrics| input.snapshot.clone().with(list_recovered(input, metrics)));
    let whole = recovered.as_ref().unwrap_or(input.snapshot);
    let kept = (!left_out.is_empty()).then(|| whole.clone().without(&left_out));
    let metrics = replaced.as_ref().or(input.metrics);
    let what_if_input = PassInput { snapshot: kept.as_ref().unwrap_or(whole), metrics, ..*input };
    let decision = match replaced.is_none() && kept.is_none() {
        true => pass.decide(&what_if_input, key),
        false => make_pass(&what_if_input).decisions.remove(key),
    };
    let decision = decision.ok_or_else(unknown)?;

    // Candidates include the clusters that the question leaves out.
    let shown = PassInput { snapshot: whole, ..what_if_input };
    let going = gc::collect_garbage(shown.snapshot).mark;
    let mut values = MetricValues::new(shown.snapshot, shown.metrics, shown.config, shown.memory, shown.now);
    let mut scopes = Scopes::new(&shown, &going, &mut values);
    let (clusters, clouds) = scopes.for_namespace(key.namespace.as_deref());
    let application = resource.value;
    let current = application.status.scheduled_to.as_ref().and_then(|to| to.key());
    let show = ExplanationBuilder {
        input: &shown,
        wants: Requirements::from(application),
        current,
        left_out: &left_out,
    };
    let creates = application.spec.auto_cluster_create && input.config.cluster_creation.tosca.is_some();
    let clusters = show.describe_all(clusters);
    let clouds = clouds.into_iter().filter(|_| creates).flat_map(|scope| show.describe_all(scope)).collect();
    Ok(Explanation {
        application: key.clone(),
        revision: input.snapshot.revision(),
        decision,
        last,
        stickiness: input.config.stickiness,
        clusters,
        clouds,
    })
}

struct ExplanationBuilder<'p, 'a> {
    input: &'p PassInput<'a>,
    wants: Requirements<'a>,
    current: Option<ObjectKey>,
    left_out: &'p [ObjectKey],
}

impl<'a> ExplanationBuilder<'_, 'a> {
    fn describe_all(&self, scope: &mut Scope<'a>) -> Vec<Candidate> {
        let class = scope.evaluate_requirements(&self.wants);
        scope
            .targets()
            .iter()
            .enumerate()
            .map(|(at, target)| self.describe_candidate(target, at, &class))
            .collect()
    }

    fn describe_candidate(&self, target: &Target<'a>, at: usize, class: &ConstraintResult) -> Candidate {
        let current = self.current.as_ref() == Some(target.key());
        let known = target.metric_values.iter().all(|known| matches!(known, MetricValue::Value(_)));
        let stickiness = if current { self.input.config.stickiness } else { 0.0 };
        Candidate {
            target: target.key().clone(),
            current,
            dropped: self.describe_dropped(target, at, class),
            metrics: self.describe_metrics(target),
            base: known.then(|| target.base.score()),
            score: known.then(|| target.base.with_stickiness(stickiness)),
        }
    }

    fn describe_dropped(
        &self,
        target: &Target<'a>,
        at: usize,
        class: &ConstraintResult,
    ) -> Option<DropReason> {
        if self.left_out.contains(target.key()) {
            return Some(DropReason::LeftOut);
        }
        let mut unmet = match &target.stored.object {
            // A cluster whose only fault is missing metric values counts as online; the failing metric is shown
            // below.
            Object::Cluster(cluster) if cluster.status.state != ClusterState::FailingMetrics => {
                unavailable_reasons(cluster)
            }
            object if object.metadata().deleted.is_some() => {
                vec![UnmetConstraint::Deleted]
            }
            _ => Vec::new(),
        };
        unmet.extend(Requirements { metrics: &[], ..self.wants }.unmet_requirements(&target.offer));
        if unmet.is_empty() && target.availability == Availability::FailingMetrics {
            return Some(drop_for_metrics(target));
        }
        if unmet.is_empty()
            && let Some((metric, _)) = target.awaited_metrics().next()
        {
            return Some(DropReason::WaitsForMetric { metric });
        }
        let metrics = Requirements { metrics: self.wants.metrics, ..Requirements::default() };
        unmet.extend(metrics.unmet_requirements(&target.offer));
        if !unmet.is_empty() {
            return Some(DropReason::Unmet { unmet });
        }
        let best = class.best_without(&[]).filter(|(rank, _)| rank.has_metrics);
        (class.fit.contains(at) && !target.base.has_metrics && best.is_some())
            .then_some(DropReason::WithoutMetrics)
    }

    fn describe_metrics(&self, target: &Target<'a>) -> Vec<MetricPart> {
        let parts = target.offer.metrics().iter().zip(&target.metric_values);
        parts
            .map(|(metric, known)| {
                let value = match known {
                    MetricValue::Value(value) => Some(*value),
                    _ => metric.state.and_then(|state| state.value),
                };
                let trust = metric.state.map(|state| &state.trust);
                MetricPart {
                    metric: metric.key.to_string(),
                    weight: metric.reference.weight,
                    value: value.map(|value| value.raw),
                    normalized: value.map(|value| value.normalized),
                    age: value.map(|value| (self.input.now - value.at).as_seconds_f64().max(0.0)),
                    oscillates: trust.is_some_and(Trust::is_oscillating),
                    range: trust.and_then(|trust| trust.range),
                    since: trust.map(|trust| trust.since),
                    note: metric.state.and_then(|state| state.note.clone()),
                }
            })
            .collect()
    }
}

/// The failing metric of a place: one that fails now, or one that its stored state shows as failing.
fn drop_for_metrics(target: &Target<'_>) -> DropReason {
    if let Some((metric, why)) = target.failing_metrics().next() {
        return DropReason::FailingMetrics { metric: metric.to_owned(), why: why.cloned() };
    }
    match metrics_state(&target.stored.object).and_then(|(_, reasons)| reasons.iter().next()) {
        Some((metric, why)) => {
            DropReason::FailingMetrics { metric: metric.to_owned(), why: Some(why.clone()) }
        }
        None => DropReason::Unmet {
            unmet: vec![UnmetConstraint::NotOnline { state: ClusterState::FailingMetrics }],
        },
    }
}

/// The stored state: true if it shows failing metrics, and the reasons.
fn metrics_state(object: &Object) -> Option<(bool, &Entries<Reason>)> {
    Some(match object {
        Object::Cluster(it) => (it.status.state == ClusterState::FailingMetrics, &it.status.metrics_reasons),
        Object::Cloud(it) => (it.status.state == CloudState::FailingMetrics, &it.status.metrics_reasons),
        Object::GlobalCloud(it) => {
            (it.status.state == CloudState::FailingMetrics, &it.status.metrics_reasons)
        }
        _ => return None,
    })
}

/// Clusters and clouds that are stored as failing and would recover with these values, in recovered form.
fn list_recovered(input: &PassInput<'_>, metrics: &MetricsObserved) -> Vec<Arc<Stored>> {
    let input = PassInput { metrics: Some(metrics), ..*input };
    let going = gc::collect_garbage(input.snapshot).mark;
    let mut values = MetricValues::new(input.snapshot, input.metrics, input.config, input.memory, input.now);
    let scopes = Scopes::new(&input, &going, &mut values);
    let fails = |object: &Object| metrics_state(object).is_some_and(|(fails, _)| fails);
    scopes
        .all_targets()
        .filter(|target| fails(&target.stored.object))
        .filter(|target| target.metric_values.iter().all(|known| matches!(known, MetricValue::Value(_))))
        .map(|target| Arc::new(as_online_cluster(target.stored)))
        .collect()
}

fn as_online_cluster(stored: &Stored) -> Stored {
    let mut object = stored.object.clone();
    match &mut object {
        Object::Cluster(it) => it.status.state = ClusterState::Online,
        Object::Cloud(it) => it.status.state = CloudState::Online,
        Object::GlobalCloud(it) => it.status.state = CloudState::Online,
        _ => {}
    }
    Stored { key: stored.key.clone(), object, wire: stored.wire.clone(), ..*stored }
}

/// Metrics with other values; `None`: unchanged.
fn replace_metrics(
    input: &PassInput<'_>,
    application: &ObjectKey,
    what_if: &WhatIf,
) -> Result<Option<MetricsObserved>, ExplainError> {
    if what_if.with.is_empty() {
        return Ok(None);
    }
    let nothing = MetricsObserved { revision: 0, at: input.now, metrics: BTreeMap::new() };
    let mut observed = input.metrics.cloned().unwrap_or(nothing);
    for (name, raw) in &what_if.with {
        let meant = metrics_named(input, application, what_if, name);
        if meant.is_empty() {
            let (metric, application) = (name.clone(), application.clone());
            return Err(ExplainError::UnknownMetric { metric, application });
        }
        for (key, defined, spec) in meant {
            let value = validate_assumed_value(name, spec, *raw, input.now)?;
            let known = observed.metrics.remove(&key);
            let trust = known.map_or(Trust { since: input.now, range: None, turns: 0 }, |state| state.trust);
            let state = MetricState {
                metric_revision: defined.metric,
                provider_revision: defined.provider,
                value: Some(value),
                reason: None,
                undefined: false,
                note: Some("assumed for this explanation".to_owned()),
                trust,
            };
            observed.metrics.insert(key, state);
        }
    }
    Ok(Some(observed))
}

/// Metrics that a constraint on a cluster may name: the global metric, and those of the namespaces of candidate
/// clusters. `<namespace>/<name>` selects one of them, in the form that candidates show.
fn metrics_named<'a>(
    input: &PassInput<'a>,
    application: &ObjectKey,
    what_if: &WhatIf,
    name: &str,
) -> Vec<(MetricKey, DefinitionRevisions, &'a MetricSpec)> {
    let all = input.config.candidates == Candidates::All;
    let snapshot = input.snapshot;
    let global = snapshot.of::<GlobalMetric>().map(|TypedResource { stored, value }| (stored, &value.spec));
    let namespaced = snapshot.of::<Metric>().map(|TypedResource { stored, value }| (stored, &value.spec));
    let namespaced = namespaced.filter(|(stored, _)| {
        (all || stored.key.namespace == application.namespace)
            && what_if.includes_namespace(stored.key.namespace.as_deref())
    });
    global
        .chain(namespaced)
        .map(|(stored, spec)| {
            let key = MetricKey { namespace: stored.key.namespace.clone(), name: stored.key.name.clone() };
            (key, DefinitionRevisions::for_metric(snapshot, stored, spec), spec)
        })
        .filter(|(key, _, _)| key.name == name || key.to_string() == name)
        .collect()
}

#[expect(
    clippy::cast_precision_loss,
    reason = "allowed values are small; Krake compares them as floats, too"
)]
fn validate_assumed_value(
    metric: &str,
    spec: &MetricSpec,
    raw: f64,
    now: OffsetDateTime,
) -> Result<Value, ExplainError> {
    let bad =
        |why: String| Err(ExplainError::BadValue { metric: metric.to_owned(), value: raw.to_string(), why });
    if !(spec.min..=spec.max).contains(&raw) {
        return bad(format!("its range is {} to {}", spec.min, spec.max));
    }
    if !spec.allowed_values.is_empty() && !spec.allowed_values.iter().any(|allowed| *allowed as f64 == raw) {
        return bad(format!("its allowed values are {:?}", spec.allowed_values));
    }
    let range = spec.max - spec.min;
    if range <= 0.0 || !range.is_finite() {
        return bad("its range is empty or infinite".to_owned());
    }
    Ok(Value { raw, normalized: (raw - spec.min) / range, at: now })
}

fn candidates_left_out(
    input: &PassInput<'_>,
    application: &ObjectKey,
    what_if: &WhatIf,
) -> Result<Vec<ObjectKey>, ExplainError> {
    what_if
        .without
        .iter()
        .map(|name| {
            find_cluster(input, application, what_if, name).ok_or_else(|| ExplainError::UnknownCluster {
                cluster: name.clone(),
                application: application.clone(),
            })
        })
        .collect()
}

/// Finds a cluster by name or `<namespace>/<name>`. A cluster of the application's namespace precedes others; others
/// count only if they are candidates.
fn find_cluster(
    input: &PassInput<'_>,
    application: &ObjectKey,
    what_if: &WhatIf,
    name: &str,
) -> Option<ObjectKey> {
    let all = input.config.candidates == Candidates::All;
    let own = ObjectKey::new(Kind::Cluster, application.namespace.as_deref(), name);
    let clusters = input.snapshot.of::<Cluster>().map(|resource| &resource.stored.key);
    let mut clusters = clusters.filter(|key| what_if.includes_namespace(key.namespace.as_deref()));
    if input.snapshot.get(&own).is_some() && what_if.includes_namespace(own.namespace.as_deref()) {
        return Some(own);
    }
    let named = |key: &&ObjectKey| match name.split_once('/') {
        Some((namespace, name)) => key.namespace.as_deref() == Some(namespace) && key.name == name,
        None => key.name == name,
    };
    clusters.find(named).filter(|key| all || key.namespace == application.namespace).cloned()
}
