//! The rows of a report's tables, and its sentences. Cells that may be long are the last ones, which a table wraps.

use madako_console::push_wrapped;
use madako_faults::Span;
use madako_simulation::run::rehearsal::{PlacementObservation, PlanObservation, RepairObservation};

use crate::output::escape_unprintable;

/// Nodes named in the row of a plan.
const NODES: usize = 3;
/// Indentation of the further lines of a sentence.
const INDENT: usize = 2;

/// Sentences in lines that fit the terminal, if there is one.
pub(super) fn wrap_sentences(sentences: &[String], width: Option<usize>) -> String {
    let mut text = String::new();
    for sentence in sentences {
        push_wrapped(&mut text, "", &escape_unprintable(sentence), INDENT, width.unwrap_or(usize::MAX));
    }
    text
}

fn show_time(span: Option<Span>, before: &str) -> String {
    span.map_or_else(|| before.to_owned(), |span| span.to_string())
}

/// An event with its reason, which may be empty.
fn add_reason(text: &str, why: &str) -> String {
    match (text, why) {
        (_, "") => text.to_owned(),
        ("", _) => why.to_owned(),
        _ => format!("{text}: {why}"),
    }
}

pub(super) fn plan_cells(observed: &PlanObservation) -> [String; 3] {
    let mut nodes: Vec<String> = observed
        .changes
        .iter()
        .take(NODES)
        .map(|change| format!("{} {} ({})", change.change.name(), change.address, change.part.name()))
        .collect();
    let more = observed.changes_total.saturating_sub(nodes.len());
    if more > 0 {
        nodes.push(format!("and {more} more"));
    }
    let why = observed.reasons.first().cloned().unwrap_or_default();
    [observed.at.to_string(), observed.action.clone(), add_reason(&nodes.join(", "), &why)]
}

pub(super) fn repair_cells(observed: &RepairObservation) -> [String; 8] {
    let last = observed.steps.last().map(|step| step.what.clone()).unwrap_or_default();
    let began = if observed.requested.is_none() && observed.status != "queued" { "before" } else { "-" };
    [
        observed.index.to_string(),
        observed.address.clone(),
        observed.operation.clone(),
        show_time(observed.requested, "before"),
        show_time(observed.begins, began),
        show_time(observed.ends, "-"),
        observed.status.clone(),
        last,
    ]
}

pub(super) fn placement_cells(observed: &PlacementObservation) -> [String; 4] {
    let name =
        |word: &str, cluster: &Option<String>| cluster.as_ref().map(|cluster| format!("{word} {cluster}"));
    let path: Vec<String> =
        [name("from", &observed.from), name("to", &observed.to)].into_iter().flatten().collect();
    let text = add_reason(&path.join(" "), observed.why.as_deref().unwrap_or_default());
    [observed.at.to_string(), observed.application.clone(), observed.what.clone(), text]
}

#[cfg(test)]
mod tests {
    use madako_domain::plan::{Change, ChangeKind, Part};

    use super::*;

    #[test]
    fn a_plan_names_its_first_nodes_and_its_reason_in_the_cell_that_is_wrapped() {
        let change = |address: &str| Change {
            change: ChangeKind::Demote,
            address: address.to_owned(),
            part: Part::Worker,
        };
        let mut observed = PlanObservation {
            at: Span::from_millis(60_000),
            action: "replace-control-plane".to_owned(),
            changes: ["10.0.2.72", "10.0.2.73", "10.0.2.74", "10.0.2.75"].map(change).to_vec(),
            changes_total: 9,
            reasons: vec!["the machine is UNREACHABLE".to_owned(), "another one".to_owned()],
        };
        let nodes =
            "demote 10.0.2.72 (worker), demote 10.0.2.73 (worker), demote 10.0.2.74 (worker), and 6 more";
        let expected = format!("{nodes}: the machine is UNREACHABLE");
        assert_eq!(plan_cells(&observed), ["1m".to_owned(), "replace-control-plane".to_owned(), expected]);
        observed.reasons.clear();
        assert_eq!(plan_cells(&observed)[2], nodes);
        observed.changes.clear();
        observed.changes_total = 0;
        assert_eq!(plan_cells(&observed)[2], "");
    }

    #[test]
    fn sentences_fit_the_terminal() {
        let sentences =
            ["7200 s simulated in 11.5 s. History 00ff00ff00ff00ff, 120000 lines.", "Short\u{1b}."];
        let text = wrap_sentences(&sentences.map(str::to_owned), Some(60));
        let expected =
            "7200 s simulated in 11.5 s. History 00ff00ff00ff00ff, 120000\n  lines.\nShort\u{fffd}.\n";
        assert_eq!(text, expected);
        assert_eq!(wrap_sentences(&sentences.map(str::to_owned), None).lines().count(), 2);
    }
}
