//! Runs the contract on a real API server, and tests cases that only a real one shows.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use kube::Client;
use madako_datacenter_sim::kubernetes::{Workload, WorkloadBudget};
use madako_domain::kubernetes::PodId;
use madako_kubernetes::{ApiServer, Limits};
use madako_protocol::kubernetes::{Kubernetes, KubernetesError, KubernetesWorkloads};
use serde_json::{Value, json};

use crate::contract::{self, Site, permit};
use crate::objects::{self, Kubelets};
use crate::server::{ADMIN, MADAKO, NOBODY, Server, get};

struct Real {
    api: ApiServer,
    admin: Client,
    stuck: Arc<Mutex<BTreeSet<String>>>,
    _kubelets: Kubelets,
}

#[async_trait]
impl Site for Real {
    fn api(&self) -> &dyn Kubernetes {
        &self.api
    }

    fn reader(&self) -> &dyn KubernetesWorkloads {
        &self.api
    }

    async fn node(&self, name: &str, taints: &[[&str; 3]]) {
        objects::node(&self.admin, name, taints).await;
    }

    async fn remove_node(&self, name: &str) {
        let path = format!("/api/v1/nodes/{name}");
        self.admin.request_text(http::Request::delete(path).body(Vec::new()).unwrap()).await.unwrap();
    }

    async fn taint(&self, name: &str, [key, value, effect]: [&str; 3]) {
        let taints = json!([{"key": key, "value": value, "effect": effect}]);
        let path = format!("/api/v1/nodes/{name}");
        objects::patch(&self.admin, &path, &json!({"spec": {"taints": taints}})).await.unwrap();
    }

    async fn cordon_as_another(&self, name: &str, cordoned: bool) {
        let path = format!("/api/v1/nodes/{name}");
        let patch = json!({"spec": {"unschedulable": cordoned}});
        objects::patch(&self.admin, &path, &patch).await.unwrap();
    }

    async fn namespace(&self, name: &str, labels: &[(&str, &str)]) {
        namespace(&self.admin, name, labels).await;
    }

    async fn workload(&self, workload: Workload) {
        let nodes: BTreeSet<String> =
            self.api.nodes().await.unwrap().into_iter().map(|node| node.name).collect();
        objects::workload(&self.admin, &workload, &nodes).await;
    }

    async fn budget(&self, budget: WorkloadBudget) {
        objects::budget(&self.admin, &budget).await;
    }

    async fn remove_budget(&self, namespace: &str, name: &str) {
        remove_budget(&self.admin, namespace, name).await;
    }

    async fn set_stuck(&self, pod: &PodId, stuck: bool) {
        let mut all = self.stuck.lock().unwrap();
        if stuck {
            all.insert(pod.uid.clone());
        } else {
            all.remove(&pod.uid);
        }
    }
}

async fn namespace(client: &Client, name: &str, labels: &[(&str, &str)]) {
    let labels: serde_json::Map<String, Value> =
        labels.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
    objects::create(client, "/api/v1/namespaces", &json!({"metadata": {"name": name, "labels": labels}}))
        .await;
}

async fn remove_budget(client: &Client, namespace: &str, name: &str) {
    let path = format!("/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets/{name}");
    client.request_text(http::Request::delete(path).body(Vec::new()).unwrap()).await.unwrap();
}

/// With the minimum rights from the adapter's documentation, and three objects per page.
#[tokio::test]
async fn the_contract_holds_for_the_real_one() {
    let Some(mut server) = Server::start().await else { return };
    server.start_controllers();
    let admin = server.client(ADMIN);
    let stuck = Arc::default();
    let site = Real {
        // A test reads the nodes at once after another client has changed them.
        api: server.adapter(MADAKO, Limits { page: 3, node_age: Duration::ZERO, ..Limits::default() }),
        _kubelets: Kubelets::start(admin.clone(), Arc::clone(&stuck)),
        stuck,
        admin,
    };
    contract::holds(&site).await;
}

/// The kept nodes of a watch, which other clients change.
#[tokio::test]
async fn changes_of_nodes_show_in_a_watch_of_the_real_one() {
    let Some(server) = Server::start().await else { return };
    let admin = server.client(ADMIN);
    let stuck = Arc::default();
    let site = Real {
        api: server.adapter(MADAKO, Limits::default()),
        _kubelets: Kubelets::start(admin.clone(), Arc::clone(&stuck)),
        stuck,
        admin,
    };
    contract::changes_of_nodes_show(&site).await;
}

