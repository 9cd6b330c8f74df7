use madako_domain::keys;
use madako_domain::reboot::RebootStatus;
use madako_domain::repair::RepairStepStatus::{Draining, Waiting, Watching};
use madako_domain::store::Write;

use super::*;
use crate::testing::{NOW, Store, processing, queued};

struct Context {
    live: LeaderState,
    held: HeldBack,
}

/// Unhealthy machines, with Kubernetes and a host.
fn context(store: &Store) -> Context {
    let state = store.state();
    let health = state.repair.entries.keys().map(|index| (*index, Health::Unhealthy)).collect();
    let live = LeaderState { health, host: true, kubernetes: true, ..LeaderState::default() };
    Context { live, held: HeldBack::default() }
}

fn actions_with(store: &Store, context: &Context) -> BTreeMap<i64, (Action, Option<BlockedBy>)> {
    let state = store.state();
    let nodes = nodes_of_queue(state.cluster.as_ref().map(|cluster| &*cluster.value), &state.repair);
    let config = config(&state);
    let actions = next_actions(&View {
        queue: &state.repair,
        nodes: &nodes,
        config: config.as_ref().map(|config| *config),
        held: &context.held,
        live: &context.live,
        now: NOW,
    });
    actions.into_iter().map(|next| (next.index, (next.action, next.blocked_by))).collect()
}

fn actions_of(store: &Store) -> BTreeMap<i64, (Action, Option<BlockedBy>)> {
    actions_with(store, &context(store))
}

/// Indexes of entries with a due action.
fn due(actions: &BTreeMap<i64, (Action, Option<BlockedBy>)>) -> Vec<i64> {
    actions.iter().filter(|(_, (_, blocked_by))| blocked_by.is_none()).map(|(index, _)| *index).collect()
}

fn store(entries: &[RepairQueueEntry]) -> Store {
    let mut store = Store::new(&["a", "b", "c"], &["w", "x", "y"]);
    for entry in entries {
        store.entry(entry);
    }
    store
}

#[test]
fn a_node_is_drained_first_and_another_machine_is_not() {
    let actions = actions_of(&store(&[queued(0, "w", "unreachable"), queued(1, "outside", "unreachable")]));
    assert_eq!(actions[&0], (Action::Drain { step: 0 }, None));
    assert_eq!(actions[&1], (Action::Execute { step: 0 }, None));
}

#[test]
fn entries_begin_up_to_the_maximum_and_control_plane_nodes_first() {
    let entries = [queued(0, "w", "plain"), queued(1, "x", "plain"), queued(2, "a", "plain")];
    let actions = actions_of(&store(&entries));
    assert_eq!(due(&actions), [0, 2]);
    assert_eq!(actions[&1].1, Some(BlockedBy::Slots { maximum: 2 }));
}

#[test]
fn repair_in_progress_precedes_a_repair_after_its_back_off() {
    // The back-off of the first ends while work on the second is under way: CKE would begin the first context it.
    let entries = [processing(0, "a", 0, Waiting, 500), processing(1, "b", 0, Watching, 10)];
    let actions = actions_of(&store(&entries));
    assert_eq!(actions[&0].1, Some(BlockedBy::ApiServerRepaired { address: "b".to_owned() }));
    assert!(matches!(actions[&1].1, Some(BlockedBy::Watching { .. })), "{actions:?}");
}

#[test]
fn an_api_server_is_not_repaired_beside_a_reboot_of_another() {
    for status in [RebootStatus::Draining, RebootStatus::Rebooting] {
        let mut store = store(&[queued(0, "a", "plain"), queued(1, "w", "plain")]);
        store.reboot(0, "b", status.clone());
        let actions = actions_of(&store);
        assert_eq!(actions[&0].1, Some(BlockedBy::ApiServerRebooted { address: "b".to_owned() }));
        assert_eq!(due(&actions), [1]);
        let drains = status == RebootStatus::Draining;
        store.reboot(0, "a", status);
        let actions = actions_of(&store);
        assert_eq!(
            actions[&0].1,
            drains.then_some(BlockedBy::RebootDrains),
            "a node has one drain at a time"
        );
        assert!(due(&actions).contains(&1));
    }
    let mut store = store(&[queued(0, "a", "plain")]);
    store.reboot(0, "b", RebootStatus::Queued);
    assert_eq!(due(&actions_of(&store)), [0]);
}

