//! Compares the commands and flags in documents with docs/commands.md. The program's own tests compare that reference
//! with its help, so that a document that passes names existing commands.

use std::collections::{BTreeMap, BTreeSet};

use crate::documents::code;
use crate::repository::{text, texts};
use crate::{nothing, one};

/// The commands of the reference: words after `madako`, and their flags.
fn known(reference: &str) -> BTreeMap<String, BTreeSet<String>> {
    let flags = |section: &str| -> BTreeSet<String> {
        let rows = section.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` |"));
        let words = rows.flat_map(|(argument, _)| argument.split([',', ' ']));
        words.filter(|word| word.starts_with('-')).map(str::to_owned).collect()
    };
    let mut sections = reference.split("\n## `madako ");
    let common = flags(sections.next().unwrap_or_default());
    sections
        .map(|section| {
            let heading = section.split('`').next().unwrap_or_default();
            // Arguments are in capitals, optional ones in brackets.
            let is_word = |word: &&str| word.starts_with(|letter: char| letter.is_ascii_lowercase());
            let words: Vec<&str> = heading.split(' ').take_while(is_word).collect();
            (words.join(" "), flags(section).union(&common).cloned().collect())
        })
        .collect()
}

/// The problem of a command line, without its `madako`.
fn fault(line: &str, known: &BTreeMap<String, BTreeSet<String>>) -> Option<String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let named = (1..=words.len()).rev().find_map(|count| known.get_key_value(&words[..count].join(" ")));
    let Some((command, flags)) = named else {
        // A group, such as `madako sabakan`, stands for all of its commands.
        let group = format!("{} ", words.join(" "));
        return (!known.keys().any(|command| command.starts_with(&group)))
            .then(|| "no such command".to_owned());
    };
    let given = words.iter().filter(|word| word.starts_with('-') && word.len() > 1);
    given
        .map(|word| word.split('=').next().unwrap_or(word))
        .find(|flag| !flags.contains(*flag))
        .map(|flag| format!("madako {command} has no {flag}"))
}

/// Commands in documents that the reference does not have.
fn unknown_commands(documents: &BTreeMap<String, String>, reference: &str) -> Vec<String> {
    let known = known(reference);
    let mut findings = Vec::new();
    for (path, document) in documents {
        for line in code(document) {
            let command = line.trim().trim_start_matches("$ ").split(" #").next().unwrap_or(line);
            if let Some(rest) = command.strip_prefix("madako ") {
                findings.extend(fault(rest.trim(), &known).map(|why| format!("{path}: {why}: {command}")));
            }
        }
    }
    findings
}

/// Commands in messages and comments of the sources that the reference does not have. The words behind a command may be
/// prose, so flags are not compared; a first word that no command has is taken for prose.
fn unknown_commands_of_sources(sources: &BTreeMap<String, String>, reference: &str) -> Vec<String> {
    let known = known(reference);
    let is_group = |words: &str| known.keys().any(|key| key.starts_with(&format!("{words} ")));
    let find = |behind: &str| -> Option<String> {
        let mut command = String::new();
        for word in behind.split(' ') {
            let bare = word.split(|letter: char| !(letter.is_ascii_lowercase() || letter == '-')).next()?;
            let longer = format!("{command} {bare}").trim_start().to_owned();
            if known.contains_key(&longer) || bare.is_empty() {
                return None;
            }
            if !is_group(&longer) {
                return (!command.is_empty()).then_some(longer);
            }
            // A group at the end of a text stands for all of its commands.
            if bare != word {
                return None;
            }
            command = longer;
        }
        None
    };
    let lines = sources.iter().flat_map(|(path, source)| {
        source.match_indices("madako ").filter_map(move |(place, found)| {
            let line = source[place + found.len()..].lines().next()?;
            Some((path, line))
        })
    });
    lines
        .filter_map(|(path, line)| Some(format!("{path}: no such command: madako {}", find(line)?)))
        .collect()
}

#[test]
fn commands_that_sources_name_exist() {
    let sources: BTreeMap<String, String> = ["actors", "adapters", "bin", "messages", "supervisor"]
        .iter()
        .flat_map(|part| texts(part, ".rs"))
        .filter(|(path, _)| !path.contains("/tests/"))
        .collect();
    nothing(&unknown_commands_of_sources(&sources, &text("docs/commands.md")));
}

#[test]
fn commands_that_documents_name_exist() {
    let mut documents = texts("docs", ".md");
    documents.insert("README.md".to_owned(), text("README.md"));
    let reference = documents.remove("docs/commands.md").expect("the reference is one of the documents");
    assert!(
        known(&reference).len() > 10,
        "the reference is not recognized any more: {:?}",
        known(&reference)
    );
    nothing(&unknown_commands(&documents, &reference));
}

#[test]
fn a_command_that_does_not_exist_is_found() {
    let reference = "# Commands\n| `--config FILE` | Configuration | |\n\n## `madako plan`\n| `-o, --output FORM` | Form | |\n\
        \n## `madako sabakan set-url URL`\nStores.\n";
    let find = |line: &str| {
        let readme = format!("# Readme\n```console\n$ {line}\n```\n");
        unknown_commands(&BTreeMap::from([("README.md".to_owned(), readme)]), reference)
    };
    for valid in [
        "madako plan -o json --config=here   # the next plan",
        "madako sabakan set-url http://10.0.0.1",
        "madako sabakan",
        "another madako",
    ] {
        nothing(&find(valid));
    }
    let find_in_source = |text: &str| {
        unknown_commands_of_sources(&BTreeMap::from([("a.rs".to_owned(), text.to_owned())]), reference)
    };
    for valid in
        ["(madako sabakan set-url stores one)", "madako starts", "`madako sabakan`", "see madako plan"]
    {
        nothing(&find_in_source(valid));
    }
    one(&find_in_source("(see madako sabakan removal)"), &["a.rs", "madako sabakan removal"]);
    one(&find("madako plans"), &["README.md", "no such command", "plans"]);
    one(&find("madako sabakan set-uri http://10.0.0.1"), &["no such command", "set-uri"]);
    one(&find("madako plan --lose rack=3"), &["madako plan has no --lose"]);
    one(&find("madako sabakan set-url -o json"), &["set-url has no -o"]);
}
