//! Builds the placement resources of scripted alert scenarios: clusters, applications, metrics and providers, as JSON.

use serde_json::{Value, json};

pub fn named(name: &str, spec: &Value) -> Value {
    json!({"metadata": {"name": name}, "spec": spec})
}

pub fn cluster_of(name: &str, metric: &str) -> Value {
    json!({
        "metadata": {"name": name, "labels": {"zone": name}},
        "spec": {
            "kubeconfig": {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "x",
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                "users": [{"name": "u", "user": {"token": "secret"}}],
                "clusters": [{"name": "c", "cluster": {"server": "https://cluster.invalid:6443"}}],
            },
            "constraints": {"cloud": {"labels": [], "metrics": []}},
            "metrics": [{"name": metric, "weight": 1.0, "namespaced": false}],
        },
    })
}

pub fn application(name: &str, labels: &Value) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {
            "manifest": [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}}],
            "constraints": {"cluster": {"labels": labels}},
            "backoff_delay": 20,
        },
    })
}
