//! Tests of `madako ops plan` on files, which opens no connection, and of `madako ops` on the page of a leader.

use serde_json::{Value, json};

use crate::krakectl::{Server, json_said};
use crate::program::{Answer, Etcd, Files, madako, madako_fed};

const CLUSTER: &str =
    "name: test\nnodes:\n- {address: 10.0.0.11, control_plane: true}\n- {address: 10.0.0.21}\n";

/// Empty nodes that answer, as a program may write them.
fn status() -> Value {
    let node = json!({"reachable": true, "containers": null, "etcd_data": false, "etcd_mark": false});
    json!({
        "config_version": "2",
        "nodes": {"10.0.0.11": node, "10.0.0.21": node},
        "etcd": null,
        "bootstrap": null,
    })
}

async fn plan(status: &str, more: &[&str]) -> Answer {
    let files = Files::new();
    let (cluster, status) = (files.write("cluster.yml", CLUSTER), files.write("status.json", status));
    madako(&[&["ops", "plan", "--cluster", &cluster, "--status", &status], more].concat()).await
}

#[tokio::test]
async fn a_plan_has_the_form_that_is_promised() {
    let answer: Value =
        serde_json::from_str(&plan(&status().to_string(), &["-o", "json"]).await.calm()).unwrap();
    let commands = |container: &str| {
        json!([
            {"name": "image-pull", "target": "ghcr.io/cybozu-go/cke-tools:1.30.0"},
            {"name": "run-container", "target": container},
        ])
    };
    assert_eq!(
        answer,
        json!({
            "phase": "rivers",
            "operations": [
                {"name": "rivers-bootstrap", "targets": ["10.0.0.11", "10.0.0.21"], "commands": commands("rivers")},
                {"name": "etcd-rivers-bootstrap", "targets": ["10.0.0.11"], "commands": commands("etcd-rivers")},
            ],
            "held": [],
        })
    );
    let one = plan(&status().to_string(), &["--max-concurrent-updates", "1", "-o", "json"]).await;
    assert_eq!(one.json()["operations"][0]["targets"], json!(["10.0.0.11"]));
    let yaml = plan(&status().to_string(), &["-o", "yaml"]).await.calm();
    assert_eq!(serde_saphyr::from_str::<Value>(&yaml).unwrap(), answer);
}

#[tokio::test]
async fn a_plan_on_files_has_the_images_of_a_named_configuration() {
    let files = Files::new();
    let config = files.write("config.yml", "images: {tools: 'tools:2'}\n");
    let answer = plan(&status().to_string(), &["-o", "json", "--config", &config]).await.json();
    let pull = json!({"name": "image-pull", "target": "tools:2"});
    assert_eq!(answer["operations"][0]["commands"][0], pull, "{answer}");
    let message = plan(&status().to_string(), &["--config", "/gone.yml"]).await.refused(2);
    assert!(message.contains("/gone.yml"), "{message}");
}

#[tokio::test]
async fn held_operations_are_shown_with_their_reasons() {
    let mut status = status();
    status["nodes"]["10.0.0.21"]["reachable"] = json!(false);
    status["config_version"] = json!("1");
    let held = plan(&status.to_string(), &["-o", "json"]).await.json();
    assert_eq!((&held["phase"], &held["held"]), (&json!("upgrade"), &json!([])));
    status["nodes"]["10.0.0.11"]["reachable"] = json!(false);
    let held = plan(&status.to_string(), &["-o", "json"]).await.json();
    assert_eq!(held["phase"], "upgrade-aborted");
    assert_eq!(held["held"], json!([{"what": "upgrade", "reason": "unreachable", "targets": ["10.0.0.11"]}]));

    status["config_version"] = json!("2");
    status["nodes"]["10.0.0.11"] =
        json!({"reachable": true, "containers": {"etcd-rivers": {"foreign": true}}});
    let table = plan(&status.to_string(), &[]).await.calm();
    for line in [
        "Phase  rivers\n",
        "OPERATION         TARGETS    COMMAND        OF\n",
        "rivers-bootstrap  10.0.0.11  image-pull     ghcr.io/cybozu-go/cke-tools:1.30.0\n",
        "                             run-container  rivers\n",
        "HELD                   REASON             TARGETS    WHY\n",
        "rivers-bootstrap       unreachable        10.0.0.21  these nodes do not answer",
        "etcd-rivers-bootstrap  foreign-container  10.0.0.11  another program made the container etcd-rivers",
    ] {
        assert!(table.contains(line), "{line:?} is not in\n{table}");
    }
}

