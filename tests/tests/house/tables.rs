//! Compares the table of docs/METRICS.md with the metrics of the code: names, kinds and labels.
//!
//! Reads the code as text. It understands the macros of the `metrics` crate with the name as a literal or as a constant
//! of the same crate, and labels written as `"label" => value`; and, for the process's metrics, calls of `metric(text,
//! ...)`. The comparison with pages of running services is in `bin/madako/tests/cli/service/page.rs`.

use std::collections::{BTreeMap, BTreeSet};

use crate::repository::{members, text, texts};
use crate::{nothing, one};

#[derive(Debug, Default, PartialEq, Eq)]
struct Metric {
    /// `counter`, `gauge` or `histogram`; more than one is a fault.
    kinds: BTreeSet<String>,
    labels: BTreeSet<String>,
    /// True if the code describes it.
    described: bool,
    /// True if the code sets it anywhere.
    set: bool,
}

/// The text of the first string literal in `code`.
fn literal(code: &str) -> Option<&str> {
    code.split_once('"')?.1.split_once('"').map(|(literal, _)| literal)
}

/// The code before a file's tests.
fn without_tests(source: &str) -> &str {
    source.split("#[cfg(test)]\nmod tests {").next().unwrap_or(source)
}

/// The text between the parenthesis at the beginning of `code` and its closing one.
fn arguments(code: &str) -> &str {
    let mut depth = 0_usize;
    let mut quoted = false;
    for (at, character) in code.char_indices() {
        match character {
            '"' => quoted = !quoted,
            '(' if !quoted => depth += 1,
            ')' if !quoted => {
                depth -= 1;
                if depth == 0 {
                    return &code[1..at];
                }
            }
            _ => {}
        }
    }
    code
}

/// Every metric that the code describes or sets.
fn exported(sources: &BTreeMap<String, String>) -> BTreeMap<String, Metric> {
    let mut metrics: BTreeMap<String, Metric> = BTreeMap::new();
    for (file, source) in sources {
        let code = without_tests(source);
        let same_crate = file.split_once("/src/").map_or("", |(directory, _)| directory);
        // A constant of this file, or else of another file of the crate.
        let value = |constant: &str| {
            let definition = format!("const {constant}: &str =");
            let others =
                sources.iter().filter(|(other, _)| other.starts_with(same_crate)).map(|(_, source)| source);
            std::iter::once(source)
                .chain(others)
                .find_map(|source| source.split_once(&definition).and_then(|(_, rest)| literal(rest)))
        };
        for kind in ["counter", "gauge", "histogram"] {
            let call = format!("{kind}!(");
            for (at, _) in code.match_indices(&call) {
                let described = code[..at].ends_with("describe_");
                let whole_name =
                    described || !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
                let arguments = arguments(&code[at + call.len() - 1..]);
                let first = arguments.trim_start().split(',').next().unwrap_or(arguments).trim();
                let name = literal(first).or_else(|| value(first));
                let Some(name) = name.filter(|_| whole_name) else { continue };
                let metric = metrics.entry(name.to_owned()).or_default();
                metric.kinds.insert(kind.to_owned());
                metric.described |= described;
                metric.set |= !described;
                let labels = arguments
                    .match_indices("\" =>")
                    .filter_map(|(end, _)| arguments[..end].rsplit('"').next());
                metric.labels.extend(labels.map(str::to_owned));
            }
        }
        for (at, call) in code.match_indices(" metric(") {
            let arguments = arguments(&code[at + call.len() - 1..]);
            let literals: Vec<&str> = arguments.split('"').skip(1).step_by(2).collect();
            if let ([name, kind, _], true) = (&literals[..], arguments.trim_start().starts_with("text,")) {
                let kinds = BTreeSet::from([(*kind).to_owned()]);
                let metric = Metric { kinds, described: true, set: true, ..Metric::default() };
                metrics.insert((*name).to_owned(), metric);
            }
        }
    }
    metrics
}

