//! The scheduler's decision about an application with its reasons, as data: for the store, for `explain`, for people.
//!
//! For: programs that show decisions. A [`Decision`] is small and stored for each application; an [`Explanation`]
//! names every candidate and is computed on request.
//!
//! Guarantees: every later version can read a stored decision, as long as it knows the words in it.
//!
//! Does not make decisions.

use std::collections::BTreeSet;

use madako_json::named;
use serde::{Deserialize, Serialize};
use strum::{IntoStaticStr, VariantNames};
use time::OffsetDateTime;

use super::fit::UnmetConstraint;
use super::kind::{Kind, ObjectKey};
use super::metadata::Reason;
pub use crate::limits::MAX_METRICS_NAMED;

/// The decision about one application.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// Wall-clock time of the decision, in UTC.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// The result of the decision.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// The best candidate: the cluster that the application is or would be bound to.
    pub best: Option<RankedCluster>,
    /// The best of the other candidates.
    pub runner_up: Option<RankedCluster>,
    /// The gain of a move, for bound applications.
    pub gain: Option<Gain>,
    /// The number of clusters by result of filtering.
    pub clusters: Counts,
}

/// The name in a decision that stands for a hidden resource. It is not a valid name of a resource.
pub const HIDDEN: &str = "(hidden)";

impl Decision {
    /// Removes the data of resources that `shows` excludes: their names, their scores, and the names of their
    /// metrics. The name of `bound` stays, because the application itself names it.
    pub fn hide_resources(&mut self, shows: impl Fn(&ObjectKey) -> bool, bound: Option<&ObjectKey>) {
        let own = match &self.outcome {
            Outcome::Stays { on, .. } | Outcome::Held { on, .. } | Outcome::Moved { from: on, .. } => {
                Some(on)
            }
            _ => None,
        };
        let mut compares_hidden = own.is_some_and(|own| !shows(own));
        for ranked in [&mut self.best, &mut self.runner_up] {
            compares_hidden |= ranked.take_if(|ranked| !shows(&ranked.target)).is_some();
        }
        self.gain.take_if(|_| compares_hidden);
        let hide = |key: &mut ObjectKey| {
            if !shows(key) && bound != Some(key) {
                *key = ObjectKey::new(key.kind, None, HIDDEN);
            }
        };
        let hide_metrics = |metrics: &mut Vec<String>| {
            metrics.retain(|metric| {
                let namespace = metric.split_once('/').map(|(namespace, _)| namespace);
                namespace
                    .is_none_or(|namespace| shows(&ObjectKey::new(Kind::Cluster, Some(namespace), HIDDEN)))
            });
        };
        match &mut self.outcome {
            Outcome::Bound { to } => hide(to),
            Outcome::Stays { on, why } => {
                hide(on);
                if let Stay::WaitsForMetric { metrics, .. } = why {
                    hide_metrics(metrics);
                }
            }
            Outcome::Moved { from: on, to, .. } | Outcome::Held { on, to, .. } => {
                hide(on);
                hide(to);
            }
            Outcome::Creates { cluster, cloud } => {
                hide(cluster);
                hide(cloud);
            }
            Outcome::WaitsForCluster { cluster } => hide(cluster),
            Outcome::WaitsForMetric { metrics, .. } => hide_metrics(metrics),
            Outcome::Degraded { .. } | Outcome::Failed | Outcome::LeftAlone { .. } => {}
        }
    }
}

