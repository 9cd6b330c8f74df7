//! `madako kube app explain`: the reasons for an application's cluster, and the changes that would move it.

use std::collections::BTreeMap;

use madako_domain::placement::decision::{Decision, Outcome};
use madako_domain::placement::fit::Unmet;
use serde::Deserialize;
use serde_json::Value;
use time::OffsetDateTime;

use super::client::{Api, Request};
use super::given::GivenOptions;
use super::{CommandScope, Settings};
use crate::failure::Failure;
use crate::output::{Format, Table, print, printable, show};

/// The parts of an explanation that the table shows.
#[derive(Deserialize)]
struct ExplanationView {
    /// The current decision; `None`: the instance does not schedule.
    decision: Option<Decision>,
    last: Option<Decision>,
    /// The host of the scheduling instance, from another one.
    leader: Option<String>,
    clusters: Vec<Candidate>,
    clouds: Vec<Candidate>,
}

#[derive(Deserialize)]
struct Candidate {
    target: Target,
    current: bool,
    dropped: Option<Dropped>,
    metrics: Vec<Metric>,
    base: Option<f64>,
    score: Option<f64>,
}

#[derive(Deserialize)]
struct Target {
    namespace: Option<String>,
    name: String,
}

#[derive(Deserialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
enum Dropped {
    Unmet {
        unmet: Vec<Unmet>,
    },
    WaitsForMetric {
        metric: String,
    },
    FailingMetrics {
        metric: String,
    },
    WithoutMetrics,
    LeftOut,
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
struct Metric {
    metric: String,
    weight: f64,
    value: Option<f64>,
    normalized: Option<f64>,
    age: Option<f64>,
    oscillates: bool,
    range: Option<(f64, f64)>,
    #[serde(default, with = "time::serde::rfc3339::option")]
    since: Option<OffsetDateTime>,
    note: Option<String>,
}

pub(super) async fn run(
    settings: &Settings,
    place: &CommandScope,
    given: &GivenOptions,
    format: Format,
) -> Result<(), Failure> {
    let name = given.name()?;
    let subject = format!("the explanation of {}", place.called(name));
    let mut request = Request::new("GET", place.segments(&[name, "explain"]), subject);
    for option in ["with", "without"] {
        request.query.extend(given.texts(option).into_iter().map(|text| (option, text)));
    }
    let body = Api::new(settings)?.send(&request).await?.body;
    match format {
        Format::Table => {
            let shown: ExplanationView = serde_json::from_value(body).map_err(|error| {
                Failure::failed(format_args!("{} cannot be read: {error}", request.subject))
            })?;
            print(&format_text(&place.called(name), &shown))
        }
        format => show(format, &body, |_: &Value| String::new()),
    }
}

fn format_text(application: &str, shown: &ExplanationView) -> String {
    let mut text = match (&shown.decision, &shown.leader) {
        (Some(decision), _) => format!("{application}: {}\n", printable(&describe_decision(decision))),
        (None, Some(host)) => {
            format!("{application}: ask the leader on {} for the present decision\n", printable(host))
        }
        (None, None) => format!("{application}: no instance makes placement decisions now\n"),
    };
    if let Some(last) = &shown.last {
        text += &format!("last decision, at {}: {}\n", last.at, printable(&describe_decision(last)));
    }
    for (heading, candidates) in [("CLUSTER", &shown.clusters), ("CLOUD", &shown.clouds)] {
        if candidates.is_empty() {
            continue;
        }
        let mut table = Table::new([heading, "SCORE", "WITHOUT STICKINESS", "METRICS", "WHY NOT"]);
        for candidate in candidates {
            let Target { namespace, name } = &candidate.target;
            let mark = if candidate.current { " (current)" } else { "" };
            table.row([
                namespace.as_ref().map_or_else(|| name.clone(), |namespace| format!("{namespace}/{name}"))
                    + mark,
                format_number(candidate.score),
                format_number(candidate.base),
                candidate.metrics.iter().map(metric).collect::<Vec<_>>().join(", "),
                candidate.dropped.as_ref().map_or_else(String::new, describe_dropped),
            ]);
        }
        text.push('\n');
        text += &table.text();
    }
    text += &advice(&shown.clusters);
    text
}

/// Advice on clusters that are not online: one line for each state.
fn advice(clusters: &[Candidate]) -> String {
    let mut by_state: BTreeMap<&str, Vec<&Target>> = BTreeMap::new();
    for candidate in clusters {
        for unmet in candidate.unmet() {
            if let Unmet::NotOnline { state } = unmet {
                by_state.entry(state.name()).or_default().push(&candidate.target);
            }
        }
    }
    let mut text = String::new();
    for (state, targets) in by_state {
        let first = targets[0];
        let namespace = first.namespace.as_deref().unwrap_or_default();
        let others = match targets.len() - 1 {
            0 => String::new(),
            others => format!(" (and {others} more)"),
        };
        let why = match state {
            "PENDING" => "no operator and no observer has reported its state yet",
            "OFFLINE" => "an operator or an observer has reported it as offline",
            _ => "its observer or an operator has reported this state",
        };
        let command = format!("madako kube cluster set-state {} online -n {namespace}", first.name);
        text += &printable(&format!(
            "{namespace}/{}{others} is {state}: {why}. Once it can run applications: {command}",
            first.name
        ));
        text.push('\n');
    }
    if text.is_empty() { text } else { format!("\n{text}") }
}

impl Candidate {
    fn unmet(&self) -> &[Unmet] {
        match &self.dropped {
            Some(Dropped::Unmet { unmet }) => unmet,
            _ => &[],
        }
    }
}

fn describe_decision(decision: &Decision) -> String {
    let mut said = match &decision.outcome {
        Outcome::Bound { to } => format!("is bound to {to}"),
        Outcome::Stays { on, why } => format!("stays on {on} ({})", serialized_word(why)),
        Outcome::Moved { from, to, why } => format!("moves from {from} to {to} ({})", serialized_word(why)),
        Outcome::Held { on, to, why, rule } => {
            format!(
                "stays on {on}; its move to {to} ({}) is held by {}",
                serialized_word(why),
                serialized_word(rule)
            )
        }
        Outcome::Degraded { retries, retry } => {
            let left = match retries {
                1 => "1 attempt is left".to_owned(),
                _ if *retries < 0 => "attempts are unlimited".to_owned(),
                _ => format!("{retries} attempts are left"),
            };
            let next = match retry {
                Some(retry) => format!(", next at {retry}, or earlier after a change"),
                None => ", each after a change".to_owned(),
            };
            format!("fits nowhere; {left}{next}")
        }
        Outcome::Failed => "fits nowhere, and no attempts are left".to_owned(),
        Outcome::WaitsForMetric { metrics, until } => {
            format!("waits until {until} for the first value of {}", metrics.join(", "))
        }
        Outcome::Creates { cluster, cloud } => format!("{cluster} is created for it on {cloud}"),
        Outcome::WaitsForCluster { cluster } => format!("waits until {cluster} is online"),
        Outcome::LeftAlone { why } => format!("the scheduler ignores it ({})", serialized_word(why)),
    };
    if let Some(gain) = &decision.gain {
        said += &format!(
            "; the best alternative is better by {:.3}; a move needs more than {:.3}",
            gain.gain, gain.stickiness
        );
    }
    if let Some(second) = &decision.runner_up {
        said += &format!("; the next best is {} with {:.3}", second.target, second.score);
    }
    said
}

/// The name of a reason, with its times and limits.
fn serialized_word<T: serde::Serialize>(reason: &T) -> String {
    match serde_json::to_value(reason) {
        Ok(Value::String(word)) => word.replace('_', " "),
        Ok(Value::Object(fields)) => {
            let word = ["reason", "rule"].iter().find_map(|name| fields.get(*name)?.as_str());
            let rest = fields
                .iter()
                .filter(|(name, value)| !["reason", "rule"].contains(&name.as_str()) && !value.is_null())
                .map(|(name, value)| format!("{name} {}", value.to_string().trim_matches('"')));
            let rest: Vec<String> = rest.collect();
            let word = word.unwrap_or_default().replace('_', " ");
            if rest.is_empty() { word } else { format!("{word}, {}", rest.join(", ")) }
        }
        _ => String::new(),
    }
}

fn describe_dropped(dropped: &Dropped) -> String {
    match dropped {
        Dropped::Unmet { unmet } => unmet.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "),
        Dropped::WaitsForMetric { metric } => format!("{metric} was never fetched"),
        Dropped::FailingMetrics { metric } => format!("{metric} has no value"),
        Dropped::WithoutMetrics => "it has no metrics, but other candidates have".to_owned(),
        Dropped::LeftOut => "excluded by --without".to_owned(),
        Dropped::Other => "see -o json".to_owned(),
    }
}

fn metric(metric: &Metric) -> String {
    let Metric { metric, weight, value, normalized, age, oscillates, range, since, note } = metric;
    let mut text = format!("{metric} {} x {weight}", format_number(*normalized));
    if let (Some(value), Some(age)) = (value, age) {
        text += &format!(" ({value}, {age:.0} s old");
        if let Some(note) = note {
            text += &format!("; {}", printable(note));
        }
        text.push(')');
    }
    if let Some((least, greatest)) = range {
        text += &format!(" within {least} to {greatest}");
        if let Some(since) = since {
            // To the second.
            text += &format!(" since {}", since.replace_nanosecond(0).unwrap_or(*since));
        }
    }
    if *oscillates {
        text += " oscillates";
    }
    text
}

fn format_number(number: Option<f64>) -> String {
    number.map_or_else(|| "-".to_owned(), |number| format!("{number:.3}"))
}

#[cfg(test)]
mod tests {
    use madako_domain::placement::decision::{self, Counts, Explanation, Gain, MetricPart, Ranked, Stay};
    use madako_domain::placement::kind::{Kind, ObjectKey};
    use serde_json::json;

