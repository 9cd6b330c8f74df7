//! Checks the documents: links have targets, and the named files and make targets exist.
//!
//! Not here: metrics (see `tables`), settings and examples (see `settings`), commands (see `commands`), and the truth
//! of a sentence.

use std::collections::{BTreeMap, BTreeSet};

use madako_domain::invariants::Id;

use crate::repository::{root, text, texts};
use crate::{nothing, one};

/// Prefixes of paths that exist only on one person's machine.
const PRIVATE_PATHS: [&str; 5] = ["/home/", "/root/", "/Users/", "/work/", "C:\\"];

/// A line of a document: prose, or in a fenced block of code.
#[derive(Debug, PartialEq, Eq)]
enum Line<'a> {
    Prose(&'a str),
    Code(&'a str),
}

/// The lines of a document without fences.
fn lines(document: &str) -> Vec<Line<'_>> {
    let mut in_code = false;
    let mut lines = Vec::new();
    for line in document.lines() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        } else {
            lines.push(if in_code { Line::Code(line) } else { Line::Prose(line) });
        }
    }
    lines
}

/// Code: lines of blocks, and spans in prose.
pub(crate) fn code(document: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for line in lines(document) {
        match line {
            Line::Code(line) => found.push(line),
            Line::Prose(line) => found.extend(line.split('`').skip(1).step_by(2)),
        }
    }
    found
}

/// Targets of the links in prose.
fn links(document: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for line in lines(document) {
        if let Line::Prose(line) = line {
            // A link may contain code spans, and is never inside of one.
            for outside in line.split('`').step_by(2) {
                found.extend(
                    outside.match_indices("](").filter_map(|(at, _)| outside[at + 2..].split(')').next()),
                );
            }
        }
    }
    found
}

/// The anchors of a document's headings, as forges make them.
fn anchors(document: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    for line in lines(document) {
        if let Line::Prose(line) = line
            && line.starts_with('#')
        {
            let heading = line.trim_start_matches('#').trim().to_lowercase();
            let kept = heading
                .chars()
                .filter(|letter| letter.is_alphanumeric() || matches!(letter, ' ' | '-' | '_'));
            anchors.insert(kept.collect::<String>().replace(' ', "-"));
        }
    }
    anchors
}

/// `target` relative to `document`, with `.` and `..` resolved; `None` if it leaves the repository.
fn resolve(document: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = document.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            _ => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// Links without a target.
fn broken_links(documents: &BTreeMap<String, String>, exists: &dyn Fn(&str) -> bool) -> Vec<String> {
    let mut findings = Vec::new();
    for (path, document) in documents {
        for link in links(document) {
            if link.starts_with("https://") {
                continue;
            }
            let (target, anchor) =
                link.split_once('#').map_or((link, None), |(target, anchor)| (target, Some(anchor)));
            let resolved = if target.is_empty() { Some(path.clone()) } else { resolve(path, target) };
            let Some(resolved) = resolved.filter(|resolved| exists(resolved)) else {
                findings.push(format!("{path}: nothing at {link}"));
                continue;
            };
            if let Some(anchor) = anchor
                && !documents.get(&resolved).is_some_and(|document| anchors(document).contains(anchor))
            {
                findings.push(format!("{path}: no such heading: {link}"));
            }
        }
    }
    findings
}

/// The terms of the glossary: the first cells of its table.
fn terms(glossary: &str) -> Vec<&str> {
    let rows = glossary.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" | "));
    rows.map(|(term, _)| term).skip(1).collect()
}

