//! Tests of chaos runs on real processes: complete runs, and runs that fail.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests: clippy.toml's exceptions do not reach their helpers"
)]

mod calm;
mod ended;
mod killed;
mod processes;
mod prometheus;
mod saboteur;
mod started;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use madako_judges::{Exemption, Exemptions};
use prometheus::{Pace, Prometheus};
use serde_json::Value;
use started::{Ended, Started, program, start};

/// The service's program, which the build of the workspace's tests also builds.
fn madako() -> PathBuf {
    let madako = Path::new(env!("CARGO_BIN_EXE_madako-chaos")).with_file_name("madako");
    assert!(madako.is_file(), "{} is built with the workspace's tests", madako.display());
    madako
}

fn run(args: &[&str], input: &str) -> Ended {
    start_run(program(), args, input).ended()
}

fn start_run(mut program: Command, args: &[&str], input: &str) -> Started {
    program.arg("run").args(args).arg("--madako").arg(madako());
    start(program, input)
}

/// True if a program is installed. CI must have it.
fn is_installed(program: &str) -> bool {
    let places = std::env::var_os("PATH").unwrap_or_default();
    missing_outside_ci(program, std::env::split_paths(&places).any(|place| place.join(program).is_file()))
}

fn etcd_is_installed() -> bool {
    is_installed("etcd")
}

/// True if processes can have their own clocks. CI must support that.
fn faketime_is_installed() -> bool {
    let places = std::fs::read_dir("/usr/lib").unwrap();
    let library = |place: std::fs::DirEntry| place.path().join("faketime/libfaketimeMT.so.1");
    missing_outside_ci("faketime", places.flatten().any(|place| library(place).is_file()))
}

fn missing_outside_ci(what: &str, found: bool) -> bool {
    if !found {
        assert!(std::env::var_os("CI").is_none(), "{what} is not installed, and CI must not do without it");
        println!("skipped: {what} is not installed");
    }
    found
}

/// Runs a scenario that ships to its end, and returns the report. Its files stay until another run uses the same name.
fn passed(scenario: &str, seed: u64, length: &str, faults: &[&str]) -> (Value, PathBuf) {
    let report = report_of(scenario);
    let seed = seed.to_string();
    let mut args = vec!["--scenario", scenario, "--seed", &seed, "--for", length, "-o", "json"];
    args.extend(["--report", report.to_str().unwrap()]);
    args.extend(faults.iter().flat_map(|fault| ["--fault", *fault]));
    let ended = run(&args, "");
    let Ended { code, out, errors } = ended;
    assert_eq!(code, 0, "see {}:\n{errors}\n{out}", report.display());
    let document: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(document["outcome"], "passed");
    (document, report)
}

/// Directory of a run's report, below Cargo's target directory.
fn report_of(scenario: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("chaos").join(scenario)
}

#[test]
fn two_minutes_of_everything_that_can_fail_around_real_processes_are_passed() {
    if !etcd_is_installed() {
        return;
    }
    let clocks = faketime_is_installed();
    // The jump ends before the cut of the leader, which may be this instance: the age of its last answer would be wrong.
    let faults = [GONE, "clock-jump instance=2 at 20s for 20s"];
    let faults = &faults[..1 + usize::from(clocks)];
    let watched = is_installed("prometheus") && is_installed("python3");
    let targets = report_of("two-minutes").join("targets.json");
    // The file of an earlier run must be gone.
    let _ = std::fs::remove_file(&targets);
    let prometheus = watched.then(|| Prometheus::start(&targets, Pace::OF_THE_RUN));
    let (summary, report) = passed("two-minutes", 1, "2m", faults);
    for file in ["report.md", "report.json", "timeline.svg", "history.jsonl", "logs/instance-1.log"] {
        let written = std::fs::read_to_string(report.join(file)).unwrap();
        assert!(!written.is_empty(), "{file}");
    }
    if let Some(prometheus) = prometheus {
        is_shown(&prometheus, &report);
    }
    assert_eq!(summary["counts"]["faults"], 15 + faults.len(), "each fault began: {}", summary["counts"]);
    if missing_outside_ci("what namespaces take", summary["network"]["by"] == "namespaces") {
        let faults = summary["faults"].as_array().unwrap();
        let loses = |fault: &&Value| {
            ["cut ", "loss "].iter().any(|act| fault["what"].as_str().unwrap().starts_with(act))
        };
        for fault in faults.iter().filter(loses) {
            assert!(fault["dropped_packets"].as_u64().unwrap() > 0, "it did nothing: {fault}");
        }
    }
    // Checks that were not exercised show nothing.
    for exercised in [
        "I1",
        "I3",
        "I4",
        "I5",
        "I6",
        "I7",
        "I9",
        "I10",
        "I11",
        "I12",
        "I17",
        "drain-requests",
        "history",
        "processes",
        "registry",
        "linearizable",
        "watches",
        "lists",
        "api-watches",
    ] {
        let judged = summary["verdicts"][exercised]["judged"].as_u64().unwrap();
        assert!(judged > 0, "the check {exercised} had no input: {}", summary["verdicts"]);
    }
    for done in ["cordoned", "evicted", "uncordoned"] {
        assert!(
            summary["kubernetes"][done].as_u64().unwrap() > 0,
            "no drain did that: {}",
            summary["kubernetes"]
        );
    }
}

