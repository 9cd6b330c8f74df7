//! Tests of repairs of nodes that are drained first.

use std::collections::BTreeSet;
use std::time::Duration;

use madako_domain::keys;
use madako_domain::kubernetes::{ANNOTATION_REBOOT, KubeNode};
use madako_domain::reboot::RebootStatus;
use madako_domain::repair::{RepairQueueEntry, RepairStatus, RepairStepStatus};
use madako_domain::state::ClusterState;
use madako_protocol::kubernetes::KubernetesError;
use madako_protocol::permit::PermitEnded;
use tokio::time::Instant;

use super::world::{Does, KubeState, World, pod};
use crate::testing::{REPAIR, Store, processing, queued};

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
async fn node_that_leaves_the_cluster_stays_cordoned_until_its_repair_ends() {
    let mut world = world().await;
    world.host.0.lock().unwrap().cured.clear();
    world.begin().await;
    let watched = |state: &ClusterState| {
        state.repair.entries[&0].value.step_status == RepairStepStatus::Watching
            && state.repair.records.unfinished.is_empty()
    };
    world.until("the end of the command", watched).await;
    assert_eq!(world.ran(), ["reset w"]);
    world.change(|store| store.configure(&["a", "b", "c"], &["x", "y"], REPAIR));
    // Several polls of the nodes, and less than the health watch.
    tokio::time::sleep(Duration::from_secs(35)).await;
    assert!(watched(&world.leader_state.lock().unwrap().store.state()));
    assert!(!world.calls().contains(&"uncordon node-w".to_owned()), "{:?}", world.calls());
    world.host.0.lock().unwrap().healthy.insert("w".to_owned());
    world.until_status(0, RepairStatus::Succeeded).await;
    uncordoned(&world).await;
}

