//! Evaluates the requirements of an application or cluster on a place: the requirements, the offer of the place, and
//! each unmet requirement.
//!
//! For: the scheduler, which filters and explains with it, and the leader, which checks bindings with it
//! (invariant I11). Places are clusters for applications, clouds for clusters, projects for Magnum clusters.
//!
//! Guarantees: a place without the label or the metric never meets a constraint on it, negations included. A stored
//! constraint that cannot be parsed is never met. [`Requirements::are_met_by`] is true exactly when [`Requirements::unmet`] is empty,
//! and allocates nothing, because the scheduler calls it for every pair of application and cluster.
//!
//! Does not: read a store, fetch, score, or decide.

mod offer;

use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

pub use self::offer::{AnyCloud, Offer, OfferedMetric};
use super::constraint::{LabelVerdict, MetricVerdict, has_custom_resource};
use super::kubernetes::{Application, Cluster, ClusterState};
use super::metadata::Reason;
use super::openstack::MagnumCluster;
use super::{LabelConstraint, MetricConstraint};

/// The number that constraints compare for a metric (setting `scheduler.metric_constraints`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[derive(Serialize, Deserialize, strum::EnumString, strum::VariantNames)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum ComparedMetrics {
    /// The metric's value as its provider gave it (Krake's rule).
    #[default]
    Value,
    /// The normalized value times the place's weight of the metric, as in Krake 1.0.
    Weighted,
}

/// The requirements on a place.
#[derive(Debug, Clone, Copy, Default)]
pub struct Requirements<'a> {
    /// Constraints on its labels.
    pub labels: &'a [LabelConstraint],
    /// Custom resources that it must have.
    pub custom_resources: &'a [String],
    /// Constraints on its metrics.
    pub metrics: &'a [MetricConstraint],
}

impl<'a> From<&'a Application> for Requirements<'a> {
    fn from(application: &'a Application) -> Self {
        let wants = &application.spec.constraints.cluster;
        Self {
            labels: wants.labels.as_deref().unwrap_or_default(),
            custom_resources: &wants.custom_resources,
            metrics: wants.metrics.as_deref().unwrap_or_default(),
        }
    }
}

impl<'a> From<&'a Cluster> for Requirements<'a> {
    fn from(cluster: &'a Cluster) -> Self {
        let wants = &cluster.spec.constraints.cloud;
        Self {
            labels: wants.labels.as_deref().unwrap_or_default(),
            custom_resources: &[],
            metrics: wants.metrics.as_deref().unwrap_or_default(),
        }
    }
}

impl<'a> From<&'a MagnumCluster> for Requirements<'a> {
    fn from(cluster: &'a MagnumCluster) -> Self {
        let project = cluster.spec.constraints.as_ref().and_then(|wants| wants.project.as_ref());
        let labels = project.and_then(|project| project.labels.as_deref()).unwrap_or_default();
        Self { labels, ..Self::default() }
    }
}

impl Requirements<'_> {
    /// True if a place meets all requirements.
    #[must_use]
    pub fn are_met_by(&self, offer: &Offer<'_>) -> bool {
        self.labels.iter().all(|constraint| evaluate_label(constraint, offer).is_match())
            && self.custom_resources.iter().all(|name| has_custom_resource(offer.custom_resources(), name))
            && self.metrics.iter().all(|constraint| evaluate_metric(constraint, offer).0.is_match())
    }

    /// All unmet requirements, in the order of the specification.
    #[must_use]
    pub fn unmet_requirements(&self, offer: &Offer<'_>) -> Vec<UnmetConstraint> {
        let labels = self.labels.iter().filter_map(|constraint| unmet_label(constraint, offer));
        let resources = self
            .custom_resources
            .iter()
            .filter(|name| !has_custom_resource(offer.custom_resources(), name))
            .map(|name| UnmetConstraint::CustomResource { name: name.clone() });
        let metrics = self.metrics.iter().filter_map(|constraint| unmet_metric(constraint, offer));
        labels.chain(resources).chain(metrics).collect()
    }
}

/// The reasons why a cluster accepts no applications at all; empty if it accepts them.
#[must_use]
pub fn unavailable_reasons(cluster: &Cluster) -> Vec<UnmetConstraint> {
    let deleted = cluster.metadata.deleted.is_some().then_some(UnmetConstraint::Deleted);
    let state = cluster.status.state;
    let offline = (state != ClusterState::Online).then_some(UnmetConstraint::NotOnline { state });
    deleted.into_iter().chain(offline).collect()
}

/// All reasons why a cluster cannot take an application: the cluster's state, and each unmet constraint. Empty if it
/// fits.
#[must_use]
pub fn unmet_requirements(
    application: &Application,
    cluster: &Cluster,
    offer: &Offer<'_>,
) -> Vec<UnmetConstraint> {
    let mut all = unavailable_reasons(cluster);
    all.extend(Requirements::from(application).unmet_requirements(offer));
    all
}

fn evaluate_label<'a>(constraint: &'a LabelConstraint, offer: &Offer<'a>) -> LabelVerdict<'a> {
    constraint.evaluate_value(constraint.rule().ok().and_then(|rule| offer.label(&rule.key)))
}

fn evaluate_metric<'a, 'o>(
    constraint: &'a MetricConstraint,
    offer: &'o Offer<'_>,
) -> (MetricVerdict<'a>, Option<&'o MissingValue>) {
    match constraint.metric().map(|name| offer.compared_value(name)) {
        Some(Ok(value)) => (constraint.evaluate(Some(value)), None),
        Some(Err(lack)) => (constraint.evaluate(None), Some(lack)),
        None => (constraint.evaluate(None), None),
    }
}

