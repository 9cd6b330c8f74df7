//! The first simulation: three instances of the whole service on one thread with paused time, the
//! embedded store behind in-memory connections, the simulated data center behind others, and faults
//! from a seed. After every commit the invariants are checked from outside, by the store's own history.
//!
//! `MADAKO_SIMULATE_HISTORY=FILE` writes the history of a test's last run to a file.
//!
//! What it does not break: the disk, the clocks of single instances, and time within one handler.

#![allow(unreachable_pub, reason = "a test binary has no public face")]
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails where it cannot go on, and prints its report"
)]

mod api;
mod checker;
mod clock;
mod driver;
mod history;
mod link;
mod operator;
mod placement;
mod prometheus;
mod user;
mod world;

use std::process::Command;
use std::time::Duration;

use driver::{Report, simulate};

/// Simulated time of the run that every change goes through.
const THOUSAND_MINUTES: Duration = Duration::from_secs(1000 * 60);

fn run(seed: u64, length: Duration) -> Report {
    let report = simulate(seed, length);
    if let Ok(file) = std::env::var("MADAKO_SIMULATE_HISTORY") {
        std::fs::write(file, report.history.last(usize::MAX)).unwrap();
    }
    report
}

fn passes(seed: u64, length: Duration) -> Report {
    let report = run(seed, length);
    assert!(
        report.violations.is_empty(),
        "seed {seed}: {:#?}\nlast of the history:\n{}",
        report.violations,
        report.history.last(60)
    );
    report
}

/// What must have happened for the run to say anything.
fn is_worth_something(report: &Report) {
    let least = [
        ("commits of clusters", report.commits, 20),
        ("terms of leaders", report.terms, 10),
        ("actors that failed", report.actor_failures, 10),
        ("polls that failed anew", report.failed_polls, 5),
        ("observations that were held", report.held, 5),
        ("faults", report.faults, 100),
    ];
    for (what, count, least) in least {
        assert!(count >= least, "only {count} {what}, of at least {least}");
    }
}

#[test]
fn a_thousand_minutes_of_faults_break_no_invariant_and_end_in_calm() {
    let report = passes(1, THOUSAND_MINUTES);
    println!("{report}");
    is_worth_something(&report);
}

#[test]
fn other_seeds_pass_as_well() {
    for seed in 2..6 {
        passes(seed, THOUSAND_MINUTES / 5);
    }
}

#[test]
fn the_same_seed_gives_the_same_history_in_two_processes() {
    if let Ok(seed) = std::env::var("MADAKO_SIMULATE_SEED") {
        let report = run(seed.parse().unwrap(), THOUSAND_MINUTES / 5);
        println!("history {:016x} of {} lines", report.history.hash(), report.history.len());
        return;
    }
    let in_a_process = || {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["the_same_seed_gives_the_same_history_in_two_processes", "--exact", "--nocapture"])
            .env("MADAKO_SIMULATE_SEED", "7")
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().find(|line| line.contains("history ")).unwrap().to_owned()
    };
    let first = in_a_process();
    assert_eq!(first, in_a_process());
    assert!(!first.contains(" of 0 lines"), "{first}");
}

/// Longer than CI has time for: `make test-long`.
#[test]
#[ignore = "minutes of run time: make test-long"]
fn many_seeds_pass() {
    for seed in 100..140 {
        passes(seed, THOUSAND_MINUTES);
    }
}
