//! The read of a cluster as large as a forecast may meet.

use std::time::Duration;

use madako_kubernetes::Limits;
use madako_protocol::kubernetes::KubernetesWorkloads as _;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::fake::{Fake, Reply};

const NODES: usize = 1_000;
const PODS: usize = 30_000;
const BUDGETS: usize = 2_000;
/// Size of a pod in JSON with its managed fields, environment and conditions, in bytes.
const POD_BYTES: usize = 10 * 1024;
/// Time for the read beside other tests, far beyond the measured one.
const WITHIN: Duration = Duration::from_secs(60);

fn pod(number: usize) -> Value {
    let metadata = json!({
        "name": format!("pod-{number}"), "namespace": format!("n{}", number % 200), "uid": format!("u{number}"),
        "labels": {"app": format!("app-{}", number % BUDGETS)},
        "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "r", "controller": true}],
        "managedFields": [{"manager": "kubelet", "fieldsV1": {"f:status": {"f:conditions": "x".repeat(POD_BYTES)}}}],
    });
    let spec =
        json!({"nodeName": format!("node-{}", number % NODES), "containers": [{"name": "c", "image": "i"}]});
    json!({"metadata": metadata, "spec": spec, "status": {"phase": "Running"}})
}

fn budget(number: usize) -> Value {
    json!({
        "metadata": {"name": format!("b{number}"), "namespace": format!("n{}", number % 200)},
        "spec": {"selector": {"matchLabels": {"app": format!("app-{number}")}}},
        "status": {"disruptionsAllowed": 1, "currentHealthy": 2, "desiredHealthy": 1},
    })
}

/// The page of a list that a request asks for.
fn page(target: &str, count: usize, item: fn(usize) -> Value) -> String {
    let number = |name: &str| {
        let value = target.split(['?', '&']).find_map(|part| part.strip_prefix(name));
        value.and_then(|value| value.parse::<usize>().ok())
    };
    let (from, most) = (number("continue=").unwrap_or(0), number("limit=").unwrap_or(count));
    let to = count.min(from + most);
    let more = if to < count { to.to_string() } else { String::new() };
    let items: Vec<Value> = (from..to).map(item).collect();
    json!({"metadata": {"resourceVersion": "1", "continue": more}, "items": items}).to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement: BENCHMARKS.md"]
async fn the_workloads_of_a_thousand_nodes_are_read() {
    let node = |number: usize| json!({"metadata": {"name": format!("node-{number}"), "resourceVersion": "1"}, "status": {"conditions": []}});
    let pages = |first: &str, count: usize, item: fn(usize) -> Value| -> Vec<(String, String)> {
        let starts = (0..count).step_by(250);
        starts
            .map(|from| (format!("{first}{from}"), page(&format!("?limit=250&continue={from}"), count, item)))
            .collect()
    };
    // The pages are made before the read begins: the server shares the cores.
    let known: std::collections::BTreeMap<String, String> = pages("/api/v1/pods", PODS, pod)
        .into_iter()
        .chain(pages("/apis/policy/v1/poddisruptionbudgets", BUDGETS, budget))
        .chain(pages("/api/v1/nodes", NODES, node))
        .collect();
    let empty = page("", 0, budget);
    let fake = Fake::start(move |asked| {
        let (path, query) = asked.target.split_once('?').unwrap_or((&asked.target, ""));
        let from = query.split('&').find_map(|part| part.strip_prefix("continue=")).unwrap_or("0");
        Reply::Whole(200, known.get(&format!("{path}{from}")).unwrap_or(&empty).clone())
    })
    .await;
    let api = fake.adapter(Limits::default());
    let began = Instant::now();
    let found = api.workloads().await.unwrap();
    let took = began.elapsed();
    assert_eq!((found.nodes.len(), found.pods.len(), found.budgets.len()), (NODES, PODS, BUDGETS));
    println!("{PODS} pods of {POD_BYTES} bytes, {NODES} nodes and {BUDGETS} budgets were read in {took:?}");
    assert!(took < WITHIN, "{took:?}");
}
