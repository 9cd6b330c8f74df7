//! Tests of the commands `reboot-queue`, and of their bytes in etcd, which are ckecli's (its `reboot.go` and
//! `storage.go`).

use std::fmt::Write as _;
use std::time::Duration;

use madako_protocol::ports::Clock as _;
use madako_supervisor::clock::SystemClock;
use serde_json::json;
use time::format_description::well_known::Rfc3339;

use crate::krakectl::{Server, json_said};
use crate::program::{Answer, CLUSTER, Etcd, madako};

/// ckecli's output for two entries, of which it had cancelled the first.
const LISTED_BY_CKECLI: &str = r#"[
    {
        "index": "0",
        "node": "10.0.0.2",
        "status": "cancelled",
        "last_transition_time": "0001-01-01T00:00:00Z",
        "drain_backoff_expire": "0001-01-01T00:00:00Z"
    },
    {
        "index": "1",
        "node": "10.0.0.1",
        "status": "queued",
        "last_transition_time": "0001-01-01T00:00:00Z",
        "drain_backoff_expire": "0001-01-01T00:00:00Z"
    }
]
"#;

/// ckecli's bytes of the second entry.
const STORED_BY_CKECLI: &str = r#"{"index":"1","node":"10.0.0.1","status":"queued","last_transition_time":"0001-01-01T00:00:00Z","drain_backoff_expire":"0001-01-01T00:00:00Z"}"#;

/// An entry in back-off, as CKE's leader writes one, with a field of a later version.
const IN_BACK_OFF: &str = r#"{"index":"5","node":"10.0.0.2","status":"queued","last_transition_time":"2026-11-21T10:00:00Z","drain_backoff_count":3,"drain_backoff_expire":"2026-11-21T10:22:13Z","later":{"a":1.0}}"#;

async fn with_cluster() -> Option<Etcd> {
    let etcd = Etcd::start().await?;
    let file = etcd.file("cluster.yml", CLUSTER);
    etcd.run(&["cluster", "set", &file]).await.calm();
    Some(etcd)
}

async fn add(etcd: &Etcd, nodes: &str) -> Answer {
    etcd.run_fed(&["reboot-queue", "add", "-"], nodes.as_bytes()).await
}

#[tokio::test]
async fn entries_are_registered_listed_and_cancelled_as_by_ckecli() {
    let Some(etcd) = with_cluster().await else { return };
    assert_eq!(etcd.run(&["reboot-queue", "list"]).await.calm(), "null\n");
    assert_eq!(etcd.run(&["rq", "list", "-o", "json"]).await.calm(), "[]\n");
    assert_eq!(add(&etcd, "10.0.0.2\n\t10.0.0.1 ").await.calm(), "");
    assert_eq!(etcd.get("reboots/write-index").await.unwrap(), "2");
    assert_eq!(etcd.get("reboots/data/0000000000000001").await.unwrap(), STORED_BY_CKECLI);
    let cancel = async || etcd.run(&["reboot-queue", "cancel", "0"]).await.calm();
    assert_eq!(cancel().await, "entry 0 (10.0.0.2, cancelled): to be removed\n");
    let revision = etcd.revision().await;
    assert_eq!(cancel().await, "entry 0 (10.0.0.2, cancelled): to be removed, as before\n");
    assert_eq!(etcd.revision().await, revision, "it was cancelled before");
    assert_eq!(etcd.run(&["reboot-queue", "list"]).await.calm(), LISTED_BY_CKECLI);
    // `simple` is ckecli's word.
    let table = etcd.run(&["reboot-queue", "list", "-o", "simple"]).await.calm();
    assert_eq!(table, etcd.run(&["reboot-queue", "list", "-o", "table"]).await.calm());
    assert!(table.starts_with("INDEX  NODE      STATUS"), "{table}");
    assert!(table.contains("\n1      10.0.0.1  queued "), "{table}");
    let by_node = etcd.run(&["rq", "list", "--sort-by", "node"]).await.calm();
    assert!(by_node.lines().nth(1).unwrap().starts_with("1      10.0.0.1"), "{by_node}");

    assert_eq!(etcd.run(&["reboot-queue", "cancel-all"]).await.calm(), "1\n");
    let none = etcd.run(&["reboot-queue", "cancel-all", "-o", "json"]).await.json();
    assert_eq!(none, json!({"cancelled": []}), "each once");
    let message = etcd.run(&["reboot-queue", "cancel", "7"]).await.refused(1);
    assert!(message.contains("the reboot queue has no entry 7"), "{message}");
    assert_eq!(etcd.run(&["reboot-queue", "cancel", "-1"]).await.code, 2);
    // Indexes are not reused.
    assert_eq!(add(&etcd, "10.0.0.2").await.calm(), "");
    assert!(etcd.get("reboots/data/0000000000000002").await.is_some());
}

