//! Spoiled histories of drains: what the judge of repairs must find, each beside one that it must let through.

use std::time::Duration;

use madako_datacenter_sim::host::RESET;
use madako_domain::cluster::{Cluster, Node};
use madako_domain::invariants::Id;
use madako_domain::keys;
use madako_domain::kubernetes::PodId;
use madako_domain::repair::{RepairQueueEntry, RepairStatus, RepairStepStatus};
use madako_json::go::RawJson;
use madako_protocol::kubernetes::Kubernetes as _;
use madako_protocol::permit::Permit;
use serde_json::json;
use time::OffsetDateTime;
use time::macros::datetime;

use crate::repair_canary::{MACHINE, World, entry};

/// Time in which whatever was asked to end has ended.
const GRACE: Duration = Duration::from_secs(60);

const BEGAN: OffsetDateTime = datetime!(2026-01-01 00:00 UTC);

/// A world whose cluster has the machine as a node, and whose procedure drains in its first step.
async fn world() -> World {
    let mut world = World::new().await;
    let steps = json!([{"repair_command": [RESET], "need_drain": true}, {"repair_command": [RESET]}]);
    let repair = json!({"repair_procedures": [{
        "machine_types": ["iDRAC-9"],
        "repair_operations": [{"operation": "unreachable", "repair_steps": steps}],
    }]});
    let node = Node { address: MACHINE.to_owned(), ..Node::default() };
    let repair = RawJson::from_text(repair.to_string()).unwrap();
    let cluster = Cluster { name: "c".to_owned(), nodes: vec![node], repair, ..Cluster::default() };
    world.write(&[(keys::CLUSTER.to_owned(), Some(serde_json::to_value(&cluster).unwrap()))]).await;
    tokio::time::sleep(GRACE).await;
    world
}

fn permit(world: &World) -> Permit {
    Permit::give(world.epoch, tokio::time::Instant::now() + Duration::from_secs(600))
}

/// What must go before the node is drained; what stays is left there.
async fn evict(world: &World, but: Option<&PodId>) {
    let permit = permit(world);
    world.drains.kubernetes.cordon(&permit, MACHINE).await.unwrap();
    for pod in world.drains.kubernetes.pods_on(MACHINE).await.unwrap() {
        let stays = pod.mirror || pod.controller.as_deref() == Some("DaemonSet");
        if !stays && but != Some(&pod.id) {
            world.drains.kubernetes.delete(&permit, &pod.id).await.unwrap();
        }
    }
    tokio::time::sleep(GRACE).await;
}

async fn runs(world: &mut World, index: i64, address: &str, step: u32) {
    let created = world.put(&entry(index, address)).await;
    world.announce_step(&entry(index, address), created, 1, step).await;
    drop(world.run_for(world.epoch, RESET, address).await);
}