/// Names in code that link to a Rust file which does not define them, such as ``[`Name`](file.rs)``.
fn undefined_names(documents: &BTreeMap<String, String>, read: &dyn Fn(&str) -> String) -> Vec<String> {
    const DEFINES: [&str; 7] = ["struct", "enum", "trait", "type", "fn", "const", "mod"];
    let mut findings = Vec::new();
    for (path, document) in documents {
        for (at, _) in document.match_indices("`](") {
            let name = document[..at].rsplit('`').next().unwrap_or_default();
            let target = document[at + 3..].split(')').next().unwrap_or_default();
            let Some(file) = resolve(path, target).filter(|file| file.ends_with(".rs")) else { continue };
            let code = read(&file);
            let words: Vec<&str> =
                code.split(|letter: char| !letter.is_alphanumeric() && letter != '_').collect();
            if !words.windows(2).any(|pair| DEFINES.contains(&pair[0]) && pair[1] == name) {
                findings.push(format!("{path}: {file} does not define {name}"));
            }
        }
    }
    findings
}

/// Missing files and directories of the repository that a document names in code. A name counts if it begins with one
/// of `top`, the entries of the root.
fn missing_files(
    documents: &BTreeMap<String, String>,
    top: &BTreeSet<String>,
    exists: &dyn Fn(&str) -> bool,
) -> Vec<String> {
    let mut findings = Vec::new();
    for (path, document) in documents {
        for word in code(document).into_iter().flat_map(|code| code.split([' ', '"', '(', ')', ',', ';'])) {
            let word = word.trim_end_matches(['.', ':']);
            let is_path = word.split_once('/').is_some_and(|(first, _)| top.contains(first));
            let pattern = word.contains(['*', '<', '{', '$']);
            if is_path && !pattern && !exists(word.trim_end_matches('/')) {
                findings.push(format!("{path}: no such file: {word}"));
            }
        }
    }
    findings
}

/// Make targets that a document names and the Makefile does not have.
fn missing_targets(documents: &BTreeMap<String, String>, makefile: &str) -> Vec<String> {
    let name = |line: &str| {
        line.chars().take_while(|letter| letter.is_ascii_lowercase() || *letter == '-').collect()
    };
    let targets: BTreeSet<String> = makefile
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(target, _)| target.to_owned())
        .filter(|target| name(target) == *target)
        .collect();
    let mut findings = Vec::new();
    for (path, document) in documents {
        for line in code(document) {
            for command in line.split("&&") {
                if let Some(rest) = command.trim().trim_start_matches("$ ").strip_prefix("make ") {
                    let target: String = name(rest.trim());
                    if !targets.contains(&target) {
                        findings.push(format!("{path}: no such make target: {rest}"));
                    }
                }
            }
        }
    }
    findings
}

/// Lines with a path of one machine.
fn private_paths(documents: &BTreeMap<String, String>) -> Vec<String> {
    let mut findings = Vec::new();
    for (path, document) in documents {
        for line in document.lines() {
            let words = line.split([' ', '`', '(', '"', '=']);
            if words.into_iter().any(|word| PRIVATE_PATHS.iter().any(|private| word.starts_with(private))) {
                findings.push(format!("{path}: a path of one machine: {line}"));
            }
        }
    }
    findings
}

/// The layers whose section of the map states no invariant.
fn sections_without_invariant(map: &str) -> Vec<String> {
    let mut findings = Vec::new();
    for section in map.split("\n### ").skip(1) {
        let title = section.lines().next().unwrap_or_default();
        if !section.lines().any(|line| line.starts_with("Invariant: ")) {
            findings.push(format!("no line \"Invariant: \" under {title}"));
        }
    }
    if !map.contains("\n### ") {
        findings.push("the map has no sections".to_owned());
    }
    findings
}

/// Decisions that the index does not link.
fn unlisted_decisions(documents: &BTreeMap<String, String>) -> Vec<String> {
    let index = "docs/decisions/README.md";
    let listed: BTreeSet<String> = documents
        .get(index)
        .map(|index_text| links(index_text).into_iter().filter_map(|link| resolve(index, link)).collect())
        .unwrap_or_default();
    let decisions = documents.keys().filter(|path| path.starts_with("docs/decisions/") && *path != index);
    decisions
        .filter(|path| !listed.contains(*path))
        .map(|path| format!("{index} does not link {path}"))
        .collect()
}

