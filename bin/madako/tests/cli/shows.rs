//! Tests of commands that show data: in ckecli's form by default, and in three others by option.

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::time::timeout;

use crate::krakectl::Server;
use crate::program::{CLUSTER, Etcd, PATIENCE, TEMPLATE};

#[tokio::test]
async fn missing_values_are_reported() {
    let Some(etcd) = Etcd::start().await else { return };
    for (args, code, message) in [
        (&["cluster", "get"][..], 1, "no cluster configuration is stored (madako cluster set stores one)"),
        (&["constraints", "show"], 1, "no constraints are stored, so the defaults apply"),
        (
            &["sabakan", "get-url"],
            1,
            "the key sabakan/url of the store has no URL of the registry: madako sabakan set-url stores one",
        ),
        (
            &["sabakan", "get-template"],
            1,
            "the key sabakan/template of the store has no cluster template: madako sabakan set-template stores one",
        ),
        (
            &["sabakan", "get-variables"],
            1,
            "the key sabakan/query-variables of the store has no query variables: madako sabakan set-variables stores one",
        ),
        (&["leader"], 1, "no instance leads: madako serve starts one"),
        (&["status"], 4, "no status"),
    ] {
        assert_eq!(etcd.run(args).await.refused(code), format!("madako: {message}\n"), "{args:?}");
    }
    assert_eq!(etcd.run(&["history"]).await.calm(), "");
}

#[tokio::test]
async fn unreadable_values_are_reported_and_kept() {
    let Some(etcd) = Etcd::start().await else { return };
    for (key, args) in [
        ("cluster", &["cluster", "get"][..]),
        ("constraints", &["constraints", "show"]),
        ("constraints", &["constraints", "set", "minimum-workers", "3"]),
        ("sabakan/template", &["sabakan", "get-template"]),
        ("status", &["status"]),
        ("records/0000000000000001", &["history"]),
        ("madako/removal-guard", &["sabakan", "confirm-removal"]),
    ] {
        etcd.put(key, "{").await;
        let message = etcd.run(args).await.refused(1);
        assert!(
            message.contains(&format!("the stored value of {key} cannot be read")),
            "{args:?}: {message}"
        );
        assert_eq!(etcd.get(key).await.unwrap(), "{");
    }
}

