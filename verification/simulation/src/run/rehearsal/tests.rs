use bytes::Bytes;
use madako_datacenter_sim::DatacenterConfig;
use madako_domain::placement::core::{MetricsProviderKind, PrometheusSpec};
use madako_faults::{Expectations, Fault};
use madako_supervisor::instance::PLANNER;
use serde_json::json;
use time::macros::datetime;

use super::*;
use crate::world::INTERVAL;

const AT: OffsetDateTime = datetime!(2026-11-21 12:00 UTC);
const RACKS: u32 = 4;

fn entry(revision: i64, lease: i64, value: impl Into<String>) -> Entry {
    Entry { value: Bytes::from(value.into()), create_revision: revision, mod_revision: revision, lease }
}

/// A newly set up system, with a leader whose keys are bound to its lease.
fn copied() -> CopiedSystem {
    let worker = |role: &str, weight: &str| json!({"user": "u", "labels": {"cke.cybozu.com/role": role, "cke.cybozu.com/weight": weight}});
    let template = json!({
        "name": "copied",
        "nodes": [{"user": "u", "control_plane": true}, worker("compute", "3.0"), worker("storage", "1.0")],
        "service_subnet": "10.68.0.0/16",
        "options": {"kubelet": {"cri_endpoint": "unix:///run/containerd/containerd.sock"}},
        "repair": {"repair_procedures": [{
            "machine_types": ["iDRAC-9", "IPMI-2.0"],
            "repair_operations": [{
                "operation": "unreachable",
                "health_check_command": ["check", "it"], "success_command": ["tell"],
                "repair_steps": [{"repair_command": ["reset", "it"], "watch_seconds": 120}],
            }],
        }]},
    });
    let constraints =
        json!({"control-plane-count": 3, "minimum-workers": 6, "maximum-repair-queue-entries": 5})
            .to_string();
    let own = [
        (keys::SABAKAN_URL, entry(700, 0, "https://user:hidden@elsewhere/api/graphql")),
        (keys::SABAKAN_TEMPLATE, entry(800, 0, template.to_string())),
        (keys::CONSTRAINTS, entry(900, 0, constraints)),
        ("leader//77", entry(950, 119, "alpha")),
        (keys::STATUS, entry(960, 119, "{}")),
    ];
    let datacenter = DatacenterConfig::new(5, AT, RACKS, &[("compute", 20), ("storage", 8)]);
    let provider = PrometheusSpec { url: "http://one".to_owned(), rest: Default::default() };
    CopiedSystem {
        at: AT,
        revision: 1000,
        own: own.into_iter().map(|(key, entry)| (key.to_owned(), entry)).collect(),
        root: BTreeMap::new(),
        machines: Datacenter::new(datacenter).unwrap().machines(),
        providers: vec![CopiedProvider {
            name: "one".to_owned(),
            kind: Arc::new(MetricsProviderKind::Prometheus(provider)),
            metrics: BTreeMap::new(),
        }],
    }
}

fn service() -> Service {
    Service { working: ServiceSettings::default(), places: false, kubernetes: false }
}

const ASSUMED: Assumptions =
    Assumptions { command_takes: Duration::from_secs(10), heals_percent: 100, walk_percent: 1.0 };

fn scenario(faults: &[&str]) -> Scenario {
    let faults = faults.iter().map(|line| Fault::parse(line).unwrap()).collect();
    let world = world_of_copy(&copied(), &service());
    Scenario { name: "test".to_owned(), world, clients: Vec::new(), faults, expect: Expectations::default() }
}

fn rehearsed(faults: &[&str], seed: u64) -> Rehearsal {
    let length = Span::from_seconds(20 * 60);
    rehearse_schedule(copied(), service(), ASSUMED, &scenario(faults), (seed, length), Options::default())
        .unwrap()
}

/// Address of the first worker in the first plan.
fn first_worker(rehearsal: &Rehearsal) -> String {
    let mut changes = rehearsal.plans[0].changes.iter();
    changes.find(|change| change.part == madako_domain::plan::Part::Worker).unwrap().address.clone()
}

