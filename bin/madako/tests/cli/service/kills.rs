//! Tests of `kill -9` on the service with its embedded store, while etcd clients use the store: acknowledged writes are
//! present, and no watch misses an event.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use etcd_client::{Client, CompactionOptions, EventType, GetOptions, WatchOptions};
use tokio::task::JoinSet;

use super::embedded::site_with_cache;
use super::site::QUICK;
use super::stage::eventually;

const WRITERS: u64 = 4;
const KEYS: u64 = 5;
/// One in this many values is large, with up to `LARGE_BYTES`.
const LARGE_ONE_IN: u64 = 6;
const LARGE_BYTES: u64 = 300_000;
/// Revisions that compaction keeps.
const KEPT: i64 = 60;
/// Maximum acknowledged writes before a kill.
const MOST_WRITES: u64 = 60;
/// Lives of the process within which the watch receives an event: a single life may end before its first one.
const WATCHED_WITHIN: u64 = 10;
/// Cache sizes: less than one large value, and more than all of them.
const CACHES: [u64; 2] = [256 * 1024, 32 * 1024 * 1024];

/// Answers to clients, over all lives of the process.
#[derive(Default)]
struct AcknowledgedWrites {
    /// Key and written number by revision.
    acknowledged: BTreeMap<i64, (String, u64)>,
    /// The same from the watch.
    watched: BTreeMap<i64, (String, u64)>,
    /// Newest number of each writer that may have arrived.
    sent: BTreeMap<u64, u64>,
}

impl AcknowledgedWrites {
    /// The last revision that the watch delivered; 0: none.
    fn last_watched(&self) -> i64 {
        self.watched.last_key_value().map_or(0, |(revision, _)| *revision)
    }

    fn last_acknowledged(&self) -> i64 {
        self.acknowledged.last_key_value().map_or(0, |(revision, _)| *revision)
    }

    /// The watch delivered each acknowledged write up to its last revision.
    fn check(&self, kill: u64) {
        for (revision, written) in self.acknowledged.range(..=self.last_watched()) {
            assert_eq!(self.watched.get(revision), Some(written), "kill {kill}: revision {revision}");
        }
    }
}

/// A generator by seed (SplitMix64).
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % limit
    }
}

fn number(value: &[u8]) -> u64 {
    let digits = value.split(|byte| *byte == b' ').next().unwrap();
    std::str::from_utf8(digits).unwrap().parse().expect("each value begins with its number")
}

/// Writes until the process is gone.
async fn write(mut client: Client, writer: u64, writes: Arc<Mutex<AcknowledgedWrites>>, mut dice: Dice) {
    loop {
        let key = format!("kills/{writer}/{}", dice.below(KEYS));
        let sent = {
            let mut writes = writes.lock().unwrap();
            let sent = writes.sent.entry(writer).or_default();
            *sent += 1;
            *sent
        };
        let len = if dice.below(LARGE_ONE_IN) == 0 { dice.below(LARGE_BYTES) } else { dice.below(3_000) };
        let value = format!("{sent} {}", "x".repeat(len as usize));
        let Ok(response) = client.put(key.clone(), value, None).await else { return };
        let revision = response.header().unwrap().revision();
        writes.lock().unwrap().acknowledged.insert(revision, (key, sent));
        if dice.below(10) == 0 {
            // Not beyond the watch's last revision. An already compacted revision is refused; a killed process gives no
            // answer.
            let watched = writes.lock().unwrap().last_watched();
            let physical = (dice.below(2) == 0).then(|| CompactionOptions::new().with_physical());
            let _ = client.compact(watched.min(revision - KEPT), physical).await;
        }
    }
}

/// Reads present and past values until the process is gone.
async fn read(mut client: Client, mut dice: Dice) {
    loop {
        let key = format!("kills/{}/{}", dice.below(WRITERS), dice.below(KEYS));
        let Ok(now) = client.get(key.clone(), None).await else { return };
        let then = GetOptions::new()
            .with_revision((now.header().unwrap().revision() - dice.below(50) as i64).max(1));
        let then = client.get(key, Some(then)).await;
        for kv in now.kvs().iter().chain(then.iter().flat_map(|then| then.kvs())) {
            number(kv.value());
        }
    }
}

