use std::time::Duration;

use madako_domain::keys;
use madako_domain::reboot::RebootStatus::{Cancelled, Drained, Draining, Queued, Rebooting};
use madako_domain::repair::{RepairQueueEntry, RepairStatus};

use super::*;
use crate::explain::config;
use crate::testing::{NOW, REBOOT, Store};

struct World {
    store: Store,
    live: Live,
    maximum_unreachable: usize,
    now: OffsetDateTime,
}

impl World {
    /// Three control plane nodes a, b and c, and four workers.
    fn new(reboots: &[(i64, &str, RebootStatus)]) -> Self {
        let mut store = Store::new(&["a", "b", "c"], &["w", "x", "y", "z"]);
        for (index, node, status) in reboots {
            store.reboot(*index, node, status.clone());
        }
        let live = Live { host: true, kubernetes: true, ..Live::default() };
        Self { store, live, maximum_unreachable: 0, now: NOW }
    }

    fn configure(&mut self, reboot: &str) {
        self.store.configure(&["a", "b", "c"], &["w", "x", "y", "z"], reboot);
    }

    fn concurrent(&mut self, most: u32) {
        self.configure(&REBOOT.replace('{', &format!("{{\"max_concurrent_reboots\": {most}, ")));
    }

    fn actions(&self) -> Vec<NextAction> {
        let state = self.store.state();
        let nodes = nodes(state.cluster.as_ref().map(|cluster| &*cluster.value));
        let config = config(&state);
        next_actions(&View {
            queue: &state.repair,
            nodes: &nodes,
            config: config.as_ref(),
            settings: RebootSettings::default(),
            maximum_unreachable: self.maximum_unreachable,
            live: &self.live,
            now: self.now,
        })
    }

    /// Index, action and obstacle of every entry in the order of service; an empty name: the action is due.
    fn named(&self) -> Vec<(i64, &'static str, &'static str)> {
        let named = |next: &NextAction| {
            (next.index, next.action.name(), next.blocked_by.as_ref().map_or("", BlockedBy::name))
        };
        self.actions().iter().map(named).collect()
    }

    fn sentence(&self, index: i64) -> String {
        let actions = self.actions();
        let next = actions.iter().find(|next| next.index == index).unwrap();
        match &next.blocked_by {
            Some(blocked_by) => blocked_by.to_string(),
            None => next.action.to_string(),
        }
    }
}

#[test]
fn workers_begin_in_order_as_far_as_slots_allow() {
    let mut world = World::new(&[(3, "x", Queued), (1, "w", Queued), (7, "y", Queued)]);
    assert_eq!(world.named(), [(1, "drain", ""), (3, "drain", "slots"), (7, "drain", "slots")]);
    world.concurrent(2);
    assert_eq!(world.named(), [(1, "drain", ""), (3, "drain", ""), (7, "drain", "slots")]);
    world.store.reboot(3, "x", Draining);
    assert_eq!(world.named()[1..], [(1, "drain", ""), (7, "drain", "slots")]);
}

#[test]
fn control_plane_node_comes_last_and_alone() {
    let mut world = World::new(&[(0, "a", Queued), (1, "w", Queued), (2, "b", Queued)]);
    world.concurrent(5);
    assert_eq!(
        world.named(),
        [(1, "drain", ""), (0, "drain", "workers-first"), (2, "drain", "workers-first")]
    );
    world.store.reboot(1, "w", Rebooting);
    assert_eq!(world.named()[1].2, "workers-first", "it waits for the end of the worker");
    world.store.delete(&keys::reboot(1));
    assert_eq!(world.named(), [(0, "drain", ""), (2, "drain", "control-plane-busy")]);
    world.store.reboot(0, "a", Rebooting);
    world.store.reboot(3, "w", Queued);
    let busy = [
        (0, "await-boot", "booting"),
        (3, "drain", "control-plane-busy"),
        (2, "drain", "control-plane-busy"),
    ];
    assert_eq!(world.named(), busy);
    // It never frees its place: a second API server must not stop.
    world.now += Duration::from_secs(24 * 3600);
    assert_eq!(world.named()[0].2, "boot-overdue");
    assert!(world.sentence(0).ends_with("a control plane node keeps the queue waiting"));
    assert_eq!(world.named()[1].2, "control-plane-busy");
}

#[test]
fn worker_in_back_off_does_not_hold_a_control_plane_node() {
    let mut world = World::new(&[(0, "a", Queued)]);
    let expire = Some(NOW + Duration::from_secs(10));
    let entry = RebootQueueEntry {
        index: 1,
        drain_backoff_count: 2,
        drain_backoff_expire: expire,
        ..RebootQueueEntry::new("w")
    };
    world.store.entry(&entry);
    assert_eq!(world.named(), [(1, "drain", "back-off"), (0, "drain", "")]);
    assert_eq!(
        world.sentence(1),
        "draining was aborted 2 times; the next attempt is at 2026-01-02T03:04:15Z"
    );
    world.now += Duration::from_secs(10);
    assert_eq!(world.named(), [(1, "drain", ""), (0, "drain", "workers-first")]);
}