/// Stores one value of each kind.
async fn fill(etcd: &Etcd) {
    etcd.run(&["cluster", "set", &etcd.file("cluster.yml", CLUSTER)]).await.calm();
    etcd.run(&["constraints", "set", "minimum-workers", "2"]).await.calm();
    etcd.run(&["sabakan", "set-url", "http://10.0.0.1:10080"]).await.calm();
    etcd.run(&["sabakan", "set-template", &etcd.file("template.yml", TEMPLATE)]).await.calm();
    let variables = r#"{"having": {"racks": [1]}, "notHaving": {"roles": ["boot"]}}"#;
    etcd.run(&["sabakan", "set-variables", &etcd.file("variables.json", variables)]).await.calm();
    etcd.put("leader//7d", "host-b").await;
    etcd.put("leader//01", "host-a").await;
    etcd.put("status", r#"{"phase":"completed","timestamp":"2026-11-21T10:00:00.123456789Z"}"#).await;
    for id in 1..=3 {
        etcd.put(&format!("records/{id:016x}"), record(id, "completed")).await;
    }
}

pub(crate) fn record(id: i64, status: &str) -> String {
    format!(
        r#"{{"id":"{id}","status":"{status}","operation":"op-{id}","command":{{"name":"mkdir","target":"/x"}},"targets":["10.0.0.1"],"info":"","error":"","start-at":"2026-11-21T10:00:00.5Z","end-at":"2026-11-21T10:00:02Z"}}"#
    )
}

#[tokio::test]
async fn all_output_formats_have_the_same_content() {
    let Some(etcd) = Etcd::start().await else { return };
    fill(&etcd).await;
    for (args, plain, pointer, value, in_table) in [
        (&["cluster", "get"][..], "name: test", "/nodes/1/address", json!("10.0.0.2"), "10.0.0.2  worker"),
        (&["constraints", "show"], "\"minimum-workers\": 2", "/minimum-workers", json!(2), "minimum-workers"),
        (
            &["sabakan", "get-url"],
            "http://10.0.0.1:10080/graphql\n",
            "/url",
            json!("http://10.0.0.1:10080/graphql"),
            "URL",
        ),
        (&["sabakan", "get-template"], "name: cluster", "/nodes/0/control_plane", json!(true), "(template)"),
        (
            &["sabakan", "get-variables"],
            "{\"having\": {\"racks\"",
            "/having/racks/0",
            json!(1),
            "notHaving  roles",
        ),
        (&["sabakan", "is-enabled"], "true\n", "/enabled", json!(true), "ENABLED"),
        (&["leader"], "host-b\n", "/leader", json!("host-b"), "host-b"),
        (
            &["status"],
            "{\"phase\":\"completed\",\"timestamp\":\"2026-11-21T10:00:00.123456789Z\"}\n",
            "/phase",
            json!("completed"),
            "Phase      completed for ",
        ),
        (
            &["history", "-n", "1"],
            "    \"id\": \"3\"",
            "/0/id",
            json!("3"),
            "1.5s  op-3       10.0.0.1  done",
        ),
    ] {
        let shown = etcd.run(args).await.calm();
        assert!(shown.contains(plain), "{args:?}: {shown}");
        let with = |form: &'static str| [args, &["-o", form]].concat();
        let shown = etcd.run(&with("json")).await;
        assert_eq!(shown.json().pointer(pointer), Some(&value), "{args:?}: {shown:?}");
        let table = etcd.run(&with("table")).await.calm();
        assert!(table.contains(in_table), "{args:?}: {table}");
        assert!(!table.contains('\u{1b}'), "no colours outside a terminal: {table}");
        let yaml = etcd.run(&with("yaml")).await.calm();
        let yaml: Value = serde_saphyr::from_str(yaml.trim_start_matches("---\n")).unwrap();
        assert_eq!(yaml.pointer(pointer), Some(&value), "{args:?}: {yaml}");
    }
}

#[tokio::test]
async fn the_leader_is_the_oldest_candidate() {
    let Some(etcd) = Etcd::start().await else { return };
    etcd.put("leader//7d", "first").await;
    etcd.put("leader//01", "second").await;
    assert_eq!(etcd.run(&["leader"]).await.calm(), "first\n");
    let shown = etcd.run(&["leader", "-o", "json"]).await.json();
    assert_eq!((shown["leader"].as_str(), shown["candidates"].as_u64()), (Some("first"), Some(2)));
}

#[tokio::test]
async fn history_is_newest_first_and_cut_off() {
    let Some(etcd) = Etcd::start().await else { return };
    for id in [1, 2, 3, 15, 16] {
        etcd.put(&format!("records/{id:016x}"), record(id, "completed")).await;
    }
    let ids = |shown: String| -> Vec<String> {
        shown
            .lines()
            .filter_map(|line| {
                Some(line.trim().strip_prefix("\"id\": \"")?.trim_end_matches("\",").to_owned())
            })
            .collect()
    };
    assert_eq!(ids(etcd.run(&["history"]).await.calm()), ["16", "15", "3", "2", "1"]);
    assert_eq!(ids(etcd.run(&["history", "-n", "2"]).await.calm()), ["16", "15"]);
    assert_eq!(ids(etcd.run(&["history", "--count=0"]).await.calm()).len(), 5);
}

#[tokio::test]
async fn history_table_shows_the_result_of_each_operation() {
    let Some(etcd) = Etcd::start().await else { return };
    let finish = |id, info| {
        record(id, "completed").replace(&format!("op-{id}"), "repair-finish").replace(r#""info":"""#, info)
    };
    etcd.put(
        "records/0000000000000001",
        record(1, "cancelled").replace(r#""error":"""#, r#""error":"exit code 3""#),
    )
    .await;
    etcd.put("records/0000000000000002", finish(2, r#""info":"failed: there is no step 1""#)).await;
    etcd.put("records/0000000000000003", finish(3, r#""info":"succeeded: the machine is healthy""#)).await;
    etcd.put("records/0000000000000004", record(4, "running")).await;
    let table = etcd.run(&["history", "-o", "wide"]).await.calm();
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[0].ends_with("INFO                               ERROR        WHY"), "{table}");
    for (line, parts) in [
        (1, &["running", "under way"][..]),
        (2, &["completed", "done", "succeeded: the machine is healthy"]),
        (3, &["completed", "the repair failed", "failed: there is no step 1"]),
        (4, &["cancelled", "failed", "exit code 3"]),
    ] {
        assert!(parts.iter().all(|part| lines[line].contains(part)), "{parts:?}: {table}");
    }
    let narrow = etcd.run(&["history", "-o", "table", "--sort-by", "id"]).await.calm();
    let last = narrow.lines().last().unwrap();
    assert!(last.starts_with("4 ") && last.ends_with("under way"), "{narrow}");
    // A list is one array; a stream has a line for each record.
    let shown = etcd.run(&["history", "-n", "1", "-o", "json"]).await.json();
    let fields: Vec<&String> = shown[0].as_object().unwrap().keys().collect();
    let of_cke = ["command", "end-at", "error", "id", "info", "operation", "start-at", "status", "targets"];
    let mut sorted = fields.clone();
    sorted.sort();
    assert_eq!(sorted, of_cke, "{shown}");
}

const STATUS: &str = r#"{"phase":"completed","timestamp":"2026-11-21T10:00:00Z"}"#;

/// The text of the status about a rule.
fn attention<'a>(shown: &'a Value, rule: &str) -> Option<&'a Value> {
    shown["attention"].as_array().unwrap().iter().find(|attention| attention["rule"] == rule)
}

#[tokio::test]
async fn status_names_obstacles_and_remedies() {
    let Some(etcd) = Etcd::start().await else { return };
    let answer = etcd.run(&["status", "-o", "table"]).await;
    assert_eq!((answer.code, answer.err.as_str()), (4, "madako: no status\n"));
    assert!(
        answer.out.starts_with("1 thing needs attention, and 2 notes:\n! leadership: no-leader\n"),
        "{}",
        answer.out
    );
    let checked = etcd.run(&["status", "--check"]).await;
    assert_eq!((checked.code, checked.err.as_str()), (5, ""), "no instance leads: {checked:?}");
    etcd.put("status", STATUS).await;
    etcd.put("leader//1", "host-a").await;
    let screen = etcd.run(&["status", "-o", "table"]).await.calm();
    for part in [
        "Calm: nothing needs attention, and 3 notes.\n",
        "\ni plans: no-template\n  no template is stored",
        "\nLeader     host-a (epoch ",
        "no other candidate\n",
        "\nPhase      completed for ",
        "\nRepairs    no entries\nReboots    no entries\n",
        " KiB, revision ",
        "\nStore      127.0.0.1:",
    ] {
        assert!(screen.contains(part), "{part:?} in\n{screen}");
    }
    assert!(screen.lines().all(|line| line.chars().count() <= 80), "{screen}");

    // From etcd itself, without a time: no leader has noted the switch.
    etcd.run(&["repair-queue", "disable"]).await.calm();
    etcd.run(&["auto-repair", "disable"]).await.calm();
    etcd.put("madako/removal-guard", r#"{"vanished":["10.0.0.1","10.0.0.2"],"agreed":1,"confirmed":false}"#)
        .await;
    etcd.put(
        "madako/repair/holds/3",
        r#"{"label":"rack","events":[{"since":"2026-11-21T09:00:00Z","machines":[
            {"changed":"2026-11-21T08:58:00Z","serial":"s1","address":"10.0.0.1"},
            {"changed":"2026-11-21T08:58:01Z","serial":"s2","address":"10.0.0.2"}]}],"released":[]}"#,
    )
    .await;
    etcd.put("madako/repair/holds/4", "{").await;
    let shown = async || etcd.run(&["status", "-o", "json"]).await.json();
    let check = |shown: &Value, rule: &str, since: Option<&str>, parts: &[&str]| {
        let found = attention(shown, rule).unwrap_or_else(|| panic!("{rule}: {shown}"));
        assert_eq!(found["since"].as_str(), since, "{found}");
        assert!(parts.iter().all(|part| found.to_string().contains(part)), "{parts:?}: {found}");
    };
    let news = shown().await;
    check(&news, "removal-guard", None, &["2 nodes vanished", "1 of 3 polls agree", "confirm-removal"]);
    check(&news, "repair-queue-disabled", None, &["madako repair-queue enable"]);
    check(&news, "auto-repair-disabled", None, &["\"informs\":true", "madako auto-repair enable"]);
    let held = ["rack 3", "2 machines failed together: s1, s2", "release 3"];
    check(&news, "rack-held", Some("2026-11-21T09:00:00Z"), &held);
    check(&news, "unusable-value", None, &["madako/repair/holds/4", "not readable", "release 4"]);
    let answer = etcd.run(&["status", "--check"]).await;
    assert_eq!((answer.code, answer.err.as_str()), (5, ""), "{answer:?}");
    assert!(answer.out.starts_with("4 things need attention, and 4 notes:\n"), "{}", answer.out);
    assert!(answer.out.contains("\n! repairs of rack 3: rack-held for "), "{}", answer.out);

    // With the leader's notes; for a value that is stored again, the stored value counts.
    etcd.put(
        "madako/obstacles",
        r#"{"registry-silent":{"since":"2026-11-21T09:30:00Z"},
            "no-plan":{"since":"2026-11-21T09:40:00Z","why":"too few machines"},
            "repair-queue-disabled":{"since":"2026-11-21T09:50:00Z"},
            "integration-disabled":{"since":"2026-11-21T09:55:00Z"},
            "of-a-newer-version":{"since":"2026-11-21T09:56:00Z"}}"#,
    )
    .await;
    let news = shown().await;
    check(&news, "registry-silent", Some("2026-11-21T09:30:00Z"), &["no valid answer", "check sabakan"]);
    check(&news, "no-plan", Some("2026-11-21T09:40:00Z"), &["too few machines", "madako plan"]);
    check(&news, "repair-queue-disabled", Some("2026-11-21T09:50:00Z"), &[]);
    assert_eq!(attention(&news, "integration-disabled"), None, "it is enabled");
    etcd.run(&["sabakan", "disable"]).await.calm();
    let news = shown().await;
    check(&news, "integration-disabled", Some("2026-11-21T09:55:00Z"), &[]);
    assert_eq!(attention(&news, "registry-silent"), None, "no actor asks the registry");

    // Without an option it prints CKE's form; JSON has CKE's fields among its own.
    assert_eq!(etcd.run(&["status"]).await.calm(), format!("{STATUS}\n"));
    let cke: Value = serde_json::from_str(STATUS).unwrap();
    assert_eq!((&news["phase"], &news["timestamp"]), (&cke["phase"], &cke["timestamp"]));
}

