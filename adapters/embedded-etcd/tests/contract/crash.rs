//! Tests that acknowledged writes of the embedded store survive a kill of its process.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;

use etcd_client::{Client, GetOptions, PutOptions};
use madako_embedded_etcd::{Backend, Commit, EmbeddedEtcd, Options};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use tokio::time::timeout;

use crate::disk::UnsafeDisk;
use crate::generate::Dice;
use crate::peers::DEADLINE;

/// Variable with the directory of the child process.
const DIRECTORY: &str = "MADAKO_CRASH_DIRECTORY";
const KILLS: usize = 30;
const WRITERS: usize = 8;
const READERS: usize = 2;
/// One in this many puts of a writer has a large value.
const LARGE_ONE_IN: u64 = 7;
const LARGE_BYTES: usize = 200_000;
/// Smaller than a few large values: reads miss the cache, and redb writes from the threads of readers too.
const CACHE_BYTES: usize = 512 * 1024;

/// Not a test of its own: the next test starts and kills it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "started and killed by no_acknowledged_write_is_lost_when_the_process_is_killed"]
async fn child_that_writes_until_it_is_killed() {
    let directory = std::env::var_os(DIRECTORY).expect("started by the other test");
    let store = EmbeddedEtcd::open(on(Path::new(&directory))).expect("opens");
    let client = store.direct_client().await.expect("a client");
    for reader in 0..READERS {
        tokio::spawn(read_forever(client.clone(), Dice::new(reader as u64)));
    }
    let writers =
        (0..WRITERS).map(|writer| tokio::spawn(write_forever(client.clone(), writer))).collect::<Vec<_>>();
    for writer in writers {
        writer.await.expect("it goes on until it is killed");
    }
}

async fn write_forever(mut client: Client, writer: usize) {
    let key = format!("writer/{writer}");
    let mut number: u64 = match client.get(key.clone(), None).await.expect("a get").kvs().first() {
        Some(kv) => {
            kv.value_str().expect("text").split(' ').next().and_then(|n| n.parse().ok()).expect("a number")
        }
        None => 0,
    };
    loop {
        number += 1;
        let len = if number.is_multiple_of(LARGE_ONE_IN) { LARGE_BYTES } else { (number % 7 * 400) as usize };
        let value = format!("{number} {}", "x".repeat(len));
        let response = client.put(key.clone(), value, None).await.expect("a put");
        let revision = response.header().expect("a header").revision();
        println!("acknowledged {writer} {number} {revision}");
    }
}

/// Reads keys of writers at the current revision and some revisions ago: more data than the cache holds.
async fn read_forever(mut client: Client, mut dice: Dice) {
    loop {
        let key = format!("writer/{}", dice.below(WRITERS as u64));
        let now = client.get(key.clone(), None).await.expect("a get");
        check_value(now.kvs());
        let revision = now.header().expect("a header").revision() - dice.below(60) as i64;
        let then = GetOptions::new().with_revision(revision.max(1));
        match client.get(key, Some(then)).await {
            Ok(then) => check_value(then.kvs()),
            Err(etcd_client::Error::GRpcStatus(status)) if status.code() == tonic::Code::OutOfRange => {}
            Err(error) => println!("a read failed: {error}"),
        }
        // A client in the same process never waits, so yield to other tasks.
        tokio::task::yield_now().await;
    }
}

fn check_value(kvs: &[etcd_client::KeyValue]) {
    for kv in kvs {
        let value = kv.value_str().unwrap_or("no text");
        let number = value.trim_end_matches('x').strip_suffix(' ').map(str::parse::<u64>);
        if !matches!(number, Some(Ok(_))) {
            println!("a read failed: {value:.40} is none of the writer's values");
        }
    }
}

fn on(directory: &Path) -> Options {
    let mut options = Options::new(Backend::File(directory.into()), Commit::Thread, 1);
    options.cache_bytes = CACHE_BYTES;
    // Large values are compacted away.
    options.auto_compaction.keep_revisions = 100;
    options
}

#[tokio::test]
async fn no_acknowledged_write_is_lost_when_the_process_is_killed() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut dice = Dice::new(50);
    // Newest acknowledged number, and its revision, by writer.
    let mut acknowledged: BTreeMap<usize, (u64, i64)> = BTreeMap::new();
    for kill in 0..KILLS {
        let before_kill = dice.below(60) + 1;
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "crash::child_that_writes_until_it_is_killed", "--ignored", "--nocapture"])
            .env(DIRECTORY, directory.path())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the child starts");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let mut observed = 0;
        while let Some(line) = timeout(DEADLINE, lines.next_line()).await.expect("in time").expect("a line") {
            assert!(!line.contains("failed"), "kill {kill}: {line}");
            // Complete lines only: the kill may have cut off the last one.
            let words: Vec<_> = line.split(' ').collect();
            if let ["acknowledged", writer, number, revision] = words[..]
                && let (Ok(writer), Ok(number), Ok(revision)) =
                    (writer.parse(), number.parse(), revision.parse())
            {
                acknowledged.insert(writer, (number, revision));
                observed += 1;
                if observed == before_kill {
                    child.start_kill().expect("kill -9");
                }
            }
        }
        child.wait().await.expect("it is gone");
        assert!(observed >= before_kill, "the child ended by itself");
        check(directory.path(), &acknowledged, kill).await;
    }
}

