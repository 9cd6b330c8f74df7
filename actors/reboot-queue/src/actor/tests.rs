//! The actor with fakes of the leader, the host and Kubernetes, on paused time.

mod world;

use std::time::Duration;

use madako_domain::keys;
use madako_domain::kubernetes::PodPhase;
use madako_domain::reboot::{RebootSettings, RebootStatus};
use madako_domain::repair::{RepairQueueEntry, RepairStatus, RepairStepStatus};

use self::world::{Does, World, pod};
use crate::testing::{NOW, Store};

fn queued(entries: &[(i64, &str)]) -> Store {
    let mut store = Store::new(&["a", "b"], &["w", "x"]);
    for (index, node) in entries {
        store.reboot(*index, node, RebootStatus::Queued);
    }
    store
}

#[tokio::test(start_paused = true)]
async fn a_node_is_drained_rebooted_and_dequeued_and_every_step_is_recorded() {
    let mut world = World::new(queued(&[(0, "w")]));
    world.kubernetes.pods(&[("w", pod("web", "ReplicaSet")), ("w", pod("logs", "DaemonSet"))]);
    world.kubernetes.protect(&["apps"]);
    world.kubernetes.on_delete(&["logs"]);
    world.begin().await;
    world.until_gone(0).await;
    assert_eq!(
        world.history(),
        [
            "reboot-drain-start completed",
            "reboot-reboot completed",
            "reboot-dequeue completed the node has booted"
        ]
    );
    let reboot = NOW.unix_timestamp() + world.host.boot_check_since();
    assert_eq!(world.host.ran(), ["reboot w".to_owned(), format!("check w {reboot}")]);
    let writes = world.kubernetes.writes();
    assert_eq!(writes, ["try web", "cordon w", "evict web", "delete logs"], "the dry run comes first");
    assert_eq!(world.stored(keys::REBOOTS_RUNNING).as_deref(), Some("false"));
}

#[tokio::test(start_paused = true)]
async fn reboots_follow_each_other_and_control_plane_nodes_come_last_and_alone() {
    let mut world = World::new(queued(&[(0, "a"), (1, "w"), (2, "b"), (3, "x")]));
    world.begin().await;
    for index in 0..4 {
        world.until_gone(index).await;
    }
    let reboots: Vec<String> =
        world.host.ran().into_iter().filter(|words| words.starts_with("reboot")).collect();
    assert_eq!(reboots, ["reboot w", "reboot x", "reboot a", "reboot b"]);
    assert!(world.broken().is_empty(), "{:?}", world.broken());
}