/// An instance is gone for long enough for its alert, which waits for 10 s at this pace, whatever the times of scrapes
/// and evaluations. The scenario has no other fault of an instance at that time.
const GONE: &str = "kill instance=1 at 58s for 25s";

/// Minimum time from the end of the last fault to the end of the run in seconds: the scenario's rest, and the time
/// without writes of a calm run. Alerts with a longer look-back may still fire at the end.
const LEFT: u32 = 15;

/// Alerts on times and shares of failures that a busy machine reaches by itself.
const OF_SLOW_MACHINES: [&str; 5] =
    ["MadakoHttpErrors", "MadakoPlacementSlow", "MadakoReadsSlow", "MadakoStoreErrors", "MadakoStoreSlow"];

/// Checks the Prometheus of two minutes of faults: alerts fired and cleared, and each panel shows its expected values.
fn is_shown(prometheus: &Prometheus, report: &Path) {
    // The run with its beginning and end.
    let minutes = 3;
    let ended = prometheus.last_answer(minutes + 1);
    // Rendered first, so that a failure of the following checks has its pictures.
    prometheus.draw(&report.join("dashboards"), minutes, ended).unwrap();
    let alone = std::env::var_os("MADAKO_TEST_LONG").is_some();
    let [fired, still] = prometheus.fired(minutes, ended);
    assert!(fired.contains("MadakoInstanceDown"), "{fired:?}");
    // All faults are over when the run is calm, and have been for longer than the look-back of the other alerts.
    let outlast = Pace::OF_THE_RUN.look_back(LEFT);
    let may_be_left =
        |alert: &String| outlast.contains(alert) || !alone && OF_SLOW_MACHINES.contains(&alert.as_str());
    let left: Vec<&String> = still.iter().filter(|alert| !may_be_left(alert)).collect();
    assert!(left.is_empty(), "{left:?} of {fired:?} did not clear");
    // Some panels depend on moments: the leader at the pause or cut, a request under way at that time, the delivery
    // time of a lossy link, and the scrape that observes them. On a busy machine they may miss the values that they
    // must reach elsewhere; the table marks them, and marks no row that every machine shows.
    let shows = prometheus.shows("two-minutes.md", !alone, minutes, ended);
    assert!(shows.is_ok(), "see {}: {}", report.display(), shows.unwrap_err());
}

/// An API server that does not answer, and the actions of the saboteur: no simulation has these processes.
const OUTSIDE: &str = "name: outside\nworld: {instances: 2, machines: 20, racks: 10, clusters: 0, applications: 0}\n\
                       clients: [{kind: registry, rate: 4}, {kind: etcd-watch, rate: 6}]\n\
                       faults: [{at: 35s, do: kill, target: registry, for: 30s}]\nexpect: {calm_within: 3m}\n";

/// Promises that are judged by the commands that the data center observed: [`Exemption::KilledCommand`].
const OF_COMMANDS: [&str; 3] = ["fresh-health", "next-step", "watch-lasts"];

#[test]
fn alerts_of_commands_files_and_the_api_server_fire_and_clear() {
    if !(is_installed("prometheus") && is_installed("promtool")) {
        return;
    }
    let report = report_of("outside");
    let targets = report.join("targets.json");
    // The file of an earlier run must be gone.
    let _ = std::fs::remove_file(&targets);
    let prometheus = Prometheus::start(&targets, Pace::HURRIED);
    let place = report.to_str().unwrap();
    let args = ["--scenario", "-", "--seed", "1", "--for", "110s", "--report", place];
    let run = start_run(program(), &args, OUTSIDE);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(saboteur::work(&targets, || prometheus.fires("MadakoOpenFiles")));
    let Ended { code, out, errors } = run.ended();
    let verdict: Value =
        serde_json::from_str(&std::fs::read_to_string(report.join("report.json")).unwrap()).unwrap();
    let verdicts = verdict["verdicts"].as_object().unwrap();
    let broken: Vec<(&str, u64)> = verdicts
        .iter()
        .map(|(name, one)| (name.as_str(), one["broken"].as_u64().unwrap()))
        .filter(|(_, count)| *count > 0)
        .collect();
    assert!(broken.iter().all(|(name, _)| OF_COMMANDS.contains(name)), "see {place}:\n{errors}\n{out}");
    let mut excused = Exemptions::default();
    for _ in 0..broken.iter().map(|(_, count)| count).sum() {
        excused.used_once(Exemption::KilledCommand);
    }
    let beyond = excused.exceeded_bounds(Duration::from_secs(110));
    assert!(beyond.is_empty(), "{beyond:?} by {broken:?}, see {place}:\n{errors}\n{out}");
    assert!(verdict["shortfalls"].as_array().unwrap().is_empty(), "see {place}:\n{errors}\n{out}");
    assert_eq!(code, i32::from(!broken.is_empty()), "see {place}:\n{errors}\n{out}");
    let [fired, still] = prometheus.fired(3, prometheus.last_answer(4));
    for alert in ["MadakoCommandLost", "MadakoCommandsFail", "MadakoKubernetesUnreachable", "MadakoOpenFiles"]
    {
        assert!(fired.contains(alert), "{alert} is not among {fired:?}");
        assert!(!still.contains(alert), "{alert} did not clear");
    }
}

