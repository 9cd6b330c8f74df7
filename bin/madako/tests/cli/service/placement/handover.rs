//! Tests of a fault between a placement decision and its commit: the leader dies, or the cluster goes offline.

use super::super::proxy::{Proxy, Way};
use super::super::site::leader_after;
use super::super::stage::{Serve, eventually};
use super::{PlacementFixture, api, key, until_decides};

/// The decision was sent and never arrived. The next leader binds the acknowledged applications from before and after.
#[tokio::test]
async fn successor_binds_once_after_its_predecessor_died_before_the_commit() {
    let Some(place) = PlacementFixture::new().await else { return };
    let proxy = Proxy::to(place.etcd.address()).await;
    // Its request has a longer time limit than its life.
    let behind = format!("endpoints: ['{}']\ntimeout: 2m\n", proxy.endpoint());
    let behind = place.config("behind.yml", &behind, "");
    let doomed = Serve::start(&behind, "2s", "1s").await;
    until_decides(&doomed).await;
    let (_, first) = leader_after(&[&doomed], 0).await;
    let successor = place.serve("2s").await;
    let client = api(&successor);
    client.cluster("one", "ONLINE").await;
    client.create("before").await.done();
    assert_eq!(place.until_bound("before").await, (2, "one".to_owned()), "bound by one write");

    proxy.set(Way::Mute);
    let requested = ["a", "b", "c"];
    for name in requested {
        client.create(name).await.done();
    }
    eventually("the decisions are sent", async || proxy.keeps(&key("a")).then_some(())).await;
    doomed.kill().await;
    for name in requested {
        assert_eq!(place.stored(name).await, Some((1, None)), "nothing of the decision arrived");
    }
    client.create("meanwhile").await.done();

    let (_, second) = leader_after(&[&successor], first).await;
    for name in ["a", "b", "c", "meanwhile"] {
        assert_eq!(place.until_bound(name).await, (2, "one".to_owned()), "bound by one write");
        let bound = place.keys.at_root(&key(name)).await.unwrap();
        assert!(bound.mod_revision() > second, "it is the successor's");
        let decided = place.keys.get(&format!("madako/placement/decisions/testing/{name}")).await;
        assert_eq!(
            decided.map(|decision| (decision.version(), decision.mod_revision())),
            Some((1, bound.mod_revision())),
            "one decision, with the binding"
        );
    }
    assert_eq!(place.until_bound("before").await, (2, "one".to_owned()), "a bound application stayed");
    assert_eq!(client.names().await, ["a", "b", "before", "c", "meanwhile"]);
}

/// Invariant I11: the commit was sent when the cluster was online, and arrives when it is not.
#[tokio::test]
async fn cluster_that_goes_offline_in_mid_pass_gets_no_application() {
    let Some(place) = PlacementFixture::new().await else { return };
    let proxy = Proxy::to(place.etcd.address()).await;
    let behind = format!("endpoints: ['{}']\ntimeout: 2m\n", proxy.endpoint());
    let behind = place.config("behind.yml", &behind, "");
    // Its lease outlasts the test, so that it schedules throughout.
    let leader = Serve::start(&behind, "10m", "1s").await;
    until_decides(&leader).await;
    let other = place.serve("10m").await;
    let client = api(&other);
    client.cluster("first", "ONLINE").await;
    client.cluster("second", "OFFLINE").await;
    client.create("before").await.done();
    assert_eq!(place.until_bound("before").await.1, "first");

    proxy.set(Way::Mute);
    client.create("late").await.done();
    eventually("the decision is sent", async || proxy.keeps(&key("late")).then_some(())).await;
    client.becomes("second", "ONLINE").await;
    client.becomes("first", "OFFLINE").await;
    let answered = place.etcd.transactions().await;
    proxy.set(Way::Open);
    eventually("it arrives", async || (place.etcd.transactions().await > answered).then_some(())).await;
    let (version, cluster) = place.until_bound("late").await;
    assert_eq!((version, &*cluster), (2, "second"), "the first decision was refused, the next one committed");

    // Applications created now are bound there, too; those bound before stay for a whole `reschedule_after`.
    client.create("after").await.done();
    assert_eq!(place.until_bound("after").await.1, "second");
    assert_eq!(place.until_bound("before").await, (2, "first".to_owned()));
}
