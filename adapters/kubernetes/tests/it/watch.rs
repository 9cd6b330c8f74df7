//! The watch of nodes: what it asks, how it goes on, and how often nodes are listed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use madako_kubernetes::{ApiServer, Limits};
use madako_protocol::kubernetes::{Kubernetes as _, KubernetesError};
use serde_json::{Value, json};

use crate::contract::permit;
use crate::fake::{Fake, RecordedRequest, Reply};
use crate::server::until;

fn node(name: &str, version: u64, is_cordoned: bool) -> Value {
    json!({
        "metadata": {"name": name, "resourceVersion": version.to_string()},
        "spec": {"unschedulable": is_cordoned},
    })
}

fn event(kind: &str, object: &Value) -> String {
    json!({"type": kind, "object": object}).to_string()
}

fn list(version: u64, nodes: &[Value]) -> Reply {
    let metadata = json!({"resourceVersion": version.to_string()});
    let list = json!({"kind": "NodeList", "apiVersion": "v1", "metadata": metadata, "items": nodes});
    Reply::Whole(200, list.to_string())
}

fn is_watch(asked: &RecordedRequest) -> bool {
    asked.target.contains("watch=true")
}

/// Numbers of lists and of watches.
fn count(fake: &Fake) -> (usize, usize) {
    let asked = fake.asked();
    let watches = asked.iter().filter(|asked| is_watch(asked)).count();
    (asked.len() - watches, watches)
}

async fn cordoned(api: &ApiServer) -> Vec<String> {
    let nodes = api.nodes().await.unwrap();
    nodes.into_iter().filter(|node| node.unschedulable).map(|node| node.name).collect()
}

/// Kept nodes are an answer as long as a test lasts.
fn lasting() -> Limits {
    Limits { node_age: Duration::from_secs(600), ..Limits::default() }
}

/// The resource version that a watch goes on from.
fn version_of(asked: &RecordedRequest) -> &str {
    asked.target.rsplit_once("resourceVersion=").unwrap().1
}

#[tokio::test]
async fn a_watch_goes_on_from_its_last_version_and_begins_anew_when_that_is_too_old() {
    // The server fails until the test has seen the changes of a step.
    let step = Arc::new(AtomicUsize::new(0));
    let present = Arc::clone(&step);
    let fake = Fake::start(move |asked| {
        let step = present.load(Ordering::Relaxed);
        if !is_watch(asked) {
            return list(if step == 0 { 10 } else { 90 }, &[node("a", 5, step > 0), node("b", 6, false)]);
        }
        let bookmark = json!({"kind": "Node", "apiVersion": "v1", "metadata": {"resourceVersion": "30"}});
        let expired = json!({"kind": "Status", "status": "Failure", "code": 410, "reason": "Expired"});
        let (lines, stays_open) = match (version_of(asked), step) {
            ("10", _) => {
                let lines = vec![
                    (0, event("MODIFIED", &node("b", 12, true))),
                    (0, event("ADDED", &node("c", 13, true))),
                    (0, event("DELETED", &node("a", 14, false))),
                    (0, event("BOOKMARK", &bookmark)),
                ];
                (lines, false)
            }
            ("30", 1) => (vec![(0, event("MODIFIED", &node("c", 31, false)))], false),
            ("31", 2) => (vec![(0, event("ERROR", &expired))], true),
            ("90", _) => return Reply::Hang,
            _ => return Reply::Whole(500, "{}".to_owned()),
        };
        Reply::Lines { lines, stays_open }
    })
    .await;
    let api = fake.adapter(lasting());
    assert_eq!(cordoned(&api).await, Vec::<String>::new());
    for (next, expected) in [(1, &["b", "c"][..]), (2, &["b"]), (3, &["a"])] {
        until("the changes of the step show", async || (cordoned(&api).await == expected).then_some(()))
            .await;
        step.store(next, Ordering::Relaxed);
    }
    let asked = fake.asked();
    let mut versions: Vec<&str> = asked.iter().filter(|asked| is_watch(asked)).map(version_of).collect();
    versions.dedup();
    assert!(["10", "30", "31"] == versions[..3], "{versions:?}");
    assert!(
        asked
            .iter()
            .filter(|asked| is_watch(asked))
            .all(|asked| asked.target.contains("allowWatchBookmarks=true"))
    );
    assert_eq!(count(&fake).0, 2, "lists");
}

