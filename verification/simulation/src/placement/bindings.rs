//! Checks that each binding of an application is permitted and has a reason, and that moves are few and necessary.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use madako_domain::invariants::Id;
use madako_domain::keys;
use madako_domain::placement::decision::{Decision, Move, Outcome};
use madako_domain::placement::fit::UnmetConstraint;
use madako_domain::placement::kind::ObjectKey;
use madako_domain::placement::kubernetes::{Application, Cluster, ClusterState};
use madako_domain::placement::metrics::{MetricKey, MetricState};
use madako_domain::placement::object_value::Resource as _;
use madako_domain::placement::objects::Stored;
use madako_json::krake::timestamp::Timestamp;
use madako_judges::Exemption;
use madako_judges::bindings::find_misbound;
use time::OffsetDateTime;

use super::{JudgedPlacement, KeyChange, VALUES_COUNT, key_of, metric_state, read_bound_cluster};
use crate::world::{MAX_MOVES, PREFIX, RESCHEDULE_AFTER};

/// Maximum delay before the scheduler observes a change over slow and lossy links. Until then it may decide by the
/// former state, so that an application leaves a cluster that seems online for a better one.
const HEARD_WITHIN: Duration = Exemption::Unheard.longest_use().expect("a change is unheard for a time");

impl JudgedPlacement {
    /// Checks a written application: its binding is permitted, and its decision is in the same transaction.
    pub(super) fn judge_application(
        &mut self,
        revision: i64,
        stored: &Arc<Stored>,
        events: &[KeyChange],
        now: Duration,
    ) {
        let key = &stored.key;
        let before = self.stored_object(key);
        let former = before.as_ref().and_then(|before| read_bound_cluster(before));
        let to = read_bound_cluster(stored);
        if former == to {
            self.check_i11(revision, stored, None, now);
            return;
        }
        let name = format!("{}/{}", key.namespace.as_deref().unwrap_or_default(), key.name);
        let decision = format!("{PREFIX}{}{name}", keys::PLACEMENT_DECISIONS);
        let decided =
            events.iter().find(|event| event.key == decision).and_then(|event| event.value.as_ref());
        if decided.is_none() {
            self.record_violation(
                Id::I1,
                revision,
                format_args!(
                    "{key} is bound to {to:?} instead of {former:?}, and no stored decision names the reason"
                ),
            );
        }
        let Some(to) = to else {
            self.record_violation(
                Id::I9,
                revision,
                format_args!("{key} is not bound to {former:?} any more"),
            );
            return;
        };
        self.counts.bindings += 1;
        let Some(target) = self.stored_object(&to) else {
            self.record_violation(
                Id::I11,
                revision,
                format_args!("{key} is bound to {to}, which does not exist"),
            );
            return;
        };
        self.check_i11(revision, stored, Some(&target), now);
        if let (Some(former), Some(before)) = (former, before) {
            let why = decided.and_then(|decided| serde_json::from_slice::<Decision>(decided).ok()).and_then(
                |decided| match decided.outcome {
                    Outcome::Moved { why, .. } => Some(why),
                    _ => None,
                },
            );
            self.judge_move(revision, &before, stored, &former, (now, why));
        }
    }

    /// Checks I11 by the leader's own predicate, with the values that give the fewest violations of those that a
    /// decision may use.
    fn check_i11(
        &mut self,
        revision: i64,
        stored: &Arc<Stored>,
        target: Option<&Arc<Stored>>,
        now: Duration,
    ) {
        let judged_by = |judged: &Self, values: BTreeMap<MetricKey, MetricState>| {
            find_misbound((revision, stored), target, values, &judged.objects)
        };
        let mut values = self.latest_values(now);
        let mut best = judged_by(self, values.clone());
        let mut oldest = None;
        if !best.is_empty() && target.is_some() {
            // Each constraint is on one metric, so that the best value of each metric is independent of the others.
            for (name, given) in &self.values {
                for (at, value) in given.iter().filter(|(at, _)| *at + VALUES_COUNT >= now) {
                    let mut others = values.clone();
                    others.insert(key_of(name), metric_state(*value));
                    let violations = judged_by(self, others.clone());
                    if violations.len() < best.len() {
                        (best, values) = (violations, others);
                        oldest = oldest.max(Some(now.saturating_sub(*at)));
                    }
                }
            }
        }
        if let Some(oldest) = oldest {
            self.exemptions.record_use(Exemption::OlderValue, oldest);
        }
        for violation in best {
            self.record_violation(violation.invariant, revision, violation.what);
        }
    }

