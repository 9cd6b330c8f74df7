//! After the last fault of a simulated run: waits for a period without writes, within a time limit, and checks the
//! final state.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use madako_domain::invariants::{Id, Violation};
use madako_faults::{ClientKind, Counts, Observed, Scenario, Schedule, Shortfall, Span, find_shortfalls};
use madako_judges::Promise;
use madako_judges::final_cluster::misplaced_nodes;

use super::inject::Injector;
use super::operations;
use super::report::{QuietPeriod, Report, verdicts_by_invariant};
use super::simulated_clients::ClientResults;
use crate::drains::Drains;
use crate::facts::Facts;
use crate::network::Endpoint;
use crate::nodes::Nodes;
use crate::operator::ExpectedSize;
use crate::pace::MessagePace;
use crate::placement::PlacementCounts;
use crate::repair::{RepairCounts, RepairJudge};
use crate::rivals::{REQUIRED, Rivals};
use crate::world::{INTERVAL, RESCHEDULE_AFTER, SESSION_TTL};

/// Length of the quiet period, without writes: longer than the interval of any periodic work of the service.
const QUIET: Duration = Duration::from_secs(15 * 60);

/// Interval of the checks for it.
const LOOK: Duration = Duration::from_secs(30);

/// Longest back-off of the service: the pause after a drain is given up, with the queue as the users leave it (five
/// minutes, and up to as much again).
const LONGEST_BACK_OFF: Duration = Duration::from_secs(2 * 300);

/// Invariants whose subject each simulated world has; I11 only with placement.
const EXERCISED: [Id; 9] = [Id::I1, Id::I3, Id::I4, Id::I5, Id::I6, Id::I7, Id::I9, Id::I11, Id::I12];

/// Invariants whose subject each world with operations has.
const OF_OPERATIONS: [Id; 2] = [Id::I2, Id::I10];

/// Invariants whose subject is a control plane node under repair or reboot: runs with reboots have it, and so do drills.
const OF_BUSY_CONTROL_PLANE: [Id; 1] = [Id::I8];

/// Time until the quiet period that the settings of the run allow: the lease ends, three polls, waiting applications
/// may move, and failed work is retried.
const ALLOWED: Duration = SESSION_TTL
    .saturating_add(INTERVAL.saturating_mul(3))
    .saturating_add(RESCHEDULE_AFTER)
    .saturating_add(LONGEST_BACK_OFF);

fn to_span(duration: Duration) -> Span {
    Span::from_millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}

pub(super) struct SettlingRun<'a> {
    pub(super) facts: &'a Facts,
    pub(super) drains: &'a Drains,
    pub(super) repairs: &'a RepairJudge,
    pub(super) pace: &'a MessagePace,
    /// True if the run came to its end, so that a quiet period is required.
    pub(super) to_the_end: bool,
    /// True if the cleanup of the clients succeeded.
    pub(super) rested: bool,
}

