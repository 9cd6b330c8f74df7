//! Tests of watches while connections and stores fail.

use std::collections::BTreeMap;

use bytes::Bytes;
use madako_domain::store::{KeyChange, Snapshot, StoreErrorKind, Write};
use madako_protocol::store::{Store as _, WatchEvent};
use madako_store::EtcdStore;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use tokio::sync::mpsc;

use crate::etcd::{Etcd, config_at, eventually, put, within, write};
use crate::proxy::{Proxy, Weather};

/// A receiver that keeps the delivered state.
struct Watched {
    events: mpsc::Receiver<WatchEvent>,
    /// Value and mod revision of each key.
    state: BTreeMap<String, (Bytes, i64)>,
    revision: i64,
    lists: usize,
    interruptions: usize,
    changes: Vec<KeyChange>,
}

impl Watched {
    fn new(store: &EtcdStore, prefix: &str) -> Self {
        let events = store.watch(prefix);
        Self { events, state: BTreeMap::new(), revision: 0, lists: 0, interruptions: 0, changes: vec![] }
    }

    async fn next(&mut self) {
        let event = within("the watch tells something", self.events.recv()).await.expect("it goes on");
        match event {
            WatchEvent::Listed(Snapshot { revision, entries }) => {
                self.lists += 1;
                self.revision = revision;
                self.state = entries.into_iter().map(|(key, e)| (key, (e.value, e.mod_revision))).collect();
            }
            WatchEvent::Changed { revision, changes } => {
                assert!(self.lists > 0, "changes before a list");
                assert!(revision > self.revision, "{revision} after {}", self.revision);
                assert!(!changes.is_empty());
                self.revision = revision;
                for change in changes {
                    match &change.entry {
                        Some(entry) => {
                            self.state.insert(change.key.clone(), (entry.value.clone(), entry.mod_revision));
                        }
                        None => drop(self.state.remove(&change.key)),
                    }
                    self.changes.push(change);
                }
            }
            WatchEvent::Interrupted(_) => {
                assert!(self.lists > 0, "an interruption before a list");
                self.interruptions += 1;
            }
        }
    }

    async fn until(&mut self, revision: i64) {
        while self.revision < revision {
            self.next().await;
        }
    }

    async fn until_listed(&mut self, lists: usize) {
        while self.lists < lists {
            self.next().await;
        }
    }
}

#[tokio::test]
async fn watch_begins_with_a_list_and_delivers_changes_below_its_prefix() {
    let Some(etcd) = Etcd::start(&[]).await else { return };
    let store = etcd.store("/cke/");
    write(&store, vec![put("sabakan/url", "1"), put("cluster", "1")]).await;
    let mut watched = Watched::new(&store, "sabakan/");
    watched.until_listed(1).await;
    assert_eq!(watched.state.keys().collect::<Vec<_>>(), ["sabakan/url"]);
    write(&store, vec![put("cluster", "2")]).await;
    let last =
        write(&store, vec![put("sabakan/template", "t"), Write::Delete { key: "sabakan/url".into() }]).await;
    watched.until(last).await;
    assert_eq!(watched.state.keys().collect::<Vec<_>>(), ["sabakan/template"]);
    assert_eq!(watched.changes.len(), 2, "the change of another key was delivered");
}

#[tokio::test]
async fn watch_resumes_after_a_restart_of_etcd() {
    let Some(mut etcd) = Etcd::start(&[]).await else { return };
    let store = etcd.store("/cke/");
    let mut watched = Watched::new(&store, "");
    watched.until_listed(1).await;
    for round in 0..3 {
        let last = write(&store, vec![put("a", round.to_string())]).await;
        watched.until(last).await;
        etcd.kill().await;
        while watched.interruptions <= round {
            watched.next().await;
        }
        etcd.start_again().await;
        // By another client, so that the write happens while the watch may still be interrupted.
        let last = write(&etcd.store("/cke/"), vec![put("b", round.to_string())]).await;
        watched.until(last).await;
    }
    assert_eq!((watched.lists, watched.changes.len()), (1, 6));
    assert_eq!(watched.interruptions, 3, "each stop is reported once");
}