#[tokio::test]
async fn status_of_a_large_failure_fits_the_screen() {
    let Some(etcd) = Etcd::start().await else { return };
    etcd.put("status", STATUS).await;
    etcd.put("leader//1", "host-a").await;
    let hold = |rack: usize, machines: usize| {
        let serial = |machine: usize| json!({"changed": "2026-11-21T08:58:00Z", "serial": format!("r{rack}m{machine}"), "address": "10.0.0.1"});
        let since = if rack == 7 { "2026-11-21T08:59:00Z" } else { "2026-11-21T09:00:00Z" };
        let machines: Vec<Value> = (0..machines).map(serial).collect();
        json!({"label": "rack", "events": [{"since": since, "machines": machines}], "released": []})
            .to_string()
    };
    let shown = async || etcd.run(&["status", "-o", "json"]).await.json();
    etcd.put("madako/repair/holds/2", hold(2, 40)).await;
    let news = shown().await;
    let one = attention(&news, "rack-held").unwrap();
    assert_eq!(one["why"], "40 machines failed together: r2m0, r2m1, r2m10, r2m11, r2m12 and 35 more");
    for rack in 1..=125 {
        etcd.put(&format!("madako/repair/holds/{rack}"), hold(rack, 40)).await;
    }
    for key in 0..6 {
        etcd.put(&format!("madako/repair/holds/x{key}"), "{").await;
    }
    let news = shown().await;
    let held = attention(&news, "rack-held").unwrap();
    assert_eq!(
        (held["why"].as_str(), held["since"].as_str()),
        (
            Some("5000 machines in 125 racks failed together: 1, 2, 3, 4, 5 and 120 more"),
            Some("2026-11-21T08:59:00Z")
        )
    );
    let racks: Vec<&str> =
        news["repairs"]["held_racks"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert_eq!((racks.len(), racks[9], racks[124]), (125, "10", "125"), "in the order of their numbers");
    let unusable = attention(&news, "unusable-value").unwrap()["why"].as_str().unwrap();
    assert!(unusable.starts_with("6 stored values cannot be used: madako/repair/holds/x0, "), "{unusable}");
    assert!(unusable.ends_with(" and 1 more"), "{unusable}");
    let screen = etcd.run(&["status", "-o", "table"]).await.calm();
    assert!(screen.contains("\nRepairs    no entries; held racks: 1, 2, 3, 4, 5 and 120 more\n"), "{screen}");
    assert!(screen.lines().count() <= 45, "{screen}");
    assert!(screen.lines().all(|line| line.chars().count() <= 80), "{screen}");
}

#[tokio::test]
async fn status_shows_faults_in_the_metrics_of_the_leader() {
    let Some(etcd) = Etcd::start().await else { return };
    let page = "madako_leader 1\nmadako_placement_owner 1\n\
        madako_placement_applications{outcome=\"degraded\"} 10000\n\
        madako_placement_applications_since_timestamp_seconds{outcome=\"degraded\"} 1700000000\n\
        madako_repair_waiting{reason=\"missing\"} 2\n\
        madako_repair_waiting_since_timestamp_seconds{reason=\"missing\"} 1700000000\n\
        madako_reboot_waiting{reason=\"stuck\"} 3\n\
        madako_reboot_waiting_since_timestamp_seconds{reason=\"stuck\"} 1700000000\n\
        madako_metrics_providers_down{kind=\"influx\"} 1\n";
    // One answer for each of /metrics and /health, which are asked at once.
    let server = Server::answering(vec![(200, "", page.to_owned()); 2]).await;
    etcd.put("status", STATUS).await;
    etcd.put("leader//1", "host-a").await;
    etcd.put("madako/leader-url", format!("http://127.0.0.1:{}", server.port)).await;
    let answer = etcd.run(&["status", "--check"]).await;
    assert_eq!(answer.code, 5, "{answer:?}");
    for part in [
        "4 things need attention, and 2 notes:\n! repairs: repairs-blocked for ",
        "\n  Repairs wait for an operator: without a repair procedure (missing)\n",
        "\nRepairs    no entries; waiting: 2 without a repair procedure\n",
        "\n! placement: applications-degraded for ",
        "\n  applications that no cluster takes at present: 10000\n  -> madako kube app list ",
        "\n! reboots: reboots-stuck for ",
        "\n! placement: providers-down\n",
        "\nReboots    no entries; waiting: 3 stuck\n",
    ] {
        assert!(answer.out.contains(part), "{part:?} in\n{}", answer.out);
    }
}

#[tokio::test]
async fn status_shows_a_disabled_reboot_queue_only_while_nodes_wait() {
    let Some(etcd) = Etcd::start().await else { return };
    etcd.put("status", STATUS).await;
    etcd.put("leader//1", "host-a").await;
    etcd.run(&["reboot-queue", "disable"]).await.calm();
    let calm = etcd.run(&["status", "--check"]).await;
    assert_eq!(calm.code, 0, "{calm:?}");
    assert!(calm.out.contains("\nReboots    no entries; disabled\n"), "{}", calm.out);
    etcd.put(
        "reboots/data/0000000000000001",
        r#"{"index":"1","node":"10.0.0.1","status":"queued","last_transition_time":"0001-01-01T00:00:00Z",
            "drain_backoff_expire":"0001-01-01T00:00:00Z"}"#,
    )
    .await;
    let answer = etcd.run(&["status", "--check"]).await;
    assert_eq!(answer.code, 5, "{answer:?}");
    for part in [
        "! reboots: reboot-queue-disabled\n",
        "-> madako reboot-queue enable",
        "\nReboots    1 queued; disabled\n",
    ] {
        assert!(answer.out.contains(part), "{part:?} in\n{}", answer.out);
    }
    let shown = etcd.run(&["status", "-o", "json"]).await.json();
    assert_eq!(shown["reboots"], json!({"enabled": false, "entries": {"queued": 1}, "waiting": {}}));
    assert!(shown["store"]["size_bytes"].as_u64().is_some_and(|size| size > 0), "{shown}");
    etcd.run(&["reboot-queue", "enable"]).await.calm();
    assert_eq!(etcd.run(&["status", "--check"]).await.code, 0);
}

