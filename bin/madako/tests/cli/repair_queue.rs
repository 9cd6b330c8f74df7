//! Tests of the commands `repair-queue` and `auto-repair`, and of their bytes in etcd, which are ckecli's. The output
//! and bytes of ckecli (release line 1.30) come from a real one.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

use madako_domain::machine::MachineState;
use serde_json::{Value, json};

use crate::program::{CLUSTER, Etcd, madako};
use crate::running::registry;

/// The cluster's section that entries need.
const REPAIR: &str = "
repair:
  repair_procedures:
  - machine_types: [iDRAC, 'a&b']
    repair_operations:
    - operation: unreachable
      repair_steps:
      - repair_command: ['true']
        watch_seconds: 60
      health_check_command: ['true']
";

/// ckecli's output for two entries, of which it had marked the first as deleted.
const LISTED_BY_CKECLI: &str = r#"[
    {
        "index": "0",
        "address": "10.0.0.2",
        "nodename": "",
        "machine_type": "iDRAC",
        "operation": "unreachable",
        "status": "queued",
        "step": 0,
        "step_status": "waiting",
        "deleted": true,
        "last_transition_time": "0001-01-01T00:00:00Z",
        "drain_backoff_expire": "0001-01-01T00:00:00Z"
    },
    {
        "index": "1",
        "address": "10.0.0.3",
        "nodename": "",
        "machine_type": "a\u0026b",
        "operation": "unreachable",
        "status": "queued",
        "step": 0,
        "step_status": "waiting",
        "deleted": false,
        "last_transition_time": "0001-01-01T00:00:00Z",
        "drain_backoff_expire": "0001-01-01T00:00:00Z"
    }
]
"#;

/// ckecli's bytes of the second entry.
const STORED_BY_CKECLI: &str = r#"{"index":"1","address":"10.0.0.3","nodename":"","machine_type":"a\u0026b","operation":"unreachable","status":"queued","step":0,"step_status":"waiting","deleted":false,"last_transition_time":"0001-01-01T00:00:00Z","drain_backoff_expire":"0001-01-01T00:00:00Z"}"#;

/// An entry in back-off, as the service writes one, with a field of a later version.
const IN_BACK_OFF: &str = r#"{"index":"5","address":"10.0.0.2","nodename":"n2","machine_type":"iDRAC","operation":"unreachable","status":"processing","step":1,"step_status":"waiting","deleted":false,"last_transition_time":"2026-11-21T10:00:00.123456789Z","drain_backoff_count":3,"drain_backoff_expire":"2026-11-21T10:20:00Z","later":{"a":1.0}}"#;

async fn with_cluster() -> Option<Etcd> {
    let etcd = Etcd::start().await?;
    let file = etcd.file("cluster.yml", format!("{CLUSTER}{REPAIR}"));
    etcd.run(&["cluster", "set", &file]).await.calm();
    Some(etcd)
}

async fn add(etcd: &Etcd, kind: &str, address: &str) -> crate::program::Answer {
    etcd.run(&["repair-queue", "add", "unreachable", kind, address]).await
}

