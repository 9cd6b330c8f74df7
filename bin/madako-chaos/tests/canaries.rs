//! Planted bugs: `docs/canaries.md` lists them with the scenario and the seed that find each first, and the judge that
//! finds it. A build with debug assertions shows that, and that the same seeds pass without a bug. A release build
//! shows that it contains no planted bug.
//!
//! Does not: run the bugs of operations, whose table follows on that page; `tests/tests/simulation/operations` does.

#![allow(clippy::unwrap_used, reason = "tests: clippy.toml's exceptions do not reach their helpers")]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};

const PROGRAM: &str = env!("CARGO_BIN_EXE_madako-chaos");

/// A row of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Canary {
    name: String,
    part: String,
    what: String,
    /// The scenario that finds it.
    scenario: String,
    /// `None`: no seed is known yet.
    seed: Option<u64>,
    /// Time in which faults begin until the bug shows, in minutes.
    minutes: u64,
    found_by: String,
}

fn page() -> String {
    std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/canaries.md")).unwrap()
}

/// Names of the bugs of operations.
fn of_operations() -> Vec<String> {
    let page = page();
    let rows = page.lines().skip_while(|line| !line.starts_with("| Bug | What goes wrong |")).skip(2);
    let name = |row: &str| row.split('`').nth(1).unwrap().to_owned();
    rows.take_while(|line| line.starts_with('|')).map(name).collect()
}

fn table() -> Vec<Canary> {
    let page = page();
    // The first table of the page.
    let rows = page.lines().skip_while(|line| !line.starts_with("| `")).take_while(|line| !line.is_empty());
    let canary = |row: &str| {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [name, part, what, scenario, seed, minutes, found_by] = cells[..] else {
            panic!("not seven columns: {row}")
        };
        Canary {
            name: name.trim_matches('`').to_owned(),
            part: part.to_owned(),
            what: what.to_owned(),
            scenario: scenario.trim_matches('`').to_owned(),
            seed: (seed != "none yet").then(|| seed.parse().unwrap_or_else(|error| panic!("{row}: {error}"))),
            minutes: minutes
                .strip_suffix('m')
                .and_then(|minutes| minutes.parse().ok())
                .unwrap_or_else(|| panic!("{row}")),
            found_by: found_by.to_owned(),
        }
    };
    rows.map(canary).collect()
}

fn run(words: &[&str]) -> Output {
    Command::new(PROGRAM).arg("simulate").args(words).output().unwrap()
}

/// The bytes of a built program.
fn contents(program: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(program).unwrap()).into_owned()
}

#[test]
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

#[cfg(not(debug_assertions))]
#[test]
fn a_release_build_contains_no_planted_bug() {
    let own = Path::new(PROGRAM);
    // The build of the workspace's tests also builds `madako`, in the same directory.
    let programs = [(own.to_owned(), "until-wrong"), (own.with_file_name("madako"), "sabakan-poller")];
    for (program, known) in programs {
        let contents = contents(&program);
        // A word that is known to be in the program is found.
        assert!(contents.contains(known), "{}", program.display());
        let names = table().into_iter().map(|canary| canary.name).chain(of_operations());
        for name in names {
            assert!(!contents.contains(&name), "{name} is in {}", program.display());
        }
    }
    for canary in table() {
        let output = run(&["--canary", &canary.name]);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{output:?}");
    }
    assert_eq!(run(&["--canaries"]).status.code(), Some(2));
}

#[cfg(debug_assertions)]
mod planted {
    use serde_json::Value;

    use super::*;

    /// Exit code and report of a simulation.
    fn simulated(words: &[&str]) -> (Option<i32>, Value) {
        let output = run(&[words, &["--shrink-for", "0s", "-o", "json"]].concat());
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let report = serde_json::from_slice(&output.stdout);
        (output.status.code(), report.unwrap_or_else(|error| panic!("{words:?}: {error}: {text}")))
    }

    /// Checks that each canary of a part is found by its seed.
    fn found(part: &str) {
        for canary in table().into_iter().filter(|canary| canary.part == part) {
            let Some(seed) = canary.seed else { continue };
            let (seed, length) = (seed.to_string(), format!("{}m", canary.minutes));
            let scenario = &canary.scenario;
            let words = [
                "--scenario",
                scenario,
                "--seed",
                &seed,
                "--for",
                &length,
                "--canary",
                &canary.name,
                "--until-wrong",
            ];
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
    fn the_same_seeds_pass_without_a_bug() {
        // Each seed runs as long as its slowest bug needs: until then the run is the same.
        let mut seeds: BTreeMap<(String, u64), u64> = BTreeMap::new();
        for canary in table() {
            let Some(seed) = canary.seed else { continue };
            let minutes = seeds.entry((canary.scenario, seed)).or_default();
            *minutes = canary.minutes.max(*minutes);
        }
        for ((scenario, seed), minutes) in seeds {
            let (seed, length) = (seed.to_string(), format!("{minutes}m"));
            let (code, report) = simulated(&["--scenario", &scenario, "--seed", &seed, "--for", &length]);
            assert_eq!(code, Some(0), "{scenario}, seed {seed} for {length}: {}", report["why_not"]);
        }
    }

    #[test]
    fn table_and_program_list_the_same_planted_bugs() {
        let (code, listed) = simulated(&["--canaries"]);
        assert_eq!(code, Some(0));
        let text = |row: &Value, name: &str| row[name].as_str().unwrap().to_owned();
        let listed: Vec<_> = listed
            .as_array()
            .unwrap()
            .iter()
            .map(|row| (text(row, "canary"), text(row, "part"), text(row, "what")))
            .collect();
        let (operations, others): (Vec<_>, Vec<_>) =
            listed.iter().cloned().partition(|(_, part, _)| part == "operations");
        let reported: Vec<_> =
            table().into_iter().map(|canary| (canary.name, canary.part, canary.what)).collect();
        assert_eq!(others, reported);
        let operations: Vec<String> = operations.into_iter().map(|(name, ..)| name).collect();
        assert_eq!(operations, of_operations());
        // So the names distinguish a program with planted bugs from one without.
        let contents = contents(Path::new(PROGRAM));
        assert!(listed.iter().all(|(name, _, _)| contents.contains(name)));
    }
}
