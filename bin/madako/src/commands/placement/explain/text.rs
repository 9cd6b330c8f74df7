//! The explanation for people, in lines that fit the terminal.

use std::collections::BTreeMap;

use madako_console::{cut_to_width, push_wrapped};
use madako_domain::placement::fit::UnmetConstraint;
use time::OffsetDateTime;

use super::sentences::{
    describe_decision, describe_dropped, describe_metric, format_number, metric_in_short,
};
use super::{Candidate, ExplanationView, Target};
use crate::commands::node::format_age;
use crate::list::Tone;
use crate::output::escape_unprintable;

/// Columns of a score, such as `0.524`.
const SCORE: usize = 6;
/// Share of the line that names of candidates may take: reasons need the rest. In the line of a longer name they have less.
const NAME_SHARE: usize = 2;
/// Spaces between two columns, and before lines that belong to the line above.
const GAP: usize = 2;

/// The extent and the width of the output.
#[derive(Clone, Copy)]
pub(super) struct TextLayout {
    pub(super) width: usize,
    pub(super) has_colours: bool,
    /// All metrics and obstacles of each candidate.
    pub(super) is_whole: bool,
    pub(super) now: OffsetDateTime,
}

pub(super) fn format_text(application: &str, shown: &ExplanationView, layout: TextLayout) -> String {
    let mut text = String::new();
    let mut say =
        |sentence: &str| push_wrapped(&mut text, "", &escape_unprintable(sentence), GAP, layout.width);
    match (&shown.decision, &shown.leader) {
        (Some(decision), _) => say(&format!("{application}: {}", describe_decision(decision, layout.now))),
        (None, Some(host)) => {
            say(&format!("{application}: ask the leader on {host} for the present decision"))
        }
        (None, None) => say(&format!("{application}: no instance makes placement decisions now")),
    }
    if let Some(last) = &shown.last {
        let age = format_age(layout.now - last.at);
        say(&format!("last decision, {age} ago: {}", describe_decision(last, layout.now)));
    }
    let best = shown.decision.as_ref().and_then(|decision| decision.best.as_ref());
    let best = best.map(|best| (best.target.namespace.as_deref(), best.target.name.as_str()));
    for (heading, candidates) in [("CLUSTER", &shown.clusters), ("CLOUD", &shown.clouds)] {
        if candidates.is_empty() {
            continue;
        }
        let mut candidates: Vec<&Candidate> = candidates.iter().collect();
        candidates.sort_by(|a, b| {
            let rank = |it: &Candidate| (Some(it.target.key()) != best, it.dropped.is_some(), !it.current);
            rank(a)
                .cmp(&rank(b))
                .then_with(|| b.score.unwrap_or(f64::MIN).total_cmp(&a.score.unwrap_or(f64::MIN)))
        });
        text.push('\n');
        match layout.is_whole {
            true => candidates.iter().for_each(|candidate| push_whole(&mut text, candidate, layout)),
            false => push_table(&mut text, heading, &candidates, layout),
        }
    }
    if !layout.is_whole && !shown.clusters.is_empty() {
        text.push_str("\n--all shows all metrics and all obstacles of each candidate.\n");
    }
    text + &describe_remedies(&shown.clusters, layout.width)
}

/// A candidate with all that is known of it.
fn push_whole(text: &mut String, candidate: &Candidate, layout: TextLayout) {
    let indent = " ".repeat(GAP);
    let mut say = |first: &str, words: &str| {
        push_wrapped(text, first, &escape_unprintable(words), 2 * GAP, layout.width);
    };
    say("", &name(candidate));
    if candidate.score.is_some() || candidate.base.is_some() {
        let (score, base) = (format_number(candidate.score), format_number(candidate.base));
        say(&indent, &format!("score {score}, without stickiness {base}"));
    }
    if let Some(dropped) = &candidate.dropped {
        say(&indent, &describe_dropped(dropped));
    }
    candidate.metrics.iter().for_each(|it| say(&indent, &describe_metric(it, layout.now)));
}

