//! The labels, custom resources and metrics that a cluster, cloud or project offers to an application or cluster,
//! inherited ones included.

use std::collections::BTreeMap;

use super::{ComparedMetrics, MetricFault, MissingValue};
use crate::placement::infrastructure::{Cloud, CloudKind, GlobalCloud};
use crate::placement::kubernetes::Cluster;
use crate::placement::metadata::{Metadata, MetricRef, Reason, ReasonCode};
use crate::placement::metrics::{MetricKey, MetricState};
use crate::placement::object_value::Object;
use crate::placement::openstack::Project;

/// A global or a namespaced cloud.
#[derive(Debug, Clone, Copy)]
pub enum AnyCloud<'a> {
    /// A cloud for all namespaces.
    Global(&'a GlobalCloud),
    /// A cloud of one namespace.
    Namespaced(&'a Cloud),
}

impl<'a> AnyCloud<'a> {
    /// The cloud, if the resource is one.
    #[must_use]
    pub fn from_object(object: &'a Object) -> Option<Self> {
        match object {
            Object::GlobalCloud(cloud) => Some(Self::Global(cloud)),
            Object::Cloud(cloud) => Some(Self::Namespaced(cloud)),
            _ => None,
        }
    }

    /// The metadata of either kind.
    #[must_use]
    pub fn metadata(self) -> &'a Metadata {
        match self {
            Self::Global(cloud) => &cloud.metadata,
            Self::Namespaced(cloud) => &cloud.metadata,
        }
    }

    /// The specification by type of cloud.
    #[must_use]
    pub fn kind(self) -> &'a CloudKind {
        match self {
            Self::Global(cloud) => &cloud.spec.value,
            Self::Namespaced(cloud) => &cloud.spec.value,
        }
    }

    /// The namespace of the cloud's metrics; `None` for a global cloud.
    fn namespace(self) -> Option<&'a str> {
        match self {
            Self::Global(_) => None,
            Self::Namespaced(cloud) => cloud.metadata.namespace.as_deref(),
        }
    }
}

/// A metric of a place.
#[derive(Debug, Clone)]
pub struct OfferedMetric<'a> {
    /// The metric; without a namespace if it is [`OfferedMetric::invalid_reference`].
    pub key: MetricKey,
    /// The reference with its weight.
    pub reference: &'a MetricRef,
    /// True if the metric comes from the cloud, not from the cluster itself.
    pub inherited: bool,
    /// The observed state; `None` if the metric was never fetched.
    pub state: Option<&'a MetricState>,
}

impl OfferedMetric<'_> {
    /// The reason why the reference is invalid: it asks for a namespaced metric, but its resource (such as a global
    /// cloud) has no namespace.
    #[must_use]
    pub fn invalid_reference(&self) -> Option<Reason> {
        let reference = self.reference;
        (reference.namespaced && self.key.namespace.is_none()).then(|| {
            let name = &reference.name;
            let message = format!(
                "The metric {name} belongs to a namespace, but the referring resource has no namespace"
            );
            Reason::new(ReasonCode::InvalidMetric, message)
        })
    }
}

/// The labels, custom resources and metrics of a place.
#[derive(Debug, Clone)]
pub struct Offer<'a> {
    labels: BTreeMap<&'a str, &'a str>,
    custom_resources: &'a [String],
    metrics: Vec<OfferedMetric<'a>>,
    /// The number that constraints compare, or the reason why there is none, by the metric's name.
    compared: BTreeMap<&'a str, Result<f64, MissingValue>>,
}

