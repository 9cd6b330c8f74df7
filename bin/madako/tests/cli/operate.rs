//! Tests of commands that write to etcd: their bytes are those of ckecli.

use std::process::Stdio;

use serde_json::{Value, json};
use tokio::time::timeout;

use crate::program::{CLUSTER, Etcd, PATIENCE, TEMPLATE};

/// A template as a real ckecli (release line 1.30) stored it.
const STORED_BY_CKECLI: &str = include_str!("stored_by_ckecli.json");

#[tokio::test]
async fn the_url_is_stored_as_ckecli_stores_it() {
    let Some(etcd) = Etcd::start().await else { return };
    for (typed, stored, told) in [
        ("http://10.0.0.1:10080", "http://10.0.0.1:10080/graphql", "stored"),
        ("http://10.0.0.1:10080/graphql", "http://10.0.0.1:10080/graphql", "stored, unchanged"),
        (
            "http://10.0.0.1:10080/base/",
            "http://10.0.0.1:10080/base/graphql",
            "stored, replacing the previous value",
        ),
        (
            "https://sabakan.example/graphql",
            "https://sabakan.example/graphql",
            "stored, replacing the previous value",
        ),
    ] {
        assert_eq!(etcd.run(&["sabakan", "set-url", typed]).await.calm(), format!("URL: {told}\n"));
        assert_eq!(etcd.get("sabakan/url").await.unwrap(), stored);
        assert_eq!(etcd.run(&["sabakan", "get-url"]).await.calm(), format!("{stored}\n"));
    }
    for wrong in ["nonsense", "ftp://10.0.0.1/", "/graphql", "http://"] {
        let message = etcd.run(&["sabakan", "set-url", wrong]).await.refused(2);
        assert!(message.contains("an absolute http or https URL"), "{message}");
    }
    let message = etcd.run(&["sabakan", "set-url", "user:hunter2@host"]).await.refused(2);
    assert!(!message.contains("hunter2"), "{message}");
    assert_eq!(etcd.get("sabakan/url").await.unwrap(), "https://sabakan.example/graphql");
}

#[tokio::test]
async fn the_integration_is_switched_by_ckes_booleans() {
    let Some(etcd) = Etcd::start().await else { return };
    assert_eq!(etcd.run(&["sabakan", "is-enabled"]).await.calm(), "true\n");
    for (word, stored, shown) in [("disable", "true", "false\n"), ("enable", "false", "true\n")] {
        for _ in 0..2 {
            assert_eq!(etcd.run(&["sabakan", word]).await.calm(), "");
            assert_eq!(etcd.get("sabakan/disabled").await.unwrap(), stored);
            assert_eq!(etcd.run(&["sabakan", "is-enabled"]).await.calm(), shown);
        }
    }
}

#[tokio::test]
async fn constraints_are_set_one_by_one() {
    let Some(etcd) = Etcd::start().await else { return };
    for (name, old, value) in [
        ("control-plane-count", "1", "5"),
        ("control-plane-count", "5", "3"),
        ("minimum-workers", "1", "6"),
        ("maximum-workers", "0", "10"),
    ] {
        let changed = etcd.run(&["constraints", "set", name, value]).await.calm();
        assert_eq!(changed, format!("{name}: {old} -> {value}\n"));
    }
    assert_eq!(
        etcd.get("constraints").await.unwrap(),
        r#"{"control-plane-count":3,"minimum-workers":6,"maximum-workers":10,"maximum-unreachable-nodes-for-reboot":0,"maximum-repair-queue-entries":0,"wait-seconds-to-repair-rebooting":0}"#
    );
    assert_eq!(
        etcd.run(&["constraints", "show"]).await.calm(),
        "{\n    \"control-plane-count\": 3,\n    \"minimum-workers\": 6,\n    \"maximum-workers\": 10,\n    \
         \"maximum-unreachable-nodes-for-reboot\": 0,\n    \"maximum-repair-queue-entries\": 0,\n    \
         \"wait-seconds-to-repair-rebooting\": 0\n}\n"
    );
    let before = etcd.revision().await;
    for (name, value, part) in [
        ("minimum-worker", "1", "such as \"minimum-workers\""),
        ("nonsense", "1", "one of control-plane-count"),
        ("minimum-workers", "six", "got \"six\", expected a whole number"),
        ("minimum-workers", "-1", "got \"-1\", expected a whole number"),
        ("minimum-workers", "11", "maximum-workers: got 10"),
        ("control-plane-count", "0", "expected a whole number from 1"),
        ("maximum-workers", "99999999999", "expected a whole number"),
    ] {
        let message = etcd.run(&["constraints", "set", name, value]).await.refused(2);
        assert!(message.contains(part), "{name} {value}: {part:?} is not in {message}");
    }
    assert_eq!(etcd.revision().await, before, "a refused value is not stored");

    let even = etcd.run(&["constraints", "set", "control-plane-count", "4"]).await;
    assert_eq!((even.code, even.out.as_str()), (0, "control-plane-count: 3 -> 4\n"));
    assert!(even.err.starts_with("madako: warning: control-plane-count: "), "{}", even.err);
}

