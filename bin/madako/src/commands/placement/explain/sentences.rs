//! Renders the decision about an application, its obstacles and its metrics as sentences.

use madako_domain::placement::decision::{Counts, Decision, Outcome, Stay};
use serde_json::Value;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::{Dropped, Metric};
use crate::commands::node::format_age;
use crate::output::escape_unprintable;

/// The outcome of a decision in a sentence.
fn describe_outcome(outcome: &Outcome, now: OffsetDateTime) -> String {
    match outcome {
        Outcome::Bound { to } => format!("is bound to {to}"),
        Outcome::Stays { on, why } => format!("stays on {on} ({})", serialized_word(why, now)),
        Outcome::Moved { from, to, why } => {
            format!("moves from {from} to {to} ({})", serialized_word(why, now))
        }
        Outcome::Held { on, to, why, rule } => {
            format!(
                "stays on {on}; its move to {to} ({}) is held by {}",
                serialized_word(why, now),
                serialized_word(rule, now)
            )
        }
        Outcome::Degraded { retries, retry } => {
            let left = match retries {
                1 => "1 attempt is left".to_owned(),
                _ if *retries < 0 => "attempts are unlimited".to_owned(),
                _ => format!("{retries} attempts are left"),
            };
            let next = match retry {
                Some(retry) => format!(", next in {}, or earlier after a change", format_age(*retry - now)),
                None => ", each after a change".to_owned(),
            };
            format!("fits nowhere; {left}{next}")
        }
        Outcome::Failed => "fits nowhere, and no attempts are left".to_owned(),
        Outcome::WaitsForMetric { metrics, until } => {
            let left = format_age(*until - now);
            format!("waits for the first value of {}, for {left} more", metrics.join(", "))
        }
        Outcome::Creates { cluster, cloud } => format!("{cluster} is created for it on {cloud}"),
        Outcome::WaitsForCluster { cluster } => format!("waits until {cluster} is online"),
        Outcome::LeftAlone { why } => format!("the scheduler ignores it ({})", serialized_word(why, now)),
    }
}

/// The outcome with the gain of a move and the next best candidate.
pub(super) fn describe_decision(decision: &Decision, now: OffsetDateTime) -> String {
    let mut text = describe_outcome(&decision.outcome, now);
    if let Some(gain) = &decision.gain {
        let (gain, needed) = (gain.gain, gain.stickiness);
        text += &match gain > 0.0 {
            true => {
                format!("; the best alternative is better by {gain:.3}; a move needs more than {needed:.3}")
            }
            false => format!("; no alternative is better; a move needs more than {needed:.3}"),
        };
    }
    if let Some(second) = &decision.runner_up {
        text += &format!("; the next best is {} with {:.3}", second.target, second.score);
    }
    text
}

/// The reason why an application waits for a cluster, or for another one; `None`: it does not wait.
pub(in super::super) fn describe_wait(
    outcome: &Outcome,
    clusters: &Counts,
    now: OffsetDateTime,
) -> Option<String> {
    match outcome {
        Outcome::Degraded { .. } | Outcome::Failed => {
            Some(format!("fits nowhere: {}", describe_count(clusters)))
        }
        Outcome::Stays { why: Stay::NotOnline { .. }, .. } => Some("its cluster is not online".to_owned()),
        Outcome::Bound { .. } | Outcome::Stays { .. } | Outcome::Moved { .. } => None,
        other => Some(describe_outcome(other, now)),
    }
}

/// The clusters that do not fit, by their first obstacle.
fn describe_count(counts: &Counts) -> String {
    let parts = [
        (counts.not_online, "not online"),
        (counts.failing_metrics, "without values of metrics"),
        (counts.labels, "with other labels"),
        (counts.custom_resources, "without a custom resource"),
        (counts.metrics, "beyond a metric constraint"),
    ];
    let parts: Vec<String> = parts
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, why)| format!("{count} {why}"))
        .collect();
    match (counts.considered, parts.is_empty()) {
        (0, _) => "there is no cluster".to_owned(),
        (considered, true) => format!("of {considered} clusters none"),
        (considered, false) => format!("of {considered} clusters {}", parts.join(", ")),
    }
}

/// The name of a reason, with its limits and the time for which it holds.
fn serialized_word<T: serde::Serialize>(reason: &T, now: OffsetDateTime) -> String {
    match serde_json::to_value(reason) {
        Ok(Value::String(word)) => word.replace('_', " "),
        Ok(Value::Object(fields)) => {
            let word = ["reason", "rule"].iter().find_map(|name| fields.get(*name)?.as_str());
            let rest = fields
                .iter()
                .filter(|(name, value)| !["reason", "rule"].contains(&name.as_str()) && !value.is_null())
                .map(|(name, value)| {
                    match value.as_str().map(|text| OffsetDateTime::parse(text, &Rfc3339)) {
                        Some(Ok(until)) => format!("for {} more", format_age(until - now)),
                        _ => format!("{name} {}", value.to_string().trim_matches('"')),
                    }
                });
            let rest: Vec<String> = rest.collect();
            let word = word.unwrap_or_default().replace('_', " ");
            if rest.is_empty() { word } else { format!("{word}, {}", rest.join(", ")) }
        }
        _ => String::new(),
    }
}