#[tokio::test]
async fn history_with_follow_shows_new_records() {
    let Some(etcd) = Etcd::start().await else { return };
    for id in 1..=3 {
        etcd.put(&format!("records/{id:016x}"), record(id, "completed")).await;
    }
    etcd.put("records", "4").await;
    let mut child = etcd.command(&["history", "--follow", "-n", "2", "-o", "wide"]).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = async || timeout(PATIENCE, lines.next_line()).await.expect("a line").unwrap().unwrap();
    let first = [next().await, next().await];
    assert!(
        first[0].contains("op-2") && first[1].contains("op-3"),
        "the last two, the older first: {first:?}"
    );
    etcd.put("records/0000000000000004", record(4, "new")).await;
    let line = next().await;
    assert!(line.contains("op-4") && line.contains("new"), "{line}");
    etcd.put("records/0000000000000004", record(4, "running")).await;
    let line = next().await;
    assert!(line.contains("op-4") && line.contains("running"), "{line}");
    child.kill().await.unwrap();
    let message = etcd.run(&["history", "--follow", "-o", "json"]).await.refused(2);
    assert!(message.contains("use -o jsonl"), "{message}");
    let mut child = etcd.command(&["history", "--follow", "-n", "1", "-o", "jsonl"]).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = timeout(PATIENCE, lines.next_line()).await.expect("a line").unwrap().unwrap();
    assert_eq!(serde_json::from_str::<Value>(&line).unwrap()["id"], "4", "{line}");
    child.kill().await.unwrap();
}
