//! Contracts of the port `Objects`: the same steps on a real API server and on the simulated one.

use std::sync::Arc;

use madako_datacenter_sim::nodes::SimulatedNodes;
use madako_domain::objects::{FoundObject, Manifest, NodeChange, ObjectName, SecretVersion};
use madako_protocol::kubernetes::KubernetesError;
use madako_protocol::objects::Objects;
use madako_protocol::permit::Permit;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::components::{HERE, components};
use crate::contract::permit;
use crate::objects;
use crate::server::{ADMIN, Server, get, until};

fn manifest(content: Value) -> Manifest {
    Manifest::new(content).unwrap()
}

fn config_map(namespace: &str, text: &str) -> Manifest {
    manifest(json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "c", "namespace": namespace, "annotations": {"cke.cybozu.com/revision": "7"}},
        "data": {"x": text},
    }))
}

fn widget() -> Manifest {
    let metadata = json!({"name": "w", "namespace": "default"});
    manifest(
        json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": metadata, "spec": {"x": 1}}),
    )
}

/// The definition of widgets.
fn definition() -> Manifest {
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let version = json!({"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": open}});
    manifest(json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com",
            "names": {"kind": "Widget", "plural": "widgets"},
            "scope": "Namespaced",
            "versions": [version],
        },
    }))
}

/// The steps that both API servers answer in the same way. `node` is a registered node.
async fn keep_objects(port: &dyn Objects, servers: &[String], node: &str) {
    let name = config_map("default", "").name().clone();
    let content = async || match port.read_object(servers, &name).await {
        FoundObject::Exists(found) => Some(found["data"]["x"].clone()),
        FoundObject::Missing => None,
        other => panic!("{other:?}"),
    };
    assert_eq!(content().await, None);
    // A dry run changes nothing.
    let shown = port.dry_run_apply(servers, &config_map("default", "1")).await.unwrap();
    assert_eq!((&shown["data"]["x"], &shown["metadata"]["managedFields"]), (&json!("1"), &Value::Null));
    assert_eq!(content().await, None);
    for text in ["1", "1", "2"] {
        port.apply_object(&permit(), servers, &config_map("default", text)).await.unwrap();
        assert_eq!(content().await, Some(json!(text)));
    }
    let FoundObject::Exists(annotations) = port.read_annotations(servers, &name).await else {
        panic!("it exists")
    };
    assert_eq!(annotations["cke.cybozu.com/revision"], "7");
    let ended = Permit::give(1, Instant::now());
    let refused = port.apply_object(&ended, servers, &config_map("default", "3")).await;
    assert!(matches!(refused, Err(KubernetesError::Permit(_))), "{refused:?}");

    // A namespace that does not exist.
    let absent = config_map("absent", "1");
    assert_eq!(port.read_annotations(servers, absent.name()).await, FoundObject::Missing);
    let refused = port.apply_object(&permit(), servers, &absent).await;
    assert!(matches!(refused, Err(KubernetesError::NotFound { .. })), "{refused:?}");

    // A kind before its definition.
    assert_eq!(port.read_annotations(servers, widget().name()).await, FoundObject::KindUnknown);
    let refused = port.apply_object(&permit(), servers, &widget()).await;
    assert!(matches!(refused, Err(KubernetesError::Refused { status: 404, .. })), "{refused:?}");
    port.apply_object(&permit(), servers, &definition()).await.unwrap();
    until("the kind is known", async || port.apply_object(&permit(), servers, &widget()).await.ok()).await;
    assert!(matches!(port.read_annotations(servers, widget().name()).await, FoundObject::Exists(_)));

    rewrite_secrets(port, servers).await;
    change_node(port, servers, node).await;
}

