//! Tests of `madako node list` and `node show` on the page of a leader, on that of a running service, and during a
//! change of the leader.

use std::time::Duration;

use madako_protocol::ports::Clock as _;
use madako_supervisor::clock::SystemClock;
use serde_json::{Value, json};
use time::format_description::well_known::Rfc3339;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::time::timeout;

use crate::krakectl::{Server, json_said};
use crate::program::{Etcd, PATIENCE};
use crate::service::stage::{Serve, eventually};

/// A time before the present one, between two minutes, so that its age is the same for half a minute.
fn ago(minutes: u64) -> String {
    let before = SystemClock.now() - Duration::from_secs(minutes * 60 + 30);
    before.format(&Rfc3339).unwrap()
}

fn ahead(days: u64) -> String {
    (SystemClock.now() + Duration::from_secs(days * 86_400 + 1800)).format(&Rfc3339).unwrap()
}

/// The leader's page: a control plane node whose etcd is outdated, and a worker that does not answer.
fn page() -> Value {
    let rivers =
        json!({"running": true, "image": "tools:1", "started_at": ago(60), "foreign": false, "outdated": []});
    let etcd = json!({
        "running": true, "image": "etcd:1", "started_at": ago(60), "foreign": false,
        "outdated": ["the image is etcd:1, and etcd:2 is wanted", "the argument --x is missing"],
    });
    let held =
        json!({"what": "rivers-bootstrap", "reason": "unreachable", "why": "these nodes do not answer"});
    json!({
        "10.0.0.11": {
            "hostname": "cp-1", "control_plane": true, "reachable": true, "since": ago(180), "error": null,
            "host_key": {"fingerprint": "SHA256:abc", "pinned_at": ago(1440)},
            "containers": {"etcd": etcd, "rivers": rivers},
            "etcd": {"id": "7", "learner": false, "in_sync": true, "version": "3.5.15"},
            "certificates": {"peer.crt": {"not_before": ago(60), "not_after": ahead(300)},
                             "server.crt": {"not_before": ago(60), "not_after": ahead(20)}},
            "stale": false, "backing_off": false, "held": [], "later": 1,
        },
        "10.0.0.21": {
            "hostname": "", "control_plane": false, "reachable": false, "since": null,
            "error": "10.0.0.21 is not reachable:\u{1b} timed out", "host_key": null, "containers": {}, "etcd": null,
            "certificates": {}, "stale": false, "backing_off": false, "held": [held, held],
        },
    })
}

