//! Definitions of metrics and references to them.
//!
//! A reference of a namespaced resource to a namespaced metric means the metric of the same namespace, with a
//! provider of the same namespace. Any other reference means a global metric with a global provider (Krake's rules).
//! A cluster that inherits its cloud's metrics adds no references, since its cloud is global or in the same
//! namespace.
//!
//! A constraint on a metric names no namespace: it applies to the metric of this name that the cluster (or cloud)
//! has. The namespaced and the global metric of the name are fetched if they are defined. Undefined ones are no
//! error: a cluster without the metric does not match.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use madako_domain::placement::MetricConstraint;
use madako_domain::placement::core::{MetricSpec, MetricsProviderKind};
use madako_domain::placement::kind::{Kind, ObjectKey};
use madako_domain::placement::metadata::{MetricRef, Reason, ReasonCode};
use madako_domain::placement::metrics::MetricKey;
use madako_domain::placement::object_value::Object;
use madako_domain::placement::objects::{Change, Stored};

use crate::bounds;
use crate::limits::MOST_SHOWN;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProviderKey {
    /// `None`: global.
    pub namespace: Option<String>,
    pub name: String,
}

impl fmt::Display for ProviderKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{namespace}/{}", shorten_name(&self.name)),
            None => f.write_str(&shorten_name(&self.name)),
        }
    }
}

/// Origin of a metric, by its definition and its provider's.
#[derive(Debug, Clone)]
pub struct Source {
    pub metric_revision: i64,
    pub provider_revision: i64,
    pub provider: ProviderKey,
    pub kind: Arc<MetricsProviderKind>,
    /// Bounds of the metric, and its name on the provider.
    pub spec: Arc<MetricSpec>,
}

impl Source {
    /// The metric's name on the provider.
    #[must_use]
    pub fn name_at_provider(&self) -> &str {
        &self.spec.provider.metric
    }

    /// True if both values have one origin. A table stays the same origin when its values change.
    #[must_use]
    pub fn same_origin(&self, other: &Self) -> bool {
        let is_static = |kind: &MetricsProviderKind| matches!(kind, MetricsProviderKind::Static(_));
        self.provider == other.provider
            && self.name_at_provider() == other.name_at_provider()
            && (self.kind == other.kind || (is_static(&self.kind) && is_static(&other.kind)))
    }
}

/// Error of a metric without an origin.
#[derive(Debug, Clone, PartialEq)]
pub struct UndefinedMetric {
    /// Revision of the metric's definition; 0: there is none.
    pub metric_revision: i64,
    /// Revision of the provider's definition; 0: there is none.
    pub provider_revision: i64,
    /// With Krake's code.
    pub reason: Reason,
}

#[derive(Debug, Default)]
pub struct DefinitionCatalog {
    metrics: BTreeMap<MetricKey, (i64, Arc<MetricSpec>)>,
    providers: BTreeMap<ProviderKey, (i64, Arc<MetricsProviderKind>)>,
    references: BTreeMap<ObjectKey, References>,
    referred: BTreeMap<MetricKey, usize>,
    /// Number of resources with a constraint that may mean the metric.
    mentioned: BTreeMap<MetricKey, usize>,
}

#[derive(Debug, Default, PartialEq)]
struct References {
    referred: BTreeSet<MetricKey>,
    mentioned: BTreeSet<MetricKey>,
}

impl DefinitionCatalog {
    /// Adds or replaces a resource. Returns whether the wanted metrics or their definitions may have changed.
    pub fn put(&mut self, stored: &Stored) -> bool {
        let key = &stored.key;
        match &stored.object {
            Object::Metric(metric) => self.put_metric(stored, &metric.spec),
            Object::GlobalMetric(metric) => self.put_metric(stored, &metric.spec),
            Object::MetricsProvider(provider) => self.put_provider(stored, &provider.spec.value),
            Object::GlobalMetricsProvider(provider) => self.put_provider(stored, &provider.spec.value),
            _ => {
                let references = find_metric_references(key, &stored.object);
                return self.set_references(key, references);
            }
        }
        true
    }

    /// Removes a resource. Returns the same.
    pub fn remove(&mut self, key: &ObjectKey) -> bool {
        match key.kind {
            Kind::Metric | Kind::GlobalMetric => self.metrics.remove(&metric_key(key)).is_some(),
            Kind::MetricsProvider | Kind::GlobalMetricsProvider => {
                self.providers.remove(&provider_key(key)).is_some()
            }
            _ => self.set_references(key, References::default()),
        }
    }

    /// Applies a change. Returns the same.
    pub fn apply(&mut self, change: &Change) -> bool {
        match &change.after {
            Some(stored) => self.put(stored),
            None => self.remove(&change.key),
        }
    }

    #[must_use]
    pub fn wanted_metrics(&self) -> BTreeSet<MetricKey> {
        let defined = self.mentioned.keys().filter(|key| self.metrics.contains_key(key));
        self.referred.keys().chain(defined).cloned().collect()
    }

