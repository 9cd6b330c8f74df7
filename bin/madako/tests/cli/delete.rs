//! Tests of the deletion of a resource with dependents: the message before, the confirmation, and the requests to the
//! API.

use std::process::Stdio;

use serde_json::{Value, json};

use crate::krakectl::{Said, Server, json_said};
use crate::program::command;
use crate::terminal::open as open_terminal;

const LIST: &str = "GET /kubernetes/namespaces/testing/clusters/munich/dependents";
const DELETE: &str = "DELETE /kubernetes/namespaces/testing/clusters/munich";
const WORDS: [&str; 6] = ["kube", "cluster", "delete", "munich", "-n", "testing"];

/// Some dependent applications, and some that the user may not list.
fn along(count: usize, hidden: usize) -> Said {
    let one =
        |number| json!({"kind": "Application", "namespace": "testing", "name": format!("echo-{number}")});
    let dependents: Vec<Value> = (0..count).map(one).collect();
    json_said(200, &json!({"dependents": dependents, "hidden": hidden}))
}

fn munich() -> Said {
    json_said(200, &json!({"metadata": {"name": "munich", "namespace": "testing"}}))
}

#[tokio::test]
async fn without_a_terminal_a_resource_with_dependents_is_not_deleted() {
    let server = Server::answering([along(2, 1), along(25, 0), along(0, 1), along(0, 0), munich()]).await;
    let message = server.run(&WORDS).await.refused(2);
    assert_eq!(
        message,
        "madako: deleting Cluster testing/munich also deletes 3 resources that it owns:\n  Application \
         testing/echo-0\n  Application testing/echo-1\n  1 resource that you may not list\nCluster \
         testing/munich was not deleted: there is no terminal to ask for confirmation; --yes confirms the \
         deletion of all of this\n"
    );
    let message = server.run(&WORDS).await.refused(2);
    assert!(message.contains("echo-19\n  and 5 more (--dry-run lists all of them)\n"), "{message}");
    server.run(&WORDS).await.refused(2);
    assert_eq!(server.lines(), [LIST, LIST, LIST]);
    // A script of krakectl works if there are no dependents.
    server.run(&WORDS).await.calm();
    assert_eq!(server.lines()[3..], [LIST, DELETE]);
}

#[tokio::test]
async fn deletion_with_yes_names_the_dependents() {
    let server = Server::answering([along(1, 0), munich()]).await;
    let answer = server.run(&[&WORDS[..], &["--yes", "-o", "json"]].concat()).await;
    assert_eq!((answer.code, answer.json()["metadata"]["name"].as_str()), (0, Some("munich")));
    assert!(
        answer.err.contains("also deletes 1 resource that it owns:\n  Application testing/echo-0\n"),
        "{answer:?}"
    );
    assert_eq!(server.lines(), [LIST, DELETE]);
}

#[tokio::test]
async fn a_dry_run_shows_all_that_would_go_and_deletes_nothing() {
    let server = Server::answering([along(25, 2), along(0, 0), along(1, 0)]).await;
    let dry = [&WORDS[..], &["--dry-run", "--yes"]].concat();
    let shown = server.run(&dry).await.calm();
    assert!(
        shown.starts_with("Deleting Cluster testing/munich also deletes 27 resources that it owns:\n"),
        "{shown}"
    );
    assert_eq!(shown.matches("echo-").count(), 25);
    assert!(shown.ends_with("You may not list 2 of them.\n"), "{shown}");
    assert_eq!(server.run(&dry).await.calm(), "Deleting Cluster testing/munich deletes nothing else.\n");
    let document = server.run(&[&dry[..], &["-o", "json"]].concat()).await.json();
    assert_eq!((&document["dependents"][0]["name"], &document["hidden"]), (&json!("echo-0"), &json!(0)));
    assert_eq!(server.lines(), [LIST; 3]);
}

#[tokio::test]
async fn deletion_without_known_dependents_needs_yes() {
    // Krake's own API has no such path.
    let nowhere = || json_said(404, &json!({"detail": "404: Not Found"}));
    let server = Server::answering([nowhere(), nowhere(), munich(), munich()]).await;
    let message = server.run(&WORDS).await.refused(1);
    assert!(message.contains("404") && message.contains("was not deleted (--yes deletes"), "{message}");
    assert_eq!(server.lines(), [LIST]);
    let answer = server.run(&[&WORDS[..], &["--yes"]].concat()).await;
    assert!(answer.code == 0 && answer.err.contains("without knowing the dependent resources"), "{answer:?}");
    assert_eq!(server.lines()[1..], [LIST, DELETE]);
    // With `--force` only the cluster is deleted, without a question.
    server.run(&[&WORDS[..], &["--force"]].concat()).await.calm();
    assert_eq!(server.lines()[3..], [format!("{DELETE}?force=True")]);
}

#[tokio::test]
async fn deletion_asks_for_confirmation_at_a_terminal() {
    for (typed, code, asked) in [("no\n", 1, &[LIST][..]), ("yes\n", 0, &[LIST, DELETE])] {
        let server = Server::answering([along(1, 0), munich()]).await;
        let config = server.files.path("krakectl.yaml");
        let (master, end) = open_terminal();
        // The terminal buffers input before it is read.
        rustix::io::write(&master, typed.as_bytes()).unwrap();
        let mut child = command(&[&WORDS[..], &["--config", &config]].concat())
            .stdin(Stdio::from(end.try_clone().unwrap()))
            .stderr(Stdio::from(end))
            .spawn()
            .unwrap();
        assert_eq!(child.wait().await.unwrap().code(), Some(code), "{typed}");
        assert_eq!(server.lines(), asked, "{typed}");
        // One read may return only a part. The terminal gives an error once its other end is closed.
        let (mut shown, mut part) = (Vec::new(), [0; 4096]);
        while let Ok(count @ 1..) = rustix::io::read(&master, &mut part[..]) {
            shown.extend_from_slice(&part[..count]);
        }
        let shown = String::from_utf8_lossy(&shown);
        assert!(
            shown.contains("Application testing/echo-0") && shown.contains("Type yes to agree:"),
            "{shown}"
        );
    }
}