#[tokio::test]
async fn wrong_files_are_refused_with_the_field_and_the_expected_value() {
    let refused = async |change: fn(&mut Value)| {
        let mut status = status();
        change(&mut status);
        plan(&status.to_string(), &["-o", "json"]).await.refused(2)
    };
    for (error, part) in [
        (
            refused(|status| status["config_version"] = json!(2)).await,
            "config_version: got the number 2, expected \"1\"",
        ),
        (refused(|status| status["node"] = json!({})).await, "node: got an unknown field"),
        (
            refused(|status| status["nodes"] = json!([])).await,
            "nodes: got a list, expected an object of objects",
        ),
        (
            refused(|status| status["etcd"] = json!({"healthy": true, "members": [{"id": 1}]})).await,
            "etcd.members[0].id: got the number 1, expected the id of a member",
        ),
        (plan("{", &[]).await.refused(2), "status of nodes is not valid"),
        (
            madako(&["ops", "plan", "--cluster", "/gone.yml", "--status", "-"]).await.refused(2),
            "/gone.yml cannot be read",
        ),
        (madako(&["ops", "plan", "--cluster", "-", "--status", "-"]).await.refused(2), "only one of"),
        (plan(&status().to_string(), &["--max-concurrent-updates", "0"]).await.refused(2), "from 1 to"),
        (madako(&["ops", "plan", "--cluster", "c.yml"]).await.refused(2), "--status"),
    ] {
        assert!(error.contains(part), "{part} is not in {error}");
    }
    let files = Files::new();
    let cluster = files.write("cluster.yml", "nodes: [{adress: 10.0.0.1}]\n");
    let error = madako_fed(&["ops", "plan", "--cluster", &cluster, "--status", "-"], b"{}").await.refused(2);
    assert!(error.contains("nodes[0].adress"), "{error}");
}

#[tokio::test]
async fn a_status_of_other_nodes_is_noted() {
    let mut status = status();
    let nodes = status["nodes"].as_object_mut().unwrap();
    let node = nodes.remove("10.0.0.21").unwrap();
    nodes.insert("10.0.0.99".to_owned(), node);
    let answer = plan(&status.to_string(), &["-o", "json"]).await;
    assert_eq!(answer.code, 0);
    assert_eq!(
        answer.err,
        "madako: warning: the cluster has no node 10.0.0.99\n\
         madako: warning: the status lacks nodes, which count as unreachable: 10.0.0.21\n"
    );
    assert_eq!(answer.json()["held"][0]["targets"], json!(["10.0.0.21"]));
}

/// The leader's page, while a member is restarted.
fn page() -> Value {
    json!({
        "phase": "etcd-maintain",
        "mode": "act",
        "nodes": {
            "10.0.0.11": {"reachable": true, "error": null, "age_seconds": 1.5},
            "10.0.0.21": {"reachable": false, "error": "10.0.0.21 is not reachable: timed out", "age_seconds": 75.2},
        },
        "running": {"record": 17, "operation": "etcd-restart", "command": "stop-container", "targets": ["10.0.0.11"]},
        "next": [{"name": "stop-etcd", "targets": ["10.0.0.31"], "commands": [{"name": "kill-containers", "target": "etcd"}]}],
        "held": [
            {"what": "rivers-restart", "reason": "unreachable", "targets": ["10.0.0.21"], "why": "these nodes do not answer"},
        ],
        "backing_off": {"10.0.0.12": 29.6},
        "later": 1,
    })
}