/// Rows `| name | kind | labels | meaning |` of the tables of a document.
fn documented(document: &str) -> BTreeMap<String, Metric> {
    let mut metrics = BTreeMap::new();
    for line in document.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        if let [name, kind, labels, meaning] = cells[..] {
            let labels = labels.split('`').skip(1).step_by(2).map(str::to_owned).collect();
            let metric = Metric {
                kinds: BTreeSet::from([kind.to_owned()]),
                labels,
                described: !meaning.is_empty(),
                set: true,
            };
            metrics.insert(name.trim_matches('`').to_owned(), metric);
        }
    }
    metrics
}

/// The differences between the table and the code, and metrics that the code describes or sets only.
fn differences(document: &str, sources: &BTreeMap<String, String>) -> Vec<String> {
    let (documented, exported) = (documented(document), exported(sources));
    let mut findings = Vec::new();
    for (name, metric) in &exported {
        if !["madako_", "cke_", "process_"].iter().any(|start| name.starts_with(start)) {
            findings.push(format!("{name}: begins with neither madako_ nor cke_, and is not of the process"));
        }
        if !metric.described {
            findings.push(format!("{name}: set but not described"));
        }
        if !metric.set {
            findings.push(format!("{name}: described but never set"));
        }
        match documented.get(name) {
            None => findings.push(format!("{name}: not in the table")),
            Some(row) if row.kinds != metric.kinds => {
                findings.push(format!("{name}: the table says {:?}, the code {:?}", row.kinds, metric.kinds));
            }
            Some(row) if row.labels != metric.labels => {
                findings.push(format!(
                    "{name}: the table has the labels {:?}, the code {:?}",
                    row.labels, metric.labels
                ));
            }
            Some(row) if !row.described => findings.push(format!("{name}: no meaning in the table")),
            Some(_) => {}
        }
    }
    let gone = documented.keys().filter(|name| !exported.contains_key(*name));
    findings.extend(gone.map(|name| format!("{name}: in the table, not in the code")));
    findings
}

/// Metrics in documents that the table does not have.
fn unknown_mentions(documents: &BTreeMap<String, String>, table: &str) -> Vec<String> {
    let known = documented(table);
    let mut findings = Vec::new();
    for (path, document) in documents {
        for word in document.split(|letter: char| !letter.is_ascii_lowercase() && letter != '_') {
            let is_name = word.starts_with("madako_") || word.starts_with("cke_");
            // A name with this ending is a prefix, such as all of `madako_`.
            if is_name && !word.ends_with('_') && !known.contains_key(word) {
                findings.push(format!("{path}: no such metric: {word}"));
            }
        }
    }
    findings
}

fn sources() -> BTreeMap<String, String> {
    let members = members();
    let sources = members.iter().filter(|member| member.directory != "tests");
    sources.flat_map(|member| texts(&format!("{}/src", member.directory), ".rs")).collect()
}

#[test]
fn the_table_of_metrics_says_what_the_code_exports() {
    assert!(exported(&sources()).len() > 10, "the metrics in the code are not recognized any more");
    nothing(&differences(&text("docs/METRICS.md"), &sources()));
}

/// Gauges of leader-only actors that are missing in the list of leader-only metrics.
fn left_behind(sources: &BTreeMap<String, String>, of_a_leader: &[&str]) -> Vec<String> {
    // Every actor except the leader runs only in the reign.
    let of_reign = |file: &str| file.starts_with("actors/") && !file.starts_with("actors/leader/");
    let sources = sources.iter().filter(|(file, _)| of_reign(file));
    let exported = exported(&sources.map(|(file, source)| (file.clone(), source.clone())).collect());
    let gauges = exported.into_iter().filter(|(_, metric)| metric.kinds.contains("gauge"));
    gauges
        .map(|(name, _)| name)
        .filter(|name| !name.starts_with("cke_"))
        // A prefix is followed by a space or by labels.
        .filter(|name| !of_a_leader.iter().any(|start| format!("{name} ").starts_with(start)))
        .collect()
}

