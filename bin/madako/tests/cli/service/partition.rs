//! Tests of a leader that is cut off or stopped: etcd refuses its late writes, and afterwards it reads the missed
//! changes.

use madako_datacenter_sim::Fault;
use rustix::process::Signal;

use super::etcd::RealEtcd;
use super::proxy::{Proxy, Way};
use super::site::leader_after;
use super::stage::{Serve, eventually};

/// Its commit is on the way when it is paused, and arrives during another leader's epoch. All inputs of the commit are
/// unchanged: only its epoch is over.
#[tokio::test]
async fn the_late_write_of_a_paused_leader_is_refused_by_the_store() {
    let Some((etcd, site)) = RealEtcd::with_site().await else { return };
    let proxy = Proxy::to(etcd.address()).await;
    // Its request has a longer time limit than the pause, so that it does not give up the request.
    let behind = format!("endpoints: ['{}']\ntimeout: 2m\n", proxy.endpoint());
    let behind = site.files.write("behind.yml", behind);
    let paused = Serve::start(&behind, "3s", "1s").await;
    let (_, first) = leader_after(&[&paused], 0).await;
    let before = site.first_cluster().await;
    let others = [site.serve("3s", "1s").await, site.serve("3s", "1s").await];

    proxy.set(Way::Mute);
    site.ask_for(7).await;
    eventually("the commit is sent", async || proxy.keeps("/cke/cluster-revision").then_some(())).await;
    paused.signal(Signal::STOP);
    site.registry.faults().set(Fault::RefuseConnections);

    // Its lease expires; its successor knows no machines, and so cannot make the change.
    let (successor, second) = leader_after(&[&others[0], &others[1]], first).await;
    let blocked = ["reason=\"no-observation\""];
    others[successor].until_metric("madako_planner_blocked", &blocked, 1.0).await;
    site.unchanged(&before, "the commit has not arrived").await;
    let calm = site.keys.revision().await;
    let answered = etcd.transactions().await;
    proxy.set(Way::Open);
    eventually("the late commit arrives", async || (etcd.transactions().await > answered).then_some(()))
        .await;
    assert_eq!(site.keys.revision().await, calm, "it changed nothing at all");

    paused.signal(Signal::CONT);
    paused.until_log("\"message\":\"the instance lost leadership\"").await;
    eventually("it stands for election again", async || {
        (site.keys.candidates().await.len() == 3).then_some(())
    })
    .await;
    paused.until_health(200).await;
    assert_eq!(paused.epoch().await, None);
    assert_eq!(others[successor].epoch().await, Some(second), "its successor leads on");
    site.unchanged(&before, "the paused instance wrote nothing").await;

    // The registry is back: the successor makes the change, once.
    site.registry.faults().clear_all();
    let cluster = site.until_workers(7).await;
    assert_eq!(cluster.version, 2, "one change, one write");
    assert!(first < second && second < cluster.revision, "it is the successor's");

    // It stays a valid candidate: when the others are gone, it leads and commits.
    for other in others {
        assert_eq!(other.terminate().await.code(), Some(0));
    }
    let (_, third) = leader_after(&[&paused], second).await;
    let cluster = site.grow_to(8).await;
    assert_eq!(cluster.version, 3);
    assert!(cluster.revision > third);
}

/// It wakes with a change to be made, known machines, and the belief that it leads.
#[tokio::test]
async fn a_leader_that_was_paused_past_its_lease_writes_nothing() {
    let Some((_etcd, site)) = RealEtcd::with_site().await else { return };
    // Its observation of the registry is fresh enough for three minutes.
    let paused = site.serve("2s", "60s").await;
    let (_, first) = leader_after(&[&paused], 0).await;
    let before = site.first_cluster().await;
    let others = [site.serve("2s", "1s").await, site.serve("2s", "1s").await];
    paused.signal(Signal::STOP);
    site.registry.faults().set(Fault::RefuseConnections);
    site.ask_for(7).await;
    let (successor, second) = leader_after(&[&others[0], &others[1]], first).await;
    let blocked = ["reason=\"no-observation\""];
    others[successor].until_metric("madako_planner_blocked", &blocked, 1.0).await;

    paused.signal(Signal::CONT);
    paused.until_log("\"message\":\"the instance lost leadership\"").await;
    eventually("it stands for election again", async || {
        (site.keys.candidates().await.len() == 3).then_some(())
    })
    .await;
    paused.until_health(200).await;
    assert_eq!((paused.epoch().await, others[successor].epoch().await), (None, Some(second)));
    site.unchanged(&before, "the paused instance wrote nothing").await;
    site.registry.faults().clear_all();
    let cluster = site.until_workers(7).await;
    assert_eq!(cluster.version, 2, "one change, one write");
    assert!(second < cluster.revision, "it is the successor's");
}

#[tokio::test]
async fn leader_lists_the_store_again_after_a_compaction() {
    let Some((etcd, site)) = RealEtcd::with_site().await else { return };
    let proxy = Proxy::to(etcd.address()).await;
    let behind = site.files.write("behind.yml", format!("endpoints: ['{}']\n", proxy.endpoint()));
    // Its lease outlasts the cut.
    let service = Serve::start(&behind, "10m", "1s").await;
    let (_, epoch) = leader_after(&[&service], 0).await;
    let before = site.first_cluster().await;

    proxy.set(Way::Cut);
    service.until_health(500).await;
    for workers in 7..=9 {
        site.ask_for(workers).await;
    }
    site.keys.compact().await;
    site.unchanged(&before, "it is cut off").await;
    proxy.set(Way::Open);
    let after = site.until_workers(9).await;
    assert_eq!((after.version, service.epoch().await), (2, Some(epoch)), "it leads on");
    let labels = ["cause=\"compacted\""];
    assert!(service.metric("madako_store_watch_lists_total", &labels).await >= 1.0, "{}", service.log());
    service.until_health(200).await;
    assert_eq!(site.grow_to(10).await.version, 3, "its watch goes on");
}