#[tokio::test]
async fn only_permitted_requests_succeed_and_no_write_is_repeated() {
    let Some(server) = Server::start().await else { return };
    let admin = server.client(ADMIN);
    for number in 0..7 {
        objects::node(&admin, &format!("10.0.0.{number}"), &[]).await;
    }

    // Pages of several sizes.
    for page in [1, 2, 7, 100] {
        let api = server.adapter(MADAKO, Limits { page, ..Limits::default() });
        let names: Vec<String> = api.nodes().await.unwrap().into_iter().map(|node| node.name).collect();
        assert_eq!(names, (0..7).map(|number| format!("10.0.0.{number}")).collect::<Vec<_>>(), "{page}");
    }

    // A user without rights and an unknown user get different errors; neither error shows the token.
    let (permit, pod) =
        (permit(), PodId { namespace: "default".into(), name: "web".into(), uid: "1".into() });
    for (token, status) in [(NOBODY, 403), ("token-that-is-not-known", 401)] {
        let api = server.adapter(token, Limits::default());
        let refusals = [
            api.nodes().await.unwrap_err(),
            api.namespaces("").await.unwrap_err(),
            api.pods_on("10.0.0.1").await.unwrap_err(),
            api.workloads().await.unwrap_err(),
            api.cordon(&permit, "10.0.0.1").await.unwrap_err(),
            api.uncordon(&permit, "10.0.0.1").await.unwrap_err(),
            api.evict(&permit, &pod, false).await.unwrap_err(),
            api.delete(&permit, &pod).await.unwrap_err(),
        ];
        for refusal in refusals {
            assert!(
                matches!(&refusal, KubernetesError::Refused { status: found, .. } if *found == status),
                "{refusal:?}"
            );
            assert!(!format!("{refusal} {refusal:?} {api:?}").contains(token), "{refusal:?}");
        }
    }

    // A client certificate works as well as a token.
    let api = server.adapter_by_certificate("madako-by-certificate");
    assert_eq!(api.nodes().await.unwrap().len(), 7);

    // A change to the current state is not written again.
    let revision = async || {
        let node: Value =
            serde_json::from_str(&admin.request_text(get("/api/v1/nodes/10.0.0.1")).await.unwrap()).unwrap();
        node["metadata"]["resourceVersion"].as_str().unwrap().to_owned()
    };
    let before = revision().await;
    api.uncordon(&permit, "10.0.0.1").await.unwrap();
    assert_eq!(revision().await, before);
    api.cordon(&permit, "10.0.0.1").await.unwrap();
    let cordoned = revision().await;
    assert_ne!(cordoned, before);
    api.cordon(&permit, "10.0.0.1").await.unwrap();
    assert_eq!(revision().await, cordoned);
}

#[tokio::test]
async fn owners_are_resolved_up_to_the_top() {
    let Some(server) = Server::start().await else { return };
    let admin = server.client(ADMIN);
    let uid = async |path: &str| {
        let object: Value = serde_json::from_str(&admin.request_text(get(path)).await.unwrap()).unwrap();
        object["metadata"]["uid"].as_str().unwrap().to_owned()
    };
    let template = json!({
        "metadata": {"labels": {"app": "a"}},
        "spec": {"containers": [{"name": "main", "image": "none"}], "restartPolicy": "Always"},
    });
    let selector = json!({"matchLabels": {"app": "a"}});
    let apps = "/apis/apps/v1/namespaces/default";
    let owned_by = |kind: &str, name: &str, uid: &str| json!([{"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": uid, "controller": true}]);
    let create = async |kinds: &str, name: &str, owners: &Value| {
        let metadata = json!({"name": name, "ownerReferences": owners});
        let spec = json!({"selector": selector, "template": template, "serviceName": "s"});
        // Only StatefulSets have a service.
        let spec = match kinds {
            "statefulsets" => spec,
            _ => json!({"selector": selector, "template": template}),
        };
        objects::create(&admin, &format!("{apps}/{kinds}"), &json!({"metadata": metadata, "spec": spec}))
            .await;
        uid(&format!("{apps}/{kinds}/{name}")).await
    };
    let deployment = create("deployments", "web", &owned_by("Shop", "shop", "uid-of-the-shop")).await;
    let set = create("replicasets", "web-1", &owned_by("Deployment", "web", &deployment)).await;
    let stateful = create("statefulsets", "db", &owned_by("Database", "db", "uid-of-the-database")).await;
    let pod = json!({
        "metadata": {"name": "unbound", "ownerReferences": owned_by("ReplicaSet", "web-1", &set)},
        "spec": template["spec"],
    });
    objects::create(&admin, "/api/v1/namespaces/default/pods", &pod).await;

    // The minimum rights suffice.
    let found = server.adapter(MADAKO, Limits { page: 1, ..Limits::default() }).workloads().await.unwrap();
    let named: Vec<(&str, &str, &str)> = [&deployment, &set, &stateful]
        .map(|uid| (&*found.owners[uid].kind, &*found.owners[uid].name, &*found.owners[uid].uid))
        .into();
    assert_eq!(
        named,
        [
            ("Shop", "shop", "uid-of-the-shop"),
            ("Deployment", "web", &*deployment),
            ("Database", "db", "uid-of-the-database")
        ]
    );
    assert_eq!(found.owners.len(), 3);
    assert_eq!(found.pods, [], "a pod without a node is on no node that reboots");
}

#[tokio::test]
async fn requests_to_a_hanging_or_stopped_api_server_end_in_time() {
    let Some(mut server) = Server::start().await else { return };
    objects::node(&server.client(ADMIN), "10.0.0.1", &[]).await;
    let deadline = Duration::from_secs(2);
    // The usual limits, for requests that must succeed on a busy machine.
    let (patient, hasty) = (
        server.adapter(MADAKO, Limits { node_age: Duration::ZERO, ..Limits::default() }),
        server.adapter(
            MADAKO,
            Limits { read_deadline: deadline, write_deadline: deadline, ..Limits::default() },
        ),
    );
    patient.nodes().await.unwrap();
    let permit = permit();

    server.freeze();
    let begun = tokio::time::Instant::now();
    for late in
        [hasty.nodes().await.map(|_| ()).unwrap_err(), hasty.cordon(&permit, "10.0.0.1").await.unwrap_err()]
    {
        assert!(
            matches!(&late, KubernetesError::Unavailable { why, .. } if why.contains("within 2s")),
            "{late:?}"
        );
    }
    let took = begun.elapsed();
    assert!(took >= 2 * deadline && took < 10 * deadline, "{took:?}");
    server.thaw();
    assert_eq!(patient.nodes().await.unwrap().len(), 1, "it answers again");

    server.kill().await;
    let gone = patient.nodes().await.unwrap_err();
    assert!(matches!(&gone, KubernetesError::Unavailable { .. }), "{gone:?}");
    let gone = patient.cordon(&permit, "10.0.0.1").await.unwrap_err();
    assert!(matches!(&gone, KubernetesError::Unavailable { .. }), "{gone:?}");
}
