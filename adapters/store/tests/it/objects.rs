//! Tests of the cache of placement's resources while connections and stores fail.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use madako_domain::placement::kind::{Kind, ObjectKey};
use madako_domain::placement::objects::Change;
use madako_domain::store::{Condition, Outcome, StoreErrorKind, Transaction, Write};
use madako_protocol::placement::objects::{Follower, FollowerGap, Objects as _, Selection};
use madako_protocol::store::Store as _;
use madako_store::{CachedObjects, EtcdStore};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use tokio::time::{Instant, timeout};

use crate::embedded::Address;
use crate::etcd::{Etcd, PATIENCE, config_at, eventually, put, within, write};
use crate::proxy::{Proxy, Weather};

pub(crate) fn key(name: &str) -> ObjectKey {
    ObjectKey::new(Kind::Role, None, name)
}

/// A role; its uid distinguishes values.
pub(crate) fn role(name: &str, uid: impl std::fmt::Display) -> Write {
    let value = format!(
        r#"{{"api": "core", "kind": "Role", "metadata": {{"name": "{name}", "uid": "{uid}",
            "created": "2026-01-01T00:00:00", "modified": "2026-01-01T00:00:00"}}, "rules": []}}"#
    );
    put(&key(name).etcd_key(), value)
}

fn shown(objects: &CachedObjects) -> BTreeMap<String, String> {
    let (_, all) = objects.list(Selection { kind: Kind::Role, namespace: None });
    all.iter().map(|stored| (stored.key.name.clone(), stored.object.metadata().uid.clone())).collect()
}

pub(crate) async fn fresh(objects: &CachedObjects) -> BTreeMap<String, String> {
    objects.refresh().await.expect("a fresh view");
    shown(objects)
}

/// Repeats a read while the store comes and goes, until it succeeds.
async fn fresh_at_last(objects: &CachedObjects) -> BTreeMap<String, String> {
    eventually("a fresh view", async || objects.refresh().await.ok()).await;
    shown(objects)
}

fn of(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, uid)| ((*name).to_owned(), (*uid).to_owned())).collect()
}

#[tokio::test]
async fn fresh_read_includes_all_earlier_writes_of_any_client() {
    let Some(etcd) = Etcd::start(&[]).await else { return };
    let store = etcd.store("/cke/");
    let objects = CachedObjects::start(&store);
    assert_eq!(fresh(&objects).await, of(&[]));
    let mut by_hand = etcd.by_hand().await;
    for n in 0..50 {
        let uid = n.to_string();
        let transaction = Transaction { conditions: vec![], writes: vec![role("own", &uid)] };
        let Outcome::Committed { revision } = objects.commit(transaction).await.unwrap() else { panic!() };
        assert!(objects.refresh().await.unwrap() >= revision);
        assert_eq!(objects.get(&key("own")).unwrap().object.metadata().uid, uid);
        assert_eq!(objects.get(&key("own")).unwrap().mod_revision, revision);

        let Write::Put { key: at, value, .. } = role("foreign", &uid) else { panic!() };
        by_hand.put(at, value.to_vec(), None).await.unwrap();
        assert_eq!(fresh(&objects).await, of(&[("foreign", &uid), ("own", &uid)]));
    }
    by_hand.delete(key("own").etcd_key(), None).await.unwrap();
    assert_eq!(fresh(&objects).await, of(&[("foreign", "49")]));
    let unchanged = Condition::Unchanged { key: key("foreign").etcd_key(), revision: 1 };
    let refused = Transaction { conditions: vec![unchanged.clone()], writes: vec![role("foreign", "x")] };
    assert_eq!(objects.commit(refused).await.unwrap(), Outcome::Refused { failed: vec![unchanged] });
}