#[test]
fn only_one_of_two_entries_for_a_machine_is_processed() {
    let actions = actions_of(&store(&[queued(0, "w", "plain"), queued(1, "w", "plain")]));
    assert_eq!(actions[&1].1, Some(BlockedBy::SameMachine { index: 0 }));
    let actions = actions_of(&store(&[queued(0, "w", "plain"), processing(1, "w", 0, Watching, 1)]));
    assert_eq!(actions[&0].1, Some(BlockedBy::SameMachine { index: 1 }));
}

#[test]
fn a_drain_ends_when_another_entry_has_the_machine() {
    let both = store(&[processing(0, "w", 0, Watching, 1), processing(1, "w", 0, Draining, 1)]);
    assert_eq!(actions_of(&both)[&1], (Action::Abandon(Abandoned::SameMachine { index: 0 }), None));
}

#[test]
fn an_entry_in_back_off_still_has_its_machine_to_itself() {
    let until = NOW + time::Duration::seconds(60);
    let entry = RepairQueueEntry { drain_backoff_expire: Some(until), ..processing(1, "w", 0, Waiting, 1) };
    let actions = actions_of(&store(&[queued(0, "w", "plain"), entry]));
    assert_eq!(actions[&0].1, Some(BlockedBy::SameMachine { index: 1 }));
}

#[test]
fn entries_in_back_off_hold_no_slot() {
    let until = NOW + time::Duration::seconds(60);
    let backing = |index, address| RepairQueueEntry {
        drain_backoff_count: 2,
        drain_backoff_expire: Some(until),
        ..processing(index, address, 0, Waiting, 1)
    };
    let entries = [backing(0, "w"), backing(1, "x"), queued(2, "y", "plain"), queued(3, "z", "plain")];
    let actions = actions_of(&store(&entries));
    assert_eq!(actions[&0].1, Some(BlockedBy::BackOff { until, count: 2, why: None }));
    assert_eq!(due(&actions), [2, 3]);
}

#[test]
fn entry_without_a_configured_operation_waits_without_a_slot() {
    let missing = RepairQueueEntry { machine_type: "unknown".to_owned(), ..queued(0, "w", "plain") };
    let entries = [missing, queued(1, "x", "none"), queued(2, "y", "plain"), queued(3, "z", "plain")];
    let actions = actions_of(&store(&entries));
    assert!(matches!(actions[&0].1, Some(BlockedBy::Missing(_))));
    assert!(matches!(actions[&1].1, Some(BlockedBy::Missing(_))));
    assert_eq!(due(&actions), [2, 3]);
}

#[test]
fn a_drain_whose_operation_vanished_is_given_up() {
    let entry = RepairQueueEntry { operation: "gone".to_owned(), ..processing(0, "w", 0, Draining, 1) };
    assert!(matches!(actions_of(&store(&[entry]))[&0], (Action::Abandon(Abandoned::Missing(_)), None)));
}

#[test]
fn a_healthy_machine_succeeds_in_every_state_also_while_disabled() {
    for entry in [
        queued(0, "w", "unreachable"),
        processing(0, "w", 0, Draining, 1),
        processing(0, "w", 0, Watching, 1),
        processing(0, "w", 9, Watching, 1),
        processing(0, "w", 0, Waiting, 1),
    ] {
        let mut store = store(&[entry]);
        store.text(keys::REPAIRS_DISABLED, "true");
        let mut context = context(&store);
        context.live.health.insert(0, Health::Healthy);
        assert_eq!(actions_with(&store, &context)[&0], (Action::Succeed { command: false }, None));
    }
}

#[test]
fn nothing_begins_while_the_health_is_unknown() {
    for entry in [
        queued(0, "w", "unreachable"),
        queued(0, "x", "plain"),
        queued(0, "y", "empty"),
        processing(0, "w", 0, Watching, 500),
        processing(0, "w", 1, Watching, 500),
    ] {
        let store = store(std::slice::from_ref(&entry));
        let mut context = context(&store);
        context.live.health.clear();
        assert_eq!(actions_with(&store, &context)[&0].1, Some(BlockedBy::HealthUnknown), "{entry:?}");
    }
}

