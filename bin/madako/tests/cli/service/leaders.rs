//! Tests of three instances on a real etcd that lose their leader in every way.

use std::time::Duration;

use rustix::process::Signal;
use tokio::time::{Instant, timeout};

use super::etcd::RealEtcd;
use super::site::leader_after;
use super::stage::{Serve, eventually};

/// A lease longer than any test: a new leader did not wait for its expiry.
const ENDLESS: &str = "10m";

#[tokio::test]
async fn a_killed_leader_is_succeeded_and_a_store_that_was_away_is_used_again() {
    let Some((mut etcd, site)) = RealEtcd::with_site().await else { return };
    let mut services = Vec::new();
    for _ in 0..3 {
        services.push(site.serve("2s", "1s").await);
    }
    let all: Vec<&Serve> = services.iter().collect();
    let (leader, first) = leader_after(&all, 0).await;
    site.first_cluster().await;

    services.remove(leader).kill().await;
    site.ask_for(7).await;
    let (_, second) = leader_after(&services.iter().collect::<Vec<_>>(), first).await;
    let cluster = site.until_workers(7).await;
    assert_eq!(cluster.version, 2, "one change, one write");
    assert!(cluster.revision > second, "it is the new leader's");

    // The store stops cleanly, and restarts with its data.
    etcd.terminate().await;
    for service in &services {
        service.until_health(500).await;
    }
    etcd.start_again().await;
    for service in &services {
        service.until_health(200).await;
    }
    site.unchanged(&cluster, "a store that was away is not a reason to write").await;
    assert_eq!(site.grow_to(8).await.version, 3);
    let leading = eventually("exactly one leads", async || {
        let mut leading = Vec::new();
        for service in &services {
            leading.extend(service.epoch().await);
        }
        (leading.len() == 1).then_some(leading[0])
    })
    .await;
    assert_eq!(site.keys.candidates().await[0].create_revision(), leading);
}

#[tokio::test]
async fn deleted_leader_key_and_a_signal_hand_leadership_over_immediately() {
    let Some((_etcd, site)) = RealEtcd::with_site().await else { return };
    let mut services = Vec::new();
    for waiting in 0..3 {
        services.push(site.serve(ENDLESS, "1s").await);
        // In sequence, so that the order of the candidates is known.
        eventually("it stands for election", async || {
            (site.keys.candidates().await.len() == waiting + 1).then_some(())
        })
        .await;
    }
    let all: Vec<&Serve> = services.iter().collect();
    let (leader, first) = leader_after(&all, 0).await;
    assert_eq!(leader, 0);
    site.first_cluster().await;

    let candidates = site.keys.candidates().await;
    assert_eq!(candidates[0].create_revision(), first);
    site.keys.delete(candidates[0].key()).await;
    let (leader, second) = leader_after(&all, first).await;
    assert_eq!((leader, second), (1, candidates[1].create_revision()), "the next in line");
    // The former leader learned the reason, and is a candidate again, behind the others.
    services[0].until_log("the leader key is gone").await;
    let candidates = eventually("all stand for election", async || {
        Some(site.keys.candidates().await).filter(|candidates| candidates.len() == 3)
    })
    .await;
    assert!(candidates[2].create_revision() > second);
    assert_eq!((services[0].epoch().await, services[0].health().await), (None, 200));
    assert_eq!(site.grow_to(7).await.version, 2);

    // The time limit is a tenth of the lease's time to live.
    let sent_at = Instant::now();
    let status = services.remove(1).terminate().await;
    assert_eq!(status.code(), Some(0));
    let all: Vec<&Serve> = services.iter().collect();
    let (leader, third) = timeout(Duration::from_secs(60), leader_after(&all, second)).await.unwrap();
    println!("handed over {:?} after the signal", sent_at.elapsed());
    assert_eq!(third, candidates[1].create_revision(), "the next in line");
    assert_eq!(leader, 1);
    assert_eq!(site.keys.candidates().await.len(), 2, "its key went with it");
    assert_eq!(site.grow_to(8).await.version, 3);
}

#[tokio::test]
async fn a_pause_shorter_than_the_lease_changes_nothing() {
    let Some((_etcd, site)) = RealEtcd::with_site().await else { return };
    let service = site.serve(ENDLESS, "1s").await;
    let (_, epoch) = leader_after(&[&service], 0).await;
    let before = site.first_cluster().await;
    service.signal(Signal::STOP);
    site.ask_for(7).await;
    assert_eq!(service.health().await, 0, "it is paused");
    site.unchanged(&before, "a paused leader commits nothing").await;
    service.signal(Signal::CONT);
    let after = site.until_workers(7).await;
    assert_eq!((after.version, service.epoch().await), (2, Some(epoch)), "it leads on");
}