/// The result of a decision.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, IntoStaticStr, VariantNames)]
#[serde(tag = "outcome", rename_all = "snake_case")]
#[strum(serialize_all = "kebab-case")]
pub enum Outcome {
    /// The application is bound for the first time.
    Bound {
        /// The target cluster.
        #[serde(with = "key")]
        to: ObjectKey,
    },
    /// The application stays on its cluster.
    Stays {
        /// The cluster that it is bound to.
        #[serde(with = "key")]
        on: ObjectKey,
        /// The reason to stay.
        why: Stay,
    },
    /// The application moves to another cluster.
    Moved {
        /// The cluster that it leaves.
        #[serde(with = "key")]
        from: ObjectKey,
        /// The cluster that it moves to.
        #[serde(with = "key")]
        to: ObjectKey,
        /// The reason to move.
        why: Move,
    },
    /// The application should move, but a rule holds the move back.
    Held {
        /// Its present cluster.
        #[serde(with = "key")]
        on: ObjectKey,
        /// The intended cluster, or the cloud on which a cluster would be created.
        #[serde(with = "key")]
        to: ObjectKey,
        /// The reason for the move.
        why: Move,
        /// The rule that holds it back.
        rule: Hold,
    },
    /// No cluster fits; the scheduler retries.
    Degraded {
        /// Remaining attempts; -1 means no limit.
        retries: i64,
        /// Time at which the next attempt counts. The application is bound earlier if a cluster fits. `None` without
        /// a limit of attempts: a change triggers the retry.
        #[serde(with = "time::serde::rfc3339::option")]
        retry: Option<OffsetDateTime>,
    },
    /// No cluster fits, and no attempts remain.
    Failed,
    /// A metric that the decision needs was never fetched.
    WaitsForMetric {
        /// The metrics, at most [`MAX_METRICS_NAMED`].
        metrics: Vec<String>,
        /// Time at which the scheduler decides without them.
        #[serde(with = "time::serde::rfc3339")]
        until: OffsetDateTime,
    },
    /// A cluster is created for the application.
    Creates {
        /// Key of the new cluster.
        #[serde(with = "key")]
        cluster: ObjectKey,
        /// The cloud that hosts the new cluster.
        #[serde(with = "key")]
        cloud: ObjectKey,
    },
    /// The cluster that was created for the application is not online yet.
    WaitsForCluster {
        /// Key of the created cluster.
        #[serde(with = "key")]
        cluster: ObjectKey,
    },
    /// The scheduler is not responsible for the application.
    LeftAlone {
        /// The reason to leave it alone.
        why: LeftAlone,
    },
}

named!(Outcome names);

/// The reason why an application stays.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum Stay {
    /// No other cluster is better by more than the stickiness.
    Best,
    /// It was bound less than `reschedule_after` ago, and its cluster fits.
    Recent {
        /// End of that time.
        #[serde(with = "time::serde::rfc3339")]
        until: OffsetDateTime,
    },
    /// Its cluster is not online, but for less than `reschedule_after`.
    NotOnline {
        /// End of that time.
        #[serde(with = "time::serde::rfc3339")]
        until: OffsetDateTime,
    },
    /// Values of its cluster's metrics are unavailable; that alone causes no move.
    FailingMetrics,
    /// A metric that the decision needs was never fetched.
    WaitsForMetric {
        /// The metrics, at most [`MAX_METRICS_NAMED`].
        metrics: Vec<String>,
        /// Time at which the scheduler decides without them.
        #[serde(with = "time::serde::rfc3339")]
        until: OffsetDateTime,
    },
    /// The application sets `migration: false`.
    MigrationDisabled,
    /// A move of the application failed recently (`status.migration_timeout`).
    MigrationTimeout {
        /// End of the time-out.
        #[serde(with = "time::serde::rfc3339")]
        until: OffsetDateTime,
    },
}

/// The reason for a move.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum Move {
    /// The new cluster is better by more than the stickiness.
    Better,
    /// Its cluster was not online for the whole of `reschedule_after`.
    NotOnline,
    /// Its cluster no longer meets its constraints.
    Misfit,
    /// Its cluster is deleted or being deleted.
    Gone,
    /// The cluster that was created for the application is online.
    Created,
}

impl Move {
    /// True if the application must leave its cluster, whatever the target.
    #[must_use]
    pub fn is_forced(&self) -> bool {
        matches!(self, Self::NotOnline | Self::Misfit | Self::Gone)
    }
}

/// The rule that holds a move back.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "rule", rename_all = "snake_case")]
pub enum Hold {
    /// The maximum number of applications moved within `reschedule_after` (`max_moves`).
    MaxMoves {
        /// Maximum number of moves within `reschedule_after`.
        limit: u64,
        /// Time at which the next move is allowed.
        #[serde(with = "time::serde::rfc3339::option")]
        until: Option<OffsetDateTime>,
    },
}

/// The reason why the scheduler is not responsible for an application.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeftAlone {
    /// The application is being deleted.
    Deleted,
    /// An owner of the application is being deleted, and the application with it.
    DeletedWithOwner,
    /// The application has failed.
    Failed,
}