#[test]
fn control_plane_node_waits_for_the_repair_of_another() {
    let mut world = World::new(&[(0, "a", Queued)]);
    world.store.repair(0, "b");
    assert_eq!(world.named(), [(0, "drain", "control-plane-busy")]);
    assert_eq!(world.sentence(0), "the control plane node b is drained, reboots or is repaired");
}

#[test]
fn second_control_plane_node_that_another_program_began_gives_way() {
    let mut world = World::new(&[(0, "a", Draining), (1, "b", Draining), (2, "c", Rebooting)]);
    let drained = [(0, "back-off", ""), (1, "back-off", ""), (2, "await-boot", "booting")];
    assert_eq!(world.named(), drained);
    world.store.delete(&keys::reboot(2));
    world.live.drains.insert(1, Drain::Done);
    assert_eq!(world.named(), [(0, "back-off", ""), (1, "reboot", "")], "one of two goes on");
}

#[test]
fn entry_of_a_busy_node_waits() {
    let mut world = World::new(&[(0, "w", Queued), (1, "w", Queued), (2, "x", Queued)]);
    world.concurrent(9);
    assert_eq!(world.named(), [(0, "drain", ""), (1, "drain", "same-node"), (2, "drain", "")]);
    world.store.reboot(0, "w", Cancelled);
    assert_eq!(world.named(), [(0, "remove", ""), (1, "drain", ""), (2, "drain", "")]);
    // An entry under way counts before an older one.
    let world = World::new(&[(0, "w", Queued), (1, "w", Draining)]);
    assert_eq!(world.named(), [(1, "reboot", "draining"), (0, "drain", "same-node")]);
}

#[test]
fn cancelled_left_and_booted_entries_are_removed() {
    let mut world =
        World::new(&[(0, "w", Cancelled), (1, "gone", Draining), (2, "x", Rebooting), (3, "y", Draining)]);
    world.live.booted = [2, 3].into();
    assert_eq!(
        world.named(),
        [(0, "remove", ""), (1, "remove", ""), (2, "remove", ""), (3, "reboot", "draining")],
        "a boot counts only for a rebooting entry"
    );
    let actions: Vec<_> = world.actions().iter().take(3).map(|next| next.action.to_string()).collect();
    assert_eq!(actions[1], "the entry is removed: the node left the cluster");
}