async fn check(directory: &Path, acknowledged: &BTreeMap<usize, (u64, i64)>, kill: usize) {
    let store = EmbeddedEtcd::open(on(directory)).expect("opens");
    let mut client = store.direct_client().await.expect("a client");
    for (writer, (number, revision)) in acknowledged {
        let at_revision = GetOptions::new().with_revision(*revision);
        let then = client.get(format!("writer/{writer}"), Some(at_revision)).await.expect("a get");
        let value = then.kvs()[0].value_str().expect("text");
        assert!(value.starts_with(&format!("{number} ")), "kill {kill}: writer {writer} has {value:.20}");
    }
    store.shutdown().await;
}

/// A disk that keeps synced data, and of the rest any part, torn at sectors and in any order.
#[test]
fn no_acknowledged_write_is_lost_when_the_disk_loses_unsynced_data() {
    for seed in 0..60 {
        // One thread and inline commits, so that a seed gives one history.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(lose_power(seed));
    }
}

async fn lose_power(seed: u64) {
    let mut dice = Dice::new(seed);
    let disk = UnsafeDisk::new();
    let mut model: BTreeMap<String, String> = BTreeMap::new();
    let mut revision = 1;
    let mut lease = None;
    for life in 0..4 {
        let label = format!("seed {seed}, life {life}");
        disk.fail_after(None);
        let mut options = Options::new(Backend::Custom(disk.storage()), Commit::Inline, seed);
        options.cache_bytes = CACHE_BYTES;
        let store = match EmbeddedEtcd::open(options) {
            Ok(store) => store,
            Err(error) => panic!("{label}: {error}"),
        };
        let mut client = store.direct_client().await.expect("a client");
        let response = client.get("", Some(GetOptions::new().with_all_keys())).await.expect(&label);
        let found = response.kvs().iter().map(text).collect::<BTreeMap<_, _>>();
        let reached = response.header().expect("a header").revision();
        if reached == revision {
            assert_eq!(found, model, "{label}");
        } else {
            // The write in progress may have reached the disk; then it did so completely.
            assert_eq!(reached, revision + 1, "{label}");
            if revision > 1 {
                let acknowledged = GetOptions::new().with_all_keys().with_revision(revision);
                let then = client.get("", Some(acknowledged)).await.expect(&label);
                assert_eq!(then.kvs().iter().map(text).collect::<BTreeMap<_, _>>(), model, "{label}");
            }
            model = found;
            revision = reached;
        }
        if let Some(id) = lease {
            assert!(client.lease_time_to_live(id, None).await.expect(&label).ttl() > 0, "{label}: the lease");
        }
        disk.fail_after(Some(dice.below(200)));
        while write_something(&mut client, &mut dice, &mut model, &mut revision, &mut lease).await {}
        drop(client);
        disk.lose_power(&mut dice);
        drop(store);
        // The store's tasks notice its end and release the disk.
        tokio::task::yield_now().await;
    }
}

fn text(kv: &etcd_client::KeyValue) -> (String, String) {
    (kv.key_str().expect("text").to_owned(), kv.value_str().expect("text").to_owned())
}

/// Returns whether the write was acknowledged. The model changes only in that case.
async fn write_something(
    client: &mut Client,
    dice: &mut Dice,
    model: &mut BTreeMap<String, String>,
    revision: &mut i64,
    lease: &mut Option<i64>,
) -> bool {
    let key = format!("key/{}", dice.below(12));
    match dice.below(12) {
        0 => {
            let Ok(response) = client.delete(key.clone(), None).await else { return false };
            model.remove(&key);
            *revision = response.header().expect("a header").revision();
        }
        1 if *revision > 3 => {
            let main = *revision - dice.below(3) as i64;
            // The revision may be compacted already: then the request is refused and nothing changes.
            let compacted = client.compact(main, None).await;
            return compacted.is_ok()
                || matches!(compacted, Err(etcd_client::Error::GRpcStatus(status)) if status.code() == tonic::Code::OutOfRange);
        }
        2 if lease.is_none() => {
            let Ok(response) = client.lease_grant(1_000, None).await else { return false };
            *lease = Some(response.id());
        }
        _ => {
            let len = if dice.one_in(40) { LARGE_BYTES } else { dice.below(5_000) as usize };
            let value = format!("{}{}", dice.next(), "x".repeat(len));
            let options = lease.filter(|_| dice.one_in(3)).map(|id| PutOptions::new().with_lease(id));
            let Ok(response) = client.put(key.clone(), value.clone(), options).await else { return false };
            model.insert(key, value);
            *revision = response.header().expect("a header").revision();
        }
    }
    true
}