#[tokio::test]
async fn fresh_read_reaches_revisions_of_foreign_keys() {
    let Some(etcd) = Etcd::start(&[]).await else { return };
    let store = etcd.store("/cke/");
    let objects = CachedObjects::start(&store);
    write(&store.with_absolute_keys(), vec![role("a", 1)]).await;
    let mut by_hand = etcd.by_hand().await;
    // Keys that are not UTF-8, outside placement, or at the ends of the key space.
    for at in [&b"\xff\xfe"[..], b"\x01", b"/cke/cluster", b"/core/\xff", b"/core/rolesque", b"\xff\xff\xff"]
    {
        let put = by_hand.put(at, vec![b'x'; 100_000], None).await.unwrap();
        assert!(objects.refresh().await.unwrap() >= put.header().unwrap().revision());
        by_hand.delete(at, None).await.unwrap();
        objects.refresh().await.unwrap();
    }
    // A lease, a compaction and a transaction without a change do not raise the revision.
    let lease = by_hand.lease_grant(1, None).await.unwrap().id();
    let with_lease = etcd_client::PutOptions::new().with_lease(lease);
    let last = by_hand.put("/x", "1", Some(with_lease)).await.unwrap().header().unwrap().revision();
    by_hand.compact(last, None).await.unwrap();
    by_hand.delete("/not-there", None).await.unwrap();
    assert_eq!(objects.refresh().await.unwrap(), last);
    // The expiry of the lease does.
    eventually("the lease ends", async || (objects.refresh().await.unwrap() > last).then_some(())).await;
    assert_eq!(shown(&objects), of(&[("a", "1")]));
}

#[tokio::test]
async fn unreadable_values_are_faults_until_they_are_corrected() {
    let Some(etcd) = Etcd::start(&[]).await else { return };
    let root = etcd.store("/cke/").with_absolute_keys();
    write(&root, vec![role("a", 1), put("/core/roles/b", "{"), put("/core/roles/c", vec![0xff])]).await;
    let objects = CachedObjects::start(&root);
    assert_eq!(fresh(&objects).await, of(&[("a", "1")]));
    let faults =
        |objects: &CachedObjects| objects.faults().into_iter().map(|fault| fault.key).collect::<Vec<_>>();
    assert_eq!(faults(&objects), ["/core/roles/b", "/core/roles/c"]);
    write(&root, vec![role("b", 2), Write::Delete { key: "/core/roles/c".into() }]).await;
    write(&root, vec![put("/core/roles/a", "null")]).await;
    assert_eq!(fresh(&objects).await, of(&[("b", "2")]));
    assert_eq!(faults(&objects), ["/core/roles/a"]);
}

/// The property that readers rely on: every read that begins after a write was acknowledged sees that write.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fresh_reads_include_all_acknowledged_writes() {
    const WRITERS: usize = 6;
    const READERS: usize = 6;
    const READS: usize = 300;
    let Some(etcd) = Etcd::start(&[]).await else { return };
    let objects = Arc::new(CachedObjects::start(&etcd.store("/cke/")));
    let acknowledged: Arc<Vec<AtomicI64>> = Arc::new((0..WRITERS).map(|_| AtomicI64::new(-1)).collect());
    let done = Arc::new(AtomicU64::new(0));
    let writers: Vec<_> = (0..WRITERS)
        .map(|n| {
            let store = etcd.store("/cke/");
            let (acknowledged, done) = (Arc::clone(&acknowledged), Arc::clone(&done));
            tokio::spawn(async move {
                let root = store.with_absolute_keys();
                let mut count = 0;
                while done.load(Ordering::SeqCst) < READERS as u64 {
                    // Some of the writes concern keys outside placement.
                    write(&store, vec![put("cluster", count.to_string())]).await;
                    write(&root, vec![role(&n.to_string(), count)]).await;
                    acknowledged[n].store(count, Ordering::SeqCst);
                    count += 1;
                }
                count
            })
        })
        .collect();
    let readers: Vec<_> = (0..READERS)
        .map(|_| {
            let (objects, acknowledged, done) =
                (Arc::clone(&objects), Arc::clone(&acknowledged), Arc::clone(&done));
            tokio::spawn(async move {
                for _ in 0..READS {
                    let before: Vec<i64> =
                        acknowledged.iter().map(|count| count.load(Ordering::SeqCst)).collect();
                    objects.refresh().await.unwrap();
                    for (n, before) in before.iter().enumerate() {
                        let text = objects.get(&key(&n.to_string()));
                        let text: i64 =
                            text.map_or(-1, |stored| stored.object.metadata().uid.parse().unwrap());
                        assert!(
                            text >= *before,
                            "writer {n} got the answer for {before}, a read returned {text}"
                        );
                    }
                }
                done.fetch_add(1, Ordering::SeqCst);
            })
        })
        .collect();
    for reader in readers {
        reader.await.unwrap();
    }
    let mut written = 0;
    for writer in writers {
        written += writer.await.unwrap();
    }
    assert!(written > READS as i64 / 10, "only {written} writes came between the reads");
}

