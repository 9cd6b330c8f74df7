//! Clusters of hundreds of nodes: an upgrade, rolls beside dead nodes, and the requests of a service at rest.

use std::time::Duration;

use madako_datacenter_sim::nodes::{NodeFault, NodePlace};
use madako_domain::component::Component;
use serde_json::json;
use tokio::time::Instant;

use super::at_a_site;
use super::kubernetes::{CONTROL_PLANE, LONG, bootstrap};
use super::site::{NODES, OUTAGE, Site, address};

/// A cluster of so many nodes, of which twenty may be updated at a time. Returns the numbers of the workers.
pub async fn bootstrap_large(site: &mut Site, count: usize) -> Vec<usize> {
    for number in NODES..count {
        site.nodes.add(&address(number), u32::try_from(number % 3).unwrap());
    }
    site.max_concurrent_updates = Some(20);
    site.kubernetes = Some("kubernetes:1".to_owned());
    site.images("etcd:1").await;
    let workers: Vec<usize> = (CONTROL_PLANE.len()..count).collect();
    site.cluster(&CONTROL_PLANE, &workers).await;
    site.settled(&CONTROL_PLANE).await.unwrap();
    workers
}

/// Every few minutes another worker has no power for a while, and now and then an API server ends.
#[test]
#[ignore = "minutes: five hundred nodes (make test-long)"]
fn an_upgrade_of_five_hundred_nodes_ends_while_nodes_and_api_servers_fail() {
    const COUNT: usize = 500;
    at_a_site(async |site| {
        let workers = bootstrap_large(site, COUNT).await;
        site.kubernetes = Some("kubernetes:2".to_owned());
        site.images("etcd:1").await;
        let is_upgraded = |site: &Site, number: usize| {
            let node = site.nodes.view_node(&address(number)).unwrap();
            node.containers
                .get(Component::Kubelet.name())
                .is_some_and(|kubelet| kubelet.image == "kubernetes:2")
        };
        let began = Instant::now();
        let mut round = 0_usize;
        while !(0..COUNT).all(|number| is_upgraded(site, number)) {
            assert!(began.elapsed() < 12 * LONG, "the upgrade does not end: {:?}", site.rollout().await);
            let place = NodePlace::Address(address(workers[round * 97 % workers.len()]));
            site.nodes.begin(&place, NodeFault::Kill);
            if round.is_multiple_of(3) {
                site.nodes.end_container(&address(CONTROL_PLANE[round / 3 % 3]), Component::ApiServer);
            }
            site.pass(Duration::from_secs(120)).await;
            site.nodes.end(&place, NodeFault::Kill);
            site.pass(Duration::from_secs(60)).await;
            assert!(!site.world.facts.has_findings() && !site.rollout().await.halted);
            round += 1;
        }
    });
}

/// The time in which the kubelets of so many live nodes get another argument, beside so many dead workers.
fn time_roll(live: usize, dead: usize) -> Duration {
    let mut took = Duration::ZERO;
    at_a_site(async |site| {
        let workers = bootstrap_large(site, live + dead).await;
        for number in live..live + dead {
            site.nodes.begin(&NodePlace::Address(address(number)), NodeFault::Kill);
        }
        site.pass(OUTAGE).await;
        site.options["kubelet"] = json!({"extra_args": ["--v=2"]});
        let began = Instant::now();
        site.cluster(&CONTROL_PLANE, &workers).await;
        let is_updated = |site: &Site, number: usize| {
            let node = site.nodes.view_node(&address(number)).unwrap();
            node.containers[Component::Kubelet.name()].extra.args == ["--v=2"]
        };
        while !(0..live).all(|number| is_updated(site, number)) || !site.rollout().await.watched.is_empty() {
            assert!(began.elapsed() < 4 * LONG, "the roll does not end");
            site.pass(Duration::from_secs(1)).await;
        }
        took = began.elapsed();
    });
    took
}

/// The waves have the same live nodes; attempts to reach dead ones must not delay them.
#[allow(clippy::print_stdout, reason = "the output of a test")]
fn compare_rolls(live: usize, dead: usize) {
    let (without, with) = (time_roll(live, 0), time_roll(live, dead));
    println!("a roll of {live} kubelets: {with:?} beside {dead} dead nodes, {without:?} without them");
    assert!(with <= without + without / 10, "{with:?} with dead nodes, and {without:?} without them");
}

#[test]
fn thirty_dead_nodes_make_a_roll_of_kubelets_at_most_a_tenth_longer() {
    compare_rolls(90, 30);
}

#[test]
#[ignore = "minutes: a thousand nodes (make test-long)"]
fn thirty_dead_nodes_of_a_thousand_make_a_roll_at_most_a_tenth_longer() {
    compare_rolls(970, 30);
}

/// The requests to three API servers in ten minutes of rest. Passes are twice as frequent as by default.
#[allow(clippy::print_stdout, reason = "the output of a test")]
async fn check_requests_at_rest(site: &mut Site) {
    site.pass(OUTAGE).await;
    let before = site.nodes.api_requests();
    site.pass(Duration::from_secs(600)).await;
    let sent = site.nodes.api_requests() - before;
    println!("{sent} requests in ten minutes");
    assert!((100..=600).contains(&sent), "{sent} requests in ten minutes");
}

#[test]
fn a_service_at_rest_sends_at_most_sixty_requests_a_minute_to_three_api_servers() {
    at_a_site(async |site| {
        bootstrap(site).await.unwrap();
        check_requests_at_rest(site).await;
    });
}

#[test]
#[ignore = "minutes: a thousand nodes (make test-long)"]
fn a_service_at_rest_with_a_thousand_nodes_sends_at_most_sixty_requests_a_minute() {
    at_a_site(async |site| {
        bootstrap_large(site, 1_000).await;
        check_requests_at_rest(site).await;
    });
}