#[tokio::test]
async fn the_operations_of_the_leader_are_shown() {
    let Some(etcd) = Etcd::start().await else { return };
    let message = etcd.run(&["ops"]).await.refused(1);
    assert!(message.contains("no instance of Madako leads"), "{message}");

    let server = Server::answering(vec![json_said(200, &page()); 5]).await;
    etcd.put("madako/leader-url", format!("http://127.0.0.1:{}", server.port)).await;
    let table = etcd.run(&["ops"]).await.calm();
    assert_eq!(
        table,
        "\
Phase    etcd-maintain (mode act)
Nodes    1 of 2 reachable

STATE        OPERATION       TARGETS    DETAIL
running      etcd-restart    10.0.0.11  stop-container (record 17)
next         stop-etcd       10.0.0.31  kill-containers etcd
held         rivers-restart  10.0.0.21  unreachable: these nodes do not answer
unreachable  -               10.0.0.21  status 75 s old: 10.0.0.21 is not reachable: timed out
backs-off    -               10.0.0.12  for 30 s: the last command failed
"
    );
    let csv = etcd.run(&["ops", "-o", "csv", "--sort-by", "state"]).await.calm();
    assert!(csv.starts_with("state,operation,targets,detail\nbacks-off,,10.0.0.12,for 30 s: "), "{csv}");
    assert_eq!(etcd.run(&["ops", "-o", "json"]).await.json(), page(), "the page as it is");
    assert_eq!(etcd.run(&["ops", "-o", "jsonl"]).await.calm(), format!("{}\n", page()));
    let yaml = etcd.run(&["ops", "-o", "yaml"]).await.calm();
    assert_eq!(serde_saphyr::from_str::<Value>(&yaml).unwrap(), page());
    assert_eq!(server.lines(), ["GET /ops"; 5]);
    let message =
        etcd.run(&["ops", "-o", "json", "plan", "--cluster", "c", "--status", "s"]).await.refused(2);
    assert!(message.contains("after `plan`"), "{message}");
}

#[tokio::test]
async fn a_leader_without_operations_is_named_as_such() {
    let Some(etcd) = Etcd::start().await else { return };
    let idle = json!({"phase": "completed", "mode": "observe", "running": null, "next": [], "held": []});
    let undecided = json!({"phase": null, "mode": "act", "running": null, "next": [], "held": []});
    let long = "x".repeat(17 << 20);
    let answers = [
        json_said(200, &undecided),
        json_said(200, &idle),
        json_said(404, &json!({"error": "operations.mode is off"})),
        json_said(200, &json!({"phase": 1})),
        (503, "", "this instance does not lead\u{1b}[31m".to_owned()),
        (200, "", long),
    ];
    let server = Server::answering(answers).await;
    etcd.put("madako/leader-url", format!("http://127.0.0.1:{}/", server.port)).await;
    assert_eq!(etcd.run(&["ops"]).await.calm(), "Phase    not decided yet (mode act)\nRunning  nothing\n");
    assert_eq!(etcd.run(&["ops"]).await.calm(), "Phase    completed (mode observe)\nRunning  nothing\n");
    for (args, expected) in [
        (&["ops", "-o", "json"][..], "/ops: operations.mode is off"),
        (&["ops"], "/ops cannot be read: invalid type"),
        (&["ops"], "with status 503: this instance does not lead\u{fffd}[31m"),
        (&["ops"], "16777216"),
        // The server has ended.
        (&["ops"], "cannot read a page of the leader"),
    ] {
        let message = etcd.run(args).await.refused(1);
        assert!(message.contains(expected), "{expected} is not in {message}");
    }
}