impl<'a> Offer<'a> {
    /// The offer of a cluster. `cloud` is the cloud that it is bound to, if there is one. A cluster inherits the
    /// cloud's labels if it asks for that, and always the labels that its own cloud constraints name; the same holds
    /// for metrics. A cloud's label takes precedence over the cluster's label of the same name, as in Krake.
    #[must_use]
    pub fn from_cluster(
        cluster: &'a Cluster,
        cloud: Option<AnyCloud<'a>>,
        values: &'a BTreeMap<MetricKey, MetricState>,
        compared: ComparedMetrics,
    ) -> Self {
        let mut labels = label_texts(&cluster.metadata);
        let namespace = cluster.metadata.namespace.as_deref();
        let mut metrics: Vec<_> =
            cluster.spec.metrics.iter().map(|metric| offer_of(metric, namespace, false, values)).collect();
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
                // Skip a reference that the cluster has as well; it would count twice.
                if inherited && metrics.iter().all(|known| known.reference != metric) {
                    metrics.push(offer_of(metric, cloud.namespace(), true, values));
                }
            }
        }
        Self::new(labels, &cluster.spec.custom_resources, metrics, compared)
    }

    /// The offer of a cloud to clusters.
    #[must_use]
    pub fn from_cloud(
        cloud: AnyCloud<'a>,
        values: &'a BTreeMap<MetricKey, MetricState>,
        compared: ComparedMetrics,
    ) -> Self {
        let metrics = cloud.kind().metrics().iter();
        let metrics = metrics.map(|metric| offer_of(metric, cloud.namespace(), false, values)).collect();
        Self::new(label_texts(cloud.metadata()), &[], metrics, compared)
    }

    /// The offer of a project to Magnum clusters.
    #[must_use]
    pub fn from_project(
        project: &'a Project,
        values: &'a BTreeMap<MetricKey, MetricState>,
        compared: ComparedMetrics,
    ) -> Self {
        let namespace = project.metadata.namespace.as_deref();
        let metrics = project.spec.metrics.iter();
        let metrics = metrics.map(|metric| offer_of(metric, namespace, false, values)).collect();
        Self::new(label_texts(&project.metadata), &[], metrics, compared)
    }

    fn new(
        labels: BTreeMap<&'a str, &'a str>,
        custom_resources: &'a [String],
        metrics: Vec<OfferedMetric<'a>>,
        compared: ComparedMetrics,
    ) -> Self {
        let values = metrics
            .iter()
            .map(|metric| (metric.reference.name.as_str(), value_for_comparison(metric, compared)));
        // Of several references with one name the last counts, as in Krake.
        let compared = values.collect();
        Self { labels, custom_resources, metrics, compared }
    }

    /// The value of a label.
    #[must_use]
    pub fn label(&self, key: &str) -> Option<&'a str> {
        self.labels.get(key).copied()
    }

    /// The custom resources, by the names of their definitions.
    #[must_use]
    pub fn custom_resources(&self) -> &'a [String] {
        self.custom_resources
    }

    /// The metrics, own ones first. A metric may occur twice with different weights.
    #[must_use]
    pub fn metrics(&self) -> &[OfferedMetric<'a>] {
        &self.metrics
    }

    /// The number that a constraint on the metric compares.
    ///
    /// # Errors
    /// The reason why there is no number.
    pub fn compared_value(&self, metric: &str) -> Result<f64, &MissingValue> {
        self.compared.get(metric).map_or(Err(&MissingValue::NotReferred), |value| value.as_ref().copied())
    }
}

fn label_texts(metadata: &Metadata) -> BTreeMap<&str, &str> {
    metadata.labels.iter().map(|(name, value)| (name, value.as_str())).collect()
}

fn offer_of<'a>(
    reference: &'a MetricRef,
    namespace: Option<&str>,
    inherited: bool,
    values: &'a BTreeMap<MetricKey, MetricState>,
) -> OfferedMetric<'a> {
    let meant = MetricKey::from_reference(reference, namespace);
    let state = meant.as_ref().and_then(|key| values.get(key));
    let key = meant.unwrap_or_else(|| MetricKey { namespace: None, name: reference.name.clone() });
    OfferedMetric { key, reference, inherited, state }
}

fn value_for_comparison(metric: &OfferedMetric<'_>, compared: ComparedMetrics) -> Result<f64, MissingValue> {
    if let Some(invalid) = metric.invalid_reference() {
        return Err(MissingValue::NoValue { reason: Some(MetricFault::from(&invalid)) });
    }
    let state = metric.state.ok_or(MissingValue::NeverFetched)?;
    let value = state
        .value
        .ok_or_else(|| MissingValue::NoValue { reason: state.reason.as_ref().map(MetricFault::from) })?;
    Ok(match compared {
        ComparedMetrics::Value => value.raw,
        ComparedMetrics::Weighted => value.normalized * metric.reference.weight,
    })
}
