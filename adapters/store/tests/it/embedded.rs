//! Tests of the etcd client on simulated time, over the embedded store and connections in memory.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use madako_domain::store::{Epoch, Outcome, StoreErrorKind, Transaction};
use madako_embedded_etcd::{Backend, Commit, EmbeddedEtcd, Options};
use madako_protocol::ports::Clock;
use madako_protocol::store::{CampaignCommand, CampaignEvent, CampaignOptions, Store as _, WatchEvent};
use madako_store::{BoxedStream, EtcdStore, StoreConfig};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use time::OffsetDateTime;
use tokio::time::{Instant, sleep, timeout};

use crate::etcd::{put, write};
use crate::proxy::{Way, Weather};

/// The store that is currently behind an address.
#[derive(Clone)]
pub(crate) struct Address(Arc<Mutex<Option<EmbeddedEtcd>>>);

impl Address {
    pub(crate) fn new(seed: u64) -> Self {
        let address = Self(Arc::new(Mutex::new(None)));
        address.replace(seed);
        address
    }

    /// Replaces the store by another, empty one.
    pub(crate) fn replace(&self, seed: u64) {
        let store =
            EmbeddedEtcd::open(Options::new(Backend::Memory, Commit::Inline, seed)).expect("it opens");
        *self.0.lock().expect("not poisoned") = Some(store);
    }

    /// A client of the current store over its own connection path.
    pub(crate) fn dial(&self, seed: u64) -> (EtcdStore, Way) {
        let way = Way::new();
        let (address, through) = (self.clone(), way.clone());
        let connect = move || {
            let (ours, theirs) = tokio::io::duplex(64 * 1024);
            let server =
                address.0.lock().expect("not poisoned").as_ref().map(EmbeddedEtcd::connect_in_memory);
            if let Some(server) = server {
                tokio::spawn(through.clone().carry(theirs, server));
            }
            async move { Ok(Box::new(ours) as BoxedStream) }
        };
        let config = StoreConfig { prefix: "/cke/".into(), ..StoreConfig::default() };
        (EtcdStore::with_connector(connect, &config, seed).expect("a good configuration"), way)
    }
}

/// The wall clock of paused time.
struct Wall(Instant);

impl Clock for Wall {
    fn now(&self) -> OffsetDateTime {
        OffsetDateTime::UNIX_EPOCH + self.0.elapsed()
    }
}

#[tokio::test(start_paused = true)]
async fn time_of_the_last_successful_store_answer_is_shown() {
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let shown = || {
        let page = handle.render();
        let value = page.lines().find_map(|line| line.strip_prefix("madako_store_answer_timestamp_seconds "));
        value.map(str::to_owned)
    };
    let (store, way) = Address::new(1).dial(1);
    store.list("").await.unwrap();
    assert_eq!(shown(), None, "a store without a clock shows nothing");
    let store = store.with_clock(Arc::new(Wall(Instant::now())));
    assert_eq!(shown(), None, "nothing was asked yet");
    sleep(Duration::from_secs(100)).await;
    store.with_absolute_keys().list("").await.unwrap();
    assert_eq!(shown().as_deref(), Some("100"));
    sleep(Duration::from_secs(100)).await;
    way.weather(Weather::BlackHole);
    store.list("").await.unwrap_err();
    assert_eq!(shown().as_deref(), Some("100"), "no answer is none");
    way.weather(Weather::Clear);
    sleep(Duration::from_secs(100)).await;
    let now = write(&store, vec![put("a", "1")]).await;
    assert!(now > 0 && shown().unwrap().parse::<u64>().unwrap() >= 300, "{:?}", shown());
}