#[tokio::test]
async fn the_view_follows_a_store_that_is_emptied_and_filled_a_hundred_times() {
    let Some(etcd) = Etcd::start(&[]).await else { return };
    let store = etcd.store("/cke/");
    let objects = CachedObjects::start(&store);
    let root = store.with_absolute_keys();
    let mut by_hand = etcd.by_hand().await;
    for round in 0..100 {
        write(&root, (0..20).map(|n| role(&n.to_string(), round)).collect()).await;
        let all = fresh(&objects).await;
        assert!(all.len() == 20 && all.values().all(|uid| *uid == round.to_string()), "{all:?}");
        by_hand.delete("", Some(etcd_client::DeleteOptions::new().with_all_keys())).await.unwrap();
        assert_eq!(fresh(&objects).await, of(&[]));
    }
}

#[tokio::test]
async fn wiped_and_refilled_store_is_not_mistaken_for_the_former_store() {
    let Some(mut etcd) = Etcd::start(&[]).await else { return };
    let proxy = Proxy::to(etcd.endpoint()).await;
    let objects = CachedObjects::start(&EtcdStore::open(&config_at(&proxy.endpoint(), "/cke/"), 1).unwrap());
    let mut revisions = Vec::new();
    for round in 0..2 {
        // The same keys at the same revisions with other values: only the values distinguish the stores.
        let root = etcd.store("/cke/").with_absolute_keys();
        for n in 0..5 {
            revisions.push(write(&root, vec![role(&n.to_string(), round)]).await);
        }
        assert_eq!(revisions[revisions.len() - 5..], revisions[..5]);
        // The watch reconnects after all keys are there again.
        proxy.weather(Weather::Clear);
        proxy.cut();
        let all = fresh_at_last(&objects).await;
        assert!(
            all.len() == 5 && all.values().all(|uid| *uid == round.to_string()),
            "round {round}: {all:?}"
        );
        proxy.weather(Weather::BlackHole);
        etcd.kill().await;
        etcd.wipe();
        etcd.start_again().await;
    }
    proxy.weather(Weather::Clear);
    proxy.cut();
    assert_eq!(fresh_at_last(&objects).await, of(&[]));
}

#[tokio::test(start_paused = true)]
async fn the_view_follows_a_store_that_is_replaced_a_hundred_times() {
    let address = Address::new(1);
    let (store, way) = address.dial(1);
    let objects = CachedObjects::start(&store);
    let mut relisted = 0;
    for round in 0..100u64 {
        let (writer, _way) = address.dial(1000 + round);
        let root = writer.with_absolute_keys();
        let (_, _, mut follower) = objects.follow_all();
        // More revisions than the earlier store, fewer, or the same number.
        let revisions = 1 + round % 3;
        for n in 0..revisions {
            write(&root, vec![role(&n.to_string(), round)]).await;
        }
        let all = fresh_at_last(&objects).await;
        assert_eq!(all.len() as u64, revisions, "round {round}");
        assert!(all.values().all(|uid| *uid == round.to_string()), "round {round}: {all:?}");
        relisted += u32::from(matches!(follower.next().await, Err(FollowerGap::Relisted { .. })));
        address.replace(round + 2);
        way.cut();
    }
    assert!(relisted >= 99, "{relisted}");
}

