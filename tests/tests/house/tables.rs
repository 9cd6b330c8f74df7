//! Compares the tables of docs/METRICS.md with the metrics that the crates declare, and checks that each metric is
//! declared in a table that the supervisor lists. The comparison with pages of running services is in
//! `bin/madako/tests/cli/service/page.rs`.

use std::collections::{BTreeMap, BTreeSet};

use madako_protocol::telemetry::Metric;

use crate::repository::{members, text, texts};
use crate::{nothing, one};

/// The one file that may use the macros of the `metrics` crate.
const DECLARES: &str = "messages/protocol/src/telemetry.rs";

fn declared() -> Vec<Metric> {
    madako_supervisor::all_metrics().copied().collect()
}

/// The row of a metric up to its meaning: `| name | kind | labels |`.
fn head(Metric { kind, name, labels, .. }: &Metric) -> String {
    let labels: Vec<String> = labels.iter().map(|label| format!("`{label}` ")).collect();
    format!("| `{name}` | {kind} | {}|", labels.join(", ").replace(" ,", ","))
}

/// The differences between the rows of a document and the declared metrics.
fn differences(document: &str, metrics: &[Metric]) -> Vec<String> {
    let rows: Vec<&str> = document.lines().filter(|line| line.starts_with("| `")).collect();
    let is_row = |row: &str, metric: &Metric| {
        row.strip_prefix(&head(metric)).is_some_and(|meaning| !meaning.trim_matches([' ', '|']).is_empty())
    };
    let missing = metrics.iter().filter(|metric| !rows.iter().any(|row| is_row(row, metric)));
    let missing = missing.map(|metric| format!("no row {} {} |", head(metric), metric.text));
    let gone = rows.iter().filter(|row| !metrics.iter().any(|metric| is_row(row, metric)));
    missing.chain(gone.map(|row| format!("no crate declares {row}"))).collect()
}

/// Names of another system, and names that are declared twice.
fn misnamed(metrics: &[Metric]) -> Vec<String> {
    let mut known = BTreeSet::new();
    let is_ours =
        |name: &str| ["madako_", "cke_", "process_"].into_iter().any(|prefix| name.starts_with(prefix));
    let names = metrics.iter().map(|metric| metric.name);
    let wrong = names.filter(|name| !is_ours(name) || !known.insert(*name));
    wrong.map(|name| format!("{name}: declared twice, or begins with neither madako_ nor cke_")).collect()
}

/// Metrics in documents that no crate declares.
fn unknown_mentions(documents: &BTreeMap<String, String>, metrics: &[Metric]) -> Vec<String> {
    let known: BTreeSet<&str> = metrics.iter().map(|metric| metric.name).collect();
    let mut findings = Vec::new();
    for (path, document) in documents {
        for word in document.split(|letter: char| !letter.is_ascii_lowercase() && letter != '_') {
            let is_name = word.starts_with("madako_") || word.starts_with("cke_");
            // A name with this ending is a prefix, such as all of `madako_`.
            if is_name && !word.ends_with('_') && !known.contains(word) {
                findings.push(format!("{path}: no such metric: {word}"));
            }
        }
    }
    findings
}

/// Uses of metrics without a declaration, and crates whose table is not in `lists`. The supervisor lists actors of a
/// leader before the others, because an instance that does not lead hides their gauges.
fn unlisted(sources: &BTreeMap<String, String>, lists: &str) -> Vec<String> {
    let (of_a_leader, others) = lists.split_once("const OF_AN_INSTANCE").expect("two lists");
    let mut findings = Vec::new();
    for (file, source) in sources.iter().filter(|(file, _)| *file != DECLARES) {
        let source = source.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        if ["counter!(", "gauge!(", "histogram!("].into_iter().any(|used| source.contains(used)) {
            findings.push(format!("{file}: uses a metric that no table declares"));
        }
        let directory = file.split("/src/").next().unwrap_or_default();
        let is_of_a_leader = directory.starts_with("actors/") && directory != "actors/leader";
        let list = if is_of_a_leader { of_a_leader } else { others };
        let name = directory.rsplit('/').next().unwrap_or_default().replace('-', "_");
        let is_listed = list.contains(&format!(" madako_{name}::")) || name == "supervisor";
        if source.contains("declare_metrics! {") && !is_listed {
            findings.push(format!("{file}: the table is not in its list in supervisor/src/telemetry.rs"));
        }
    }
    findings
}

/// Metrics whose function only the declaration names. The values of `process_` metrics stand beside their table.
fn unused(metrics: &[Metric], sources: &BTreeMap<String, String>) -> Vec<String> {
    let count = |name: &str| -> usize { sources.values().map(|source| source.matches(name).count()).sum() };
    let declared = metrics.iter().map(|metric| metric.name).filter(|name| !name.starts_with("process_"));
    let unused = declared.filter(|name| count(&format!("{name}(")) < 2);
    unused.map(|name| format!("{name}: declared, and not used")).collect()
}

