//! Test of a run without faults beside a Prometheus: no alert fires. After the end of the run the alerts fire, which
//! shows that the rules were active.

use std::io::{BufRead as _, BufReader, Read as _};

use super::prometheus::{Pace, Prometheus};
use super::started::{Ended, program};
use super::{OF_SLOW_MACHINES, etcd_is_installed, is_installed, report_of, start_run};

/// A world with the objects of all alerts, and clients that send requests all the time. No object is faulty: each zone
/// that clients demand has a cluster.
const CALM: &str = "name: calm\nworld: {instances: 2, machines: 20, racks: 4, clusters: 3, applications: 6}\n\
                    clients: [{kind: placement, rate: 5}, {kind: etcd-watch, rate: 1}]\n";

/// Longer than most alerts wait: those that wait for up to twenty minutes wait for up to forty seconds here.
const LENGTH: &str = "45s";

#[test]
fn a_calm_run_fires_no_alert_and_its_end_fires_one() {
    if !(etcd_is_installed() && is_installed("prometheus") && is_installed("promtool")) {
        return;
    }
    let report = report_of("calm");
    let targets = report.join("targets.json");
    // The file of an earlier run must be gone.
    let _ = std::fs::remove_file(&targets);
    let place = report.to_str().unwrap();
    let args = ["--scenario", "-", "--seed", "1", "--for", LENGTH, "--report", place];
    let mut run = start_run(program(), &args, CALM);
    let mut reported = BufReader::new(run.as_mut().stderr.take().unwrap());
    let mut errors = String::new();
    // Before that there is no leader, so that an alert may rightly fire on a slow machine.
    while !errors.contains("runs for ") {
        assert_ne!(reported.read_line(&mut errors).unwrap(), 0, "it did not begin: {errors}");
    }
    let prometheus = Prometheus::start(&targets, Pace::OF_THE_RUN);
    let Ended { code, out, .. } = run.ended();
    reported.read_to_string(&mut errors).unwrap();
    assert_eq!(code, 0, "see {place}:\n{errors}\n{out}");

    let ended = prometheus.last_answer(3);
    for (query, least) in [
        ("sum(max_over_time(up[1m]))", 2.0),
        ("max(max_over_time(madako_leader[1m]))", 1.0),
        ("max(max_over_time(madako_observation_machines[1m]))", 20.0),
        ("max(max_over_time(madako_placement_applications{outcome=\"stays\"}[1m]))", 1.0),
    ] {
        let is = prometheus.number(query, ended);
        assert!(is >= least, "{query}: {is}");
    }
    let [mut fired, _] = prometheus.fired(2, ended);
    fired.retain(|alert| !OF_SLOW_MACHINES.contains(&alert.as_str()));
    assert!(fired.is_empty(), "see {place}: {fired:?}");
    prometheus.until_fires("MadakoInstanceDown");
}
