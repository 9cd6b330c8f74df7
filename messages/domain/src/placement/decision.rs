//! What the scheduler decided about an application, and why, as data: for the store, for `explain`, for people.
//!
//! For: whoever shows decisions. A [`Decision`] is small and kept for each application; an [`Explanation`] names
//! every candidate and is made when somebody asks.
//!
//! Guarantees: a decision that was kept can be read again by any later version, as far as it knows its words.
//!
//! Does not: decide.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use super::fit::Unmet;
use super::kind::{Kind, ObjectKey};
use super::metadata::Reason;
pub use crate::limits::MAX_METRICS_NAMED;

/// What was decided about one application.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// When.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// What.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// The best candidate: what it is bound to, or would be.
    pub best: Option<Ranked>,
    /// The best of the others.
    pub runner_up: Option<Ranked>,
    /// What a move brings, for applications that are bound.
    pub gain: Option<Gain>,
    /// How many clusters there were, and what became of them.
    pub clusters: Counts,
}

/// The name that stands in a decision for a resource that is not shown. No resource can have it.
pub const HIDDEN: &str = "(hidden)";

impl Decision {
    /// Takes away what says something of resources that are not shown: which they are, their scores, and the names of
    /// their metrics. Of `bound`, which the application itself names, the name stays.
    pub fn hide(&mut self, shows: impl Fn(&ObjectKey) -> bool, bound: Option<&ObjectKey>) {
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

/// What was decided.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// It is bound for the first time.
    Bound {
        /// The cluster.
        #[serde(with = "key")]
        to: ObjectKey,
    },
    /// It stays where it is bound.
    Stays {
        /// The cluster.
        #[serde(with = "key")]
        on: ObjectKey,
        /// Why.
        why: Stay,
    },
    /// It moves from one cluster to another.
    Moved {
        /// The former cluster.
        #[serde(with = "key")]
        from: ObjectKey,
        /// The new one.
        #[serde(with = "key")]
        to: ObjectKey,
        /// Why.
        why: Move,
    },
    /// It should move, and a rule holds it back.
    Held {
        /// The cluster that it is bound to.
        #[serde(with = "key")]
        on: ObjectKey,
        /// Where it should go, or the cloud on which a cluster would be created for it.
        #[serde(with = "key")]
        to: ObjectKey,
        /// Why.
        why: Move,
        /// The rule.
        rule: Hold,
    },
    /// Nothing fits; it is tried again.
    Degraded {
        /// Attempts that are left; -1: for ever.
        retries: i64,
        /// When the next one counts. It is bound before that if something fits. `None` for ever: it is tried again
        /// when something changes.
        #[serde(with = "time::serde::rfc3339::option")]
        retry: Option<OffsetDateTime>,
    },
    /// Nothing fits, and no attempts are left.
    Failed,
    /// A metric that the decision needs was never fetched.
    WaitsForMetric {
        /// The metrics, at most [`MAX_METRICS_NAMED`].
        metrics: Vec<String>,
        /// When it is decided without them.
        #[serde(with = "time::serde::rfc3339")]
        until: OffsetDateTime,
    },
    /// A cluster is created for it.
    Creates {
        /// The cluster.
        #[serde(with = "key")]
        cluster: ObjectKey,
        /// The cloud.
        #[serde(with = "key")]
        cloud: ObjectKey,
    },
    /// The cluster that was created for it is not online yet.
    WaitsForCluster {
        /// The cluster.
        #[serde(with = "key")]
        cluster: ObjectKey,
    },
    /// It is not the scheduler's.
    LeftAlone {
        /// Why.
        why: LeftAlone,
    },
}

impl Outcome {
    /// A short name for a metric's label.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Bound { .. } => "bound",
            Self::Stays { .. } => "stays",
            Self::Moved { .. } => "moved",
            Self::Held { .. } => "held",
            Self::Degraded { .. } => "degraded",
            Self::Failed => "failed",
            Self::WaitsForMetric { .. } => "waits-for-metric",
            Self::Creates { .. } => "creates",
            Self::WaitsForCluster { .. } => "waits-for-cluster",
            Self::LeftAlone { .. } => "left-alone",
        }
    }

    /// Every name.
    pub const NAMES: [&'static str; 10] = [
        "bound",
        "stays",
        "moved",
        "held",
        "degraded",
        "failed",
        "waits-for-metric",
        "creates",
        "waits-for-cluster",
        "left-alone",
    ];
}