#[test]
fn a_disabled_queue_begins_nothing_and_gives_drains_up() {
    let entries = [
        queued(0, "w", "plain"),
        processing(1, "x", 0, Draining, 1),
        processing(2, "y", 0, Watching, 500),
        RepairQueueEntry { deleted: true, ..queued(3, "z", "plain") },
    ];
    let mut store = store(&entries);
    store.text(keys::REPAIRS_DISABLED, "true");
    let actions = actions_of(&store);
    assert_eq!(actions[&0].1, Some(BlockedBy::Disabled));
    assert_eq!(actions[&1], (Action::Abandon(Abandoned::Disabled), None));
    assert_eq!(actions[&2].1, Some(BlockedBy::Disabled));
    assert_eq!(actions[&3], (Action::Remove, None));
}

#[test]
fn held_rack_begins_no_repair_abandons_drains_and_fails_no_entry() {
    let entries = [
        queued(0, "w", "plain"),
        processing(1, "x", 0, Draining, 1),
        processing(2, "y", 1, Watching, 500),
        queued(3, "z", "plain"),
    ];
    let store = store(&entries);
    let mut context = context(&store);
    context.held.racks = ["w", "x", "y"].map(|address| (address.to_owned(), "3".to_owned())).into();
    let actions = actions_with(&store, &context);
    let held = Some(BlockedBy::Held { rack: "3".to_owned() });
    assert_eq!(actions[&0].1, held);
    assert_eq!(actions[&1].0, Action::Abandon(Abandoned::Held { rack: "3".to_owned() }));
    assert_eq!(actions[&2], (Action::Fail(Failure::NoStepLeft { step: 2 }), held));
    assert_eq!(due(&actions), [1, 3], "the third cannot go on, and its slot is the fourth's");
}

/// A first step with a health watch of 100 s, and a second step that drains.
const DRAINS_LATER: &str = r#"{"max_concurrent_repairs": 1, "repair_procedures": [{"machine_types": ["t"],
    "repair_operations": [{"operation": "unreachable", "health_check_command": ["check"], "repair_steps": [
        {"repair_command": ["reset"], "watch_seconds": 100}, {"repair_command": ["reinstall"], "need_drain": true}]}]}]}"#;

