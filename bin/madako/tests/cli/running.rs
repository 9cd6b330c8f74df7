//! Tests of `madako plan` and `what-if` on the running system: they read its etcd and its registry, and change nothing.

use std::sync::Arc;

use madako_datacenter_sim::{Datacenter, DatacenterConfig, Fault, GRAPHQL_PATH, SimulatedRegistry};
use madako_domain::machine::MachineState;
use madako_protocol::ports::Clock;
use time::OffsetDateTime;
use time::macros::datetime;
use tokio::net::TcpListener;

use crate::program::{Answer, Etcd, TEMPLATE};

/// A clock that stands still.
struct FixedClock;

impl Clock for FixedClock {
    fn now(&self) -> OffsetDateTime {
        datetime!(2026-11-21 12:00 UTC)
    }
}

/// A registry of 4 racks on loopback, and its URL.
pub(crate) async fn registry() -> (SimulatedRegistry, String) {
    let config = DatacenterConfig::new(7, FixedClock.now(), 4, &[("compute", 16), ("storage", 8)]);
    let registry = SimulatedRegistry::new(Datacenter::new(config).unwrap(), Arc::new(FixedClock));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}{GRAPHQL_PATH}", listener.local_addr().unwrap());
    tokio::spawn(registry.clone().serve_tcp(listener));
    (registry, url)
}

