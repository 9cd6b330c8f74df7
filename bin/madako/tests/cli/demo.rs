//! Tests of `madako demo`: without a terminal it ends by itself and reports each event once; its live view obeys keys.

use std::fs::OpenOptions;

use etcd_client::{Client, GetOptions};
use tokio::time::timeout;

use crate::program::{Files, PATIENCE, command, free_port, madako};
use crate::service::stage::eventually;
use crate::terminal::Terminal;

/// Free addresses, so that demos can run side by side.
const ANYWHERE: [&str; 6] = ["demo", "--for=3s", "--http", "127.0.0.1:0", "--etcd", "127.0.0.1:0"];

#[tokio::test]
async fn with_json_the_demo_prints_only_its_summary() {
    let answer = madako(&[&ANYWHERE[..], &["--seed", "7", "-o", "json"]].concat()).await;
    let summary = answer.json();
    answer.calm();
    assert_eq!((summary["seed"].as_u64(), summary["machines"].as_u64()), (Some(7), Some(60)), "{summary}");
    assert_eq!(summary["plans"]["initialize"], 1, "{summary}");
    assert_eq!(summary["invariant_violations"], 0, "{summary}");
    assert_eq!(summary["cluster"]["control_plane"], 3, "{summary}");
    for count in ["seconds", "commits", "leader_changes", "actor_restarts"] {
        assert!(summary[count].is_u64(), "{count}: {summary}");
    }
    assert!(summary["repairs"]["succeeded"].is_u64() && summary["repairs"]["failed"].is_u64(), "{summary}");
    assert!(summary["cluster"]["workers"].as_u64() >= Some(30), "{summary}");
    let placement = &summary["placement"];
    assert_eq!((placement["applications"].as_u64(), placement["clusters"].as_u64()), (Some(10), Some(5)));
    // All are bound in the first second or so; none may move within 15.
    assert_eq!(
        (placement["bindings"].as_u64(), placement["moves"].as_u64()),
        (Some(10), Some(0)),
        "{summary}"
    );
}

#[tokio::test]
async fn without_a_terminal_the_demo_prints_a_line_for_each_event() {
    let lines = madako(&ANYWHERE).await.calm();
    for line in [" leads (epoch ", " planned initialize in ", " committed cluster at revision "] {
        assert_eq!(lines.matches(line).count(), 1, "{line:?} in\n{lines}");
    }
    assert_eq!(lines.matches(" is bound to ").count(), 10, "{lines}");
    assert!(lines.contains("10 applications on 5 clusters: 10 bindings, 0 moves"), "{lines}");
    assert!(lines.matches("the registry has not answered yet").count() <= 1, "{lines}");
    assert!(lines.lines().last().is_some_and(|last| last.contains("0 violations of invariants")), "{lines}");
}

#[tokio::test]
async fn a_demo_whose_store_fails_ends_with_the_reason() {
    let files = Files::new();
    let etcd = format!("127.0.0.1:{}", free_port());
    let mut demo = command(&["demo", "--for=10m", "--http", "127.0.0.1:0", "--etcd", &etcd]);
    let demo = demo.env("TMPDIR", files.path("")).spawn().unwrap();
    let file = files.path(&format!("madako-demo-{}/etcd.redb", demo.id().unwrap()));
    let mut client = eventually("the demo's store answers", async || {
        let mut client = Client::connect([format!("http://{etcd}")], None).await.ok()?;
        // All applications are bound: the demo sends no further request to the store that must succeed.
        let bound = GetOptions::new().with_prefix().with_count_only();
        let bound = client.get("/cke/madako/placement/decisions/", Some(bound)).await.ok()?;
        (bound.count() == 10).then_some(client)
    })
    .await;
    // More bytes than the store's cache, so that the first value is read from the file again.
    for number in 0..12 {
        client.put(format!("ballast/{number}"), vec![b'v'; 1024 * 1024], None).await.unwrap();
    }
    OpenOptions::new().write(true).open(file).unwrap().set_len(0).unwrap();
    client.get("ballast/0", None).await.expect_err("it is not there any more");
    let ended = timeout(PATIENCE, demo.wait_with_output()).await.expect("it ends").unwrap();
    let message = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(1), "{message}");
    assert!(
        message.contains("madako: the service of the demo ended: the embedded store failed for good"),
        "{message}"
    );
    assert_eq!(std::fs::read_dir(files.path("")).unwrap().count(), 0, "its directory goes with it");
}

/// The live view, without an end by itself.
const LIVE: [&str; 5] = ["demo", "--http", "127.0.0.1:0", "--etcd", "127.0.0.1:0"];

#[tokio::test]
async fn the_demo_obeys_keys() {
    let mut demo = Terminal::start(&LIVE, 80, 24);
    let first = demo.until(" rack 5 ").await;
    for legend in [" C control plane", "u unhealthy", "x unreachable", "t retiring"] {
        assert!(first.contains(legend), "{legend}:\n{first}");
    }
    demo.until(" 3 control plane, 30 workers").await;
    // Esc closes the help, and would end the demo without it. With the next key it is one key of a terminal: the help
    // must be gone before.
    for key in ["?", "\x1b"] {
        demo.press("?");
        demo.until("help: ? closes it").await;
        demo.press(key);
        demo.until_screen("no help", |shown| !shown.contains("help: ? closes it")).await;
    }
    for (key, told) in [
        ("k", "you cut the power of rack 0 for 40 s"),
        ("b", "you break 10.0."),
        ("f", "you let every command of the next repair fail"),
        ("l", "you stop the leader"),
        (" ", "PAUSED"),
    ] {
        demo.press(key);
        demo.until(told).await;
    }
    demo.press(" ");
    demo.until_screen("it goes on", |shown| !shown.contains("PAUSED")).await;
    // The power cut makes the machines of the rack unreachable, and the leader comes back.
    demo.until_screen("unreachable machines", |shown| {
        shown.lines().any(|line| line.starts_with(" rack 0 ") && line.matches('x').count() > 3)
    })
    .await;
    demo.until("leader 2 since the start").await;
    demo.press("q");
    let (code, written) = demo.end().await;
    assert_eq!(code, 0, "{written}");
    // The summary is wrapped.
    let words = written.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("0 violations of invariants"), "{written}");
}

#[tokio::test]
async fn demo_draws_on_every_terminal_size() {
    for (columns, rows, shown) in [(160, 50, "rack 5"), (30, 8, "rack 0")] {
        let mut demo = Terminal::start(&LIVE, columns, rows);
        demo.until(shown).await;
        // Ctrl-C, which a terminal in raw mode delivers as a key.
        demo.press("\x03");
        let (code, written) = demo.end().await;
        assert_eq!(code, 0, "{written}");
    }
}