pub(super) async fn settle_run(
    scenario: &Scenario,
    (seed, length): (u64, Span),
    mut injector: Injector,
    done: ClientResults,
    SettlingRun { facts, drains, repairs, pace, to_the_end, rested }: SettlingRun<'_>,
) -> Report {
    let history = injector.world.history.clone();
    let placement = injector.world.placement.clone();
    drains.heal();
    let began = history.now();
    let within = scenario.expect.calm_within.map_or(ALLOWED, |span| span.duration());
    let last = loop {
        if !to_the_end {
            break None;
        }
        tokio::select! {
            biased;
            () = pace.wait_until_overrun() => {
                injector.stop_all().await;
                break None;
            }
            () = tokio::time::sleep(LOOK) => {}
        }
        injector.restart_ended_instances().await;
        let written = placement.changes_since(began).last().map_or(began, |(at, _)| *at);
        let last = repairs.last_effect().map_or(written, |(at, _)| at.max(written));
        let quiet = history.now().saturating_sub(last);
        if quiet >= QUIET && (repairs.count_unfinished() == 0 || history.now() > began + within + QUIET) {
            break Some(last);
        }
        if history.now() > began + within + 2 * QUIET {
            break None;
        }
    };
    if last.is_some() {
        // A quiet period without writes is an evaluation of I12.
        history.count_judgement(Id::I12);
    }
    let calm_after = last.map(|last| to_span(last.saturating_sub(began)));
    let mut found: Vec<String> = pace.describe_overrun().into_iter().collect();
    if !rested {
        found.push("the simulated clients could not clean up after themselves".to_owned());
    }
    if to_the_end && calm_after.is_none() {
        let written = placement.changes_since(history.now().saturating_sub(QUIET));
        let keys: BTreeSet<String> = written.into_iter().map(|(_, key)| key).collect();
        found.push(format!("still written: {}", keys.into_iter().take(10).collect::<Vec<_>>().join(", ")));
        let acted = repairs.last_effect().filter(|(at, _)| *at + QUIET > history.now());
        found.extend(acted.map(|(_, what)| format!("still acts: {what}")));
    }
    // Read before `unserved` connects to every instance.
    let traffic = traffic_of_links(&injector);
    if to_the_end {
        found.extend(final_deviations(scenario, &injector));
        found.extend(operations::find_deviations(&injector, repairs).await);
        found.extend(list_unserved(scenario, &injector).await);
    }
    let counts = *injector.world.counts.lock().unwrap();
    found.extend(operations::check_failure_rate(counts.failed_operations, history.now()));
    let observed = Observed {
        counts: Counts {
            leader_changes: counts.leader_changes,
            commits: counts.commits,
            refused_writes: injector.world.handling.refused_count(),
            failed_client_calls: done.failure_count(),
            faults: injector.injected,
        },
        skipped: injector.skipped.len() as u64,
        calm_after,
        settings_allow: to_span(ALLOWED),
    };
    let mut violations = injector.world.checker.finish();
    violations.extend(placement.finish());
    violations.extend(if to_the_end { repairs.finish() } else { repairs.find_violations() });
    for (_, running) in std::mem::take(&mut injector.running) {
        running.instance.stop().await;
    }
    if let Some(nodes) = &injector.world.nodes {
        nodes.report();
    }
    let promises = facts.verdicts();
    let mut exemptions = facts.exemptions();
    exemptions.add(&injector.world.checker.exemptions());
    exemptions.add(&repairs.exemptions());
    exemptions.add(&placement.exemptions());
    exemptions.add(&injector.exemptions);
    found.extend(injector.world.unplanted.lock().unwrap().iter().cloned());
    found.extend(exemptions.exceeded_bounds(history.now()));
    let refused = injector.world.rivals.as_ref().map(Rivals::count_refused_by_family);
    found.extend(
        refused
            .iter()
            .filter(|_| to_the_end)
            .flat_map(|refused| families_with_too_few_refusals(refused, length)),
    );
    if to_the_end {
        found.extend(missing_events(scenario, &repairs.counts(), placement.read_counts()));
    }
    let drilled = to_the_end && super::drill::is_held(scenario, length);
    let counts_of_nodes = injector.world.nodes.as_ref().filter(|_| drilled).map(Nodes::counts);
    let restarted = operations::required_restarts(length, injector.restarted, repairs.counts().restarted);
    found
        .extend(counts_of_nodes.into_iter().flat_map(|counts| operations::missing_events(counts, restarted)));
    let has_reboots = super::has_clients(scenario, ClientKind::Reboots);
    let is_tested = |promise: Promise| is_promise_tested(scenario, drilled, has_reboots, promise);
    let untested = promises.iter().filter(|(promise, verdict)| verdict.judged == 0 && is_tested(**promise));
    let untested = untested.map(|(promise, _)| *promise).filter(|_| to_the_end).collect();
    let kept = promises.values().all(|verdict| verdict.violations.is_empty());
    found.extend(check_full_length(to_the_end, kept && violations.is_empty() && found.is_empty()));
    let judged = history.judgement_counts();
    let (places, operates) = (scenario.world.places_applications(), scenario.world.runs_operations());
    let busy = has_reboots || drilled;
    let not_exercised = EXERCISED
        .into_iter()
        .chain(OF_OPERATIONS.into_iter().filter(|_| operates))
        .chain(OF_BUSY_CONTROL_PLANE.into_iter().filter(|_| busy))
        .filter(|_| to_the_end)
        .filter(|id| judged.get(id).is_none_or(|count| *count == 0) && (places || *id != Id::I11))
        .collect();
    let wrong = |short: &Shortfall| !matches!(short, Shortfall::Skipped { .. });
    let short = if to_the_end { find_shortfalls(&scenario.expect, &observed) } else { Vec::new() };
    let failed = !violations.is_empty() || !kept || !found.is_empty() || short.iter().any(wrong);
    Report {
        scenario: scenario.name.clone(),
        seed,
        length,
        schedule: Schedule { injections: Vec::new(), events: Vec::new(), draws: Vec::new() },
        skipped: std::mem::take(&mut injector.skipped),
        invariants: verdicts_by_invariant(&judged, violations),
        promises,
        exemptions,
        untested,
        not_exercised,
        calm: QuietPeriod { after: calm_after, within: to_span(within), found },
        shortfalls: short,
        counts: observed.counts,
        calls: done.calls.iter().map(|(kind, calls)| (*kind, (calls.made, calls.failed))).collect(),
        refused: refused.unwrap_or_default(),
        traffic,
        simulated: Duration::ZERO,
        history: (history.hash(), history.len()),
        last: if failed { history.last_lines(60) } else { String::new() },
    }
}

