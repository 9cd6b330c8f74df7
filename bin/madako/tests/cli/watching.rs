//! Tests of pictures on a terminal: lists and the status are drawn in place, with colours where they are wanted.

use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::time::timeout;

use crate::program::{Etcd, PATIENCE};
use crate::shows::record;
use crate::terminal::Terminal;

const STATUS: &str = r#"{"phase":"completed","timestamp":"2026-11-21T10:00:00Z"}"#;

/// A store with a leader and an entry of the repair queue.
async fn store() -> Option<Etcd> {
    let etcd = Etcd::start().await?;
    etcd.put("status", STATUS).await;
    etcd.put("leader//1", "host-a").await;
    etcd.put("repairs/data/0000000000000003", entry("processing")).await;
    Some(etcd)
}

fn entry(status: &str) -> String {
    format!(
        r#"{{"index":"3","address":"10.0.0.7","nodename":"","machine_type":"bmc","operation":"unreachable",
            "status":"{status}","step":1,"step_status":"watching","deleted":false,
            "last_transition_time":"2026-11-21T11:00:00Z","drain_backoff_expire":"0001-01-01T00:00:00Z"}}"#
    )
}

#[tokio::test]
async fn a_watched_status_is_drawn_in_place_after_each_change() {
    let Some(etcd) = store().await else { return };
    let mut screen = Terminal::start(&["status", "--watch", "--config", etcd.config()], 80, 40);
    screen
        .until_screen("a calm status", |shown| shown.starts_with("Calm: ") && shown.contains("\nStore "))
        .await;
    etcd.run(&["repair-queue", "disable"]).await.calm();
    let shown = screen
        .until_screen("the disabled queue", |shown| {
            shown.starts_with("1 thing needs attention") && shown.contains("\nStore ")
        })
        .await;
    assert!(shown.contains("! repairs: repair-queue-disabled"), "{shown}");
    assert_eq!(shown.matches("\nLeader ").count(), 1, "the earlier picture is gone:\n{shown}");
}

#[tokio::test]
async fn a_watched_list_is_drawn_in_place_and_elsewhere_as_a_stream() {
    let Some(etcd) = store().await else { return };
    let args = ["repair-queue", "list", "--watch", "--config", etcd.config()];
    let mut screen = Terminal::start(&args, 80, 24);
    screen.until("processing").await;
    let mut stream = etcd.command(&["repair-queue", "list", "--watch", "-o", "jsonl"]).spawn().unwrap();
    let mut lines = BufReader::new(stream.stdout.take().unwrap()).lines();
    let mut next = async || {
        let line = timeout(PATIENCE, lines.next_line()).await.expect("a line").unwrap().unwrap();
        serde_json::from_str::<Value>(&line).unwrap()
    };
    assert_eq!(next().await[0]["status"], "processing");
    etcd.put("repairs/data/0000000000000003", entry("succeeded")).await;
    assert_eq!(next().await[0]["status"], "succeeded", "a line for each change");
    let shown = screen.until_screen("the new status", |shown| shown.contains(" succeeded ")).await;
    assert!(shown.starts_with("INDEX ") && !shown.contains("processing"), "{shown}");
    stream.kill().await.unwrap();
}

#[tokio::test]
async fn followed_records_fit_the_terminal() {
    let Some(etcd) = store().await else { return };
    let long = format!(r#""error":"{}""#, "a long reason ".repeat(9));
    let failed = record(1, "cancelled").replace(r#""error":"""#, &long);
    etcd.put("records/0000000000000001", failed).await;
    let args = ["history", "--follow", "-o", "table", "--config", etcd.config()];
    let mut screen = Terminal::start(&args, 80, 24);
    let is_cut = |line: &str| line.contains("  op-1  10.0.0.1  failed ") && line.ends_with('…');
    screen.until_screen("the record in one line", |shown| shown.lines().any(is_cut)).await;
}

async fn is_coloured(args: &[&str], variables: &[(&str, &str)]) -> bool {
    Terminal::start_with(args, 80, 24, variables).uses_colours().await
}

#[tokio::test]
async fn colours_are_for_terminals_that_want_them() {
    let Some(etcd) = store().await else { return };
    for words in [&["status"][..], &["repair-queue", "list", "-o", "table"], &["doctor"]] {
        let args = [words, &["--config", etcd.config()]].concat();
        assert!(is_coloured(&args, &[]).await, "{words:?}");
        assert!(!is_coloured(&args, &[("NO_COLOR", "1")]).await, "{words:?} without colours");
        assert!(!is_coloured(&args, &[("TERM", "dumb")]).await, "{words:?} on a terminal without colours");
        let piped = etcd.run(&[words, &["-o", "table"]].concat()).await;
        assert!(!piped.out.contains('\u{1b}'), "{words:?} in a pipe: {}", piped.out);
    }
}
