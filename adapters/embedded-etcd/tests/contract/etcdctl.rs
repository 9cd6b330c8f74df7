//! Runs Debian's etcdctl against the embedded store.

use std::path::Path;
use std::process::Stdio;

use etcd_client::proto::*;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::Command;
use tokio::time::timeout;

use crate::outcome::normalise;
use crate::peers::{DEADLINE, Embedded, RealEtcd, free_port, is_there};

const ETCDCTL: &str = "/usr/bin/etcdctl";

fn etcdctl(endpoint: &str) -> Command {
    let mut command = Command::new(ETCDCTL);
    command.env("ETCDCTL_API", "3").args(["--endpoints", endpoint]).kill_on_drop(true);
    command
}

/// Runs etcdctl with the given input; returns whether it succeeded, and its whole output.
async fn run(endpoint: &str, arguments: &[&str], input: &str) -> (bool, String) {
    let mut child = etcdctl(endpoint)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("etcdctl starts");
    child.stdin.take().expect("piped").write_all(input.as_bytes()).await.expect("it reads");
    let output = timeout(DEADLINE, child.wait_with_output()).await.expect("in time").expect("it runs");
    let printed = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&printed).into_owned())
}

#[tokio::test]
async fn etcdctl_commands_work() {
    if !is_there(ETCDCTL) {
        return;
    }
    let embedded = Embedded::start().await;
    let endpoint = embedded.server.address().to_string();
    // Arguments, input, success, output.
    let commands: &[(&[&str], &str, bool, &str)] = &[
        (&["endpoint", "health"], "", true, "is healthy"),
        (&["endpoint", "status"], "", true, "3.4.23"),
        (&["member", "list"], "", true, "started, madako"),
        (&["member", "add", "x", "--peer-urls=http://127.0.0.1:1"], "", false, "always one member"),
        (&["put", "a", "1"], "", true, "OK"),
        (&["put", "b", "2", "--prev-kv"], "", true, "OK"),
        (&["get", "", "--prefix", "--keys-only"], "", true, "a\n\nb\n"),
        (&["get", "a", "--rev", "99"], "", false, "required revision is a future revision"),
        (&["put", "", "x"], "", false, "etcdserver: key is not provided"),
        (&["txn"], "value(\"a\") = \"1\"\n\nput a 3\nget b\n\ndel a\n\n", true, "SUCCESS\n\nOK\n\nb\n2\n"),
        (&["txn"], "mod(\"a\") > \"99\"\n\nput a 4\n\ndel a\n\n", true, "FAILURE\n\n1\n"),
        (&["lease", "grant", "300"], "", true, "granted with TTL(300s)"),
        (&["lease", "list"], "", true, "found 1 leases"),
        (&["lease", "revoke", "1234"], "", false, "requested lease not found"),
        (&["lease", "timetolive", "1234"], "", true, "already expired"),
        (&["lock", "name", "echo", "locked"], "", true, "locked"),
        (&["compaction", "3"], "", true, "compacted revision 3"),
        (&["compaction", "2"], "", false, "has been compacted"),
        (&["endpoint", "hashkv"], "", true, ", "),
        (&["alarm", "list"], "", true, ""),
        (&["defrag"], "", true, "Finished defragmenting"),
        (&["user", "list"], "", true, ""),
        (&["user", "add", "someone:secret"], "", false, "no users and roles"),
        (&["auth", "enable"], "", false, "root user does not exist"),
        (&["del", "b", "--prev-kv"], "", true, "1\nb\n2\n"),
        (&["move-leader", "8e9e05c52164694d"], "", false, "bad leader transferee"),
    ];
    for (arguments, input, succeeds, shows) in commands {
        let (succeeded, printed) = run(&endpoint, arguments, input).await;
        assert!(succeeded == *succeeds && printed.contains(shows), "etcdctl {arguments:?} printed {printed}");
    }
    embedded.stop().await;
}