/// Documents that cannot be reached by links from the README.
fn unreachable(documents: &BTreeMap<String, String>) -> Vec<String> {
    let mut reached = BTreeSet::from(["README.md".to_owned()]);
    let mut waiting = vec!["README.md".to_owned()];
    while let Some(path) = waiting.pop() {
        for link in documents.get(&path).map(|document| links(document)).unwrap_or_default() {
            let target = resolve(&path, link.split('#').next().unwrap_or_default()).unwrap_or_default();
            if documents.contains_key(&target) && reached.insert(target.clone()) {
                waiting.push(target);
            }
        }
    }
    let documents = documents.keys().filter(|path| path.starts_with("docs/"));
    documents.filter(|path| !reached.contains(*path)).map(|path| format!("no link leads to {path}")).collect()
}

fn documents() -> BTreeMap<String, String> {
    let documents = texts(".", ".md");
    assert!(
        documents.contains_key("README.md") && documents.contains_key("docs/ARCHITECTURE.md"),
        "{documents:?}"
    );
    documents
}

fn exists(path: &str) -> bool {
    root().join(path).exists()
}

/// A valid document and its link targets.
fn example(readme: &str) -> BTreeMap<String, String> {
    BTreeMap::from([
        ("README.md".to_owned(), format!("# Madako\nSee [the map](docs/MAP.md#the-two-halves).\n{readme}\n")),
        (
            "docs/MAP.md".to_owned(),
            "# Map\n[up](../README.md)\n## The two halves\n[why](decisions/README.md)\n".to_owned(),
        ),
        ("docs/decisions/README.md".to_owned(), "[runner](runner.md)\n".to_owned()),
        ("docs/decisions/runner.md".to_owned(), "# A process a test\n".to_owned()),
    ])
}

fn in_example(path: &str) -> bool {
    example("").contains_key(path) || path == "scripts/set-up"
}

#[test]
fn links_in_documents_have_targets() {
    nothing(&broken_links(&documents(), &exists));
}

#[test]
fn a_link_that_leads_nowhere_is_found() {
    nothing(&broken_links(&example("`[not](a link)` [out](https://etcd.io/docs)"), &in_example));
    nothing(&broken_links(&example("```\n[not](a link)\n```"), &in_example));
    for (link, found) in [
        ("[a](docs/GONE.md)", "nothing at docs/GONE.md"),
        ("[a](docs/MAP.md#one-half)", "no such heading"),
        ("[a](#nowhere)", "no such heading"),
        ("[a](../outside.md)", "nothing at ../outside.md"),
        ("[a](http://etcd.io)", "nothing at http"),
    ] {
        one(&broken_links(&example(link), &in_example), &["README.md", found]);
    }
}

#[test]
fn names_that_link_to_code_are_defined_there() {
    nothing(&undefined_names(&documents(), &text));
}

#[test]
fn a_name_that_is_not_defined_where_its_link_leads_is_found() {
    let read = |_: &str| "pub enum Epoch {\n".to_owned();
    let find = |readme: &str| undefined_names(&example(readme), &read);
    nothing(&find("[`Epoch`](scripts/a.rs), [`up`](docs/MAP.md)"));
    one(&find("[`Term`](scripts/a.rs)"), &["README.md", "scripts/a.rs", "Term"]);
}

#[test]
fn glossary_has_at_most_fifty_terms() {
    assert_eq!(
        terms("| Term | Meaning | Type |\n|---|---|---|\n| epoch | one | `A` |\n| node | two | `B` |\n"),
        ["epoch", "node"]
    );
    let glossary = text("docs/GLOSSARY.md");
    let terms = terms(&glossary);
    assert!((1..=50).contains(&terms.len()), "{} terms: {terms:?}", terms.len());
    let distinct: BTreeSet<&str> = terms.iter().copied().collect();
    assert_eq!(distinct.len(), terms.len(), "a term stands twice: {terms:?}");
}

#[test]
fn named_files_exist() {
    let entries = std::fs::read_dir(root()).expect("the root can be listed");
    let top = entries
        .map(|entry| entry.expect("the root can be listed").file_name().to_string_lossy().into_owned());
    nothing(&missing_files(&documents(), &top.filter(|name| name != "target").collect(), &exists));
}