fn unmet_label(constraint: &LabelConstraint, offer: &Offer<'_>) -> Option<UnmetConstraint> {
    let canonical = || constraint.canonical_text().to_owned();
    Some(match evaluate_label(constraint, offer) {
        LabelVerdict::Matched { .. } => return None,
        LabelVerdict::Missing => UnmetConstraint::Label { constraint: canonical(), got: None },
        LabelVerdict::Differs { value } => {
            UnmetConstraint::Label { constraint: canonical(), got: Some(value.to_owned()) }
        }
        LabelVerdict::Unreadable { error } => {
            UnmetConstraint::Unreadable { constraint: canonical(), why: error.to_string() }
        }
    })
}

fn unmet_metric(constraint: &MetricConstraint, offer: &Offer<'_>) -> Option<UnmetConstraint> {
    let canonical = || constraint.canonical_text().to_owned();
    let (verdict, lack) = evaluate_metric(constraint, offer);
    Some(match verdict {
        MetricVerdict::Matched { .. } => return None,
        MetricVerdict::Missing => UnmetConstraint::MetricMissing {
            constraint: canonical(),
            lack: lack.cloned().unwrap_or(MissingValue::NotReferred),
        },
        MetricVerdict::NotFinite => {
            UnmetConstraint::MetricMissing { constraint: canonical(), lack: MissingValue::NotFinite }
        }
        MetricVerdict::Differs { value } => UnmetConstraint::Metric { constraint: canonical(), got: value },
        MetricVerdict::Unreadable { error } => {
            UnmetConstraint::Unreadable { constraint: canonical(), why: error.to_string() }
        }
    })
}

/// The reason why there is no value to compare.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "lack", rename_all = "snake_case")]
pub enum MissingValue {
    /// The place does not refer to the metric.
    NotReferred,
    /// The metric was never fetched; the scheduler waits for it.
    NeverFetched,
    /// The metric's definition is wrong, or its last valid value is too old.
    NoValue {
        /// The fault, if known.
        reason: Option<MetricFault>,
    },
    /// The value is infinite or NaN.
    NotFinite,
}

/// The fault of a metric: Krake's code and a message. Its fields are plain types, so that stored decisions stay
/// readable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetricFault {
    /// Krake's code of the fault.
    pub code: String,
    /// The message for people.
    pub message: String,
}

impl From<&Reason> for MetricFault {
    fn from(reason: &Reason) -> Self {
        Self { code: reason.code.name().to_owned(), message: reason.message.clone() }
    }
}

impl fmt::Display for MissingValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotReferred => f.write_str("it does not refer to this metric"),
            Self::NeverFetched => f.write_str("the metric was never fetched"),
            Self::NoValue { reason: None } => f.write_str("the metric has no value"),
            Self::NoValue { reason: Some(reason) } => {
                write!(f, "the metric has no value: {}: {}", reason.code, reason.message)
            }
            Self::NotFinite => f.write_str("the metric's value is not a finite number"),
        }
    }
}

/// An unmet requirement. Constraints have their canonical form; one that cannot be parsed has its original text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "unmet", rename_all = "snake_case")]
pub enum UnmetConstraint {
    /// The place is being deleted.
    Deleted,
    /// The cluster is not online.
    NotOnline {
        /// Present state of the cluster.
        #[serde(deserialize_with = "deserialize_state")]
        state: ClusterState,
    },
    /// A label constraint is not met.
    Label {
        /// Text of the constraint.
        constraint: String,
        /// The label's value; `None` if the label is absent.
        got: Option<String>,
    },
    /// A required custom resource is absent.
    CustomResource {
        /// The name of the custom resource.
        name: String,
    },
    /// A metric constraint is not met.
    Metric {
        /// Text of the constraint.
        constraint: String,
        /// The number that the constraint compared.
        got: f64,
    },
    /// A metric constraint has no value to compare.
    MetricMissing {
        /// Text of the constraint.
        constraint: String,
        /// The reason why the number is missing.
        lack: MissingValue,
    },
    /// A stored constraint cannot be parsed.
    Unreadable {
        /// The text of the constraint.
        constraint: String,
        /// The error, with its column and the allowed tokens.
        why: String,
    },
}

fn deserialize_state<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ClusterState, D::Error> {
    let name = String::deserialize(deserializer)?;
    name.parse().map_err(|_| D::Error::custom(format!("no state of a cluster: {name}")))
}

impl fmt::Display for UnmetConstraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deleted => f.write_str("it is being deleted"),
            Self::NotOnline { state } => write!(f, "its state is {state}, not {}", ClusterState::Online),
            Self::Label { constraint, got: None } => write!(f, "{constraint}: it has no such label"),
            Self::Label { constraint, got: Some(value) } => write!(f, "{constraint}: the label is {value}"),
            Self::CustomResource { name } => write!(f, "it does not have the custom resource {name}"),
            Self::Metric { constraint, got } => write!(f, "{constraint}: the metric is {got}"),
            Self::MetricMissing { constraint, lack } => write!(f, "{constraint}: {lack}"),
            Self::Unreadable { constraint, why } => write!(f, "{constraint}: {why}"),
        }
    }
}

#[cfg(test)]
mod tests;
