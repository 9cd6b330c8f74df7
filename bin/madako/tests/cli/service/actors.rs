//! Test that kills every actor in turn while the others work: the service on a real etcd and a registry over HTTP, in
//! this process, since an actor can only be reached from within.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use madako_protocol::event::Event;
use madako_supervisor::config::Config;
use madako_supervisor::http::HTTP;
use madako_supervisor::instance::{InstanceOptions, LEADER, PLANNER, POLLER, REIGN};
use madako_supervisor::journal::Journal;
use madako_supervisor::service::{Service, ServiceOptions};
use madako_supervisor::tree::SupervisorRef;
use tokio::sync::broadcast;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::etcd::RealEtcd;
use super::site::{Site, WORKERS};
use super::stage::{eventually, page};
use crate::program::PATIENCE;

type Events = broadcast::Receiver<Arc<Event>>;

/// Kills an actor: its handler is cancelled at any point, without cleanup. Earlier events are discarded.
async fn kill(service: &Service, actor: &str, events: &mut Events) {
    let root = service.instance().root().clone();
    let parent = match actor {
        POLLER | PLANNER => {
            eventually("the reign runs", async || {
                root.find_child(REIGN).await.unwrap().and_then(SupervisorRef::from_cell)
            })
            .await
        }
        _ => root,
    };
    let cell = eventually(&format!("{actor} runs"), async || parent.find_child(actor).await.unwrap()).await;
    while events.try_recv().is_ok() {}
    // This runtime has one thread: later events come from other actors or from the successor.
    cell.kill();
}

/// Reads events until each of the wanted ones was seen, in any order.
async fn until(events: &mut Events, what: &str, wanted: &[fn(&Event) -> bool]) {
    let mut missing: Vec<_> = wanted.to_vec();
    let reading = async {
        while !missing.is_empty() {
            let event = events.recv().await.expect("no event is missed");
            missing.retain(|wanted| !wanted(&event));
        }
    };
    timeout(PATIENCE, reading).await.unwrap_or_else(|_| panic!("within {PATIENCE:?}: {what}"));
}

/// Requests `/health` all the time, and records answers other than healthy.
fn watch_health(service: &Service) -> JoinHandle<()> {
    let http = service.http();
    tokio::spawn(async move {
        loop {
            let answer = page(http, "/health").await;
            assert!(matches!(answer, Ok((200, _))), "{answer:?}");
            sleep(Duration::from_millis(20)).await;
        }
    })
}

fn restarted(event: &Event) -> bool {
    matches!(event, Event::ActorRestarted { .. })
}

fn elected(event: &Event) -> bool {
    matches!(event, Event::Elected { .. })
}

fn observed(event: &Event) -> bool {
    matches!(event, Event::Observed { .. })
}

fn calm(event: &Event) -> bool {
    matches!(event, Event::Calm { .. })
}

/// Waits until an actor is back and has rebuilt its state.
async fn until_rebuilt(events: &mut Events, actor: &str) {
    match actor {
        LEADER => {
            until(events, "it leads again", &[restarted, elected]).await;
            until(events, "its reign plans", &[observed, calm]).await;
        }
        POLLER => until(events, "it polls again", &[restarted, observed]).await,
        PLANNER => until(events, "it plans again", &[restarted, calm]).await,
        _ => until(events, "it runs again", &[restarted]).await,
    }
}

async fn start(site: &Site) -> (Service, Events) {
    // Another test of this process may have installed it already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let config = Config::load(Some(Path::new(site.config()))).unwrap();
    let journal = Journal::new("killed-in-turn");
    let events = journal.listen();
    let options = ServiceOptions {
        operations: Default::default(),
        instance: InstanceOptions {
            url: String::new(),
            id: "killed-in-turn".to_owned(),
            host: "boot-0".to_owned(),
            interval: Duration::from_millis(500),
            session_ttl: Duration::from_secs(60),
            retire_wait: Duration::from_secs(300),
            hold: Some(madako_domain::repair::hold::HoldSettings::default()),
            reboots: madako_domain::reboot::RebootSettings::default(),
            seed: 7,
        },
        http: "127.0.0.1:0".to_owned(),
        metrics: Arc::new(|_| String::new()),
        version: "test",
        journal,
        placement: None,
        kubernetes: None,
        host: None,
        simulated: None,
    };
    (Service::start(&config, options).await.unwrap(), events)
}

#[tokio::test]
async fn every_actor_is_killed_in_turn_while_the_others_work() {
    let Some((_etcd, site)) = RealEtcd::with_site().await else { return };
    let (service, mut events) = Box::pin(start(&site)).await;
    let mut cluster = site.first_cluster().await;
    until(&mut events, "it is calm", &[calm]).await;
    let mut workers = WORKERS;

    for actor in [HTTP, LEADER, POLLER, PLANNER] {
        // Without work: the actor is back, has rebuilt its state, and writes nothing.
        let health = (actor != HTTP).then(|| watch_health(&service));
        let revision = site.keys.revision().await;
        kill(&service, actor, &mut events).await;
        until_rebuilt(&mut events, actor).await;
        site.unchanged(&cluster, &format!("after {actor} was killed")).await;
        if actor != LEADER {
            assert_eq!(site.keys.revision().await, revision, "{actor}: nothing at all was written");
        }

        // In the middle of a change: the change is committed once all the same.
        workers += 1;
        site.ask_for(workers).await;
        kill(&service, actor, &mut events).await;
        until_rebuilt(&mut events, actor).await;
        let after = site.until_workers(workers).await;
        assert_eq!(after.version, cluster.version + 1, "{actor}: one change, one write");
        assert!(cluster.nodes().iter().all(|node| after.nodes().contains(node)), "{actor}: no node moved");

        // A change right after is committed, too.
        workers += 1;
        cluster = site.grow_to(workers).await;
        assert_eq!(cluster.version, after.version + 1, "{actor}");
        if let Some(health) = health {
            assert!(!health.is_finished(), "{actor}: {:?}", health.await);
            health.abort();
        }
        eventually("it answers", async || page(service.http(), "/health").await.ok()).await;
    }

    let status = service.instance().read_status().await.unwrap();
    for child in &status.children {
        let expected = if &*child.id == REIGN { 0 } else { 2 };
        assert_eq!((child.restarts, &*child.id), (expected, &*child.id), "{status:?}");
    }
    let candidates = site.keys.candidates().await;
    assert_eq!(candidates.len(), 1, "a leader that was killed left no key behind");
    service.stop().await;
    assert_eq!(site.keys.candidates().await.len(), 0, "and one that stops neither");
}
