//! What a place offers: its labels, custom resources and metrics, its own and those that it inherits.

use std::collections::BTreeMap;

use super::{Cause, Compared, Lack};
use crate::placement::infrastructure::{Cloud, CloudKind, GlobalCloud};
use crate::placement::kubernetes::Cluster;
use crate::placement::metadata::{Metadata, MetricRef, Reason, ReasonCode};
use crate::placement::metrics::{MetricKey, MetricState};
use crate::placement::object_value::Object;
use crate::placement::openstack::Project;

/// A cloud of one namespace or of everybody's.
#[derive(Debug, Clone, Copy)]
pub enum AnyCloud<'a> {
    /// Of everybody's.
    Global(&'a GlobalCloud),
    /// Of one namespace.
    Namespaced(&'a Cloud),
}

impl<'a> AnyCloud<'a> {
    /// The cloud that a resource is.
    #[must_use]
    pub fn of(object: &'a Object) -> Option<Self> {
        match object {
            Object::GlobalCloud(cloud) => Some(Self::Global(cloud)),
            Object::Cloud(cloud) => Some(Self::Namespaced(cloud)),
            _ => None,
        }
    }

    /// Its metadata.
    #[must_use]
    pub fn metadata(self) -> &'a Metadata {
        match self {
            Self::Global(cloud) => &cloud.metadata,
            Self::Namespaced(cloud) => &cloud.metadata,
        }
    }

    /// What it is.
    #[must_use]
    pub fn kind(self) -> &'a CloudKind {
        match self {
            Self::Global(cloud) => &cloud.spec.value,
            Self::Namespaced(cloud) => &cloud.spec.value,
        }
    }

    /// The namespace of the metrics that it refers to.
    fn namespace(self) -> Option<&'a str> {
        match self {
            Self::Global(_) => None,
            Self::Namespaced(cloud) => cloud.metadata.namespace.as_deref(),
        }
    }
}

/// A metric that a place has.
#[derive(Debug, Clone)]
pub struct OfferedMetric<'a> {
    /// Which; without a namespace if it is [`OfferedMetric::invalid`].
    pub key: MetricKey,
    /// The reference, with its weight.
    pub reference: &'a MetricRef,
    /// Whether it is the cloud's, and not the cluster's own.
    pub inherited: bool,
    /// What is known of it; `None`: it was never asked for.
    pub state: Option<&'a MetricState>,
}

impl OfferedMetric<'_> {
    /// Why there can be no such metric: it would be one of a namespace, and what refers to it (such as a global cloud)
    /// has none.
    #[must_use]
    pub fn invalid(&self) -> Option<Reason> {
        let reference = self.reference;
        (reference.namespaced && self.key.namespace.is_none()).then(|| {
            let name = &reference.name;
            let message = format!("The metric {name} is one of a namespace, and what refers to it has none");
            Reason::new(ReasonCode::InvalidMetric, message)
        })
    }
}

/// What a place offers.
#[derive(Debug, Clone)]
pub struct Offer<'a> {
    labels: BTreeMap<&'a str, &'a str>,
    custom_resources: &'a [String],
    metrics: Vec<OfferedMetric<'a>>,
    /// What a constraint on the metric of a name compares.
    compared: BTreeMap<&'a str, Result<f64, Lack>>,
}

impl<'a> Offer<'a> {
    /// What a cluster offers. `cloud` is the one that it is bound to, if there is one: a cluster has its labels if
    /// it inherits labels, those labels of it that its own constraints on clouds name, and likewise its metrics. A
    /// cloud's label counts before the cluster's own of the same name, as in Krake.
    #[must_use]
    pub fn of_cluster(
        cluster: &'a Cluster,
        cloud: Option<AnyCloud<'a>>,
        values: &'a BTreeMap<MetricKey, MetricState>,
        compared: Compared,
    ) -> Self {
        let mut labels = labels(&cluster.metadata);
        let namespace = cluster.metadata.namespace.as_deref();
        let mut metrics: Vec<_> =
            cluster.spec.metrics.iter().map(|metric| offered(metric, namespace, false, values)).collect();
        if let Some(cloud) = cloud {
            let wants = &cluster.spec.constraints.cloud;
            let named = |name: &str| {
                wants.labels.iter().flatten().any(|wanted| wanted.rule().is_ok_and(|rule| rule.key == name))
            };
            labels.extend(
                cloud
                    .metadata()
                    .labels
                    .iter()
                    .filter(|(name, _)| cluster.metadata.inherit_labels || named(name))
                    .map(|(name, value)| (name, value.as_str())),
            );
            let named = |name: &str| {
                wants.metrics.iter().flatten().any(|wanted| wanted.metric().is_some_and(|own| own == name))
            };
            for metric in cloud.kind().metrics() {
                let inherited = cluster.spec.inherit_metrics || named(&metric.name);
                // A reference that the cluster has as well would count twice.
                if inherited && metrics.iter().all(|known| known.reference != metric) {
                    metrics.push(offered(metric, cloud.namespace(), true, values));
                }
            }
        }
        Self::new(labels, &cluster.spec.custom_resources, metrics, compared)
    }