/// An obstacle to proceeding, and the change that causes it.
type Stop = (&'static str, fn(&mut Store, &mut Context));

const STOPS: [Stop; 4] = [
    ("rack-held", |_, context| {
        context.held.racks.extend(["w", "a"].map(|it| (it.to_owned(), "3".to_owned())))
    }),
    ("no-kubernetes", |_, context| context.live.kubernetes = false),
    ("missing", |store, _| {
        let without = DRAINS_LATER.replace("\"unreachable\"", "\"plain\"");
        store.configure(&["a", "b", "c"], &["w", "x", "y"], &without);
    }),
    ("no-host", |_, context| context.live.host = false),
];

/// An entry whose health watch ended a while ago, and other entries.
fn watched(address: &str, others: &[RepairQueueEntry], stop: &Stop) -> (Store, Context) {
    let mut store = store(&[processing(0, address, 0, Watching, 500)]);
    store.configure(&["a", "b", "c"], &["w", "x", "y"], DRAINS_LATER);
    for entry in others {
        store.entry(entry);
    }
    let mut context = context(&store);
    stop.1(&mut store, &mut context);
    (store, context)
}

#[test]
fn repair_blocked_after_its_watch_yields_its_slot() {
    for stop in &STOPS {
        let other = RepairQueueEntry { step: 1, ..processing(1, "outside", 0, Draining, 1) };
        let queued =
            RepairQueueEntry { operation: "unreachable".to_owned(), ..queued(1, "x", "unreachable") };
        let other = if stop.0 == "no-host" { other } else { queued };
        let (store, context) = watched("w", &[other], stop);
        let actions = actions_with(&store, &context);
        assert_eq!(actions[&0].1.as_ref().map(BlockedBy::name), Some(stop.0));
        let slots = actions[&1].1.as_ref().is_some_and(|blocked_by| blocked_by.name() == "slots");
        assert!(!slots, "{}: {actions:?}", stop.0);
        let begins = ["rack-held", "no-kubernetes"].contains(&stop.0);
        assert_eq!(due(&actions), if begins { vec![1] } else { vec![] }, "{}", stop.0);
    }
}

#[test]
fn blocked_repair_keeps_its_machine_and_its_api_server_slot() {
    for stop in &STOPS[..2] {
        let (store, context) =
            watched("a", &[queued(1, "a", "unreachable"), queued(2, "b", "unreachable")], stop);
        let actions = actions_with(&store, &context);
        let same = BlockedBy::SameMachine { index: 0 };
        let expected = if stop.0 == "rack-held" { BlockedBy::Held { rack: "3".to_owned() } } else { same };
        assert_eq!(actions[&1].1, Some(expected));
        assert_eq!(actions[&2].1, Some(BlockedBy::ApiServerRepaired { address: "a".to_owned() }));
        assert_eq!(due(&actions), [0_i64; 0], "{}", stop.0);
    }
}

#[test]
fn unblocked_repair_takes_the_next_slot_within_the_maximum() {
    let entries = [processing(1, "x", 0, Watching, 10), queued(2, "y", "unreachable")];
    let (store, context) = watched("w", &entries, &("", |_, _| {}));
    let actions = actions_with(&store, &context);
    assert_eq!(actions[&0], (Action::Drain { step: 1 }, Some(BlockedBy::Slots { maximum: 1 })));
    assert!(matches!(actions[&1].1, Some(BlockedBy::Watching { .. })));
    let (store, context) = watched("w", &entries[1..], &("", |_, _| {}));
    let actions = actions_with(&store, &context);
    assert_eq!(due(&actions), [0]);
    assert_eq!(actions[&2].1, Some(BlockedBy::Slots { maximum: 1 }));
}

#[test]
fn next_step_is_named_even_if_its_operation_was_removed() {
    let gone = |entry| RepairQueueEntry { operation: "gone".to_owned(), ..entry };
    for (entry, step) in [
        (processing(0, "w", 0, Watching, 1), 1),
        (processing(0, "w", 1, Waiting, 1), 1),
        (queued(0, "w", "plain"), 0),
    ] {
        let (action, blocked_by) = actions_of(&store(&[gone(entry)]))[&0].clone();
        assert_eq!(action, Action::Execute { step });
        assert!(matches!(blocked_by, Some(BlockedBy::Missing(_))), "{blocked_by:?}");
    }
}

#[test]
fn no_step_begins_before_the_registry_could_say_which_racks_failed() {
    let until = NOW + time::Duration::seconds(30);
    for entry in [
        queued(0, "w", "plain"),
        queued(0, "w", "empty"),
        processing(0, "w", 0, Waiting, 1),
        processing(0, "w", 0, Watching, 500),
        processing(0, "w", 1, Watching, 500),
        processing(0, "w", 0, Draining, 1),
        processing(0, "w", 9, Draining, 1),
        processing(0, "outside", 0, Draining, 1),
    ] {
        let store = store(std::slice::from_ref(&entry));
        let mut context = context(&store);
        context.live.drains.insert(0, Drain::Done);
        assert_eq!(actions_with(&store, &context)[&0].1, None, "{entry:?}");
        context.live.reports_awaited = Some(until);
        assert_eq!(
            actions_with(&store, &context)[&0].1,
            Some(BlockedBy::ReportsAwaited { until }),
            "{entry:?}"
        );
        context.live.health.insert(0, Health::Healthy);
        let (action, blocked_by) = actions_with(&store, &context)[&0].clone();
        assert!(matches!(action, Action::Succeed { .. }), "{entry:?}: {action}");
        assert_eq!(blocked_by, None, "{entry:?}");
    }
    // A drain under way proceeds, and times out as usual.
    for (ago, blocked_by) in [(1, Some("draining")), (61, None)] {
        let store = store(&[processing(0, "w", 0, Draining, ago)]);
        let mut context = context(&store);
        context.live.reports_awaited = Some(until);
        context.live.drains.insert(0, Drain::Runs { waits: None });
        let next = actions_with(&store, &context)[&0].clone();
        assert_eq!(next.1.as_ref().map(BlockedBy::name), blocked_by, "{next:?}");
    }
}

/// Steps without a command.
const WITHOUT_COMMAND: &str = r#"{"repair_procedures": [{"machine_types": ["t"], "repair_operations": [
    {"operation": "unreachable", "health_check_command": ["check"], "repair_steps": [
        {"watch_seconds": 100}, {"watch_seconds": 100}]}]}]}"#;

