//! Generates the tables of docs/METRICS.md from the metrics that the crates declare (`MADAKO_WRITE_REFERENCE=1` writes
//! the page), and checks that each metric is declared in a table that the supervisor lists. The comparison with pages
//! of running services is in `bin/madako/tests/cli/service/page.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::iter;

use madako_protocol::telemetry::{Metric, Unit};

use crate::repository::{members, root, text, texts};
use crate::{nothing, one};

/// The one file that may use the macros of the `metrics` crate.
const DECLARES: &str = "messages/protocol/src/telemetry.rs";

const PAGE: &str = "docs/METRICS.md";
/// An example.
const LEADER: Metric = Metric {
    kind: "gauge",
    name: "madako_leader",
    unit: None,
    labels: &[],
    section: "Leadership",
    text: "Leads.",
};

fn declared() -> Vec<Metric> {
    madako_supervisor::all_metrics().copied().collect()
}

/// The page with the rows of the declared metrics: each table that the page has is written anew.
fn written(page: &str, metrics: &[Metric]) -> String {
    let mut text = String::new();
    let mut section = "";
    for line in page.lines() {
        section = line.strip_prefix("## ").unwrap_or(section);
        if line.starts_with("| Name ") {
            text.push_str("| Name | Kind | Unit | Labels | Meaning |\n|---|---|---|---|---|\n");
            text.extend(metrics.iter().filter(|metric| metric.section == section).map(row));
        } else if !line.starts_with('|') {
            text.extend([line, "\n"]);
        }
    }
    text
}

fn row(Metric { kind, name, unit, labels, text, .. }: &Metric) -> String {
    let code = |word: &&str| format!("`{word}`");
    let (name, labels) = (code(name), labels.iter().map(code).collect::<Vec<_>>().join(", "));
    let cells = [name.as_str(), kind, unit.map_or("", |unit| unit.as_str()), &labels, text];
    let cells = cells.map(|cell| if cell.is_empty() { String::new() } else { format!(" {cell}") });
    format!("|{} |\n", cells.join(" |"))
}

/// Metrics whose section has no table on the page.
fn homeless(page: &str, metrics: &[Metric]) -> Vec<String> {
    let homeless = metrics.iter().filter(|metric| !page.contains(&row(metric)));
    homeless
        .map(|it| format!("{}: docs/METRICS.md has no table below '## {}'", it.name, it.section))
        .collect()
}

/// Names of another system, names that are declared twice, and names that do not end with the unit.
fn misnamed(metrics: &[Metric]) -> Vec<String> {
    let mut known = BTreeSet::new();
    let is_ours =
        |name: &str| ["madako_", "cke_", "process_"].into_iter().any(|prefix| name.starts_with(prefix));
    let names = metrics.iter().map(|metric| metric.name);
    let wrong = names.filter(|name| !is_ours(name) || !known.insert(*name));
    let wrong = wrong.map(|name| format!("{name}: declared twice, or begins with neither madako_ nor cke_"));
    let of_another_unit = metrics.iter().filter(|metric| {
        let name = metric.name.strip_suffix("_total").unwrap_or(metric.name);
        let ending = [Unit::Seconds, Unit::Bytes].into_iter().find(|unit| name.ends_with(unit.as_str()));
        ending != metric.unit
    });
    let of_another_unit = of_another_unit
        .map(|metric| format!("{}: the name does not end with the unit, {:?}", metric.name, metric.unit));
    iter::chain(wrong, of_another_unit).collect()
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
    let metrics = declared();
    assert!(metrics.len() > 10, "the crates declare metrics");
    let page = written(&text(PAGE), &metrics);
    nothing(&homeless(&page, &metrics));
    nothing(&misnamed(&metrics));
    if std::env::var_os("MADAKO_WRITE_REFERENCE").is_some() {
        std::fs::write(root().join(PAGE), &page).unwrap();
    }
    let present = text(PAGE);
    let differs = present.lines().zip(page.lines()).find(|(present, declared)| present != declared);
    assert!(
        present == page,
        "{PAGE} is out of date (MADAKO_WRITE_REFERENCE=1 writes it); first difference: {differs:?}"
    );
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
    let found = |code: &str| {
        let code = format!("gauge madako_leader() \"Leads.\";\n{code}");
        unused(&[LEADER], &BTreeMap::from([("a.rs".to_owned(), code)]))
    };
    nothing(&found("use crate::madako_leader;\nmadako_leader().set(1.0);"));
    one(&found("use crate::madako_leader;"), &["madako_leader", "not used"]);
}

#[test]
fn mention_of_a_missing_metric_is_found() {
    let mention = |text: &str| BTreeMap::from([("docs/GUIDE.md".to_owned(), text.to_owned())]);
    nothing(&unknown_mentions(&mention("`sum(madako_leader)`, all of `madako_*` and cke_"), &[LEADER]));
    one(&unknown_mentions(&mention("watch `cke_leader`"), &[LEADER]), &["docs/GUIDE.md", "cke_leader"]);
}

#[test]
fn the_tables_of_the_page_follow_the_declarations() {
    let polls = Metric {
        kind: "counter",
        name: "madako_polls_seconds_total",
        unit: Some(Unit::Seconds),
        labels: &["subject", "outcome"],
        section: "The registry",
        text: "Polls.",
    };
    let page = "# Metrics\n\n## The registry\n\nBefore.\n\n| Name |\n| `gone` |\n\nAfter.\n\n## Leadership\n\n| Name |\n";
    let head = "| Name | Kind | Unit | Labels | Meaning |\n|---|---|---|---|---|\n";
    let expected = format!(
        "# Metrics\n\n## The registry\n\nBefore.\n\n{head}| `madako_polls_seconds_total` | counter | seconds | `subject`, \
         `outcome` | Polls. |\n\nAfter.\n\n## Leadership\n\n{head}| `madako_leader` | gauge | | | Leads. |\n"
    );
    assert_eq!(written(page, &[LEADER, polls]), expected);
    assert_eq!(written(&expected, &[LEADER, polls]), expected);
    nothing(&homeless(&expected, &[LEADER, polls]));
    one(
        &homeless(&expected, &[Metric { section: "Lead", text: "", ..LEADER }]),
        &["madako_leader", "'## Lead'"],
    );
    nothing(&misnamed(&[polls, LEADER]));
    one(&misnamed(&[polls, LEADER, LEADER]), &["madako_leader", "twice"]);
    one(&misnamed(&[Metric { name: "polls_seconds", ..polls }]), &["polls_seconds", "begins with neither"]);
    one(&misnamed(&[Metric { unit: None, ..polls }]), &["madako_polls_seconds_total", "unit"]);
    one(&misnamed(&[Metric { unit: Some(Unit::Bytes), ..LEADER }]), &["madako_leader", "unit"]);
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
