//! The text form of a forecast.

use std::fmt::Write as _;

use madako_console::format_duration_in_words;
use madako_reboot_queue::forecast::{ExpectedDuration, Forecast, MeasuredDuration, Wave};

use crate::output::Table;

pub(super) fn format_forecast(forecast: &Forecast) -> String {
    let mut text = format_summary(forecast);
    let duration = &forecast.duration;
    let mut facts = Table::new(["DURATION", &format_expected(duration)]);
    for (name, measured) in [("drains", duration.drains), ("boots", duration.boots)] {
        facts.add_row([name.to_owned(), format_history(measured)]);
    }
    if duration.aborted_drains > 0 {
        facts.add_row(["aborted drains".to_owned(), duration.aborted_drains.to_string()]);
    }
    facts.add_row(["dry runs".to_owned(), forecast.dry_runs.to_string()]);
    add_table(&mut text, &facts, true);

    let mut obstacles = Table::new(["OBSTACLE", "WHY"]);
    for obstacle in &forecast.obstacles {
        obstacles.add_row([obstacle.name.to_owned(), obstacle.why.clone()]);
    }
    add_table(&mut text, &obstacles, !forecast.obstacles.is_empty());

    let mut down = Table::new(["NODE DOWN", "WHY"]);
    for node in &forecast.nodes_down {
        down.add_row([node.node.clone(), node.why.to_owned()]);
    }
    add_table(&mut text, &down, !forecast.nodes_down.is_empty());

    let mut under_way = Table::new(["ENTRY", "UNDER WAY", "STATUS", "ENDS IN"]);
    for entry in &forecast.under_way {
        let [index, status] = [entry.index.to_string(), entry.status.clone()];
        under_way.add_row([index, entry.node.clone(), status, format_time(entry.ends_after_seconds)]);
    }
    add_table(&mut text, &under_way, !forecast.under_way.is_empty());
    add_waves(&mut text, &forecast.waves);
    text
}

fn format_summary(forecast: &Forecast) -> String {
    let (mut nodes, mut blocked) = (0, 0);
    for node in forecast.waves.iter().flat_map(|wave| &wave.nodes) {
        nodes += 1;
        blocked += usize::from(!node.blockers.is_empty());
    }
    match (nodes, forecast.waves.len()) {
        (0, _) => "No reboot waits.\n".to_owned(),
        (nodes, waves) => format!("Reboots: {nodes}. Waves: {waves}. Blocked reboots: {blocked}.\n"),
    }
}

fn format_expected(duration: &ExpectedDuration) -> String {
    match (duration.expected_seconds, duration.worst_seconds) {
        (Some(expected), Some(worst)) => {
            format!("{}, at worst {}", format_duration_in_words(expected), format_duration_in_words(worst))
        }
        _ => format!("unknown: {}", duration.unknown.unwrap_or_default()),
    }
}

fn format_history(measured: Option<MeasuredDuration>) -> String {
    let Some(MeasuredDuration { count, median_seconds, worst_seconds }) = measured else {
        return "none in the history".to_owned();
    };
    format!(
        "{count} in the history, median {}, worst {}",
        format_duration_in_words(median_seconds),
        format_duration_in_words(worst_seconds)
    )
}

fn format_time(seconds: Option<u64>) -> String {
    seconds.map_or_else(|| "-".to_owned(), format_duration_in_words)
}

fn add_waves(text: &mut String, waves: &[Wave]) {
    let mut table = Table::new(["WAVE", "ENTRY", "NODE", "BEGINS IN", "ENDS IN", "PODS", "BLOCKERS"]);
    let mut blockers = Table::new(["BLOCKED", "KIND", "AGE", "WHY"]);
    let mut notes = Table::new(["NOTE ON", "KIND", "WHY"]);
    let (mut has_blockers, mut has_notes) = (false, false);
    for wave in waves {
        let [begins, ends] = [wave.begins_after_seconds, wave.ends_after_seconds].map(format_time);
        for node in &wave.nodes {
            table.add_row([
                wave.number.to_string(),
                node.index.map_or_else(|| "-".to_owned(), |index| index.to_string()),
                node.node.clone(),
                begins.clone(),
                ends.clone(),
                node.pods.to_string(),
                node.blockers.len().to_string(),
            ]);
            for blocker in &node.blockers {
                has_blockers = true;
                let age = format_time(blocker.age_seconds);
                blockers.add_row([node.node.clone(), blocker.kind.to_owned(), age, blocker.why.clone()]);
            }
            for note in &node.notes {
                has_notes = true;
                notes.add_row([node.node.clone(), note.kind.to_owned(), note.why.clone()]);
            }
        }
        for note in &wave.notes {
            has_notes = true;
            notes.add_row([format!("wave {}", wave.number), note.kind.to_owned(), note.why.clone()]);
        }
    }
    add_table(text, &table, !waves.is_empty());
    add_table(text, &blockers, has_blockers);
    add_table(text, &notes, has_notes);
}

