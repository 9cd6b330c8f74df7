//! Tests of `madako doctor`: each check passes, or names the fault and the command that repairs it.

use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpListener;

use crate::program::{Etcd, Files, free_port, madako};
use crate::running::registry;
use crate::service::embedded::site_on_embedded;
use crate::service::site::{MACHINES, QUICK, leader_after};

/// The result and the text of each check of a name.
fn found(shown: &Value, name: &str) -> Vec<(String, String)> {
    let checks = shown.as_array().unwrap().iter().filter(|check| check["check"] == name);
    checks.map(|check| (check["result"].as_str().unwrap().to_owned(), check.to_string())).collect()
}

#[tokio::test]
async fn doctor_finds_no_fault_in_a_running_service() {
    let site = site_on_embedded(4, &MACHINES).await;
    let service = site.serve("60s", QUICK).await;
    site.equip().await;
    site.first_cluster().await;
    leader_after(&[&service], 0).await;
    let answer = site.run(&["doctor", "-o", "json"]).await;
    assert_eq!((answer.code, answer.err.as_str()), (0, ""), "{answer:?}");
    let shown = answer.json();
    for name in ["configuration", "data", "store", "leader", "clock", "registry", "template"] {
        let checks = found(&shown, name);
        assert_eq!(checks.len(), 1, "{name}: {shown}");
        assert!(["good", "notice"].contains(&&*checks[0].0), "{name}: {shown}");
    }
    assert_eq!(found(&shown, "API server")[0].0, "off");
    let text = site.run(&["doctor"]).await.calm();
    assert!(text.lines().any(|line| line.starts_with("good    store          127.")), "{text}");
}

#[tokio::test]
async fn each_fault_has_its_remedy() {
    let files = Files::new();
    let file = files.write("config.yml", "prefix: [3]\n");
    let answer = madako(&["--config", &file, "doctor"]).await;
    assert_eq!(answer.code, 5, "{answer:?}");
    assert!(answer.out.starts_with("WRONG   configuration  "), "{}", answer.out);
    assert!(
        answer.out.contains(&format!("-> correct the file; madako config check {file}")),
        "{}",
        answer.out
    );

    let missing = files.path("missing.yml");
    let answer = madako(&["--config", &missing, "doctor"]).await;
    assert_eq!(answer.code, 5, "{answer:?}");
    assert!(answer.out.contains(&format!("madako config example > {missing} writes one")), "{}", answer.out);

    let file = files
        .write("config.yml", format!("endpoints: [\"http://127.0.0.1:{}\"]\ntimeout: 300ms\n", free_port()));
    let answer = madako(&["--config", &file, "doctor", "-o", "json"]).await;
    assert_eq!(answer.code, 5, "{answer:?}");
    let (result, text) = &found(&answer.json(), "store")[0];
    assert!(result == "wrong" && text.contains("check endpoints"), "{text}");

    let Some(etcd) = Etcd::start().await else { return };
    let (registry, url) = registry().await;
    etcd.run(&["sabakan", "set-url", &url]).await.calm();
    registry.faults().set(madako_datacenter_sim::Fault::Status(500));
    etcd.put("sabakan/template", "{").await;
    etcd.put("ca/server", "no certificate").await;
    etcd.put(
        "vault",
        format!(r#"{{"endpoint":"http://127.0.0.1:{}","role-id":"r","secret-id":"s"}}"#, free_port()),
    )
    .await;
    let answer = etcd.run(&["doctor", "-o", "json"]).await;
    assert_eq!(answer.code, 5, "{answer:?}");
    let shown = answer.json();
    for (name, part) in [
        ("leader", "start madako serve"),
        ("registry", "status 500"),
        ("Vault", "unseal or start Vault"),
        ("stored value", "store a valid value of sabakan/template"),
        (
            "certificate",
            "authority server: expected exactly one CA certificate in PEM: the text has none, or several",
        ),
    ] {
        let checks = found(&shown, name);
        assert!(
            checks.iter().any(|(result, text)| result == "wrong" && text.contains(part)),
            "{name}: {shown}"
        );
    }
}

/// A process that answers at `/version`, has these metrics or fails at their page, and fails at every other page. Returns its
/// URL.
async fn start_process(metrics: Option<&'static str>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut lines = BufReader::new(&mut stream).lines();
            let request = lines.next_line().await.unwrap().unwrap_or_default();
            while lines.next_line().await.unwrap().is_some_and(|line| !line.is_empty()) {}
            let (status, body) = match (request.split(' ').nth(1), metrics) {
                (Some("/version"), _) => ("200 OK", r#"{"version":"1"}"#),
                (Some("/metrics"), Some(metrics)) => ("200 OK", metrics),
                _ => ("500 Internal Server Error", "out of order"),
            };
            let head = format!("content-length: {}\r\nconnection: close", body.len());
            stream.write_all(format!("HTTP/1.1 {status}\r\n{head}\r\n\r\n{body}").as_bytes()).await.unwrap();
        }
    });
    url
}

#[tokio::test]
async fn a_leader_without_metrics_is_wrong() {
    let Some(etcd) = Etcd::start().await else { return };
    etcd.put("leader//1", "host-1").await;
    etcd.put("madako/leader-url", start_process(None).await).await;
    let answer = etcd.run(&["doctor", "-o", "json"]).await;
    assert_eq!(answer.code, 5, "{answer:?}");
    let checks = found(&answer.json(), "leader");
    let results: Vec<&str> = checks.iter().map(|(result, _)| result.as_str()).collect();
    assert_eq!(results, ["notice", "wrong"], "{checks:?}");
    assert!(checks[1].1.contains("/metrics with status 500: out of order"), "{}", checks[1].1);
}

#[tokio::test]
async fn nodes_that_the_leader_does_not_reach_are_wrong() {
    let Some(etcd) = Etcd::start().await else { return };
    etcd.put("leader//1", "host-1").await;
    let metrics = "madako_nodes{state=\"reachable\"} 5\nmadako_nodes{state=\"unreachable\"} 2\n";
    etcd.put("madako/leader-url", start_process(Some(metrics)).await).await;
    let off = etcd.run(&["doctor", "-o", "json"]).await;
    assert_eq!(found(&off.json(), "nodes")[0].0, "off", "{off:?}");
    let operations =
        std::fs::read_to_string(etcd.with_operations()).unwrap() + "operations: {mode: observe}\n";
    let file = etcd.file("observe.yml", operations);
    let answer = madako(&["--config", &file, "doctor", "-o", "json"]).await;
    let (result, text) = &found(&answer.json(), "nodes")[0];
    assert!(result == "wrong" && text.contains("2 of 7 are not reachable by SSH"), "{text}");
}