/// The strongest of these tests: connections are cut and delayed at random during writes; every change is delivered
/// once, in order, and no transaction is split.
#[tokio::test]
async fn no_change_is_lost_doubled_or_split_however_often_the_connection_is_cut() {
    /// Each round starts with an attached watch, and ends when it has delivered everything.
    const ROUNDS: usize = 12;
    let Some(etcd) = Etcd::start(&[]).await else { return };
    let proxy = Proxy::to(etcd.endpoint()).await;
    let store = etcd.store("/cke/");
    let watching = EtcdStore::open(&config_at(&proxy.endpoint(), "/cke/"), 1).unwrap();
    let mut watched = Watched::new(&watching, "k/");
    watched.until_listed(1).await;
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    let mut written = Vec::new();
    let mut number = 0;
    for _ in 0..ROUNDS {
        let mut last = 0;
        let writes = rng.random_range(5..40);
        let first_cut = rng.random_range(0..writes);
        for n in 0..=writes {
            match rng.random_range(0..12) {
                _ if n == first_cut => proxy.cut(),
                0 => proxy.cut(),
                1 => proxy.weather(Weather::Deaf),
                2 | 3 => proxy.weather(Weather::Clear),
                _ => {}
            }
            let mut keys: Vec<u32> = (0..rng.random_range(1..5)).map(|_| rng.random_range(0..20)).collect();
            keys.sort_unstable();
            keys.dedup();
            number += 1;
            let value = number.to_string();
            last =
                write(&store, keys.iter().map(|key| put(&format!("k/{key}"), value.clone())).collect()).await;
            written.extend(keys.iter().map(|key| (last, format!("k/{key}"), value.clone())));
        }
        proxy.weather(Weather::Clear);
        while watched.revision < last {
            let (before, changes) = (watched.revision, watched.changes.len());
            watched.next().await;
            let within = |c| before < revision(c) && revision(c) <= watched.revision;
            assert!(watched.changes[changes..].iter().all(within), "a revision in two parts");
        }
    }
    let reported: Vec<_> = watched
        .changes
        .iter()
        .map(|change| {
            let value = &change.entry.as_ref().unwrap().value;
            (revision(change), change.key.clone(), String::from_utf8(value.to_vec()).unwrap())
        })
        .collect();
    assert_eq!(reported, written);
    assert_eq!(watched.lists, 1);
    assert!(watched.interruptions >= ROUNDS, "only {} interruptions", watched.interruptions);
}

fn revision(change: &KeyChange) -> i64 {
    change.entry.as_ref().map_or(0, |entry| entry.mod_revision)
}