/// The state in which everything runs, as CKE starts it.
fn calm() -> Value {
    let [tools, etcd] = ["ghcr.io/cybozu-go/cke-tools:1.30.0", "ghcr.io/cybozu/etcd:3.5.15.1"];
    let running = |image: &str, builtin: Value| json!({"running": true, "image": image, "builtin": builtin});
    let rivers = |upstream: u16, listen: u16| {
        let upstreams = format!("--upstreams=10.0.0.11:{upstream}");
        running(tools, json!({"extra_args": ["rivers", upstreams, format!("--listen=127.0.0.1:{listen}")]}))
    };
    let arguments = "--name=10.0.0.11 --listen-peer-urls=https://0.0.0.0:2380 --listen-client-urls=https://0.0.0.0:2379 \
                     --advertise-client-urls=https://10.0.0.11:2379 --cert-file=/etc/etcd/pki/server.crt \
                     --key-file=/etc/etcd/pki/server.key --client-cert-auth=true \
                     --trusted-ca-file=/etc/etcd/pki/ca-client.crt --peer-cert-file=/etc/etcd/pki/peer.crt \
                     --peer-key-file=/etc/etcd/pki/peer.key --peer-client-cert-auth=true \
                     --peer-trusted-ca-file=/etc/etcd/pki/ca-peer.crt --enable-pprof=true \
                     --auto-compaction-mode=periodic --auto-compaction-retention=5m --experimental-initial-corrupt-check \
                     --initial-cluster-state=new";
    let arguments: Vec<&str> = arguments.split(' ').collect();
    let pki = json!({"source": "/etc/etcd/pki", "destination": "/etc/etcd/pki", "read_only": true});
    let member = running(etcd, json!({"extra_args": arguments, "extra_binds": [pki]}));
    json!({
        "config_version": "2",
        "nodes": {
            "10.0.0.11": {
                "reachable": true, "etcd_data": true, "etcd_mark": true,
                "containers": {"rivers": rivers(6443, 16443), "etcd-rivers": rivers(2379, 12379), "etcd": member},
            },
            "10.0.0.21": {"reachable": true, "containers": {"rivers": rivers(6443, 16443)}},
        },
        "etcd": {"healthy": true, "members": [
            {"id": "1", "name": "10.0.0.11", "peer_urls": ["https://10.0.0.11:2380"], "learner": false, "in_sync": true},
        ]},
        "bootstrap": {"status": "completed", "targets": ["10.0.0.11"]},
    })
}

async fn diff(status: &Value, more: &[&str]) -> Answer {
    let files = Files::new();
    let cluster = files.write("cluster.yml", CLUSTER);
    let status = files.write("status.json", status.to_string());
    madako(&[&["ops", "diff", "--cluster", &cluster, "--status", &status], more].concat()).await
}

#[tokio::test]
async fn a_fleet_as_wanted_has_no_difference_and_no_operation() {
    assert_eq!(diff(&calm(), &[]).await.calm(), "nothing\n");
    assert_eq!(diff(&calm(), &["-o", "json"]).await.json(), json!({"differences": []}));
    let planned = plan(&calm().to_string(), &["-o", "json"]).await.json();
    assert_eq!(planned, json!({"phase": "completed", "operations": [], "held": []}));
}

#[tokio::test]
async fn each_difference_is_shown_with_its_reason_and_exit_code_1() {
    let mut status = calm();
    status["nodes"]["10.0.0.21"]["containers"]["rivers"]["image"] = json!("tools:0");
    status["nodes"]["10.0.0.11"]["etcd_mark"] = json!(false);
    let answer = diff(&status, &[]).await;
    assert_eq!((answer.code, answer.err.as_str()), (1, ""));
    assert_eq!(
        answer.out,
        "\
NODE       KIND       NAME               WHY
10.0.0.21  container  rivers             it restarts: the image is tools:0, and ghcr.io/cybozu-go/cke-tools:1.30.0 is wanted
10.0.0.11  volume     etcd-added-member  it is created: the member is added
"
    );
    let answer = diff(&status, &["-o", "json"]).await;
    assert_eq!(answer.code, 1);
    assert_eq!(
        answer.json()["differences"][1],
        json!({"node": "10.0.0.11", "kind": "volume", "name": "etcd-added-member",
               "why": "it is created: the member is added"})
    );
    status["nodes"]["10.0.0.21"]["reachable"] = json!(false);
    let answer = diff(&status, &[]).await;
    assert!(
        answer.out.contains("10.0.0.21  node    10.0.0.21          it does not answer"),
        "{}",
        answer.out
    );
}

#[tokio::test]
async fn an_unreadable_state_has_no_output() {
    let message = diff(&json!({"config_version": 2}), &[]).await.refused(2);
    assert!(message.contains("config_version: got the number 2"), "{message}");
    let message = madako(&["ops", "diff", "--cluster", "c.yml"]).await.refused(2);
    assert!(message.contains("--status"), "{message}");
    let Some(etcd) = Etcd::start().await else { return };
    let config = etcd.with_operations();
    let message = madako(&["ops", "diff", "--config", &config]).await.refused(1);
    assert!(message.contains("no cluster configuration is stored"), "{message}");
}