/// Applies changes to the first list, and asserts that none is lost or repeated.
struct Followed {
    follower: Box<dyn Follower>,
    seen: BTreeMap<String, i64>,
    delivered: Vec<(i64, String)>,
}

impl Followed {
    fn all(objects: &CachedObjects) -> Self {
        let (_, all, follower) = objects.follow_all();
        let seen = all.iter().map(|stored| (stored.key.name.clone(), stored.mod_revision)).collect();
        Self { follower, seen, delivered: vec![] }
    }

    fn take(&mut self, changes: Vec<Arc<Change>>) {
        for change in changes {
            let name = change.key.name.clone();
            assert_eq!(
                self.seen.get(&name).copied(),
                change.before.as_ref().map(|stored| stored.mod_revision)
            );
            match &change.after {
                Some(after) => drop(self.seen.insert(name.clone(), after.mod_revision)),
                None => drop(self.seen.remove(&name)),
            }
            assert!(self.delivered.last().is_none_or(|(last, _)| *last <= change.revision), "in order");
            self.delivered.push((change.revision, name));
        }
    }

    async fn until(&mut self, revision: i64) {
        while self.delivered.last().is_none_or(|(last, _)| *last < revision) {
            let changes = within("changes", self.follower.next()).await.expect("no gap");
            assert!(!changes.is_empty());
            self.take(changes);
        }
    }
}

#[tokio::test]
async fn followers_resume_after_a_restart_of_etcd() {
    let Some(mut etcd) = Etcd::start(&[]).await else { return };
    let store = etcd.store("/cke/");
    let objects = CachedObjects::start(&store);
    objects.refresh().await.unwrap();
    let mut followed = Followed::all(&objects);
    let mut written = Vec::new();
    for round in 0..3 {
        let last = write(&store.with_absolute_keys(), vec![role("a", round)]).await;
        written.push((last, "a".to_owned()));
        followed.until(last).await;
        etcd.kill().await;
        let began = Instant::now();
        let error = objects.refresh().await.unwrap_err();
        assert!(
            matches!(error.kind, StoreErrorKind::Unavailable | StoreErrorKind::Deadline),
            "{error}: a read fails rather than return an old value"
        );
        assert!(began.elapsed() < Duration::from_secs(3));
        let uid = round.to_string();
        let as_before = [("a", uid.as_str()), ("b", "x")];
        assert_eq!(shown(&objects), of(&as_before[..1 + usize::from(round > 0)]));
        etcd.start_again().await;
        let last = write(&etcd.store("/cke/").with_absolute_keys(), vec![role("b", "x")]).await;
        written.push((last, "b".to_owned()));
        followed.until(last).await;
        assert_eq!(fresh_at_last(&objects).await, of(&[("a", &round.to_string()), ("b", "x")]));
    }
    assert_eq!(followed.delivered, written);
}

