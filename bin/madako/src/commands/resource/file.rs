//! Splits a file into manifests: as ckecli splits it, so that each is stored as typed, and checked as a whole.

use std::collections::BTreeSet;

use madako_domain::resource::ResourceKey;

use crate::failure::Failure;
use crate::input::{display_name, parse_documents, read_text};
use crate::limits::{MAX_FILE_RESOURCES, MAX_PROBLEMS, MAX_RESOURCE_BYTES};

/// A manifest with its text.
#[derive(Debug, PartialEq)]
pub(super) struct Manifest {
    pub(super) key: ResourceKey,
    pub(super) text: String,
}

/// The manifests of a file in its order.
///
/// # Errors
/// The file cannot be read, has no manifest, or has wrong ones: the error names each, and never its content.
pub(super) fn read_manifests(file: &str) -> Result<Vec<Manifest>, Failure> {
    parse_manifests(&read_text(file)?)
        .map_err(|why| Failure::bad_input(format_args!("{}: {why}; nothing was changed", display_name(file))))
}

fn parse_manifests(text: &str) -> Result<Vec<Manifest>, String> {
    let mut manifests = Vec::new();
    let mut keys = BTreeSet::new();
    let mut problems = Vec::new();
    for (number, text) in split_documents(text).into_iter().enumerate() {
        match parse_resource_key(&text) {
            Ok(None) => {}
            Ok(Some(key)) if keys.insert(key.clone()) => manifests.push(Manifest { key, text }),
            Ok(Some(key)) => problems.push(format!("document {}: {key} occurs twice", number + 1)),
            Err(why) => problems.push(format!("document {}: {why}", number + 1)),
        }
    }
    if manifests.len() > MAX_FILE_RESOURCES {
        problems.push(format!("{} resources, expected at most {MAX_FILE_RESOURCES}", manifests.len()));
    }
    if problems.len() > MAX_PROBLEMS {
        let more = problems.len() - MAX_PROBLEMS;
        problems.truncate(MAX_PROBLEMS);
        problems.push(format!("and {more} more"));
    }
    match (problems.is_empty(), manifests.is_empty()) {
        (false, _) => Err(problems.join("; ")),
        (true, true) => Err("no manifest, expected at least one".to_owned()),
        (true, false) => Ok(manifests),
    }
}

/// The resource of a document; `None` for an empty one.
fn parse_resource_key(text: &str) -> Result<Option<ResourceKey>, String> {
    if text.len() > MAX_RESOURCE_BYTES {
        return Err(format!("{} bytes, expected at most {MAX_RESOURCE_BYTES}", text.len()));
    }
    match &parse_documents(text).map_err(|why| format!("not valid YAML: {why}"))?[..] {
        [] => Ok(None),
        [manifest] => ResourceKey::of_manifest(manifest).map(Some).map_err(|why| why.to_string()),
        [..] => {
            Err("several documents; a separator is a line with --- alone, or followed by a comment"
                .to_owned())
        }
    }
}

/// Splits at lines with `---`, which may have a comment; the texts keep their line ends.
fn split_documents(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    for line in text.split_inclusive('\n') {
        let rest = line.strip_prefix("---").map(str::trim);
        match (rest, parts.last_mut()) {
            (Some(rest), Some(_)) if rest.is_empty() || rest.starts_with('#') => parts.push(String::new()),
            (_, Some(part)) => part.push_str(line),
            (_, None) => {}
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = "# first\napiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n--- # next\n\n---\n\
                       {\"apiVersion\": \"v1\", \"kind\": \"Secret\", \"metadata\": {\"name\": \"s\", \"namespace\": \"a\"}}";

    #[test]
    fn texts_are_kept_as_typed() {
        let read = parse_manifests(TWO).unwrap();
        let shown: Vec<_> = read.iter().map(|manifest| (manifest.key.to_string(), &*manifest.text)).collect();
        let (first, second) = TWO.split_once("--- # next\n\n---\n").unwrap();
        assert_eq!(shown, [("Namespace/a".to_owned(), first), ("Secret/a/s".to_owned(), second)]);
    }

    #[test]
    fn each_wrong_document_is_named_without_its_content() {
        let text = format!(
            "{TWO}\n---\nkind: Secret\nstringData: {{a: hunter2}}\n---\n- hunter2\n---\na: 'hunter2\n---\n{}",
            TWO.split_once("---").unwrap().0
        );
        let why = parse_manifests(&text).unwrap_err();
        for part in [
            "document 4: apiVersion: expected a version",
            "document 5: document: expected an object",
            "document 6: not valid YAML: ",
            "document 7: Namespace/a occurs twice",
        ] {
            assert!(why.contains(part), "{why}");
        }
        assert!(!why.contains("hunter2"), "{why}");
        assert_eq!(parse_manifests("---\n# nothing\n").unwrap_err(), "no manifest, expected at least one");
    }

    #[test]
    fn large_files_are_refused() {
        let long = format!("{}# {}\n", TWO.split_once("---").unwrap().0, "x".repeat(MAX_RESOURCE_BYTES));
        assert!(parse_manifests(&long).unwrap_err().contains("expected at most 1048576"));
        let many: String = (0..=MAX_FILE_RESOURCES)
            .map(|number| format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: n{number}}}\n---\n"))
            .collect();
        assert_eq!(parse_manifests(&many).unwrap_err(), "1001 resources, expected at most 1000");
    }
}
