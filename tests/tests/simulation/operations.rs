//! Operations on simulated nodes by the whole service: stories of a cluster, in which leaders end and nodes fail at each
//! point of each command. Every run ends in the same state, and every promise about operations is kept.

#[cfg(debug_assertions)]
mod planted;
mod site;
mod stories;

use std::time::Duration;

use madako_simulation::planted::{Handling, keep_quiet};
use madako_supervisor::nodes::OperationsMode;

use self::site::{Disturbance, OUTAGE, Site};
use self::stories::{Played, Point, Story};

/// Plays a story, whose end is always the same.
fn play(story: Story, disturbances: &[(Duration, Disturbance)]) -> Played {
    let played = story.play(disturbances);
    assert_eq!(played.wrong, [""; 0], "{disturbances:?}: {}", played.why);
    played
}

/// Plays a story with a disturbance at each of its points.
fn disturb(story: Story, disturbance: impl Fn(&Point) -> Disturbance) {
    keep_quiet();
    for point in play(story, &[]).points {
        let played = story.play(&[(point.at, disturbance(&point))]);
        assert_eq!(played.wrong, [""; 0], "{point:?}: {}", played.why);
    }
}

#[test]
fn a_cluster_lives_through_all_operations_on_members() {
    let played = play(Story::Life, &[]);
    let operations: std::collections::BTreeSet<&str> =
        played.points.iter().map(|point| point.of.0.as_str()).collect();
    let known = [
        "etcd-add-member",
        "etcd-bootstrap",
        "etcd-destroy-member",
        "etcd-remove-member",
        "etcd-restart",
        "etcd-start",
    ];
    assert!(known.iter().all(|operation| operations.contains(operation)), "{operations:?}");
}

#[test]
fn leaders_killed_during_a_bootstrap_change_nothing_of_its_result() {
    disturb(Story::Bootstrap, |_| Disturbance::Killed);
}

#[test]
fn leaders_paused_during_a_bootstrap_change_nothing_of_its_result() {
    disturb(Story::Bootstrap, |_| Disturbance::Paused);
}

#[test]
fn nodes_that_fail_during_a_bootstrap_change_nothing_of_its_result() {
    disturb(Story::Bootstrap, |point| Disturbance::Dead(point.node));
}

#[test]
fn certificates_are_renewed_whenever_the_leader_ends() {
    disturb(Story::Renewal, |_| Disturbance::Killed);
    disturb(Story::Renewal, |_| Disturbance::Paused);
}

#[test]
fn certificates_are_renewed_when_a_node_fails() {
    disturb(Story::Renewal, |point| Disturbance::Dead(point.node));
}

#[test]
fn an_older_image_stops_no_member_and_leaves_out_no_node() {
    play(Story::OlderImage, &[]);
}

#[test]
fn a_single_member_restarts_when_an_operator_asks_for_it() {
    play(Story::AskedRestart, &[]);
}

#[test]
fn a_restore_is_refused_for_a_damaged_snapshot_and_while_a_majority_answers() {
    play(Story::RefusedRestore, &[]);
}

#[test]
fn etcd_is_restored_whenever_the_leader_ends() {
    disturb(Story::Restore, |_| Disturbance::Killed);
}

#[test]
fn etcd_is_restored_whenever_the_leader_is_paused_or_its_runner_fails() {
    disturb(Story::Restore, |_| Disturbance::Paused);
    disturb(Story::Restore, |_| Disturbance::Failed);
}

#[test]
fn etcd_is_restored_when_a_node_fails() {
    disturb(Story::Restore, |point| Disturbance::Dead(point.node));
}

#[test]
fn leaders_killed_at_each_point_of_changes_of_members_change_nothing_of_their_result() {
    disturb(Story::Life, |_| Disturbance::Killed);
}

#[test]
fn leaders_paused_at_each_point_of_changes_of_members_change_nothing_of_their_result() {
    disturb(Story::Life, |_| Disturbance::Paused);
}

#[test]
fn nodes_that_fail_at_each_point_of_changes_of_members_change_nothing_of_their_result() {
    disturb(Story::Life, |point| Disturbance::Dead(point.node));
}

#[test]
fn runners_that_fail_at_each_point_of_changes_of_members_change_nothing_of_their_result() {
    disturb(Story::Life, |_| Disturbance::Failed);
}

#[test]
fn an_instance_that_observes_decides_and_changes_nothing() {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let mut site = Site::new(&[], &Handling::default()).await;
        site.start("etcd:1", OperationsMode::Observe).await;
        site.cluster(&[0, 1, 2], &[3]).await;
        let written = site.client.get("/cke/cluster", None).await.unwrap().header().unwrap().revision();
        site.pass(OUTAGE).await;
        let page = site.running.as_ref().unwrap().instance.view().operations.newest().unwrap();
        let due: Vec<String> = page.next.iter().map(|operation| operation.name.to_string()).collect();
        assert_eq!(due, ["upgrade"]);
        assert!(page.nodes.values().all(|node| node.reachable), "{:?}", page.nodes);
        let now = site.client.get("/cke/cluster", None).await.unwrap().header().unwrap().revision();
        assert_eq!(now, written, "no lease, no key");
        assert_eq!(site.nodes.facts_since(0), [], "no action");
        // An instance that acts takes over.
        site.images("etcd:1").await;
        site.settled(&[0, 1, 2]).await.unwrap();
        site.calm().await.unwrap();
        if let Some(running) = site.running.take() {
            running.instance.stop().await;
        }
    });
}