/// The seed of the long run is `MADAKO_CHAOS_SEED`, or 1.
#[test]
#[ignore = "takes eleven minutes"]
fn ten_minutes_of_random_faults_are_passed() {
    if etcd_is_installed() && faketime_is_installed() {
        let seed = std::env::var("MADAKO_CHAOS_SEED").map_or(1, |seed| seed.parse().unwrap());
        passed("processes-fail-at-times", seed, "10m", &[]);
    }
}

#[test]
fn fault_that_cannot_be_injected_prevents_a_pass() {
    let scenario = "name: quick\nworld: {instances: 1, machines: 10, racks: 2, clusters: 1, applications: 1}\n\
                    clients: [{kind: placement, rate: 2}]\n\
                    faults: [{at: 1s, do: panic, target: actor=leader}]\n";
    let ended = run(&["--scenario", "-", "--seed", "1", "--for", "3s", "--network", "proxies"], scenario);
    assert_eq!(ended.code, 3, "{}", ended.errors);
    assert!(ended.out.contains("\nnetwork: proxies (as asked for)\n"), "{}", ended.out);
    assert!(ended.errors.contains("the actor leader is inside a process"), "{}", ended.errors);
    assert!(ended.out.contains("| I9 | held |"), "it is judged all the same: {}", ended.out);
}

/// Faults of machines and answers begin and end while the registry is down or stopped.
const UNSEEN: &str = "name: unseen\nworld: {instances: 1, machines: 12, racks: 3, clusters: 0, applications: 0}\n\
                      faults:\n- {at: 1s, do: kill, target: rack=0, for: 2s}\n- {at: 2s, do: kill, target: registry, for: 2s}\n\
                      - {at: 2500ms, do: kill, target: rack=1, for: 1s}\n- {at: 3s, do: kill, target: rack=2, for: 5s}\n\
                      - {at: 10s, do: pause, target: registry, for: 2s}\n- {at: 10500ms, do: corrupt, target: registry, for: 1s}\n\
                      expect: {at_least: {faults: 6}}\n";

#[test]
fn faults_during_a_registry_outage_appear_after_its_return() {
    let report = report_of("unseen");
    let place = report.to_str().unwrap();
    let ended = run(&["--scenario", "-", "--seed", "1", "--for", "14s", "--report", place], UNSEEN);
    assert_eq!(ended.code, 0, "{}\n{}", ended.errors, ended.out);
    let journal = std::fs::read_to_string(report.join("logs/registry.jsonl")).unwrap();
    let lines = journal.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let reported: Vec<(Value, Value)> = lines
        .filter(|line| line["what"] == "power" || line["what"] == "corrupt")
        .map(|line| (line["rack"].clone(), line["on"].clone()))
        .filter(|(rack, on)| !(rack.is_null() && *on == false))
        .collect();
    let power = |rack: u32, on: bool| (Value::from(rack), Value::from(on));
    let corrupt = (Value::Null, Value::from(true));
    // Faults that would have ended before the registry's return waited for it.
    let racks = [power(0, false), power(0, true), power(1, false), power(2, false), power(1, true)];
    assert_eq!(reported, [&racks[..], &[power(2, true), corrupt]].concat(), "{journal}");
}

/// The store's disk is full for a while, during constant writes of clients: enough to use up the free space of its
/// file.
const FULL: &str = "name: full\nworld: {instances: 2, machines: 12, racks: 3, clusters: 3, applications: 4}\n\
                    clients: [{kind: placement, rate: 40}]\n\
                    faults: [{at: 2s, do: disk-full, target: store=1, for: 8s}]\n\
                    expect: {at_least: {failed_client_calls: 5, faults: 1}}\n";

