//! Whether a place can take something: what is wanted, what a place offers, and each want that it does not meet.
//!
//! For: the scheduler, which filters by it and explains with it, and the leader's gate, which judges bindings by it
//! (invariant I11). Places are clusters for applications, clouds for clusters, projects for Magnum clusters.
//!
//! Guarantees: who lacks the label or the metric never meets a constraint on it, negations included; a stored
//! constraint that cannot be read is never met. [`Wants::met_by`] is true exactly when [`Wants::unmet`] is empty,
//! and allocates nothing: it is asked for every application and every cluster.
//!
//! Does not: look anything up in a store, fetch, score, or decide.

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

/// Which number of a metric its constraints compare (setting `scheduler.metric_constraints`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Compared {
    /// The value that the metric has, as its provider gave it (the seed's words).
    #[default]
    Value,
    /// The normalized value times the weight that the place gives the metric, as Krake 1.0 does.
    Weighted,
}

/// What somebody wants of the place where it is to go.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wants<'a> {
    /// Constraints on its labels.
    pub labels: &'a [LabelConstraint],
    /// Custom resources that it must have.
    pub custom_resources: &'a [String],
    /// Constraints on its metrics.
    pub metrics: &'a [MetricConstraint],
}

impl<'a> From<&'a Application> for Wants<'a> {
    /// What an application wants of its cluster.
    fn from(application: &'a Application) -> Self {
        let wants = &application.spec.constraints.cluster;
        Self {
            labels: wants.labels.as_deref().unwrap_or_default(),
            custom_resources: &wants.custom_resources,
            metrics: wants.metrics.as_deref().unwrap_or_default(),
        }
    }
}

impl<'a> From<&'a Cluster> for Wants<'a> {
    /// What a cluster wants of its cloud.
    fn from(cluster: &'a Cluster) -> Self {
        let wants = &cluster.spec.constraints.cloud;
        Self {
            labels: wants.labels.as_deref().unwrap_or_default(),
            custom_resources: &[],
            metrics: wants.metrics.as_deref().unwrap_or_default(),
        }
    }
}

impl<'a> From<&'a MagnumCluster> for Wants<'a> {
    /// What a Magnum cluster wants of its project.
    fn from(cluster: &'a MagnumCluster) -> Self {
        let project = cluster.spec.constraints.as_ref().and_then(|wants| wants.project.as_ref());
        let labels = project.and_then(|project| project.labels.as_deref()).unwrap_or_default();
        Self { labels, ..Self::default() }
    }
}

impl Wants<'_> {
    /// Whether a place meets all of it.
    #[must_use]
    pub fn met_by(&self, offer: &Offer<'_>) -> bool {
        self.labels.iter().all(|constraint| label(constraint, offer).matched())
            && self.custom_resources.iter().all(|name| has_custom_resource(offer.custom_resources(), name))
            && self.metrics.iter().all(|constraint| metric(constraint, offer).0.matched())
    }

    /// Everything that a place does not meet, in the order in which it was written.
    #[must_use]
    pub fn unmet(&self, offer: &Offer<'_>) -> Vec<Unmet> {
        let labels = self.labels.iter().filter_map(|constraint| unmet_label(constraint, offer));
        let resources = self
            .custom_resources
            .iter()
            .filter(|name| !has_custom_resource(offer.custom_resources(), name))
            .map(|name| Unmet::CustomResource { name: name.clone() });
        let metrics = self.metrics.iter().filter_map(|constraint| unmet_metric(constraint, offer));
        labels.chain(resources).chain(metrics).collect()
    }
}

/// Why a cluster takes no applications at all; empty when it does.
#[must_use]
pub fn unavailable(cluster: &Cluster) -> Vec<Unmet> {
    let deleted = cluster.metadata.deleted.is_some().then_some(Unmet::Deleted);
    let state = cluster.status.state;
    let offline = (state != ClusterState::Online).then_some(Unmet::NotOnline { state });
    deleted.into_iter().chain(offline).collect()
}

/// Everything that keeps an application off a cluster: its state, and each constraint that it does not meet.
/// Empty: it fits.
#[must_use]
pub fn unmet(application: &Application, cluster: &Cluster, offer: &Offer<'_>) -> Vec<Unmet> {
    let mut all = unavailable(cluster);
    all.extend(Wants::from(application).unmet(offer));
    all
}

fn label<'a>(constraint: &'a LabelConstraint, offer: &Offer<'a>) -> LabelVerdict<'a> {
    constraint.evaluate_value(constraint.rule().ok().and_then(|rule| offer.label(&rule.key)))
}