#[tokio::test(start_paused = true)]
async fn a_refused_dry_run_leaves_the_node_uncordoned_and_backs_off() {
    let mut world = World::new(queued(&[(0, "w")]));
    world.kubernetes.pods(&[("w", pod("web", "ReplicaSet"))]);
    world.kubernetes.protect(&["apps"]);
    world.kubernetes.budget(&["web"]);
    world.begin().await;
    let entry = world.until_entry(0, |entry| entry.drain_backoff_count == 1).await;
    assert_eq!(entry.status, RebootStatus::Queued);
    assert_eq!(world.kubernetes.writes(), ["try web"]);
    assert!(world.host.ran().is_empty());
    assert_eq!(world.history()[1].split(' ').next(), Some("reboot-drain-timeout"));
    // The budget yields, and the next attempt comes after the back-off.
    world.kubernetes.budget(&[]);
    world.until_gone(0).await;
    assert!(world.now() >= entry.drain_backoff_expire.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_running_job_holds_a_drain_and_a_pending_one_does_not() {
    let mut world = World::new(queued(&[(0, "w"), (1, "x")]));
    world.kubernetes.pods(&[("w", pod("sums", "Job"))]);
    let mut pending = pod("later", "Job");
    pending.phase = PodPhase::Pending;
    world.kubernetes.pods(&[("x", pending)]);
    world.begin().await;
    world.until_gone(1).await;
    let entry = world.until_entry(0, |entry| entry.drain_backoff_count >= 1).await;
    assert_eq!(entry.status, RebootStatus::Queued);
    assert_eq!(world.host.ran().first().map(String::as_str), Some("reboot x"));
    assert!(!world.kubernetes.writes().contains(&"cordon w".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn a_drain_waits_for_volumes_and_ends_at_its_time_out() {
    let mut world = World::new(queued(&[(0, "w")]));
    world.kubernetes.volumes("w", &["csi/v"]);
    world.begin().await;
    let entry = world.until_entry(0, |entry| entry.drain_backoff_count == 1).await;
    assert_eq!(entry.last_transition_time, Some(NOW + Duration::from_secs(60)));
    assert!(world.history()[1].ends_with("the volume csi/v is in use"), "{:?}", world.history());
    world.kubernetes.volumes("w", &[]);
    world.until_gone(0).await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_on_a_node_that_does_not_report_sends_the_entry_back() {
    let mut world = World::new(queued(&[(0, "w")]));
    world.kubernetes.pods(&[("w", pod("web", "ReplicaSet"))]);
    world.kubernetes.stick(&["web"]);
    world.kubernetes.unreachable("w");
    world.begin().await;
    let entry = world.until_entry(0, |entry| entry.drain_backoff_count == 1).await;
    assert!(entry.last_transition_time.unwrap() < NOW + Duration::from_secs(30), "before the time-out");
    assert!(world.history()[1].contains("the node is unreachable, so the pod apps/web does not end"));
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_entry_is_removed_and_its_command_does_not_begin() {
    let mut world = World::new(queued(&[(0, "w")]));
    world.kubernetes.pods(&[("w", pod("web", "ReplicaSet"))]);
    world.kubernetes.stick(&["web"]);
    world.begin().await;
    world.until_entry(0, |entry| entry.status == RebootStatus::Draining).await;
    world.change(|store| store.reboot(0, "w", RebootStatus::Cancelled));
    world.until_gone(0).await;
    world.kubernetes.stick(&[]);
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(world.host.ran().is_empty());
    assert_eq!(world.history().last().map(String::as_str), Some("reboot-cancel completed"));
}

#[tokio::test(start_paused = true)]
async fn a_disabled_queue_ends_its_drain_and_goes_on_when_it_is_enabled() {
    let mut world = World::new(queued(&[(0, "w")]));
    world.kubernetes.pods(&[("w", pod("web", "ReplicaSet"))]);
    world.kubernetes.stick(&["web"]);
    world.begin().await;
    world.until_entry(0, |entry| entry.status == RebootStatus::Draining).await;
    world.change(|store| store.text(keys::REBOOTS_DISABLED, "true"));
    tokio::time::sleep(Duration::from_secs(5)).await;
    let asked = world.kubernetes.asked();
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(world.kubernetes.asked(), asked, "no request while the queue is disabled");
    assert_eq!(world.entry(0).unwrap().status, RebootStatus::Draining);
    world.kubernetes.stick(&[]);
    world.change(|store| store.text(keys::REBOOTS_DISABLED, "false"));
    world.until_gone(0).await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_comes_after_the_drain_holds_the_command_and_is_evicted() {
    let mut world = World::new(queued(&[(0, "w")]));
    world.kubernetes.answer_within(Duration::from_secs(1));
    world.begin().await;
    world.until_entry(0, |entry| entry.status == RebootStatus::Rebooting).await;
    world.kubernetes.pods(&[("w", pod("late", "ReplicaSet"))]);
    world.until_entry(0, |entry| entry.status == RebootStatus::Draining).await;
    assert!(world.host.ran().is_empty());
    world.until_gone(0).await;
    assert_eq!(
        world.history()[1..3],
        [
            "reboot-reboot cancelled not started, the node is not drained any more: the pod apps/late has not ended",
            "reboot-reboot completed"
        ]
    );
    assert_eq!(world.kubernetes.writes(), ["cordon w", "cordon w", "evict late"]);
}

#[tokio::test(start_paused = true)]
async fn failed_commands_are_repeated_and_the_boot_check_decides() {
    for (does, ran, record) in [
        (Does::Fails, 3, "cancelled attempt 3 of 3: exit code 1 after 1.0 s"),
        (Does::IsLost, 1, "cancelled outcome unknown: "),
        (Does::IsKilled, 1, "cancelled outcome unknown: killed at its deadline after 1.0 s"),
    ] {
        let mut store = queued(&[(0, "w")]);
        let reboot =
            r#"{"reboot_command": ["reboot"], "boot_check_command": ["check"], "command_retries": 2}"#;
        store.configure(&["a", "b"], &["w", "x"], reboot);
        let mut world = World::new(store);
        world.host.does(does);
        world.begin().await;
        world.until_entry(0, |entry| entry.status == RebootStatus::Rebooting).await;
        world.until_record(1).await;
        let reboots = world.host.ran().iter().filter(|words| words.starts_with("reboot")).count();
        assert_eq!(reboots, ran, "{:?}", world.history());
        assert!(world.history()[1].contains(record), "{:?}", world.history());
        world.host.boot("w");
        world.until_gone(0).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_leader_goes_on_with_a_drain_and_repeats_no_command() {
    let mut world = World::new(queued(&[(0, "w"), (1, "x")]));
    world.kubernetes.pods(&[("w", pod("web", "ReplicaSet"))]);
    world.kubernetes.stick(&["web"]);
    world.begin().await;
    world.until_entry(0, |entry| entry.status == RebootStatus::Draining).await;
    tokio::time::sleep(Duration::from_secs(20)).await;
    world.kill().await;
    world.kubernetes.stick(&[]);
    // The time-out passes while no instance leads: the node is empty, which counts first.
    tokio::time::sleep(Duration::from_secs(300)).await;
    world.host.does(Does::Hangs);
    world.begin().await;
    world.until_entry(0, |entry| entry.status == RebootStatus::Rebooting).await;
    assert_eq!(world.entry(0).unwrap().drain_backoff_count, 0);
    world.until_ran(1).await;
    world.kill().await;
    world.host.does(Does::Boots);
    world.begin().await;
    world.until_record(1).await;
    assert!(world.history()[1].contains("outcome unknown"), "{:?}", world.history());
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(world.host.ran().iter().filter(|words| *words == "reboot w").count(), 1);
    world.host.boot("w");
    world.until_gone(0).await;
    world.until_gone(1).await;
}

#[tokio::test(start_paused = true)]
async fn a_reboot_waits_for_repairs_for_etcd_and_for_operations() {
    let mut store = queued(&[(0, "w")]);
    let repair = RepairQueueEntry { index: 0, ..RepairQueueEntry::new("unreachable", "t", "x") };
    store.repair_entry(&repair);
    let mut world = World::new(store);
    world.begin().await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(world.waits(), "repairs-first");
    let step_status = RepairStepStatus::Waiting;
    world.change(|store| {
        store.repair_entry(&RepairQueueEntry { status: RepairStatus::Succeeded, step_status, ..repair });
    });
    world.until_gone(0).await;
    for (change, obstacle) in [
        (Box::new(|world: &World| world.etcd(false, false)) as Box<dyn Fn(&World)>, "etcd-not-good"),
        (Box::new(|world: &World| world.etcd(true, true)), "operation-due"),
    ] {
        change(&world);
        world.change(|store| store.reboot(9, "w", RebootStatus::Queued));
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(world.waits(), obstacle);
        world.etcd(true, false);
        world.until_gone(9).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_control_plane_node_reboots_after_its_preparation_and_a_refusal_holds_it() {
    let mut world = World::new(queued(&[(0, "a"), (1, "w")]));
    world.run_operations().await;
    world.refuse_reboots(Some("I13: b is down"));
    world.begin().await;
    world.until_gone(1).await;
    assert!(world.prepared().iter().all(|node| node == "a"), "a worker has no API server");
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(world.host.ran().iter().filter(|words| *words == "reboot a").count(), 0);
    let refused = world.prepared().len();
    assert_eq!(refused, 1, "it waits for a while");
    let entry = world.entry(0).unwrap();
    assert_eq!((entry.status, entry.drain_backoff_count), (RebootStatus::Queued, 1));
    let history = world.history();
    assert!(
        history.iter().any(|it| it == "reboot-prepare cancelled not started, I13: b is down"),
        "{history:?}"
    );
    world.refuse_reboots(None);
    world.until_gone(0).await;
    assert_eq!(world.prepared().len(), refused + 1);
}

/// A control plane node whose preparation takes half a minute and has just begun.
async fn preparing() -> World {
    let mut world = World::new(queued(&[(0, "a")]));
    world.run_operations().await;
    world.prepare_within(Duration::from_secs(30));
    world.begin().await;
    world.until_prepared().await;
    tokio::time::sleep(Duration::from_secs(9)).await;
    assert_eq!((world.prepared().len(), world.abandoned()), (1, 0));
    assert_eq!(world.entry(0).unwrap().status, RebootStatus::Draining);
    world
}

#[tokio::test(start_paused = true)]
async fn a_reboot_that_is_cancelled_or_disabled_during_its_preparation_does_not_happen() {
    let world = preparing().await;
    world.change(|store| store.reboot(0, "a", RebootStatus::Cancelled));
    world.until_gone(0).await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!((world.host.ran(), world.abandoned()), (vec![], 1));
    let world = preparing().await;
    world.change(|store| store.text(keys::REBOOTS_DISABLED, "true"));
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!((world.host.ran(), world.abandoned()), (vec![], 1));
    assert_eq!(world.entry(0).unwrap().status, RebootStatus::Draining);
}

/// The time limit of a drain ends no preparation, and a prepared node with a new pod waits for the next one.
#[tokio::test(start_paused = true)]
async fn a_slow_drain_and_a_pod_that_comes_during_the_preparation_give_the_drain_up_after_it() {
    let mut world = World::new(queued(&[(0, "a")]));
    world.run_operations().await;
    world.prepare_within(Duration::from_secs(30));
    world.kubernetes.pods(&[("a", pod("web", "ReplicaSet"))]);
    world.kubernetes.stick(&["web"]);
    world.begin().await;
    world.until_entry(0, |entry| entry.status == RebootStatus::Draining).await;
    tokio::time::sleep(Duration::from_secs(45)).await;
    world.kubernetes.stick(&["late"]);
    world.until_prepared().await;
    world.kubernetes.pods(&[("a", pod("late", "ReplicaSet"))]);
    let entry = world.until_entry(0, |entry| entry.status == RebootStatus::Queued).await;
    assert_eq!((entry.drain_backoff_count, world.prepared().len(), world.abandoned()), (1, 1, 0));
    let history = world.history();
    assert!(history.iter().any(|it| it.starts_with("reboot-prepare completed")), "{history:?}");
    assert!(history.last().unwrap().contains("not drained any more"), "{history:?}");
    assert_eq!(world.host.ran(), [""; 0]);
}

/// The next leader ends all records before its actors start; an actor that starts again finds the record.
#[tokio::test(start_paused = true)]
async fn a_preparation_that_ended_with_its_leader_or_its_actor_is_repeated_before_the_command() {
    for by_leader in [false, true] {
        let mut world = preparing().await;
        world.kill().await;
        if by_leader {
            world.change(|store| store.end_records(NOW));
        }
        world.begin().await;
        world.until_gone(0).await;
        assert_eq!((world.prepared().len(), world.abandoned()), (2, 1));
        assert_eq!(world.host.ran().iter().filter(|words| *words == "reboot a").count(), 1);
        assert_eq!(world.broken(), [""; 0]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_reboot_that_is_cancelled_during_the_last_check_of_its_drain_does_not_happen() {
    let mut world = World::new(queued(&[(0, "w")]));
    world.kubernetes.answer_within(Duration::from_secs(5));
    world.begin().await;
    world.until_entry(0, |entry| entry.status == RebootStatus::Rebooting).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    world.change(|store| store.reboot(0, "w", RebootStatus::Cancelled));
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!((world.host.ran(), world.entry(0)), (vec![], None));
}

#[tokio::test(start_paused = true)]
async fn too_many_unreachable_nodes_hold_new_drains() {
    let mut world = World::new(queued(&[(0, "w")]));
    world.unreachable(&["x"]);
    world.begin().await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(world.waits(), "too-many-unreachable");
    world.unreachable(&[]);
    world.until_gone(0).await;
}

#[tokio::test(start_paused = true)]
async fn the_page_has_the_obstacles_that_only_the_leader_knows() {
    let mut world = World::new(queued(&[(0, "w")]));
    world.kubernetes.pods(&[("w", pod("web", "ReplicaSet"))]);
    world.kubernetes.stick(&["web"]);
    world.unreachable(&["x"]);
    world.begin().await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let held = world.published(0).unwrap();
    assert_eq!((held.next.as_str(), held.obstacle.as_deref()), ("drain", Some("too-many-unreachable")));
    assert!(held.is_held && held.why.as_ref().unwrap().ends_with(" is 0: x"), "{held:?}");
    world.unreachable(&[]);
    world.until_entry(0, |entry| entry.status == RebootStatus::Draining).await;
    tokio::time::sleep(Duration::from_secs(20)).await;
    let draining = world.published(0).unwrap();
    assert_eq!((draining.next.as_str(), draining.obstacle.as_deref()), ("reboot", Some("draining")));
    assert!(!draining.is_held && draining.why.as_ref().unwrap().contains("apps/web"), "{draining:?}");
    world.kubernetes.stick(&[]);
    world.until_gone(0).await;
    assert_eq!(world.published(0), None);
}

#[tokio::test(start_paused = true)]
async fn nodes_that_become_unreachable_during_the_dry_runs_prevent_the_cordon() {
    let mut world = World::new(queued(&[(0, "w")]));
    world.kubernetes.pods(&[("w", pod("web", "ReplicaSet"))]);
    world.kubernetes.protect(&["apps"]);
    world.kubernetes.answer_within(Duration::from_secs(1));
    world.begin().await;
    world.until_entry(0, |entry| entry.status == RebootStatus::Draining).await;
    world.unreachable(&["x"]);
    world.until_entry(0, |entry| entry.drain_backoff_count == 1).await;
    assert_eq!(world.kubernetes.writes(), ["try web"]);
    let why = "I15: w would be drained while 1 nodes are unreachable, first x; the limit is 0";
    assert!(world.history()[1].contains(why), "{:?}", world.history());
    world.unreachable(&[]);
    world.until_gone(0).await;
}

#[tokio::test(start_paused = true)]
async fn a_drain_that_an_earlier_leader_only_announced_is_not_begun_beyond_the_limit() {
    let mut store = queued(&[]);
    store.reboot(0, "w", RebootStatus::Draining);
    let mut world = World::new(store);
    world.unreachable(&["x"]);
    world.begin().await;
    world.until_entry(0, |entry| entry.drain_backoff_count == 1).await;
    assert!(world.kubernetes.writes().is_empty(), "{:?}", world.kubernetes.writes());
    assert!(world.history()[0].contains("I15: w would be drained"), "{:?}", world.history());
    world.unreachable(&[]);
    world.until_gone(0).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_is_drained_for_an_upgrade_by_whichever_leader_and_runs_no_command() {
    let mut store = queued(&[(-1, "w"), (-2, "x")]);
    store.configure(&["a", "b"], &["w", "x"], r#"{"eviction_timeout_seconds": 60}"#);
    let mut world = World::new(store);
    world.kubernetes.pods(&[("w", pod("web", "ReplicaSet"))]);
    world.kubernetes.stick(&["web"]);
    world.begin().await;
    world.until_entry(-1, |entry| entry.status == RebootStatus::Draining).await;
    world.kill().await;
    world.kubernetes.stick(&[]);
    world.begin().await;
    world.until_entry(-1, |entry| entry.status == RebootStatus::Drained).await;
    assert_eq!(world.entry(-2).unwrap().status, RebootStatus::Queued, "the slot is taken");
    assert_eq!(world.kubernetes.writes()[..2], ["cordon w", "evict web"]);
    assert_eq!(world.stored(keys::REBOOTS_RUNNING), None, "CKE's queue is empty");
    // The operation runner removes the entry of an updated node. That of the other node is not updated in time.
    world.change(|store| store.delete(&keys::reboot(-1)));
    world.until_entry(-2, |entry| entry.status == RebootStatus::Drained).await;
    let given_up = world.until_entry(-2, |entry| entry.drain_backoff_count == 1).await;
    assert_eq!(given_up.abort_reason, "the kubelet of the drained node was not updated in time");
    assert!(world.now() > NOW + RebootSettings::default().boot_timeout);
    assert!(world.host.ran().is_empty() && world.broken().is_empty(), "{:?}", world.broken());
}