#[test]
fn step_without_a_command_fails_no_entry_in_a_held_rack_or_of_unknown_health() {
    let entries = [
        queued(0, "w", "unreachable"),
        processing(0, "w", 0, Waiting, 1),
        processing(0, "w", 0, Watching, 500),
        processing(0, "w", 1, Draining, 1),
    ];
    for entry in entries {
        let mut store = store(std::slice::from_ref(&entry));
        store.configure(&["a"], &["w"], WITHOUT_COMMAND);
        let mut context = context(&store);
        context.live.drains.insert(0, Drain::Done);
        let (action, blocked_by) = actions_with(&store, &context)[&0].clone();
        assert!(matches!(action, Action::Fail(Failure::NoCommand { .. })), "{entry:?}: {action}");
        assert_eq!(blocked_by, None, "{entry:?}");
        context.live.health.clear();
        assert_eq!(actions_with(&store, &context)[&0].1, Some(BlockedBy::HealthUnknown), "{entry:?}");
        context.held.racks.insert("w".to_owned(), "3".to_owned());
        let (action, blocked_by) = actions_with(&store, &context)[&0].clone();
        if entry.step_status == Draining {
            assert_eq!(action, Action::Abandon(Abandoned::Held { rack: "3".to_owned() }));
        } else {
            assert_eq!(blocked_by, Some(BlockedBy::Held { rack: "3".to_owned() }), "{entry:?}");
        }
    }
}

#[test]
fn steps_follow_each_other_when_their_watch_is_over() {
    let at = |step, ago| actions_of(&store(&[processing(0, "w", step, Watching, ago)]))[&0].clone();
    assert_eq!(
        at(0, 99),
        (Action::Execute { step: 1 }, Some(BlockedBy::Watching { until: NOW + time::Duration::SECOND }))
    );
    assert_eq!(at(0, 101), (Action::Execute { step: 1 }, None));
    assert_eq!(at(1, 0), (Action::Fail(Failure::NoStepLeft { step: 2 }), None));
    assert_eq!(at(7, 0), (Action::Fail(Failure::NoStepLeft { step: 8 }), None), "the steps shrank");
    assert_eq!(
        actions_of(&store(&[queued(0, "w", "empty")]))[&0],
        (Action::Fail(Failure::NoStepLeft { step: 0 }), None)
    );
}

#[test]
fn a_drain_ends_with_its_pods_with_its_time_or_with_the_node() {
    let draining = |ago, drain: Option<Drain>, address: &str| {
        let store = store(&[processing(0, address, 0, Draining, ago)]);
        let mut context = context(&store);
        context.live.drains.extend(drain.map(|drain| (0, drain)));
        actions_with(&store, &context)[&0].clone()
    };
    let waits = Some("the pod a/p has not ended".to_owned());
    let runs = Drain::Runs { waits: waits.clone() };
    let until = NOW + time::Duration::seconds(10);
    assert_eq!(
        draining(50, Some(runs.clone()), "w"),
        (Action::Execute { step: 0 }, Some(BlockedBy::Draining { until, waits: waits.clone() }))
    );
    assert_eq!(draining(61, Some(runs), "w"), (Action::Abandon(Abandoned::Timeout { waits }), None));
    assert_eq!(draining(61, Some(Drain::Done), "w"), (Action::Execute { step: 0 }, None));
    let why = "refused".to_owned();
    assert_eq!(
        draining(1, Some(Drain::Failed { why: why.clone() }), "w"),
        (Action::Abandon(Abandoned::Impossible { why }), None)
    );
    assert_eq!(draining(1, None, "outside"), (Action::Execute { step: 0 }, None), "it left the cluster");
    // A drain of an earlier leader may have ended before its time-out: it is checked first, for a bounded time.
    let unseen = |seconds| Some(Drain::Unseen { until: NOW + time::Duration::seconds(seconds) });
    let waits = BlockedBy::Draining { until, waits: None };
    assert_eq!(draining(61, unseen(10), "w"), (Action::Execute { step: 0 }, Some(waits.clone())));
    assert_eq!(draining(50, unseen(-10), "w"), (Action::Execute { step: 0 }, Some(waits)));
    assert_eq!(draining(61, unseen(-1), "w").0, Action::Abandon(Abandoned::Timeout { waits: None }));
    // Pods that appear on a drained node have their own time limit.
    let undone = |seconds| {
        let until = NOW + time::Duration::seconds(seconds);
        Some(Drain::Undone { until, waits: "a pod".to_owned() })
    };
    let waits = Some("a pod".to_owned());
    let left = BlockedBy::Draining { until, waits: waits.clone() };
    assert_eq!(draining(500, undone(10), "w"), (Action::Execute { step: 0 }, Some(left)));
    assert_eq!(draining(500, undone(-1), "w").0, Action::Abandon(Abandoned::Timeout { waits }));
}

