//! Checks the manifests and the lists of exceptions: one version of each dependency, the workspace's lints everywhere,
//! and a reason for each prohibition and exception.

use std::collections::{BTreeMap, BTreeSet};

use crate::repository::{members, text, texts};
use crate::{nothing, one};

/// Lines of a TOML file below each header, without comments and empty lines.
fn sections(toml: &str) -> BTreeMap<String, Vec<String>> {
    let mut sections: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut header = String::new();
    for line in toml.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'))
            && !name.contains(['"', '{', ' '])
        {
            name.clone_into(&mut header);
            sections.entry(header.clone()).or_default();
        } else if !line.is_empty() && !line.starts_with('#') {
            sections.entry(header.clone()).or_default().push(line.to_owned());
        }
    }
    sections
}

/// The name at the beginning of a line `name = value` or `name.key = value`.
fn key(line: &str) -> &str {
    line.split(['=', '.', ' ']).next().unwrap_or(line)
}

/// Fields that a member's manifest must inherit from the workspace and does not.
fn not_inherited(manifest: &str) -> Vec<String> {
    let sections = sections(manifest);
    let empty = Vec::new();
    let section = |name: &str| sections.get(name).unwrap_or(&empty);
    let mut findings = Vec::new();
    if !section("lints").iter().any(|line| line == "workspace = true") {
        findings.push("does not inherit the workspace's lints".to_owned());
    }
    for field in ["version", "edition", "rust-version", "license", "publish"] {
        if !section("package").contains(&format!("{field}.workspace = true")) {
            findings.push(format!("does not inherit {field}"));
        }
    }
    for kind in ["dependencies", "dev-dependencies", "build-dependencies"] {
        for line in section(kind).iter().filter(|line| !line.contains("workspace = true")) {
            findings.push(format!("has a version of its own in [{kind}]: {line}"));
        }
    }
    findings
}

/// Dependencies that the root declares and no member uses.
fn unused(root: &str, manifests: &[String]) -> Vec<String> {
    let mut used = BTreeSet::new();
    for manifest in manifests {
        for (header, lines) in sections(manifest) {
            if header.ends_with("dependencies") {
                used.extend(lines.iter().map(|line| key(line).to_owned()));
            }
        }
    }
    let sections = sections(root);
    let declared = sections.get("workspace.dependencies").expect("the root declares dependencies");
    let unused = declared.iter().filter(|line| !used.contains(key(line)));
    unused.map(|line| format!("no member uses {}", key(line))).collect()
}

/// Settings that let a release build plant bugs: debug assertions in a release profile.
fn plants(root: &str) -> Vec<String> {
    let sections = sections(root);
    let released = sections.iter().filter(|(header, _)| header.starts_with("profile.release"));
    let lines = released.flat_map(|(_, lines)| lines).filter(|line| key(line) == "debug-assertions");
    lines.map(|line| format!("a release could be built with planted bugs: {line}")).collect()
}

/// Entries `{ path = ... }` and `{ crate = ... }` of a list without a reason. An entry is a line.
fn without_reason(toml: &str) -> Vec<String> {
    toml.lines()
        .map(str::trim)
        .filter(|line| line.starts_with("{ path = \"") || line.starts_with("{ crate = \""))
        .filter(|line| line.split_once("reason = \"").is_none_or(|(_, reason)| reason.starts_with('"')))
        .map(|line| format!("no reason: {line}"))
        .collect()
}

/// Attributes that allow a lint without a reason.
fn unexplained(sources: &BTreeMap<String, String>) -> Vec<String> {
    let mut findings = Vec::new();
    for (file, source) in sources {
        for opening in ["#[allow(", "#![allow(", "#[expect(", "#![expect("] {
            for (at, _) in source.match_indices(opening) {
                let end = source[at..].find(")]").map_or(source.len(), |length| at + length);
                let line_start = source[..at].rfind('\n').map_or(0, |newline| newline + 1);
                let quoted = source[line_start..at].contains(['"', '/']);
                if !quoted && !source[at..end].contains("reason = \"") {
                    findings.push(format!("{file}: no reason: {}", &source[at..end]));
                }
            }
        }
    }
    findings
}

