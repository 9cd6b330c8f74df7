//! Checks that limits and time-outs of a crate are in its file `limits.rs`, where their relations are asserted.

use std::collections::BTreeMap;

use crate::repository::texts;
use crate::{nothing, one};

/// The crates of the service. The simulated world, the scenes and the judges have their own times.
const SERVICE: [&str; 6] =
    ["messages", "actors", "adapters", "supervisor/src", "bin/madako/src", "bin/madako-tools/src"];
/// Parts of them that show the service or simulate its surroundings.
const SCENES: [&str; 3] = ["adapters/datacenter-sim/", "bin/madako/src/demo", "/tests"];
/// Prefixes of the names of limits.
const BOUNDS: [&str; 3] = ["MAX_", "MOST_", "LONGEST_"];

/// Durations and bounds outside of `limits.rs`.
fn scattered(sources: &BTreeMap<String, String>) -> Vec<String> {
    let judged = sources.iter().filter(|(path, _)| {
        path.contains("/src/")
            && !path.ends_with("/limits.rs")
            && !path.ends_with("tests.rs")
            && !SCENES.iter().any(|scene| path.contains(scene))
    });
    let constants = judged.flat_map(|(path, text)| {
        let own = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        own.lines().filter_map(move |line| Some((path, constant(line)?)))
    });
    let limits = constants.filter(|(_, (name, kind))| {
        *kind == "Duration" || BOUNDS.iter().any(|bound| name.starts_with(bound))
    });
    limits.map(|(path, (name, _))| format!("{path}: {name} belongs in the crate's limits.rs")).collect()
}

/// Name and type of a module's constant.
fn constant(line: &str) -> Option<(&str, &str)> {
    let begins = line
        .strip_prefix("pub")
        .map_or(line, |rest| rest.trim_start_matches(|c: char| c != ' ').trim_start());
    let (name, rest) = begins.strip_prefix("const ")?.split_once(": ")?;
    Some((name, rest.split_once(" =")?.0))
}

/// Constants of a file of limits without documentation, which states unit and derivation.
fn undocumented(path: &str, text: &str) -> Vec<String> {
    let mut before = "";
    let mut findings = Vec::new();
    for line in text.lines() {
        if let Some((name, _)) = constant(line).filter(|(name, _)| *name != "_" && !before.starts_with("///"))
        {
            findings.push(format!("{path}: {name} has neither unit nor derivation"));
        }
        before = line;
    }
    findings
}

#[test]
fn limits_state_their_units_and_derivations() {
    for (path, text) in texts(".", "limits.rs") {
        nothing(&undocumented(&path, &text));
    }
    let documented = "/// Bytes: a page.\npub(crate) const MAX_PAGE: usize = 4096;\nconst _: () = assert!(MAX_PAGE > 0);\n";
    nothing(&undocumented("limits.rs", documented));
    one(&undocumented("limits.rs", "// Bytes.\nconst MAX_PAGE: usize = 4096;\n"), &["limits.rs", "MAX_PAGE"]);
}

#[test]
fn limits_stand_in_one_file_a_crate() {
    nothing(&SERVICE.iter().flat_map(|directory| scattered(&texts(directory, ".rs"))).collect::<Vec<_>>());
}

#[test]
fn a_limit_outside_limits_rs_is_found() {
    let found = |path: &str, line: &str| scattered(&BTreeMap::from([(path.to_owned(), format!("{line}\n"))]));
    let time = "pub(crate) const PATIENCE: Duration = Duration::from_secs(1);";
    one(&found("actors/leader/src/actor.rs", time), &["actors/leader/src/actor.rs", "PATIENCE"]);
    one(&found("supervisor/src/config.rs", "const MAX_FILE: u64 = 1 << 20;"), &["MAX_FILE"]);
    nothing(&found("actors/leader/src/limits.rs", time));
    nothing(&found("actors/leader/src/actor/tests.rs", time));
    nothing(&found("actors/leader/src/actor.rs", "const VERSION: u32 = 2;"));
}