#[tokio::test]
async fn entries_are_registered_listed_and_deleted_as_by_ckecli() {
    let Some(etcd) = with_cluster().await else { return };
    assert_eq!(etcd.run(&["repair-queue", "list"]).await.calm(), "null\n");
    assert_eq!(etcd.run(&["repair-queue", "list", "-o", "json"]).await.calm(), "[]\n");
    assert_eq!(add(&etcd, "iDRAC", "10.0.0.2").await.calm(), "");
    assert_eq!(add(&etcd, "a&b", "10.0.0.3").await.calm(), "");
    assert_eq!(etcd.get("repairs/write-index").await.unwrap(), "2");
    assert_eq!(etcd.get("repairs/data/0000000000000001").await.unwrap(), STORED_BY_CKECLI);
    for when in ["", ", as before"] {
        let shown = etcd.run(&["repair-queue", "delete", "0"]).await.calm();
        assert_eq!(shown, format!("entry 0 (unreachable of 10.0.0.2, queued): to be removed{when}\n"));
    }
    assert_eq!(etcd.run(&["repair-queue", "list"]).await.calm(), LISTED_BY_CKECLI);
    let list = async |options: &[&str]| etcd.run(&[&["repair-queue", "list"], options].concat()).await;
    let table = list(&["-o", "table"]).await.calm();
    assert!(
        table.contains("0      10.0.0.2  iDRAC  unreachable  queued, to be removed  0 waiting"),
        "{table}"
    );
    // An order without a form gives the table.
    let by_type = list(&["--sort-by", "type"]).await.calm();
    assert!(by_type.lines().nth(1).unwrap().starts_with("1      10.0.0.3  a&b"), "{by_type}");
    let lines = list(&["-o", "jsonl"]).await.calm();
    assert!(lines.lines().count() == 2 && lines.lines().all(|line| line.starts_with('{')), "{lines}");
    let csv = list(&["-o", "csv"]).await.calm();
    assert!(csv.starts_with("index,address,type,operation,status,step,since,back-off,node\n"), "{csv}");
    let message = list(&["--watch", "-o", "json"]).await.refused(2);
    assert!(message.contains("use -o jsonl"), "{message}");

    assert_eq!(etcd.run(&["repair-queue", "delete-finished"]).await.calm(), "");
    assert_eq!(etcd.run(&["repair-queue", "delete-unfinished"]).await.calm(), "1\n");
    assert_eq!(etcd.run(&["repair-queue", "delete-unfinished"]).await.calm(), "", "each once");
    let message = etcd.run(&["repair-queue", "delete", "7"]).await.refused(1);
    assert!(message.contains("no entry 7"), "{message}");
    assert_eq!(etcd.run(&["repair-queue", "delete", "seven"]).await.code, 2);
    // Indexes are not reused.
    assert_eq!(add(&etcd, "iDRAC", "10.0.0.2").await.calm(), "");
    assert!(etcd.get("repairs/data/0000000000000002").await.is_some());
}

#[tokio::test]
async fn unconfigured_repair_is_refused_without_a_write() {
    let Some(etcd) = Etcd::start().await else { return };
    let message = add(&etcd, "iDRAC", "10.0.0.2").await.refused(1);
    assert!(message.contains("no cluster configuration is stored"), "{message}");
    let file = etcd.file("cluster.yml", format!("{CLUSTER}{REPAIR}"));
    etcd.run(&["cluster", "set", &file]).await.calm();
    let before = etcd.revision().await;
    let message = add(&etcd, "IPMI", "10.0.0.2").await.refused(1);
    assert!(message.contains("there is no repair procedure for machines of type \"IPMI\""), "{message}");
    let message = etcd.run(&["repair-queue", "add", "reset", "iDRAC", "10.0.0.2"]).await.refused(1);
    assert!(message.contains("no operation \"reset\""), "{message}");
    assert_eq!(etcd.run(&["repair-queue", "add", "reset", "iDRAC"]).await.code, 2);
    assert_eq!(etcd.revision().await, before);
    let odd = add(&etcd, "iDRAC", "node-2").await;
    assert_eq!((odd.code, odd.err.as_str()), (0, "madako: warning: \"node-2\" is not an IP address\n"));
}

