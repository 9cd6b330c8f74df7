//! Tests of the commands `resource`, and of their bytes in etcd, which are ckecli's (its `resource.go` and
//! `storage.go`).

use serde_json::json;

use crate::program::Etcd;

const SECRET: &str =
    "apiVersion: v1\nkind: Secret\nmetadata:\n  name: s\n  namespace: a\nstringData: {p: hunter2}\n";
const NAMESPACE: &str =
    "{ \"apiVersion\": \"v1\", \"kind\": \"Namespace\", \"metadata\": { \"name\": \"a\" } }\n";

#[tokio::test]
async fn resources_are_stored_as_typed_and_listed_as_by_ckecli() {
    let Some(etcd) = Etcd::start().await else { return };
    assert_eq!(etcd.run(&["resource", "list"]).await.calm(), "");
    let file = etcd.file("resources.yml", format!("{SECRET}---\n{NAMESPACE}"));
    let shown = etcd.run(&["resource", "set", &file]).await.calm();
    assert_eq!(shown, "Secret/a/s: stored\nNamespace/a: stored\n");
    assert_eq!(etcd.get("resource/Secret/a/s").await.unwrap(), SECRET);
    assert_eq!(etcd.get("resource/Namespace/a").await.unwrap(), NAMESPACE);
    etcd.put("resource/ConfigMap/b/z", "kept by ckecli").await;
    etcd.put("resource/odd", "x").await;
    assert_eq!(
        etcd.run(&["resource", "list"]).await.calm(),
        "ConfigMap/b/z\nNamespace/a\nSecret/a/s\nodd\n",
        "in the order of the keys"
    );
    let rows = etcd.run(&["resource", "list", "-o", "json"]).await.json();
    let rows: Vec<_> =
        rows.as_array().unwrap().iter().map(|row| (row["key"].clone(), row["rank"].clone())).collect();
    assert_eq!(
        rows,
        [
            (json!("Namespace/a"), json!(10)),
            (json!("Secret/a/s"), json!(2030)),
            (json!("ConfigMap/b/z"), json!(2040)),
            (json!("odd"), json!(null)),
        ],
        "in the order of application"
    );
    let revision = etcd.revision_of("resource/Namespace/a").await;
    let table = etcd.run(&["resource", "list", "-o", "table"]).await.calm();
    assert!(table.contains(&format!("Namespace/a    10                          {revision}")), "{table}");

    let csv = etcd.run(&["resource", "list", "-o", "csv", "--sort-by", "bytes"]).await.calm();
    assert!(csv.starts_with("key,rank,revision,bytes\nodd,none: the key is malformed,"), "{csv}");
    let sorted = etcd.run(&["resource", "list", "--sort-by", "rank"]).await.calm();
    assert!(sorted.starts_with("KEY  ") && sorted.lines().nth(4).unwrap().starts_with("odd "), "{sorted}");

    assert_eq!(etcd.run(&["resource", "get", "Namespace/a"]).await.calm(), NAMESPACE);
    let object = etcd.run(&["resource", "get", "Secret/a/s", "-o", "json"]).await.json();
    assert_eq!(object["stringData"], json!({"p": "hunter2"}));
    let message = etcd.run(&["resource", "get", "Secret/a"]).await.refused(1);
    assert!(message.contains("no resource \"Secret/a\" is stored"), "{message}");

    // The same text again is a new revision: the resource is applied anew, as with ckecli.
    etcd.run_fed(&["resource", "set", "-"], NAMESPACE.as_bytes()).await.calm();
    assert!(etcd.revision_of("resource/Namespace/a").await > revision);
}

#[tokio::test]
async fn resources_are_deleted_by_their_manifests() {
    let Some(etcd) = Etcd::start().await else { return };
    let file = etcd.file("resources.yml", format!("{SECRET}---\n{NAMESPACE}"));
    etcd.run_fed(&["resource", "set", "-"], SECRET.as_bytes()).await.calm();
    let shown = etcd.run(&["resource", "delete", &file]).await.calm();
    assert_eq!(shown, "Secret/a/s: deleted\nNamespace/a: was not stored\n");
    assert_eq!(etcd.get("resource/Secret/a/s").await, None);
}

#[tokio::test]
async fn states_of_resources_need_a_cluster() {
    let Some(etcd) = Etcd::start().await else { return };
    for command in ["status", "diff"] {
        let message = etcd.run(&["resource", command]).await.refused(1);
        assert!(message.contains("no cluster configuration is stored"), "{message}");
    }
    let message = etcd.run(&["resource", "status", "--sort-by", "size"]).await.refused(2);
    assert!(message.contains("expected one of object, state, why"), "{message}");
}

#[tokio::test]
async fn file_with_a_wrong_manifest_stores_nothing_and_shows_no_content() {
    let Some(etcd) = Etcd::start().await else { return };
    let before = etcd.revision().await;
    let wrong = format!("{NAMESPACE}---\n{}", SECRET.replace("name: s", "name: hunter2/s"));
    let message = etcd.run_fed(&["resource", "set", "-"], wrong.as_bytes()).await.refused(2);
    assert!(
        message.contains("document 2: metadata.name: expected a name of 1 to 253 characters"),
        "{message}"
    );
    assert!(message.contains("nothing was changed") && !message.contains("hunter2"), "{message}");
    assert_eq!(etcd.revision().await, before);
}
