//! Tests of `madako rehearse` with placement: everything is read once, values begin at the provider's, and nothing is
//! written anywhere.

use std::sync::Arc;
use std::time::Duration;

use madako_datacenter_sim::{
    Datacenter, DatacenterConfig, GRAPHQL_PATH, RandomWalkMetric, SimulatedPrometheus, SimulatedRegistry,
};
use madako_protocol::ports::Clock;
use madako_supervisor::clock::SystemClock;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::api::{cluster, described};
use super::{NAMESPACE, PlacementFixture, api, until_decides};
use crate::program::{Answer, TEMPLATE, madako};

/// Range of the provider's only metric: it hardly changes.
const VALUES: (f64, f64) = (69.0, 71.0);

/// A provider of one metric, and its address.
async fn provider() -> String {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let (least, greatest) = VALUES;
    let metric = RandomWalkMetric { name: "heat".to_owned(), least, greatest, pace: Duration::from_secs(60) };
    let prometheus = SimulatedPrometheus::new(1, clock, [metric]);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(prometheus.serve_tcp(listener));
    address
}

/// A scenario of the user.
const PLAYED: &str =
    "name: played\nworld: {instances: 2}\nfaults:\n- {at: 12m, do: kill, target: rack=1, for: 6m}\n";

/// A scenario with a fault of another world, and one with an impossible target.
const WRONG: &str = "name: wrong\nfaults:\n- {at: 1m, do: kill, target: rack=9, for: 1m}\n- {at: 1m, do: delay, target: rack=1, for: 1m}\n";

/// A registry, and its URL.
async fn registry() -> (SimulatedRegistry, String) {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let config = DatacenterConfig::new(7, clock.now(), 4, &[("compute", 16), ("storage", 8)]);
    let registry = SimulatedRegistry::new(Datacenter::new(config).unwrap(), clock);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}{GRAPHQL_PATH}", listener.local_addr().unwrap());
    tokio::spawn(registry.clone().serve_tcp(listener));
    (registry, url)
}

/// A cluster whose score rises with a metric.
fn measured(name: &str, metric: &str) -> Value {
    let mut cluster = cluster(name);
    cluster["spec"]["metrics"] = json!([{"name": metric, "weight": 1.0, "namespaced": false}]);
    cluster
}

/// Every key with its value and revision.
async fn written(place: &PlacementFixture) -> Vec<(Vec<u8>, Vec<u8>, i64)> {
    let everything = place.keys.everything().await;
    everything.iter().map(|kv| (kv.key().to_vec(), kv.value().to_vec(), kv.mod_revision())).collect()
}

