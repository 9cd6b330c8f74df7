//! Tests of a store that disappears under the placement API, returns, is stopped, or is emptied repeatedly.

use std::collections::BTreeSet;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use tokio::time::{Instant, timeout};

use super::super::stage::{Serve, eventually};
use super::api::{Api, Said, all, described};
use super::{PlacementFixture, api, until_decides};

/// Number of deletions of all keys.
const WIPES: usize = 100;
/// Time limit of that on a busy machine; an idle one takes a fortieth of it.
const EMPTYING: Duration = Duration::from_secs(120);
/// Time limit of SIGTERM, whatever the store does.
const END: Duration = Duration::from_secs(2);

fn event(kind: &str, name: &str) -> Said {
    Said::Event(kind.to_owned(), name.to_owned())
}

/// The API reports the error within the patience of a client, repeatedly.
async fn refuses(client: Api) {
    // A paused process may still answer until all of its threads are stopped.
    eventually("it notices", async || (client.get("before").await.status == 503).then_some(())).await;
    for _ in 0..2 {
        let read = client.get("before").await;
        let written = client.create("lost").await;
        for reply in [read, written] {
            assert_eq!(reply.status, 503, "{reply:?}");
            assert!(reply.body["detail"].is_string(), "{reply:?}");
        }
    }
}

#[tokio::test]
async fn a_store_that_was_away_is_used_again_and_a_watch_leaves_nothing_out() {
    let Some(mut place) = PlacementFixture::new().await else { return };
    let service = place.serve("10m").await;
    until_decides(&service).await;
    let client = api(&service);
    client.cluster("one", "ONLINE").await;
    let mut watch = client.watch().await;
    client.create("before").await.done();
    assert_eq!(place.until_bound("before").await, (2, "one".to_owned()));
    let mut message = watch.until("MODIFIED", "before").await;

    // Stopped cleanly, and restarted with its data.
    place.etcd.terminate().await;
    service.until_health(500).await;
    refuses(client).await;
    place.etcd.start_again().await;
    eventually("it reads again", async || (client.get("before").await.status == 200).then_some(())).await;
    client.create("after").await.done();
    assert_eq!(place.until_bound("after").await, (2, "one".to_owned()));
    message.extend(watch.until("MODIFIED", "after").await);

    // The store accepts connections and does not answer.
    place.etcd.signal(Signal::STOP);
    refuses(client).await;
    place.etcd.signal(Signal::CONT);
    eventually("it reads again", async || (client.get("after").await.status == 200).then_some(())).await;
    // A request without an answer may have been carried out: it had reached the store.
    let lost = client.get("lost").await.status == 200;
    client.create("at-last").await.done();
    assert_eq!(place.until_bound("at-last").await, (2, "one".to_owned()));
    message.extend(watch.until("MODIFIED", "at-last").await);
    message.retain(|message| !matches!(message, Said::Event(_, name) if lost && name == "lost"));
    let expected = ["before", "after", "at-last"].map(|name| [event("ADDED", name), event("MODIFIED", name)]);
    let expected: Vec<Said> = expected.into_iter().flatten().collect();
    assert_eq!(message, expected, "each event is delivered exactly once");
    assert!(!service.log().contains("panicked"), "{}", service.log());
}

/// Creates applications until `stop`; returns the acknowledged ones. Each answer must have a valid reason.
async fn creates(client: Api, who: &str, stop: &tokio::sync::watch::Receiver<bool>) -> BTreeSet<String> {
    let mut acknowledged = BTreeSet::new();
    for number in 0.. {
        if *stop.borrow() {
            break;
        }
        let name = format!("{who}-{number}");
        let reply = client.ask("POST", &all("applications"), &described(&name)).await;
        assert_eq!(reply.status, 200, "{reply:?}");
        acknowledged.insert(name.clone());
        let read = client.get(&name).await;
        assert!(matches!(read.status, 200 | 404), "{read:?}");
        let list = client.ask("GET", &all("applications"), &Value::Null).await;
        assert_eq!(list.status, 200, "{list:?}");
    }
    acknowledged
}

