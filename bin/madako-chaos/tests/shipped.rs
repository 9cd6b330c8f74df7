//! Plays every scenario that ships once: a scenario that cannot be passed shows nothing.
//!
//! Scenarios with the embedded store are simulated for as long as they need. Those on a real etcd run on real
//! processes, with shorter leases, polls and waits than in a simulation: their times are a twentieth of those in the
//! files.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests: clippy.toml's exceptions do not reach their helpers"
)]

mod started;

use std::collections::BTreeSet;

use madako_faults::{SHIPPED, Scenario, Span, Store, find_shipped};
use serde_json::Value;
use started::{Ended, program, start};

/// Simulated scenarios with their minutes: until the last fault has happened, and the expected counts are reached.
const SIMULATED: [(&str, u64); 24] = [
    ("calm-day", 30),
    ("compaction-under-watchers", 30),
    ("contention", 60),
    ("default", 60),
    ("flapping-machines", 45),
    ("full-disk", 30),
    ("leader-cut-off", 45),
    ("leader-killed-again-and-again", 30),
    ("leader-stands-still", 40),
    ("long-day", 24 * 60),
    ("lying-providers", 45),
    ("lying-registry", 40),
    ("panics-of-each-actor", 30),
    ("rack-power-loss", 60),
    ("rack-unreachable", 150),
    ("reboots", 60),
    ("registry-clock-an-hour-off", 100),
    ("registry-out-for-an-hour", 80),
    ("sabotage", 120),
    ("short-storm", 5),
    ("upgrade", 4 * 60),
    ("upgrade-of-500-nodes", 12 * 60),
    ("whole-service-down", 30),
    ("without-nodes", 60),
];

/// Scenarios on real processes, with their minutes of the file.
const RUN: [(&str, u64); 4] = [
    ("everything-fails-at-times", 40),
    ("slow-store", 50),
    ("store-member-lost", 40),
    ("store-without-majority", 40),
];

/// Scenarios in other tests: `two-minutes` in the normal ones, the other one in the long ones.
const RUN_ELSEWHERE: [&str; 2] = ["two-minutes", "processes-fail-at-times"];

/// Speed-up of real processes over the times in the files.
const FASTER: u64 = 20;

fn play(args: &[&str], input: &str) -> Result<(), String> {
    println!("madako-chaos {}", args.join(" "));
    let mut program = program();
    program.args(args);
    let Ended { code, out, errors } = start(program, input).ended();
    if code == 0 { Ok(()) } else { Err(format!("{args:?} ends with {code}:\n{out}\n{errors}")) }
}

/// The scenario with shorter times.
fn faster(scenario: &Scenario) -> Scenario {
    fn shorten(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    match value.as_str().and_then(Span::parse) {
                        Some(span)
                            if ["at", "every", "for", "mean", "calm_within"].contains(&name.as_str()) =>
                        {
                            let millis = u64::try_from(span.duration().as_millis()).unwrap() / FASTER;
                            *value = serde_json::to_value(Span::from_millis(millis)).unwrap();
                        }
                        _ => shorten(value),
                    }
                }
            }
            Value::Array(items) => items.iter_mut().for_each(shorten),
            _ => {}
        }
    }
    let mut value = serde_json::to_value(scenario).unwrap();
    shorten(&mut value);
    Scenario::parse(&value.to_string()).unwrap()
}

#[test]
fn every_scenario_that_ships_is_played_by_a_test() {
    let simulated = SIMULATED.map(|(name, _)| (name, Store::Embedded));
    let run = RUN
        .map(|(name, _)| (name, Store::Etcd))
        .into_iter()
        .chain(RUN_ELSEWHERE.map(|name| (name, Store::Etcd)));
    let played: BTreeSet<(&str, bool)> =
        simulated.into_iter().chain(run).map(|(name, store)| (name, store == Store::Etcd)).collect();
    let ships: BTreeSet<(&str, bool)> = SHIPPED
        .iter()
        .map(|shipped| (shipped.name, shipped.parse_scenario().unwrap().world.store == Store::Etcd))
        .collect();
    assert_eq!(played, ships);
}

#[test]
fn a_scenario_that_is_run_faster_has_the_same_faults_at_a_twentieth_of_the_time() {
    let slow = find_shipped("store-without-majority").unwrap().parse_scenario().unwrap();
    let fast = faster(&slow);
    let lines: Vec<String> = fast.faults.iter().map(ToString::to_string).collect();
    assert_eq!(lines, ["kill store=1 at 30s for 15s", "kill store=3 at 30s for 45s"]);
    assert_eq!((fast.world, fast.clients, fast.expect), (slow.world, slow.clients, slow.expect));
}

#[test]
#[ignore = "hours of simulated time: make test-long"]
fn every_scenario_on_an_embedded_store_is_passed_by_a_simulation() {
    let failed: Vec<String> = SIMULATED
        .iter()
        .filter_map(|(name, minutes)| {
            play(&["simulate", "--scenario", name, "--for", &format!("{minutes}m"), "--shrink-for", "0s"], "")
                .err()
        })
        .collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
#[ignore = "takes a quarter of an hour: make test-long"]
fn every_scenario_on_a_real_etcd_is_passed_by_real_processes() {
    let failed: Vec<String> = RUN
        .iter()
        .filter_map(|(name, minutes)| {
            let scenario = faster(&find_shipped(name).unwrap().parse_scenario().unwrap());
            let text = serde_json::to_string(&scenario).unwrap();
            let seconds = format!("{}s", minutes * 60 / FASTER);
            play(&["run", "--scenario", "-", "--seed", "1", "--for", &seconds], &text).err()
        })
        .collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
