//! Benchmark support: the JSON of applications and clusters as clients send them.

use serde_json::{Value, json};

/// Namespace of all namespaced resources.
pub(super) const NAMESPACE: &str = "bench";

pub(super) fn applications_path() -> String {
    format!("/kubernetes/namespaces/{NAMESPACE}/applications")
}

/// An application with a Deployment, about 1.7 KB when stored. Without a cluster it waits, and its next evaluation by
/// time is after the measurement.
pub(super) fn application_json(name: &str) -> Value {
    json!({
        "api": "kubernetes", "kind": "Application",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"tier": "web"}},
        "spec": {
            "backoff_delay": 600,
            "constraints": {"cluster": {"labels": ["location in (l0, l1, l2, l3)"]}, "migration": true},
            "manifest": [{
                "apiVersion": "apps/v1", "kind": "Deployment",
                "metadata": {"name": name},
                "spec": {
                    "replicas": 2, "selector": {"matchLabels": {"app": name}},
                    "template": {
                        "metadata": {"labels": {"app": name}},
                        "spec": {"containers": [{"name": "web", "image": "example/web:1",
                            "ports": [{"containerPort": 8080}]}]},
                    },
                },
            }],
        },
    })
}

/// A cluster with five of the ten metrics.
pub(super) fn cluster_json(number: usize) -> Value {
    let metrics: Vec<Value> = (0..5)
        .map(|step| json!({"name": metric_name((number * 3 + step) % METRICS), "namespaced": false, "weight": 1.0}))
        .collect();
    json!({
        "api": "kubernetes", "kind": "Cluster",
        "metadata": {"name": cluster_name(number), "namespace": NAMESPACE,
            "labels": {"location": format!("l{}", number % 5)}},
        "spec": {
            "kubeconfig": {"apiVersion": "v1", "kind": "Config", "current-context": "c",
                "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                "users": [{"name": "u", "user": {}}]},
            "constraints": {"cloud": {}},
            "metrics": metrics,
        },
    })
}

pub(super) fn cluster_name(number: usize) -> String {
    format!("cluster-{number}")
}

pub(super) const METRICS: usize = 10;

fn metric_name(number: usize) -> String {
    format!("metric-{number}")
}

pub(super) fn make_metrics() -> Vec<(&'static str, Value)> {
    let table: serde_json::Map<String, Value> =
        (0..METRICS).map(|number| (metric_name(number), json!(0.05 * (number + 1) as f64))).collect();
    let provider = json!({
        "api": "core", "kind": "GlobalMetricsProvider", "metadata": {"name": "table"},
        "spec": {"type": "static", "static": {"metrics": table}},
    });
    let metric = |number| {
        let name = metric_name(number);
        json!({
            "api": "core", "kind": "GlobalMetric", "metadata": {"name": name},
            "spec": {"min": 0, "max": 1, "allowed_values": [], "provider": {"name": "table", "metric": name}},
        })
    };
    std::iter::once(("/core/globalmetricsproviders", provider))
        .chain((0..METRICS).map(|number| ("/core/globalmetrics", metric(number))))
        .collect()
}
