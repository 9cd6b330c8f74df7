//! Decides which checks a chaos run must exercise, given its world and clients.
//!
//! A run that does not exercise one of them shows less than it claims, and fails. Checks that depend on chance, or that
//! no scenario exercises, are only reported as not exercised.

use madako_domain::invariants::Id;
use madako_faults::{ClientKind, Fault, FaultLength, Scenario, Span, fault_length};
use madako_judges::Promise;

use super::{GATE, HISTORY, LINEARIZABLE, PROCESSES};
use crate::check::Verdicts;
use crate::check::api::{API_WATCHES, LISTS};
use crate::check::registry::REGISTRY;
use crate::check::watches::WATCHES;
use crate::drill;
use crate::world::ZONES;

/// Number of requests from which clients of a kind are bound to have made the rarest sort. If one request in six is of
/// that sort, a run without any has a probability of `(5/6)^120`, less than one in a billion.
const ENOUGH: f64 = 120.0;

/// A cluster is committed before the faults begin, so that every run judges these. (I5 is about changes of a cluster:
/// they depend on the machines that fail.)
const ALWAYS: [Id; 6] = [Id::I1, Id::I3, Id::I4, Id::I6, Id::I12, Id::I17];

/// A run of this length has time without faults for requests that come every few seconds.
const STEADY: Span = Span::from_seconds(60);

/// Promises about such requests, in each world and in one that places applications.
const AT_AN_INTERVAL: [Promise; 2] = [Promise::MachinePolls, Promise::ReportPolls];
const AT_AN_INTERVAL_WHERE_PLACED: [Promise; 1] = [Promise::MetricRounds];

/// Promises that each repair exercises: its machine's health is checked, and a command begins or the repair succeeds.
const OF_REPAIRS: [Promise; 3] = [Promise::HealthChecks, Promise::FreshHealth, Promise::HealthySucceeds];

/// Promises that each drill exercises. Its other promises need a leader without faults at the right moment.
const OF_DRILLS: [Promise; 2] = [Promise::IntegrationDisabled, Promise::AllConditions];

/// The drill of a run of this length has at least four rounds, if no fault delays its writes for long.
const ROUNDS: Span = Span::from_seconds(600);
/// A fault that is shorter than this delays one or two rounds.
const SHORT: Span = Span::from_seconds(60);

/// Promises that one of these rounds exercises: an entry that waited for the queue begins later, under any leader.
const OF_ROUNDS: [Promise; 1] = [Promise::QueueResumes];

/// True if a fault strikes once, or ends within [`SHORT`].
fn is_short(fault: &Fault) -> bool {
    let strikes = fault_length(fault.act, fault.target.kind()) == FaultLength::Once;
    fault.lasts.map_or(strikes, |lasts| lasts < SHORT)
}

/// The checks that a run of a scenario must exercise.
fn expected_checks(scenario: &Scenario, length: Span) -> Vec<&'static str> {
    let world = scenario.world;
    let many = |kind| {
        let clients = scenario.clients.iter().find(|client| client.kind == kind);
        let expected =
            clients.map_or(0.0, |client| client.rate.per_second() * length.duration().as_secs_f64());
        expected >= ENOUGH
    };
    let mut expected: Vec<&str> =
        ALWAYS.iter().map(|id| id.name()).chain([GATE, HISTORY, PROCESSES, REGISTRY]).collect();
    let steady = |promises: &[Promise]| {
        let promises: Vec<&str> = promises.iter().map(|promise| promise.name()).collect();
        if length >= STEADY { promises } else { Vec::new() }
    };
    expected.extend(steady(&AT_AN_INTERVAL));
    if world.places_applications() {
        expected.extend(steady(&AT_AN_INTERVAL_WHERE_PLACED));
        // Every application is created before the faults begin.
        expected.extend([Id::I9.name(), LINEARIZABLE]);
        // Each zone that an application may demand has a cluster.
        if world.applications > 0 && world.clusters as usize >= ZONES.len() {
            expected.push(Id::I11.name());
        }
        if many(ClientKind::Placement) {
            expected.extend([LISTS, API_WATCHES]);
        }
    }
    if many(ClientKind::EtcdWatch) {
        // Every third write of these clients adds an entry to the repair queue. I8 depends on chance: a broken control
        // plane node is replaced within two polls, mostly before its repair begins.
        expected.extend([Id::I7.name(), Id::I9.name(), Id::I10.name(), WATCHES]);
        expected.extend(OF_REPAIRS.iter().map(|promise| promise.name()));
    }
    if drill::is_held(scenario, length) {
        expected.extend(OF_DRILLS.iter().map(|promise| promise.name()));
        if length >= ROUNDS && scenario.faults.iter().all(is_short) {
            expected.extend(OF_ROUNDS.iter().map(|promise| promise.name()));
        }
    }
    expected
}