#[tokio::test]
async fn etcdctl_watches_and_elects() {
    if !is_there(ETCDCTL) {
        return;
    }
    let embedded = Embedded::start().await;
    let endpoint = embedded.server.address().to_string();
    run(&endpoint, &["put", "w", "1"], "").await;
    let mut watching = etcdctl(&endpoint)
        .args(["watch", "w", "--rev", "2"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    expect_lines(watching.stdout.take().expect("piped"), &["PUT", "w", "1"]).await;
    let mut leading =
        etcdctl(&endpoint).args(["elect", "e", "first"]).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut lines = BufReader::new(leading.stdout.take().expect("piped")).lines();
    let key = timeout(DEADLINE, lines.next_line()).await.expect("in time").expect("a line").expect("a line");
    assert!(key.starts_with("e/"), "{key}");
    let mut observing =
        etcdctl(&endpoint).args(["elect", "-l", "e"]).stdout(Stdio::piped()).spawn().expect("starts");
    expect_lines(observing.stdout.take().expect("piped"), &[&key, "first"]).await;
    embedded.stop().await;
}

async fn expect_lines(output: impl tokio::io::AsyncRead + Unpin, expected: &[&str]) {
    let mut lines = BufReader::new(output).lines();
    for expected in expected {
        let line = timeout(DEADLINE, lines.next_line()).await.expect("in time").expect("a line");
        assert_eq!(line.as_deref(), Some(*expected));
    }
}

/// A real etcd continues from a snapshot with the same pairs, revisions and leases.
#[tokio::test]
async fn a_snapshot_can_be_restored_into_a_real_etcd() {
    if !is_there(ETCDCTL) {
        return;
    }
    let embedded = Embedded::start().await;
    let endpoint = embedded.server.address().to_string();
    let wire = &embedded.wire;
    wire.grant(PbLeaseGrantRequest { id: -5, ttl: 5_000 }).await.expect("granted");
    wire.grant(PbLeaseGrantRequest { id: 77, ttl: 6_000 }).await.expect("granted");
    for number in 0..900 {
        let put = PbPutRequest {
            key: format!("key/{:03}", number % 300).into_bytes(),
            // Some values take several pages of the file.
            value: vec![b'v'; if number % 50 == 0 { 20_000 } else { number % 700 }],
            lease: if number % 10 == 0 { 77 } else { 0 },
            ..Default::default()
        };
        wire.put(put).await.expect("put");
    }
    wire.delete(PbDeleteRequest { key: b"key/1".to_vec(), range_end: b"key/12".to_vec(), prev_kv: false })
        .await
        .expect("deleted");
    wire.compact(PbCompactionRequest { revision: 500, physical: true }).await.expect("compacted");

    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("snapshot");
    let path = file.to_str().expect("utf-8");
    assert!(run(&endpoint, &["snapshot", "save", path], "").await.0);
    let (succeeded, status) = run(&endpoint, &["snapshot", "status", path], "").await;
    assert!(succeeded && status.contains(", 902, "), "{status}");
    let peer_url = format!("http://127.0.0.1:{}", free_port());
    let restored = restore(&endpoint, path, &directory.path().join("data"), &peer_url).await;
    assert!(restored.0, "{}", restored.1);
    let Some(real) = RealEtcd::start_in(directory, &peer_url).await else { return };
    for revision in [0, 500, 501, 777, 902] {
        let everything = PbRangeRequest { key: vec![0], range_end: vec![0], revision, ..Default::default() };
        let [expected, restored] = [&embedded.wire, &real.wire].map(|wire| wire.range(everything.clone()));
        let (mut expected, mut restored) =
            (expected.await.expect("a range"), restored.await.expect("a range"));
        normalise(&mut expected.header);
        normalise(&mut restored.header);
        assert!(expected == restored, "at revision {revision}");
    }
    for id in [-5, 77] {
        let wanted = PbLeaseTimeToLiveRequest { id, keys: true };
        let expected = embedded.wire.time_to_live(wanted).await.expect("a lease");
        let mut restored = real.wire.time_to_live(wanted).await.expect("a lease");
        restored.keys.sort();
        assert_eq!((restored.granted_ttl, restored.keys), (expected.granted_ttl, expected.keys));
    }
    embedded.stop().await;
}

async fn restore(endpoint: &str, file: &str, data: &Path, peer_url: &str) -> (bool, String) {
    let data = data.to_str().expect("utf-8");
    let cluster = format!("real={peer_url}");
    let arguments =
        ["snapshot", "restore", file, "--data-dir", data, "--name", "real", "--initial-cluster", &cluster];
    run(endpoint, &[&arguments[..], &["--initial-advertise-peer-urls", peer_url]].concat(), "").await
}