#[tokio::test]
async fn the_running_systems_next_plan_is_shown_and_nothing_is_changed() {
    let Some(etcd) = Etcd::start().await else { return };
    let message = etcd.run(&["plan"]).await.refused(1);
    assert!(message.contains("no template is stored (madako sabakan set-template stores one)"), "{message}");
    etcd.run(&["sabakan", "set-template", &etcd.file("template.yml", TEMPLATE)]).await.calm();
    let message = etcd.run(&["plan"]).await.refused(1);
    assert!(message.contains("no URL of the registry is stored"), "{message}");

    let (registry, url) = registry().await;
    etcd.run(&["sabakan", "set-url", &url]).await.calm();
    etcd.run(&["constraints", "set", "control-plane-count", "3"]).await.calm();
    etcd.run(&["constraints", "set", "minimum-workers", "6"]).await.calm();
    let before = etcd.revision().await;
    let answer = etcd.run(&["plan", "-o", "json"]).await;
    let assumed =
        "retired machines leave after 300 s, the default, since no leader has stored madako/settings";
    assert_eq!((answer.code, answer.err.as_str()), (0, &*format!("madako: {assumed}\n")), "{answer:?}");
    let plan = answer.json();
    assert_eq!((plan["action"].as_str(), plan["changes"].as_array().unwrap().len()), (Some("initialize"), 9));

    let output = etcd.run(&["what-if", "--lose", "rack=3", "-o", "json"]).await;
    assert_eq!((output.code, output.json()["plans"][0]["action"].as_str()), (0, Some("initialize")));
    assert_eq!(etcd.revision().await, before, "nothing was written");

    // An existing cluster is the base of the plan, and its template may have changed since.
    etcd.put("cluster", plan["cluster"].to_string()).await;
    let plan = etcd.run(&["plan", "-o", "json"]).await.json();
    assert_eq!(plan["action"], "regenerate");
    etcd.put("cluster-revision", etcd.revision_of("sabakan/template").await.to_string()).await;
    let plan = etcd.run(&["plan", "-o", "json"]).await.json();
    assert_eq!(plan["action"], serde_json::Value::Null, "{plan}");

    // Input that the service would not act on now is used all the same, and reported.
    etcd.run(&["sabakan", "disable"]).await.calm();
    etcd.put("madako/removal-guard", r#"{"vanished":["10.0.0.1","10.0.0.2"],"agreed":1,"confirmed":false}"#)
        .await;
    let answer = etcd.run(&["plan", "-o", "json"]).await;
    assert_eq!(answer.code, 0);
    assert!(answer.err.contains("the integration with sabakan is off"), "{}", answer.err);
    assert!(answer.err.contains("the removal guard holds back the removal of 2 nodes"), "{}", answer.err);

    // An unusable stored value is not replaced by a default.
    etcd.put("sabakan/query-variables", "{").await;
    let message = etcd.run(&["plan"]).await.refused_after_notes(1);
    assert!(message.contains("the stored value of sabakan/query-variables cannot be used"), "{message}");
    etcd.put("sabakan/query-variables", r#"{"having":{"racks":[0,1,2]}}"#).await;
    let answer = etcd.run(&["plan", "-o", "json"]).await;
    assert_eq!(answer.json()["action"], "remove-non-existent-nodes", "the variables count: {answer:?}");

    registry.faults().set(Fault::Status(500));
    let message = etcd.run(&["plan"]).await.refused_after_notes(1);
    assert!(message.contains("status 500"), "{message}");
}

#[tokio::test]
async fn plans_beside_a_running_system_use_its_settings() {
    let Some(etcd) = Etcd::start().await else { return };
    let (registry, url) = registry().await;
    etcd.run(&["sabakan", "set-template", &etcd.file("template.yml", TEMPLATE)]).await.calm();
    etcd.run(&["sabakan", "set-url", &url]).await.calm();
    etcd.put("sabakan/query-variables", r#"{"notHaving":{"roles":["boot"]}}"#).await;
    etcd.run(&["constraints", "set", "minimum-workers", "3"]).await.calm();
    let plan = etcd.run(&["plan", "-o", "json"]).await.json();
    etcd.run(&["constraints", "set", "minimum-workers", "1"]).await.calm();
    etcd.put("cluster", plan["cluster"].to_string()).await;
    etcd.put("cluster-revision", etcd.revision_of("sabakan/template").await.to_string()).await;
    // A worker's machine retires now.
    let nodes = plan["cluster"]["nodes"].as_array().unwrap();
    let worker = nodes.iter().find(|node| node["control_plane"] != true).unwrap()["address"].as_str();
    let machine = registry.list_machines().into_iter().find(|machine| machine.address() == worker).unwrap();
    for state in [MachineState::Retiring, MachineState::Retired] {
        registry.set_state(&machine.spec.serial, state).unwrap();
    }

    let waits = |answer: &Answer, seconds: u32| {
        let reasons = answer.json()["reasons"].to_string();
        let waits = format!("1 worker is retired, but none for more than {seconds} s");
        assert!(reasons.contains(&waits), "{waits:?}: {answer:?}");
    };
    waits(&etcd.run(&["plan", "-o", "json"]).await, 300);
    // The leader's settings count, a flag overrides them, and unreadable settings are an error.
    let settings = r#"{"interval_seconds":2.0,"session_ttl_seconds":10.0,"retire_wait_seconds":10.0}"#;
    etcd.put("madako/settings", settings).await;
    let answer = etcd.run(&["plan", "-o", "json"]).await;
    waits(&answer, 10);
    let reported = "retired machines leave after 10 s, as the running system has it (madako/settings)";
    assert!(answer.err.contains(reported), "{}", answer.err);
    let output = etcd.run(&["what-if", "--lose", "rack=3"]).await;
    assert!(output.err.contains(reported), "{}", output.err);
    let answer = etcd.run(&["plan", "--retire-wait", "60", "-o", "json"]).await;
    waits(&answer, 60);
    assert_eq!(answer.err, "");
    etcd.put("madako/settings", settings.replace("10.0", "\"10s\"")).await;
    for (command, code) in [(&["plan"][..], 1), (&["what-if", "--lose", "rack=3"], 1), (&["rehearse"], 3)] {
        let message = etcd.run(command).await.refused_after_notes(code);
        assert!(message.contains("stored as madako/settings, cannot be read"), "{message}");
        assert!(message.contains("delete the key"), "{message}");
    }
    waits(&etcd.run(&["plan", "--retire-wait", "60", "-o", "json"]).await, 60);
}

#[tokio::test]
async fn template_accepted_only_by_ckecli_is_reported() {
    let Some(etcd) = Etcd::start().await else { return };
    etcd.put(
        "sabakan/template",
        r#"{"name":"c","nodes":[{"user":"u","control_plane":true}],"service_subnet":"10.0.0.0/8"}"#,
    )
    .await;
    let message = etcd.run(&["plan"]).await.refused(1);
    assert!(message.contains("the stored value of sabakan/template cannot be used"), "{message}");
}