#[test]
fn gauges_of_a_leader_are_not_shown_by_others() {
    let source = text("supervisor/src/http.rs");
    let list = source.split_once("const OF_A_LEADER").and_then(|(_, rest)| rest.split_once("];"));
    let (list, _) = list.expect("a list of the metrics that only a leader shows");
    let of_a_leader: Vec<&str> = list.split('"').skip(1).step_by(2).collect();
    nothing(&left_behind(&sources(), &of_a_leader));
    let missing: Vec<&str> = of_a_leader.into_iter().filter(|name| *name != "madako_reports").collect();
    assert_eq!(
        left_behind(&sources(), &missing),
        ["madako_reports", "madako_reports_refused", "madako_reports_timestamp_seconds"]
    );
}

#[test]
fn metrics_that_documents_mention_exist() {
    nothing(&unknown_mentions(&texts("docs", ".md"), &text("docs/METRICS.md")));
}

#[test]
fn a_mention_of_a_metric_that_is_gone_is_found() {
    let table = "| `madako_leader` | gauge | | Leads. |\n";
    let mention = |text: &str| BTreeMap::from([("docs/GUIDE.md".to_owned(), text.to_owned())]);
    nothing(&unknown_mentions(&mention("`sum(madako_leader)`, all of `madako_*` and cke_"), table));
    one(&unknown_mentions(&mention("watch `cke_leader`"), table), &["docs/GUIDE.md", "cke_leader"]);
}

#[test]
fn a_difference_between_table_and_code_is_found() {
    let code = "const AGE: &str =\n    \"madako_age_seconds\";\n\
        describe_counter!(\"madako_polls_total\", \"Polls (all).\");\n\
        counter!(\"madako_polls_total\", \"outcome\" => name(1)).increment(1);\n\
        describe_gauge!(AGE, \"Age.\");\ngauge!(AGE).set(1.0);\n\
        #[cfg(test)]\nmod tests {\n    gauge!(\"other\");\n}\n";
    let table = "| Name | Kind | Labels | Meaning |\n|---|---|---|---|\n\
        | `madako_polls_total` | counter | `outcome` | Polls. |\n| `madako_age_seconds` | gauge | | Age. |\n";
    let find =
        |table: &str, code: &str| differences(table, &BTreeMap::from([("a.rs".to_owned(), code.to_owned())]));
    nothing(&find(table, code));
    one(&find(&table.replace("| counter |", "| gauge |"), code), &["madako_polls_total", "gauge"]);
    one(&find(&table.replace("`outcome`", ""), code), &["madako_polls_total", "outcome"]);
    one(&find(&table.replace("Age. |", "|"), code), &["madako_age_seconds", "no meaning"]);
    one(
        &find(&table.replace("| `madako_age_seconds` | gauge | | Age. |\n", ""), code),
        &["madako_age_seconds", "not in the table"],
    );
    one(
        &find(table, &code.replace("gauge!(AGE).set", "drop(AGE).set")),
        &["madako_age_seconds", "never set"],
    );
    one(
        &find(table, &code.replace("describe_gauge!(AGE", "drop(AGE")),
        &["madako_age_seconds", "not described"],
    );
    let process = "write(\n metric(text, \"process_open_fds\", \"gauge\", \"Open.\", 1);\n metric(name, \"x\", \"y\", \"z\");";
    let row = "| `process_open_fds` | gauge | | Open files. |\n";
    nothing(&find(&format!("{table}{row}"), &format!("{process}{code}")));
    one(&find(table, &format!("{process}{code}")), &["process_open_fds", "not in the table"]);
    one(
        &find(&format!("{table}| `madako_gone` | gauge | | Gone. |\n"), code),
        &["madako_gone", "not in the code"],
    );
    let renamed = |text: &str| text.replace("madako_polls_total", "polls_total");
    one(&find(&renamed(table), &renamed(code)), &["polls_total", "begins with neither"]);
}