#[test]
fn a_store_whose_disk_is_full_refuses_writes_and_takes_them_again_when_it_has_room() {
    let report = report_of("full");
    let place = report.to_str().unwrap();
    let ended = run(&["--scenario", "-", "--seed", "1", "--for", "12s", "--report", place], FULL);
    // Without the right to mount a disk, the run reports that the fault could not be injected.
    if !missing_outside_ci("what a small disk takes", ended.code != 3) {
        return;
    }
    assert_eq!(ended.code, 0, "see {place}:\n{}\n{}", ended.errors, ended.out);
    let history = std::fs::read_to_string(report.join("history.jsonl")).unwrap();
    let lines: Vec<Value> = history.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |kind: &'static str| lines.iter().filter(move |line| line["kind"] == kind);
    let time = |line: &Value, what: &str| line[what].as_u64().unwrap();
    let at = |change: &str| time(of("fault").find(|line| line["change"] == change).unwrap(), "at");
    let (full, room) = (at("begins"), at("ends"));
    let meanwhile = |call: &&Value| time(call, "called") > full && time(call, "returned") < room;
    let done = |call: &&Value| call["result"]["is"] == "done";
    let writes = || of("call").filter(|call| call["op"] != "read");
    let refused: Vec<u64> = writes()
        .filter(meanwhile)
        .filter(|call| call["end"] == "unknown")
        .map(|call| time(call, "returned"))
        .collect();
    // A small write may still fit into freed space of the file; the verdict is that no acknowledged write is lost.
    assert!(refused.len() >= 5, "{refused:?}");
    // Most of them read objects that could not be created.
    let read = of("call").filter(|call| call["op"] == "read" && call["end"] == "answered").filter(meanwhile);
    assert!(read.filter(|call| time(call, "called") > refused[0]).count() >= 5, "existing keys can be read");
    assert!(writes().filter(done).any(|call| time(call, "called") > room), "it takes writes again");
}

#[test]
fn proxies_replace_unavailable_namespaces_unless_these_are_requested() {
    let run = |network| {
        let mut program = program();
        // No program is found on an empty `PATH`.
        program.env("PATH", "");
        let args = ["--scenario", "-", "--seed", "1", "--for", "1s", "--network", network];
        start_run(program, &args, SMALL).ended()
    };
    let Ended { code, out, errors } = run("auto");
    assert_eq!(code, 0, "{errors}\n{out}");
    let line = "network: proxies (the program ip is not installed: install the Debian package iproute2)";
    assert!(out.contains(line) && errors.contains(line), "{errors}\n{out}");
    let Ended { code, out, errors } = run("namespaces");
    assert_eq!((code, out.as_str()), (3, ""), "{errors}");
    assert!(
        errors.contains("the program ip is not installed: install the Debian package iproute2"),
        "{errors}"
    );
}

/// A world in which hardly anything happens.
const SMALL: &str =
    "name: small\nworld: {instances: 1, machines: 10, racks: 2, clusters: 0, applications: 0}\n";

#[test]
fn killed_run_leaves_no_processes_and_files() {
    let report = report_of("killed");
    let targets = report.join("targets.json");
    // The file of an earlier run must be gone.
    let _ = std::fs::remove_file(&targets);
    let place = report.to_str().unwrap();
    let args =
        ["--scenario", "-", "--seed", "1", "--for", "10m", "--network", "namespaces", "--report", place];
    // Files of a killed run in it are removed with the test.
    let temporary = tempfile::tempdir().unwrap();
    let mut program = program();
    program.env("TMPDIR", temporary.path());
    let mut run = start_run(program, &args, SMALL);
    let began = killed::begun(run.as_mut(), &targets);
    if missing_outside_ci("what namespaces take", began) {
        killed::leaves_nothing(run.as_mut(), &targets);
    }
}

#[test]
fn a_run_below_its_expected_counts_does_not_pass() {
    let scenario = "name: quick\nworld: {instances: 1, machines: 10, racks: 2, clusters: 0, applications: 0}\n\
                    expect: {at_least: {leader_changes: 1}}\n";
    let ended = run(&["--scenario", "-", "--seed", "1", "--for", "1s"], scenario);
    assert_eq!(ended.code, 1, "{}", ended.errors);
    // Seconds suffice for the checks that every run must exercise.
    assert!(!ended.errors.contains("had nothing to judge"), "{}", ended.errors);
    assert!(ended.out.contains("leader_changes: 0, where at least 1 were expected"), "{}", ended.out);
}

#[test]
fn a_wrong_fault_is_refused_before_anything_starts() {
    let ended = run(&["--seed", "1", "--for", "10s", "--fault", "kill rack=99 at 5s for 3s"], "");
    assert_eq!((ended.code, ended.out.as_str()), (2, ""), "{}", ended.errors);
    assert!(ended.errors.contains("rack=99"), "{}", ended.errors);
}
