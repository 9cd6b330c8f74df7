//! Tests of `madako auto-repair plan` on files; it opens no connection.

use serde_json::{Value, json};

use crate::program::{Answer, Files, madako, madako_fed};

fn machine(id: u32, rack: u32, state: &str, duration: f64) -> Value {
    json!({
        "spec": {
            "serial": format!("s{id}"),
            "labels": null,
            "rack": rack,
            "indexInRack": id,
            "role": "compute",
            "ipv4": if id == 0 { json!(null) } else { json!([format!("10.0.0.{id}"), "10.9.9.9"]) },
            "registerDate": "2025-01-01T00:00:00Z",
            "retireDate": "2030-01-01T00:00:00Z",
            "bmc": {"bmcType": "iDRAC"},
        },
        "status": {"state": state, "duration": duration},
    })
}

/// Entries as a real ckecli printed them.
const ENTRIES: &str = r#"[
    {
        "index": "0",
        "address": "10.0.0.2",
        "nodename": "",
        "machine_type": "iDRAC",
        "operation": "unreachable",
        "status": "succeeded",
        "step": 0,
        "step_status": "watching",
        "deleted": true,
        "last_transition_time": "2026-11-20T10:00:00.123456789Z",
        "drain_backoff_expire": "0001-01-01T00:00:00Z"
    }
]"#;

const REBOOTS: &str = r#"[{"index":"4","node":"10.0.0.3","status":"rebooting","last_transition_time":"0001-01-01T00:00:00Z","drain_backoff_expire":"0001-01-01T00:00:00Z"}]"#;

struct Case {
    files: Files,
}

impl Case {
    async fn plan(&self, machines: &[Value], more: &[(&str, &str)], flags: &[&str]) -> Answer {
        let mut args = vec![
            "auto-repair".to_owned(),
            "plan".to_owned(),
            "--machines".to_owned(),
            self.files.write("machines.json", Value::from(machines).to_string()),
        ];
        for (option, content) in more {
            args.push((*option).to_owned());
            args.push(self.files.write(&format!("{}.json", &option[2..]), *content));
        }
        let args: Vec<&str> = args.iter().map(String::as_str).chain(flags.iter().copied()).collect();
        madako(&args).await
    }
}

/// Serials with the beginnings of their reasons.
fn refused(answer: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let name = |value: &Value| text(value).split(':').next().unwrap().to_owned();
    let refused = answer["refused"].as_array().unwrap();
    refused.iter().map(|refusal| (text(&refusal["serial"]), name(&refusal["reason"]))).collect()
}

#[tokio::test]
async fn each_report_is_added_or_refused_with_the_first_reason() {
    let case = Case { files: Files::new() };
    let mut second = machine(9, 5, "UNHEALTHY", 60.0);
    second["spec"]["ipv4"] = json!(["10.0.0.1"]);
    let machines = [
        machine(0, 1, "UNREACHABLE", 9000.0),
        machine(1, 2, "UNHEALTHY", 50_000.0),
        second,
        machine(2, 2, "UNREACHABLE", 9000.0),
        machine(3, 2, "UNREACHABLE", 60.0),
        machine(4, 2, "UNREACHABLE", 60.0),
        machine(5, 1, "UNREACHABLE", 9000.0),
        machine(6, 1, "HEALTHY", 9599.5),
        machine(7, 0, "UNREACHABLE", 60.0),
    ];
    let given = [
        ("--entries", ENTRIES),
        ("--reboots", REBOOTS),
        ("--nodes", r#"["10.0.0.3", "10.0.0.7"]"#),
        ("--constraints", r#"{"maximum-repair-queue-entries": 3, "wait-seconds-to-repair-rebooting": 600}"#),
    ];
    let answer = case.plan(&machines, &given, &["--hold-racks", "-o", "json"]).await.json();
    assert_eq!(
        answer["add"],
        json!([
            {"address": "10.0.0.1", "machine_type": "iDRAC", "operation": "unhealthy"},
            {"address": "10.0.0.7", "machine_type": "iDRAC", "operation": "unreachable"},
        ])
    );
    let describe = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
        pairs.iter().map(|(serial, reason)| ((*serial).to_owned(), (*reason).to_owned())).collect()
    };
    let first = [
        ("s0", "no-address"),
        ("s9", "duplicate-address"),
        ("s2", "has-entry"),
        ("s3", "rebooting"),
        ("s4", "out-of-cluster"),
        ("s5", "rack-held"),
        ("s6", "rack-held"),
    ];
    assert_eq!(refused(&answer), describe(&first));
    assert_eq!(answer["refused"][0]["address"], "");
    assert_eq!(answer["refused"][1]["address"], "10.0.0.1");
    // Without the flag racks are not held; four machines exceed the two entries that are left.
    let open = case.plan(&machines, &given, &["-o", "json"]).await.json();
    assert_eq!(open["add"], json!([]));
    let too_many = [("s5", "too-many"), ("s6", "too-many"), ("s7", "too-many")];
    assert_eq!(
        refused(&open),
        describe(&[&[first[0], ("s1", "too-many")], &first[1..5], &too_many[..]].concat())
    );

    let table = case.plan(&machines, &given, &["--hold-racks"]).await.calm();
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines[0], "ADD       MACHINE TYPE  OPERATION");
    assert_eq!(lines[2], "10.0.0.7  iDRAC         unreachable");
    assert_eq!(lines[4], "REFUSED   SERIAL  REASON");
    assert!(table.contains("10.0.0.5  s5      rack-held: 3 machines with rack 1 failed"), "{table}");
}