/// Names of the checks that the scenario was bound to exercise and that were not.
pub(super) fn missing_checks(scenario: &Scenario, length: Span, verdicts: &Verdicts) -> Vec<String> {
    let judged = |name: &str| verdicts.0.get(name).is_some_and(|verdict| verdict.judged > 0);
    let mut missing: Vec<String> = expected_checks(scenario, length)
        .into_iter()
        .filter(|name| !judged(name))
        .map(str::to_owned)
        .collect();
    missing.sort_unstable();
    missing.dedup();
    missing
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scenario(text: &str) -> Scenario {
        Scenario::parse(text).unwrap()
    }

    fn all(scenario: &Scenario, seconds: u64) -> Vec<String> {
        missing_checks(scenario, Span::from_seconds(seconds), &Verdicts::default())
    }

    const ANY: [&str; 10] =
        ["I1", "I12", "I17", "I3", "I4", "I6", "gate", "history", "processes", "registry"];

    /// The missing checks without those that every world must exercise.
    fn missing_beyond_any(scenario: &Scenario, seconds: u64) -> Vec<String> {
        let mut all = all(scenario, seconds);
        all.retain(|name| !ANY.contains(&name.as_str()));
        all
    }

    #[test]
    fn required_checks_without_clients_depend_on_clusters_and_applications() {
        let small = scenario("name: a\nworld: {clusters: 0, applications: 0}\n");
        assert_eq!(all(&small, 59), ANY);
        assert_eq!(missing_beyond_any(&small, 60), ["machine-polls", "report-polls"]);
        let unfit = scenario("name: a\nworld: {clusters: 1, applications: 1}\n");
        assert_eq!(missing_beyond_any(&unfit, 59), ["I9", "linearizable"]);
        let steady = ["I9", "linearizable", "machine-polls", "metric-rounds", "report-polls"];
        assert_eq!(missing_beyond_any(&unfit, 60), steady);
        let fit = scenario("name: a\nworld: {clusters: 3, applications: 1}\n");
        assert!(all(&fit, 1).contains(&"I11".to_owned()));
    }

    #[test]
    fn required_checks_of_clients_depend_on_their_rate() {
        let busy = scenario(
            "name: a\nworld: {clusters: 0, applications: 0}\nclients: [{kind: etcd-watch, rate: 4}, {kind: placement, rate: 4}]\n",
        );
        assert_eq!(all(&busy, 29), ANY);
        let repairs = ["fresh-health", "health-checks", "healthy-succeeds"];
        assert_eq!(
            missing_beyond_any(&busy, 30),
            ["I10", "I7", "I9"].into_iter().chain(repairs).chain(["watches"]).collect::<Vec<_>>()
        );
        let placed = scenario("name: a\nclients: [{kind: placement, rate: 2}]\n");
        let of_clients = |seconds| all(&placed, seconds).contains(&"api-watches".to_owned());
        assert_eq!([of_clients(59), of_clients(60)], [false, true]);
    }

    #[test]
    fn a_run_with_a_drill_exercises_what_the_drill_causes() {
        let held = scenario(
            "name: a\nclients: [{kind: etcd-watch, rate: 1}, {kind: placement, rate: 1}, {kind: registry, rate: 1}]\n",
        );
        let of_drill = |seconds| all(&held, seconds).contains(&"integration-disabled".to_owned());
        assert_eq!([of_drill(119), of_drill(120)], [false, true]);
        let of_rounds = |seconds, fault: &str| {
            let mut held = held.clone();
            held.faults = vec![Fault::parse(fault).unwrap()];
            all(&held, seconds).contains(&"queue-resumes".to_owned())
        };
        assert_eq!([599, 600].map(|seconds| of_rounds(seconds, "reset store=1 at 5s")), [false, true]);
        let faults = ["kill registry at 5s for 59s", "kill registry at 5s for 60s", "kill registry at 5s"];
        assert_eq!(faults.map(|fault| of_rounds(600, fault)), [true, false, false]);
    }

    #[test]
    fn exercised_checks_are_not_missing() {
        let small = scenario("name: a\nworld: {clusters: 0, applications: 0}\n");
        let mut verdicts = Verdicts::default();
        for name in ANY.iter().filter(|name| **name != "I6") {
            verdicts.verdict_of(name).judged = 1;
        }
        verdicts.verdict_of("I6").judged = 0;
        assert_eq!(missing_checks(&small, Span::from_seconds(1), &verdicts), ["I6"]);
    }
}