    use super::*;

    fn cluster(name: &str) -> ObjectKey {
        ObjectKey::new(Kind::Cluster, Some("testing"), name)
    }

    fn candidate(name: &str, current: bool, dropped: Option<decision::Dropped>) -> decision::Candidate {
        let metric = MetricPart {
            metric: "heat".to_owned(),
            weight: 2.0,
            value: Some(5.0),
            normalized: Some(0.5),
            age: Some(3.2),
            oscillates: true,
            range: Some((4.0, 6.5)),
            since: Some(OffsetDateTime::UNIX_EPOCH),
            note: Some("of 2 series the first".to_owned()),
        };
        decision::Candidate {
            target: cluster(name),
            current,
            dropped,
            metrics: vec![metric],
            base: Some(0.5),
            score: current.then_some(0.524),
        }
    }

    #[test]
    fn explanation_of_the_service_is_shown_as_a_table() {
        let unmet = vec![Unmet::Label { constraint: "location is DE".to_owned(), got: None }];
        let explanation = Explanation {
            application: ObjectKey::new(Kind::Application, Some("testing"), "echo"),
            revision: 7,
            decision: Decision {
                at: OffsetDateTime::UNIX_EPOCH,
                outcome: Outcome::Stays { on: cluster("own"), why: Stay::Best },
                best: None,
                runner_up: Some(Ranked { target: cluster("near"), score: 0.5, has_metrics: true }),
                gain: Some(Gain { gain: 0.0, stickiness: 0.024 }),
                clusters: Counts::default(),
            },
            last: None,
            stickiness: 0.1,
            clusters: vec![
                candidate("far", false, Some(decision::Dropped::Unmet { unmet })),
                candidate("none", false, Some(decision::Dropped::WithoutMetrics)),
                candidate("own", true, None),
            ],
            clouds: Vec::new(),
        };
        let shown = serde_json::from_value(serde_json::to_value(&explanation).unwrap()).unwrap();
        let text = format_text("Application testing/echo", &shown);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[0],
            "Application testing/echo: stays on Cluster testing/own (best); the best alternative is better \
             by 0.000; a move needs more than 0.024; the next best is Cluster testing/near with 0.500"
        );
        assert!(
            lines[3].starts_with("testing/far ")
                && lines[3].ends_with("location is DE: it has no such label")
        );
        assert!(lines[4].ends_with("it has no metrics, but other candidates have"), "{text}");
        assert!(
            lines[5].contains("(current)")
                && lines[5].contains(
                    "heat 0.500 x 2 (5, 3 s old; of 2 series the first) within 4 to 6.5 since 1970-01-01 \
                     0:00:00.0 +00:00:00 oscillates"
                ),
            "{text}"
        );
    }