#[tokio::test]
async fn by_default_no_report_is_added_and_null_is_empty() {
    let case = Case { files: Files::new() };
    let machines = [machine(1, 2, "UNHEALTHY", 5.0)];
    let answer = case.plan(&machines, &[], &["-o", "json"]).await;
    assert_eq!((answer.code, refused(&answer.json())), (0, vec![("s1".to_owned(), "too-many".to_owned())]));
    let nulls = ["--entries", "--reboots", "--nodes", "--constraints"].map(|option| (option, "null\n"));
    assert_eq!(case.plan(&machines, &nulls, &["-o", "json"]).await.json(), answer.json());
    let answer = madako_fed(&["auto-repair", "plan", "--machines", "-", "-o", "json"], b"null").await;
    assert_eq!(answer.json(), json!({"add": [], "refused": []}));
    let response = br#"{"data": {"searchMachines": null}}"#;
    let answer = madako_fed(&["auto-repair", "plan", "--machines", "-"], response).await;
    assert_eq!(answer.calm(), "No machine is reported.\n");
}

#[tokio::test]
async fn unreadable_input_is_reported_with_its_place() {
    let case = Case { files: Files::new() };
    let machines = [machine(1, 2, "UNHEALTHY", 5.0)];
    for (option, content, part) in [
        ("--entries", r#"[{"index": "0"}, {"index": 5}, {"status": 7}]"#, "\n  [1]: got index: "),
        ("--entries", "{}", "expected a list of repair queue entries in JSON"),
        ("--reboots", "[[]]", "[0]: got "),
        ("--nodes", "[1]", "[0]: got "),
        ("--nodes", "", "expected a list of node addresses"),
        ("--constraints", r#"{"maximum-repair-queue-entry": 3}"#, "such as \"maximum-repair-queue-entries\""),
    ] {
        let message = case.plan(&machines, &[(option, content)], &[]).await.refused(2);
        assert!(message.contains(part), "{option} {content}: {part:?} is not in {message}");
        assert!(message.contains(&format!("{}.json", &option[2..])), "{message}");
    }
    let twice = ["auto-repair", "plan", "--machines", "-", "--nodes", "-"];
    assert!(madako(&twice).await.refused(2).contains("only one of"));
    assert_eq!(madako(&["auto-repair", "plan"]).await.code, 2);
}

#[tokio::test]
async fn racks_are_held_by_the_configured_settings() {
    let case = Case { files: Files::new() };
    let machines = [
        machine(1, 1, "UNHEALTHY", 50_000.0),
        machine(2, 1, "UNHEALTHY", 51_000.0),
        machine(3, 2, "UNHEALTHY", 50_000.0),
    ];
    let open = [("--constraints", r#"{"maximum-repair-queue-entries": 9}"#)];
    let held = async |config: Option<&str>, flags: &[&str]| {
        let file = config.map(|text| case.files.write("config.yml", text));
        let config = file.as_deref().map(|file| ["--config", file]);
        let flags: Vec<&str> = flags.iter().copied().chain(config.into_iter().flatten()).collect();
        let answer = case.plan(&machines, &open, &[&flags[..], &["-o", "json"]].concat()).await.json();
        refused(&answer).into_iter().map(|(serial, _)| serial).collect::<Vec<_>>()
    };
    let two = "repair: {hold: {count: 2, within: 20m}}";
    let flag = &["--hold-racks"][..];
    assert_eq!(held(None, flag).await, Vec::<String>::new(), "three within ten minutes by default");
    assert_eq!(held(Some(two), flag).await, ["s1", "s2"]);
    assert_eq!(held(Some(two), &[]).await, Vec::<String>::new(), "racks are held only with the flag");
    // The service's configuration disables holds; the flag enables them here all the same.
    let off = "repair: {hold: {enabled: false, count: 2, within: 20m}}";
    assert_eq!(held(Some(off), flag).await, ["s1", "s2"]);
    let label = "repair: {hold: {label: feed, count: 2, within: 20m}}";
    assert_eq!(held(Some(label), flag).await, Vec::<String>::new(), "none of them has that label");
}
