//! Tests of simulated scenarios: one seed gives one trace, no part of a real service is bypassed, and an outcome other
//! than a pass is reported as such.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::BufWriter;
use std::path::Path;
use std::process::Command;

use madako_domain::invariants::Id;
use madako_faults::{ClientKind, Count, Counts, Fault, Scenario, Shortfall, Span, find_shipped};
use madako_simulation::planted::keep_quiet;
use madako_simulation::run::{Options, Outcome, Report, SimulateError, shrink_scenario, simulate};

const TEN_MINUTES: Span = Span::from_seconds(600);

fn scenario(name: &str) -> Scenario {
    find_shipped(name).unwrap().parse_scenario().unwrap()
}

fn run(scenario: &Scenario, seed: u64, length: Span) -> Report {
    keep_quiet();
    simulate(scenario, seed, length, Options::default()).unwrap()
}

fn traced(scenario: &Scenario, seed: u64, length: Span, file: &Path) -> Report {
    keep_quiet();
    let trace = Box::new(BufWriter::new(File::create(file).unwrap()));
    simulate(scenario, seed, length, Options { trace: Some(trace), ..Options::default() }).unwrap()
}

#[test]
fn a_seed_gives_the_same_trace_in_two_processes_byte_for_byte() {
    const TEST: &str = "scenarios::a_seed_gives_the_same_trace_in_two_processes_byte_for_byte";
    if let Ok(file) = std::env::var("MADAKO_SIMULATE_TRACE") {
        traced(&scenario("default"), 3, Span::from_seconds(1200), Path::new(&file));
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let traces = ["one", "two"].map(|name| {
        let file = directory.path().join(name);
        let output = Command::new(std::env::current_exe().unwrap())
            .args([TEST, "--exact"])
            .env("MADAKO_SIMULATE_TRACE", &file)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        fs::read_to_string(file).unwrap()
    });
    assert!(traces[0].lines().count() > 500, "{} lines", traces[0].lines().count());
    let differs = traces[0].lines().zip(traces[1].lines()).find(|(one, two)| one != two);
    assert_eq!(differs, None);
    assert_eq!(traces[0].len(), traces[1].len());
}

/// It must have evidence of the promises about components.
#[test]
fn an_upgrade_of_kubernetes_passes_while_leaders_and_components_fail() {
    let report = run(&scenario("upgrade"), 1, Span::from_seconds(2 * 3600));
    assert_eq!(report.overall_outcome(), Outcome::Passed, "{report:#?}");
}

#[test]
fn storm_passes_and_uses_the_paths_of_the_real_service() {
    let report = run(&scenario("short-storm"), 1, TEN_MINUTES);
    assert_eq!(report.overall_outcome(), Outcome::Passed, "{report:#?}");
    let count = |what: &str| report.traffic.get(what).copied().unwrap_or(0);
    // Each poll is a message and a request to the registry, except while there is no leader; each request of a client
    // opens a connection.
    let polls = report.simulated.as_secs() / 60 / 2;
    assert!(count("requests to the registry") >= polls, "{:?}", report.traffic);
    assert!(count("messages of sabakan-poller") >= polls, "{:?}", report.traffic);
    let (requests, _) = report.calls["placement"];
    assert!(count("connections to instances") >= requests * 9 / 10, "{:?}", report.traffic);
    // Each commit and each event of a watch crosses the link as gRPC bytes.
    assert!(count("bytes to the store") > report.counts.commits * 100, "{:?}", report.traffic);
    assert!(count("bytes from the store") > report.counts.commits * 100, "{:?}", report.traffic);
    assert!(count("requests to providers") >= report.simulated.as_secs() / 15 / 2, "{:?}", report.traffic);
    for actor in ["leader", "cluster-planner", "repair-queue", "metrics-fetcher", "app-scheduler"] {
        assert!(count(&format!("messages of {actor}")) > 10, "{actor}: {:?}", report.traffic);
    }
    let measured = report.traffic.keys().filter_map(|what| what.strip_prefix("messages of "));
    let unknown: Vec<&str> = measured.filter(|actor| !madako_faults::ACTORS.contains(actor)).collect();
    assert!(unknown.is_empty(), "no fault can have these actors as target: {unknown:?}");
    assert!(count("disk syncs") >= report.counts.commits, "{:?}", report.traffic);
}

#[test]
fn accidents_and_leaders_that_end_in_each_state_of_a_repair_break_nothing() {
    let report = run(&scenario("sabotage"), 2, Span::from_seconds(2 * 60 * 60));
    assert_eq!(report.overall_outcome(), Outcome::Passed, "{report:#?}");
}

#[test]
fn counters_of_instances_match_the_requests_received() {
    let calm = |kinds: &[ClientKind]| {
        let mut calm = scenario("short-storm");
        calm.faults.clear();
        calm.clients.retain(|client| kinds.contains(&client.kind));
        calm.expect.at_least = Counts::default();
        let report = run(&calm, 1, Span::from_seconds(300));
        assert_eq!(report.overall_outcome(), Outcome::Passed, "{report:#?}");
        report
    };
    let busy = calm(&[ClientKind::Placement, ClientKind::EtcdWatch]);
    let quiet = calm(&[]);
    // Clients that write to the store directly have a connection to it too.
    for (report, clients) in [(&busy, 1), (&quiet, 0)] {
        let count = |what: &str| report.traffic.get(what).copied().unwrap_or(0);
        let counted = |metric: &str| count(&format!("counted by madako_{metric}_total"));
        // Each poll is one request; the registry receives no other.
        let polls = counted("polls") + counted("report_polls");
        assert!(polls > 10, "{:?}", report.traffic);
        let at_the_registry = count("requests to the registry");
        assert_eq!((counted("registry_requests"), at_the_registry), (polls, polls), "{:?}", report.traffic);
        // Each request of a client opens a connection and is answered.
        let (asked, failed) = report.calls["placement"];
        let at_the_doors = (count("connections to instances"), counted("http_requests"), failed);
        assert_eq!(at_the_doors, (asked, asked, 0), "{:?}", report.traffic);
        let by_providers = count("requests to providers");
        assert!(by_providers > 10, "{:?}", report.traffic);
        assert_eq!(counted("metrics_provider_requests"), by_providers, "{:?}", report.traffic);
        // Each instance has one connection for all of its requests.
        let instances = u64::from(scenario("short-storm").world.instances);
        assert_eq!(count("connections to the store"), instances + clients, "{:?}", report.traffic);
    }
    assert!(busy.calls["placement"].0 > 1000, "{:?}", busy.calls);
}

#[test]
fn unmet_expectations_prevent_a_pass() {
    let mut quiet = scenario("short-storm");
    quiet.faults.clear();
    quiet.expect.at_least.faults = 1;
    let report = run(&quiet, 1, Span::from_seconds(300));
    assert_eq!(report.overall_outcome(), Outcome::Failed);
    assert!(report.invariants.values().all(|verdict| verdict.violations.is_empty()), "{report:#?}");
    let mut hopeless = quiet;
    hopeless.expect.at_least.faults = 0;
    hopeless.faults.push(Fault::parse("kill provider=influx at 1m for 1m").unwrap());
    let report = run(&hopeless, 1, Span::from_seconds(300));
    assert_eq!((report.overall_outcome(), report.skipped.len()), (Outcome::Skipped, 1), "{report:#?}");
}

#[test]
fn a_run_with_an_invariant_without_judgements_does_not_pass() {
    let mut homeless = scenario("short-storm");
    (homeless.faults, homeless.clients) = (Vec::new(), Vec::new());
    homeless.expect.at_least = Counts::default();
    homeless.world.clusters = 0;
    let report = run(&homeless, 1, Span::from_seconds(300));
    assert_eq!((report.invariants[&Id::I11].judged, &report.not_exercised[..]), (0, &[Id::I11][..]));
    assert_eq!(report.overall_outcome(), Outcome::Failed);
}

#[test]
fn impossible_simulations_are_refused() {
    let etcd = simulate(&scenario("everything-fails-at-times"), 1, TEN_MINUTES, Options::default());
    assert!(matches!(etcd, Err(SimulateError::Etcd)));
    let short = simulate(&scenario("default"), 1, Span::from_seconds(1), Options::default());
    assert!(matches!(short, Err(SimulateError::TooShort { .. })));
}

#[test]
fn shrunk_scenario_still_fails() {
    let mut scenario = scenario("short-storm");
    scenario.clients.clear();
    scenario.expect.at_least = Counts::default();
    // Shorter than the time without a leader, which lasts until the killed leader's lease ends.
    scenario.expect.calm_within = Some(Span::from_seconds(20));
    scenario.faults = [
        "delay registry at 1m for 1m",
        "reset store=1 at 2m",
        "kill instance=leader at 4m30s for 30s",
        "cut registry at 3m for 30s",
    ]
    .map(|fault| Fault::parse(fault).unwrap())
    .to_vec();
    let length = Span::from_seconds(300);
    let failed = run(&scenario, 1, length);
    assert_eq!(failed.overall_outcome(), Outcome::Failed, "{failed:#?}");
    let wrong = failed.failure_texts();
    let at_fault = failed.schedule.injections.iter().position(|injection| injection.fault == 2).unwrap();
    let shrunk = shrink_scenario(&scenario, failed, |runs| runs < 20).unwrap();
    assert!(shrunk.only.contains(&at_fault) && shrunk.only.len() < 4, "{:?}", shrunk.only);
    let again = |only: BTreeSet<usize>| {
        simulate(&scenario, 1, shrunk.length, Options { only: Some(only), ..Options::default() }).unwrap()
    };
    let same = again(shrunk.only.clone());
    assert_eq!((same.failure_texts(), same.history), (wrong.clone(), shrunk.report.history));
    for number in &shrunk.only {
        let less = again(shrunk.only.iter().copied().filter(|other| other != number).collect());
        assert_ne!(less.failure_texts(), wrong, "{:?} without {number} is not a pass either", shrunk.only);
    }
}

#[test]
fn fault_of_the_leader_waits_for_a_leader_and_lasts_its_whole_time() {
    let mut scenario = scenario("short-storm");
    scenario.clients.clear();
    scenario.expect.at_least = Counts::default();
    // The killed leader's lease ends after a minute; until then there is no leader.
    scenario.faults = ["kill instance=leader at 1m for 10s", "cut instance=leader at 65s for 20s"]
        .map(|fault| Fault::parse(fault).unwrap())
        .to_vec();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("trace");
    let report = traced(&scenario, 1, Span::from_seconds(300), &file);
    assert_eq!((report.overall_outcome(), report.skipped.len()), (Outcome::Passed, 0), "{report:#?}");
    let trace = fs::read_to_string(&file).unwrap();
    let at = |what: &str| {
        let line = trace.lines().find(|line| line.contains(what)).unwrap_or_else(|| panic!("no {what}"));
        line.split_whitespace().next().unwrap().parse::<f64>().unwrap()
    };
    let (killed, cut, whole) =
        (at("kill instance=leader begins"), at("cut instance=leader begins"), at("cut ends"));
    assert!(cut > killed + 30.0, "killed at {killed} s, and the next one cut at {cut} s");
    assert!((whole - cut - 20.0).abs() < 1.0, "cut from {cut} s to {whole} s");
}

#[test]
fn a_compaction_that_the_store_did_not_take_is_asked_for_again_and_counts_only_when_it_did() {
    let of = |faults: [&str; 2]| {
        let mut scenario = scenario("short-storm");
        scenario.clients.clear();
        scenario.expect.at_least = Counts { faults: 2, ..Counts::default() };
        scenario.faults = faults.map(|fault| Fault::parse(fault).unwrap()).to_vec();
        scenario
    };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("trace");
    let down = of(["kill store=1 at 1m for 30s", "compact store=1 at 70s"]);
    let report = traced(&down, 1, Span::from_seconds(300), &file);
    assert_eq!((report.overall_outcome(), report.counts.faults), (Outcome::Passed, 2), "{report:#?}");
    let trace = fs::read_to_string(&file).unwrap();
    let reported: Vec<&str> = trace.lines().filter(|line| line.contains("compact store=1 begins")).collect();
    let at = |line: &str| line.split_whitespace().next().unwrap().parse::<f64>().unwrap();
    assert!(reported.len() == 1 && at(reported[0]) > 90.0, "{reported:?}");
    assert_eq!(trace.lines().filter(|line| line.contains("is compacted at")).count(), 1);
    // Longer than the compaction is retried.
    let full = of(["disk-full store=1 at 1m for 8m", "compact store=1 at 70s"]);
    let report = run(&full, 1, TEN_MINUTES);
    assert_eq!((report.counts.faults, report.skipped.len()), (1, 1), "{report:#?}");
    assert_ne!(report.overall_outcome(), Outcome::Passed);
}

#[test]
fn unanswered_write_does_not_count_as_refused() {
    let of = |fault: &str| {
        let mut scenario = scenario("short-storm");
        scenario.faults = vec![Fault::parse(fault).unwrap()];
        scenario.expect.at_least = Counts { refused_writes: 1, ..Counts::default() };
        run(&scenario, 1, Span::from_seconds(300))
    };
    // Operators change the inputs from which a cluster was planned.
    let overtaken = of("cut instance=leader at 90s for 20s");
    assert_eq!(overtaken.overall_outcome(), Outcome::Passed, "{overtaken:#?}");
    assert!(overtaken.counts.refused_writes > 0, "{:?}", overtaken.counts);
    let unanswered = of("kill store=1 at 90s for 2m");
    let short = Shortfall::TooFew { count: Count::RefusedWrites, at_least: 1, got: 0 };
    assert_eq!((unanswered.overall_outcome(), &unanswered.shortfalls[..]), (Outcome::Failed, &[short][..]));
}