    /// Checks a move against the reason in its decision.
    fn judge_move(
        &mut self,
        revision: i64,
        before: &Stored,
        after: &Stored,
        former: &ObjectKey,
        (now, why): (Duration, Option<Move>),
    ) {
        self.counts.moves += 1;
        let key = &after.key;
        let (Some(was), Some(is)) =
            (Application::from_object(&before.object), Application::from_object(&after.object))
        else {
            return;
        };
        let Some(at) = is.status.scheduled.as_ref().map(Timestamp::instant) else {
            self.record_violation(Id::I9, revision, format_args!("{key} moved at no time"));
            return;
        };
        self.moves.push((at, now));
        // By the clocks of the deciding leaders and by the world's time: after a jump of a clock, moves only seem
        // close; over a slow link to the store, moves that were decided apart arrive close together.
        let close = |(other, observed_at): &&(OffsetDateTime, Duration)| {
            *other <= at && *other + RESCHEDULE_AFTER > at && *observed_at + RESCHEDULE_AFTER > now
        };
        let within = self.moves.iter().filter(close).count();
        let part = self.most_applications * MAX_MOVES.percent / 100;
        let most = MAX_MOVES.at_least.max(part);
        if within as u64 > most {
            self.record_violation(
                Id::I5,
                revision,
                format_args!("{key} is move {within} within {RESCHEDULE_AFTER:?}; {most} are allowed"),
            );
        }
        if !was.spec.constraints.migration {
            self.record_violation(Id::I5, revision, format_args!("{key} moved, though it must not"));
        }
        let Some(left) = self.stored_object(former) else { return };
        let Some(cluster) = Cluster::from_object(&left.object) else { return };
        if cluster.metadata.deleted.is_some() {
            return;
        }
        let unmet = self.unmet_requirements(was, &left, &BTreeMap::new()).unwrap_or_default();
        let fits = !unmet.iter().any(|unmet| {
            matches!(unmet, UnmetConstraint::Label { .. } | UnmetConstraint::CustomResource { .. })
        });
        match self.down.get(former).copied() {
            // An application that no longer fits leaves in any state of the cluster.
            Some(since) if since + RESCHEDULE_AFTER > at && fits => {
                let unaware = || {
                    let since = self.time_since_missed_change(former, since, at, why.as_ref());
                    since.map(|since| (Exemption::Unheard, since.unsigned_abs()))
                };
                let age = self.age_of_expired_value(was, &left, now).map(|age| (Exemption::OlderValue, age));
                match age.or_else(unaware) {
                    Some((exemption, lasted)) => self.exemptions.record_use(exemption, lasted),
                    None => self.record_violation(
                        Id::I5,
                        revision,
                        format_args!("{key} left {former} at {at}, which was not online only since {since}"),
                    ),
                }
            }
            Some(_) => {}
            None if cluster.status.state == ClusterState::FailingMetrics && fits => {
                self.record_violation(
                    Id::I5,
                    revision,
                    format_args!("{key} left {former}, of which only metrics are missing"),
                );
            }
            None => {}
        }
    }

    /// Time since the start of an outage, if the reason of the decision shows that its leader may not have observed
    /// the outage yet. A leader with the reason [`Move::NotOnline`] has observed it, unless it means an outage that
    /// ended just before.
    fn time_since_missed_change(
        &self,
        cluster: &ObjectKey,
        since: OffsetDateTime,
        at: OffsetDateTime,
        why: Option<&Move>,
    ) -> Option<time::Duration> {
        let was_down = self.was_down.get(cluster).copied();
        let believes = match why {
            Some(Move::Better) => true,
            Some(Move::NotOnline) => was_down
                .is_some_and(|(since, until)| since + RESCHEDULE_AFTER <= at && until + HEARD_WITHIN > at),
            _ => false,
        };
        (believes && since + HEARD_WITHIN > at).then_some(at - since)
    }

    /// Age of a value with an unmet constraint on a metric; `None` if every value that a decision may use meets them.
    fn age_of_expired_value(
        &self,
        application: &Application,
        cluster: &Stored,
        now: Duration,
    ) -> Option<Duration> {
        let is_outgrown = |values: &BTreeMap<MetricKey, MetricState>| {
            let unmet = self.unmet_requirements(application, cluster, values).unwrap_or_default();
            unmet.iter().any(|unmet| matches!(unmet, UnmetConstraint::Metric { .. }))
        };
        let latest = self.latest_values(now);
        let given = self.values.iter().flat_map(|(name, values)| {
            values.iter().filter(|(at, _)| *at + VALUES_COUNT >= now).map(move |value| (name, *value))
        });
        let outgrown = given.filter_map(|(name, (at, value))| {
            let mut values = latest.clone();
            values.insert(key_of(name), metric_state(value));
            is_outgrown(&values).then(|| now.saturating_sub(at))
        });
        is_outgrown(&latest).then_some(Duration::ZERO).or_else(|| outgrown.min())
    }
}