#[test]
fn a_drained_node_waits_for_the_quorum_of_etcd_until_the_time_of_the_drain_is_over() {
    let violation = "one of three members is in sync".to_owned();
    let drained = |address: &str, ago| {
        let store = store(&[processing(0, address, 0, Draining, ago)]);
        let mut context = context(&store);
        context.live.drains.insert(0, Drain::Done);
        context.live.quorum.insert("a".to_owned(), violation.clone());
        actions_with(&store, &context)[&0].clone()
    };
    let held = Some(BlockedBy::Quorum { violation: violation.clone() });
    assert_eq!(drained("a", 50), (Action::Execute { step: 0 }, held));
    let waits = Some(violation.clone());
    assert_eq!(drained("a", 61), (Action::Abandon(Abandoned::Timeout { waits }), None));
    assert_eq!(drained("b", 61), (Action::Execute { step: 0 }, None), "its member is out of sync");
}

#[test]
fn times_written_by_a_clock_ahead_count_from_their_observation() {
    let hour = -3_600;
    let back_off = Some(NOW + time::Duration::seconds(3_600 + 200));
    let entries = [
        processing(0, "w", 0, Watching, hour),
        processing(1, "x", 0, Draining, hour),
        RepairQueueEntry { drain_backoff_expire: back_off, ..processing(2, "y", 0, Waiting, hour) },
    ];
    let store = store(&entries);
    let mut context = context(&store);
    context.live.counted.follow(&store.state().repair, NOW, Duration::ZERO);
    let actions = actions_with(&store, &context);
    let until = |index: i64| actions[&index].1.as_ref().and_then(BlockedBy::until).map(|until| until - NOW);
    let seconds = |seconds| Some(time::Duration::seconds(seconds));
    // The configured watch and time-out, and the rest of the pause.
    assert_eq!([until(0), until(1), until(2)], [seconds(100), seconds(60), seconds(200)], "{actions:?}");
}

#[test]
fn without_kubernetes_only_entries_of_nodes_wait() {
    let entries = [queued(0, "w", "unreachable"), queued(1, "x", "unreachable"), queued(2, "y", "plain")];
    let store = store(&entries);
    let mut context = context(&store);
    context.live.kubernetes = false;
    let actions = actions_with(&store, &context);
    assert_eq!(actions[&0].1, Some(BlockedBy::NoKubernetes));
    assert_eq!(due(&actions), [2]);
    context.live.host = false;
    assert_eq!(due(&actions_with(&store, &context)), [0_i64; 0]);
}

#[test]
fn unreadable_configuration_is_reported_and_abandons_drains() {
    let mut store = store(&[queued(0, "w", "plain"), processing(1, "x", 0, Draining, 1)]);
    store.configure(&[], &["w", "x"], "[]");
    let actions = actions_of(&store);
    assert!(matches!(actions[&0].1, Some(BlockedBy::Unusable { .. })));
    assert!(matches!(actions[&1], (Action::Abandon(Abandoned::Unusable { .. }), None)));
}

#[test]
fn every_obstacle_has_a_name_of_its_own() {
    let names: BTreeSet<&str> = BlockedBy::NAMES.iter().copied().collect();
    assert_eq!(names.len(), BlockedBy::NAMES.len());
}