/// An entry of a node that reboots since then.
fn rebooting(index: u32, node: &str, since: &str) -> String {
    format!(
        r#"{{"index":"{index}","node":"{node}","status":"rebooting","last_transition_time":"{since}","drain_backoff_expire":"0001-01-01T00:00:00Z"}}"#
    )
}

#[tokio::test]
async fn explanation_of_a_back_off_has_the_reason_of_the_aborted_drain() {
    let Some(etcd) = Etcd::start().await else { return };
    let commands = "reboot:\n  reboot_command: [reboot]\n  boot_check_command: [check]\n";
    let file = etcd.file("cluster.yml", format!("{CLUSTER}{commands}"));
    etcd.run(&["cluster", "set", &file]).await.calm();
    let entry = json!({
        "index": "0", "node": "10.0.0.2", "status": "queued", "last_transition_time": LONG_AGO,
        "drain_backoff_count": 1, "drain_backoff_expire": "2100-01-01T00:00:00Z",
    });
    etcd.put("reboots/data/0000000000000000", entry.to_string()).await;
    for (id, why) in [(1, "an earlier reason"), (2, "the pod apps/web is on an unreachable node")] {
        let record = json!({
            "id": id.to_string(), "status": "completed", "operation": "reboot-drain-timeout",
            "command": {"name": "rebootDrainTimeoutCommand", "target": "10.0.0.2"}, "targets": ["10.0.0.2"],
            "info": why, "error": "", "start-at": LONG_AGO, "end-at": LONG_AGO,
        });
        etcd.put(&format!("records/{id:016x}"), record.to_string()).await;
    }
    let answer = etcd.run(&["reboot-queue", "explain", "-o", "json"]).await;
    let why = "draining was aborted once; the next attempt is at 2100-01-01T00:00:00Z; \
               the last drain ended: the pod apps/web is on an unreachable node";
    assert_eq!(answer.json()[0]["why"], why);
}

#[tokio::test]
async fn explanation_has_the_obstacle_that_the_leader_found() {
    let Some(etcd) = with_cluster().await else { return };
    add(&etcd, "10.0.0.2 10.0.0.1").await.calm();
    let why = "etcd is not in good health: a member is out of sync";
    let known = json!({
        "index": 0, "node": "10.0.0.2", "next": "drain", "what": "the node is drained",
        "obstacle": "etcd-not-good", "why": why, "is_held": true, "later": 1,
    });
    let due = json!({
        "index": 0, "node": "10.0.0.2", "next": "drain", "what": "the node is drained", "is_held": false,
    });
    let server = Server::answering([
        json_said(200, &json!({"epoch": 7, "entries": [known]})),
        json_said(200, &json!({"epoch": 7, "entries": [due]})),
        json_said(404, &json!({"error": "this instance does not lead"})),
    ])
    .await;
    etcd.put("madako/leader-url", format!("http://127.0.0.1:{}", server.port)).await;
    let explain = async || etcd.run(&["reboot-queue", "explain", "10.0.0.2", "-o", "json"]).await;
    let held = explain().await;
    assert_eq!((held.code, held.err.as_str()), (1, ""), "{held:?}");
    assert_eq!(held.json()[0]["obstacle"], "etcd-not-good");
    assert_eq!(held.json()[0]["why"], why);
    assert_eq!(serde_json::from_str::<serde_json::Value>(&explain().await.calm()).unwrap(), json!([due]));
    let alone = explain().await;
    assert!(alone.err.contains("/reboots: this instance does not lead"), "{alone:?}");
    assert_eq!(alone.json()[0]["obstacle"], "no-command", "the cluster configuration has no reboot command");
    assert_eq!(server.lines(), ["GET /reboots"; 3]);
}

