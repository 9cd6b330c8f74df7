//! Checks that the tests exist that the lists of faults and of mutants name: after a rename or a removal, a row would
//! claim a protection that no test gives.

use std::collections::{BTreeMap, BTreeSet};

use crate::documents::code;
use crate::repository::{text, texts};
use crate::{nothing, one};

/// Documents whose tables name tests in the last column.
const LISTS: [&str; 2] = ["docs/FOUND.md", "docs/mutants.md"];

/// Names of the tests in Rust sources, by the attribute before the function.
fn tests(sources: &BTreeMap<String, String>) -> BTreeSet<&str> {
    let mut found = BTreeSet::new();
    for source in sources.values() {
        let mut is_test = false;
        for line in source.lines().map(str::trim_start) {
            is_test |= ["#[test]", "#[tokio::test"].iter().any(|attribute| line.starts_with(attribute));
            if let Some(rest) = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ") {
                let end = rest.find(|letter: char| !letter.is_alphanumeric() && letter != '_');
                found.extend(std::mem::take(&mut is_test).then(|| &rest[..end.unwrap_or(rest.len())]));
            }
        }
    }
    found
}

/// Names of tests in the last column of a document's tables: spans of code with underscores and nothing else.
fn named(document: &str) -> Vec<&str> {
    let rows = document.lines().filter_map(|line| line.strip_prefix("| ")?.trim_end().strip_suffix(" |"));
    let spans = rows.filter_map(|row| row.rsplit(" | ").next()).flat_map(code);
    let is_name = |span: &&str| {
        span.contains('_') && span.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
    };
    spans.filter(is_name).collect()
}

fn missing_tests(path: &str, document: &str, tests: &BTreeSet<&str>) -> Vec<String> {
    let missing = named(document).into_iter().filter(|name| !tests.contains(name));
    missing.map(|name| format!("{path}: no such test: {name}")).collect()
}

#[test]
fn tests_of_found_faults_and_mutants_exist() {
    let sources = texts(".", ".rs");
    let tests = tests(&sources);
    for path in LISTS {
        let document = text(path);
        assert!(!named(&document).is_empty(), "{path} names no test");
        nothing(&missing_tests(path, &document, &tests));
    }
}

#[test]
fn name_of_a_missing_test_is_found() {
    let source = "#[test]\nfn plan_is_kept() {}\n\n#[tokio::test(start_paused = true)]\n#[ignore]\nasync fn poll_ends() {}\n\nfn helper_of_tests() {}\n";
    let sources = BTreeMap::from([("a.rs".to_owned(), source.to_owned())]);
    let tests = tests(&sources);
    let document =
        |names: &str| format!("| Fault `some_key` | Test |\n|---|---|\n| a `some_key` | {names} |\n");
    nothing(&missing_tests("FOUND.md", &document("`plan_is_kept`, `poll_ends`, `fault-name`"), &tests));
    one(&missing_tests("FOUND.md", &document("`plan_is_kept`, `plan_is_lost`"), &tests), &["plan_is_lost"]);
    one(&missing_tests("FOUND.md", &document("`helper_of_tests`"), &tests), &["helper_of_tests"]);
}