    /// Resolves the origin of a metric.
    ///
    /// # Errors
    /// Its definition or its provider's is missing or invalid.
    pub fn resolve(&self, key: &MetricKey) -> Result<Source, UndefinedMetric> {
        let undefined = |metric_revision, provider_revision, code, message| UndefinedMetric {
            metric_revision,
            provider_revision,
            reason: Reason::new(code, message),
        };
        let Some((metric_revision, spec)) = self.metrics.get(key) else {
            let message = format!("no metric {key} is defined, or its definition cannot be read");
            return Err(undefined(0, 0, ReasonCode::UnknownMetric, message));
        };
        let provider = ProviderKey { namespace: key.namespace.clone(), name: spec.provider.name.clone() };
        let found = self.providers.get(&provider);
        let provider_revision = found.map_or(0, |(revision, _)| *revision);
        if let Err(why) = bounds::check_bounds(spec) {
            let message = format!("metric {key} has an invalid definition: {why}");
            return Err(undefined(*metric_revision, provider_revision, ReasonCode::InvalidMetric, message));
        }
        let Some((_, kind)) = found else {
            let message = format!(
                "metric {key}: no metrics provider {provider} is defined, or its definition cannot be read"
            );
            return Err(undefined(*metric_revision, 0, ReasonCode::UnknownMetricsProvider, message));
        };
        Ok(Source {
            metric_revision: *metric_revision,
            provider_revision,
            provider,
            kind: Arc::clone(kind),
            spec: Arc::clone(spec),
        })
    }

    fn put_metric(&mut self, stored: &Stored, spec: &MetricSpec) {
        self.metrics.insert(metric_key(&stored.key), (stored.mod_revision, Arc::new(spec.clone())));
    }

    fn put_provider(&mut self, stored: &Stored, kind: &MetricsProviderKind) {
        self.providers.insert(provider_key(&stored.key), (stored.mod_revision, Arc::new(kind.clone())));
    }

    /// Sets the references of a resource. Returns whether a metric gained its first or lost its last reference.
    fn set_references(&mut self, key: &ObjectKey, new: References) -> bool {
        let nothing = References::default();
        let old = if new == nothing {
            self.references.remove(key).unwrap_or_default()
        } else {
            if self.references.get(key) == Some(&new) {
                return false;
            }
            let counted = References { referred: new.referred.clone(), mentioned: new.mentioned.clone() };
            self.references.insert(key.clone(), counted).unwrap_or_default()
        };
        let referred = count_references(&mut self.referred, &old.referred, &new.referred);
        let mentioned = count_references(&mut self.mentioned, &old.mentioned, &new.mentioned);
        referred || mentioned
    }
}

/// Replaces old references by new ones in the counts. Returns whether a metric gained its first or lost its last.
fn count_references(
    counts: &mut BTreeMap<MetricKey, usize>,
    old: &BTreeSet<MetricKey>,
    new: &BTreeSet<MetricKey>,
) -> bool {
    let mut differs = false;
    for key in new.difference(old) {
        let count = counts.entry(key.clone()).or_default();
        differs |= *count == 0;
        *count += 1;
    }
    for key in old.difference(new) {
        if let Some(count) = counts.get_mut(key) {
            *count -= 1;
            if *count == 0 {
                counts.remove(key);
                differs = true;
            }
        }
    }
    differs
}

/// The metrics that a resource refers to. Magnum clusters rank by their projects' metrics, never by their own.
fn find_metric_references(key: &ObjectKey, object: &Object) -> References {
    let (metrics, constraints): (&[MetricRef], Option<&Vec<MetricConstraint>>) = match object {
        Object::Cluster(cluster) => (&cluster.spec.metrics, cluster.spec.constraints.cloud.metrics.as_ref()),
        Object::Cloud(cloud) => (cloud.spec.value.metrics(), None),
        Object::GlobalCloud(cloud) => (cloud.spec.value.metrics(), None),
        Object::Project(project) => (&project.spec.metrics, None),
        Object::Application(app) => (&[], app.spec.constraints.cluster.metrics.as_ref()),
        _ => (&[], None),
    };
    let namespace = key.namespace.as_deref();
    let names = constraints.into_iter().flatten().filter_map(MetricConstraint::metric);
    let global = |name: &str| MetricKey { namespace: None, name: name.to_owned() };
    let mentioned = names.flat_map(|name| {
        let own =
            namespace.map(|namespace| MetricKey { namespace: Some(namespace.to_owned()), ..global(name) });
        own.into_iter().chain([global(name)])
    });
    References {
        referred: metrics.iter().filter_map(|metric| MetricKey::from_reference(metric, namespace)).collect(),
        mentioned: mentioned.collect(),
    }
}

fn metric_key(key: &ObjectKey) -> MetricKey {
    MetricKey { namespace: key.namespace.clone(), name: key.name.clone() }
}

fn provider_key(key: &ObjectKey) -> ProviderKey {
    ProviderKey { namespace: key.namespace.clone(), name: key.name.clone() }
}

/// A name for messages, cleaned and shortened.
#[must_use]
pub fn shorten_name(name: &str) -> String {
    let clean: String = name.chars().take(MOST_SHOWN).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if clean.len() < name.len() { format!("{clean}...") } else { clean }
}
