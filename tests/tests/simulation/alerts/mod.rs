//! Each alert of `grafana/rules` in a simulated deployment in which it fires and then clears, and hours without faults
//! in which none fires.
//!
//! The tests scrape a whole simulated instance every 30 s of simulated time, over hours. Prometheus' own engine
//! (promtool) evaluates the rules on the samples, with all their windows and thresholds. In each scenario nothing fires
//! before the first step; then exactly the named alerts fire; at the end none does.
//!
//! `bin/madako-chaos/tests/run.rs` tests the alerts that need real processes.

mod clients;
mod failing;
mod gathered;
mod hanging;
mod names;
mod nodes;
mod nonsense;
mod objects;
mod panels;
mod promtool;
mod script;
mod slow;
mod stage;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use gathered::Gathered;
use script::{Scenario, Step, scenarios, time};

const FILES: [&str; 4] = ["service.txt", "cluster.txt", "nodes.txt", "placement.txt"];

/// Alerts on objects that simulations lack: files of a process, commands on a real host, the connection to a real API
/// server.
const ELSEWHERE: [&str; 4] =
    ["MadakoOpenFiles", "MadakoCommandLost", "MadakoCommandsFail", "MadakoKubernetesUnreachable"];

/// True if the program is installed. CI must have it.
fn is_installed(program: &str) -> bool {
    let places = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&places).any(|place| place.join(program).is_file());
    if !found {
        assert!(
            std::env::var_os("CI").is_none(),
            "{program} is not installed, and CI must not do without it"
        );
        println!("skipped: {program} is not installed");
    }
    found
}

/// Plays a scenario, and evaluates the rules on the gathered samples.
fn judge(scenario: &Scenario, wanted: &Arc<BTreeSet<String>>) -> Result<(), String> {
    let gathered = Gathered::of("alpha", Arc::clone(wanted), 0);
    let mut script = scenario.clone();
    let stranger = script.steps.iter().position(|step| step.words[0] == "stranger");
    let stranger = stranger.map(|at| script.steps.remove(at));
    stage::play(&script, &gathered, Duration::ZERO);
    let mut series = gathered.series();
    let length = series.values().map(Vec::len).max().unwrap();
    if let Some(Step { at, words }) = stranger {
        // Another deployment, which Prometheus considers a part of this one.
        let end = Step { at: time(&words[1]) - at, words: vec!["end".to_owned()] };
        let script = Scenario { steps: vec![end], ..script };
        let gathered = Gathered::of("beta", Arc::clone(wanted), stage::scrapes_until(at));
        stage::play(&script, &gathered, at);
        series.extend(gathered.series());
    }
    series.values_mut().for_each(|samples| samples.resize(length, None));
    let begins = scenario.begins();
    promtool::judge(&series, &scenario.fires, [begins, scenario.end()])
}

/// Tests every second scenario of a file: half of a file is the amount for one test.
fn each_is_as_it_says(file: &str, first: usize) {
    if !is_installed("promtool") {
        return;
    }
    let wanted = Arc::new(promtool::words(promtool::rule_files()));
    let only = std::env::var("MADAKO_ALERTS").ok();
    let mut failed = Vec::new();
    for scenario in scenarios(file).into_iter().skip(first).step_by(2) {
        if only.as_ref().is_some_and(|only| !only.split(',').any(|only| only == scenario.name)) {
            continue;
        }
        let judged = judge(&scenario, &wanted);
        println!("{}: {}", scenario.name, judged.as_ref().err().map_or("as it says", String::as_str));
        if let Err(said) = judged {
            failed.push(format!("{}: {said}", scenario.name));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn alerts_of_the_service_and_its_actors_fire_and_clear() {
    each_is_as_it_says("service.txt", 0);
}

#[test]
fn more_alerts_of_the_service_and_its_actors_fire_and_clear() {
    each_is_as_it_says("service.txt", 1);
}

#[test]
fn alerts_of_cluster_keeping_fire_and_clear() {
    each_is_as_it_says("cluster.txt", 0);
}

#[test]
fn more_alerts_of_cluster_keeping_fire_and_clear() {
    each_is_as_it_says("cluster.txt", 1);
}

#[test]
fn alerts_of_nodes_fire_and_clear() {
    each_is_as_it_says("nodes.txt", 0);
}

#[test]
fn more_alerts_of_nodes_fire_and_clear() {
    each_is_as_it_says("nodes.txt", 1);
}

#[test]
fn alerts_of_placement_fire_and_clear() {
    each_is_as_it_says("placement.txt", 0);
}

#[test]
fn more_alerts_of_placement_fire_and_clear() {
    each_is_as_it_says("placement.txt", 1);
}

#[test]
fn every_alert_has_a_scenario() {
    let shown: BTreeSet<String> =
        FILES.iter().flat_map(|file| scenarios(file)).flat_map(|scenario| scenario.fires).collect();
    let others: Vec<String> = ELSEWHERE.iter().map(|alert| (*alert).to_owned()).collect();
    assert!(others.iter().all(|alert| !shown.contains(alert)), "shown here as well: {others:?}");
    let all: BTreeSet<String> = shown.into_iter().chain(others).collect();
    assert_eq!(all, promtool::alerts());
}