/// Why an application stays.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum Stay {
    /// No other cluster is better by more than the stickiness.
    Best,
    /// It was bound within `reschedule_after`, and its cluster fits.
    Recent {
        /// Until when.
        #[serde(with = "time::serde::rfc3339")]
        until: OffsetDateTime,
    },
    /// Its cluster is not online, and not yet for a whole `reschedule_after`.
    NotOnline {
        /// Until when.
        #[serde(with = "time::serde::rfc3339")]
        until: OffsetDateTime,
    },
    /// Values of its cluster's metrics cannot be had: that moves nothing.
    FailingMetrics,
    /// A metric that the decision needs was never fetched.
    WaitsForMetric {
        /// The metrics, at most [`MAX_METRICS_NAMED`].
        metrics: Vec<String>,
        /// When it is decided without them.
        #[serde(with = "time::serde::rfc3339")]
        until: OffsetDateTime,
    },
    /// `migration: false`.
    MigrationDisabled,
    /// `status.migration_timeout`: a move of it failed not long ago.
    MigrationTimeout {
        /// Until when.
        #[serde(with = "time::serde::rfc3339")]
        until: OffsetDateTime,
    },
}

/// Why an application moves.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum Move {
    /// The new cluster is better by more than the stickiness.
    Better,
    /// Its cluster was not online for a whole `reschedule_after`.
    NotOnline,
    /// Its cluster does not meet its constraints any more.
    Misfit,
    /// Its cluster is gone or being deleted.
    Gone,
    /// The cluster that was created for it is online.
    Created,
}

impl Move {
    /// Whether it has to leave, wherever it goes.
    #[must_use]
    pub fn forced(&self) -> bool {
        matches!(self, Self::NotOnline | Self::Misfit | Self::Gone)
    }
}

/// The rule that holds a move back.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "rule", rename_all = "snake_case")]
pub enum Hold {
    /// As many applications moved within `reschedule_after` as may (`max_moves`).
    MaxMoves {
        /// How many may.
        limit: u64,
        /// When the next one may.
        #[serde(with = "time::serde::rfc3339::option")]
        until: Option<OffsetDateTime>,
    },
}

/// Why an application is not the scheduler's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeftAlone {
    /// It is being deleted.
    Deleted,
    /// Something that it depends on is being deleted, and it goes along.
    DeletedWithOwner,
    /// It failed.
    Failed,
}

/// A candidate and its score.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ranked {
    /// The cluster, or the cloud that one would be created on.
    #[serde(with = "key")]
    pub target: ObjectKey,
    /// Its score, with the stickiness if the application is bound to it.
    pub score: f64,
    /// Whether it has metrics: those that have come before those that have not.
    pub has_metrics: bool,
}

/// What a move brings.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Gain {
    /// The score of the best other cluster less that of the own one, both without stickiness.
    pub gain: f64,
    /// How much the stickiness adds to the score of the own one: a gain has to be more than that.
    pub stickiness: f64,
}

/// How many clusters there were, and what became of them. Each counts once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// All that were considered.
    pub considered: usize,
    /// Being deleted, or not online.
    pub not_online: usize,
    /// Without values of their metrics.
    pub failing_metrics: usize,
    /// Without a label that was asked for.
    pub labels: usize,
    /// Without a custom resource that was asked for.
    pub custom_resources: usize,
    /// Without a value that was asked for.
    pub metrics: usize,
    /// Fitting.
    pub fit: usize,
}

/// Everything about the decision on one application.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Explanation {
    /// The application.
    #[serde(with = "key")]
    pub application: ObjectKey,
    /// The revision of the store that it is of.
    pub revision: i64,
    /// What would be decided now, or with what was asked for instead.
    pub decision: Decision,
    /// What was decided last and led to something.
    pub last: Option<Decision>,
    /// The stickiness that the scheduler has.
    pub stickiness: f64,
    /// Every cluster, in the order of names.
    pub clusters: Vec<Candidate>,
    /// Every cloud that one could be created on, if one may be.
    pub clouds: Vec<Candidate>,
}

/// A candidate, and what became of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Candidate {
    /// The cluster or cloud.
    #[serde(with = "key")]
    pub target: ObjectKey,
    /// Whether the application is bound to it.
    pub current: bool,
    /// Why it cannot be chosen; `None`: it can.
    pub dropped: Option<Dropped>,
    /// Its metrics, inherited ones included.
    pub metrics: Vec<MetricPart>,
    /// Its score without stickiness; `None` while values are missing.
    pub base: Option<f64>,
    /// Its score, with the stickiness if the application is bound to it.
    pub score: Option<f64>,
}