async fn rewrite_secrets(port: &dyn Objects, servers: &[String]) {
    let secret = |text: &str| {
        let metadata = json!({"name": "rewritten", "namespace": "default"});
        manifest(json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": {"x": text}}))
    };
    let find = async || {
        let listed = port.list_secrets(servers).await.unwrap();
        listed.into_iter().find(|found| found.name == "rewritten" && found.namespace == "default")
    };
    assert_eq!(find().await, None);
    port.apply_object(&permit(), servers, &secret("MQ==")).await.unwrap();
    let first = find().await.unwrap();
    // Another client changes it before the rewrite.
    port.apply_object(&permit(), servers, &secret("Mg==")).await.unwrap();
    for version in [&first, &find().await.unwrap()] {
        port.rewrite_secret(&permit(), servers, version).await.unwrap();
        let FoundObject::Exists(found) = port.read_object(servers, secret("").name()).await else {
            panic!("it exists")
        };
        assert_eq!(found["data"]["x"], "Mg==", "{version:?}");
    }
    let missing = SecretVersion { name: "missing".to_owned(), ..first.clone() };
    port.rewrite_secret(&permit(), servers, &missing).await.unwrap();
    assert!(!port.list_secrets(servers).await.unwrap().iter().any(|found| found.name == "missing"));
    let ended = Permit::give(1, Instant::now());
    let refused = port.rewrite_secret(&ended, servers, &first).await;
    assert!(matches!(refused, Err(KubernetesError::Permit(_))), "{refused:?}");
}

async fn change_node(port: &dyn Objects, servers: &[String], node: &str) {
    let find = async || {
        let nodes = port.read_node_objects(servers).await.unwrap();
        nodes.into_iter().find(|found| found.name == node)
    };
    let before = find().await.unwrap();
    let change = NodeChange {
        name: node.to_owned(),
        resource_version: before.resource_version,
        labels: [("a".to_owned(), Some("b".to_owned()))].into(),
        ..NodeChange::default()
    };
    port.change_node(&permit(), servers, &change).await.unwrap();
    let stale = port.change_node(&permit(), servers, &change).await;
    assert!(matches!(stale, Err(KubernetesError::Refused { status: 409, .. })), "{stale:?}");
    let after = find().await.unwrap();
    assert_eq!(after.labels["a"], "b");
    let version = after.resource_version;
    let back = NodeChange { resource_version: version, labels: [("a".to_owned(), None)].into(), ..change };
    port.change_node(&permit(), servers, &back).await.unwrap();
    assert!(!find().await.unwrap().labels.contains_key("a"));
    for _ in 0..2 {
        port.remove_node(&permit(), servers, node).await.unwrap();
        assert_eq!(find().await, None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_simulated_api_server_keeps_objects() {
    let nodes = SimulatedNodes::new(1);
    nodes.add_api_server(HERE);
    nodes.register_node("10.0.0.1");
    keep_objects(&nodes, &["127.0.0.2".to_owned(), HERE.to_owned()], "10.0.0.1").await;
}

#[tokio::test]
async fn a_real_api_server_keeps_objects() {
    let Some(server) = Server::start().await else { return };
    let admin = server.client(ADMIN);
    objects::node(&admin, "10.0.0.1", &[]).await;
    let components = components(Arc::clone(&server.authority), &server.url);
    // A server that does not answer costs no answer.
    let servers = ["127.0.0.2".to_owned(), HERE.to_owned()];
    keep_objects(&components, &servers, "10.0.0.1").await;

    // The field manager is CKE's, and fields of other managers are taken over.
    let path = "/api/v1/namespaces/default/configmaps/c";
    objects::patch(&admin, path, &json!({"data": {"x": "other"}})).await.unwrap();
    components.apply_object(&permit(), &servers, &config_map("default", "4")).await.unwrap();
    let found: Value = serde_json::from_str(&admin.request_text(get(path)).await.unwrap()).unwrap();
    assert_eq!(found["data"]["x"], "4");
    let managers = found["metadata"]["managedFields"].as_array().unwrap();
    assert!(managers.iter().any(|it| it["manager"] == "cke" && it["operation"] == "Apply"), "{managers:?}");

    // A refusal of a Secret shows nothing of it.
    let metadata = json!({"name": "s", "namespace": "default"});
    let secret =
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": {"x": "hunter2?"}});
    let error =
        components.apply_object(&permit(), &servers, &manifest(secret)).await.unwrap_err().to_string();
    assert!(error.contains("withheld") && !error.contains("hunter2"), "{error}");

    // A namespaced kind without a namespace, and a name that no path can have as it is.
    let unnamed = ObjectName {
        api_version: "v1".to_owned(),
        key: madako_domain::resource::ResourceKey::parse("ConfigMap/c").unwrap(),
    };
    let found = components.read_annotations(&servers, &unnamed).await;
    assert!(matches!(&found, FoundObject::Unread(why) if why.contains("namespace")), "{found:?}");
    let strange = ObjectName::new("v1", "ConfigMap", "default", "c?watch=1");
    assert_eq!(components.read_annotations(&servers, &strange).await, FoundObject::Missing);
    // A part of discovery that fails.
    let object = ObjectName::new("no.such.group/v1", "Thing", "default", "t");
    assert_eq!(components.read_annotations(&servers, &object).await, FoundObject::KindUnknown);
}