#[tokio::test]
async fn a_store_that_is_emptied_a_hundred_times_is_served_all_the_time_and_watched_without_a_gap() {
    let Some(place) = PlacementFixture::new().await else { return };
    let service = place.serve("10m").await;
    until_decides(&service).await;
    let client = api(&service);
    client.cluster("one", "ONLINE").await;
    let mut watch = client.watch().await;

    let (stop, stopped) = tokio::sync::watch::channel(false);
    let wiping = async {
        for _ in 0..WIPES {
            // Each deletion removes something.
            eventually("something is there", async || (!client.names().await.is_empty()).then_some(())).await;
            place.keys.wipe().await;
        }
        stop.send_replace(true);
    };
    let working = async {
        let ((), a, b) = tokio::join!(wiping, creates(client, "a", &stopped), creates(client, "b", &stopped));
        client.create("last").await.done();
        (a, b)
    };
    let (mut added, mut deleted) = (BTreeSet::new(), BTreeSet::new());
    let watching = async {
        loop {
            match watch.next().await {
                Said::Event(kind, name) if kind == "ADDED" => {
                    let last = name == "last";
                    assert!(added.insert(name), "each new object is delivered once");
                    if last {
                        return;
                    }
                }
                Said::Event(kind, name) if kind == "DELETED" => {
                    assert!(added.contains(&name) && deleted.insert(name), "a deletion follows its creation");
                }
                Said::Event(..) => {}
                end @ Said::End { .. } => panic!("nothing was wrong with the store: {end:?}"),
            }
        }
    };
    let both = Box::pin(async { tokio::join!(working, watching) });
    let ((a, b), ()) = timeout(EMPTYING, both).await.expect("it goes on");
    let mut acknowledged: BTreeSet<String> = a.union(&b).cloned().collect();
    acknowledged.insert("last".to_owned());
    assert!(added.is_superset(&acknowledged), "each that was acknowledged was seen");
    assert!(deleted.len() >= WIPES, "{} were deleted in {WIPES} wipes", deleted.len());
    let there: BTreeSet<String> = client.names().await.into_iter().collect();
    let observed: BTreeSet<String> = added.difference(&deleted).cloned().collect();
    assert_eq!(observed, there, "the watch delivered every object");

    assert!(!service.log().contains("panicked"), "{}", service.log());
    until_decides(&service).await;
    client.cluster("again", "ONLINE").await;
    assert_eq!(place.until_bound("last").await.1, "again");
    service.until_health(200).await;
}

/// Ends a service while a client waits for its answer.
async fn ends_soon(service: Serve, how: &str) {
    let client = api(&service);
    let waiting =
        tokio::spawn(async move { client.tell("GET", &all("applications"), "", &Value::Null).await });
    let sent_at = Instant::now();
    let status = service.terminate().await;
    let took = sent_at.elapsed();
    assert_eq!(status.code(), Some(0), "{how}");
    assert!(took < END, "{how}: it took {took:?}");
    // With or without an answer, the client did not wait longer.
    drop(waiting.await.unwrap());
}

#[tokio::test]
async fn signal_ends_the_process_in_every_state_of_the_store() {
    let Some(mut place) = PlacementFixture::new().await else { return };
    let (there, paused, gone) = (place.serve("2s").await, place.serve("2s").await, place.serve("2s").await);
    let _watches = [api(&there).watch().await, api(&paused).watch().await, api(&gone).watch().await];
    // The leader that schedules has the most to release: each of the services does so.
    until_decides(&there).await;
    ends_soon(there, "the store answers").await;
    eventually("another decides", async || {
        let mut deciding = 0.0;
        for service in [&paused, &gone] {
            deciding += service.metric("madako_placement_owner", &[]).await;
        }
        (deciding > 0.0).then_some(())
    })
    .await;
    place.etcd.signal(Signal::STOP);
    ends_soon(paused, "the store is paused").await;
    place.etcd.kill().await;
    ends_soon(gone, "the store is gone").await;
}
