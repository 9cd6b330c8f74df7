//! Tests of `madako bootstrap`: it stores all resources in a real etcd, or none.

use serde_json::{Value, json};

use crate::program::Etcd;

const ROLES: &str = "\
# Comments and empty documents are not resources.
api: core
kind: Role
metadata:
  name: role:system
rules:
- api: ''
  namespaces: ['']
  resources: ['']
  verbs: [create, list, get, update, delete]
---
---
api: core
kind: RoleBinding
metadata:
  name: rolebinding:system
  uid: given
  created: 2021-05-06T07:08:09.000010+00:00
roles: ['role:system']
users: ['system:admin']
";

const METRICS: &str = "\
{api: core, kind: Metric, metadata: {name: heat, namespace: testing}, spec: {min: 0, max: 1, allowed_values: [], provider: {name: p, metric: m}}}
---
{api: core, kind: GlobalMetricsProvider, metadata: {name: p}, spec: {type: static, static: {metrics: {m: 0.5}}}}
";

#[tokio::test]
async fn bootstrap_stores_resources_at_the_root_in_the_form_of_krake() {
    let Some(etcd) = Etcd::start().await else { return };
    let before = etcd.revision().await;
    let roles = etcd.file("roles.yaml", ROLES);
    let answer = etcd.run_fed(&["bootstrap", &roles, "-", "-o", "json"], METRICS.as_bytes()).await;
    let loaded = answer.json();
    assert_eq!(etcd.revision().await, before + 1, "one transaction");

    let stored = etcd.get_at_root("/core/roles/role:system").await.unwrap();
    assert!(
        stored.starts_with(
            r#"{"api": "core", "kind": "Role", "metadata": {"name": "role:system", "namespace": null, "#
        ),
        "{stored}"
    );
    let role: Value = serde_json::from_str(&stored).unwrap();
    let metadata = &role["metadata"];
    assert_eq!(metadata["uid"].as_str().map(str::len), Some(36), "{metadata}");
    assert_eq!(metadata["created"], metadata["modified"]);
    assert!(metadata["created"].as_str().unwrap().ends_with("+00:00"), "{metadata}");

    let binding: Value =
        serde_json::from_str(&etcd.get_at_root("/core/rolebindings/rolebinding:system").await.unwrap())
            .unwrap();
    assert_eq!(binding["metadata"]["uid"], "given");
    assert_eq!(binding["metadata"]["created"], "2021-05-06T07:08:09.000010+00:00");
    assert!(
        etcd.get_at_root("/core/metrics/testing/heat").await.unwrap().contains("\"namespace\": \"testing\"")
    );
    assert!(etcd.get_at_root("/core/globalmetricsproviders/p").await.is_some());

    let shown: Vec<_> =
        loaded.as_array().unwrap().iter().map(|one| (&one["action"], &one["kind"], &one["name"])).collect();
    assert_eq!(shown.len(), 4);
    assert_eq!(shown[1], (&json!("added"), &json!("RoleBinding"), &json!("rolebinding:system")));
    assert_eq!(loaded[2]["namespace"], "testing");
}

#[tokio::test]
async fn bootstrap_replaces_existing_resources_only_by_force_and_is_atomic() {
    let Some(etcd) = Etcd::start().await else { return };
    let (roles, metrics) = (etcd.file("roles.yaml", ROLES), etcd.file("metrics.yaml", METRICS));
    assert!(etcd.run(&["bootstrap", &roles]).await.calm().contains("added"));
    let first = etcd.get_at_root("/core/roles/role:system").await.unwrap();
    let before = etcd.revision().await;

    let message = etcd.run(&["bootstrap", &metrics, &roles]).await.refused(1);
    assert!(
        message.contains(
            "these resources exist already: Role role:system, RoleBinding rolebinding:system; \
             nothing was stored"
        ),
        "{message}"
    );
    assert_eq!(etcd.revision().await, before);
    assert_eq!(etcd.get_at_root("/core/metrics/testing/heat").await, None);

    let shown = etcd.run(&["bootstrap", "-f", &metrics, &roles]).await.calm();
    assert_eq!((shown.matches("added").count(), shown.matches("replaced").count()), (2, 2), "{shown}");
    assert_eq!(etcd.revision().await, before + 1);
    let second = etcd.get_at_root("/core/roles/role:system").await.unwrap();
    assert_ne!(first, second, "a replaced resource is another one");
}

#[tokio::test]
async fn stored_and_printed_default_roles_are_equal() {
    let Some(etcd) = Etcd::start().await else { return };
    let printed = etcd.run(&["bootstrap", "--default-roles", "--print"]).await.calm();
    let loaded = etcd.run(&["bootstrap", "--default-roles", "-o", "json"]).await.json();
    let names = |loaded: &Value| -> Vec<String> {
        loaded.as_array().unwrap().iter().map(|one| format!("{} {}", one["kind"], one["name"])).collect()
    };
    assert_eq!(names(&loaded)[..2], ["\"Role\" \"role:system\"", "\"RoleBinding\" \"rolebinding:system\""]);
    let stored = etcd.get_at_root("/core/rolebindings/rolebinding:system").await.unwrap();
    assert!(stored.contains("\"users\": [\"system:admin\"]"), "{stored}");
    let message = etcd.run(&["bootstrap", "--default-roles"]).await.refused(1);
    assert!(message.contains("these resources exist already: Role role:system, "), "{message}");
    let again =
        etcd.run(&["bootstrap", "-f", &etcd.file("printed.yaml", printed), "-o", "json"]).await.json();
    assert_eq!(names(&again), names(&loaded));
    for wrong in [&["bootstrap"][..], &["bootstrap", "--print"], &["bootstrap", "roles.yaml", "--print"]] {
        assert_eq!(etcd.run(wrong).await.code, 2, "{wrong:?}");
    }
}

#[tokio::test]
async fn nothing_is_stored_when_a_document_is_wrong() {
    let Some(etcd) = Etcd::start().await else { return };
    let before = etcd.revision().await;
    let roles = etcd.file("roles.yaml", ROLES);
    let wrong = etcd.file("wrong.yaml", "{api: core, kind: Role, metadata: {name: a}, rules: [{verbs: [read]}]}\n---\n{api: kubernetes, kind: Cluster}");
    let message = etcd.run(&["bootstrap", &roles, &wrong]).await.refused(2);
    for part in [
        "wrong.yaml, document 1, rules[0].verbs",
        "wrong.yaml, document 1, rules[0].api",
        "wrong.yaml, document 2, kind: got \"Cluster\"",
    ] {
        assert!(message.contains(part), "{part} is not in {message}");
    }
    etcd.run(&["bootstrap", &etcd.file("no.yaml", "a: [hunter2")]).await.refused(2);
    etcd.run(&["bootstrap", "-", "-"]).await.refused(2);
    assert_eq!(etcd.revision().await, before);
}
