//! Tests of `madako etcd restore`: the request in the store, its refusals, and a dry run while no node answers.

use serde_json::{Value, json};

use crate::program::{Answer, Etcd, madako};

/// Addresses on which nothing listens.
const NODES: [&str; 2] = ["127.0.94.1", "127.0.94.2"];
const SNAPSHOT: &str = "/var/cke/etcd-20260101-000000.backup";
const REQUEST: &str = "madako/etcd/restore";

async fn with_cluster() -> Option<Etcd> {
    let etcd = Etcd::start().await?;
    let nodes = json!([
        {"address": NODES[0], "user": "u", "control_plane": true},
        {"address": NODES[1], "user": "u"},
    ]);
    etcd.put("cluster", json!({"name": "tokyo0", "nodes": nodes}).to_string()).await;
    Some(etcd)
}

/// The words of a restore on a node, confirmed with a name.
fn words<'w>(node: &'w str, path: &'w str, name: &'w str) -> Vec<&'w str> {
    vec!["etcd", "restore", "--node", node, "--path", path, "--confirm", name]
}

#[tokio::test]
async fn a_restore_is_asked_for_on_a_control_plane_node_with_the_name_of_the_cluster() {
    let Some(empty) = Etcd::start().await else { return };
    let message = empty.run(&words(NODES[0], SNAPSHOT, "tokyo0")).await.refused(1);
    assert!(
        message.contains("no cluster configuration is stored, so there is no etcd to restore"),
        "{message}"
    );

    let Some(etcd) = with_cluster().await else { return };
    let revision = etcd.revision().await;
    for (node, path, name, part) in [
        (
            NODES[0],
            SNAPSHOT,
            "tokyo1",
            "--confirm: got \"tokyo1\", expected \"tokyo0\", the name of the cluster",
        ),
        (NODES[1], SNAPSHOT, "tokyo0", "127.0.94.2 is not a control plane node: expected one of 127.0.94.1"),
        (NODES[0], "etcd.backup", "tokyo0", "expected an absolute path"),
        (NODES[0], "/a,readonly", "tokyo0", "without commas"),
    ] {
        let message = etcd.run(&words(node, path, name)).await.refused(2);
        assert!(message.contains(part), "{part} is not in {message}");
    }
    for missing in [&["etcd", "restore"][..], &["etcd", "restore", "--node", NODES[0], "--path", SNAPSHOT]] {
        etcd.run(missing).await.refused(2);
    }
    assert_eq!(etcd.revision().await, revision, "no refused command wrote a key");

    let output = etcd.run(&words(NODES[0], SNAPSHOT, "tokyo0")).await.calm();
    assert!(
        output.starts_with(&format!("127.0.94.1: the leader restores {SNAPSHOT} in its next passes; ")),
        "{output}"
    );
    let first = stored(&etcd).await;
    assert_eq!((&first["address"], &first["path"]), (&json!(NODES[0]), &json!(SNAPSHOT)));
    // The leader refused it: another request replaces it.
    let mut refused = first.clone();
    refused["refused"] = json!("a majority answers");
    etcd.put(REQUEST, refused.to_string()).await;
    let output = etcd.run(&words(NODES[0], "/other", "tokyo0")).await.calm();
    assert!(output.contains("it replaces an earlier request"), "{output}");
    let second = stored(&etcd).await;
    assert_eq!((&second["path"], second.get("refused")), (&json!("/other"), None));
    assert_ne!(second["requested_at"], first["requested_at"]);
}

async fn stored(etcd: &Etcd) -> Value {
    serde_json::from_str(&etcd.get(REQUEST).await.unwrap()).unwrap()
}

#[tokio::test]
async fn a_trial_without_the_node_shows_a_refusal_and_asks_for_nothing() {
    let Some(etcd) = with_cluster().await else { return };
    let trial = [words(NODES[0], SNAPSHOT, "tokyo0"), vec!["--dry-run"]].concat();
    let config = etcd.with_operations();
    let revision = etcd.revision().await;
    let run = async |words: &[&str]| madako(&[words, &["--config", &config]].concat()).await;
    let Answer { code, out, err } = run(&trial).await;
    assert_eq!(code, 1, "{out}{err}");
    for (line, part) in
        out.lines().zip(["Snapshot  unusable: ", "Lost      unknown", "Refused   these nodes do not answer"])
    {
        assert!(line.starts_with(part), "{line:?} begins otherwise than {part:?}: {out}");
    }
    assert_eq!(out.lines().count(), 3, "no steps: {out}");
    assert!(err.contains("the leader would refuse to restore etcd") && err.contains(NODES[0]), "{err}");
    let wrong = [words(NODES[1], SNAPSHOT, "tokyo0"), vec!["--dry-run"]].concat();
    let Answer { code, out, err } = run(&wrong).await;
    assert!(code == 2 && out.is_empty() && err.contains("is not a control plane node"), "{code} {out}{err}");
    assert_eq!(etcd.revision().await, revision, "a trial writes no key");
}