pub(super) fn describe_dropped(dropped: &Dropped) -> String {
    match dropped {
        Dropped::Unmet { unmet } => unmet.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "),
        Dropped::WaitsForMetric { metric } => format!("{metric} was never fetched"),
        Dropped::FailingMetrics { metric } => format!("{metric} has no value"),
        Dropped::WithoutMetrics => "it has no metrics, but other candidates have".to_owned(),
        Dropped::LeftOut => "excluded by --without".to_owned(),
        Dropped::Other => "see -o json".to_owned(),
    }
}

/// A metric with its weight.
pub(super) fn metric_in_short(metric: &Metric) -> String {
    format!("{} {} x {}", metric.metric, format_number(metric.normalized), metric.weight)
}

/// A metric with its weight, value, age and range.
pub(super) fn describe_metric(metric: &Metric, now: OffsetDateTime) -> String {
    let Metric { value, age, oscillates, range, since, note, .. } = metric;
    let mut text = metric_in_short(metric);
    if let (Some(value), Some(age)) = (value, age) {
        text += &format!(" ({value}, {age:.0} s old");
        if let Some(note) = note {
            text += &format!("; {}", escape_unprintable(note));
        }
        text.push(')');
    }
    if let Some((least, greatest)) = range {
        text += &format!(" within {least} to {greatest}");
        if let Some(since) = since {
            text += &format!(" for {}", format_age(now - *since));
        }
    }
    if *oscillates {
        text += " oscillates";
    }
    text
}

pub(super) fn format_number(number: Option<f64>) -> String {
    number.map_or_else(|| "-".to_owned(), |number| format!("{number:.3}"))
}

#[cfg(test)]
mod tests {
    use madako_domain::placement::kind::{Kind, ObjectKey};
    use time::Duration;

    use super::*;

    const NOW: OffsetDateTime = OffsetDateTime::UNIX_EPOCH;

    fn decision(outcome: Outcome) -> Decision {
        let clusters = Counts { considered: 3, not_online: 2, labels: 1, ..Counts::default() };
        Decision {
            at: OffsetDateTime::UNIX_EPOCH,
            outcome,
            best: None,
            runner_up: None,
            gain: None,
            clusters,
        }
    }

    #[test]
    fn explanation_of_a_degraded_application_names_the_next_attempt() {
        let describe =
            |retries, retry| describe_decision(&decision(Outcome::Degraded { retries, retry }), NOW);
        let next = ", next in 1m30s, or earlier after a change";
        let retry = Some(NOW + Duration::seconds(90));
        assert_eq!(describe(2, retry), format!("fits nowhere; 2 attempts are left{next}"));
        assert_eq!(describe(1, retry), format!("fits nowhere; 1 attempt is left{next}"));
        assert_eq!(describe(-1, retry), format!("fits nowhere; attempts are unlimited{next}"));
        assert_eq!(describe(-1, None), "fits nowhere; attempts are unlimited, each after a change");
    }

    #[test]
    fn a_waiting_application_is_described_in_short() {
        let cluster = ObjectKey::new(Kind::Cluster, Some("testing"), "own");
        let describe = |outcome| describe_wait(&outcome, &decision(Outcome::Failed).clusters, NOW);
        let counts = "fits nowhere: of 3 clusters 2 not online, 1 with other labels";
        assert_eq!(describe(Outcome::Failed).as_deref(), Some(counts));
        assert_eq!(describe(Outcome::Stays { on: cluster.clone(), why: Stay::Best }), None);
        let until = OffsetDateTime::UNIX_EPOCH;
        assert_eq!(
            describe(Outcome::Stays { on: cluster.clone(), why: Stay::NotOnline { until } }).as_deref(),
            Some("its cluster is not online")
        );
        assert_eq!(
            describe(Outcome::WaitsForCluster { cluster }).as_deref(),
            Some("waits until Cluster testing/own is online")
        );
        let until = NOW + Duration::milliseconds(3_600_500);
        assert_eq!(
            describe(Outcome::WaitsForMetric { metrics: vec!["heat".to_owned()], until }).as_deref(),
            Some("waits for the first value of heat, for 1h0m more")
        );
        assert_eq!(serialized_word(&Stay::Recent { until }, NOW), "recent, for 1h0m more");
        assert_eq!(describe_count(&Counts::default()), "there is no cluster");
    }
}
