//! Tests of leadership: at most one leader at a time, an epoch that ends in time, and a hand-over without delay.

use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::process::{ChildStdout, Command, Stdio};
use std::time::Duration;

use madako_domain::store::{Epoch, Outcome, StoreErrorKind, Transaction, Write};
use madako_protocol::store::{
    Campaign, CampaignCommand, CampaignEvent, CampaignOptions, Store as _, WatchEvent,
};
use madako_store::{EtcdStore, StoreConfig};
use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use crate::etcd::{Etcd, cluster, config_at, eventually, put, within, write, write_if};
use crate::proxy::{Proxy, Weather};

/// The shortest useful lease, because etcd's expiry has steps of 500 ms.
const TTL: Duration = Duration::from_secs(2);
/// Time limit of a handover.
const HANDOVER: Duration = Duration::from_millis(200);

fn stand(store: &EtcdStore, host: &str) -> Campaign {
    store.campaign(CampaignOptions { host: host.into(), ttl: TTL })
}

async fn next(campaign: &mut Campaign) -> CampaignEvent {
    within("the campaign tells something", campaign.events.recv()).await.expect("it goes on")
}

async fn elected(campaign: &mut Campaign) -> Epoch {
    match next(campaign).await {
        CampaignEvent::Elected(epoch) => epoch,
        other => panic!("{other:?} instead of an election"),
    }
}

async fn waiting(campaign: &mut Campaign) -> String {
    match next(campaign).await {
        CampaignEvent::Waiting { leader } => leader,
        other => panic!("{other:?} instead of waiting"),
    }
}

async fn lost(campaign: &mut Campaign) -> (Epoch, String) {
    match next(campaign).await {
        CampaignEvent::Lost { epoch, why } => (epoch, why),
        other => panic!("{other:?} instead of a loss"),
    }
}

async fn stop(campaign: &Campaign) {
    let (done, stopped) = oneshot::channel();
    campaign.commands.send(CampaignCommand::Stop { done }).await.unwrap();
    within("it stops", stopped).await.unwrap();
}

#[tokio::test]
async fn a_leader_has_the_key_that_cke_has_and_its_writes_are_fenced() {
    let Some(etcd) = Etcd::start(&[]).await else { return };
    let store = etcd.store("/cke/");
    let mut campaign = stand(&store, "boot-0");
    let epoch = elected(&mut campaign).await;
    let held = etcd.by_hand().await.get(format!("/cke/leader//{:x}", epoch.lease), None).await.unwrap();
    let kv = &held.kvs()[0];
    assert_eq!((kv.value(), kv.lease()), (&b"boot-0"[..], epoch.lease));
    assert_eq!(kv.create_revision(), epoch.number);
    assert_eq!(epoch.key, format!("leader//{:x}", epoch.lease));
    let until = store.holds_until(&epoch).unwrap();
    assert!(until > Instant::now() && until < Instant::now() + TTL);

    let status = Write::Put { key: "status".into(), value: "{}".into(), lease: epoch.lease };
    write_if(&store, vec![epoch.fencing_condition()], vec![status]).await;
    stop(&campaign).await;
    assert_eq!(store.holds_until(&epoch), None);
    assert_eq!(lost(&mut campaign).await.0, epoch);
    assert!(store.list("").await.unwrap().entries.is_empty(), "the lease was not given back");
    let late = Transaction { conditions: vec![epoch.fencing_condition()], writes: vec![put("a", "late")] };
    assert_eq!(
        store.commit(late).await.unwrap(),
        Outcome::Refused { failed: vec![epoch.fencing_condition()] }
    );
}

#[tokio::test]
async fn leadership_is_kept_for_longer_than_a_lease() {
    let Some(etcd) = Etcd::start(&[]).await else { return };
    let store = etcd.store("/cke/");
    let mut campaign = stand(&store, "boot-0");
    let epoch = elected(&mut campaign).await;
    let first = store.holds_until(&epoch).unwrap();
    let later = within("it is renewed", async {
        eventually("the lease is renewed", async || {
            let until = store.holds_until(&epoch).expect("it is kept");
            (until > first + TTL).then_some(until)
        })
        .await
    })
    .await;
    assert!(later > first + TTL);
    assert!(campaign.events.try_recv().is_err(), "an event came without a cause");
}