#[tokio::test]
async fn entries_that_are_added_at_the_same_time_all_get_a_number_of_their_own() {
    let Some(etcd) = with_cluster().await else { return };
    let add = async |address: &str| add(&etcd, "iDRAC", address).await.calm();
    tokio::join!(add("10.0.0.1"), add("10.0.0.2"), add("10.0.0.3"), add("10.0.0.4"), add("10.0.0.5"));
    let entries = etcd.run(&["repair-queue", "list"]).await.json();
    let mut addresses: Vec<&str> =
        entries.as_array().unwrap().iter().map(|entry| entry["address"].as_str().unwrap()).collect();
    addresses.sort_unstable();
    assert_eq!(addresses, ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5"]);
    assert_eq!(etcd.get("repairs/write-index").await.unwrap(), "5");
}

#[tokio::test]
async fn reset_of_back_off_keeps_fields_of_a_later_version() {
    let Some(etcd) = with_cluster().await else { return };
    etcd.put("repairs/data/0000000000000005", IN_BACK_OFF).await;
    assert_eq!(
        etcd.run(&["repair-queue", "reset-backoff"]).await.calm(),
        "entry 5 (unreachable of 10.0.0.2, processing): retried at once\n"
    );
    let stored = etcd.get("repairs/data/0000000000000005").await.unwrap();
    let reset = IN_BACK_OFF
        .replace(r#""drain_backoff_count":3,"#, "")
        .replace("2026-11-21T10:20:00Z", "0001-01-01T00:00:00Z");
    assert_eq!(stored, reset);
    let before = etcd.revision().await;
    assert_eq!(etcd.run(&["repair-queue", "reset-backoff"]).await.calm(), "");
    assert_eq!(etcd.revision().await, before, "nothing was left to reset");
    // A finished entry is for `delete-finished`.
    etcd.put("repairs/data/0000000000000005", reset.replace("processing", "failed")).await;
    assert_eq!(etcd.run(&["repair-queue", "delete-unfinished"]).await.calm(), "");
    let deleted = etcd.run(&["repair-queue", "delete-finished", "-o", "json"]).await.json();
    assert_eq!(deleted, json!({"deleted": [5]}));
    let stored = etcd.get("repairs/data/0000000000000005").await.unwrap();
    assert_eq!(stored, reset.replace("processing", "failed").replace("false", "true"));
}

#[tokio::test]
async fn both_queues_are_switched_by_ckes_booleans() {
    let Some(etcd) = Etcd::start().await else { return };
    for (queue, key) in [("repair-queue", "repairs/disabled"), ("auto-repair", "auto-repair/disabled")] {
        assert_eq!(etcd.run(&[queue, "is-enabled"]).await.calm(), "true\n");
        for (word, stored, shown) in [("disable", "true", "false\n"), ("enable", "false", "true\n")] {
            assert_eq!(etcd.run(&[queue, word]).await.calm(), "");
            assert_eq!(etcd.get(key).await.unwrap(), stored);
            assert_eq!(etcd.run(&[queue, "is-enabled"]).await.calm(), shown);
        }
    }
}

#[tokio::test]
async fn variables_of_auto_repair_are_stored_as_they_are() {
    let Some(etcd) = Etcd::start().await else { return };
    let message = etcd.run(&["auto-repair", "get-variables"]).await.refused(1);
    assert!(message.contains("madako auto-repair set-variables stores one"), "{message}");
    let text = "{ \"having\": {\"states\": [\"UNREACHABLE\"]},\n  \"notHaving\": {\"roles\":[\"boot\"]} }\n";
    let file = etcd.file("variables.json", text);
    assert_eq!(etcd.run(&["auto-repair", "set-variables", &file]).await.calm(), "variables: stored\n");
    assert_eq!(etcd.get("auto-repair/query-variables").await.unwrap(), text);
    assert_eq!(etcd.get("sabakan/query-variables").await, None);
    assert_eq!(etcd.run(&["auto-repair", "get-variables"]).await.calm(), text);
    let wrong = br#"{"having":{"states":["UNREACHABEL"]}}"#;
    let message = etcd.run_fed(&["auto-repair", "set-variables", "-"], wrong).await.refused(2);
    assert!(message.contains("having.states[0]: got \"UNREACHABEL\""), "{message}");
    assert_eq!(etcd.get("auto-repair/query-variables").await.unwrap(), text);
}

const HELD: &str = r#"{"label":"rack","events":[{"since":"2026-11-21T10:00:00Z","machines":[
    {"changed":"2026-11-21T09:58:00Z","serial":"s1","address":"10.0.0.1"},
    {"changed":"2026-11-21T09:58:01Z","serial":"s2","address":"10.0.0.2"},
    {"changed":"2026-11-21T09:58:02Z","serial":"s3","address":""}]}],"released":[],"later":7}"#;