#[test]
fn a_machine_that_fails_is_repaired_and_one_seed_gives_one_report() {
    let calm = rehearsed(&[], 1);
    assert_eq!((calm.overall_outcome(), calm.plans.len()), (Outcome::Passed, 1), "{calm:#?}");
    assert!(calm.repairs.is_empty() && calm.skipped.is_empty() && calm.held.is_empty());
    let fault = format!("kill {} at 5m", first_worker(&calm));
    let one = rehearsed(&[&fault], 1);
    assert_eq!(one.overall_outcome(), Outcome::Passed, "{one:#?}");
    let [repair] = one.repairs.as_slice() else { panic!("{:#?}", one.repairs) };
    assert_eq!(
        (repair.address.as_str(), repair.status.as_str()),
        (first_worker(&calm).as_str(), "succeeded")
    );
    let (begins, ends) = (repair.begins.unwrap(), repair.ends.unwrap());
    assert!(Span::from_seconds(300) <= begins && begins < ends, "{repair:?}");
    assert!(
        ends <= begins + Span::from_seconds(15) + Span::from_seconds(3 * INTERVAL.as_secs()),
        "a command, and a look at its health"
    );
    assert!(!repair.steps.is_empty());
    for id in [Id::I1, Id::I3, Id::I6, Id::I7, Id::I8, Id::I10, Id::I12] {
        assert!(one.invariants[&id].judged > 0, "{id:?} had nothing to judge");
    }
    let again = rehearsed(&[&fault], 1);
    assert_eq!((one.history, &one.plans, &one.repairs), (again.history, &again.plans, &again.repairs));
    assert_ne!(one.history, rehearsed(&[&fault], 2).history, "another seed has another history");
}

#[test]
fn an_actor_that_fails_without_a_fault_is_a_finding() {
    let (scenario, length) = (scenario(&[]), Span::from_seconds(20 * 60));
    let schedule = plan_schedule(&scenario, 1, length).unwrap();
    let (runtime, pace) = paused_runtime(message_limit_per_second(100));
    let handling = MessageCounter::with_pace(&pace);
    // The only instance of the world has number 1.
    handling.plant_panic_with_text(1, PLANNER, "an unplanned panic");
    let rehearsal = metrics::with_local_recorder(&handling.clone(), || {
        let (service, scenario) = (service(), &scenario);
        let stage =
            RehearsalParameters { service, assumed: ASSUMED, scenario, seed: 1, length, handling, pace };
        runtime.block_on(stage.play_schedule(copied(), schedule, Options::default())).unwrap()
    });
    assert_eq!((rehearsal.overall_outcome(), rehearsal.plans.len()), (Outcome::Failed, 1), "{rehearsal:#?}");
    let [found] = rehearsal.calm.found.as_slice() else { panic!("{:?}", rehearsal.calm.found) };
    assert!(found.contains(PLANNER) && found.contains("an unplanned panic"), "{found}");
}

/// The same system with the cluster of its first plan. Its workers are drained before repairs.
fn with_cluster(planned: &PlanObservation) -> CopiedSystem {
    let mut copied = copied();
    let template = copied.own.get_mut(keys::SABAKAN_TEMPLATE).unwrap();
    let mut cluster: serde_json::Value = serde_json::from_slice(&template.value).unwrap();
    cluster["repair"]["repair_procedures"][0]["repair_operations"][0]["repair_steps"][0]["need_drain"] =
        true.into();
    template.value = cluster.to_string().into();
    let nodes = planned.changes.iter().map(|change| {
        let control_plane = change.part == madako_domain::plan::Part::ControlPlane;
        json!({"address": change.address, "user": "u", "control_plane": control_plane})
    });
    cluster["nodes"] = nodes.collect();
    copied.own.insert(keys::CLUSTER.to_owned(), entry(850, 0, cluster.to_string()));
    copied.own.insert(keys::CLUSTER_REVISION.to_owned(), entry(850, 0, "800"));
    copied
}

