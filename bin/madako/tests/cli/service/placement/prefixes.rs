//! Tests of several key prefixes on one etcd: all serve the same placement resources, and one schedules.

use super::super::stage::{Serve, eventually};
use super::{PlacementFixture, api, until_decides};

const OWNER: &str = "/madako/placement-owner";

#[tokio::test]
async fn one_of_two_prefixes_places_until_its_lease_ends_and_an_instance_without_controllers_never_does() {
    let Some(place) = PlacementFixture::new().await else { return };
    let config = |name: &str, prefix: &str, placement: &str| {
        place.config(name, &format!("{}prefix: {prefix}\n", place.etcd.settings()), placement)
    };
    let owner = Serve::start(&config("a.yml", "/a/", ""), "2s", "1s").await;
    until_decides(&owner).await;
    let stored = place.keys.at_root(OWNER).await.unwrap();
    assert_eq!(stored.value(), b"/a/");
    assert_ne!(stored.lease(), 0, "it ends with its owner");

    let waiting = Serve::start(&config("b.yml", "/b/", ""), "2s", "1s").await;
    waiting.until_log("another prefix").await;
    assert!(waiting.log().contains("/a/"), "it says which: {}", waiting.log());
    let idle = Serve::start(&config("c.yml", "/c/", ", controllers: false"), "2s", "1s").await;
    let all = [&owner, &waiting, &idle];
    for service in all {
        eventually("it leads its own prefix", async || service.epoch().await).await;
    }
    let decide = async |services: &[&Serve]| {
        let mut decide = Vec::new();
        for service in services {
            decide.push(service.metric("madako_placement_owner", &[]).await > 0.0);
        }
        decide
    };
    assert_eq!(decide(&all).await, [true, false, false]);

    // A write through one is visible through the others at once; the owner binds it, once.
    api(&waiting).cluster("one", "ONLINE").await;
    api(&idle).create("first").await.done();
    assert_eq!(place.until_bound("first").await, (2, "one".to_owned()));
    assert!(place.keys.at_root("/a/madako/placement/decisions/testing/first").await.is_some());
    for service in all {
        let observed = api(service).get("first").await;
        assert_eq!(observed.body["status"]["scheduled_to"]["name"], "one", "{observed:?}");
    }

    // The owner's lease expires, and another instance schedules everything.
    owner.kill().await;
    api(&idle).create("second").await.done();
    until_decides(&waiting).await;
    assert_eq!(place.until_bound("second").await, (2, "one".to_owned()));
    assert_eq!(place.keys.at_root(OWNER).await.unwrap().value(), b"/b/");
    assert_eq!(place.until_bound("first").await, (2, "one".to_owned()), "the bound application stays");

    // Nothing is scheduled when only instances without controllers are left.
    waiting.terminate().await;
    eventually("the owner is gone", async || place.keys.at_root(OWNER).await.is_none().then_some(())).await;
    api(&idle).create("third").await.done();
    assert_eq!(decide(&[&idle]).await, [false]);
    let again = Serve::start(&config("a.yml", "/a/", ""), "2s", "1s").await;
    until_decides(&again).await;
    assert_eq!(
        place.until_bound("third").await,
        (2, "one".to_owned()),
        "written once before, by its creation"
    );
}
