//! Clusters, clouds and projects as decisions see them: labels, metrics, state, and the score for an application or a
//! cluster.

use std::collections::BTreeMap;

use madako_domain::canary::{Canary, is_planted};
use madako_domain::placement::fit::{AnyCloud, ComparedMetrics, Offer};
use madako_domain::placement::infrastructure::CloudState;
use madako_domain::placement::kind::{Kind, ObjectKey};
use madako_domain::placement::kubernetes::{Cluster, ClusterState};
use madako_domain::placement::metadata::{Reason, ReasonCode, ResourceRef};
use madako_domain::placement::objects::Stored;
use madako_domain::placement::openstack::{Project, ProjectState};
use madako_json::krake::entries::Entries;
use time::OffsetDateTime;

use crate::metric_values::{MetricValue, MetricValues};
use crate::snapshot::{Snapshot, TypedResource};

pub(crate) struct Target<'a> {
    pub(crate) stored: &'a Stored,
    pub(crate) offer: Offer<'a>,
    /// Value of each metric of the offer, in the offer's order.
    pub(crate) metric_values: Vec<MetricValue>,
    /// True if it accepts new bindings.
    pub(crate) availability: Availability,
    /// Its own score; meaningful if all values are known.
    pub(crate) base: BaseScore,
    /// The cloud that it inherits from; decisions depend on its revision as well.
    pub(crate) cloud: Option<&'a Stored>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Availability {
    Yes,
    Deleted,
    NotOnline,
    /// Its metrics fail; a cluster would otherwise be online.
    FailingMetrics,
    /// One of its metrics was never fetched; otherwise it accepts.
    Waits,
}

/// Score without stickiness.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct BaseScore {
    pub(crate) has_metrics: bool,
    /// Sum of values times weights.
    weighted: f64,
    weights: f64,
}

impl BaseScore {
    /// Score for an unbound application: the weighted mean, 0 without weights.
    pub(crate) fn score(&self) -> f64 {
        self.with_stickiness(0.0)
    }

    /// Score for the application that is bound to it.
    pub(crate) fn with_stickiness(&self, stickiness: f64) -> f64 {
        if !self.has_metrics {
            // Krake's formula for a cluster without metrics: the value of staying, 1, times its weight.
            return stickiness;
        }
        let weights = self.weights + stickiness;
        let score = if weights == 0.0 { 0.0 } else { (self.weighted + stickiness) / weights };
        // No negative zero, which sorts below zero; stored weights may allow no finite mean.
        if score.is_finite() { score + 0.0 } else { 0.0 }
    }
}

/// Change of a place's state because of its metrics.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum MetricsTurn {
    Fails(Vec<(String, Reason)>),
    Recovers,
}

/// The place's own state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Online,
    FailingMetrics,
    Other,
}

impl<'a> Target<'a> {
    pub(crate) fn from_cluster(
        resource: TypedResource<'a, Cluster>,
        snapshot: &'a Snapshot,
        values: &mut MetricValues<'a>,
        compared: ComparedMetrics,
    ) -> Self {
        let cloud =
            resource.value.status.scheduled_to.as_ref().and_then(|cloud| bound_cloud(cloud, snapshot));
        let any = cloud.and_then(|stored| AnyCloud::from_object(&stored.object));
        let offer = Offer::from_cluster(resource.value, any, values.states(), compared);
        let state = match resource.value.status.state {
            ClusterState::Online => State::Online,
            ClusterState::FailingMetrics => State::FailingMetrics,
            _ => State::Other,
        };
        Self { cloud, ..Self::new(resource.stored, offer, state, values) }
    }

    pub(crate) fn from_cloud(
        stored: &'a Stored,
        values: &mut MetricValues<'a>,
        compared: ComparedMetrics,
    ) -> Option<Self> {
        let any = AnyCloud::from_object(&stored.object)?;
        let status = match any {
            AnyCloud::Global(cloud) => &cloud.status,
            AnyCloud::Namespaced(cloud) => &cloud.status,
        };
        let state = match status.state {
            CloudState::Online => State::Online,
            CloudState::FailingMetrics => State::FailingMetrics,
        };
        Some(Self::new(stored, Offer::from_cloud(any, values.states(), compared), state, values))
    }

    pub(crate) fn from_project(
        resource: TypedResource<'a, Project>,
        values: &mut MetricValues<'a>,
        compared: ComparedMetrics,
    ) -> Self {
        let state = match resource.value.status.state {
            ProjectState::Online => State::Online,
            ProjectState::FailingMetrics => State::FailingMetrics,
        };
        Self::new(
            resource.stored,
            Offer::from_project(resource.value, values.states(), compared),
            state,
            values,
        )
    }

