//! Test support: objects on a real API server, and stand-ins for the scheduler and the kubelets.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kube::Client;
use madako_datacenter_sim::kubernetes::{PodOwner, Workload, WorkloadBudget};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::server::{get, post};

/// Interval of the scheduler and the kubelets.
const ROUND: Duration = Duration::from_millis(200);

pub(crate) async fn create(client: &Client, path: &str, object: &Value) {
    if let Err(error) = client.request_text(post(path, &object.to_string())).await {
        panic!("{path} refuses {object}: {error}");
    }
}

pub(crate) async fn node(client: &Client, name: &str, taints: &[[&str; 3]]) {
    let taints: Vec<Value> = taints
        .iter()
        .map(|[key, value, effect]| json!({"key": key, "value": value, "effect": effect}))
        .collect();
    let spec = json!({"taints": taints});
    create(
        client,
        "/api/v1/nodes",
        &json!({"metadata": {"name": name, "labels": {"name": name}}, "spec": spec}),
    )
    .await;
    let status = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    patch(client, &format!("/api/v1/nodes/{name}/status"), &status).await.unwrap();
}

fn template(workload: &Workload, restart: &str) -> Value {
    json!({
        "metadata": {"labels": {"app": workload.name}},
        "spec": {
            "restartPolicy": restart,
            "terminationGracePeriodSeconds": workload.grace.as_secs(),
            "containers": [{"name": "main", "image": "none"}],
            "tolerations": [{"operator": "Exists"}],
        },
    })
}

pub(crate) async fn workload(client: &Client, workload: &Workload, nodes: &BTreeSet<String>) {
    let Workload { namespace, name, owner, .. } = workload;
    let metadata = json!({"name": name, "namespace": namespace});
    let selector = json!({"matchLabels": {"app": name}});
    let apps = |kind: &str| format!("/apis/apps/v1/namespaces/{namespace}/{kind}");
    let always = template(workload, "Always");
    match owner {
        PodOwner::ReplicaSet { replicas } => {
            let spec = json!({"replicas": replicas, "selector": selector, "template": always});
            create(client, &apps("replicasets"), &json!({"metadata": metadata, "spec": spec})).await;
        }
        PodOwner::DaemonSet | PodOwner::OnDeleteDaemonSet => {
            let strategy = if *owner == PodOwner::DaemonSet { "RollingUpdate" } else { "OnDelete" };
            let spec =
                json!({"selector": selector, "template": always, "updateStrategy": {"type": strategy}});
            create(client, &apps("daemonsets"), &json!({"metadata": metadata, "spec": spec})).await;
        }
        PodOwner::Job { pods, .. } => {
            let template = template(workload, "Never");
            let spec = json!({"parallelism": pods, "completions": pods, "template": template});
            let path = format!("/apis/batch/v1/namespaces/{namespace}/jobs");
            create(client, &path, &json!({"metadata": metadata, "spec": spec})).await;
        }
        PodOwner::Static => {
            for node in nodes {
                let mut pod = template(workload, "Always");
                pod["metadata"] = json!({
                    "name": format!("{name}-{node}"),
                    "annotations": {"kubernetes.io/config.mirror": "from-a-file"},
                    "ownerReferences": [{
                        "apiVersion": "v1", "kind": "Node", "name": node, "uid": "none", "controller": true,
                    }],
                });
                pod["spec"]["nodeName"] = json!(node);
                create(client, &pods_of(namespace), &pod).await;
            }
        }
        PodOwner::Nobody { pods } => {
            for number in 0..*pods {
                let mut pod = always.clone();
                pod["metadata"]["name"] = json!(format!("{name}-{number}"));
                create(client, &pods_of(namespace), &pod).await;
            }
        }
    }
}

pub(crate) async fn budget(client: &Client, budget: &WorkloadBudget) {
    let path = format!("/apis/policy/v1/namespaces/{}/poddisruptionbudgets", budget.namespace);
    let spec = json!({
        "minAvailable": budget.min_available,
        "selector": {"matchLabels": {"app": budget.workload}},
    });
    create(client, &path, &json!({"metadata": {"name": budget.name}, "spec": spec})).await;
}

fn pods_of(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/pods")
}

pub(crate) async fn patch(client: &Client, path: &str, change: &Value) -> Result<String, kube::Error> {
    let request = http::Request::patch(path).header("content-type", "application/strategic-merge-patch+json");
    client.request_text(request.body(change.to_string().into_bytes()).unwrap()).await
}

/// The scheduler and every kubelet: they bind pods, run them, and end deleted ones.
pub(crate) struct Kubelets(JoinHandle<()>);

impl Kubelets {
    /// `stuck` has the uids of pods that never end.
    pub(crate) fn start(client: Client, stuck: Arc<Mutex<BTreeSet<String>>>) -> Self {
        Self(tokio::spawn(async move {
            loop {
                round(&client, &stuck).await;
                tokio::time::sleep(ROUND).await;
            }
        }))
    }
}

impl Drop for Kubelets {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A refused change is retried in the next round: another client changed the object at the same moment, or it is gone.
async fn round(client: &Client, stuck: &Mutex<BTreeSet<String>>) {
    let list = async |path: &str| -> Vec<Value> {
        let text = client.request_text(get(path)).await.unwrap_or_default();
        let list: Value = serde_json::from_str(&text).unwrap_or_default();
        list["items"].as_array().cloned().unwrap_or_default()
    };
    let nodes = list("/api/v1/nodes").await;
    let pods = list("/api/v1/pods").await;
    let on = |node: &str| pods.iter().filter(|pod| pod["spec"]["nodeName"] == node).count();
    for pod in &pods {
        let (metadata, spec) = (&pod["metadata"], &pod["spec"]);
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (namespace, name, uid) =
            (text(&metadata["namespace"]), text(&metadata["name"]), text(&metadata["uid"]));
        let path = format!("{}/{name}", pods_of(&namespace));
        let result = if !metadata["deletionTimestamp"].is_null() {
            if stuck.lock().unwrap().contains(&uid) {
                continue;
            }
            let options = json!({"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}).to_string();
            let request = http::Request::delete(path).header("content-type", "application/json");
            client.request_text(request.body(options.into_bytes()).unwrap()).await
        } else if spec["nodeName"].is_null() {
            let field = "/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/0/matchFields/0/values/0";
            let open = nodes
                .iter()
                .filter(|node| node["spec"]["unschedulable"] != true)
                .map(|node| text(&node["metadata"]["name"]));
            let chosen = match spec.pointer(field) {
                Some(node) => Some(text(node)),
                None => open.min_by_key(|name| on(name)),
            };
            let Some(chosen) = chosen else { continue };
            let binding = json!({"metadata": {"name": name}, "target": {"kind": "Node", "name": chosen}});
            client.request_text(post(&format!("{path}/binding"), &binding.to_string())).await
        } else if pod["status"]["phase"] == "Pending" {
            let conditions = json!([{"type": "Ready", "status": "True"}]);
            let status = json!({"status": {
                "phase": "Running", "conditions": conditions, "startTime": metadata["creationTimestamp"],
            }});
            patch(client, &format!("{path}/status"), &status).await
        } else {
            continue;
        };
        // The next round reads the result.
        let _ = result;
    }
}
