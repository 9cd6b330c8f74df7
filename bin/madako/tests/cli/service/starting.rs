//! The start of `madako serve`: messages to systemd, the line of the log, and a simulated data center.

use std::collections::BTreeSet;

use rustix::process::Signal;
use serde_json::json;
use tokio::net::UnixDatagram;
use tokio::process::Child;
use tokio::time::timeout;

use super::stage::{eventually, lines, signal};
use crate::program::{Answer, Files, PATIENCE, command, free_port, madako};
use crate::terminal::Terminal;

/// A configuration with an embedded store of its own.
fn config(files: &Files) -> String {
    let data = files.path("data");
    files
        .write("config.yml", format!("embedded: {{data-dir: {data}, listen: '127.0.0.1:{}'}}\n", free_port()))
}

fn serve(files: &Files, config: &str, more: &[&str]) -> tokio::process::Command {
    let log = files.path("log");
    let args =
        ["serve", "--http", "127.0.0.1:0", "--config", config, "--logfile", &log, "--logformat", "json"];
    command(&[&args[..], more].concat())
}

async fn ended(mut child: Child) {
    signal(&child, Signal::TERM);
    let status = timeout(PATIENCE, child.wait()).await.expect("it ends").unwrap();
    assert!(status.success(), "{status}");
}

#[tokio::test]
async fn systemd_is_notified_of_the_start_the_end_and_the_watchdog() {
    let files = Files::new();
    let path = files.path("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    let config = config(&files);
    let mut serve = serve(&files, &config, &[]);
    let child = serve.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "200000").spawn().unwrap();
    let next = async || {
        let mut buffer = [0; 64];
        let count = timeout(PATIENCE, socket.recv(&mut buffer)).await.expect("a message").unwrap();
        String::from_utf8(buffer[..count].to_vec()).unwrap()
    };
    assert_eq!(next().await, "READY=1");
    for _ in 0..3 {
        assert_eq!(next().await, "WATCHDOG=1");
    }
    signal(&child, Signal::TERM);
    while next().await != "STOPPING=1" {}
    ended_by_itself(child).await;
}

async fn ended_by_itself(mut child: Child) {
    let status = timeout(PATIENCE, child.wait()).await.expect("it ends").unwrap();
    assert!(status.success(), "{status}");
}

#[tokio::test]
async fn the_start_names_the_store_its_directory_the_listeners_the_registry_and_what_is_off() {
    let files = Files::new();
    let config = config(&files);
    let child = serve(&files, &config, &[]).spawn().unwrap();
    let log = files.path("log");
    let line = eventually("the service starts", async || {
        let exists = std::path::Path::new(&log).exists();
        exists.then(|| lines(&log))?.into_iter().find(|line| line["message"] == "the service started")
    })
    .await;
    assert!(line["store"].as_str().unwrap().starts_with("embedded, serves 127.0.0.1:"), "{line}");
    assert_eq!(
        (&line["data_dir"], &line["version"], &line["prefix"]),
        (&json!(files.path("data")), &json!(env!("CARGO_PKG_VERSION")), &json!("/cke/")),
        "{line}"
    );
    assert_eq!(line["registry"], "none: madako sabakan set-url stores its URL", "{line}");
    assert_eq!(line["off"], "operations on nodes,drains and taints (no kubeconfig),placement", "{line}");
    ended(child).await;
}

/// The commands that show something of a running system, and their exit codes.
const SHOWN: [(&[&str], i32); 22] = [
    (&["status"], 0),
    (&["doctor"], 0),
    (&["plan"], 0),
    (&["what-if", "--lose", "rack=0"], 0),
    (&["rehearse", "--for", "10m"], 0),
    (&["machine", "list"], 0),
    (&["machine", "show", "NODE"], 0),
    (&["cluster", "get", "-o", "table"], 0),
    (&["constraints", "show", "-o", "table"], 1),
    (&["history", "-o", "table"], 0),
    (&["repair-queue", "list", "-o", "table"], 0),
    (&["repair-queue", "explain"], 0),
    (&["reboot-queue", "list", "-o", "table"], 0),
    (&["reboot-queue", "explain"], 0),
    (&["resource", "list", "-o", "table"], 0),
    // No node has a component of Kubernetes, and operations on nodes are off.
    (&["resource", "status"], 1),
    (&["kube", "status"], 1),
    (&["ops"], 1),
    (&["ops", "plan"], 0),
    (&["node", "list"], 1),
    (&["images", "list"], 0),
    (&["leader", "-o", "table"], 0),
];

