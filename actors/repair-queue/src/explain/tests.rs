use madako_domain::keys;
use madako_domain::repair::change::RepairChange;
use madako_domain::repair::{RepairQueueEntry, RepairStatus, RepairStepStatus};

use super::*;
use crate::racks::HeldBack;
use crate::testing::{NOW, Store, processing, queued};
use crate::transition::Transition;

fn explained(
    entries: &[RepairQueueEntry],
    change: impl FnOnce(&mut Store),
    beside: &ExplainContext,
) -> Vec<Explained> {
    let mut store = Store::new(&["c"], &["w", "x"]);
    for entry in entries {
        store.entry(entry);
    }
    change(&mut store);
    explain(&store.state(), beside, None, NOW)
}

/// Entry, health, next action, obstacle.
type Line<'a> = (i64, Option<&'a str>, &'a str, Option<&'a str>);

fn lines(explained: &[Explained]) -> Vec<Line<'_>> {
    explained.iter().map(|entry| (entry.index, entry.health, entry.next, entry.obstacle)).collect()
}

#[test]
fn next_drain_waits_for_health_or_for_a_configured_kubernetes() {
    let entries = [queued(0, "w", "unreachable"), queued(1, "outside", "unreachable")];
    for (kubernetes, obstacle) in [(true, "health-unknown"), (false, "no-kubernetes")] {
        let beside = ExplainContext { kubernetes, ..ExplainContext::default() };
        let expected = [
            (0, Some("unknown"), "drain", Some(obstacle)),
            (1, Some("unknown"), "execute", Some("health-unknown")),
        ];
        assert_eq!(lines(&explained(&entries, |_| {}, &beside)), expected, "kubernetes: {kubernetes}");
    }
}

#[test]
fn a_drain_under_way_is_explained_by_its_deadline_and_without_kubernetes_given_up() {
    let entries = [processing(0, "w", 0, RepairStepStatus::Draining, 10)];
    let beside = ExplainContext { kubernetes: true, ..ExplainContext::default() };
    let drains = explained(&entries, |_| {}, &beside);
    assert_eq!(lines(&drains), [(0, Some("unknown"), "execute", Some("draining"))]);
    assert_eq!(drains[0].at.as_deref(), Some("2026-01-02T03:04:55Z"));
    let gives_up = explained(&entries, |_| {}, &ExplainContext::default());
    assert_eq!(lines(&gives_up), [(0, Some("unknown"), "abandon-drain", None)]);
}

#[test]
fn explanation_mentions_unknown_health_only_where_it_decides() {
    let entries = [
        RepairQueueEntry { status: RepairStatus::Failed, ..queued(0, "w", "plain") },
        RepairQueueEntry { deleted: true, ..queued(1, "x", "plain") },
        queued(2, "y", "nowhere"),
        processing(3, "z", 0, RepairStepStatus::Watching, 10),
    ];
    let held = HeldBack { racks: [("z".to_owned(), "3".to_owned())].into(), ..HeldBack::default() };
    let beside = ExplainContext { held, kubernetes: true };
    let expected = [
        (0, None, "nothing", None),
        (1, None, "remove", None),
        (2, None, "execute", Some("missing")),
        (3, Some("unknown"), "execute", Some("watching")),
    ];
    assert_eq!(lines(&explained(&entries, |_| {}, &beside)), expected);
    let disabled =
        explained(&[queued(0, "w", "plain")], |store| store.text(keys::REPAIRS_DISABLED, "true"), &beside);
    assert_eq!(lines(&disabled), [(0, Some("unknown"), "execute", Some("disabled"))]);
}

#[test]
fn explanation_distinguishes_success_commands_and_step_commands() {
    let commanded = |begun: fn(Transition<'_>) -> (RepairChange, i64)| {
        let mut store = Store::new(&["c"], &["w"]);
        store.entry(&processing(0, "w", 0, RepairStepStatus::Watching, 10));
        let state = store.state();
        let (change, record) = begun(Transition::new(&state, 0, "w", NOW).unwrap());
        assert!(store.commit(&change));
        let [explained] = &explain(&store.state(), &ExplainContext::default(), None, NOW)[..] else {
            panic!()
        };
        assert!(explained.why.as_ref().unwrap().contains(&format!("operation {record}")), "{explained:?}");
        (explained.next, explained.obstacle.unwrap())
    };
    assert_eq!(commanded(|transition| transition.finish_with_command()), ("succeed", "success-command-runs"));
    assert_eq!(commanded(|transition| transition.execute(1)), ("execute", "command-runs"));
}

#[test]
fn machine_of_unknown_rack_waits_and_an_unreadable_hold_is_named() {
    let held = HeldBack {
        racks: [("w".to_owned(), "3".to_owned())].into(),
        unreadable: ["3".to_owned()].into(),
        unplaced: ["x".to_owned()].into(),
    };
    let beside = ExplainContext { held, kubernetes: true };
    let explained = explained(&[queued(0, "w", "plain"), queued(1, "x", "plain")], |_| {}, &beside);
    let obstacles: Vec<_> = explained.iter().map(|entry| entry.obstacle.unwrap()).collect();
    assert_eq!(obstacles, ["hold-unreadable", "rack-unknown"]);
    assert!(explained[0].why.as_ref().unwrap().contains("madako repair-queue release 3"));
}

#[test]
fn the_entries_of_one_machine_are_explained_alone() {
    let mut store = Store::new(&["c"], &["w", "x"]);
    for (index, address) in [(0, "w"), (1, "x"), (2, "w")] {
        store.entry(&queued(index, address, "plain"));
    }
    let of = |address| {
        let explained = explain(&store.state(), &ExplainContext::default(), address, NOW);
        explained.iter().map(|entry| entry.index).collect::<Vec<_>>()
    };
    assert_eq!(of(Some("w")), [0, 2]);
    assert_eq!(of(Some("z")), [0; 0]);
    assert_eq!(of(None), [0, 1, 2]);
}