    /// What a cloud offers to clusters.
    #[must_use]
    pub fn of_cloud(
        cloud: AnyCloud<'a>,
        values: &'a BTreeMap<MetricKey, MetricState>,
        compared: Compared,
    ) -> Self {
        let metrics = cloud.kind().metrics().iter();
        let metrics = metrics.map(|metric| offered(metric, cloud.namespace(), false, values)).collect();
        Self::new(labels(cloud.metadata()), &[], metrics, compared)
    }

    /// What a project offers to Magnum clusters.
    #[must_use]
    pub fn of_project(
        project: &'a Project,
        values: &'a BTreeMap<MetricKey, MetricState>,
        compared: Compared,
    ) -> Self {
        let namespace = project.metadata.namespace.as_deref();
        let metrics = project.spec.metrics.iter();
        let metrics = metrics.map(|metric| offered(metric, namespace, false, values)).collect();
        Self::new(labels(&project.metadata), &[], metrics, compared)
    }

    fn new(
        labels: BTreeMap<&'a str, &'a str>,
        custom_resources: &'a [String],
        metrics: Vec<OfferedMetric<'a>>,
        compared: Compared,
    ) -> Self {
        let values = metrics.iter().map(|metric| (metric.reference.name.as_str(), number(metric, compared)));
        // Of several references by one name the last counts, as in Krake.
        let compared = values.collect();
        Self { labels, custom_resources, metrics, compared }
    }

    /// The value of a label.
    #[must_use]
    pub fn label(&self, key: &str) -> Option<&'a str> {
        self.labels.get(key).copied()
    }

    /// Its custom resources.
    #[must_use]
    pub fn custom_resources(&self) -> &'a [String] {
        self.custom_resources
    }

    /// Its metrics, its own first; a metric may be there twice, with different weights.
    #[must_use]
    pub fn metrics(&self) -> &[OfferedMetric<'a>] {
        &self.metrics
    }

    /// What a constraint on a metric compares.
    ///
    /// # Errors
    /// Why there is nothing to compare.
    pub fn compared(&self, metric: &str) -> Result<f64, &Lack> {
        self.compared.get(metric).map_or(Err(&Lack::NotReferred), |value| value.as_ref().copied())
    }
}

fn labels(metadata: &Metadata) -> BTreeMap<&str, &str> {
    metadata.labels.iter().map(|(name, value)| (name, value.as_str())).collect()
}

fn offered<'a>(
    reference: &'a MetricRef,
    namespace: Option<&str>,
    inherited: bool,
    values: &'a BTreeMap<MetricKey, MetricState>,
) -> OfferedMetric<'a> {
    let meant = MetricKey::of(reference, namespace);
    let state = meant.as_ref().and_then(|key| values.get(key));
    let key = meant.unwrap_or_else(|| MetricKey { namespace: None, name: reference.name.clone() });
    OfferedMetric { key, reference, inherited, state }
}

fn number(metric: &OfferedMetric<'_>, compared: Compared) -> Result<f64, Lack> {
    if let Some(invalid) = metric.invalid() {
        return Err(Lack::NoValue { reason: Some(Cause::from(&invalid)) });
    }
    let state = metric.state.ok_or(Lack::NeverFetched)?;
    let value =
        state.value.ok_or_else(|| Lack::NoValue { reason: state.reason.as_ref().map(Cause::from) })?;
    Ok(match compared {
        Compared::Value => value.raw,
        Compared::Weighted => value.normalized * metric.reference.weight,
    })
}
