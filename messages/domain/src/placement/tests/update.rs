//! Tests of the fields that a PUT changes, and of those that it cannot change.

use serde_json::{Value, json};

use super::documents::kubeconfig;
use crate::placement::kubernetes::{Application, ApplicationState, Cluster};
use crate::placement::object_value::WithStatus as _;
use crate::placement::openstack::MagnumCluster;
use madako_json::krake::document;

const NOW: &str = "2026-01-31T12:00:00.123456+00:00";

fn metadata() -> Value {
    json!({"name": "it", "namespace": "testing", "uid": "ab12", "created": NOW, "modified": NOW})
}

fn application() -> Application {
    let stored = json!({
        "metadata": metadata(),
        "spec": {
            "manifest": [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "it"}}],
            "constraints": {"cluster": {}},
            "of_tomorrow": 1,
        },
        "status": {"state": "RUNNING"},
    });
    document::from_stored("Application", &stored.to_string()).unwrap()
}

fn request(metadata: &Value) -> Application {
    let request = json!({
        "metadata": metadata,
        "spec": {
            "manifest": [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "other"}}],
            "constraints": {"cluster": {"labels": ["location is DE"]}},
            "hooks": ["complete"],
        },
        "status": {"state": "FAILED"},
    });
    document::from_request("Application", &request.to_string()).unwrap().value
}

#[test]
fn update_keeps_service_owned_fields_and_takes_the_others() {
    let mut application = application();
    let labels =
        json!({"name": "it", "namespace": "testing", "labels": {"a": "b"}, "uid": "other", "deleted": NOW});
    document::update_document("Application", &mut application, request(&labels)).unwrap();
    let metadata = &application.metadata;
    assert_eq!((&*metadata.uid, metadata.created.text()), ("ab12", NOW));
    assert!(!metadata.is_deleted());
    assert_eq!(metadata.labels.get("a").map(String::as_str), Some("b"));
    assert_eq!(application.status.state, ApplicationState::Running);
    assert_eq!(application.spec.hooks, ["complete"]);
    assert_eq!(application.spec.constraints.cluster.labels.as_ref().map(Vec::len), Some(1));
    // A field that a newer version stored stays, although requests cannot set it.
    assert_eq!(application.spec.rest.iter().count(), 1);
}

#[test]
fn every_immutable_field_is_named_with_its_stored_value() {
    let mut application = application();
    let moved = json!({"name": "that", "namespace": "production"});
    let error = document::update_document("Application", &mut application, request(&moved)).unwrap_err();
    let problems: Vec<_> = error.problems.iter().map(|problem| (&*problem.field, &*problem.got)).collect();
    assert_eq!(problems, [("metadata.name", "\"that\""), ("metadata.namespace", "\"production\"")]);
    assert_eq!(error.problems[0].expected, "\"it\", which cannot be changed");
}

#[test]
fn the_number_of_masters_of_a_magnum_cluster_never_changes() {
    let text = |spec: Value| json!({"metadata": metadata(), "spec": spec}).to_string();
    let read =
        |count: u32| document::from_stored::<MagnumCluster>("it", &text(json!({"master_count": count})));
    let mut cluster = read(1).unwrap();
    let nodes = text(json!({"master_count": "1", "node_count": 7}));
    document::update_document("it", &mut cluster, document::from_request("it", &nodes).unwrap().value)
        .unwrap();
    assert_eq!(cluster.spec.node_count, Some(7));
    let error = document::update_document("it", &mut cluster, read(3).unwrap()).unwrap_err();
    assert_eq!(error.problems[0].field, "spec.master_count");
}

#[test]
fn status_update_ignores_the_specification() {
    // A request cannot set this constraint, but an earlier version may have stored it.
    let mut body = json!({
        "api": "kubernetes",
        "metadata": metadata(),
        "spec": {"constraints": {"cluster": {"metrics": ["load > nan"]}}, "more": 1},
        "status": {"state": "RUNNING", "retries": "3", "container_health": {"running_pods": 2}},
    });
    let status = Application::status_from_request(&body.to_string()).unwrap().value;
    assert_eq!(status.state, ApplicationState::Running);
    assert_eq!((status.retries, status.container_health.running_pods), (Some(3), 2));

    body["status"] = json!({"state": "WELL", "retries": [], "stat": 1});
    body["kind"] = json!("Cluster");
    body["metadata"].take();
    body["spek"] = body["spec"].take();
    body.as_object_mut().unwrap().remove("spec");
    let error = Application::status_from_request(&body.to_string()).unwrap_err().to_string();
    for field in
        ["kind: ", "metadata: ", "spec: ", "spek: ", "status.state: ", "status.retries: ", "status.stat: "]
    {
        assert!(error.contains(field), "{field} {error}");
    }
    for body in ["", "{", "nope"] {
        let error = Application::status_from_request(body).unwrap_err();
        assert!(matches!(error, document::RequestError::NotJson(_)), "{body}");
    }
}

#[test]
fn a_kubeconfig_is_replaced_whole() {
    let of = |token: &str| {
        let mut config = kubeconfig();
        config["users"][0]["user"] = json!({"token": token});
        let body =
            json!({"metadata": metadata(), "spec": {"kubeconfig": config, "constraints": {"cloud": {}}}});
        document::from_request::<Cluster>("Cluster", &body.to_string()).unwrap().value
    };
    let mut cluster = of("old");
    document::update_document("Cluster", &mut cluster, of("new")).unwrap();
    assert!(cluster.spec.kubeconfig.reveal().text().contains("new"));
    assert!(!cluster.spec.kubeconfig.reveal().text().contains("old"));
}