#[tokio::test(start_paused = true)]
async fn a_budget_that_allows_nothing_is_asked_again_and_again_but_ever_more_rarely() {
    let mut world = world().await;
    world.kubernetes.0.lock().unwrap().budget.insert("web".to_owned());
    world.begin().await;
    let count = |count| {
        move |state: &madako_domain::state::ClusterState| {
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
async fn a_drain_waits_for_a_job_and_is_given_up_for_a_pod_that_never_ends() {
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
async fn failing_api_server_blocks_only_repairs_that_drain() {
    let unavailable = KubernetesError::Unavailable { what: "pods".into(), why: "connection refused".into() };
    let refused = KubernetesError::Refused { what: "pods".into(), status: 403, why: "forbidden".into() };
    let hour = Duration::from_secs(3_600);
    // The drain may take 60 s here: three slow answers exceed that, and the cordon would be the fourth call.
    for (why, error, takes) in [
        ("pods: the API server did not answer: connection refused", Some(unavailable), Duration::ZERO),
        (
            "pods: the API server refused the request with status 403: forbidden",
            Some(refused),
            Duration::ZERO,
        ),
        ("draining timed out", None, Duration::from_secs(25)),
        ("draining timed out", None, hour),
    ] {
        let mut world = world().await;
        world.change(|store| store.entry(&queued(1, "x", "plain")));
        world.host.0.lock().unwrap().cured.insert("x".to_owned());
        {
            let mut kubernetes = world.kubernetes.0.lock().unwrap();
            kubernetes.down = error;
            kubernetes.takes = takes;
        }
        world.begin().await;
        world
            .until("the drain to be given up", |state| {
                state.repair.entries[&0].value.drain_backoff_count == 1
            })
            .await;
        let entry = world.entry(0).unwrap();
        assert_eq!((entry.status, entry.step_status), (RepairStatus::Processing, RepairStepStatus::Waiting));
        let pause = entry.drain_backoff_expire.unwrap() - entry.last_transition_time.unwrap();
        assert!((300..=600).contains(&pause.whole_seconds()), "{why}: {pause}");
        let records = world.records().into_iter().find(|record| record.operation == "repair-drain-timeout");
        assert_eq!(records.unwrap().info, why);

        tokio::time::sleep(hour).await;
        let entry = world.entry(0).unwrap();
        assert_eq!(entry.status, RepairStatus::Processing);
        assert!(entry.drain_backoff_count >= 3, "{why}: {entry:?}");
        assert_eq!(world.ran(), ["reset x", "celebrate x"], "{why}");
        assert_eq!(world.entry(1).unwrap().status, RepairStatus::Succeeded);
        let changed: Vec<_> = changes(&world).into_iter().filter(|call| !call.starts_with("try")).collect();
        assert_eq!(changed, [""; 0], "{why}");
        let checked = world.host.0.lock().unwrap().checked["w"];
        assert!(checked >= 350, "{why}: health is asked each round, and was {checked} times");

        {
            let mut kubernetes = world.kubernetes.0.lock().unwrap();
            kubernetes.down = None;
            kubernetes.takes = Duration::ZERO;
        }
        world.until_status(0, RepairStatus::Succeeded).await;
        assert!(world.ran().contains(&"reset w".to_owned()), "{why}");
    }
}

/// Puts a pod or a state on a drained node.
type Comes = fn(&mut KubeState);

#[tokio::test(start_paused = true)]
async fn a_node_that_waits_for_its_command_s_turn_stays_drained() {
    let uncordoned: Comes = |kubernetes| {
        let node = kubernetes.nodes.get_mut("node-w").unwrap();
        (node.unschedulable, node.annotations) = (false, Default::default());
        kubernetes.pods.get_mut("node-w").unwrap().push(pod("late", "ReplicaSet"));
    };
    let tolerating: Comes =
        |kubernetes| kubernetes.pods.get_mut("node-w").unwrap().push(pod("late", "ReplicaSet"));
    let stuck: Comes = |kubernetes| {
        kubernetes.stuck.insert("late".to_owned());
        kubernetes.pods.get_mut("node-w").unwrap().push(pod("late", "ReplicaSet"));
    };
    let job: Comes = |kubernetes| kubernetes.pods.get_mut("node-w").unwrap().push(pod("late", "Job"));
    let down: Comes = |kubernetes| {
        let (what, why) = ("pods".into(), "connection refused".into());
        kubernetes.down = Some(KubernetesError::Unavailable { what, why });
    };
    let cases: [(&str, Comes, &[&str], bool); 5] = [
        ("uncordoned", uncordoned, &["try apps/late", "cordon node-w", "evict apps/late"], true),
        ("tolerating", tolerating, &["cordon node-w", "evict apps/late"], true),
        ("stuck", stuck, &["cordon node-w", "evict apps/late"], false),
        ("a job", job, &["cordon node-w"], false),
        ("down", down, &[], false),
    ];
    for (case, comes, expected, repaired) in cases {
        let mut world = world().await;
        // The other machine's command outlasts the drain.
        world.change(|store| store.entry(&queued(1, "x", "plain")));
        world.host.0.lock().unwrap().does.insert("reset".to_owned(), Does::Takes(Duration::from_secs(300)));
        world.begin().await;
        tokio::time::sleep(Duration::from_secs(100)).await;
        let entry = world.entry(0).unwrap();
        assert_eq!(entry.step_status, RepairStepStatus::Draining, "{case}: done, and its turn has not come");
        let before = ["try apps/web", "cordon node-w", "evict apps/web"];
        assert_eq!(changes(&world), before, "{case}");
        comes(&mut world.kubernetes.0.lock().unwrap());
        tokio::time::sleep(Duration::from_secs(199)).await;
        assert_eq!(world.ran(), ["reset x"], "{case}");
        let mut changed = changes(&world).split_off(before.len());
        changed.retain(|call| call != "uncordon node-w");
        assert_eq!(changed, expected, "{case}");
        tokio::time::sleep(Duration::from_secs(10)).await;
        let count = world.entry(0).unwrap().drain_backoff_count;
        assert_eq!((world.ran().contains(&"reset w".to_owned()), count == 0), (repaired, repaired), "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_eviction_is_tried_as_often_as_configured() {
    for (refusals, evicted) in [(2, true), (3, false)] {
        let mut world = world().await;
        let repair = r#""evict_retries": 2, "evict_interval": 7, "eviction_timeout_seconds""#;
        let repair = REPAIR.replace(r#""eviction_timeout_seconds""#, repair);
        world.change(|store| store.configure(&["a", "b", "c"], &["w", "x", "y"], &repair));
        world.kubernetes.0.lock().unwrap().refusals.insert("web".to_owned(), refusals);
        let begun = Instant::now();
        world.begin().await;
        let what = "the node to be drained, or given up";
        world
            .until(what, |state| state.repair.entries[&0].value.step_status == RepairStepStatus::Draining)
            .await;
        world
            .until(what, |state| state.repair.entries[&0].value.step_status != RepairStepStatus::Draining)
            .await;
        assert_eq!(begun.elapsed().as_secs(), 14, "two pauses, whatever the third answer is");
        let calls = changes(&world);
        let tries = calls.iter().filter(|call| *call == "evict apps/web").count();
        assert_eq!(tries, 3, "{calls:?}");
        let entry = world.entry(0).unwrap();
        if evicted {
            assert_eq!((entry.step_status, entry.drain_backoff_count), (RepairStepStatus::Watching, 0));
            world.until_status(0, RepairStatus::Succeeded).await;
            continue;
        }
        assert_eq!((entry.step_status, entry.drain_backoff_count), (RepairStepStatus::Waiting, 1));
        assert_eq!(world.ran(), [""; 0]);
        let records = world.records().into_iter().find(|record| record.operation == "repair-drain-timeout");
        assert_eq!(records.unwrap().info, "the pod apps/web cannot be evicted: disruption budget");
    }
}

/// A drain that an earlier leader began `ago` seconds before, with or without its cordon.
async fn taken_over(ago: i64, cordoned: bool) -> World {
    let world = world().await;
    world.change(|store| store.entry(&processing(0, "w", 0, RepairStepStatus::Draining, ago)));
    add_node(&world, cordoned);
    world
}

fn add_node(world: &World, cordoned: bool) {
    let annotations = [(ANNOTATION_REBOOT.to_owned(), "true".to_owned())];
    let node = KubeNode {
        name: "node-w".to_owned(),
        unschedulable: cordoned,
        annotations: if cordoned { annotations.into() } else { Default::default() },
        ..KubeNode::default()
    };
    world.kubernetes.0.lock().unwrap().nodes.insert("node-w".to_owned(), node);
}

#[tokio::test(start_paused = true)]
async fn node_of_a_cancelled_reboot_is_uncordoned_before_the_next_tick() {
    let mut world = World::new(Store::new(&["a", "b", "c"], &["w"])).await;
    world.change(|store| store.reboot(0, "w", RebootStatus::Draining));
    add_node(&world, true);
    world.begin().await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(changes(&world), [""; 0]);
    world.change(|store| store.reboot(0, "w", RebootStatus::Cancelled));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(changes(&world), ["uncordon node-w"]);
}

#[tokio::test(start_paused = true)]
async fn a_drain_that_is_taken_over_before_its_cordon_begins_with_the_dry_run() {
    let mut world = taken_over(1, false).await;
    world.kubernetes.0.lock().unwrap().budget.insert("web".to_owned());
    world.begin().await;
    let given_up = |state: &ClusterState| state.repair.entries[&0].value.drain_backoff_count == 1;
    world.until("the drain to be given up", given_up).await;
    assert_eq!(changes(&world), ["try apps/web"]);
    assert_eq!(world.ran(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn drain_taken_over_after_its_cordon_evicts_only_the_remaining_pods() {
    let mut world = taken_over(1, true).await;
    world.begin().await;
    world.until_status(0, RepairStatus::Succeeded).await;
    uncordoned(&world).await;
    assert_eq!(changes(&world), ["cordon node-w", "evict apps/web", "uncordon node-w"]);
}

#[tokio::test(start_paused = true)]
async fn deleted_entry_is_removed_before_its_drain_begins() {
    let mut world = taken_over(1, false).await;
    world.change(|store| {
        let drained = processing(0, "w", 0, RepairStepStatus::Draining, 1);
        store.entry(&RepairQueueEntry { deleted: true, ..drained });
    });
    world.begin().await;
    world.until("the removal", |state| state.repair.entries.is_empty()).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(changes(&world), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_drain_that_has_ended_is_seen_before_its_time_out_gives_it_up() {
    let mut world = taken_over(1_000, true).await;
    {
        let mut kubernetes = world.kubernetes.0.lock().unwrap();
        kubernetes.pods.insert("node-w".to_owned(), vec![pod("log", "DaemonSet")]);
        // Both reads take long, and answer.
        kubernetes.takes = Duration::from_secs(29);
    }
    world.begin().await;
    world.until_status(0, RepairStatus::Succeeded).await;
    assert_eq!(world.history(), ["repair-execute completed", "repair-finish completed"]);
    assert!(!changes(&world).contains(&"cordon node-w".to_owned()), "there is nothing to do");
}

#[tokio::test(start_paused = true)]
async fn timed_out_drain_is_given_up_after_its_node_was_read_or_cannot_be_read() {
    let down = KubernetesError::Unavailable { what: "nodes".into(), why: "connection refused".into() };
    for (down, cordoned, least) in [(None, true, 0), (None, false, 0), (Some(down), true, 60)] {
        let mut world = taken_over(1_000, cordoned).await;
        {
            let mut kubernetes = world.kubernetes.0.lock().unwrap();
            kubernetes.stuck.insert("web".to_owned());
            kubernetes.down = down;
        }
        let begun = Instant::now();
        world.begin().await;
        let given_up = |state: &ClusterState| state.repair.entries[&0].value.drain_backoff_count == 1;
        world.until("the drain to be given up", given_up).await;
        let took = begun.elapsed().as_secs();
        assert!((least..least + 5).contains(&took), "given up after {took} s");
        assert!(changes(&world).iter().all(|call| call == "uncordon node-w"), "{:?}", changes(&world));
        assert_eq!(world.ran(), [""; 0]);
    }
}

#[tokio::test(start_paused = true)]
async fn drain_continues_under_a_new_leader_and_ends_when_the_queue_is_disabled() {
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

/// Errors of effects whose permit ended before an answer, and of effects that did not begin.
fn cuts(count: usize) -> impl Iterator<Item = KubernetesError> {
    let cut = |what: &str| KubernetesError::Unavailable { what: what.to_owned(), why: "cut off".to_owned() };
    (0..count).map(
        move |number| {
            if number % 2 == 0 { cut("the call") } else { PermitEnded { epoch: 7 }.into() }
        },
    )
}

#[tokio::test(start_paused = true)]
async fn request_cut_off_by_its_permit_is_repeated_with_a_new_permit() {
    let mut world = world().await;
    // The dry run, the cordon and the eviction have 60 s together here, and a permit 10 s.
    world.kubernetes.0.lock().unwrap().cut.extend(cuts(4));
    world.begin().await;
    world.until_status(0, RepairStatus::Succeeded).await;
    uncordoned(&world).await;
    let cut = "cut try apps/web";
    let expected = [&[cut; 4][..], &["try apps/web", "cordon node-w", "evict apps/web", "uncordon node-w"]];
    assert_eq!(changes(&world), expected.concat());
    assert_eq!(world.history()[..2], ["repair-drain-start completed", "repair-execute completed"]);
}

#[tokio::test(start_paused = true)]
async fn request_longer_than_any_permit_is_given_up_at_the_drain_timeout() {
    let mut world = world().await;
    world.kubernetes.0.lock().unwrap().cut.extend(cuts(1_000));
    world.begin().await;
    let given_up = |state: &ClusterState| state.repair.entries[&0].value.drain_backoff_count == 1;
    let begun = Instant::now();
    world.until("the drain to be given up", given_up).await;
    let took = begun.elapsed().as_secs();
    assert!((60..=75).contains(&took), "{took} s");
    let records =
        world.records().into_iter().find(|record| record.operation == "repair-drain-timeout").unwrap();
    assert!(records.info.starts_with("draining timed out: "), "{}", records.info);
    assert!(changes(&world).len() <= 8, "each waits for its permit: {:?}", changes(&world));
}
