//! Tests of spans at a trace collector: a metrics round, the pass that used it, and its commit.

use opentelemetry_proto::tonic::trace::v1::Span;
use serde_json::{Value, json};

use super::super::page;
use super::super::stage::{Serve, eventually};
use super::super::traces::{Collector, names, text, upwards};
use super::api::{all, cluster, one};
use super::{PlacementFixture, api, until_decides};

/// A provider with the values of its definition, at any time.
fn provider(table: Value) -> Value {
    json!({"metadata": {"name": "table"}, "spec": {"type": "static", "static": {"metrics": table}}})
}

fn round(span: &Span) -> u64 {
    text(&span.attributes, "round").expect("it has a number").parse().unwrap()
}

#[tokio::test]
async fn a_commit_is_traced_back_to_its_metrics_round() {
    let Some(place) = PlacementFixture::new().await else { return };
    let collector = Collector::default();
    let url = collector.serve().await;
    let config = place.config("config.yml", &place.etcd.settings(), "");
    let service = Serve::start_with(&config, "60s", "1s", &["--otlp-endpoint", &url]).await;
    until_decides(&service).await;
    let client = api(&service);
    let providers = "/core/globalmetricsproviders";
    client.ask("POST", providers, &provider(json!({"other": 1.0}))).await.done();
    let metric = json!({
        "metadata": {"name": "heat"},
        "spec": {"min": 0, "max": 1, "allowed_values": [], "provider": {"name": "table", "metric": "heat"}},
    });
    client.ask("POST", "/core/globalmetrics", &metric).await.done();
    let mut measured = cluster("measured");
    measured["spec"]["metrics"] = json!([{"name": "heat", "weight": 1.0, "namespaced": false}]);
    client.ask("POST", &all("clusters"), &measured).await.done();
    client.becomes("measured", "ONLINE").await;
    let until = async |state: &str| {
        eventually(&format!("the cluster is {state}"), async || {
            let cluster = client.ask("GET", &one("clusters", "measured"), &Value::Null).await.done();
            (cluster["status"]["state"] == state).then_some(())
        })
        .await;
    };
    until("FAILING_METRICS").await;

    // The provider has the metric now: the round that finds it leads to a pass, and that to a commit.
    let mut stored = client.ask("GET", &format!("{providers}/table"), &Value::Null).await.done();
    stored["spec"] = provider(json!({"heat": 0.5}))["spec"].clone();
    client.ask("PUT", &format!("{providers}/table"), &stored).await.done();
    until("ONLINE").await;
    let shown = page::is_declared(&service).await;
    for name in ["madako_metrics_fetch_seconds", "madako_placement_writes_total", "madako_objects"] {
        assert!(shown.contains(name), "{name} is not among {shown:?}");
    }
    assert!(service.terminate().await.success());

    let spans = collector.spans();
    let commits: Vec<&Span> = spans.iter().filter(|span| span.name == "commit").collect();
    let of_rounds = commits.iter().map(|commit| upwards(&spans, commit));
    let of_rounds: Vec<Vec<&Span>> =
        of_rounds.filter(|scope| scope.last().unwrap().name == "metrics").collect();
    assert!(
        of_rounds.iter().all(|scope| names(scope) == ["commit", "placement", "metrics"]),
        "{of_rounds:?}"
    );
    // The failure may have been known before the cluster's creation, but not the recovery.
    assert!(of_rounds.iter().any(|scope| round(scope[2]) > 1), "{of_rounds:?}");
}