impl Candidate {
    /// Takes everything away but the name.
    pub fn keep_name(&mut self) {
        self.dropped = None;
        self.metrics.clear();
        (self.base, self.score) = (None, None);
    }
}

/// Why a candidate cannot be chosen.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum Dropped {
    /// Its state, or constraints that it does not meet: all of them.
    Unmet {
        /// What is not met.
        unmet: Vec<Unmet>,
    },
    /// A value of one of its metrics was never fetched.
    WaitsForMetric {
        /// The metric.
        metric: String,
    },
    /// A value of one of its metrics cannot be had.
    FailingMetrics {
        /// The metric.
        metric: String,
        /// Why, as far as it is known.
        why: Option<Reason>,
    },
    /// It has no metrics, and others that fit have.
    WithoutMetrics,
    /// It was asked for to leave it out.
    LeftOut,
}

/// A metric of a candidate, as it counts.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MetricPart {
    /// Its name, with its namespace if it has one.
    pub metric: String,
    /// Its weight.
    pub weight: f64,
    /// The value that its provider gave.
    pub value: Option<f64>,
    /// The value brought to the range from 0 to 1.
    pub normalized: Option<f64>,
    /// Seconds since it was fetched.
    pub age: Option<f64>,
    /// Whether it swings to and fro.
    pub oscillates: bool,
    /// Its range within the last hour.
    pub range: Option<(f64, f64)>,
    /// Since when that is known.
    #[serde(with = "time::serde::rfc3339::option")]
    pub since: Option<OffsetDateTime>,
    /// What people should know of how the value was had, such as which of several series it is.
    pub note: Option<String>,
}

/// What should be taken for something else.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct WhatIf {
    /// Values of metrics, as providers would give them. A name means the metric of the application's namespace
    /// and the global one.
    pub with: Vec<(String, f64)>,
    /// Names of clusters that are left out.
    pub without: Vec<String>,
    /// Namespaces whose clusters and metrics may be meant: others are for whoever asks as if they were not there.
    /// `None`: all.
    pub namespaces: Option<BTreeSet<String>>,
}

impl WhatIf {
    /// Whether everything is taken as it is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.with.is_empty() && self.without.is_empty()
    }

    /// Whether what is in a namespace may be meant.
    #[must_use]
    pub fn reaches(&self, namespace: Option<&str>) -> bool {
        let among = |all: &BTreeSet<String>| namespace.is_some_and(|namespace| all.contains(namespace));
        self.namespaces.as_ref().is_none_or(among)
    }
}

/// Why nothing can be explained.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExplainError {
    /// There is no such application.
    #[error("there is no {application}")]
    Unknown {
        /// The application.
        application: ObjectKey,
    },
    /// A metric of the question is nobody's.
    #[error("no metric {metric} counts for {application}")]
    UnknownMetric {
        /// Its name.
        metric: String,
        /// The application.
        application: ObjectKey,
    },
    /// A value of the question is none that the metric may have.
    #[error("{metric} cannot be {value}: {why}")]
    BadValue {
        /// The metric.
        metric: String,
        /// The value.
        value: String,
        /// Why.
        why: String,
    },
    /// A cluster of the question does not exist.
    #[error("there is no cluster {cluster} that {application} could run on")]
    UnknownCluster {
        /// Its name.
        cluster: String,
        /// The application.
        application: ObjectKey,
    },
    /// Nothing was read yet.
    #[error("nothing was read from the store yet")]
    NotReady,
}

/// A resource as `{"kind": "Cluster", "namespace": "testing", "name": "a"}`.
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
    fn what_was_kept_is_read_again() {
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
                best: Some(Ranked { target: cluster("a"), score: 0.1 + 0.2, has_metrics: true }),
                runner_up: None,
                gain: Some(Gain { gain: 0.3, stickiness: 1.0 / 3.0 }),
                clusters: Counts { considered: 2, fit: 2, ..Counts::default() },
            };
            let text = serde_json::to_string(&decision).unwrap();
            assert_eq!(serde_json::from_str::<Decision>(&text).unwrap(), decision, "{text}");
        }
    }
}