#[test]
fn nothing_happens_without_both_commands_or_while_the_queue_is_disabled() {
    for (reboot, obstacle) in [
        (r#"{"boot_check_command": ["c"]}"#, "no-command"),
        (r#"{"reboot_command": ["c"]}"#, "no-command"),
        ("[]", "unusable-configuration"),
    ] {
        let mut world = World::new(&[(0, "w", Cancelled), (1, "x", Queued)]);
        world.configure(reboot);
        assert_eq!(world.named(), [(0, "remove", obstacle), (1, "drain", obstacle)], "{reboot}");
    }
    let mut world = World::new(&[(0, "w", Cancelled), (1, "x", Draining)]);
    world.live.drains.insert(1, Drain::Done);
    world.store.text(keys::REBOOTS_DISABLED, "true");
    assert_eq!(world.named(), [(0, "remove", "disabled"), (1, "reboot", "disabled")]);
    let mut world = World::new(&[(0, "w", Cancelled)]);
    world.store.delete(keys::CLUSTER);
    assert_eq!(world.named(), [(0, "remove", "no-cluster")]);
}

#[test]
fn each_node_reboots_as_soon_as_it_is_empty() {
    let mut world = World::new(&[(0, "w", Draining), (1, "x", Draining)]);
    world.concurrent(2);
    world.live.drains.insert(1, Drain::Done);
    assert_eq!(world.named(), [(0, "reboot", "draining"), (1, "reboot", "")]);
    world.live.host = false;
    assert_eq!(world.named()[1], (1, "reboot", "no-host"));
}

#[test]
fn aborted_drains_back_off_with_their_reason() {
    let mut world = World::new(&[(0, "w", Draining)]);
    let waits = Some("the pod a/b has not ended".to_owned());
    world.live.drains.insert(0, Drain::Runs { waits });
    world.now += Duration::from_secs(60);
    assert_eq!(world.named(), [(0, "reboot", "draining")]);
    assert_eq!(
        world.sentence(0),
        "the node is being drained: the pod a/b has not ended; the drain ends at 2026-01-02T03:05:05Z at the latest"
    );
    world.now += Duration::from_secs(1);
    assert_eq!(world.named(), [(0, "back-off", "")]);
    assert!(world.sentence(0).ends_with("draining timed out: the pod a/b has not ended"));
    world.now = NOW;
    world.live.drains.insert(0, Drain::Failed { why: "the pod a/b of a job runs".to_owned() });
    assert!(world.sentence(0).ends_with(": the pod a/b of a job runs"));
    // No time-out is awaited: the kubelet ends no pod.
    world.live.drains.insert(0, Drain::Unreachable { pod: "a/b".to_owned() });
    assert_eq!(world.named(), [(0, "back-off", "")]);
    assert!(world.sentence(0).contains("the node is unreachable, so the pod a/b does not end"));
}

#[test]
fn late_boot_frees_the_slot_and_three_of_them_hold_the_queue() {
    let mut world = World::new(&[(0, "w", Rebooting), (9, "a", Queued)]);
    let late = NOW - Duration::from_secs(30 * 60 + 1);
    let entry = |index, node: &str| RebootQueueEntry {
        index,
        status: Rebooting,
        last_transition_time: Some(late),
        ..RebootQueueEntry::new(node)
    };
    world.store.entry(&entry(0, "w"));
    assert_eq!(world.named(), [(0, "await-boot", "boot-overdue"), (9, "drain", "")]);
    assert_eq!(world.sentence(0), "the node has not booted since 2026-01-02T02:34:04Z; its slot is free");
    world.store.entry(&entry(1, "x"));
    world.store.reboot(5, "z", Queued);
    assert_eq!(world.named()[2], (5, "drain", ""));
    world.store.entry(&entry(2, "y"));
    assert_eq!(world.named()[3..], [(5, "drain", "stuck"), (9, "drain", "workers-first")]);
    assert!(world.sentence(5).starts_with("the nodes of the entries 0, 1, 2 did not boot in time"));
    let created = world.store.state().repair.reboots[&1].created;
    world.store.release([(1, created)].into());
    assert_eq!(world.named()[3], (5, "drain", ""));
    world.store.release([(1, created + 1)].into());
    assert_eq!(world.named()[3], (5, "drain", "stuck"), "a release counts for one entry");
    // It still ends when the node boots.
    world.live.booted.insert(2);
    assert_eq!(world.named()[0], (2, "remove", ""));
    assert_eq!(world.named()[3], (5, "drain", ""));
}

#[test]
fn new_drains_have_the_obstacles_of_the_cluster() {
    let world = || World::new(&[(0, "w", Queued), (1, "x", Queued)]);
    let first = |change: &dyn Fn(&mut World)| {
        let mut world = world();
        change(&mut world);
        world.named()[0].2
    };
    assert_eq!(first(&|_| {}), "");
    assert_eq!(first(&|world| world.live.kubernetes = false), "no-kubernetes");
    assert_eq!(first(&|world| world.live.host = false), "no-host");
    assert_eq!(first(&|world| world.live.operation_due = true), "operation-due");
    assert_eq!(first(&|world| world.live.etcd = Some("a is down".to_owned())), "etcd-not-good");
    assert_eq!(first(&|world| world.live.unreachable = ["y".to_owned()].into()), "too-many-unreachable");
    let tolerated = |world: &mut World| {
        world.live.unreachable = ["y".to_owned(), "outside".to_owned()].into();
        world.maximum_unreachable = 1;
    };
    assert_eq!(first(&tolerated), "");
    // Nodes that drain or reboot are expected to be unreachable.
    let rebooting = |world: &mut World| {
        world.concurrent(2);
        world.store.reboot(7, "y", Rebooting);
        world.live.unreachable = ["y".to_owned()].into();
    };
    let mut own = world();
    rebooting(&mut own);
    assert_eq!(own.named()[1], (0, "drain", ""));
}

#[test]
fn unfinished_repairs_come_first_unless_they_back_off() {
    let mut world = World::new(&[(0, "w", Queued)]);
    let repair =
        |address: &str| RepairQueueEntry { index: 4, ..RepairQueueEntry::new("unreachable", "t", address) };
    world.store.repair_entry(&repair("machine"));
    world.store.text(keys::REPAIRS_DISABLED, "true");
    assert_eq!(world.named(), [(0, "drain", "repairs-first")]);
    let waits = RepairQueueEntry {
        status: RepairStatus::Processing,
        drain_backoff_expire: Some(NOW + Duration::from_secs(1)),
        ..repair("machine")
    };
    world.store.repair_entry(&waits);
    assert_eq!(world.named(), [(0, "drain", "")]);
    world.store.repair_entry(&RepairQueueEntry { address: "w".to_owned(), ..waits });
    assert_eq!(world.named(), [(0, "drain", "repaired")], "a node has one drain at a time");
    world.store.repair_entry(&RepairQueueEntry { status: RepairStatus::Failed, ..repair("w") });
    assert_eq!(world.named(), [(0, "drain", "")]);
}

#[test]
fn reboot_of_a_control_plane_node_waits_for_etcd() {
    let mut world = World::new(&[(0, "a", Draining)]);
    world.live.drains.insert(0, Drain::Done);
    assert_eq!(world.named(), [(0, "reboot", "")]);
    world.live.etcd = Some("b is not in sync".to_owned());
    assert_eq!(world.named(), [(0, "reboot", "etcd-not-good")]);
    assert_eq!(world.sentence(0), "etcd is not in good health: b is not in sync");
    world.now += Duration::from_secs(61);
    assert_eq!(world.named(), [(0, "back-off", "")], "b may need a repair, which waits for this node");
    world.live.etcd = None;
    assert_eq!(world.named(), [(0, "reboot", "")]);
}

#[test]
fn drain_and_reboot_of_a_control_plane_node_wait_for_the_other_api_servers() {
    let mut world = World::new(&[(0, "a", Queued)]);
    assert_eq!(world.named(), [(0, "drain", "")]);
    world.live.api.insert("a".to_owned(), "I13: the one on b is down".to_owned());
    assert_eq!(world.named(), [(0, "drain", "api-not-available")]);
    assert_eq!(world.sentence(0), "I13: the one on b is down");
    world.store.reboot(0, "a", Draining);
    world.live.drains.insert(0, Drain::Done);
    assert_eq!(world.named(), [(0, "reboot", "api-not-available")]);
    world.live.api.clear();
    assert_eq!(world.named(), [(0, "reboot", "")]);
}

#[test]
fn time_of_a_clock_that_was_ahead_counts_from_now() {
    let mut world = World::new(&[]);
    let ahead = Some(NOW + Duration::from_secs(9_000_000));
    let entry = RebootQueueEntry {
        index: 0,
        status: Draining,
        last_transition_time: ahead,
        ..RebootQueueEntry::new("w")
    };
    world.store.entry(&entry);
    let until = world.actions()[0].blocked_by.as_ref().unwrap().until();
    assert_eq!(until, Some(NOW + Duration::from_secs(60)));
}

#[test]
fn drains_for_upgrades_share_the_slots_and_need_no_commands() {
    let mut world = World::new(&[(-1, "x", Queued), (-2, "a", Queued), (3, "w", Queued)]);
    assert_eq!(
        world.named(),
        [(3, "drain", ""), (-1, "drain", "slots"), (-2, "drain", "workers-first")],
        "a reboot comes first, and brings the kubelet as well"
    );
    world.live.host = false;
    world.configure("{}");
    assert_eq!(world.named()[..2], [(3, "drain", "no-command"), (-1, "drain", "")]);
    world.store.text(keys::REBOOTS_DISABLED, "true");
    assert_eq!(world.named()[1], (-1, "drain", "disabled"));
}

#[test]
fn a_drained_node_is_left_to_its_update_and_given_up_when_that_does_not_come() {
    let mut world = World::new(&[(-1, "a", Draining), (-2, "w", Queued)]);
    world.live.drains.insert(-1, Drain::Runs { waits: None });
    assert_eq!(world.named()[0], (-1, "leave-to-update", "draining"));
    world.live.drains.insert(-1, Drain::Done);
    // Neither etcd nor an API server goes away.
    world.live.etcd = Some("it does not answer".to_owned());
    world.live.api.insert("a".to_owned(), "I13".to_owned());
    assert_eq!(world.named(), [(-1, "leave-to-update", ""), (-2, "drain", "control-plane-busy")]);
    world.store.reboot(-1, "a", Drained);
    assert_eq!(world.named(), [(-1, "await-update", "updating"), (-2, "drain", "control-plane-busy")]);
    world.now += RebootSettings::default().boot_timeout + Duration::from_secs(1);
    assert_eq!(world.named()[0], (-1, "back-off", ""));
    world.store.text(&keys::record(7), r#"{"id":"7","status":"running","operation":"kubelet-restart"}"#);
    assert_eq!(world.named()[0], (-1, "back-off", "command-runs"));
}

#[test]
fn drains_for_upgrades_are_removed_while_operations_leave_kubelets_as_they_are() {
    let mut world = World::new(&[(-1, "x", Draining), (-2, "w", Queued), (3, "y", Queued)]);
    world.live.leaves_kubelets = true;
    assert_eq!(world.named(), [(-1, "remove", ""), (-2, "remove", ""), (3, "drain", "")]);
}

#[test]
fn a_node_has_one_drain_for_a_reboot_or_for_an_upgrade() {
    let mut world = World::new(&[(-1, "w", Queued), (2, "w", Draining)]);
    world.concurrent(2);
    assert_eq!(world.named(), [(2, "reboot", "draining"), (-1, "drain", "same-node")]);
}