/// True if a run to the end must test the promise: a drill provokes most of them, an upgrade of Kubernetes those of
/// its components, and a reboot the limit of drains.
fn is_promise_tested(scenario: &Scenario, drilled: bool, has_reboots: bool, promise: Promise) -> bool {
    let (operates, upgrades) = (scenario.world.runs_operations(), scenario.world.runs_kubernetes());
    match promise {
        // No operator of a run asks for a restore of etcd, and no fault keeps a kubelet from serving after its restart. The
        // stories of operations have both.
        Promise::LossProved | Promise::RollHalts => false,
        // Each reboot begins with a drain, and a run with such clients must have a reboot.
        Promise::DrainLimit => upgrades || has_reboots,
        Promise::EndedBeforeReboot => upgrades && has_reboots,
        _ if promise.needs_components() => upgrades,
        _ => drilled && (operates || !promise.needs_nodes()),
    }
}

/// A finding if the run ended early for a violation that vanished later: the run had neither its full length nor its
/// quiet period.
pub(super) fn check_full_length(to_the_end: bool, nothing_found: bool) -> Option<String> {
    (!to_the_end && nothing_found)
        .then(|| "it ended before its time, and what it ended for was nothing".to_owned())
}

/// Events that runs with certain clients must contain, and that this run lacks.
fn missing_events(scenario: &Scenario, repairs: &RepairCounts, placement: PlacementCounts) -> Vec<String> {
    let of_reboots = [
        ("old records deleted", repairs.collected),
        ("repairs waited beside a reboot", repairs.beside_reboots),
        ("nodes rebooted", repairs.reboots),
    ];
    let of_saboteurs = [
        ("racks held", repairs.held),
        ("answers with false reports", repairs.false_answers),
        ("answers by a clock that was set", repairs.shifted_answers),
        ("repair commands cut off", repairs.cut_off),
        ("commands of unknown outcome", repairs.unknown),
        ("repairs failed", repairs.failed),
        ("entries that reports asked for", repairs.requested),
        ("nodes drained", repairs.drained),
        ("drains given up", repairs.drains_given_up),
        ("deletions of everything", placement.wipes),
        ("resources collected", placement.collected),
        ("clusters failing metrics", placement.failing),
        ("applications fitting nowhere", placement.degraded),
        ("applications moved", placement.moves),
    ];
    let kinds = [(ClientKind::Reboots, &of_reboots[..]), (ClientKind::Saboteurs, &of_saboteurs[..])];
    let wanted =
        kinds.iter().filter(|(kind, _)| super::has_clients(scenario, *kind)).flat_map(|(_, counts)| *counts);
    wanted.filter(|(_, count)| *count == 0).map(|(what, _)| format!("never: {what}")).collect()
}

/// Families of keys with too few refused transactions for the length of the run: it shows nothing about them.
fn families_with_too_few_refusals(refused: &BTreeMap<&'static str, u64>, length: Span) -> Vec<String> {
    let seconds = length.duration().as_secs();
    let few = REQUIRED.into_iter().filter_map(|(family, an_hour)| {
        let (at_least, got) = (an_hour * seconds / 3600, refused.get(family).copied().unwrap_or(0));
        (got < at_least).then(|| {
            format!("refused transactions of {family}: {got}, where at least {at_least} were expected")
        })
    });
    few.collect()
}

/// Deviations from the required final state: one leader, all instances running and none given up, the cluster's size
/// and nodes, and a place for each application that fits somewhere.
fn final_deviations(scenario: &Scenario, injector: &Injector) -> Vec<String> {
    let mut found = Vec::new();
    let leaders: Vec<&str> = injector
        .running
        .iter()
        .filter(|(_, running)| running.instance.view().reign.borrow().is_some())
        .map(|(name, _)| *name)
        .collect();
    if leaders.len() != 1 {
        found.push(format!("one instance should lead, and {leaders:?} do"));
    }
    let there = injector.running.len();
    if there != scenario.world.instances as usize {
        found.push(format!("{} instances should run, and {there} do", scenario.world.instances));
    }
    for (name, _) in injector.running.iter().filter(|(_, running)| *running.instance.view().melted.borrow()) {
        found.push(format!("{name} has given up"));
    }
    let wanted = ExpectedSize::for_world(&scenario.world);
    match injector.world.checker.current_cluster() {
        None => found.push("no cluster was committed".to_owned()),
        Some(cluster) => {
            let machines = injector.world.registry.list_machines();
            let states =
                machines.iter().filter_map(|machine| Some((machine.address()?, machine.status.state)));
            found.extend(misplaced_nodes(&cluster, &states.collect()));
            if !injector.world.checker.is_template_applied() {
                found.push("the cluster was not made from the last template".to_owned());
            }
            let (control_plane, workers) = (cluster.control_plane().count(), cluster.workers().count());
            if control_plane != wanted.control_plane as usize || workers < wanted.workers as usize {
                found.push(format!(
                    "the cluster has {control_plane} control plane nodes and {workers} workers, of {wanted:?}"
                ));
            }
        }
    }
    found.extend(injector.world.placement.find_unsettled().into_iter().map(|Violation { what, .. }| what));
    found
}