#[tokio::test(start_paused = true)]
async fn a_half_open_connection_is_noticed_by_a_watch_that_waits() {
    let address = Address::new(1);
    let (store, way) = address.dial(1);
    let (writer, _) = address.dial(2);
    let mut events = store.watch("");
    assert!(matches!(events.recv().await, Some(WatchEvent::Listed(_))));
    way.weather(Weather::BlackHole);
    let began = Instant::now();
    let last = write(&writer, vec![put("a", "1")]).await;
    assert!(matches!(events.recv().await, Some(WatchEvent::Interrupted(_))));
    // A ping every 10 s, and 4 s for its answer.
    assert!(began.elapsed() <= Duration::from_secs(15), "noticed after {:?}", began.elapsed());
    way.weather(Weather::Clear);
    way.cut();
    match events.recv().await {
        Some(WatchEvent::Changed { revision, .. }) => assert_eq!(revision, last),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_hangs_costs_one_request_and_no_leadership() {
    let address = Address::new(1);
    let (store, way) = address.dial(1);
    // Shorter than the detection time of HTTP/2 pings.
    let mut campaign = store.campaign(CampaignOptions { host: "boot-0".into(), ttl: Duration::from_secs(6) });
    let Some(CampaignEvent::Elected(epoch)) = campaign.events.recv().await else { panic!("not elected") };
    for _ in 0..3 {
        way.strand();
        assert_eq!(store.list("").await.unwrap_err().kind, StoreErrorKind::Deadline);
        store.list("").await.unwrap();
        way.strand();
        // Failed renewals detect it as well.
        let event = timeout(Duration::from_secs(30), campaign.events.recv()).await;
        assert!(event.is_err(), "{event:?}");
        assert!(store.holds_until(&epoch).is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_watch_stays_open() {
    let address = Address::new(1);
    let (store, _way) = address.dial(1);
    let mut events = store.watch("");
    assert!(matches!(events.recv().await, Some(WatchEvent::Listed(_))));
    let event = timeout(Duration::from_secs(2 * 3600), events.recv()).await;
    assert!(event.is_err(), "{event:?}");
    write(&store, vec![put("a", "1")]).await;
    assert!(matches!(events.recv().await, Some(WatchEvent::Changed { .. })));
}

#[tokio::test(start_paused = true)]
async fn resumed_process_notices_its_ended_epoch_before_anything_else_runs() {
    let address = Address::new(1);
    let (store, _way) = address.dial(1);
    let options = CampaignOptions { host: "boot-0".into(), ttl: Duration::from_secs(60) };
    let mut campaign = store.campaign(options);
    let Some(CampaignEvent::Elected(epoch)) = campaign.events.recv().await else { panic!("not elected") };
    assert!(store.holds_until(&epoch).is_some());
    // The clock jumps as for a process that gets SIGCONT: no task has run in between.
    tokio::time::advance(Duration::from_secs(61)).await;
    assert_eq!(store.holds_until(&epoch), None);
    assert!(
        matches!(campaign.events.recv().await, Some(CampaignEvent::Lost { epoch: lost, .. }) if lost == epoch)
    );
}

#[tokio::test(start_paused = true)]
async fn a_client_that_exists_already_serves_as_well() {
    let embedded = EmbeddedEtcd::open(Options::new(Backend::Memory, Commit::Inline, 1)).unwrap();
    let config = StoreConfig { prefix: "/cke/".into(), ..StoreConfig::default() };
    let store = EtcdStore::from_client(embedded.direct_client().await.unwrap(), &config, 1).unwrap();
    let mut events = store.watch("");
    assert!(matches!(events.recv().await, Some(WatchEvent::Listed(_))));
    let mut campaign =
        store.campaign(CampaignOptions { host: "boot-0".into(), ttl: Duration::from_secs(60) });
    let Some(CampaignEvent::Elected(epoch)) = campaign.events.recv().await else { panic!("not elected") };
    match events.recv().await {
        Some(WatchEvent::Changed { revision, changes }) => {
            assert_eq!((revision, changes[0].key.as_str()), (epoch.number, epoch.key.as_str()));
        }
        other => panic!("{other:?}"),
    }
    let event = timeout(Duration::from_secs(600), campaign.events.recv()).await;
    assert!(event.is_err(), "{event:?}");
    assert!(store.holds_until(&epoch).is_some());
}

const INSTANCES: usize = 3;
/// Simulated time of one run.
const SPAN: Duration = Duration::from_secs(12 * 60);

/// A log of events, line by line.
struct History {
    lines: String,
    began: Instant,
}

impl History {
    fn add(&mut self, instance: usize, what: impl std::fmt::Display) {
        let at = self.began.elapsed();
        writeln!(self.lines, "{at:?} {instance} {what}").expect("a string takes all");
    }
}

/// Instances that campaign and write over randomly failing connections, and a store that is replaced.
async fn run(seed: u64) -> (String, BTreeMap<&'static str, u32>) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let address = Address::new(seed);
    let began = Instant::now();
    let mut history = History { lines: String::new(), began };
    let mut counts = BTreeMap::new();
    let mut count = |what| *counts.entry(what).or_insert(0) += 1;
    let (stores, ways): (Vec<_>, Vec<_>) =
        (0..INSTANCES).map(|n| address.dial(seed * 100 + n as u64)).unzip();
    let mut campaigns: Vec<_> = stores
        .iter()
        .enumerate()
        .map(|(n, store)| {
            store.campaign(CampaignOptions { host: format!("boot-{n}"), ttl: Duration::from_secs(20) })
        })
        .collect();
    let mut watches: Vec<_> = stores.iter().map(|store| store.watch("")).collect();
    let mut observed: Vec<BTreeMap<String, Bytes>> = vec![BTreeMap::new(); INSTANCES];
    let mut epochs: Vec<Option<Epoch>> = vec![None; INSTANCES];
    // True if an operator deleted the instance's key while it led. Until it learns of that, it considers itself the
    // leader.
    let mut deposed: Vec<bool> = vec![false; INSTANCES];
    let mut last_committed = 0;
    let mut written = 0u64;
    let mut breaks = true;
    let mut calm_since = None;
    loop {
        sleep(Duration::from_millis(rng.random_range(50..1500))).await;
        if began.elapsed() > SPAN && breaks {
            // The system must recover by itself.
            breaks = false;
            calm_since = Some(Instant::now());
            ways.iter().for_each(|way| {
                way.weather(Weather::Clear);
                way.cut();
            });
        }
        for n in 0..INSTANCES {
            while let Ok(event) = watches[n].try_recv() {
                match event {
                    WatchEvent::Listed(all) => {
                        count("listed");
                        observed[n] = all.entries.into_iter().map(|(key, e)| (key, e.value)).collect();
                    }
                    WatchEvent::Changed { revision, changes } => {
                        history.add(n, format_args!("saw {revision}"));
                        for change in changes {
                            match change.entry {
                                Some(entry) => drop(observed[n].insert(change.key, entry.value)),
                                None => drop(observed[n].remove(&change.key)),
                            }
                        }
                    }
                    WatchEvent::Interrupted(_) => count("interrupted"),
                }
            }
            while let Ok(event) = campaigns[n].events.try_recv() {
                history.add(n, format_args!("{event:?}"));
                match event {
                    CampaignEvent::Elected(epoch) => {
                        count("elected");
                        assert_eq!(epochs[n].replace(epoch), None, "elected twice");
                    }
                    CampaignEvent::Lost { epoch, .. } => {
                        count("lost");
                        deposed[n] = false;
                        assert_eq!(epochs[n].take(), Some(epoch));
                    }
                    CampaignEvent::Waiting { .. } => {}
                    CampaignEvent::Unavailable(_) => count("unavailable"),
                }
            }
        }
        // I1: at most one instance may act by its own clock.
        let holds: Vec<_> = (0..INSTANCES)
            .filter(|&n| epochs[n].as_ref().is_some_and(|e| stores[n].holds_until(e).is_some()))
            .collect();
        let undisturbed = holds.iter().filter(|&&n| !deposed[n]).count();
        assert!(undisturbed <= 1, "{holds:?} lead at {:?}:\n{}", began.elapsed(), history.lines);
        // No writes in the final phase, so that all instances can reach the same state.
        let writes = calm_since.is_none_or(|since: Instant| since.elapsed() < Duration::from_secs(30));
        if let Some(n) = (writes && !holds.is_empty()).then(|| holds[rng.random_range(0..holds.len())]) {
            written += 1;
            let epoch = epochs[n].as_ref().expect("it holds");
            let (fence, number) = (epoch.fencing_condition(), epoch.number);
            let transaction = Transaction {
                conditions: vec![fence],
                writes: vec![put(&format!("k/{}", written % 7), written.to_string())],
            };
            let outcome = timeout(Duration::from_millis(500), stores[n].commit(transaction)).await;
            match outcome {
                Ok(Ok(Outcome::Committed { revision })) => {
                    count("committed");
                    // I1 in the store, where it holds even against operators.
                    assert!(number >= last_committed, "epoch {number} wrote after {last_committed}");
                    last_committed = number;
                    history.add(n, format_args!("committed {written} at {revision}"));
                }
                Ok(Ok(Outcome::Refused { .. })) => count("refused"),
                Ok(Err(_)) | Err(_) => count("uncertain"),
            }
        }
        if let Some(since) = calm_since {
            let all = stores[0].list("").await.ok().map(|all| {
                all.entries.into_iter().map(|(key, e)| (key, e.value)).collect::<BTreeMap<_, _>>()
            });
            if holds.len() == 1 && all.is_some_and(|all| observed.iter().all(|observed| *observed == all)) {
                return (history.lines, counts);
            }
            assert!(since.elapsed() < Duration::from_secs(120), "no rest:\n{}", history.lines);
            continue;
        }
        let n = rng.random_range(0..INSTANCES);
        match rng.random_range(0..150) {
            0..4 => ways[n].cut(),
            4..7 => ways[n].weather(Weather::BlackHole),
            7..10 => ways[n].weather(Weather::Deaf),
            10..24 => ways[n].weather(Weather::Clear),
            24..26 => {
                let pause = Duration::from_secs(rng.random_range(0..10));
                drop(campaigns[n].commands.try_send(CampaignCommand::Yield { pause }));
            }
            26 => {
                count("replaced");
                history.add(n, "the store is replaced by an empty one");
                address.replace(rng.random_range(0..1 << 40));
                last_committed = 0;
                holds.iter().for_each(|&n| deposed[n] = true);
            }
            27..30 => {
                // An operator deletes the leader's key.
                let keys = stores[n].list("leader//").await.map(|all| all.entries).unwrap_or_default();
                let first = keys.iter().min_by_key(|(_, entry)| entry.create_revision);
                if let Some((key, _)) = first {
                    let delete = madako_domain::store::Write::Delete { key: key.clone() };
                    let transaction = Transaction { conditions: vec![], writes: vec![delete] };
                    drop(stores[n].commit(transaction).await);
                    count("deleted");
                    holds.iter().for_each(|&n| deposed[n] = true);
                }
            }
            _ => {}
        }
    }
}

#[tokio::test(start_paused = true)]
async fn one_leader_at_a_time_and_watches_agree_under_faults() {
    for seed in 1..=2 {
        let (_, counts) = run(seed).await;
        println!("seed {seed}: {counts:?}");
        for what in ["elected", "lost", "committed", "listed", "interrupted", "replaced", "deleted"] {
            assert!(counts.contains_key(what), "seed {seed} never saw {what}: {counts:?}");
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_history() {
    let history = || {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(run(9)).0
    };
    let (one, other) = (history(), history());
    if let Some((line, other)) = one.lines().zip(other.lines()).find(|(line, other)| line != other) {
        panic!("the runs part:\n{line}\n{other}");
    }
    assert_eq!(one, other);
}