/// The first candidate with its metrics, if it fits, and a line for each other one.
fn push_table(text: &mut String, heading: &str, candidates: &[&Candidate], layout: TextLayout) {
    let most = layout.width / NAME_SHARE;
    let longest = candidates.iter().map(|it| name(it).chars().count()).max().unwrap_or(0);
    let names = longest.max(heading.len()).min(most);
    text.push_str(&format!("{heading:<names$}  {:>SCORE$}  METRICS OR WHY NOT\n", "SCORE"));
    for (place, candidate) in candidates.iter().enumerate() {
        let wins = candidate.dropped.is_none() && place == 0;
        let begin_of_line = text.len();
        let shown = escape_unprintable(&name(candidate));
        let first = format!("{shown:<names$}  {:>SCORE$}  ", format_number(candidate.score));
        let begin = first.chars().count();
        let words = match &candidate.dropped {
            Some(dropped) => describe_dropped(dropped),
            None if wins => String::new(),
            None => candidate.metrics.iter().map(metric_in_short).collect::<Vec<_>>().join(", "),
        };
        text.push_str(
            (first + &cut_to_width(&escape_unprintable(&words), layout.width.saturating_sub(begin)))
                .trim_end(),
        );
        text.push('\n');
        if wins {
            let indent = " ".repeat(GAP);
            for it in &candidate.metrics {
                push_wrapped(
                    text,
                    &indent,
                    &escape_unprintable(&describe_metric(it, layout.now)),
                    2 * GAP,
                    layout.width,
                );
            }
        }
        let tone = match (&candidate.dropped, place) {
            (None, 0) => Tone::Good,
            (Some(_), _) if candidate.current => Tone::Bad,
            _ => Tone::Plain,
        };
        let line = text.split_off(begin_of_line);
        text.push_str(&tone.paint(line.trim_end(), layout.has_colours));
        text.push('\n');
    }
}

fn name(candidate: &Candidate) -> String {
    let Target { namespace, name } = &candidate.target;
    let name = namespace.as_ref().map_or_else(|| name.clone(), |namespace| format!("{namespace}/{name}"));
    name + if candidate.current { " (current)" } else { "" }
}