fn metric<'a, 'o>(
    constraint: &'a MetricConstraint,
    offer: &'o Offer<'_>,
) -> (MetricVerdict<'a>, Option<&'o Lack>) {
    match constraint.metric().map(|name| offer.compared(name)) {
        Some(Ok(value)) => (constraint.evaluate(Some(value)), None),
        Some(Err(lack)) => (constraint.evaluate(None), Some(lack)),
        None => (constraint.evaluate(None), None),
    }
}

fn unmet_label(constraint: &LabelConstraint, offer: &Offer<'_>) -> Option<Unmet> {
    let canonical = || constraint.canonical().to_owned();
    Some(match label(constraint, offer) {
        LabelVerdict::Matched { .. } => return None,
        LabelVerdict::Missing => Unmet::Label { constraint: canonical(), got: None },
        LabelVerdict::Differs { value } => {
            Unmet::Label { constraint: canonical(), got: Some(value.to_owned()) }
        }
        LabelVerdict::Unreadable { error } => {
            Unmet::Unreadable { constraint: canonical(), why: error.to_string() }
        }
    })
}

fn unmet_metric(constraint: &MetricConstraint, offer: &Offer<'_>) -> Option<Unmet> {
    let canonical = || constraint.canonical().to_owned();
    let (verdict, lack) = metric(constraint, offer);
    Some(match verdict {
        MetricVerdict::Matched { .. } => return None,
        MetricVerdict::Missing => {
            Unmet::MetricMissing { constraint: canonical(), lack: lack.cloned().unwrap_or(Lack::NotReferred) }
        }
        MetricVerdict::NotFinite => Unmet::MetricMissing { constraint: canonical(), lack: Lack::NotFinite },
        MetricVerdict::Differs { value } => Unmet::Metric { constraint: canonical(), got: value },
        MetricVerdict::Unreadable { error } => {
            Unmet::Unreadable { constraint: canonical(), why: error.to_string() }
        }
    })
}

/// Why there is no value to compare.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "lack", rename_all = "snake_case")]
pub enum Lack {
    /// The place does not refer to such a metric.
    NotReferred,
    /// It was never asked for: whoever decides waits for it.
    NeverFetched,
    /// Its definition is wrong, or the last good value is too old.
    NoValue {
        /// What is wrong, if that is known.
        reason: Option<Cause>,
    },
    /// It is infinite or no number.
    NotFinite,
}

/// What is wrong with a metric: Krake's code, and words. In plain fields, so that decisions that were kept can be read
/// whatever they are part of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cause {
    /// Krake's code.
    pub code: String,
    /// What happened, for people.
    pub message: String,
}

impl From<&Reason> for Cause {
    fn from(reason: &Reason) -> Self {
        Self { code: reason.code.as_str().to_owned(), message: reason.message.clone() }
    }
}

impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotReferred => f.write_str("it does not refer to this metric"),
            Self::NeverFetched => f.write_str("the metric was never fetched"),
            Self::NoValue { reason: None } => f.write_str("the metric has no value"),
            Self::NoValue { reason: Some(reason) } => {
                write!(f, "the metric has no value: {}: {}", reason.code, reason.message)
            }
            Self::NotFinite => f.write_str("the metric's value is no finite number"),
        }
    }
}

/// Something that keeps somebody off a place. A constraint stands here in its canonical form; one that cannot be
/// read, as it was written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "unmet", rename_all = "snake_case")]
pub enum Unmet {
    /// The place is being deleted.
    Deleted,
    /// The cluster is not online.
    NotOnline {
        /// Its state.
        #[serde(deserialize_with = "state")]
        state: ClusterState,
    },
    /// A constraint on a label.
    Label {
        /// The constraint.
        constraint: String,
        /// The label's value; `None`: there is no such label.
        got: Option<String>,
    },
    /// A custom resource that it does not have.
    CustomResource {
        /// Its name.
        name: String,
    },
    /// A constraint on a metric that has another value.
    Metric {
        /// The constraint.
        constraint: String,
        /// The number that was compared.
        got: f64,
    },
    /// A constraint on a metric that has none.
    MetricMissing {
        /// The constraint.
        constraint: String,
        /// Why there is no value.
        lack: Lack,
    },
    /// A stored constraint that cannot be read.
    Unreadable {
        /// The constraint.
        constraint: String,
        /// Where, and what could stand there.
        why: String,
    },
}

fn state<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ClusterState, D::Error> {
    let name = String::deserialize(deserializer)?;
    ClusterState::from_name(&name).ok_or_else(|| D::Error::custom(format!("no state of a cluster: {name}")))
}

impl fmt::Display for Unmet {
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