/// Watches from the last received revision until the process is gone.
async fn watch(mut client: Client, writes: Arc<Mutex<AcknowledgedWrites>>) {
    let next = writes.lock().unwrap().last_watched() + 1;
    let options = WatchOptions::new().with_prefix().with_start_revision(next);
    let Ok(mut stream) = client.watch("kills/", Some(options)).await else { return };
    while let Ok(Some(response)) = stream.message().await {
        assert_eq!(response.compact_revision(), 0, "an undelivered revision is compacted");
        let mut writes = writes.lock().unwrap();
        for event in response.events().iter().filter(|event| event.event_type() == EventType::Put) {
            let kv = event.kv().unwrap();
            let written = (kv.key_str().unwrap().to_owned(), number(kv.value()));
            assert_eq!(writes.watched.insert(kv.mod_revision(), written), None, "an event came twice");
        }
    }
}

/// Kills a service this many times, and finally waits until the watch has received every acknowledged write.
async fn kill_and_start_again(kills: u64, seed: u64, cache_bytes: u64) {
    let site = site_with_cache(cache_bytes).await;
    let writes = Arc::new(Mutex::new(AcknowledgedWrites::default()));
    let mut dice = Dice(seed);
    let mut watched = 0;
    for kill in 0..=kills {
        let service = site.serve("30s", QUICK).await;
        let mut client = site.keys.client().await;
        let newest = {
            let writes = writes.lock().unwrap();
            let mut newest: BTreeMap<String, (i64, u64)> = BTreeMap::new();
            for (revision, (key, number)) in &writes.acknowledged {
                newest.insert(key.clone(), (*revision, *number));
            }
            newest
        };
        for (key, (revision, written)) in newest {
            let found = client.get(key.clone(), None).await.unwrap();
            let kv = found.kvs().first().unwrap_or_else(|| panic!("kill {kill}: {key} is gone"));
            // A later write may have arrived without an acknowledgement.
            let is_it = kv.mod_revision() == revision && number(kv.value()) == written;
            assert!(is_it || kv.mod_revision() > revision, "kill {kill}: {key} is older than acknowledged");
        }
        let enough = writes.lock().unwrap().acknowledged.len() as u64 + 1 + dice.below(MOST_WRITES);
        let mut clients = JoinSet::new();
        clients.spawn(watch(site.keys.client().await, Arc::clone(&writes)));
        clients.spawn(read(site.keys.client().await, Dice(dice.below(u64::MAX))));
        for writer in 0..WRITERS {
            let dice = Dice(dice.below(u64::MAX));
            clients.spawn(write(site.keys.client().await, writer, Arc::clone(&writes), dice));
        }
        eventually("clients are answered", async || {
            (writes.lock().unwrap().acknowledged.len() as u64 >= enough).then_some(())
        })
        .await;
        let log = service.kill().await;
        assert!(!log.contains("panicked"), "kill {kill}: {log}");
        while let Some(ended) = clients.join_next().await {
            ended.expect("no client met anything wrong");
        }
        let writes = writes.lock().unwrap();
        writes.check(kill);
        if kill % WATCHED_WITHIN == WATCHED_WITHIN - 1 {
            let before = std::mem::replace(&mut watched, writes.last_watched());
            assert!(before < watched, "kill {kill}: no event of {WATCHED_WITHIN} lives after {before}");
        }
    }
    let service = site.serve("30s", QUICK).await;
    let mut watching = JoinSet::new();
    watching.spawn(watch(site.keys.client().await, Arc::clone(&writes)));
    eventually("the watch has every acknowledged write", async || {
        let writes = writes.lock().unwrap();
        (writes.last_watched() >= writes.last_acknowledged()).then_some(())
    })
    .await;
    writes.lock().unwrap().check(kills + 1);
    service.kill().await;
    while let Some(ended) = watching.join_next().await {
        ended.expect("the watch met nothing wrong");
    }
}

#[tokio::test]
async fn no_acknowledged_write_is_lost_when_the_service_is_killed() {
    for cache_bytes in CACHES {
        kill_and_start_again(5, 16, cache_bytes).await;
    }
}

#[tokio::test]
#[ignore = "minutes: make test-long"]
async fn no_acknowledged_write_is_lost_in_a_thousand_kills_of_the_service() {
    for (seed, cache_bytes) in (0..10).zip(CACHES.into_iter().cycle()) {
        kill_and_start_again(100, seed, cache_bytes).await;
    }
}