const LONG_AGO: &str = "2026-01-01T00:00:00Z";

#[tokio::test]
async fn explanation_names_next_actions_and_release_the_overdue_workers() {
    let Some(etcd) = Etcd::start().await else { return };
    assert_eq!(etcd.run(&["reboot-queue", "explain"]).await.calm(), "The reboot queue is empty.\n");
    let message = etcd.run(&["reboot-queue", "explain", "10.0.0.2"]).await.refused(2);
    assert!(message.contains("the reboot queue has no entry for 10.0.0.2"), "{message}");
    let commands = "reboot:\n  reboot_command: [reboot]\n  boot_check_command: [check]\n";
    let file = etcd.file("cluster.yml", format!("{CLUSTER}- {{address: 10.0.0.3, user: u}}\n{commands}"));
    etcd.run(&["cluster", "set", &file]).await.calm();
    etcd.put("reboots/data/0000000000000000", rebooting(0, "10.0.0.1", LONG_AGO)).await;
    etcd.put("reboots/data/0000000000000001", rebooting(1, "10.0.0.2", LONG_AGO)).await;
    let created = etcd.revision_of("reboots/data/0000000000000001").await;
    // Its boot began in the future of every clock, so that it is not overdue.
    etcd.put("reboots/data/0000000000000002", rebooting(2, "10.0.0.3", "2100-01-01T00:00:00Z")).await;

    let answer = etcd.run(&["reboot-queue", "explain", "-o", "json"]).await;
    assert_eq!(answer.code, 1, "an entry is held: {}", answer.err);
    let named =
        |entry: &serde_json::Value| ["index", "obstacle", "is_held"].map(|field| entry[field].clone());
    assert_eq!(
        answer.json().as_array().unwrap().iter().map(named).collect::<Vec<_>>(),
        [
            [json!(1), json!("boot-overdue"), json!(true)],
            [json!(2), json!("booting"), json!(false)],
            [json!(0), json!("boot-overdue"), json!(true)],
        ]
    );
    let ordinary = etcd.run(&["reboot-queue", "explain", "10.0.0.3"]).await;
    assert!(
        ordinary.out.contains("2      10.0.0.3  the entry is removed when the node has booted"),
        "{ordinary:?}"
    );
    assert_eq!(ordinary.code, 0, "{ordinary:?}");
    let note = "are not known: no leader has stored its address (madako/leader-url)";
    assert!(ordinary.err.contains(note), "{ordinary:?}");

    let patient = std::fs::read_to_string(etcd.config()).unwrap() + "reboot: {boot_timeout: 24h}\n";
    let patient = etcd.file("patient.yml", patient);
    let hours_ago = (SystemClock.now() - Duration::from_secs(7200)).replace_nanosecond(0).unwrap();
    let recent = rebooting(1, "10.0.0.2", &hours_ago.format(&Rfc3339).unwrap());
    etcd.put("reboots/data/0000000000000001", recent).await;
    let message = madako(&["--config", &patient, "reboot-queue", "release"]).await.refused(1);
    assert!(message.contains("no worker of the reboot queue is overdue"), "{message}");
    let released = etcd.run(&["reboot-queue", "release"]).await.calm();
    assert_eq!(released, "RELEASED  NODE\n1         10.0.0.2\n", "a control plane node is not released");
    let kept = etcd.get("madako/reboots/released").await.unwrap();
    assert_eq!(kept, format!(r#"{{"entries":{{"1":{created}}}}}"#));
    etcd.run(&["reboot-queue", "release"]).await.refused(1);
}

#[tokio::test]
async fn file_with_an_unknown_node_adds_no_entry() {
    let Some(etcd) = Etcd::start().await else { return };
    let message = add(&etcd, "10.0.0.1").await.refused(1);
    assert!(message.contains("no cluster configuration is stored"), "{message}");
    let file = etcd.file("cluster.yml", CLUSTER);
    etcd.run(&["cluster", "set", &file]).await.calm();
    let before = etcd.revision().await;
    let message = add(&etcd, "10.0.0.1 10.0.0.99 node-1 \u{1b}[2J").await.refused(2);
    assert!(message.contains("has the address") && message.contains("10.0.0.99, node-1"), "{message}");
    assert!(message.contains("no entry was added") && !message.contains('\u{1b}'), "{message}");
    let message = add(&etcd, " \n").await.refused(2);
    assert!(message.contains("no address, expected 1 to 5000 addresses"), "{message}");
    let message = add(&etcd, &"10.0.0.1\n".repeat(5_001)).await.refused(2);
    assert!(message.contains("more addresses, expected 1 to 5000"), "{message}");
    assert_eq!(etcd.revision().await, before);
}

#[tokio::test]
async fn long_files_are_added_in_order_in_several_transactions() {
    let Some(etcd) = Etcd::start().await else { return };
    let mut cluster = CLUSTER.to_owned();
    let addresses: Vec<String> =
        (0..230).map(|number| format!("10.1.{}.{}", number / 200, number % 200 + 1)).collect();
    let at = cluster.find("nodes:\n").unwrap() + "nodes:\n".len();
    let mut nodes = String::new();
    for address in &addresses {
        writeln!(nodes, "- {{address: {address}, user: cybozu}}").unwrap();
    }
    cluster.insert_str(at, &nodes);
    etcd.run(&["cluster", "set", &etcd.file("cluster.yml", cluster)]).await.calm();
    etcd.put("reboots/write-index", "14").await;
    assert_eq!(add(&etcd, &addresses.join("\n")).await.calm(), "");
    assert_eq!(etcd.get("reboots/write-index").await.unwrap(), "244");
    let listed = etcd.run(&["reboot-queue", "list", "-o", "json"]).await.json();
    let listed: Vec<_> =
        listed.as_array().unwrap().iter().map(|entry| entry["node"].as_str().unwrap()).collect();
    assert_eq!(listed, addresses);
    let twice = add(&etcd, &format!("{0} {0}", addresses[0])).await;
    assert_eq!(twice.code, 0);
    assert!(twice.err.contains("its later entries wait for the first"), "{}", twice.err);
    assert_eq!(etcd.get("reboots/write-index").await.unwrap(), "246");
}

#[tokio::test]
async fn reset_of_back_off_keeps_fields_of_a_later_version() {
    let Some(etcd) = Etcd::start().await else { return };
    etcd.put("reboots/data/0000000000000005", IN_BACK_OFF).await;
    assert_eq!(
        etcd.run(&["reboot-queue", "reset-backoff"]).await.calm(),
        "entry 5 (10.0.0.2, queued): retried at once\n"
    );
    let reset = IN_BACK_OFF
        .replace(r#""drain_backoff_count":3,"#, "")
        .replace("2026-11-21T10:22:13Z", "0001-01-01T00:00:00Z");
    assert_eq!(etcd.get("reboots/data/0000000000000005").await.unwrap(), reset);
    let before = etcd.revision().await;
    assert_eq!(etcd.run(&["reboot-queue", "reset-backoff"]).await.calm(), "");
    assert_eq!(etcd.revision().await, before, "nothing was left to reset");
}

#[tokio::test]
async fn queue_is_switched_by_ckes_boolean() {
    let Some(etcd) = Etcd::start().await else { return };
    assert_eq!(etcd.run(&["reboot-queue", "is-enabled"]).await.calm(), "true\n");
    for (word, stored, shown) in [("disable", "true", "false\n"), ("enable", "false", "true\n")] {
        assert_eq!(etcd.run(&["reboot-queue", word]).await.calm(), "");
        assert_eq!(etcd.get("reboots/disabled").await.unwrap(), stored);
        assert_eq!(etcd.run(&["reboot-queue", "is-enabled"]).await.calm(), shown);
    }
}