#[tokio::test]
async fn large_fragmented_revisions_are_delivered_complete() {
    let Some(etcd) = Etcd::start(&[]).await else { return };
    let proxy = Proxy::to(etcd.endpoint()).await;
    let store = etcd.store("/cke/");
    let watching = EtcdStore::open(&config_at(&proxy.endpoint(), "/cke/"), 1).unwrap();
    let mut events = watching.watch("");
    assert!(matches!(within("a list", events.recv()).await, Some(WatchEvent::Listed(_))));
    proxy.weather(Weather::Deaf);
    let large = Bytes::from(vec![b'x'; 400_000]);
    let mut last = 0;
    for _ in 0..20 {
        let writes = (0..3).map(|key| put(&format!("k/{key}"), large.clone())).collect();
        last = write(&store, writes).await;
    }
    // The stream is reopened, and etcd sends the missed changes in as few answers as possible.
    proxy.cut();
    proxy.weather(Weather::Clear);
    let (mut revision, mut events_seen) = (0, 0);
    while revision < last {
        match within("changes", events.recv()).await {
            Some(WatchEvent::Changed { revision: now, changes }) => {
                let mut of_each: BTreeMap<i64, usize> = BTreeMap::new();
                for change in &changes {
                    *of_each.entry(change.entry.as_ref().unwrap().mod_revision).or_default() += 1;
                }
                assert!(of_each.values().all(|n| *n == 3), "a revision in parts: {of_each:?}");
                assert_eq!(of_each.keys().next_back(), Some(&now));
                revision = now;
                events_seen += of_each.len();
            }
            Some(WatchEvent::Interrupted(_)) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(events_seen, 20);
}

#[tokio::test]
async fn a_watch_that_missed_a_compaction_lists_everything_again() {
    let Some(etcd) = Etcd::start(&[]).await else { return };
    let proxy = Proxy::to(etcd.endpoint()).await;
    let store = etcd.store("/cke/");
    write(&store, vec![put("old", "1")]).await;
    let mut watched = Watched::new(&EtcdStore::open(&config_at(&proxy.endpoint(), "/cke/"), 1).unwrap(), "");
    watched.until_listed(1).await;
    proxy.weather(Weather::BlackHole);
    proxy.cut();
    write(&store, vec![put("a", "1"), Write::Delete { key: "old".into() }]).await;
    let last = write(&store, vec![put("a", "2")]).await;
    etcd.by_hand().await.compact(last, None).await.unwrap();
    proxy.weather(Weather::Clear);
    proxy.cut();
    watched.until_listed(2).await;
    assert_eq!(watched.state.keys().collect::<Vec<_>>(), ["a"]);
    let last = write(&store, vec![put("b", "1")]).await;
    watched.until(last).await;
    assert_eq!(watched.changes.len(), 1);
}

/// etcd before 3.6 omits the deletions at the compacted revision from a watch that starts there (its issue 18089).
#[tokio::test]
async fn a_deletion_that_is_compacted_away_is_not_missed() {
    let Some(etcd) = Etcd::start(&[]).await else { return };
    let proxy = Proxy::to(etcd.endpoint()).await;
    let store = etcd.store("/cke/");
    write(&store, vec![put("old", "1")]).await;
    let mut watched = Watched::new(&EtcdStore::open(&config_at(&proxy.endpoint(), "/cke/"), 1).unwrap(), "");
    watched.until_listed(1).await;
    proxy.weather(Weather::BlackHole);
    proxy.cut();
    let deleted = write(&store, vec![Write::Delete { key: "old".into() }]).await;
    etcd.by_hand().await.compact(deleted, None).await.unwrap();
    proxy.weather(Weather::Clear);
    proxy.cut();
    watched.until_listed(2).await;
    assert_eq!(watched.state.keys().collect::<Vec<_>>(), Vec::<&String>::new());
}

#[tokio::test]
async fn a_slow_receiver_holds_the_watch_up_and_loses_no_change() {
    let Some(etcd) = Etcd::start(&[]).await else { return };
    let store = etcd.store("/cke/");
    let mut stalled = Watched::new(&store, "");
    stalled.until_listed(1).await;
    let large = Bytes::from(vec![b'x'; 100_000]);
    let mut last = 0;
    for n in 0..200 {
        last = write(&store, vec![put(&format!("k/{}", n % 10), large.clone())]).await;
    }
    // 20 MB wait at the watch, and the same connection still answers.
    store.list("k/1").await.unwrap();
    stalled.until(last).await;
    assert_eq!((stalled.changes.len(), stalled.lists), (200, 1));
}

#[tokio::test]
async fn a_store_that_was_wiped_is_listed_again() {
    let Some(mut etcd) = Etcd::start(&[]).await else { return };
    let store = etcd.store("/cke/");
    let mut watched = Watched::new(&store, "");
    for n in 0..5 {
        write(&store, vec![put("a", n.to_string())]).await;
    }
    watched.until_listed(1).await;
    let before = write(&store, vec![put("b", "1")]).await;
    watched.until(before).await;
    etcd.kill().await;
    etcd.wipe();
    etcd.start_again().await;
    watched.until_listed(2).await;
    assert!(watched.state.is_empty());
    assert!(watched.revision < before, "the new store's revisions begin anew");
    let last = write(&etcd.store("/cke/"), vec![put("c", "1")]).await;
    watched.until(last).await;
    assert_eq!(watched.state.keys().collect::<Vec<_>>(), ["c"]);
}

#[tokio::test]
async fn another_store_at_a_higher_revision_is_recognised() {
    let Some(mut etcd) = Etcd::start(&[]).await else { return };
    let proxy = Proxy::to(etcd.endpoint()).await;
    let mut watched = Watched::new(&EtcdStore::open(&config_at(&proxy.endpoint(), "/cke/"), 1).unwrap(), "");
    let before = write(&etcd.store("/cke/"), vec![put("a", "1")]).await;
    watched.until_listed(1).await;
    watched.until(before).await;
    // Until the new store is past the watch's next revision, the watch does not reach it.
    proxy.weather(Weather::BlackHole);
    etcd.kill().await;
    etcd.wipe();
    etcd.start_again().await;
    let fresh = etcd.store("/cke/");
    for n in 0..20 {
        write(&fresh, vec![put("b", n.to_string())]).await;
    }
    proxy.weather(Weather::Clear);
    proxy.cut();
    watched.until_listed(2).await;
    assert_eq!(watched.state.keys().collect::<Vec<_>>(), ["b"]);
}

#[tokio::test]
async fn a_store_that_is_not_there_yet_is_waited_for() {
    let Some(mut etcd) = Etcd::start(&[]).await else { return };
    etcd.kill().await;
    let store = etcd.store("/cke/");
    let mut watched = Watched::new(&store, "");
    let error = store.list("").await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Unavailable, "{error}");
    etcd.start_again().await;
    watched.until_listed(1).await;
    assert_eq!(watched.interruptions, 0, "there was nothing to interrupt");
}

#[tokio::test]
async fn watch_ends_when_its_receiver_is_dropped() {
    let Some(etcd) = Etcd::start(&[]).await else { return };
    let store = etcd.store("/cke/");
    store.list("").await.unwrap();
    let alive = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = alive();
    let mut watched = Watched::new(&store, "");
    watched.until_listed(1).await;
    assert!(alive() > before);
    drop(watched);
    eventually("its task ends", async || (alive() <= before).then_some(())).await;
}
