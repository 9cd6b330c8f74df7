//! Faults that only the leader observes: the rules of the table, applied to its page `/metrics`.

mod rules;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use time::{Duration, OffsetDateTime};

use self::rules::RULES;
use super::attention::{Attention, list_some};
use super::reasons::explain_reason;
use super::samples::{Samples, to_time};
use crate::commands::node::format_age;

/// The alerts; their summaries are the reasons that the screen shows.
const ALERTS: [&str; 5] = [
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../grafana/rules/actors.yml")),
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../grafana/rules/cluster.yml")),
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../grafana/rules/nodes.yml")),
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../grafana/rules/placement.yml")),
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../grafana/rules/service.yml")),
];

/// A fault in the values of a metric.
struct Rule {
    rule: &'static str,
    /// The alert on the same fault. Its name is also that of the runbook.
    alert: Option<&'static str>,
    /// The part of the system that the fault is in.
    what: &'static str,
    metric: &'static str,
    /// The label that tells the series of the metric apart; each series is compared alone.
    label: Option<&'static str>,
    values: Values,
    when: When,
    since: Since,
    /// A fault that began later, or at an unknown time, is not shown yet; 0: every fault is shown.
    lasting_seconds: f64,
    /// Only the owner of placement knows these values.
    is_of_owner: bool,
    /// The reason, in the form of an alert's summary; `None`: the summary of the alert.
    why: Option<&'static str>,
    remedy: &'static str,
}

/// Values of the label.
enum Values {
    All,
    Only(&'static [&'static str]),
    /// All but those of the lists.
    Except(&'static [&'static [&'static str]]),
}

/// A condition on the value of a metric.
enum When {
    Positive,
    Zero,
    /// The value is a Unix time, at most these seconds ago.
    NewerThan(f64),
    /// The value is a Unix time that comes within these seconds, or has passed.
    EndsWithin(f64),
    /// The value is more than this multiple of another metric's value.
    Exceeds(&'static str, f64),
}

/// The start of a fault.
enum Since {
    /// Nothing keeps the start, as of values that only the page computes.
    Unknown,
    /// The value is the Unix time of the start.
    Value,
    /// The metric that has the Unix time of the start, with the same label or none.
    Gauge(&'static str),
    /// The recorder of metrics keeps the start: one of [`madako_http::FAULT_GAUGES`].
    Recorded,
    /// The value is a duration: the seconds since the start.
    Age,
    /// The value is a Unix time, these seconds after the start.
    Before(f64),
}

/// Every fault in the samples of the leader, in the order of the rules.
pub(super) fn find_observed(samples: &Samples, now: OffsetDateTime) -> Vec<Attention> {
    let is_zero = |metric: &str| samples.sum_of(metric) == Some(0.0);
    // A former leader, and a former owner of placement, still export their last values.
    if is_zero("madako_leader") {
        return Vec::new();
    }
    let is_owner = !is_zero("madako_placement_owner");
    let rules = RULES.iter().filter(|rule| is_owner || !rule.is_of_owner);
    rules.filter_map(|rule| apply_rule(rule, samples, now)).collect()
}

/// One item for all values of the label, so that the screen stays short.
fn apply_rule(rule: &Rule, samples: &Samples, now: OffsetDateTime) -> Option<Attention> {
    let seconds = now.unix_timestamp() as f64;
    let shifted = |start: &dyn Fn(f64) -> f64| -> BTreeMap<String, f64> {
        let values = samples.values_by_label(rule.metric, rule.label).into_iter();
        values.map(|(label, value)| (label, start(value))).collect()
    };
    let starts = match rule.since {
        Since::Unknown => BTreeMap::new(),
        Since::Value => samples.values_by_label(rule.metric, rule.label),
        Since::Gauge(metric) => samples.values_by_label(metric, rule.label),
        Since::Recorded => samples.fault_starts(rule.metric),
        Since::Age => shifted(&|age| seconds - age),
        Since::Before(lead) => shifted(&|end| end - lead),
    };
    // A gauge without the label has one start for all values.
    let start_of = |label: &String| to_time(*starts.get(label).or_else(|| starts.get(""))?);
    let mut values = samples.values_by_label(rule.metric, rule.label);
    values.retain(|label, value| {
        let has_lasted =
            || start_of(label).is_some_and(|start| (now - start).as_seconds_f64() >= rule.lasting_seconds);
        rule.values.contain(label)
            && rule.when.is_met(*value, seconds, samples)
            && (rule.lasting_seconds <= 0.0 || has_lasted())
    });
    let first = *values.values().next()?;
    let since = values.keys().filter_map(start_of).min();
    let value = match rule.when {
        When::EndsWithin(_) => describe_end(first, seconds),
        _ => format!("{:.0}", values.values().sum::<f64>()),
    };
    let labels: Vec<String> = values.into_keys().collect();
    let text = rule.why.or_else(|| summary_of(rule.alert?))?;
    let runbook = rule.alert.map(|alert| format!("; runbook {alert}")).unwrap_or_default();
    Some(Attention {
        since,
        ..Attention::new(
            rule.what,
            rule.rule,
            render_summary(text, &labels, &value),
            &format!("{}{runbook}", rule.remedy),
        )
    })
}

fn describe_end(end: f64, now: f64) -> String {
    let left = Duration::seconds((end - now) as i64);
    if left.is_negative() { format!("{} ago", format_age(-left)) } else { format!("in {}", format_age(left)) }
}

impl Values {
    fn contain(&self, label: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(listed) => listed.contains(&label),
            Self::Except(lists) => !lists.iter().any(|listed| listed.contains(&label)),
        }
    }
}

impl When {
    fn is_met(&self, value: f64, now: f64, samples: &Samples) -> bool {
        match self {
            Self::Positive => value > 0.0,
            Self::Zero => value <= 0.0,
            Self::NewerThan(seconds) => value > 0.0 && now - value < *seconds,
            Self::EndsWithin(seconds) => value > 0.0 && value - now < *seconds,
            Self::Exceeds(metric, factor) => samples.sum_of(metric).is_some_and(|most| value > factor * most),
        }
    }
}

/// The summary of an alert, in Prometheus' template language.
fn summary_of(alert: &str) -> Option<&'static str> {
    let begin = format!("- alert: {alert}\n");
    let rule = ALERTS.iter().find_map(|rules| rules.split_once(&begin))?.1;
    rule.split_once("summary: \"")?.1.split('"').next()
}

/// Fills in the value and the labels of a summary.
fn render_summary(summary: &str, labels: &[String], value: &str) -> String {
    let mut text = String::new();
    let mut rest = summary;
    while let Some((before, (field, behind))) =
        rest.split_once("{{ ").and_then(|(before, rest)| Some((before, rest.split_once(" }}")?)))
    {
        text.push_str(before);
        match field {
            "$value" => text.push_str(value),
            "$labels.instance" => text.push_str("the leader"),
            "$labels.job" => text.push_str("Madako"),
            "$labels.reason" => {
                let reasons: Vec<String> = labels.iter().map(|label| explain_reason(label)).collect();
                text.push_str(&list_some(&reasons));
            }
            _ => text.push_str(&list_some(labels)),
        }
        rest = behind;
    }
    text + rest
}