#[test]
fn mention_of_a_missing_file_is_found() {
    let top = BTreeSet::from(["docs".to_owned(), "scripts".to_owned()]);
    let find = |readme: &str| missing_files(&example(readme), &top, &in_example);
    nothing(&find(
        "`scripts/set-up` and `docs/MAP.md`, prose docs/GONE.md, `etc/other`, `docs/*.md`\n```\nscripts/set-up build\n```",
    ));
    one(&find("`docs/GONE.md`"), &["README.md", "docs/GONE.md"]);
    one(&find("```\nrun scripts/gone now\n```"), &["README.md", "scripts/gone"]);
}

#[test]
fn named_make_targets_exist() {
    nothing(&missing_targets(&documents(), &text("Makefile")));
}

#[test]
fn mention_of_a_missing_make_target_is_found() {
    let makefile = "CARGO ?= cargo\nrun: ## Runs\n\tcargo run\ntest-long: run\n";
    let find = |readme: &str| missing_targets(&example(readme), makefile);
    nothing(&find("`make run` and\n```\n$ make test-long\n```\nwhich make sense"));
    one(&find("`make tests`"), &["README.md", "tests"]);
    one(&find("```\nmake run && make check\n```"), &["README.md", "check"]);
}

#[test]
fn no_document_names_a_path_of_one_machine() {
    nothing(&private_paths(&documents()));
}

#[test]
fn a_path_of_one_machine_is_found() {
    nothing(&private_paths(&example("`/etc/cke/config.yml`, `/var/lib/madako`, a path/home/like")));
    one(&private_paths(&example("in `/home/me/madako`")), &["README.md", "/home/me"]);
    one(&private_paths(&example("dir=/work/main")), &["README.md", "/work/main"]);
}

#[test]
fn each_section_of_the_map_states_an_invariant() {
    nothing(&sections_without_invariant(&text("docs/ARCHITECTURE.md")));
}

#[test]
fn a_section_without_invariant_is_found() {
    let map = "# Map\n### messages\nWords.\nInvariant: no I/O.\n### actors\nInvariant: no other actor.\n";
    nothing(&sections_without_invariant(map));
    one(&sections_without_invariant(&map.replace("Invariant: no I/O.\n", "")), &["messages"]);
    one(&sections_without_invariant("# Map\nInvariant: none.\n"), &["no sections"]);
}

#[test]
fn each_decision_document_is_in_the_index() {
    nothing(&unlisted_decisions(&documents()));
}

#[test]
fn a_decision_outside_the_index_is_found() {
    nothing(&unlisted_decisions(&example("")));
    let mut spoilt = example("");
    spoilt.insert("docs/decisions/store.md".to_owned(), "# Store\n".to_owned());
    one(&unlisted_decisions(&spoilt), &["docs/decisions/store.md"]);
    spoilt.remove("docs/decisions/store.md");
    spoilt.remove("docs/decisions/README.md");
    one(&unlisted_decisions(&spoilt), &["docs/decisions/runner.md"]);
}

#[test]
fn every_document_can_be_reached_from_the_readme() {
    nothing(&unreachable(&documents()));
}

#[test]
fn a_document_that_nothing_links_is_found() {
    nothing(&unreachable(&example("")));
    let mut spoilt = example("");
    spoilt.insert("docs/LOST.md".to_owned(), "[self](LOST.md)\n".to_owned());
    one(&unreachable(&spoilt), &["docs/LOST.md"]);
}

#[test]
fn architecture_document_lists_every_invariant() {
    let map = text("docs/ARCHITECTURE.md");
    let rows = map.lines().filter_map(|line| line.strip_prefix("| I")?.split_once(" | "));
    let listed: Vec<String> = rows.map(|(number, _)| format!("I{number}")).collect();
    let known: Vec<&str> = Id::ALL.iter().map(|id| id.name()).collect();
    assert_eq!(listed, known);
}