#[tokio::test(start_paused = true)]
async fn a_command_beside_a_pod_that_should_have_gone_is_found() {
    let mut undrained = world().await;
    runs(&mut undrained, 0, MACHINE, 0).await;
    assert_eq!(undrained.found(), [Id::I7], "nothing was evicted");

    let mut drained = world().await;
    evict(&drained, None).await;
    let left = drained.drains.kubernetes.pods_on(MACHINE).await.unwrap();
    assert_eq!(left.len(), 2, "of a DaemonSet, and the mirror of a static pod: {left:?}");
    runs(&mut drained, 0, MACHINE, 0).await;
    assert_eq!(drained.found(), []);

    for owner in ["ReplicaSet", "Job"] {
        let mut all_but_one = world().await;
        let pods = all_but_one.drains.kubernetes.pods_on(MACHINE).await.unwrap();
        let kept = pods.iter().find(|pod| pod.controller.as_deref() == Some(owner)).unwrap();
        evict(&all_but_one, Some(&kept.id)).await;
        runs(&mut all_but_one, 0, MACHINE, 0).await;
        assert_eq!(all_but_one.found(), [Id::I7], "a pod of a {owner} is left");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_never_ends_is_no_pod_that_has_gone() {
    let mut world = world().await;
    let pods = world.drains.kubernetes.pods_on(MACHINE).await.unwrap();
    let stuck = pods.iter().find(|pod| pod.controller.as_deref() == Some("ReplicaSet")).unwrap();
    world.drains.kubernetes.with(|kubernetes| kubernetes.set_stuck(&stuck.id, true));
    evict(&world, None).await;
    runs(&mut world, 0, MACHINE, 0).await;
    assert_eq!(world.found(), [Id::I7]);
}

#[tokio::test(start_paused = true)]
async fn a_step_that_does_not_drain_and_a_machine_outside_the_cluster_need_no_drain() {
    let mut other_step = world().await;
    runs(&mut other_step, 0, MACHINE, 1).await;
    assert_eq!(other_step.found(), []);
    let mut outside = world().await;
    runs(&mut outside, 0, "10.0.0.99", 0).await;
    assert_eq!(outside.found(), []);
}

/// An entry that is drained, and what it becomes when that is given up.
fn given_up(at: i64, count: u32, pause: i64) -> [RepairQueueEntry; 2] {
    let drained = RepairQueueEntry {
        status: RepairStatus::Processing,
        step_status: RepairStepStatus::Draining,
        last_transition_time: Some(BEGAN),
        ..entry(0, MACHINE)
    };
    let now = BEGAN + time::Duration::seconds(at);
    let waiting = RepairQueueEntry {
        step_status: RepairStepStatus::Waiting,
        last_transition_time: Some(now),
        drain_backoff_count: count,
        drain_backoff_expire: Some(now + time::Duration::seconds(pause)),
        ..drained.clone()
    };
    [drained, waiting]
}

#[tokio::test(start_paused = true)]
async fn a_drain_that_is_given_up_late_or_without_its_back_off_is_found() {
    for (at, count, pause, expected) in [
        (130, 1, 300, vec![]),
        (130, 1, 600, vec![]),
        (130, 1, 299, vec![Id::I7]),
        (130, 1, 601, vec![Id::I7]),
        (130, 0, 300, vec![Id::I7]),
        (7200, 1, 300, vec![Id::I7]),
    ] {
        let mut world = World::new().await;
        let [drained, waiting] = given_up(at, count, pause);
        world.put(&drained).await;
        tokio::time::sleep(Duration::from_secs(at.unsigned_abs())).await;
        world.put(&waiting).await;
        assert_eq!(world.found(), expected, "after {at} s, for {pause} s, {count}");
        assert_eq!(world.judge.seen().drains.given_up, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_step_that_begins_before_its_back_off_is_over_is_found() {
    for (at, expected) in [(430, vec![]), (429, vec![Id::I7])] {
        let mut world = World::new().await;
        let [drained, waiting] = given_up(130, 1, 300);
        for state in [&drained, &waiting] {
            world.put(state).await;
        }
        let now = Some(BEGAN + time::Duration::seconds(at));
        let again = RepairQueueEntry {
            step_status: RepairStepStatus::Draining,
            last_transition_time: now,
            ..waiting.clone()
        };
        let revision = world.put(&again).await;
        assert_eq!(world.found(), expected, "after {at} s");
        world.judge.user_wrote(revision, None);
        assert_eq!(world.found(), [], "a user may");
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_stays_cordoned_is_found() {
    let world = world().await;
    let ids =
        || -> Vec<Id> { world.judge.finish().into_iter().map(|violation| violation.invariant).collect() };
    assert_eq!(ids(), []);
    world.drains.kubernetes.cordon(&permit(&world), MACHINE).await.unwrap();
    assert_eq!(ids(), [Id::I12]);
    world.drains.kubernetes.uncordon(&permit(&world), MACHINE).await.unwrap();
    assert_eq!(ids(), []);
}