async fn with_pages(pages: Vec<(u16, &'static str, String)>) -> Option<(Etcd, Server)> {
    let etcd = Etcd::start().await?;
    let server = Server::answering(pages).await;
    etcd.put("madako/leader-url", format!("http://127.0.0.1:{}", server.port)).await;
    Some((etcd, server))
}

#[tokio::test]
async fn a_list_has_one_line_a_node_in_the_order_of_a_column() {
    let Some((etcd, server)) = with_pages(vec![json_said(200, &page()); 3]).await else { return };
    assert_eq!(
        etcd.run(&["node", "list"]).await.calm(),
        "\
ADDRESS    ROLE           STATE        SINCE  CONTAINERS       ETCD     CERTIFICATES  HELD
10.0.0.11  control-plane  reachable    3h0m   2/2, 1 outdated  in-sync  20d0h         -
10.0.0.21  worker         unreachable  -      -                -        -             rivers-bootstrap unreachable and 1 more
"
    );
    let sorted = etcd.run(&["node", "list", "--sort-by", "state", "-o", "wide"]).await.calm();
    let lines: Vec<&str> = sorted.lines().collect();
    assert!(lines[0].ends_with("HOSTNAME  HOST KEY    WHY"), "{sorted}");
    assert!(
        lines[1].starts_with("10.0.0.21 ")
            && lines[1].ends_with("10.0.0.21 is not reachable:\u{fffd} timed out")
    );
    assert!(
        lines[2].starts_with("10.0.0.11 ") && lines[2].trim_end().ends_with("cp-1      SHA256:abc"),
        "{sorted}"
    );
    let held = etcd.run(&["node", "list", "--sort-by", "held"]).await.calm();
    assert!(held.lines().nth(1).unwrap().starts_with("10.0.0.21 "), "{held}");
    assert_eq!(server.lines(), ["GET /nodes"; 3]);
    etcd.run(&["node", "list", "--sort-by", "size"]).await.refused(2);
}

#[tokio::test]
async fn the_page_is_given_as_it_is_in_json_and_yaml() {
    let page = page();
    let Some((etcd, _server)) = with_pages(vec![json_said(200, &page); 2]).await else { return };
    let json = etcd.run(&["node", "list", "-o", "json"]).await.json();
    let yaml = etcd.run(&["node", "list", "-o", "yaml"]).await.calm();
    assert_eq!(serde_saphyr::from_str::<Value>(&yaml).unwrap(), json);
    let (node, shown) = (&page["10.0.0.11"], &json["10.0.0.11"]);
    for field in ["hostname", "host_key", "containers", "etcd", "certificates"] {
        assert_eq!(shown[field], node[field], "{field}");
    }
    assert_eq!(json["10.0.0.21"]["held"], page["10.0.0.21"]["held"]);
}

#[tokio::test]
async fn a_watch_shows_each_change_and_goes_on_without_a_leader() {
    let page = page();
    let mut changed = page.clone();
    changed["10.0.0.21"]["reachable"] = json!(true);
    let gone = (503, "", "this instance does not lead".to_owned());
    let same = json_said(200, &page);
    let pages = vec![same.clone(), same, gone.clone(), gone, json_said(200, &changed)];
    let Some((etcd, server)) = with_pages(pages).await else { return };
    let mut watch = etcd.command(&["node", "list", "--watch"]).spawn().unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let mut reported = BufReader::new(watch.stderr.take().unwrap()).lines();
    let reading = async {
        let mut states = Vec::new();
        while states.len() < 4 {
            let line = lines.next_line().await.unwrap().expect("the watch goes on");
            if !line.starts_with("ADDRESS ") {
                states.push(line.split_whitespace().nth(2).unwrap().to_owned());
            }
        }
        states
    };
    let states = timeout(PATIENCE, reading).await.expect("the list changes");
    assert_eq!(
        states,
        ["reachable", "unreachable", "reachable", "reachable"],
        "an equal page is not shown again"
    );
    watch.start_kill().unwrap();
    let message = reported.next_line().await.unwrap().unwrap();
    assert!(message.contains("/nodes with status 503: this instance does not lead"), "{message}");
    assert_eq!(reported.next_line().await.unwrap(), None, "an equal message is not printed again");
    assert_eq!(server.lines(), ["GET /nodes"; 5]);
}

#[tokio::test]
async fn node_show_has_containers_certificates_holds_and_last_operations() {
    let Some((etcd, _server)) = with_pages(vec![json_said(200, &page()); 5]).await else { return };
    let record = |id: u64, targets: &[&str], error: &str| {
        json!({
            "id": id.to_string(), "status": if error.is_empty() { "completed" } else { "cancelled" },
            "operation": "etcd-restart", "command": {"name": "run-container", "target": "etcd"}, "targets": targets,
            "info": "", "error": error, "start-at": ago(120), "end-at": ago(119),
        })
    };
    for (id, targets, error) in
        [(1, &["10.0.0.11"][..], ""), (2, &["10.0.0.21"], ""), (3, &["10.0.0.11", "10.0.0.12"], "no space")]
    {
        etcd.put(&format!("records/{id:016x}"), record(id, targets, error).to_string()).await;
    }
    let text = etcd.run(&["node", "show", "10.0.0.11"]).await.calm();
    for line in [
        "Address    10.0.0.11\n",
        "Host name  cp-1\n",
        "Role       control plane\n",
        "State      reachable for 3h0m\n",
        "Host key   SHA256:abc, pinned 1d0h ago\n",
        "etcd       member 7, in-sync, version 3.5.15\n",
        "CONTAINER  STATE  AGE   IMAGE    OUTDATED\n",
        "etcd       runs   1h0m  etcd:1   the image is etcd:1, and etcd:2 is wanted\n",
        "                                 the argument --x is missing\n",
        "rivers     runs   1h0m  tools:1  -\n",
        "server.crt   20d0h    ",
        "3       etcd-restart  cancelled  2h0m  run-container  no space\n",
        "1       etcd-restart  completed  2h0m  run-container",
    ] {
        assert!(text.contains(line), "{line:?} is not in\n{text}");
    }
    assert!(!text.contains("HELD"), "{text}");
    let text = etcd.run(&["node", "show", "10.0.0.21"]).await.calm();
    for line in [
        "State      unreachable for -\n",
        "Error      10.0.0.21 is not reachable:\u{fffd} timed out\n",
        "Host key   not pinned\n",
        "etcd       no member\n",
        "HELD              REASON       WHY\n",
        "rivers-bootstrap  unreachable  these nodes do not answer\n",
        "2       etcd-restart  completed",
    ] {
        assert!(text.contains(line), "{line:?} is not in\n{text}");
    }
    let json = etcd.run(&["node", "show", "10.0.0.11", "-o", "json"]).await.json();
    assert_eq!(json["address"], "10.0.0.11");
    assert_eq!(json["etcd"], page()["10.0.0.11"]["etcd"]);
    let ids: Vec<&Value> =
        json["operations"].as_array().unwrap().iter().map(|record| &record["id"]).collect();
    assert_eq!(ids, ["3", "1"], "the newest first");
    let yaml = etcd.run(&["node", "show", "10.0.0.11", "-o", "yaml"]).await.calm();
    assert_eq!(serde_saphyr::from_str::<Value>(&yaml).unwrap()["operations"], json["operations"]);
    let message = etcd.run(&["node", "show", "10.0.0.99"]).await.refused(2);
    assert!(message.contains("10.0.0.99 is not a node of the cluster: madako node list"), "{message}");
}

#[tokio::test]
async fn a_leader_without_the_page_is_named_as_such() {
    let Some(etcd) = Etcd::start().await else { return };
    for args in [&["node", "list"][..], &["node", "list", "--watch"], &["node", "show", "10.0.0.11"]] {
        let message = etcd.run(args).await.refused(1);
        assert!(message.contains("no instance of Madako leads"), "{message}");
    }
    let answers = [
        json_said(404, &json!({"error": "operations.mode is off"})),
        json_said(200, &json!({"10.0.0.11": 1})),
    ];
    let server = Server::answering(answers).await;
    etcd.put("madako/leader-url", format!("http://127.0.0.1:{}", server.port)).await;
    let message = etcd.run(&["node", "list"]).await.refused(1);
    assert!(message.contains("/nodes: operations.mode is off"), "{message}");
    let message = etcd.run(&["node", "list"]).await.refused(1);
    assert!(message.contains("/nodes cannot be read"), "{message}");
}

/// Address of a node on which nothing listens.
const SILENT: &str = "127.0.93.1";

#[tokio::test]
async fn madako_node_show_reports_a_node_that_does_not_answer() {
    let Some(etcd) = Etcd::start().await else { return };
    let config = etcd.with_operations();
    let cluster = format!(
        r#"{{"name": "c", "nodes": [{{"address": "{SILENT}", "user": "u", "control_plane": true}}]}}"#
    );
    etcd.put("cluster", cluster).await;
    let service = Serve::start(&config, "10s", "500ms").await;
    let error = eventually("the node has a story", async || {
        let answer = etcd.run(&["node", "show", SILENT, "-o", "json"]).await;
        let shown: Value = serde_json::from_str(&answer.out).ok()?;
        assert_eq!((&shown["reachable"], &shown["control_plane"]), (&json!(false), &json!(true)));
        shown["held"].as_array()?.first()?;
        shown["error"].as_str().map(str::to_owned)
    })
    .await;
    assert!(error.contains(SILENT), "{error}");
    let line = etcd.run(&["node", "list"]).await.calm();
    assert!(line.contains("upgrade unreachable"), "{line}");
    // A second instance does not lead, and has no page of its own.
    let second = Serve::start(&config, "10s", "500ms").await;
    let (status, _) = crate::service::stage::page(second.address(), "/nodes").await.unwrap();
    assert_eq!(status, 404);
    let (status, why) = crate::service::stage::page(second.address(), "/reboots").await.unwrap();
    assert!(status == 404 && why.contains("this instance does not lead"), "{status} {why}");
    let queue = eventually("the leader has decided on the reboot queue", async || {
        let (status, page) = crate::service::stage::page(service.address(), "/reboots").await.ok()?;
        (status == 200).then_some(page)
    })
    .await;
    assert!(queue.contains(r#""entries":[]"#), "{queue}");
    drop(service);
}
