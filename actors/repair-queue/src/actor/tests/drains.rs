//! Repairs of nodes that are drained first.

use std::collections::BTreeSet;
use std::time::Duration;

use madako_messages::keys;
use madako_messages::kubernetes::KubernetesError;
use madako_messages::repair::{RepairStatus, RepairStepStatus};

use super::world::{World, pod};
use crate::testing::{Store, queued};

async fn world() -> World {
    let mut store = Store::new(&["a", "b", "c"], &["w", "x", "y"]);
    store.entry(&queued(0, "w", "unreachable"));
    let world = World::new(store).await;
    {
        let mut kubernetes = world.kubernetes.0.lock().unwrap();
        kubernetes.protected.insert("apps".to_owned());
        kubernetes.pods.insert("node-w".to_owned(), vec![pod("web", "ReplicaSet"), pod("log", "DaemonSet")]);
    }
    world.host.0.lock().unwrap().cured.insert("w".to_owned());
    world
}

fn changes(world: &World) -> Vec<String> {
    let quiet = ["nodes", "namespaces", "pods"];
    world.calls().into_iter().filter(|call| !quiet.iter().any(|name| call.starts_with(name))).collect()
}

async fn uncordoned(world: &World) {
    for _ in 0..1_000 {
        if world.calls().iter().any(|call| call == "uncordon node-w") {
            return;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    panic!("not uncordoned: {:?}", world.calls());
}

#[tokio::test(start_paused = true)]
async fn a_node_is_drained_repaired_and_uncordoned() {
    let mut world = world().await;
    world.begin().await;
    world.until_status(0, RepairStatus::Succeeded).await;
    uncordoned(&world).await;
    let expected = ["try apps/web", "cordon node-w", "evict apps/web", "uncordon node-w"];
    assert_eq!(changes(&world), expected);
    assert_eq!(
        world.history(),
        ["repair-drain-start completed", "repair-execute completed", "repair-finish completed"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_budget_that_allows_nothing_is_asked_again_and_again_but_ever_more_rarely() {
    let mut world = world().await;
    world.kubernetes.0.lock().unwrap().budget.insert("web".to_owned());
    world.begin().await;
    let count = |count| {
        move |state: &madako_messages::state::ClusterState| {
            state.repair.entries[&0].value.drain_backoff_count >= count
        }
    };
    world.until("three drains", count(3)).await;
    let entry = world.entry(0).unwrap();
    assert_eq!((entry.status, entry.step_status), (RepairStatus::Processing, RepairStepStatus::Waiting));
    let pause = entry.drain_backoff_expire.unwrap() - entry.last_transition_time.unwrap();
    assert!((300..=1_200).contains(&pause.whole_seconds()), "{pause}");
    assert!(!changes(&world).contains(&"cordon node-w".to_owned()), "the dry run comes first");
    assert_eq!(world.ran(), [""; 0]);
    world.kubernetes.0.lock().unwrap().budget.clear();
    world.until_status(0, RepairStatus::Succeeded).await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_outside_the_protected_namespaces_is_deleted_when_a_budget_forbids_its_eviction() {
    let mut world = world().await;
    {
        let mut kubernetes = world.kubernetes.0.lock().unwrap();
        kubernetes.protected = BTreeSet::new();
        kubernetes.budget.insert("web".to_owned());
    }
    world.begin().await;
    world.until_status(0, RepairStatus::Succeeded).await;
    let expected = ["cordon node-w", "evict apps/web", "delete apps/web"];
    assert_eq!(changes(&world)[..3], expected);
}

#[tokio::test(start_paused = true)]
async fn a_job_is_waited_for_and_a_pod_that_never_ends_gives_the_drain_up() {
    for (name, controller) in [("job", "Job"), ("stuck", "ReplicaSet")] {
        let mut world = world().await;
        {
            let mut kubernetes = world.kubernetes.0.lock().unwrap();
            kubernetes.stuck.insert("stuck".to_owned());
            kubernetes.pods.insert("node-w".to_owned(), vec![pod(name, controller)]);
        }
        world.begin().await;
        world
            .until("the drain to be given up", |state| {
                state.repair.entries[&0].value.drain_backoff_count == 1
            })
            .await;
        if name == "stuck" {
            uncordoned(&world).await;
        }
        assert_eq!(world.ran(), [""; 0]);
        world.kubernetes.0.lock().unwrap().pods.clear();
        world.until_status(0, RepairStatus::Succeeded).await;
        let history = world.history();
        assert_eq!(history[..2], ["repair-drain-start completed", "repair-drain-timeout completed"]);
    }
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_is_down_for_an_hour_or_refuses_leaves_the_node_undrained_and_unrepaired() {
    let unavailable = KubernetesError::Unavailable { what: "pods".into(), why: "connection refused".into() };
    let refused = KubernetesError::Refused { what: "pods".into(), status: 403, why: "forbidden".into() };
    for error in [unavailable, refused] {
        let mut world = world().await;
        world.kubernetes.0.lock().unwrap().down = Some(error);
        world.begin().await;
        tokio::time::sleep(Duration::from_secs(3_600)).await;
        assert_eq!(world.ran(), [""; 0]);
        assert_eq!(world.entry(0).unwrap().status, RepairStatus::Processing);
        world.kubernetes.0.lock().unwrap().down = None;
        world.until_status(0, RepairStatus::Succeeded).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_drain_goes_on_with_a_new_leader_and_ends_when_the_queue_is_disabled() {
    let mut world = world().await;
    world.kubernetes.0.lock().unwrap().stuck.insert("web".to_owned());
    world.begin().await;
    world
        .until("the drain", |state| state.repair.entries[&0].value.step_status == RepairStepStatus::Draining)
        .await;
    tokio::time::sleep(Duration::from_secs(6)).await;
    world.kill().await;
    world.begin().await;
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!(world.entry(0).unwrap().step_status, RepairStepStatus::Draining);
    world.change(|store| store.text(keys::REPAIRS_DISABLED, "true"));
    world
        .until("the end of the drain", |state| {
            state.repair.entries[&0].value.step_status == RepairStepStatus::Waiting
        })
        .await;
    uncordoned(&world).await;
    assert_eq!(world.ran(), [""; 0]);
}
