//! Tests of `madako plan` and `madako what-if` on files; they open no connection.

use serde_json::{Value, json};

use crate::program::{Answer, Files, TEMPLATE, madako, madako_fed};
use crate::terminal::Terminal;

/// Racks of six machines: four of role compute, two of role storage.
fn machines(racks: u32) -> Value {
    let machine = |rack: u32, index: u32| {
        json!({
            "spec": {
                "serial": format!("s-{rack}-{index}"),
                "labels": null,
                "rack": rack,
                "indexInRack": index,
                "role": if index <= 4 { "compute" } else { "storage" },
                "ipv4": [format!("10.0.{rack}.{index}")],
                "registerDate": "2025-01-01T00:00:00Z",
                "retireDate": "2030-01-01T00:00:00Z",
                "bmc": {"bmcType": "iDRAC"},
            },
            "status": {"state": "HEALTHY", "duration": 1000.5},
        })
    };
    (0..racks).flat_map(|rack| (1..=6).map(move |index| machine(rack, index))).collect()
}

const NOW: &str = "2026-11-21T00:00:00Z";

/// Files of a data center of four racks.
struct Case {
    files: Files,
    template: String,
    machines: String,
    constraints: String,
}

impl Case {
    fn new() -> Self {
        let files = Files::new();
        Self {
            template: files.write("template.yml", TEMPLATE),
            machines: files.write("machines.json", machines(4).to_string()),
            constraints: files.write("constraints.yml", "control-plane-count: 3\nminimum-workers: 6\n"),
            files,
        }
    }

    async fn run(&self, command: &str, more: &[&str]) -> Answer {
        let given = [
            command,
            "--template",
            &self.template,
            "--machines",
            &self.machines,
            "--constraints",
            &self.constraints,
            "--now",
            NOW,
        ];
        madako(&[&given, more].concat()).await
    }

    /// The file of the first plan's cluster.
    async fn planned(&self) -> String {
        let plan = self.run("plan", &["-o", "json"]).await;
        assert_eq!(plan.code, 0, "{plan:?}");
        self.files.write("current.json", plan.json()["cluster"].to_string())
    }
}

#[tokio::test]
async fn the_first_plan_has_the_form_that_is_promised() {
    let case = Case::new();
    let answer = case.run("plan", &["-o", "json"]).await;
    assert_eq!((answer.code, answer.err.as_str()), (0, ""));
    let plan = answer.json();
    let keys: Vec<&String> = plan.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["action", "changes", "cluster", "reasons"]);
    assert_eq!(plan["action"], "initialize");
    assert_eq!(plan["changes"][0], json!({"change": "add", "address": "10.0.0.1", "part": "control-plane"}));
    assert_eq!(plan["changes"].as_array().unwrap().len(), 9);
    assert_eq!(plan["cluster"]["nodes"][0]["labels"]["cke.cybozu.com/role"], "compute");
    let reasons = plan["reasons"].as_array().unwrap();
    assert!(reasons.iter().any(|reason| reason["outcome"] == "fired" && reason["score"].is_i64()));
    let rules: std::collections::BTreeSet<&str> =
        reasons.iter().map(|reason| reason["rule"].as_str().unwrap()).collect();
    assert_eq!(rules.len(), 9, "each rule says why: {rules:?}");

    let yaml: Value = serde_saphyr::from_str(&case.run("plan", &["-o", "yaml"]).await.calm()).unwrap();
    assert_eq!(yaml, plan);
    let table = case.run("plan", &[]).await.calm();
    for part in [
        "Action   initialize\n",
        "Cluster  3 control plane nodes, 6 workers\n",
        "add     10.0.0.1  control plane\n",
    ] {
        assert!(table.contains(part), "{part:?} is not in {table}");
    }
    assert_eq!(case.run("plan", &["-o", "table"]).await.calm(), table);
}

#[tokio::test]
async fn a_command_with_nothing_to_do_succeeds() {
    let case = Case::new();
    let current = case.planned().await;
    let answer = case.run("plan", &["--current", &current, "-o", "json"]).await;
    assert_eq!(answer.code, 0, "{answer:?}");
    let plan = answer.json();
    assert_eq!(
        (&plan["action"], &plan["cluster"], &plan["changes"]),
        (&Value::Null, &Value::Null, &json!([]))
    );
    assert!(case.run("plan", &["--current", &current]).await.calm().contains("Action   nothing to do\n"));
}