    #[test]
    fn explanation_of_a_degraded_application_names_the_next_attempt() {
        let told = |retries, retry| {
            describe_decision(&Decision {
                at: OffsetDateTime::UNIX_EPOCH,
                outcome: Outcome::Degraded { retries, retry },
                best: None,
                runner_up: None,
                gain: None,
                clusters: Counts::default(),
            })
        };
        let next = ", next at 1970-01-01 0:00:00.0 +00:00:00, or earlier after a change";
        let retry = Some(OffsetDateTime::UNIX_EPOCH);
        assert_eq!(told(2, retry), format!("fits nowhere; 2 attempts are left{next}"));
        assert_eq!(told(1, retry), format!("fits nowhere; 1 attempt is left{next}"));
        assert_eq!(told(-1, retry), format!("fits nowhere; attempts are unlimited{next}"));
        assert_eq!(told(-1, None), "fits nowhere; attempts are unlimited, each after a change");
    }

    #[test]
    fn follower_shows_the_last_decision() {
        let last = json!({
            "at": "2026-01-01T00:00:00Z", "outcome": "failed", "best": null, "runner_up": null, "gain": null,
            "clusters": Counts::default(),
        });
        let answer = |leader: Value| {
            let shown =
                json!({ "decision": null, "last": last, "leader": leader, "clusters": [], "clouds": [] });
            format_text("Application testing/echo", &serde_json::from_value(shown).unwrap())
        };
        let lines = answer(json!("host1"));
        assert!(
            lines.starts_with("Application testing/echo: ask the leader on host1 for the present decision\n")
        );
        assert!(lines.contains("last decision, at 2026-01-01 0:00:00.0 +00:00:00: fits nowhere"), "{lines}");
        assert!(answer(Value::Null).contains("no instance makes"));
    }
}
