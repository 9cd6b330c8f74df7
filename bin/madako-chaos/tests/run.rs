//! Runs on real processes: a whole one, and those that are no pass.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests: clippy.toml's exceptions do not reach their helpers"
)]

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

/// How a run of the program ended.
struct Ended {
    code: i32,
    out: String,
    errors: String,
}

/// The service's program, which the workspace's tests are built with.
fn madako() -> PathBuf {
    let madako = Path::new(env!("CARGO_BIN_EXE_madako-chaos")).with_file_name("madako");
    assert!(madako.is_file(), "{} is built with the workspace's tests", madako.display());
    madako
}

fn run(args: &[&str], input: &str) -> Ended {
    let mut child = Command::new(env!("CARGO_BIN_EXE_madako-chaos"))
        .arg("run")
        .args(args)
        .arg("--madako")
        .arg(madako())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A program that refuses its arguments does not read.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ended { code: output.status.code().unwrap(), out: text(output.stdout), errors: text(output.stderr) }
}

/// Whether there is an etcd to run on. CI must have one.
fn etcd_is_installed() -> bool {
    let places = std::env::var_os("PATH").unwrap_or_default();
    missing_outside_ci("etcd", std::env::split_paths(&places).any(|place| place.join("etcd").is_file()))
}

/// Whether processes can have clocks of their own. CI must be able to.
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

/// Runs a scenario that ships to its end, and gives the report; it is kept where the run is no pass.
fn passed(scenario: &str, seed: u64, length: &str, faults: &[&str], look: impl FnOnce(&Path)) -> Value {
    let files = tempfile::tempdir().unwrap();
    let (report, seed) = (files.path().join("report"), seed.to_string());
    let mut args = vec!["--scenario", scenario, "--seed", &seed, "--for", length, "-o", "json"];
    args.extend(["--report", report.to_str().unwrap()]);
    args.extend(faults.iter().flat_map(|fault| ["--fault", *fault]));
    let ended = run(&args, "");
    if ended.code != 0 {
        // What is needed to find out why would be gone with the test.
        let kept = std::env::temp_dir().join(format!("madako-chaos-report-{}", std::process::id()));
        std::fs::rename(&report, &kept).unwrap();
        panic!("exit code {}, see {}:\n{}\n{}", ended.code, kept.display(), ended.errors, ended.out);
    }
    look(&report);
    let told: Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!(told["outcome"], "passed");
    told
}

#[test]
fn two_minutes_of_everything_that_can_fail_around_real_processes_are_passed() {
    if !etcd_is_installed() {
        return;
    }
    let clocks = faketime_is_installed();
    let jump = ["clock-jump instance=2 at 20s for 30s"];
    let told = passed("two-minutes", 1, "2m", &jump[..usize::from(clocks)], |report| {
        for file in ["report.md", "report.json", "timeline.svg", "history.jsonl", "logs/instance-1.log"] {
            let written = std::fs::read_to_string(report.join(file)).unwrap();
            assert!(!written.is_empty(), "{file}");
        }
    });
    assert_eq!(told["counts"]["faults"], 15 + u64::from(clocks), "each fault began: {}", told["counts"]);
    // What judges nothing shows nothing.
    for exercised in
        ["I1", "I3", "I4", "I5", "I6", "I8", "I9", "I11", "I12", "history", "linearizable", "watches"]
    {
        let judged = told["verdicts"][exercised]["judged"].as_u64().unwrap();
        assert!(judged > 0, "{exercised} had nothing to judge: {}", told["verdicts"]);
    }
}

/// The seed of the long run is `MADAKO_CHAOS_SEED`, or 1.
#[test]
#[ignore = "takes eleven minutes"]
fn ten_minutes_of_chance_are_passed() {
    if etcd_is_installed() && faketime_is_installed() {
        let seed = std::env::var("MADAKO_CHAOS_SEED").map_or(1, |seed| seed.parse().unwrap());
        passed("processes-fail-at-times", seed, "10m", &[], |_| {});
    }
}

#[test]
fn what_cannot_be_injected_is_no_pass() {
    let scenario = "name: quick\nworld: {instances: 1, machines: 10, racks: 2, clusters: 1, applications: 1}\n\
                    clients: [{kind: placement, rate: 2}]\n\
                    faults: [{at: 1s, do: panic, target: actor=leader}]\n";
    let ended = run(&["--scenario", "-", "--seed", "1", "--for", "3s"], scenario);
    assert_eq!(ended.code, 3, "{}", ended.errors);
    assert!(ended.errors.contains("the actor leader is inside a process"), "{}", ended.errors);
    assert!(ended.out.contains("| I9 | held |"), "it is judged all the same: {}", ended.out);
}

#[test]
fn too_little_is_no_pass() {
    let scenario = "name: quick\nworld: {instances: 1, machines: 10, racks: 2, clusters: 0, applications: 0}\n\
                    expect: {at_least: {leader_changes: 1}}\n";
    let ended = run(&["--scenario", "-", "--seed", "1", "--for", "1s"], scenario);
    assert_eq!(ended.code, 1, "{}", ended.errors);
    assert!(ended.out.contains("leader_changes: 0, where at least 1 were expected"), "{}", ended.out);
}

#[test]
fn a_wrong_fault_is_refused_before_anything_starts() {
    let ended = run(&["--seed", "1", "--for", "10s", "--fault", "kill rack=99 at 5s for 3s"], "");
    assert_eq!((ended.code, ended.out.as_str()), (2, ""), "{}", ended.errors);
    assert!(ended.errors.contains("rack=99"), "{}", ended.errors);
}