#[tokio::test]
async fn each_input_file_changes_the_plan() {
    let case = Case::new();
    let current = case.planned().await;
    let changed = case.run("plan", &["--current", &current, "--template-changed", "-o", "json"]).await;
    assert_eq!(changed.json()["action"], "regenerate");

    let taints = case.files.write("taints.yml", "10.0.0.1:\n- {key: broken, effect: NoSchedule}\n");
    let tainted = case.run("plan", &["--current", &current, "--node-taints", &taints, "-o", "json"]).await;
    assert_eq!(tainted.json()["action"], "replace-control-plane", "{tainted:?}");

    let mut list = machines(4);
    list[1]["status"] = json!({"state": "RETIRED", "duration": 100.0});
    let retired = case.files.write("retired.json", json!({"data": {"searchMachines": list}}).to_string());
    // Five healthy workers suffice here; otherwise the rule that adds workers would come first.
    let fewer = case.files.write("fewer.yml", "control-plane-count: 3\nminimum-workers: 5\n");
    let with = |wait: &'static str| {
        [
            ["--current", current.as_str()].as_slice(),
            &["--machines", retired.as_str(), "--constraints", fewer.as_str()],
            &["--retire-wait", wait, "-o", "json"],
        ]
        .concat()
    };
    assert_eq!(case.run("plan", &with("300")).await.json()["action"], "taint-nodes");
    assert_eq!(case.run("plan", &with("99.5")).await.json()["action"], "decrease-workers");

    // By default CKE's constraints hold, and the time is now.
    let args = ["plan", "--template", &case.template, "--machines", &case.machines, "-o", "json"];
    assert_eq!(madako(&args).await.json()["cluster"]["nodes"].as_array().unwrap().len(), 2);
    // Old machines score less: in 2031 all are past their retirement date.
    let score = async |now: &str| {
        let plan = case.run("plan", &["--now", now, "-o", "json"]).await.json();
        plan["reasons"].as_array().unwrap().iter().find_map(|reason| reason["score"].as_i64()).unwrap()
    };
    assert_eq!((score("2026-11-21T09:00:00+09:00").await, score("2031-01-01T00:00:00Z").await), (1003, 999));
}

#[tokio::test]
async fn failed_plan_exits_with_3_and_prints_the_reason() {
    let case = Case::new();
    let constraints = case.files.write("much.yml", "control-plane-count: 30\n");
    let answer = case.run("plan", &["--constraints", &constraints, "-o", "json"]).await;
    assert_eq!((answer.code, answer.err.as_str()), (3, ""));
    let error = answer.json();
    assert_eq!(error["error"]["kind"], "not-available");
    assert!(error["error"]["message"].as_str().unwrap().contains("16 of 30"), "{error}");
    assert_eq!(error.as_object().unwrap().len(), 1);

    let table = case.run("plan", &["--constraints", &constraints]).await;
    assert_eq!(table.code, 3);
    assert!(table.out.starts_with("No plan can be made (not-available): "), "{}", table.out);
    for command in ["plan", "what-if"] {
        let args = [
            &[command, "--template", &case.template, "--machines", &case.machines][..],
            &["--constraints", &constraints, "--now", NOW],
        ]
        .concat();
        let (code, written) = Terminal::start(&args, 80, 24).end().await;
        assert_eq!(code, 3, "{written}");
        assert!(written.lines().all(|line| line.chars().count() <= 80), "{written}");
        let words = written.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains("o plan can be made (not-available): no healthy machine"), "{written}");
    }

    let current = case.planned().await;
    let none = case.files.write("none.json", "[]");
    let lost = case.run("plan", &["--machines", &none, "--current", &current, "-o", "json"]).await;
    assert_eq!((lost.code, lost.json()["error"]["kind"].as_str()), (3, Some("too-many-non-existent")));
}

#[tokio::test]
async fn what_if_command_shows_every_plan_until_the_cluster_is_stable() {
    let case = Case::new();
    let current = case.planned().await;
    let args =
        ["--current", current.as_str(), "--lose", "rack=3", "--lose", "10.0.0.1", "--remove", "10.0.1.1"];
    let answer = case.run("what-if", &[&args, &["-o", "json"][..]].concat()).await;
    assert_eq!((answer.code, answer.err.as_str()), (0, ""));
    let shown = answer.json();
    let actions: Vec<&str> =
        shown["plans"].as_array().unwrap().iter().map(|plan| plan["action"].as_str().unwrap()).collect();
    assert_eq!(actions, ["remove-non-existent-nodes", "replace-control-plane", "increase-workers"]);
    assert_eq!(shown["end"], Value::Null);
    let plan = shown["plans"][0].as_object().unwrap();
    assert_eq!(plan.keys().collect::<Vec<_>>(), ["action", "changes", "cluster", "reasons"]);
    assert_eq!(shown.as_object().unwrap().len(), 2);
    let yaml = case.run("what-if", &[&args, &["-o", "yaml"][..]].concat()).await.calm();
    assert_eq!(serde_saphyr::from_str::<Value>(&yaml).unwrap(), shown);
    let table = case.run("what-if", &args).await.calm();
    assert!(
        table.contains("Plan 3\n") && table.ends_with("After 3 plans: nothing is left to do.\n"),
        "{table}"
    );

    let missing =
        case.run("what-if", &["--current", &current, "--remove", "role=compute", "-o", "json"]).await;
    assert_eq!((missing.code, missing.err.as_str()), (3, ""));
    assert_eq!(missing.json()["end"]["kind"], "too-many-non-existent");
    assert_eq!(missing.json()["plans"], json!([]));

    let nothing = async |form| case.run("what-if", &["--current", &current, "-o", form]).await.calm();
    assert_eq!(nothing("json").await, "{\"plans\": [], \"end\": null}\n");
    assert_eq!(nothing("yaml").await, "plans: []\nend: null\n");
    assert_eq!(nothing("table").await, "At once: nothing is left to do.\n");

    let slip =
        case.run("what-if", &["--current", &current, "--lose", "rack=7", "--remove", "10.9.9.9"]).await;
    assert!(slip.refused(2).contains("no machine in the list matches rack=7, 10.9.9.9"));
}