#[tokio::test]
async fn a_stored_constraint_that_cannot_be_read_can_be_set() {
    let Some(etcd) = Etcd::start().await else { return };
    etcd.put(
        "constraints",
        r#"{"control-plane-count":"3","minimum-workers":2,"new":12345678901234567890123}"#,
    )
    .await;
    let message = etcd.run(&["constraints", "show"]).await.refused(1);
    assert!(message.contains("control-plane-count: "), "{message}");
    let message = etcd.run(&["constraints", "set", "minimum-workers", "4"]).await.refused(1);
    assert!(message.contains("control-plane-count: "), "{message}");
    let changed = etcd.run(&["constraints", "set", "control-plane-count", "3"]).await.calm();
    assert_eq!(changed, "control-plane-count: unreadable -> 3\n");
    let stored = etcd.get("constraints").await.unwrap();
    assert!(stored.starts_with(r#"{"control-plane-count":3,"minimum-workers":2,"#), "{stored}");
    assert!(stored.ends_with(r#""new":12345678901234567890123}"#), "{stored}");
}

#[tokio::test]
async fn constraints_that_are_set_at_the_same_time_are_all_set() {
    let Some(etcd) = Etcd::start().await else { return };
    let set = async |name: &str, value: &str| etcd.run(&["constraints", "set", name, value]).await.calm();
    tokio::join!(
        set("control-plane-count", "5"),
        set("minimum-workers", "7"),
        set("maximum-repair-queue-entries", "9"),
        set("wait-seconds-to-repair-rebooting", "11"),
    );
    let stored: Value = serde_json::from_str(&etcd.get("constraints").await.unwrap()).unwrap();
    for (name, value) in [
        ("control-plane-count", 5),
        ("minimum-workers", 7),
        ("maximum-repair-queue-entries", 9),
        ("wait-seconds-to-repair-rebooting", 11),
    ] {
        assert_eq!(stored[name], value, "{stored}");
    }
}

#[tokio::test]
async fn a_template_is_checked_whole_and_comes_back() {
    let Some(etcd) = Etcd::start().await else { return };
    let file = etcd.file("template.yml", TEMPLATE);
    assert_eq!(etcd.run(&["sabakan", "set-template", &file]).await.calm(), "template: stored\n");
    let stored: Value = serde_json::from_str(&etcd.get("sabakan/template").await.unwrap()).unwrap();
    assert_eq!(stored["nodes"][1]["labels"]["cke.cybozu.com/weight"], "6.0");
    // Defaults that ckecli fills in.
    assert_eq!(stored["options"]["etcd"]["volume_name"], "etcd-cke");
    assert_eq!(stored["options"]["kubelet"]["cri_endpoint"], "/run/containerd/containerd.sock");

    // The shown template can be set again through a pipe, and is unchanged then.
    let shown = etcd.run(&["sabakan", "get-template"]).await.calm();
    let before = etcd.get("sabakan/template").await.unwrap();
    let same = "template: stored, unchanged\n";
    assert_eq!(etcd.run_fed(&["sabakan", "set-template", "-"], shown.as_bytes()).await.calm(), same);
    assert_eq!(etcd.get("sabakan/template").await.unwrap(), before);

    let wrong = TEMPLATE
        .replace("control_plane: true", "control_plain: true")
        .replace("'3.0'", "'-3'")
        .replace("10.68.0.0/16", "10.68.0.0");
    let wrong = etcd.file("wrong.yml", wrong);
    let message = etcd.run(&["sabakan", "set-template", &wrong]).await.refused(2);
    for part in ["template is not valid:\n", "control_plain", "service_subnet: got \"10.68.0.0\"", "weight"] {
        assert!(message.contains(part), "{part:?} is not in {message}");
    }
    // A misspelt control_plane is one problem, not also a missing control plane.
    let misspelt = etcd.file("misspelt.yml", TEMPLATE.replace("control_plane: true", "control_plan: true"));
    let message = etcd.run(&["sabakan", "set-template", &misspelt]).await.refused(2);
    assert!(message.contains("nodes[0].control_plan: got an unknown field"), "{message}");
    assert_eq!(message.matches("got").count(), 1, "{message}");
    assert!(!message.contains("exactly one node"), "{message}");
    for (content, part) in [("", "expected"), ("[", "expected"), ("name: x", "nodes"), ("\u{0}", "expected")]
    {
        let file = etcd.file("odd.yml", content);
        let message = etcd.run(&["sabakan", "set-template", &file]).await.refused(2);
        assert!(message.contains(part), "{content:?}: {message}");
    }
    let message = etcd.run(&["sabakan", "set-template", "/nonexistent"]).await.refused(2);
    assert!(message.contains("/nonexistent cannot be read: No such file"), "{message}");
    let binary = etcd.file("binary", [0xff, 0xfe]);
    let message = etcd.run(&["sabakan", "set-template", &binary]).await.refused(2);
    assert!(message.contains("is not UTF-8 text"), "{message}");
    assert_eq!(etcd.get("sabakan/template").await.unwrap(), before, "a refused template is not stored");
}

#[tokio::test]
async fn template_stored_by_ckecli_is_shown_and_kept() {
    let Some(etcd) = Etcd::start().await else { return };
    etcd.put("sabakan/template", STORED_BY_CKECLI.trim_end().to_owned()).await;
    let shown = etcd.run(&["sabakan", "get-template", "-o", "json"]).await.json();
    let stored: Value = serde_json::from_str(STORED_BY_CKECLI).unwrap();
    for part in ["name", "service_subnet", "options", "reboot", "repair"] {
        assert_eq!(shown[part], stored[part], "{part}");
    }
    assert_eq!(shown["options"]["kubelet"]["config"]["maxPods"], 200);
    // The shown template can be set again, and is stored as ckecli stored it.
    let yaml = etcd.run(&["sabakan", "get-template"]).await.calm();
    assert!(yaml.contains("control_plane_tolerations: null\n"), "as ckecli shows it: {yaml}");
    etcd.run_fed(&["sabakan", "set-template", "-"], yaml.as_bytes()).await.calm();
    assert_eq!(etcd.get("sabakan/template").await.unwrap(), STORED_BY_CKECLI.trim_end());
}

#[tokio::test]
async fn variables_are_stored_as_they_are_and_absent_ones_warned_of() {
    let Some(etcd) = Etcd::start().await else { return };
    let text = "{ \"having\": {\"racks\": [0, 1]},\n  \"notHaving\": {\"roles\":[\"boot\"], \"states\":[\"RETIRED\"]} }\n";
    let file = etcd.file("variables.json", text);
    assert_eq!(etcd.run(&["sabakan", "set-variables", &file]).await.calm(), "variables: stored\n");
    assert_eq!(etcd.get("sabakan/query-variables").await.unwrap(), text);
    assert_eq!(etcd.run(&["sabakan", "get-variables"]).await.calm(), text);

    let warned = etcd.run_fed(&["sabakan", "set-variables", "-"], br#"{"having":{"roles":["boot"]}}"#).await;
    assert_eq!((warned.code, warned.out.as_str()), (0, "variables: stored, replacing the previous value\n"));
    assert!(warned.err.starts_with("madako: warning: notHaving: "), "{}", warned.err);

    for (wrong, part) in [
        (
            r#"{"having":{"states":["HEALTY"]}}"#,
            "having.states[0]: got \"HEALTY\", expected one of UNINITIALIZED",
        ),
        (r#"{"having":{"role":["boot"]}}"#, "having.role: got an unknown field"),
        (r#"{"nothaving":{}}"#, "nothaving"),
        ("having: {}", "expected one JSON object"),
    ] {
        let message = etcd.run_fed(&["sabakan", "set-variables", "-"], wrong.as_bytes()).await.refused(2);
        assert!(message.contains(part), "{wrong}: {part:?} is not in {message}");
    }
    assert_eq!(etcd.get("sabakan/query-variables").await.unwrap(), r#"{"having":{"roles":["boot"]}}"#);
}

#[tokio::test]
async fn a_cluster_must_be_valid_and_satisfy_the_constraints() {
    let Some(etcd) = Etcd::start().await else { return };
    let file = etcd.file("cluster.yml", CLUSTER);
    let reported = "cluster: stored, with 2 nodes (0 before); added: 10.0.0.1, 10.0.0.2; removed: none\n";
    assert_eq!(etcd.run(&["cluster", "set", &file]).await.calm(), reported);
    let other = etcd.file("other.yml", CLUSTER.replace("10.0.0.2", "10.0.0.3"));
    let reported = "cluster: stored, with 2 nodes (2 before); added: 10.0.0.3; removed: 10.0.0.2\n";
    assert_eq!(etcd.run(&["cluster", "set", &other]).await.calm(), reported);
    etcd.run(&["cluster", "set", &file]).await.calm();
    let stored: Value = serde_json::from_str(&etcd.get("cluster").await.unwrap()).unwrap();
    assert_eq!(stored["nodes"][1]["address"], "10.0.0.2");
    assert_eq!(etcd.get("cluster-revision").await, None, "the planner's key is left alone, as by ckecli");

    etcd.put("constraints", r#"{"control-plane-count":3,"minimum-workers":2,"maximum-workers":0}"#).await;
    let message = etcd.run(&["cluster", "set", &file]).await.refused(2);
    assert!(message.contains("got 1 control plane nodes, expected 3"), "{message}");
    assert!(message.contains("got 1 workers, expected at least 2"), "{message}");

    let wrong = etcd.file(
        "wrong.yml",
        CLUSTER.replace("10.0.0.2", "10.0.0.1").replace("service_subnet", "service_sbnet"),
    );
    let message = etcd.run(&["cluster", "set", &wrong]).await.refused(2);
    for part in ["service_sbnet", "such as \"service_subnet\"", "nodes[1].address: got \"10.0.0.1\""] {
        assert!(message.contains(part), "{part:?} is not in {message}");
    }
    let again: Value = serde_json::from_str(&etcd.get("cluster").await.unwrap()).unwrap();
    assert_eq!(again, stored, "a refused cluster is not stored");
    // An unreadable value is not replaced by a default.
    etcd.put("constraints", "{").await;
    let message = etcd.run(&["cluster", "set", &file]).await.refused(1);
    assert!(message.contains("the stored value of constraints cannot be read"), "{message}");
}

#[tokio::test]
async fn a_removal_is_confirmed_as_it_is_held() {
    let Some(etcd) = Etcd::start().await else { return };
    for args in [&["sabakan", "confirm-removal", "--dry-run"][..], &["sabakan", "confirm-removal"]] {
        assert_eq!(etcd.run(args).await.calm(), "The removal guard holds nothing.\n");
    }
    assert_eq!(etcd.get("madako/removal-guard").await, None, "nothing is confirmed in advance");

    let held = r#"{"vanished":["10.0.0.2","10.0.0.1"],"agreed":1,"confirmed":false,"later":7}"#;
    etcd.put("madako/removal-guard", held).await;
    let shown = etcd.run(&["sabakan", "confirm-removal", "--dry-run"]).await.calm();
    assert_eq!(shown, "VANISHED\n10.0.0.1\n10.0.0.2\n\nHeld: 2 nodes vanished; 1 of 3 polls agree.\n");
    assert_eq!(etcd.get("madako/removal-guard").await.unwrap(), held);

    let answer = etcd.run(&["sabakan", "confirm-removal", "-o", "json"]).await;
    assert_eq!(answer.json(), json!({"vanished": ["10.0.0.1", "10.0.0.2"], "agreed": 1, "confirmed": true}));
    let stored: Value = serde_json::from_str(&etcd.get("madako/removal-guard").await.unwrap()).unwrap();
    assert_eq!(
        stored,
        json!({"vanished": ["10.0.0.2", "10.0.0.1"], "agreed": 1, "confirmed": true, "later": 7}),
        "fields of a newer version stay"
    );
    let shown = etcd.run(&["sabakan", "confirm-removal", "--dry-run"]).await.calm();
    assert!(shown.contains("Confirmed: "), "{shown}");

    let confirmed = r#"{"confirmed": true, "vanished": ["10.0.0.1"], "agreed": 1}"#;
    etcd.put("madako/removal-guard", confirmed).await;
    etcd.run(&["sabakan", "confirm-removal"]).await.calm();
    assert_eq!(etcd.get("madako/removal-guard").await.unwrap(), confirmed, "it is not written again");
}

#[tokio::test]
async fn a_closed_pipe_is_not_a_failure() {
    let Some(etcd) = Etcd::start().await else { return };
    let file = etcd.file("cluster.yml", CLUSTER);
    etcd.run(&["cluster", "set", &file]).await.calm();
    let mut child = etcd.command(&["cluster", "get"]).stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = timeout(PATIENCE, child.wait_with_output()).await.unwrap().unwrap();
    assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr).as_ref()), (Some(0), ""));
}