/// Advice on clusters that are not online: one for each state.
fn describe_remedies(clusters: &[Candidate], width: usize) -> String {
    let mut by_state: BTreeMap<&str, Vec<&Target>> = BTreeMap::new();
    for candidate in clusters {
        for unmet in candidate.unmet_constraints() {
            if let UnmetConstraint::NotOnline { state } = unmet {
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
        let first = &first.name;
        let sentence =
            format!("{namespace}/{first}{others} is {state}: {why}. Once it can run applications:");
        push_wrapped(&mut text, "", &escape_unprintable(&sentence), GAP, width);
        // Not wrapped: an operator copies the command.
        let command = format!("  madako kube cluster set-state {first} online -n {namespace}");
        text.push_str(&escape_unprintable(&command));
        text.push('\n');
    }
    if text.is_empty() { text } else { format!("\n{text}") }
}

#[cfg(test)]
mod tests {
    use madako_domain::placement::decision::{
        self, Counts, Decision, Explanation, Gain, MetricPart, Outcome, RankedCluster, Stay,
    };
    use madako_domain::placement::kind::{Kind, ObjectKey};
    use serde_json::{Value, json};
    use time::macros::datetime;

    use super::*;

    fn cluster(name: &str) -> ObjectKey {
        ObjectKey::new(Kind::Cluster, Some("testing"), name)
    }

    fn candidate(name: &str, current: bool, dropped: Option<decision::DropReason>) -> decision::Candidate {
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

    /// An hour after the range of the metric began.
    const NOW: OffsetDateTime = datetime!(1970-01-01 1:00 UTC);
    const PLAIN: TextLayout = TextLayout { width: 80, has_colours: false, is_whole: false, now: NOW };

    fn explanation() -> ExplanationView {
        let unmet = vec![
            UnmetConstraint::Label { constraint: "location is DE".to_owned(), got: None },
            UnmetConstraint::Label { constraint: "tier is 1".to_owned(), got: None },
        ];
        let near = decision::Candidate { score: Some(0.5), ..candidate("near", false, None) };
        let explanation = Explanation {
            application: ObjectKey::new(Kind::Application, Some("testing"), "echo"),
            revision: 7,
            decision: Decision {
                at: OffsetDateTime::UNIX_EPOCH,
                outcome: Outcome::Stays { on: cluster("own"), why: Stay::Best },
                best: Some(RankedCluster { target: cluster("own"), score: 0.524, has_metrics: true }),
                runner_up: Some(RankedCluster { target: cluster("near"), score: 0.5, has_metrics: true }),
                gain: Some(Gain { gain: 0.0, stickiness: 0.024 }),
                clusters: Counts::default(),
            },
            last: None,
            stickiness: 0.1,
            clusters: vec![
                candidate("far", false, Some(decision::DropReason::Unmet { unmet })),
                near,
                candidate("none", false, Some(decision::DropReason::WithoutMetrics)),
                candidate("own", true, None),
            ],
            clouds: Vec::new(),
        };
        serde_json::from_value(serde_json::to_value(&explanation).unwrap()).unwrap()
    }

    #[test]
    fn the_winner_has_its_metrics_and_each_other_cluster_one_line() {
        let text = format_text("Application testing/echo", &explanation(), PLAIN);
        let expected = "\
Application testing/echo: stays on Cluster testing/own (best); no alternative is
  better; a move needs more than 0.024; the next best is Cluster testing/near
  with 0.500

CLUSTER                 SCORE  METRICS OR WHY NOT
testing/own (current)   0.524
  heat 0.500 x 2 (5, 3 s old; of 2 series the first) within 4 to 6.5 for 1h0m
    oscillates
testing/near            0.500  heat 0.500 x 2
testing/far                 -  location is DE: it has no such label; tier is 1:…
testing/none                -  it has no metrics, but other candidates have

--all shows all metrics and all obstacles of each candidate.
";
        assert_eq!(text, expected);
        let coloured = format_text("it", &explanation(), TextLayout { has_colours: true, ..PLAIN });
        assert!(coloured.contains("\n\u{1b}[32mtesting/own (current) "), "{coloured:?}");
    }

    #[test]
    fn a_long_name_is_never_cut() {
        let mut shown = explanation();
        let long = "a-cluster-with-a-name-of-many-words-in-a-distant-region";
        shown.clusters[0].target.name = long.to_owned();
        let text = format_text("it", &shown, PLAIN);
        let line = text.lines().find(|line| line.contains(long)).unwrap();
        assert!(line.ends_with("-  locati…") && line.chars().count() == 80, "{text}");
    }

    #[test]
    fn everything_is_shown_on_request() {
        let text = format_text("it", &explanation(), TextLayout { is_whole: true, ..PLAIN });
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        for part in [
            "\ntesting/own (current)\n  score 0.524, without stickiness 0.500\n  heat 0.500 x 2 (5, 3 s old;",
            "  location is DE: it has no such label; tier is 1: it has no such label\n  heat 0.500",
        ] {
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        }
    }

    #[test]
    fn follower_shows_the_last_decision() {
        let last = json!({
            "at": "1970-01-01T00:01:40.123456Z", "outcome": "failed", "best": null, "runner_up": null, "gain": null,
            "clusters": Counts::default(),
        });
        let answer = |leader: Value| {
            let shown =
                json!({ "decision": null, "last": last, "leader": leader, "clusters": [], "clouds": [] });
            format_text("Application testing/echo", &serde_json::from_value(shown).unwrap(), PLAIN)
        };
        let lines = answer(json!("host1"));
        assert!(
            lines.starts_with("Application testing/echo: ask the leader on host1 for the present decision\n")
        );
        assert!(lines.contains("last decision, 58m19s ago: fits nowhere"), "{lines}");
        assert!(answer(Value::Null).contains("no instance makes"));
    }
}