const MANIFEST: &str = "[package]\nname = \"madako-x\"\nversion.workspace = true\nedition.workspace = true\n\
    rust-version.workspace = true\nlicense.workspace = true\npublish.workspace = true\n\n[lints]\nworkspace = true\n\n\
    [dependencies]\nserde = { workspace = true }\n\n[dev-dependencies]\ntokio = { workspace = true, features = [\"net\"] }\n";

#[test]
fn members_inherit_lints_versions_and_package_fields() {
    let mut findings = Vec::new();
    for member in members() {
        let found = not_inherited(&text(&format!("{}/Cargo.toml", member.directory)));
        findings.extend(found.into_iter().map(|finding| format!("{} {finding}", member.name)));
    }
    nothing(&findings);
}

#[test]
fn manifest_that_deviates_from_the_workspace_is_found() {
    nothing(&not_inherited(MANIFEST));
    for (line, instead, found) in [
        ("[lints]\nworkspace = true", "[lints]\n", "lints"),
        ("[lints]\nworkspace = true", "[lints.clippy]\nworkspace = true", "lints"),
        ("edition.workspace = true", "edition = \"2021\"", "edition"),
        ("publish.workspace = true\n", "", "publish"),
        ("serde = { workspace = true }", "serde = \"1\"", "serde"),
        ("tokio = { workspace = true,", "tokio = { version = \"1\",", "tokio"),
    ] {
        one(&not_inherited(&MANIFEST.replace(line, instead)), &[found]);
    }
}

#[test]
fn releases_cannot_plant_bugs() {
    let root = text("Cargo.toml");
    nothing(&plants(&root));
    let planting = root.replace("[profile.release]\n", "[profile.release]\ndebug-assertions = true\n");
    one(&plants(&planting), &["debug-assertions"]);
}

#[test]
fn dependencies_declared_in_the_root_are_used() {
    let manifests: Vec<String> =
        members().iter().map(|member| text(&format!("{}/Cargo.toml", member.directory))).collect();
    nothing(&unused(&text("Cargo.toml"), &manifests));
}

#[test]
fn an_unused_declaration_is_found() {
    let root =
        "[workspace.dependencies]\nserde = { version = \"1\", features = [\"derive\"] }\ntokio = \"1\"\n";
    nothing(&unused(root, &[MANIFEST.to_owned()]));
    one(&unused(&format!("{root}rand = \"0.10\"\n"), &[MANIFEST.to_owned()]), &["rand"]);
}

#[test]
fn every_exception_of_the_lints_has_a_reason() {
    let mut findings = without_reason(&text("clippy.toml"));
    findings.append(&mut without_reason(&text("deny.toml")));
    let sources: BTreeMap<String, String> =
        members().iter().flat_map(|member| texts(&member.directory, ".rs")).collect();
    findings.append(&mut unexplained(&sources));
    nothing(&findings);
}

#[test]
fn a_missing_reason_is_found() {
    let valid = "list = [\n    { path = \"std::fs\", reason = \"a port\" },\n    { crate = \"openssl\", reason = \"ring\" },\n]\n";
    nothing(&without_reason(valid));
    one(&without_reason(&valid.replace(", reason = \"a port\"", "")), &["std::fs"]);
    one(&without_reason(&valid.replace("\"ring\"", "\"\"")), &["openssl"]);
    let allowed =
        |attribute: &str| BTreeMap::from([("lib.rs".to_owned(), format!("{attribute}\nfn edge() {{}}\n"))]);
    nothing(&unexplained(&allowed("#[allow(clippy::disallowed_methods, reason = \"the one real clock\")]")));
    nothing(&unexplained(&allowed("// #[allow(dead_code)]")));
    one(&unexplained(&allowed("#[allow(clippy::disallowed_methods)]")), &["lib.rs", "disallowed_methods"]);
    one(&unexplained(&allowed("#![expect(missing_docs)]")), &["lib.rs", "missing_docs"]);
}
