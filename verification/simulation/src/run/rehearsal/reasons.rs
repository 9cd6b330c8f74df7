//! Rows of a rehearsal's report about placement decisions: outcome, source, target and reason.

use madako_domain::placement::decision::{Counts, Decision, LeftAlone, Move, Outcome, Stay};

/// Equal for decisions with equal texts: a smaller number of attempts makes no difference.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ReasonRow {
    pub(super) what: &'static str,
    pub(super) from: Option<String>,
    pub(super) to: Option<String>,
    pub(super) why: Option<String>,
}

pub(super) fn decision_row(decision: &Decision) -> ReasonRow {
    let (from, to, why) = match &decision.outcome {
        Outcome::Bound { to } => (None, Some(to), None),
        Outcome::Stays { on, why } => (Some(on), None, Some(reason_to_stay(why))),
        Outcome::Moved { from, to, why } => (Some(from), Some(to), Some(reason_to_move(why).to_owned())),
        Outcome::Held { on, to, why, .. } => (Some(on), Some(to), Some(reason_to_move(why).to_owned())),
        Outcome::Degraded { .. } => (None, None, Some(reasons_without_fit(&decision.clusters))),
        Outcome::Failed => (
            None,
            None,
            Some(format!("{}, and no attempts are left", reasons_without_fit(&decision.clusters))),
        ),
        Outcome::WaitsForMetric { metrics, .. } => (None, None, Some(describe_unfetched(metrics))),
        Outcome::Creates { cluster, cloud } => {
            (Some(cloud), Some(cluster), Some(reasons_without_fit(&decision.clusters)))
        }
        Outcome::WaitsForCluster { cluster } => {
            (None, Some(cluster), Some("the cluster that was created for it is not online yet".to_owned()))
        }
        Outcome::LeftAlone { why } => (None, None, Some(word_of_reason(*why).to_owned())),
    };
    ReasonRow {
        what: decision.outcome.name(),
        from: from.map(ToString::to_string),
        to: to.map(ToString::to_string),
        why,
    }
}

/// Reasons why an application fits none of the clusters.
pub(super) fn reasons_without_fit(counts: &Counts) -> String {
    let parts = [
        (counts.not_online, "not online"),
        (counts.failing_metrics, "without values of their metrics"),
        (counts.labels, "without a label that it asks for"),
        (counts.custom_resources, "without a custom resource that it asks for"),
        (counts.metrics, "without a value that it asks for"),
    ];
    let parts = parts.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}"));
    let parts: Vec<String> = parts.collect();
    let colon = if parts.is_empty() { "" } else { ": " };
    format!("fits none of {} clusters{colon}{}", counts.considered, parts.join(", "))
}

fn describe_unfetched(metrics: &[String]) -> String {
    format!("no value of {} was fetched yet", metrics.join(", "))
}

fn reason_to_move(why: &Move) -> &'static str {
    match why {
        Move::Better => "another cluster is better by more than the stickiness",
        Move::NotOnline => "its cluster is not online",
        Move::Misfit => "its cluster does not meet its constraints",
        Move::Gone => "its cluster is gone",
        Move::Created => "the cluster that was created for it is online",
    }
}

fn reason_to_stay(why: &Stay) -> String {
    let why = match why {
        Stay::Best => "no other cluster is better by more than the stickiness",
        Stay::Recent { .. } => "it was bound within reschedule_after",
        Stay::NotOnline { .. } => "its cluster is not online, and not yet for reschedule_after",
        Stay::FailingMetrics => "metrics of its cluster have no value",
        Stay::WaitsForMetric { metrics, .. } => return describe_unfetched(metrics),
        Stay::MigrationDisabled => "its constraints forbid migration",
        Stay::MigrationTimeout { .. } => "a move of it failed not long ago",
    };
    why.to_owned()
}

fn word_of_reason(why: LeftAlone) -> &'static str {
    match why {
        LeftAlone::Deleted => "it is being deleted",
        LeftAlone::DeletedWithOwner => "something that it depends on is being deleted",
        LeftAlone::Failed => "it failed",
    }
}

#[cfg(test)]
mod tests {
    use madako_domain::placement::kind::{Kind, ObjectKey};
    use time::OffsetDateTime;

    use super::*;

    fn decision(outcome: Outcome) -> Decision {
        let clusters = Counts { considered: 5, not_online: 2, labels: 3, ..Counts::default() };
        let at = OffsetDateTime::UNIX_EPOCH;
        Decision { at, outcome, best: None, runner_up: None, gain: None, clusters }
    }

    #[test]
    fn every_row_but_a_first_binding_has_its_reason() {
        let on = ObjectKey::new(Kind::Cluster, Some("testing"), "one");
        let until = OffsetDateTime::UNIX_EPOCH;
        for (outcome, why) in [
            (Outcome::Bound { to: on.clone() }, None),
            (
                Outcome::Degraded { retries: 2, retry: None },
                Some("fits none of 5 clusters: 2 not online, 3 without a label that it asks for"),
            ),
            (
                Outcome::Stays { on: on.clone(), why: Stay::NotOnline { until } },
                Some("its cluster is not online, and not yet for reschedule_after"),
            ),
            (
                Outcome::WaitsForMetric { metrics: vec!["heat".into()], until },
                Some("no value of heat was fetched yet"),
            ),
        ] {
            assert_eq!(decision_row(&decision(outcome.clone())).why.as_deref(), why, "{outcome:?}");
        }
    }

    #[test]
    fn one_attempt_less_does_not_change_the_row() {
        let degraded = |retries| decision_row(&decision(Outcome::Degraded { retries, retry: None }));
        assert_eq!(degraded(2), degraded(1));
    }
}