    fn new(stored: &'a Stored, offer: Offer<'a>, state: State, values: &mut MetricValues<'a>) -> Self {
        let metric_values: Vec<MetricValue> =
            offer.metrics().iter().map(|metric| values.look_up_value(metric)).collect();
        let mut base = BaseScore { has_metrics: !metric_values.is_empty(), ..BaseScore::default() };
        for (metric, known) in offer.metrics().iter().zip(&metric_values) {
            if let MetricValue::Value(value) = known {
                base.weighted += value.normalized * metric.reference.weight;
                base.weights += metric.reference.weight;
            }
        }
        let availability = match state {
            _ if stored.object.metadata().deleted.is_some() => Availability::Deleted,
            State::Other if !is_planted(Canary::OfflineClusterTaken) => Availability::NotOnline,
            State::Other => Availability::Yes,
            State::FailingMetrics => Availability::FailingMetrics,
            State::Online if metric_values.iter().any(|known| matches!(known, MetricValue::Failing(_))) => {
                Availability::FailingMetrics
            }
            State::Online
                if metric_values.iter().any(|known| matches!(known, MetricValue::Waiting { .. })) =>
            {
                Availability::Waits
            }
            State::Online => Availability::Yes,
        };
        Self { stored, offer, metric_values, availability, base, cloud: None }
    }

    /// Marks the place as deleted if this pass deletes it.
    pub(crate) fn leave_out_deleted(self, going: &BTreeMap<&ObjectKey, &ObjectKey>) -> Self {
        if going.contains_key(self.key()) {
            Self { availability: Availability::Deleted, ..self }
        } else {
            self
        }
    }

    pub(crate) fn key(&self) -> &'a ObjectKey {
        &self.stored.key
    }

    /// Revisions that a decision for this place depends on.
    pub(crate) fn revisions_used(&self) -> impl Iterator<Item = (ObjectKey, i64)> {
        let all = [Some(self.stored), self.cloud];
        all.into_iter().flatten().map(|stored| (stored.key.clone(), stored.mod_revision))
    }

    /// Names of metrics that were never fetched, with deadlines.
    pub(crate) fn awaited_metrics(&self) -> impl Iterator<Item = (String, OffsetDateTime)> {
        self.offer.metrics().iter().zip(&self.metric_values).filter_map(|(metric, known)| match known {
            MetricValue::Waiting { until } => Some((metric.key.to_string(), *until)),
            _ => None,
        })
    }

    pub(crate) fn failing_metrics(&self) -> impl Iterator<Item = (&str, Option<&Reason>)> {
        self.offer.metrics().iter().zip(&self.metric_values).filter_map(|(metric, known)| match known {
            MetricValue::Failing(reason) => Some((metric.reference.name.as_str(), reason.as_ref())),
            _ => None,
        })
    }

    /// Change of the state because of metrics. `online` and `failing` are the stored state and its reasons. Awaited
    /// metrics change nothing, and neither does another text of the same reason.
    pub(crate) fn metrics_transition(
        &self,
        online: bool,
        failing: Option<&Entries<Reason>>,
    ) -> Option<MetricsTurn> {
        if self.stored.object.metadata().deleted.is_some() {
            return None;
        }
        let reasons: Entries<Reason> = self
            .failing_metrics()
            .filter_map(|(name, reason)| Some((name.to_owned(), reason?.clone())))
            .collect();
        let turned = |reasons: Entries<Reason>| {
            let reasons = reasons.iter().map(|(name, reason)| (name.to_owned(), reason.clone()));
            Some(MetricsTurn::Fails(reasons.collect()))
        };
        match failing {
            None if online && !reasons.is_empty() => turned(reasons),
            Some(shown) if !reasons.is_empty() && !have_same_codes(shown, &reasons) => turned(reasons),
            Some(_) if self.metric_values.iter().all(|known| matches!(known, MetricValue::Value(_))) => {
                Some(MetricsTurn::Recovers)
            }
            _ => None,
        }
    }
}

/// True if the same metrics fail for the same reason codes. Texts do not count: they may contain a value, which
/// changes with every fetch.
fn have_same_codes(one: &Entries<Reason>, other: &Entries<Reason>) -> bool {
    let codes = |reasons: &Entries<Reason>| -> BTreeMap<String, ReasonCode> {
        reasons.iter().map(|(metric, reason)| (metric.to_owned(), reason.code)).collect()
    };
    codes(one) == codes(other)
}

fn bound_cloud<'a>(cloud: &ResourceRef, snapshot: &'a Snapshot) -> Option<&'a Stored> {
    let key = cloud.key().filter(|key| matches!(key.kind, Kind::Cloud | Kind::GlobalCloud))?;
    snapshot.get(&key)
}