fn sources() -> BTreeMap<String, String> {
    let members = members();
    let sources = members.iter().filter(|member| member.directory != "tests");
    sources.flat_map(|member| texts(&format!("{}/src", member.directory), ".rs")).collect()
}

#[test]
fn the_page_of_metrics_has_each_declared_metric() {
    assert!(declared().len() > 10, "the crates declare metrics");
    nothing(&differences(&text("docs/METRICS.md"), &declared()));
    nothing(&misnamed(&declared()));
}

#[test]
fn metrics_that_documents_mention_exist() {
    nothing(&unknown_mentions(&texts("docs", ".md"), &declared()));
}

#[test]
fn each_crate_declares_its_metrics_in_a_listed_table() {
    nothing(&unlisted(&sources(), &text("supervisor/src/telemetry.rs")));
    nothing(&unused(&declared(), &sources()));
}

#[test]
fn a_metric_that_no_code_uses_is_found() {
    let metric = Metric { kind: "gauge", name: "madako_leader", labels: &[], text: "Leads." };
    let found = |code: &str| {
        let code = format!("gauge madako_leader() \"Leads.\";\n{code}");
        unused(&[metric], &BTreeMap::from([("a.rs".to_owned(), code)]))
    };
    nothing(&found("use crate::madako_leader;\nmadako_leader().set(1.0);"));
    one(&found("use crate::madako_leader;"), &["madako_leader", "not used"]);
}

#[test]
fn mention_of_a_missing_metric_is_found() {
    let metrics = [Metric { kind: "gauge", name: "madako_leader", labels: &[], text: "Leads." }];
    let mention = |text: &str| BTreeMap::from([("docs/GUIDE.md".to_owned(), text.to_owned())]);
    nothing(&unknown_mentions(&mention("`sum(madako_leader)`, all of `madako_*` and cke_"), &metrics));
    one(&unknown_mentions(&mention("watch `cke_leader`"), &metrics), &["docs/GUIDE.md", "cke_leader"]);
}

#[test]
fn a_difference_between_the_page_and_the_declarations_is_found() {
    let polls = Metric {
        kind: "counter",
        name: "madako_polls_total",
        labels: &["subject", "outcome"],
        text: "Polls.",
    };
    let age = Metric { kind: "gauge", name: "madako_age_seconds", labels: &[], text: "Age." };
    let row = "| `madako_polls_total` | counter | `subject`, `outcome` | Polls. |\n";
    let table = format!(
        "| Name | Kind | Labels | Meaning |\n|---|---|---|---|\n{row}| `madako_age_seconds` | gauge | | Age. |\n"
    );
    nothing(&differences(&table, &[polls, age]));
    one(&differences(&table.replace(row, ""), &[polls, age]), &["no row", row.trim_end()]);
    one(&differences(&table, &[age]), &["no crate declares", row.trim_end()]);
    for (correct, wrong) in [("counter", "gauge"), ("`subject`, ", ""), ("Polls.", "")] {
        let found = differences(&table.replace(correct, wrong), &[polls, age]);
        assert_eq!(found.len(), 2, "the row is missing, and there is another one: {found:?}");
    }
    nothing(&misnamed(&[polls, age]));
    one(&misnamed(&[polls, age, age]), &["madako_age_seconds", "twice"]);
    one(&misnamed(&[Metric { name: "polls_total", ..polls }]), &["polls_total", "begins with neither"]);
}

#[test]
fn a_metric_without_a_listed_table_is_found() {
    let lists = "const OF_A_LEADER = [\n madako_sabakan_poller::METRICS,\n];\n\
        const OF_AN_INSTANCE = [\n madako_leader::METRICS,\n];\n";
    let file =
        |file: &str, code: &str| unlisted(&BTreeMap::from([(file.to_owned(), code.to_owned())]), lists);
    let table = "madako_protocol::declare_metrics! {\n}\n#[cfg(test)]\nmod tests {\n gauge!(\"a\");\n}\n";
    nothing(&file("actors/sabakan-poller/src/actor.rs", table));
    nothing(&file("actors/leader/src/actor.rs", table));
    nothing(&file("supervisor/src/telemetry.rs", table));
    one(&file("adapters/sabakan/src/telemetry.rs", table), &["adapters/sabakan", "not in its list"]);
    let in_the_other_list = lists.replace("poller", "x").replace("leader::", "sabakan_poller::");
    let poller = BTreeMap::from([("actors/sabakan-poller/src/actor.rs".to_owned(), table.to_owned())]);
    one(&unlisted(&poller, &in_the_other_list), &["actors/sabakan-poller", "not in its list"]);
    for code in ["metrics::gauge!(\"a\")", "describe_counter!(A)", "histogram!(A)"] {
        one(&file("actors/leader/src/actor.rs", code), &["actors/leader/src/actor.rs", "no table"]);
    }
}