/// Adds a table with an empty line before it.
fn add_table(text: &mut String, table: &Table, has_rows: bool) {
    if has_rows {
        let _ = write!(text, "\n{}", table.to_text());
    }
}

#[cfg(test)]
mod tests {
    use madako_reboot_queue::forecast::{Blocker, NodeDown, NodeForecast, Note, Obstacle, UnderWay};

    use super::*;

    fn forecast() -> Forecast {
        let measured =
            |median_seconds, worst_seconds| MeasuredDuration { count: 12, median_seconds, worst_seconds };
        let blocker = Blocker {
            kind: "job",
            pod: Some("a/p".to_owned()),
            owners: Vec::new(),
            budgets: Vec::new(),
            age_seconds: Some(10_800),
            why: "the pod a/p of a job runs".to_owned(),
        };
        let note = |why: &str| Note { kind: "budget-rounds", pods: 2, budget: None, why: why.to_owned() };
        let node = |index, address: &str, blockers| NodeForecast {
            index,
            node: address.to_owned(),
            pods: 31,
            blockers,
            notes: vec![note("two pods")],
        };
        Forecast {
            is_blocked: true,
            obstacles: vec![Obstacle { name: "disabled", why: "the queue is disabled".to_owned() }],
            nodes_down: vec![NodeDown { node: "10.0.0.9".to_owned(), why: "the kubelet does not report" }],
            under_way: vec![UnderWay {
                index: 3,
                node: "10.0.0.8".to_owned(),
                status: "draining".to_owned(),
                ends_after_seconds: None,
            }],
            waves: vec![Wave {
                number: 1,
                is_control_plane: false,
                begins_after_seconds: Some(0),
                ends_after_seconds: Some(610),
                nodes: vec![node(Some(12), "10.0.0.1", vec![blocker]), node(None, "10.0.0.2", Vec::new())],
                notes: vec![note("three pods")],
            }],
            duration: ExpectedDuration {
                drains: Some(measured(60, 61)),
                boots: Some(measured(120, 3600)),
                aborted_drains: 2,
                expected_seconds: Some(3700),
                worst_seconds: Some(7300),
                unknown: None,
            },
            dry_runs: 40,
        }
    }

    #[test]
    fn every_part_of_a_forecast_has_its_table() {
        let expected = "\
Reboots: 2. Waves: 1. Blocked reboots: 1.

DURATION        1h1m, at worst 2h1m
drains          12 in the history, median 1m0s, worst 1m1s
boots           12 in the history, median 2m0s, worst 1h0m
aborted drains  2
dry runs        40

OBSTACLE  WHY
disabled  the queue is disabled

NODE DOWN  WHY
10.0.0.9   the kubelet does not report

ENTRY  UNDER WAY  STATUS    ENDS IN
3      10.0.0.8   draining  -

WAVE  ENTRY  NODE      BEGINS IN  ENDS IN  PODS  BLOCKERS
1     12     10.0.0.1  0s         10m10s   31    1
1     -      10.0.0.2  0s         10m10s   31    0

BLOCKED   KIND  AGE   WHY
10.0.0.1  job   3h0m  the pod a/p of a job runs

NOTE ON   KIND           WHY
10.0.0.1  budget-rounds  two pods
10.0.0.2  budget-rounds  two pods
wave 1    budget-rounds  three pods
";
        assert_eq!(format_forecast(&forecast()), expected);
    }

    #[test]
    fn an_unknown_duration_has_its_reason() {
        let mut forecast = forecast();
        forecast.waves.clear();
        forecast.duration = ExpectedDuration {
            drains: None,
            boots: None,
            aborted_drains: 0,
            expected_seconds: None,
            worst_seconds: None,
            unknown: Some("no drain with its reboot is in the history"),
        };
        let text = format_forecast(&forecast);
        assert!(
            text.starts_with("No reboot waits.\n\nDURATION  unknown: no drain with its reboot"),
            "{text}"
        );
        assert!(text.contains("\nboots     none in the history\n"), "{text}");
        assert!(!text.contains("WAVE") && !text.contains("aborted"), "{text}");
    }
}