#[tokio::test]
async fn no_change_is_lost_or_delivered_twice_under_repeated_cuts() {
    const ROUNDS: usize = 8;
    let Some(etcd) = Etcd::start(&[]).await else { return };
    let proxy = Proxy::to(etcd.endpoint()).await;
    let root = etcd.store("/cke/").with_absolute_keys();
    let objects = CachedObjects::start(&EtcdStore::open(&config_at(&proxy.endpoint(), "/cke/"), 1).unwrap());
    objects.refresh().await.unwrap();
    let mut all = Followed::all(&objects);
    let mut rng = ChaCha8Rng::seed_from_u64(11);
    let mut written = Vec::new();
    let mut reads = 0;
    for round in 0..ROUNDS {
        let start = fresh_at_last(&objects).await.len();
        let after = objects.refresh().await.unwrap_or_else(|_| objects.revision().unwrap());
        let mut since = objects.follow(after).expect("it is kept");
        let first = written.len();
        let (mut last, mut begun) = (0, Instant::now());
        for n in 0..rng.random_range(10..40) {
            match rng.random_range(0..12) {
                _ if n == 3 => proxy.cut(),
                0 => proxy.cut(),
                1 => proxy.weather(Weather::Deaf),
                2 | 3 => proxy.weather(Weather::Clear),
                _ => {}
            }
            let name = rng.random_range(0..15).to_string();
            let delete = rng.random_range(0..4) == 0 && written.iter().any(|(_, known)| *known == name);
            let change = if delete { Write::Delete { key: key(&name).etcd_key() } } else { role(&name, n) };
            let now = write(&root, vec![change, put("/cke/cluster", n.to_string())]).await;
            // Deleting a missing key changes nothing.
            let there =
                root.list(&key(&name).etcd_key()).await.unwrap().entries.contains_key(&key(&name).etcd_key());
            assert_eq!(there, !delete);
            written.push((now, name));
            last = now;
            if begun.elapsed() > Duration::from_millis(50) {
                // A read succeeds correctly or fails; it does not hang.
                let read = timeout(PATIENCE, objects.refresh()).await.expect("within the deadline");
                if let Ok(revision) = read {
                    assert!(revision >= now && objects.revision().unwrap() >= now);
                    reads += 1;
                }
                begun = Instant::now();
            }
        }
        proxy.weather(Weather::Clear);
        // The last write is certain to be a change.
        let end = write(&root, vec![role("end", round)]).await;
        written.push((end, "end".to_owned()));
        assert!(last < end);
        all.until(end).await;
        let mut delivered = Vec::new();
        while delivered.last().is_none_or(|(revision, _)| *revision < end) {
            let changes = within("changes", since.next()).await.expect("no gap");
            delivered.extend(changes.iter().map(|change| (change.revision, change.key.name.clone())));
        }
        let told_by_all: Vec<_> =
            all.delivered.iter().filter(|(revision, _)| *revision > after).cloned().collect();
        assert_eq!(delivered, told_by_all, "round {round}, after {after}, {start} at first");
        let changes = |(revision, name): &(i64, String)| delivered.contains(&(*revision, name.clone()));
        let missed = written[first..].iter().filter(|change| !changes(change)).count();
        // Deletions of missing keys are the only writes without a change.
        let puts = delivered.len();
        assert_eq!(puts + missed, written.len() - first);
    }
    let now = fresh_at_last(&objects).await;
    assert_eq!(now.keys().collect::<Vec<_>>(), all.seen.keys().collect::<Vec<_>>());
    println!("{reads} reads, {} changes", all.delivered.len());
}

#[tokio::test]
async fn follower_across_a_compaction_gets_a_gap_and_the_view_is_complete() {
    let Some(etcd) = Etcd::start(&[]).await else { return };
    let proxy = Proxy::to(etcd.endpoint()).await;
    let root = etcd.store("/cke/").with_absolute_keys();
    write(&root, vec![role("old", 1)]).await;
    let objects = CachedObjects::start(&EtcdStore::open(&config_at(&proxy.endpoint(), "/cke/"), 1).unwrap());
    let before = objects.refresh().await.unwrap();
    let mut follower = objects.follow(before).unwrap();
    proxy.weather(Weather::BlackHole);
    proxy.cut();
    write(&root, vec![role("a", 1), Write::Delete { key: key("old").etcd_key() }]).await;
    let last = write(&root, vec![role("a", 2)]).await;
    etcd.by_hand().await.compact(last, None).await.unwrap();
    proxy.weather(Weather::Clear);
    proxy.cut();
    assert!(matches!(within("a gap", follower.next()).await, Err(FollowerGap::Relisted { .. })));
    assert_eq!(fresh_at_last(&objects).await, of(&[("a", "2")]));
    assert!(matches!(objects.follow(before), Err(FollowerGap::Relisted { .. })));
    // A compaction of delivered changes has no effect on followers.
    let (revision, _, mut follower) = objects.follow_all();
    let last = write(&root, vec![role("b", 1)]).await;
    etcd.by_hand().await.compact(last, None).await.unwrap();
    let last = write(&root, vec![role("c", 1)]).await;
    assert!(last > revision);
    let mut reported = Vec::new();
    while reported.len() < 2 {
        reported.extend(within("changes", follower.next()).await.unwrap());
    }
    assert_eq!(reported.last().unwrap().revision, last);
}