#[test]
fn a_node_is_drained_of_the_pods_that_are_assumed() {
    let calm = rehearsed(&[], 1);
    let fault = format!("kill {} at 5m", first_worker(&calm));
    let (copied, service) = (with_cluster(&calm.plans[0]), Service { kubernetes: true, ..service() });
    let length = Span::from_seconds(20 * 60);
    let scenario = scenario(&[&fault]);
    let drained =
        rehearse_schedule(copied, service, ASSUMED, &scenario, (1, length), Options::default()).unwrap();
    assert_eq!(drained.overall_outcome(), Outcome::Passed, "{drained:#?}");
    assert_eq!(drained.pods, Some(18), "two a node");
    assert!(drained.plans.iter().all(|plan| plan.action != "initialize"), "{:#?}", drained.plans);
    let [repair] = drained.repairs.as_slice() else { panic!("{:#?}", drained.repairs) };
    let steps: Vec<&str> = repair.steps.iter().filter_map(|step| step.what.split(": ").next()).collect();
    assert!(steps.contains(&"repair-drain-start"), "{repair:#?}");
    assert_eq!(repair.status, "succeeded");
}

#[test]
fn rack_that_fails_together_is_held_and_reported() {
    let rehearsal = rehearsed(&["kill rack=2 at 5m"], 1);
    let held = rehearsal.waits.0.iter().any(|wait| wait.what == "repairs of rack 2");
    assert!(held, "{:#?}", rehearsal.waits);
    // After power returns, its machines start one by one: the last ones still down are not an event any more.
    let dark = Span::from_seconds(20 * 60);
    assert!(
        rehearsal.repairs.iter().all(|repair| repair.requested >= Some(dark)),
        "{:#?}",
        rehearsal.repairs
    );
}

#[test]
fn target_missing_in_the_copy_is_refused_with_the_available_ones() {
    let refused =
        |fault: &str| check_targets(&copied(), &scenario(&[fault])).map_err(|error| error.to_string());
    assert_eq!(refused("kill rack=3 at 1m"), Ok(()));
    assert_eq!(refused("cut provider=one at 1m for 1m"), Ok(()));
    let address = copied().machines[0].spec.ipv4[1].clone();
    assert_eq!(refused(&format!("kill {address} at 1m")), Ok(()), "any address of a machine names it");
    for (fault, expected) in [
        ("kill rack=4 at 1m", "a rack with machines: 0, 1, 2, 3"),
        ("kill 192.0.2.1 at 1m", "an address that a machine of the registry has"),
        ("cut provider=two at 1m for 1m", "a provider that a metric in use comes from over the network: one"),
    ] {
        let reported = refused(fault).unwrap_err();
        assert!(reported.contains(expected), "{fault}: {reported}");
    }
}

#[test]
fn impossible_simulations_are_refused() {
    let played = |copied: CopiedSystem, length| {
        rehearse_schedule(copied, service(), ASSUMED, &scenario(&[]), (1, length), Options::default())
            .map(drop)
    };
    assert!(matches!(played(copied(), Span::from_seconds(1)), Err(SimulateError::TooShort { .. })));
    let mut twice = copied();
    twice.machines.push(twice.machines[0].clone());
    assert!(matches!(played(twice, Span::from_seconds(60)), Err(SimulateError::Machines(_))));
    let mut ahead = copied();
    ahead.revision = 100;
    assert!(matches!(played(ahead, Span::from_seconds(60)), Err(SimulateError::Contents(_))));
}

#[test]
fn keys_with_leases_and_secrets_are_not_copied() {
    let CopiedSystem { own, root, .. } = copied();
    let (own, _) = without_leases(own, root);
    assert_eq!(
        own.keys().collect::<Vec<_>>(),
        [keys::CONSTRAINTS, keys::SABAKAN_TEMPLATE, keys::SABAKAN_URL]
    );
    let url = String::from_utf8_lossy(&own[keys::SABAKAN_URL].value).into_owned();
    assert!(!url.contains("hidden"), "{url}");
    assert_eq!(own[keys::SABAKAN_URL].mod_revision, 700);
}