#[tokio::test]
async fn unreadable_hold_is_shown_as_held_and_removed_by_a_release() {
    let Some(etcd) = Etcd::start().await else { return };
    etcd.put("madako/repair/holds/3", r#"{"label":"rack","events":[{"since"#).await;
    let explained = etcd.run(&["repair-queue", "explain", "-o", "json"]).await.json();
    assert_eq!(
        (&explained["held"][0]["rack"], &explained["held"][0]["unreadable"]),
        (&json!("3"), &json!(true))
    );
    let answer = etcd.run(&["repair-queue", "release", "3", "-o", "json"]).await.json();
    assert_eq!(answer, json!({"rack": "3", "released": [], "unreadable": true}));
    assert_eq!(etcd.get("madako/repair/holds/3").await, None);
    etcd.run(&["repair-queue", "release", "3"]).await.refused(1);
}

#[tokio::test]
async fn a_rack_is_released_once_for_the_reports_that_hold_it() {
    let Some(etcd) = Etcd::start().await else { return };
    let message = etcd.run(&["repair-queue", "release", "3"]).await.refused(1);
    assert!(message.contains("rack 3 is not held"), "{message}");
    assert_eq!(etcd.get("madako/repair/holds/3").await, None);
    etcd.put("madako/repair/holds/33", HELD).await;
    etcd.put("madako/repair/holds/3", HELD).await;
    let table = etcd.run(&["repair-queue", "release", "3"]).await.calm();
    assert!(
        table.starts_with("SERIAL  ADDRESS   FAILED\ns1      10.0.0.1  2026-11-21T09:58:00Z\n"),
        "{table}"
    );
    let stored: Value = serde_json::from_str(&etcd.get("madako/repair/holds/3").await.unwrap()).unwrap();
    assert_eq!((&stored["events"], &stored["later"]), (&json!([]), &json!(7)));
    assert_eq!(stored["released"].as_array().unwrap().len(), 3);
    assert_eq!(stored["released"][2]["serial"], "s3");
    etcd.run(&["repair-queue", "release", "3"]).await.refused(1);
    assert_eq!(etcd.get("madako/repair/holds/33").await.unwrap(), HELD, "another rack");
    let answer = etcd.run(&["repair-queue", "release", "33", "-o", "json"]).await.json();
    assert_eq!((&answer["rack"], &answer["released"][0]["serial"]), (&json!("33"), &json!("s1")));
}

#[tokio::test]
async fn next_actions_are_explained_without_the_registry() {
    let Some(etcd) = with_cluster().await else { return };
    let nothing = etcd.run(&["repair-queue", "explain"]).await;
    assert_eq!((nothing.code, nothing.out.as_str()), (0, "No machine needs a repair.\n"));
    assert!(nothing.err.contains("no URL of the registry is stored"), "{}", nothing.err);

    etcd.put("madako/repair/holds/3", HELD).await;
    add(&etcd, "iDRAC", "10.0.0.1").await.calm();
    add(&etcd, "iDRAC", "10.0.0.9").await.calm();
    etcd.run(&["auto-repair", "disable"]).await.calm();
    let answer = etcd.run(&["repair-queue", "explain", "-o", "json"]).await;
    assert!(answer.err.contains("auto-repair is switched off"), "{}", answer.err);
    let document = answer.json();
    assert_eq!(document["reports"], Value::Null);
    assert_eq!(
        document["held"],
        json!([{"rack": "3", "label": "rack", "since": "2026-11-21T10:00:00Z", "machines": ["s1", "s2", "s3"]}])
    );
    assert_eq!(
        (&document["entries"][0]["address"], &document["entries"][0]["obstacle"]),
        (&json!("10.0.0.1"), &json!("rack-held"))
    );
    // The rack of that machine is unknown, and a rack is held.
    assert_eq!(document["entries"][1]["obstacle"], "rack-unknown");
    assert_eq!(document["entries"][1]["health"], "unknown", "only the leader knows it");
    let one = etcd.run(&["repair-queue", "explain", "10.0.0.9", "-o", "json"]).await.json();
    assert_eq!(one["entries"].as_array().unwrap().len(), 1);
    // A machine that does not exist is an error, unlike a node without an entry.
    let unknown = etcd.run(&["repair-queue", "explain", "foo"]).await;
    assert_eq!((unknown.code, unknown.out.as_str()), (1, ""), "{unknown:?}");
    assert!(
        unknown.err.contains("no node and no entry of the repair queue has the address foo"),
        "{}",
        unknown.err
    );
    assert!(unknown.err.contains("no URL of the registry is stored"), "{}", unknown.err);
    let node = etcd.run(&["repair-queue", "explain", "10.0.0.2", "-o", "json"]).await;
    assert_eq!((node.code, &node.json()["entries"]), (0, &json!([])), "a node without an entry");
    let table = etcd.run(&["repair-queue", "explain"]).await.out;
    let held: Vec<&str> = table.lines().nth(1).unwrap().split_whitespace().collect();
    assert!(table.starts_with("HELD  LABEL  SINCE"), "{table}");
    let [rack, label, since, machines] = held[..] else { panic!("{table}") };
    assert_eq!([rack, label, machines], ["3", "rack", "s1,s2,s3"], "{table}");
    assert!(since.contains('d') && !since.contains('T'), "an age, not a time: {table}");
    let entry = table.lines().find(|line| line.starts_with("1 ")).unwrap();
    assert_eq!(entry.split_whitespace().take(3).collect::<Vec<_>>(), ["1", "10.0.0.9", "unknown"], "{table}");
}

#[tokio::test]
async fn each_reported_machine_is_explained() {
    let Some(etcd) = with_cluster().await else { return };
    let (registry, url) = registry().await;
    etcd.run(&["sabakan", "set-url", &url]).await.calm();
    etcd.run(&["constraints", "set", "maximum-repair-queue-entries", "1"]).await.calm();
    // Three machines of one rack and one of another are reported; the others are healthy.
    let of_rack = |rack: i64, count: usize| -> Vec<String> {
        let machines = registry.list_machines().into_iter();
        let machines = machines.filter(|machine| machine.spec.rack == rack && machine.spec.role != "boot");
        machines.take(count).map(|machine| machine.spec.serial).collect()
    };
    let (rack, lone) = (of_rack(1, 3), of_rack(2, 1));
    for serial in rack.iter().chain(&lone) {
        registry.set_state(serial, MachineState::Unreachable).unwrap();
    }
    let before = etcd.revision().await;
    let document = etcd.run(&["repair-queue", "explain", "-o", "json"]).await.json();
    let reports = document["reports"].as_array().unwrap();
    let of = |serial: &str| reports.iter().find(|report| report["serial"] == serial).unwrap();
    assert_eq!(reports.len(), 4, "{document}");
    assert_eq!((&of(&lone[0])["next"], &of(&lone[0])["state"]), (&json!("add"), &json!("UNREACHABLE")));
    for serial in &rack {
        assert_eq!((&of(serial)["next"], &of(serial)["obstacle"]), (&json!("nothing"), &json!("rack-held")));
    }
    let mut held = rack.clone();
    held.sort_unstable();
    assert_eq!((&document["held"][0]["rack"], &document["held"][0]["machines"]), (&json!("1"), &json!(held)));
    assert_eq!(document["held"][0]["expected"], json!(true), "no leader has held it");

    // One machine by its address, and the constraint that refuses its entry.
    etcd.run(&["constraints", "set", "maximum-repair-queue-entries", "0"]).await.calm();
    let address = of(&lone[0])["address"].as_str().unwrap();
    let document = etcd.run(&["repair-queue", "explain", address, "-o", "json"]).await.json();
    let reports = document["reports"].as_array().unwrap();
    assert_eq!(reports.len(), 1, "{document}");
    assert_eq!((&reports[0]["next"], &reports[0]["obstacles"]), (&json!("nothing"), &json!(["too-many"])));
    let table = etcd.run(&["repair-queue", "explain"]).await.out;
    assert!(table.starts_with("HELD  LABEL") && table.contains("not held yet"), "{table}");
    let line = table.lines().find(|line| line.starts_with(address)).unwrap();
    assert!(line.contains("nothing is added for it") && line.contains("too-many: "), "{table}");
    assert_eq!(etcd.revision().await, before + 1, "nothing but the constraint was written");
}

#[tokio::test]
async fn explanation_of_a_drain_depends_on_the_kubernetes_configuration() {
    let Some(etcd) = Etcd::start().await else { return };
    let drained = REPAIR.replace("watch_seconds: 60", "watch_seconds: 60\n        need_drain: true");
    let file = etcd.file("cluster.yml", format!("{CLUSTER}{drained}"));
    etcd.run(&["cluster", "set", &file]).await.calm();
    add(&etcd, "iDRAC", "10.0.0.2").await.calm();
    let obstacle = async |config: &str| {
        let answer = madako(&["--config", config, "repair-queue", "explain", "-o", "json"]).await;
        let entry = answer.json()["entries"][0].clone();
        assert_eq!((&entry["next"], &entry["health"]), (&json!("drain"), &json!("unknown")));
        entry["obstacle"].clone()
    };
    assert_eq!(obstacle(etcd.config()).await, "no-kubernetes");
    let kubeconfig = etcd.file(
        "kubeconfig",
        "current-context: a\ncontexts: [{name: a, context: {cluster: b, user: c}}]\n\
         clusters: [{name: b, cluster: {server: 'https://127.0.0.1:1'}}]\nusers: [{name: c, user: {token: t}}]\n",
    );
    std::fs::set_permissions(&kubeconfig, Permissions::from_mode(0o600)).unwrap();
    let settings = std::fs::read_to_string(etcd.config()).unwrap();
    let with = etcd.file("with.yml", format!("{settings}kubernetes: {{kubeconfig: {kubeconfig}}}\n"));
    assert_eq!(obstacle(&with).await, "health-unknown");
}