/// Running instances that do not serve their pages, or the API of placement in a world with placement.
async fn list_unserved(scenario: &Scenario, injector: &Injector) -> Vec<String> {
    let mut dialers = vec![("pages", &injector.world.pages)];
    if scenario.world.places_applications() {
        dialers.push(("API of placement", &injector.world.dialers));
    }
    let mut found = Vec::new();
    for name in injector.running.keys() {
        for (what, dialers) in &dialers {
            let dialer = dialers.lock().unwrap().get(name).cloned();
            let served = match dialer {
                Some(dialer) => dialer.connect().await.is_ok(),
                None => false,
            };
            if !served {
                found.push(format!("{name} does not serve its {what}"));
            }
        }
    }
    found
}

fn traffic_of_links(injector: &Injector) -> BTreeMap<String, u64> {
    let world = &injector.world;
    let mut traffic: BTreeMap<String, u64> = world
        .handling
        .handled_messages()
        .into_iter()
        .map(|(actor, count)| (format!("messages of {actor}"), count))
        .collect();
    let to_store = world.network.sum_traffic(|_, to| to == Endpoint::Store);
    traffic.insert("connections to the store".to_owned(), to_store.connections);
    traffic.insert("bytes to the store".to_owned(), to_store.sent);
    traffic.insert("bytes from the store".to_owned(), to_store.received);
    traffic.insert("disk syncs".to_owned(), injector.count_syncs());
    let to_api =
        world.network.sum_traffic(|from, to| from == Endpoint::People && matches!(to, Endpoint::Instance(_)));
    traffic.insert("connections to instances".to_owned(), to_api.connections);
    if world.nodes.is_some() {
        let failed = world.counts.lock().unwrap().failed_operations;
        traffic.insert("operations that failed".to_owned(), failed);
    }
    let numbers = |nodes: &Nodes| operations::report_numbers(nodes.counts(), injector.restarted);
    traffic.extend(world.nodes.iter().flat_map(numbers));
    let count = |count: &std::sync::atomic::AtomicU64| count.load(std::sync::atomic::Ordering::Relaxed);
    traffic.insert("requests to the registry".to_owned(), count(&world.requests.registry));
    traffic.insert("requests to providers".to_owned(), count(&world.requests.providers));
    traffic.extend(
        world
            .handling
            .request_counts()
            .into_iter()
            .map(|(metric, count)| (format!("counted by {metric}"), count)),
    );
    traffic
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_with_too_few_refused_transactions_of_a_family_does_not_pass() {
        let enough: BTreeMap<&'static str, u64> = REQUIRED.into_iter().collect();
        assert_eq!(families_with_too_few_refusals(&enough, Span::from_seconds(3600)), [""; 0]);
        assert_eq!(
            families_with_too_few_refusals(&enough, Span::from_seconds(2 * 3600)).len(),
            REQUIRED.len()
        );
        assert_eq!(
            families_with_too_few_refusals(&BTreeMap::new(), Span::from_seconds(3600)).len(),
            REQUIRED.len()
        );
    }

    #[test]
    fn an_upgrade_must_test_the_promises_of_components_that_its_faults_and_clients_provoke() {
        let tested = |operations: &str, drilled, reboots| {
            let text = format!("name: a\nworld: {{operations: {operations}}}");
            let scenario = Scenario::parse(&text).unwrap();
            let of_components = Promise::ALL.iter().filter(|promise| promise.needs_components());
            of_components.filter(|promise| is_promise_tested(&scenario, drilled, reboots, **promise)).count()
        };
        assert_eq!([tested("act", true, false), tested("act", false, true)], [0, 1]);
        assert_eq!([tested("kubernetes", false, false), tested("kubernetes", false, true)], [8, 9]);
    }
}