/// Every line of a result fits a terminal of 80 columns. The terminal wraps messages, which are sentences.
async fn check_widths(config: &str, node: &str) {
    for (words, expected) in SHOWN {
        let words: Vec<&str> = words.iter().map(|word| if *word == "NODE" { node } else { word }).collect();
        let (code, written) =
            Terminal::start(&[&words[..], &["--config", config]].concat(), 80, 24).end().await;
        assert_eq!(code, expected, "{words:?}: {written}");
        if words[0] == "rehearse" {
            assert!(
                written.contains("] rehearsed: ") && written.contains(" a second"),
                "no bar in\n{written}"
            );
        }
        for line in written.lines().filter(|line| !line.starts_with("madako: ")) {
            assert!(line.chars().count() <= 80, "{words:?}: {line:?} in\n{written}");
        }
    }
}

/// A repair and a reboot of a worker run to their end on the simulated machines.
async fn check_repair_and_reboot(config: &str, files: &Files) {
    let run = async |args: &[&str]| -> Answer { madako(&[args, &["--config", config]].concat()).await };
    let healthy = async |part: &str| -> String {
        let args = ["machine", "list", "--part", part, "--state", "HEALTHY", "-o", "json"];
        let machines = run(&args).await.json();
        // The last one: the checks of widths use the first node.
        machines.as_array().unwrap().last().unwrap()["address"].as_str().unwrap().to_owned()
    };
    let repaired = healthy("worker").await;
    run(&["repair-queue", "add", "unhealthy", "IPMI-2.0", &repaired]).await.calm();
    eventually("the repair ends", async || {
        let entries = run(&["repair-queue", "list", "-o", "json"]).await.json();
        let entry = entries.as_array()?.iter().find(|entry| entry["address"] == *repaired)?;
        ["succeeded", "failed"].contains(&entry["status"].as_str()?).then_some(())
    })
    .await;
    run(&["repair-queue", "delete-finished"]).await.calm();
    let nodes = files.write("nodes.txt", healthy("worker").await);
    run(&["reboot-queue", "add", &nodes]).await.calm();
    eventually("the node has rebooted", async || {
        let done = run(&["history", "-n", "0", "-o", "json"]).await;
        let records = done.json();
        let is_reboot = |record: &serde_json::Value| {
            record["operation"] == "reboot-reboot" && record["status"] == "completed"
        };
        let is_done = records.as_array()?.iter().any(is_reboot);
        let queue = run(&["reboot-queue", "list", "-o", "json"]).await.json();
        (is_done && queue.as_array()?.is_empty()).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_simulated_data_center_leads_to_a_cluster_and_replaces_no_registry() {
    let files = Files::new();
    let config = config(&files);
    let registry = format!("127.0.0.1:{}", free_port());
    let flag = format!("--simulated={registry}");
    let run = async |args: &[&str]| -> Answer { madako(&[args, &["--config", &config]].concat()).await };
    let child = serve(&files, &config, &[&flag, "--interval", "1s"]).spawn().unwrap();
    let template =
        files.write("template.yml", run(&["template", "example", "--for", "simulated"]).await.calm());
    let url = eventually("the registry is stored", async || {
        let answer = run(&["sabakan", "get-url"]).await;
        (answer.code == 0).then_some(answer.out)
    })
    .await;
    assert_eq!(url, format!("http://{registry}/graphql\n"));
    run(&["sabakan", "set-template", &template]).await.calm();
    let cluster = eventually("a cluster is committed", async || {
        let answer = run(&["cluster", "get", "-o", "json"]).await;
        (answer.code == 0).then(|| answer.json())
    })
    .await;
    let node = cluster["nodes"][0]["address"].as_str().unwrap();
    // The template has a node for each role, so that no replaced machine blocks the plans.
    let machines = run(&["machine", "list", "--all", "-o", "json"]).await.json();
    let roles: BTreeSet<&str> =
        machines.as_array().unwrap().iter().filter_map(|machine| machine["role"].as_str()).collect();
    assert_eq!(roles, BTreeSet::from(["boot", "compute", "storage"]));
    check_widths(&config, node).await;
    check_repair_and_reboot(&config, &files).await;
    ended(child).await;

    // The same registry again is used; another one is not replaced.
    let other = format!("--simulated=127.0.0.1:{}", free_port());
    let refused = serve(&files, &config, &[&other]).output().await.unwrap();
    let message = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(2), "{message}");
    assert!(message.contains(&format!("would replace the registry http://{registry}/graphql")), "{message}");
    let external = files.write("external.yml", "endpoints: ['http://127.0.0.1:1']\n");
    let message = madako(&["serve", "--simulated", "--config", &external]).await.refused_after_notes(2);
    assert!(message.contains("--simulated needs the embedded store"), "{message}");
}
