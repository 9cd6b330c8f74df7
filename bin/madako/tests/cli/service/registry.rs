//! Tests of a registry without answers, or with unusable ones: nothing changes, the reason is reported, and work goes
//! on after the recovery.

use std::collections::BTreeSet;
use std::time::Duration;

use madako_datacenter_sim::Fault;

use super::embedded::site_on_embedded;
use super::site::{MACHINES, QUICK, Site, WORKERS};
use super::stage::Serve;

/// A site with a first cluster, and its service.
async fn site_at_work(interval: &str) -> (Site, Serve) {
    let site = site_on_embedded(4, &MACHINES).await;
    let service = site.serve("60s", interval).await;
    site.equip().await;
    site.first_cluster().await;
    (site, service)
}

/// Every failure in sequence, each with its outcome in metrics and words of the log.
async fn every_way_to_fail() {
    let (site, service) = site_at_work(QUICK).await;
    let mut workers = WORKERS;
    for (fault, outcome, words) in [
        (Fault::RefuseConnections, "connect", "Connection refused"),
        (Fault::Status(500), "status", "status 500"),
        (Fault::Redirect("http://127.0.0.1:1/graphql".to_owned()), "status", "status 302"),
        (Fault::GraphQlError, "graphql", "internal system error"),
        (Fault::PartialData, "graphql", "internal system error"),
        (Fault::TruncateBody, "truncated", "was cut off"),
        (Fault::MalformedJson, "malformed", "EOF while parsing"),
        (Fault::WrongTypes, "malformed", "invalid type"),
    ] {
        let before = site.keys.cluster().await.unwrap();
        let quiet = service.log().len();
        site.registry.faults().set(fault.clone());
        // More than three intervals: the last observation is too old to plan on.
        service.until_grown("madako_polls_total", &["outcome=\"failed\""], 5.0).await;
        let label = format!("outcome=\"{outcome}\"");
        assert!(service.metric("madako_registry_requests_total", &[&label]).await >= 5.0, "{fault:?}");
        let log = service.log().split_off(quiet);
        assert!(log.contains("a poll of the registry failed"), "{fault:?}: {log}");
        assert!(log.contains(words), "{fault:?}: {words:?} is not in {log}");
        workers += 1;
        site.ask_for(workers).await;
        service.until_metric("madako_planner_blocked", &["reason=\"stale-observation\""], 1.0).await;
        assert_eq!(service.health().await, 200, "{fault:?}: the service itself is well");
        site.unchanged(&before, &format!("{fault:?}")).await;

        site.registry.faults().clear_all();
        let after = site.until_workers(workers).await;
        assert_eq!(after.version, before.version + 1, "{fault:?}: one change, one write");
    }
}

/// A request without an answer is given up after its deadline of 30 s, and repeated.
async fn no_answer_at_all() {
    let (site, service) = site_at_work("1s").await;
    let before = site.keys.cluster().await.unwrap();
    site.registry.faults().set(Fault::Hang);
    service.until_metric("madako_registry_requests_total", &["outcome=\"deadline\""], 1.0).await;
    service.until_log("a poll of the registry failed").await;
    assert!(service.log().contains("30s"), "{}", service.log());
    site.ask_for(WORKERS + 1).await;
    service.until_metric("madako_planner_blocked", &["reason=\"stale-observation\""], 1.0).await;
    assert_eq!(service.health().await, 200);
    site.unchanged(&before, "nothing is known").await;
    site.registry.faults().clear_all();
    assert_eq!(site.until_workers(WORKERS + 1).await.version, 2);
}

#[tokio::test]
async fn failing_registry_changes_nothing_and_is_reported() {
    // Concurrently, since one of them mostly waits.
    tokio::join!(every_way_to_fail(), no_answer_at_all());
}

#[tokio::test]
async fn answers_slower_than_the_poll_interval_are_used() {
    let (site, service) = site_at_work(QUICK).await;
    site.registry.faults().set(Fault::Slow(Duration::from_millis(700)));
    // The first of them may belong to an earlier request.
    service.until_grown("madako_polls_total", &["outcome=\"answered\""], 3.0).await;
    assert_eq!(site.grow_to(WORKERS + 1).await.version, 2);
    assert_eq!(service.told("a poll of the registry failed"), 0);
}

/// All machines are gone at once: the cluster stays, however many polls agree.
#[tokio::test]
async fn empty_machine_list_removes_no_node() {
    let (site, service) = site_at_work(QUICK).await;
    let before = site.keys.cluster().await.unwrap();
    for (fault, kind) in [(Fault::EmptyList, "failed"), (Fault::NullList, "failed")] {
        let plans = format!("action=\"{kind}\"");
        site.registry.faults().set(fault.clone());
        // The guard lets it pass when three polls agree; then planning fails.
        service.until_grown("madako_plans_total", &[&plans], 3.0).await;
        assert_eq!(service.metric("cke_sabakan_integration_successful", &[]).await, 0.0, "{fault:?}");
        assert_eq!(service.metric("madako_observation_machines", &[]).await, 0.0, "{fault:?}");
        assert!(service.log().contains("too-many-non-existent"), "{fault:?}: {}", service.log());
        assert_eq!(service.health().await, 200);
        site.unchanged(&before, &format!("{fault:?}")).await;
        site.registry.faults().clear_all();
        service.until_metric("cke_sabakan_integration_successful", &[], 1.0).await;
        site.unchanged(&before, &format!("after {fault:?}")).await;
    }
    assert!(service.told("the removal guard holds back an observation") >= 2);
    assert!(site.keys.get("madako/removal-guard").await.is_none(), "it holds nothing now");
    assert_eq!(site.grow_to(WORKERS + 1).await.version, 2);
}

#[tokio::test]
async fn ten_thousand_machines_are_planned_on() {
    let machines = [("compute", 7_000), ("storage", 3_000)];
    let site = site_on_embedded(250, &machines).await;
    let service = site.serve("60s", "5s").await;
    site.equip().await;
    site.first_cluster().await;
    // The query's default excludes boot servers.
    assert_eq!(service.metric("madako_observation_machines", &[]).await, 10_000.0);
    let cluster = site.grow_to(200).await;
    let workers: BTreeSet<&str> = cluster.workers.iter().map(String::as_str).collect();
    for role in ["compute", "storage"] {
        let machines = site.registry.list_machines();
        let chosen = machines.iter().filter(|machine| machine.spec.role == role);
        let chosen = chosen.filter(|machine| machine.address().is_some_and(|own| workers.contains(own)));
        let racks: Vec<i64> = chosen.map(|machine| machine.spec.rack).collect();
        assert!(racks.len() > 50, "{role}: {}", racks.len());
        assert_eq!(racks.iter().collect::<BTreeSet<_>>().len(), racks.len(), "{role}: a rack for each");
    }
    service.until_grown("madako_plans_total", &["action=\"none\""], 2.0).await;
    site.unchanged(&cluster, "there is nothing to do").await;
    assert_eq!(service.told("a poll of the registry failed"), 0);
}
