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
    one(&find("madako plans"), &["README.md", "no such command", "plans"]);
    one(&find("madako sabakan set-uri http://10.0.0.1"), &["no such command", "set-uri"]);
    one(&find("madako plan --lose rack=3"), &["madako plan has no --lose"]);
    one(&find("madako sabakan set-url -o json"), &["set-url has no -o"]);
}