#[tokio::test]
async fn own_changes_show_at_once_and_a_refused_watch_costs_lists_only() {
    // 403: no right to watch. Its nodes are those of the last list.
    let fake = Fake::start(|asked| match (&*asked.method, is_watch(asked)) {
        ("PATCH", _) => Reply::Whole(200, node("a", 11, true).to_string()),
        (_, true) => Reply::Whole(403, "{}".to_owned()),
        _ => list(10, &[node("a", 5, false)]),
    })
    .await;
    let api = fake.adapter(lasting());
    api.nodes().await.unwrap();
    until("the watch is refused", async || (count(&fake) == (1, 1)).then_some(())).await;
    until("each read is a list", async || {
        api.nodes().await.unwrap();
        (count(&fake).0 > 3).then_some(())
    })
    .await;

    let fake = Fake::start(|asked| match (&*asked.method, is_watch(asked)) {
        ("PATCH", _) => Reply::Whole(200, node("a", 11, true).to_string()),
        (_, true) => Reply::Hang,
        _ if asked.target.starts_with("/api/v1/nodes/a") => {
            Reply::Whole(200, node("a", 5, false).to_string())
        }
        _ => list(10, &[node("a", 5, false)]),
    })
    .await;
    let api = fake.adapter(lasting());
    for _ in 0..3 {
        api.nodes().await.unwrap();
        assert_eq!(count(&fake).0, 1);
    }
    api.cordon(&permit(), "a").await.unwrap();
    for _ in 0..3 {
        api.nodes().await.unwrap();
        assert_eq!(count(&fake).0, 1 + 3, "a read, the change, and one list after it");
    }
}

/// A read of a thousand nodes is four pages. While kubelets report, a poll costs none.
#[tokio::test]
async fn a_thousand_reporting_nodes_are_listed_once() {
    let nodes: Vec<Value> = (0..1000).map(|number| node(&format!("n{number}"), 5, false)).collect();
    let nodes = Arc::new(nodes);
    let fake = Fake::start(move |asked| {
        if is_watch(asked) {
            let report = |number: u64| (20, event("MODIFIED", &node("n1", 20 + number, number == 99)));
            return Reply::Lines { lines: (0..100).map(report).collect(), stays_open: true };
        }
        let from = asked
            .target
            .split_once("continue=")
            .map_or(0, |(_, rest)| rest.split('&').next().unwrap().parse::<usize>().unwrap());
        let mut metadata = json!({"resourceVersion": "10"});
        if from + 250 < nodes.len() {
            metadata["continue"] = json!((from + 250).to_string());
        }
        let page = &nodes[from..from + 250];
        let page = json!({"kind": "NodeList", "apiVersion": "v1", "metadata": metadata, "items": page});
        Reply::Whole(200, page.to_string())
    })
    .await;
    let api = fake.adapter(lasting());
    until("the last report shows", async || {
        let nodes = api.nodes().await.unwrap();
        assert_eq!(nodes.len(), 1000);
        nodes.iter().any(|node| node.unschedulable).then_some(())
    })
    .await;
    assert_eq!(count(&fake), (4, 1));
}

#[tokio::test]
async fn a_server_that_ends_is_noticed_by_the_next_read_after_the_accepted_age() {
    let fake = Fake::start(|asked| if is_watch(asked) { Reply::Hang } else { list(10, &[]) }).await;
    let api = fake.adapter(Limits { node_age: Duration::from_millis(200), ..Limits::default() });
    api.nodes().await.unwrap();
    drop(fake);
    let error = until("no answer", async || api.nodes().await.err()).await;
    assert!(matches!(error, KubernetesError::Unavailable { .. }), "{error:?}");
}