#[tokio::test]
async fn resigned_leadership_is_handed_over_immediately() {
    let Some(etcd) = Etcd::start(&[]).await else { return };
    let stores = [etcd.store("/cke/"), etcd.store("/cke/")];
    let mut first = stand(&stores[0], "boot-0");
    let old = elected(&mut first).await;
    let mut second = stand(&stores[1], "boot-1");
    assert_eq!(waiting(&mut second).await, "boot-0");

    // After a yield, the first candidate waits for its pause, then queues behind the second.
    let pause = Duration::from_millis(700);
    let began = Instant::now();
    first.commands.send(CampaignCommand::Yield { pause }).await.unwrap();
    let new = elected(&mut second).await;
    let took = began.elapsed();
    assert!(took < HANDOVER, "handed over in {took:?}");
    println!("handed over by yield in {took:?}");
    assert!(new.number > old.number);
    assert_eq!(lost(&mut first).await.0, old);
    assert_eq!(waiting(&mut first).await, "boot-1");
    assert!(began.elapsed() >= pause, "it did not stay away");

    let began = Instant::now();
    stop(&second).await;
    let newest = elected(&mut first).await;
    let took = began.elapsed();
    assert!(took < HANDOVER, "handed over in {took:?}");
    println!("handed over by stop in {took:?}");
    assert!(newest.number > new.number);
    assert_eq!(lost(&mut second).await.0, new);
    assert!(within("it ends", second.events.recv()).await.is_none());
}

#[tokio::test]
async fn dropped_campaign_resigns_leadership() {
    let Some(etcd) = Etcd::start(&[]).await else { return };
    let stores = [etcd.store("/cke/"), etcd.store("/cke/")];
    let mut first = stand(&stores[0], "boot-0");
    let old = elected(&mut first).await;
    let mut second = stand(&stores[1], "boot-1");
    waiting(&mut second).await;
    let began = Instant::now();
    drop(first);
    elected(&mut second).await;
    let took = began.elapsed();
    assert!(took < HANDOVER, "handed over in {took:?}");
    assert_eq!(stores[0].holds_until(&old), None);
}

#[tokio::test]
async fn deleted_leader_key_or_revoked_lease_ends_the_epoch_immediately() {
    let Some(etcd) = Etcd::start(&[]).await else { return };
    let store = etcd.store("/cke/");
    let mut by_hand = etcd.by_hand().await;
    let mut campaign = stand(&store, "boot-0");
    let mut last = elected(&mut campaign).await;
    for revoke in [false, true, false] {
        let began = Instant::now();
        if revoke {
            by_hand.lease_client().revoke(last.lease).await.unwrap();
        } else {
            by_hand.delete(format!("/cke/{}", last.key), None).await.unwrap();
        }
        let (epoch, why) = lost(&mut campaign).await;
        let took = began.elapsed();
        assert!(took < HANDOVER, "noticed after {took:?}");
        assert_eq!((epoch, why.as_str()), (last.clone(), "the leader key is gone"));
        let next = elected(&mut campaign).await;
        assert!(next.number > last.number && next.lease != last.lease);
        last = next;
    }
    let leases = by_hand.lease_client().leases().await.unwrap();
    assert_eq!(leases.leases().len(), 1, "leases were left behind");
}

#[tokio::test]
async fn wiped_store_ends_the_epoch_and_the_next_epoch_begins_in_the_new_store() {
    let Some(mut etcd) = Etcd::start(&[]).await else { return };
    let store = etcd.store("/cke/");
    write(&store, vec![put("a", "1")]).await;
    let mut campaign = stand(&store, "boot-0");
    let old = elected(&mut campaign).await;
    etcd.kill().await;
    etcd.wipe();
    etcd.start_again().await;
    let (epoch, _) = lost(&mut campaign).await;
    assert_eq!(epoch, old);
    let new = loop {
        match next(&mut campaign).await {
            CampaignEvent::Elected(epoch) => break epoch,
            CampaignEvent::Unavailable(_) => {}
            other => panic!("{other:?}"),
        }
    };
    write_if(&store, vec![new.fencing_condition()], vec![put("a", "2")]).await;
}

