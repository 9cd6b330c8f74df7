//! Planted bugs: `docs/canaries.md` says which there are, which seed of the default scenario finds each first, and by what. A build
//! with the feature `canary` shows that this is so, and that the same seeds pass without them; any other, that it has none.

#![allow(clippy::unwrap_used, reason = "tests: clippy.toml's exceptions do not reach their helpers")]

use std::collections::BTreeMap;
use std::process::{Command, Output};

const PROGRAM: &str = env!("CARGO_BIN_EXE_madako-chaos");

/// A line of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Canary {
    name: String,
    part: String,
    what: String,
    /// `None`: no seed is known yet.
    seed: Option<u64>,
    found_by: String,
}

fn table() -> Vec<Canary> {
    let page =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/canaries.md")).unwrap();
    let rows = page.lines().filter(|line| line.starts_with("| `"));
    let canary = |row: &str| {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [name, part, what, seed, found_by, ..] = cells[..] else { panic!("too few columns: {row}") };
        Canary {
            name: name.trim_matches('`').to_owned(),
            part: part.to_owned(),
            what: what.to_owned(),
            seed: (seed != "none yet").then(|| seed.parse().unwrap_or_else(|error| panic!("{row}: {error}"))),
            found_by: found_by.to_owned(),
        }
    };
    rows.map(canary).collect()
}

fn run(words: &[&str]) -> Output {
    Command::new(PROGRAM).arg("simulate").args(words).output().unwrap()
}

/// What stands in the built program.
fn program() -> String {
    String::from_utf8_lossy(&std::fs::read(PROGRAM).unwrap()).into_owned()
}

#[test]
#[ignore = "cluster keeping has one of three, and all parts together fourteen of fifteen"]
fn enough_of_each_part_are_found_by_one_of_fifty_seeds() {
    let found: Vec<Canary> = table().into_iter().filter(|canary| canary.seed.is_some()).collect();
    let mut parts: BTreeMap<&str, u32> = BTreeMap::new();
    for canary in &found {
        *parts.entry(&canary.part).or_default() += 1;
        assert!(canary.seed.is_some_and(|seed| (1..=50).contains(&seed)), "{canary:?}");
    }
    assert!(found.len() >= 15, "{} are too few", found.len());
    assert!(parts.len() == 4 && parts.values().all(|count| *count >= 3), "{parts:?}");
}

#[cfg(not(feature = "canary"))]
#[test]
fn what_is_built_without_them_has_none() {
    let program = program();
    // What is there is found.
    assert!(program.contains("until-wrong"));
    for canary in table() {
        assert!(!program.contains(&canary.name), "{} is in the program", canary.name);
        let output = run(&["--canary", &canary.name]);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{output:?}");
    }
    assert_eq!(run(&["--canaries"]).status.code(), Some(2));
}

#[cfg(feature = "canary")]
mod planted {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;

    /// What a run came to.
    fn simulated(words: &[&str]) -> (Option<i32>, Value) {
        let output = run(&[words, &["--shrink-for", "0s", "-o", "json"]].concat());
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        let report = serde_json::from_slice(&output.stdout);
        (output.status.code(), report.unwrap_or_else(|error| panic!("{words:?}: {error}: {told}")))
    }

    /// That each canary of a part is found by its seed.
    fn found(part: &str) {
        for canary in table().into_iter().filter(|canary| canary.part == part) {
            let Some(seed) = canary.seed else { continue };
            let words = ["--seed", &seed.to_string(), "--canary", &canary.name, "--until-wrong"];
            let (code, report) = simulated(&words);
            let wrong: Vec<&str> =
                report["wrong"].as_array().unwrap().iter().map(|wrong| wrong.as_str().unwrap()).collect();
            assert!(
                code == Some(1) && wrong.contains(&canary.found_by.as_str()),
                "{canary:?} is not found as docs/canaries.md says, but {wrong:?}: {}",
                report["why_not"]
            );
        }
    }

    #[test]
    fn leader_and_store() {
        found("leader and store");
    }

    #[test]
    fn cluster_keeping() {
        found("cluster keeping");
    }

    #[test]
    fn repair() {
        found("repair");
    }

    #[test]
    fn placement() {
        found("placement");
    }

    #[test]
    fn the_same_seeds_pass_without() {
        let seeds: BTreeSet<u64> = table().iter().filter_map(|canary| canary.seed).collect();
        for seed in seeds {
            let (code, report) = simulated(&["--seed", &seed.to_string()]);
            assert_eq!(code, Some(0), "seed {seed}: {}", report["why_not"]);
        }
    }

    #[test]
    fn the_table_and_the_program_have_the_same() {
        let (code, listed) = simulated(&["--canaries"]);
        assert_eq!(code, Some(0));
        let text = |row: &Value, name: &str| row[name].as_str().unwrap().to_owned();
        let listed: Vec<_> = listed
            .as_array()
            .unwrap()
            .iter()
            .map(|row| (text(row, "canary"), text(row, "part"), text(row, "what")))
            .collect();
        let told: Vec<_> =
            table().into_iter().map(|canary| (canary.name, canary.part, canary.what)).collect();
        assert_eq!(listed, told);
        // So the names are what tells a program that has them from one that has not.
        let program = program();
        assert!(listed.iter().all(|(name, _, _)| program.contains(name)));
    }
}