#[tokio::test]
async fn bad_input_exits_with_2_and_names_the_file() {
    let case = Case::new();
    let current = case.planned().await;
    let bad = |name: &str, content: &str| case.files.write(name, content);
    for (args, parts) in [
        (
            ["--template", &bad("t.yml", "name: x\nnodez: []\n")],
            &["t.yml: template is not valid", "nodez"][..],
        ),
        (
            ["--constraints", &bad("c.yml", "minimum-worker: 6\n")],
            &["c.yml: set of constraints", "such as \"minimum-workers\""],
        ),
        (
            ["--constraints", &bad("c2.yml", "minimum-workers: 6\nmaximum-workers: 5\n")],
            &["maximum-workers: got 5"],
        ),
        (["--machines", &bad("m.json", "{}")], &["m.json: list of machines", "a JSON array of machines"]),
        (["--machines", &bad("m2.json", r#"[{"spec":{"serial":"a"}}]"#)], &["m2.json", "serial a"]),
        (
            ["--current", &bad("u.yml", "name: x\nnodes: [{adress: 10.0.0.1}]\n")],
            &["u.yml: current cluster", "nodes[0].adress"],
        ),
        (["--node-taints", &bad("n.yml", "node-1: []\n")], &["n.yml: taints of nodes", "got \"node-1\""]),
        (
            ["--node-taints", &bad("n2.yml", "10.0.0.1: [{key: a, effect: NoShedule, value: v v}]\n")],
            &[
                "effect: got \"NoShedule\", expected NoSchedule, PreferNoSchedule or NoExecute",
                "value: got \"v v\"",
            ],
        ),
        (
            [
                "--machines",
                &bad("m3.json", r#"[{"spec":{"serial":"a","registerDate":"2026-01-31 12:00:00Z"}}]"#),
            ],
            &["registerDate (serial a): got", "expected an RFC 3339 time such as 2026-01-31T12:00:00Z"],
        ),
        (["--current", "/nonexistent"], &["/nonexistent cannot be read"]),
    ] {
        let message = case.run("plan", &args).await.refused(2);
        for part in parts {
            assert!(message.contains(part), "{args:?}: {part:?} is not in {message}");
        }
        assert_eq!(case.run("what-if", &args).await.code, 2);
    }
    let message = case.run("plan", &["--current", "-", "--machines", "-"]).await.refused(2);
    assert!(message.contains("only one of"), "{message}");
    let piped = std::fs::read(&current).unwrap();
    let args =
        ["plan", "--template", &case.template, "--machines", &case.machines, "--current", "-", "-o", "json"];
    assert_eq!(madako_fed(&args, &piped).await.code, 0);
}

#[tokio::test]
async fn machines_without_an_address_are_left_out_and_reported() {
    let case = Case::new();
    let mut list = machines(4);
    list[0]["spec"]["ipv4"] = Value::Null;
    let list = case.files.write("some.json", list.to_string());
    let answer = case.run("plan", &["--machines", &list, "-o", "json"]).await;
    assert_eq!(answer.code, 0);
    assert_eq!(answer.err, "madako: left out 1 machine without an IPv4 address: s-0-1\n");
    assert_eq!(answer.json()["changes"][0]["address"], "10.0.0.2");
}

#[tokio::test]
async fn taints_of_unknown_addresses_are_warned_of() {
    let case = Case::new();
    let taints = "10.0.0.1: [{key: a, effect: NoSchedule}]\n10.9.9.9: []\n10.8.8.8: []\n";
    let taints = case.files.write("taints.yml", taints);
    let answer = case.run("plan", &["--node-taints", &taints, "-o", "json"]).await;
    assert_eq!(answer.code, 0);
    assert_eq!(
        answer.err,
        "madako: warning: taints are given for 10.8.8.8, 10.9.9.9: no machine and no node of the cluster has \
         such an address\n"
    );
}

#[tokio::test]
async fn rehearsal_refuses_faults_that_it_would_skip_before_it_connects() {
    let rehearse =
        async |more: &[&str]| madako(&[&["rehearse", "--for", "10m"], more].concat()).await.refused(2);
    for fault in ["kill rack=3 at 1h", "kill rack=3 every 10m for 1m"] {
        let message = rehearse(&["--fault", "kill rack=2 at 1m", "--fault", fault]).await;
        assert!(message.contains(&format!("the fault \"{fault}\" would begin at ")), "{message}");
        assert!(message.contains("the rehearsal ends after 10m") && message.contains("--for"), "{message}");
        assert!(!message.contains("rack=2"), "{message}");
    }
    let message = rehearse(&["--scenario", "nope"]).await;
    for part in ["nope cannot be read", "the shipped scenarios are calm-day, ", "rack-power-loss"] {
        assert!(message.contains(part), "{part:?}: {message}");
    }
}