#[tokio::test]
async fn a_leader_with_a_half_open_connection_stops_before_another_leads() {
    let Some(etcd) = Etcd::start(&[]).await else { return };
    let proxy = Proxy::to(etcd.endpoint()).await;
    let cut_off = EtcdStore::open(&config_at(&proxy.endpoint(), "/cke/"), 1).unwrap();
    let mut first = stand(&cut_off, "boot-0");
    let old = elected(&mut first).await;
    let mut second = stand(&etcd.store("/cke/"), "boot-1");
    waiting(&mut second).await;

    let began = Instant::now();
    proxy.weather(Weather::BlackHole);
    let (epoch, why) = lost(&mut first).await;
    let first_stopped = Instant::now();
    assert_eq!((epoch, why.as_str()), (old.clone(), "the session lease was not renewed in time"));
    assert!(began.elapsed() < TTL, "lost after {:?}, a lease is {TTL:?}", began.elapsed());
    assert_eq!(cut_off.holds_until(&old), None);
    elected(&mut second).await;
    println!(
        "half-open: stopped {:?} after the last byte, succeeded {:?} later",
        first_stopped - began,
        first_stopped.elapsed()
    );

    assert!(matches!(next(&mut first).await, CampaignEvent::Unavailable(_)));
    proxy.weather(Weather::Clear);
    assert_eq!(waiting(&mut first).await, "boot-1", "it did not come back");
}

#[tokio::test]
async fn unreachable_store_is_reported_once_and_awaited() {
    let Some(mut etcd) = Etcd::start(&[]).await else { return };
    etcd.kill().await;
    let store = etcd.store("/cke/");
    let mut campaign = stand(&store, "boot-0");
    match next(&mut campaign).await {
        CampaignEvent::Unavailable(error) => assert_eq!(error.kind, StoreErrorKind::Unavailable, "{error}"),
        other => panic!("{other:?}"),
    }
    let event = timeout(Duration::from_secs(1), campaign.events.recv()).await;
    assert!(event.is_err(), "reported again: {event:?}");
    etcd.start_again().await;
    elected(&mut campaign).await;
    // A store that is down for less than a lease ends no epoch.
    etcd.kill().await;
    etcd.start_again().await;
    let event = timeout(TTL * 2, campaign.events.recv()).await;
    assert!(event.is_err(), "{event:?}");
}

#[tokio::test]
async fn a_campaign_can_be_stopped_in_every_state() {
    let Some(mut etcd) = Etcd::start(&[]).await else { return };
    let store = etcd.store("/cke/");
    let mut leader = stand(&store, "boot-0");
    elected(&mut leader).await;
    let mut waits = stand(&store, "boot-1");
    waiting(&mut waits).await;
    let pauses = stand(&store, "boot-2");
    pauses.commands.send(CampaignCommand::Yield { pause: Duration::from_secs(3600) }).await.unwrap();
    stop(&pauses).await;
    stop(&waits).await;
    assert_eq!(store.list("leader//").await.unwrap().entries.len(), 1);
    // Unread events block no other part.
    let unread = stand(&store, "boot-3");
    for _ in 0..40 {
        unread.commands.send(CampaignCommand::Yield { pause: Duration::ZERO }).await.unwrap();
    }
    stop(&unread).await;
    etcd.kill().await;
    let began = Instant::now();
    stop(&leader).await;
    assert!(began.elapsed() < Duration::from_secs(5), "it waited for a store that is away");
}

#[tokio::test]
async fn a_member_that_dies_or_hangs_costs_neither_leadership_nor_a_change() {
    let Some(mut members) = cluster(3).await else { return };
    let config =
        StoreConfig { endpoints: members.iter().map(Etcd::endpoint).collect(), ..config_at("", "/cke/") };
    let store = EtcdStore::open(&config, 1).unwrap();
    // A keep-alive every third of it, the timeout of a request to the hung member, and the time of an election among
    // etcd's members while other tests use the cores: half of it is reserve.
    let ttl = Duration::from_secs(12);
    let mut campaign = store.campaign(CampaignOptions { host: "boot-0".into(), ttl });
    let epoch = elected(&mut campaign).await;
    let mut events = store.watch("k");
    assert!(matches!(within("a list", events.recv()).await, Some(WatchEvent::Listed(_))));
    for hangs in [false, true] {
        let n = config.endpoints.iter().position(|endpoint| endpoint == store.endpoint()).unwrap();
        if hangs {
            members[n].signal(Signal::STOP);
        } else {
            members[n].kill().await;
        }
        let began = Instant::now();
        let written = eventually("it writes again", async || {
            let write = Transaction {
                conditions: vec![epoch.fencing_condition()],
                writes: vec![put("k", n.to_string())],
            };
            match store.commit(write).await {
                Ok(Outcome::Committed { revision }) => Some(revision),
                Ok(Outcome::Refused { failed }) => panic!("{failed:?}"),
                Err(_) => None,
            }
        })
        .await;
        println!("wrote again {:?} after a member {}", began.elapsed(), if hangs { "hung" } else { "died" });
        let began = Instant::now();
        loop {
            match within("the watch goes on", events.recv()).await.unwrap() {
                WatchEvent::Changed { revision, .. } if revision >= written => break,
                WatchEvent::Listed(_) => panic!("listed again"),
                _ => {}
            }
        }
        println!("seen {:?} later", began.elapsed());
        if hangs {
            members[n].signal(Signal::CONT);
        } else {
            members[n].start_again().await;
        }
    }
    let event = timeout(ttl, campaign.events.recv()).await;
    assert!(event.is_err(), "{event:?}");
    assert!(store.holds_until(&epoch).is_some());
}

