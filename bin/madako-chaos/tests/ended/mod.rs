//! Tests of runs in which a process ends: one that ends by itself, and a member of the store whose disk is full.

use std::fs;
use std::path::Path;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::processes::{found, with_word};
use super::{Ended, etcd_is_installed, missing_outside_ci, program, report_of, run, start_run};

/// Interval of checks of an awaited state.
const GLANCE: Duration = Duration::from_millis(20);

/// A fault kills and restarts the instance after it has ended by itself.
const HIDDEN: &str = "name: hidden\nworld: {instances: 1, machines: 10, racks: 2, clusters: 0, applications: 0}\n\
                      faults: [{at: 1s, do: compact, target: store=1}, {at: 12s, do: kill, target: instance=1, for: 2s}]\n";

#[test]
fn a_process_that_ended_by_itself_is_found_though_a_fault_kills_it_later() {
    let report = report_of("hidden");
    // The report of an earlier run must be gone.
    let _ = fs::remove_dir_all(&report);
    let place = report.to_str().unwrap();
    let run =
        start_run(program(), &["--scenario", "-", "--seed", "1", "--for", "16s", "--report", place], HIDDEN);
    end_instance(&report);
    let Ended { code, out, errors } = run.ended();
    assert_eq!(code, 1, "see {place}:\n{errors}\n{out}");
    assert!(errors.contains("the run did not pass: processes was broken 1 times\n"), "{errors}");
    assert!(
        out.contains("- **processes**: the process instance-1 ended by itself: signal: 9 (SIGKILL)"),
        "{out}"
    );
}

/// Kills the first instance when the first fault has struck.
fn end_instance(report: &Path) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        found("the first fault", GLANCE, || {
            let history = fs::read_to_string(report.join("history.jsonl")).ok()?;
            history.contains(r#""kind":"fault""#).then_some(())
        })
        .await;
        let targets = fs::read_to_string(report.join("targets.json")).unwrap();
        let targets: Value = serde_json::from_str(&targets).unwrap();
        let address = targets[0]["targets"][0].as_str().unwrap();
        let instance = found("the instance", GLANCE, || Pid::from_raw(with_word(address)?)).await;
        kill_process(instance, Signal::KILL).unwrap();
    });
}

/// The disk of one of three members is full for a while, during constant writes of clients.
const FULL: &str = "name: full-member\n\
                    world: {instances: 2, machines: 12, racks: 3, clusters: 3, applications: 4, store: etcd}\n\
                    clients: [{kind: placement, rate: 20}, {kind: etcd-watch, rate: 2}]\n\
                    faults: [{at: 2s, do: disk-full, target: store=2, for: 8s}]\n\
                    expect: {at_least: {faults: 1}}\n";

#[test]
fn a_member_of_a_real_etcd_whose_disk_is_full_ends_and_is_back_when_it_has_room() {
    if !etcd_is_installed() {
        return;
    }
    let report = report_of("full-member");
    let place = report.to_str().unwrap();
    let ended = run(&["--scenario", "-", "--seed", "1", "--for", "14s", "--report", place], FULL);
    // Without the right to mount a disk, the run reports that the fault could not be injected.
    if !missing_outside_ci("what a small disk takes", ended.code != 3) {
        return;
    }
    // To pass, all members must run in the end and have the same history.
    assert_eq!(ended.code, 0, "see {place}:\n{}\n{}", ended.errors, ended.out);
    let last_words = fs::read_to_string(report.join("logs/store-2.log")).unwrap();
    assert!(last_words.contains("no space left on device"), "{last_words}");
    // The other two are a majority, so that writes of clients succeed meanwhile.
    let history = fs::read_to_string(report.join("history.jsonl")).unwrap();
    let lines: Vec<Value> = history.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let at = |change: &str| {
        let fault = lines.iter().find(|line| line["kind"] == "fault" && line["change"] == change);
        fault.unwrap()["at"].as_u64().unwrap()
    };
    let (full, room) = (at("begins"), at("ends"));
    let taken = lines.iter().filter(|line| line["kind"] == "call" && line["result"]["is"] == "done");
    let meanwhile =
        |line: &&Value| line["op"] != "read" && (full..room).contains(&line["at"].as_u64().unwrap());
    assert!(taken.filter(meanwhile).count() >= 5, "see {place}");
}