/// A candidate with its score.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RankedCluster {
    /// The cluster, or the cloud for a new cluster.
    #[serde(with = "key")]
    pub target: ObjectKey,
    /// The score, including the stickiness on the application's present cluster.
    pub score: f64,
    /// True if the candidate has metrics; such candidates rank before those without.
    pub has_metrics: bool,
}

/// The gain of a move.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Gain {
    /// Score of the best other cluster minus score of the present cluster, both without stickiness.
    pub gain: f64,
    /// The stickiness in the present cluster's score; a move requires a greater gain.
    pub stickiness: f64,
}

/// The number of clusters by result of filtering. Each cluster counts once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// All clusters that were considered.
    pub considered: usize,
    /// Clusters that are being deleted or not online.
    pub not_online: usize,
    /// Clusters whose metrics have no values.
    pub failing_metrics: usize,
    /// Clusters that fail a label constraint.
    pub labels: usize,
    /// Clusters that lack a required custom resource.
    pub custom_resources: usize,
    /// Clusters that fail a metric constraint.
    pub metrics: usize,
    /// Clusters that meet all requirements.
    pub fit: usize,
}

/// The full explanation of the decision on one application.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Explanation {
    /// The application that the explanation is about.
    #[serde(with = "key")]
    pub application: ObjectKey,
    /// The store's revision of the explanation.
    pub revision: i64,
    /// The decision of a reconcile pass now, with the changes of the request.
    pub decision: Decision,
    /// The last effective decision.
    pub last: Option<Decision>,
    /// The weight of the present cluster in the scheduler's settings.
    pub stickiness: f64,
    /// All clusters, sorted by name.
    pub clusters: Vec<Candidate>,
    /// All clouds on which a cluster could be created, if the settings allow that.
    pub clouds: Vec<Candidate>,
}

/// A candidate with its evaluation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Candidate {
    /// The cluster or cloud.
    #[serde(with = "key")]
    pub target: ObjectKey,
    /// True if the application is bound to it.
    pub current: bool,
    /// The reason why it was filtered out; `None` if it fits.
    pub dropped: Option<DropReason>,
    /// Its metrics, inherited ones included.
    pub metrics: Vec<MetricPart>,
    /// The score without stickiness; `None` while values are missing.
    pub base: Option<f64>,
    /// The score, including the stickiness on the application's present cluster.
    pub score: Option<f64>,
}

impl Candidate {
    /// Removes all data except the name.
    pub fn reduce_to_name(&mut self) {
        self.dropped = None;
        self.metrics.clear();
        (self.base, self.score) = (None, None);
    }
}

/// The reason why a candidate was filtered out.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum DropReason {
    /// Its state, or all constraints that it does not meet.
    Unmet {
        /// All unmet requirements, never none.
        unmet: Vec<UnmetConstraint>,
    },
    /// A value of one of its metrics was never fetched.
    WaitsForMetric {
        /// Name of the metric.
        metric: String,
    },
    /// A value of one of its metrics is unavailable.
    FailingMetrics {
        /// Name of the metric.
        metric: String,
        /// The reason, if known.
        why: Option<Reason>,
    },
    /// It has no metrics, and other fitting candidates have.
    WithoutMetrics,
    /// The request excludes it.
    LeftOut,
}

/// A metric of a candidate with its weight and value.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MetricPart {
    /// The name, with the namespace if it has one.
    pub metric: String,
    /// The weight in the score.
    pub weight: f64,
    /// The value from the provider.
    pub value: Option<f64>,
    /// The value normalized to the range from 0 to 1.
    pub normalized: Option<f64>,
    /// Seconds since the fetch.
    pub age: Option<f64>,
    /// True if the value oscillates.
    pub oscillates: bool,
    /// Minimum and maximum of the last hour.
    pub range: Option<(f64, f64)>,
    /// Start of that observation.
    #[serde(with = "time::serde::rfc3339::option")]
    pub since: Option<OffsetDateTime>,
    /// A remark for people about the value, such as the choice among several series.
    pub note: Option<String>,
}

/// The hypothetical changes of a request to explain.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct WhatIf {
    /// Values of metrics in place of the providers'. A name means the metric of the application's namespace and the
    /// global metric.
    pub with: Vec<(String, f64)>,
    /// Names of the clusters to exclude.
    pub without: Vec<String>,
    /// Namespaces whose clusters and metrics the request may name; others count as nonexistent for its sender. `None`
    /// means all.
    pub namespaces: Option<BTreeSet<String>>,
}