#[tokio::test]
async fn a_rehearsal_reads_everything_once_and_writes_nothing() {
    let Some(place) = PlacementFixture::new().await else { return };
    let (registry, url) = registry().await;
    let config = place.config("config.yml", &place.etcd.settings(), "");
    let run =
        async |args: &[&str]| -> Answer { madako(&[&["--config", config.as_str()], args].concat()).await };
    let refused = run(&["rehearse"]).await.refused(3);
    assert!(refused.contains("no URL of the registry is stored"), "{refused}");
    run(&["sabakan", "set-url", &url]).await.calm();
    run(&["constraints", "set", "minimum-workers", "4"]).await.calm();
    run(&["sabakan", "set-template", &place.files.write("template.yml", TEMPLATE)]).await.calm();

    let service = place.serve("60s").await;
    until_decides(&service).await;
    let client = api(&service);
    for (kind, body) in [
        (
            "globalmetricsproviders",
            json!({"metadata": {"name": "one"}, "spec": {"type": "prometheus", "prometheus": {"url": provider().await}}}),
        ),
        (
            "globalmetricsproviders",
            json!({"metadata": {"name": "two"}, "spec": {"type": "prometheus", "prometheus": {"url": "http://127.0.0.1:1"}}}),
        ),
        (
            "globalmetrics",
            json!({"metadata": {"name": "warm"}, "spec": {"min": 0, "max": 100, "allowed_values": [], "provider": {"name": "one", "metric": "heat"}}}),
        ),
        (
            "globalmetrics",
            json!({"metadata": {"name": "silent"}, "spec": {"min": 0, "max": 10, "allowed_values": [], "provider": {"name": "two", "metric": "rest"}}}),
        ),
    ] {
        client.ask("POST", &format!("/core/{kind}"), &body).await.done();
    }
    for (name, metric) in [("warm", "warm"), ("other", "silent")] {
        let path = format!("/kubernetes/namespaces/{NAMESPACE}/clusters");
        client.ask("POST", &path, &measured(name, metric)).await.done();
        client.becomes(name, "ONLINE").await;
    }
    client.create("application").await.done();
    place.until_bound("application").await;
    // One application is not placed yet; the service ended cleanly.
    assert!(service.terminate().await.success());
    let fresh = format!("/kubernetes/applications/{NAMESPACE}/fresh");
    let mut unplaced: Value =
        serde_json::from_slice(place.keys.at_root(&super::key("application")).await.unwrap().value())
            .unwrap();
    let described = described("fresh");
    unplaced["metadata"]["name"] = described["metadata"]["name"].clone();
    unplaced["status"]["scheduled_to"] = Value::Null;
    unplaced["status"]["scheduled"] = Value::Null;
    unplaced["status"]["state"] = "PENDING".into();
    place.keys.client().await.put(fresh, unplaced.to_string(), None).await.unwrap();

    let _before = registry.take_journal();
    let (machines, kept) = (registry.list_machines().len(), written(&place).await);
    let (revision, requests) = (place.keys.revision().await, place.etcd.requests().await);
    let played = place.files.write("played.yml", PLAYED);
    let fault = "cut provider=one at 10m for 5m";
    let args = ["rehearse", "--for", "30m", "--scenario", &played, "--fault", fault, "-o", "json"];
    let answer = run(&args).await;
    let after = place.etcd.requests().await;
    assert_eq!(answer.code, 0, "{answer:?}");

    // The store got only reads, no present key has changed, and there is no new lease.
    let grown = after.iter().filter(|(method, count)| requests.get(*method).copied().unwrap_or(0) < **count);
    let grown: Vec<&str> = grown.map(|(method, _)| method.as_str()).collect();
    assert_eq!(grown, ["etcdserverpb.KV/Range"], "whatever else it asks for is not a reading");
    assert_eq!(place.keys.revision().await, revision);
    assert_eq!(written(&place).await, kept);
    assert!(place.keys.client().await.leases().await.unwrap().leases().is_empty(), "no lease is held");
    // The registry is unchanged.
    assert_eq!((registry.take_journal(), registry.list_machines().len()), (Vec::new(), machines));

    let report = answer.json();
    // The scenario's fault, the additional one, and the number of instances of its world.
    let faults = [
        "10m: faults[1], cut provider=one, begins",
        "12m: faults[0], kill rack=1, begins",
        "15m: faults[1], cut provider=one, ends",
        "18m: faults[0], kill rack=1, ends",
    ];
    assert_eq!((&report["scenario"], &report["faults"]), (&json!("played"), &json!(faults)), "{report:#}");
    assert_eq!(report["counts"]["faults"], 2, "{report:#}");
    let instances = report["assumptions"]["instances"].as_str().unwrap();
    assert!(instances.starts_with("2, "), "of its world these count: {instances}");
    assert_eq!(report["inputs"]["revision of the store"], revision.to_string());
    assert_eq!(report["inputs"]["machines"], machines.to_string());
    let begins = report["metrics"]["warm"]["begins"].as_f64().unwrap();
    assert!((VALUES.0..=VALUES.1).contains(&begins), "{begins}");
    assert_eq!(report["metrics"]["warm"]["assumed"], false);
    assert_eq!(report["metrics"]["silent"], json!({"begins": 5.0, "assumed": true}));
    let notes = report["notes"].to_string();
    assert!(notes.contains("the provider two gave no value of rest: 5 is assumed"), "{notes}");
    let placed = report["placements"].as_array().unwrap();
    let placed: Vec<&Value> = placed.iter().filter(|seen| seen["application"] == "testing/fresh").collect();
    assert_eq!((placed.len(), placed[0]["what"].as_str()), (1, Some("bound")), "{report:#}");
    let shown = format!("{answer:?}");
    assert!(!shown.contains("hunter2") && !shown.contains("panicked"), "{shown}");

    // A provider that the copied system does not have.
    let walk = ["rehearse", "--for", "10m", "--walk", "0", "--fault", "kill provider=nobody at 1m for 1m"];
    let refused = run(&walk).await;
    assert_eq!(refused.code, 2, "{refused:?}");
    assert!(refused.err.contains("provider=nobody") && refused.err.contains("one, two"), "{}", refused.err);

    // A scenario that ships, by its name; and an invalid one, with its lines.
    let shipped = run(&["rehearse", "--for", "15m", "--scenario", "rack-power-loss", "-o", "json"]).await;
    assert_eq!(
        (shipped.code, shipped.json()["scenario"].as_str()),
        (0, Some("rack-power-loss")),
        "{shipped:?}"
    );
    let wrong = run(&["rehearse", "--scenario", &place.files.write("wrong.yml", WRONG)]).await;
    assert_eq!((wrong.code, wrong.out.as_str()), (2, ""), "{wrong:?}");
    for line in ["line 3: faults[0].target: got rack=9, ", "line 4: faults[1].target: got rack=1, "] {
        assert!(wrong.err.contains(line), "{}", wrong.err);
    }
}