/// Environment variable with the address of etcd for the child process of the next tests.
const CANDIDATE: &str = "MADAKO_STORE_TEST_CANDIDATE";

/// Runs in its own process: campaigns, and writes after its epoch is over.
#[tokio::test]
#[ignore = "the other half of the next tests"]
async fn candidate() {
    let Ok(endpoint) = std::env::var(CANDIDATE) else { return };
    let store = EtcdStore::open(&config_at(&endpoint, "/cke/"), 1).unwrap();
    let mut campaign = stand(&store, "another process");
    let epoch = elected(&mut campaign).await;
    let say = |text: String| {
        println!("said: {text}");
        std::io::stdout().flush().unwrap();
    };
    say(format!("elected {}", epoch.number));
    let mut ticks = tokio::time::interval(Duration::from_millis(50));
    while store.holds_until(&epoch).is_some() {
        tokio::select! {
            biased;
            _ = ticks.tick() => {}
            event = campaign.events.recv() => {
                say(format!("too early: {event:?}"));
                return;
            }
        }
    }
    // A writer that checks its epoch before every effect stops here; the store refuses a writer that does not.
    let write =
        Transaction { conditions: vec![epoch.fencing_condition()], writes: vec![put("late", "write")] };
    let refused = matches!(store.commit(write).await, Ok(Outcome::Refused { .. }));
    say(format!("refused {refused}"));
    say(format!("lost {}", lost(&mut campaign).await.1));
}

/// The other process, while it leads.
struct Another {
    process: std::process::Child,
    lines: Lines<BufReader<ChildStdout>>,
    epoch: i64,
}

impl Another {
    fn elected(etcd: &Etcd) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "campaign::candidate", "--ignored", "--nocapture", "--test-threads=1"])
            .env(CANDIDATE, etcd.endpoint())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let mut another = Self { process, lines, epoch: 0 };
        another.epoch = another.says().strip_prefix("elected ").unwrap().parse().unwrap();
        another
    }

    /// Its next line of output. Blocks the runtime, which has no other task at that time.
    fn says(&mut self) -> String {
        let describe = |line: String| line.split_once("said: ").map(|(_, describe)| describe.to_owned());
        self.lines.by_ref().map(Result::unwrap).find_map(describe).expect("it says something")
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.process.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Campaigns after it, and is elected.
    async fn succeeded(&self, store: &EtcdStore) -> (Campaign, Epoch) {
        let mut successor = stand(store, "boot-1");
        loop {
            match next(&mut successor).await {
                CampaignEvent::Elected(epoch) => {
                    assert!(epoch.number > self.epoch);
                    return (successor, epoch);
                }
                CampaignEvent::Waiting { leader } => assert_eq!(leader, "another process"),
                other => panic!("{other:?}"),
            }
        }
    }
}

impl Drop for Another {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[tokio::test]
async fn a_leader_that_was_killed_is_succeeded_when_its_lease_ends() {
    let Some(etcd) = Etcd::start(&[]).await else { return };
    let another = Another::elected(&etcd);
    let began = Instant::now();
    another.signal(Signal::KILL);
    another.succeeded(&etcd.store("/cke/")).await;
    let took = began.elapsed();
    // etcd expires leases in steps of 500 ms, and then proposes their end.
    assert!(took < TTL + Duration::from_secs(1), "succeeded after {took:?}");
    println!("succeeded {took:?} after a kill, lease {TTL:?}");
}

#[tokio::test]
async fn a_process_stopped_for_longer_than_its_lease_does_nothing_afterwards() {
    let Some(etcd) = Etcd::start(&[]).await else { return };
    let store = etcd.store("/cke/");
    let mut another = Another::elected(&etcd);
    another.signal(Signal::STOP);
    let (_successor, _) = another.succeeded(&store).await;
    another.signal(Signal::CONT);
    assert_eq!(another.says(), "refused true");
    assert_eq!(another.says(), "lost the session lease was not renewed in time");
    assert!(store.list("late").await.unwrap().entries.is_empty());
}