impl WhatIf {
    /// True if the request changes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.with.is_empty() && self.without.is_empty()
    }

    /// True if the request may name resources of the namespace.
    #[must_use]
    pub fn includes_namespace(&self, namespace: Option<&str>) -> bool {
        let among = |all: &BTreeSet<String>| namespace.is_some_and(|namespace| all.contains(namespace));
        self.namespaces.as_ref().is_none_or(among)
    }
}

/// The reason why there is no explanation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExplainError {
    /// The application does not exist.
    #[error("the placement API has no {application}")]
    Unknown {
        /// The application of the request.
        application: ObjectKey,
    },
    /// A metric of the request does not exist, or the request must not name it.
    #[error("no metric {metric} applies to {application}")]
    UnknownMetric {
        /// The name of the metric.
        metric: String,
        /// The application of the request.
        application: ObjectKey,
    },
    /// A value of the request is invalid for its metric.
    #[error("the metric {metric} cannot have the value {value}: {why}")]
    BadValue {
        /// Name of the metric.
        metric: String,
        /// The refused value, as text.
        value: String,
        /// The reason for the refusal.
        why: String,
    },
    /// A cluster of the request does not exist.
    #[error("{application} has no candidate cluster {cluster}")]
    UnknownCluster {
        /// The name of the cluster.
        cluster: String,
        /// The application of the request.
        application: ObjectKey,
    },
    /// The scheduler has not read its input yet.
    #[error(
        "the scheduler of this instance has not listed the placement resources in etcd yet: ask again in a moment"
    )]
    NotReady,
}

/// The JSON form of a key: `{"kind": "Cluster", "namespace": "testing", "name": "a"}`.
mod key {
    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    use super::{Kind, ObjectKey};

    #[derive(serde::Serialize, serde::Deserialize)]
    struct Form {
        kind: String,
        namespace: Option<String>,
        name: String,
    }

    pub(super) fn serialize<S: Serializer>(key: &ObjectKey, serializer: S) -> Result<S::Ok, S::Error> {
        let (namespace, name) = (key.namespace.clone(), key.name.clone());
        Form { kind: key.kind.name().to_owned(), namespace, name }.serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectKey, D::Error> {
        let form = Form::deserialize(deserializer)?;
        let kind = Kind::ALL.iter().find(|kind| kind.name() == form.kind);
        let kind = kind.ok_or_else(|| D::Error::custom(format!("there is no kind {:?}", form.kind)))?;
        Ok(ObjectKey::new(*kind, form.namespace.as_deref(), form.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decision_survives_json() {
        let at = OffsetDateTime::from_unix_timestamp(1_800_000_000).unwrap();
        let cluster = |name: &str| ObjectKey::new(Kind::Cluster, Some("n"), name);
        let outcomes = [
            Outcome::Bound { to: cluster("a") },
            Outcome::Stays { on: cluster("a"), why: Stay::Recent { until: at } },
            Outcome::Held {
                on: cluster("a"),
                to: cluster("b"),
                why: Move::Better,
                rule: Hold::MaxMoves { limit: 10, until: Some(at) },
            },
            Outcome::Moved { from: cluster("a"), to: cluster("b"), why: Move::Misfit },
            Outcome::Degraded { retries: -1, retry: None },
            Outcome::Failed,
            Outcome::WaitsForMetric { metrics: vec!["m".to_owned()], until: at },
            Outcome::WaitsForCluster { cluster: cluster("c") },
            Outcome::LeftAlone { why: LeftAlone::Failed },
        ];
        for outcome in outcomes {
            assert!(Outcome::NAMES.contains(&outcome.name()));
            let decision = Decision {
                at,
                outcome,
                best: Some(RankedCluster { target: cluster("a"), score: 0.1 + 0.2, has_metrics: true }),
                runner_up: None,
                gain: Some(Gain { gain: 0.3, stickiness: 1.0 / 3.0 }),
                clusters: Counts { considered: 2, fit: 2, ..Counts::default() },
            };
            let text = serde_json::to_string(&decision).unwrap();
            assert_eq!(serde_json::from_str::<Decision>(&text).unwrap(), decision, "{text}");
        }
    }
}