/// The running command of a step of entry 0, with record 4, whatever the entry says.
fn with_a_command(store: &mut Store) {
    let started = serde_json::json!({"step": 0, "at": "2026-01-02T03:04:05Z", "record": 4});
    with_record(store, &serde_json::json!({"started": started}));
}

/// The same for its success command; the command of its step has ended.
fn with_a_success_command(store: &mut Store) {
    let started = serde_json::json!({"step": 0, "at": "2026-01-02T03:04:05Z", "record": 3});
    with_record(store, &serde_json::json!({"started": started, "finishing": 4}));
}

fn with_record(store: &mut Store, kept: &serde_json::Value) {
    let record = serde_json::json!({"id": "4", "status": "running", "operation": "repair-execute"});
    store.put(&keys::record(4), &record);
    store.text(keys::RECORD_ID, "5");
    let mut kept = kept.clone();
    kept["entry"] = store.entries[&keys::repair(0)].create_revision.into();
    store.put(&keys::repair_state_key(0), &kept);
}

#[test]
fn no_repair_begins_beside_a_command_whose_entry_was_overwritten() {
    let deleted = RepairQueueEntry { deleted: true, ..processing(0, "a", 0, Watching, 5) };
    for (case, entry) in [
        ("an older state", Some(queued(0, "a", "unreachable"))),
        ("its deletion", Some(deleted)),
        ("an unreadable entry", None),
    ] {
        for command in [with_a_command, with_a_success_command] {
            let mut store = store(&[processing(0, "a", 0, Watching, 5), queued(1, "b", "unreachable")]);
            store.entry(&queued(2, "w", "plain"));
            command(&mut store);
            match &entry {
                Some(entry) => store.entry(entry),
                None => store.text(&keys::repair(0), "garbage"),
            }
            let actions = actions_of(&store);
            assert_eq!(due(&actions), [0; 0], "{case}: {actions:?}");
            for index in [1, 2] {
                assert_eq!(actions[&index].1, Some(BlockedBy::CommandRuns { record: 4 }), "{case}");
            }
        }
    }
}

#[test]
fn record_of_a_running_command_survives_the_deletion_of_its_entry() {
    for command in [with_a_command, with_a_success_command] {
        let mut store = store(&[processing(0, "a", 0, Watching, 5), queued(1, "b", "unreachable")]);
        command(&mut store);
        store.write(&[Write::Delete { key: keys::repair(0) }]);
        assert_eq!(crate::transition::forget_kept_state(&store.state().repair), None);
        assert_eq!(actions_of(&store)[&1].1, Some(BlockedBy::CommandRuns { record: 4 }));
        // The command has ended.
        store.put(
            &keys::record(4),
            &serde_json::json!({"id": "4", "status": "completed", "operation": "repair-execute"}),
        );
        let forgets = crate::transition::forget_kept_state(&store.state().repair).unwrap();
        assert!(store.commit(&forgets));
        assert_eq!(due(&actions_of(&store)), [1]);
    }
}

#[test]
fn unreadable_kept_data_blocks_only_its_entry_which_may_be_deleted() {
    let mut store = store(&[queued(0, "w", "plain"), queued(1, "x", "plain")]);
    store.text(&keys::repair_state_key(0), "garbage");
    let actions = actions_of(&store);
    assert_eq!(due(&actions), [1]);
    assert_eq!(actions[&0].1, Some(BlockedBy::KeptUnreadable { key: keys::repair_state_key(0) }));
    store.entry(&RepairQueueEntry { deleted: true, ..queued(0, "w", "plain") });
    assert_eq!(actions_of(&store)[&0], (Action::Remove, None));
    let state = store.state();
    let removal = crate::transition::Transition::new(&state, 0, "", NOW).unwrap().remove();
    assert!(store.commit(&removal), "its conditions hold");
    assert_eq!(actions_of(&store).keys().copied().collect::<Vec<_>>(), [1]);
    // Data kept for an entry that exists but cannot be read stays as well.
    let mut store = self::store(&[processing(0, "w", 0, Watching, 5)]);
    with_a_command(&mut store);
    store.text(&keys::repair(0), "garbage");
    assert_eq!(crate::transition::forget_kept_state(&store.state().repair), None);
}
