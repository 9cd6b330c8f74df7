//! Components of Kubernetes that fail after each start cost only themselves.

use std::collections::BTreeSet;
use std::time::Duration;

use madako_datacenter_sim::nodes::BAD_ARGUMENT;
use madako_domain::component::Component;
use madako_domain::keys;
use serde_json::json;
use tokio::time::Instant;

use super::at_a_site;
use super::kubernetes::{CONTROL_PLANE, WORKERS, bootstrap};
use super::site::{INTERVAL, OUTAGE, address};

#[test]
fn an_api_server_that_is_not_healthy_in_five_minutes_halts_the_others_until_it_is_corrected() {
    at_a_site(async |site| {
        bootstrap(site).await.unwrap();
        site.pass(INTERVAL).await;
        site.options["kube-api"] = json!({"extra_args": [BAD_ARGUMENT]});
        let known = site.records.lock().unwrap().len();
        site.cluster(&CONTROL_PLANE, &WORKERS).await;
        let restarted = site.wait_begun("kube-apiserver-restart", known).await.unwrap();
        site.pass(Duration::from_secs(240)).await;
        assert!(site.get(keys::ROLLOUT).await.is_none() || site.rollout().await.failed_servers.is_empty());
        site.pass(Duration::from_secs(160)).await;
        let failed: Vec<String> = site.rollout().await.failed_servers.into_keys().collect();
        assert_eq!(failed, restarted);
        site.options["kube-api"] = json!({"extra_args": ["--v=2"]});
        site.cluster(&CONTROL_PLANE, &WORKERS).await;
        site.settled(&CONTROL_PLANE).await.unwrap();
        site.pass(INTERVAL).await;
        assert_eq!(site.rollout().await.failed_servers.len(), 0);
    });
}

#[test]
fn an_api_server_that_ends_after_each_start_halts_the_others_as_soon() {
    at_a_site(async |site| {
        bootstrap(site).await.unwrap();
        site.pass(OUTAGE).await;
        site.options["kube-api"] = json!({"extra_args": ["--v=2"]});
        let known = site.records.lock().unwrap().len();
        site.cluster(&CONTROL_PLANE, &WORKERS).await;
        let restarted = site.wait_begun("kube-apiserver-restart", known).await.unwrap();
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(400) {
            site.nodes.end_container(&restarted[0], Component::ApiServer);
            site.pass(Duration::from_secs(2)).await;
        }
        let failed: Vec<String> = site.rollout().await.failed_servers.into_keys().collect();
        assert_eq!(failed, restarted, "each start would begin the time anew");
        site.settled(&CONTROL_PLANE).await.unwrap();
    });
}

#[test]
fn a_component_that_ends_after_each_start_starts_ever_less_often_and_holds_no_other_operation() {
    at_a_site(async |site| {
        bootstrap(site).await.unwrap();
        site.pass(OUTAGE).await;
        let known = site.records.lock().unwrap().len();
        site.options["kubelet"]["extra_args"] = json!(["--v=2"]);
        site.cluster(&CONTROL_PLANE, &WORKERS).await;
        let (scheduler, began) = (Component::Scheduler, Instant::now());
        while began.elapsed() < Duration::from_secs(600) {
            site.nodes.end_container(&address(1), scheduler);
            site.pass(Duration::from_secs(2)).await;
        }
        let records = site.records.lock().unwrap();
        let starts = records[known..].iter().filter(|it| it.record.operation == "kube-scheduler-bootstrap");
        let starts: BTreeSet<i64> = starts.map(|it| it.record.id).collect();
        assert!((5..=7).contains(&starts.len()), "pauses of 0, 30, 60, 120 and 240 s: {starts:?}");
        for number in CONTROL_PLANE.into_iter().chain(WORKERS) {
            let node = site.nodes.view_node(&address(number)).unwrap();
            assert_eq!(node.containers[Component::Kubelet.name()].extra.args, ["--v=2"], "node {number}");
        }
    });
}
