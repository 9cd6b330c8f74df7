//! Tests of the entries and held racks that follow from the registry's reports.

use std::sync::Arc;
use std::time::Duration;

use madako_domain::keys;
use madako_domain::machine::Machine;
use madako_domain::observation::{Observation, Query};
use madako_domain::repair::RepairStatus;
use madako_domain::repair::refusal::Reason;
use madako_domain::repair::report::Reports;
use madako_domain::state::ClusterState;
use madako_domain::store::Write;
use madako_protocol::event::Event;
use tokio::time::Instant;

use super::gauges::Gauges;
use super::world::World;
use crate::machines::{machine, now};
use crate::next_action::BlockedBy;
use crate::testing::Store;

async fn world(maximum: i64) -> World {
    let mut store = Store::new(&["10.0.0.250"], &["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"]);
    store.text(keys::SABAKAN_URL, "http://registry");
    store.put(
        keys::CONSTRAINTS,
        &madako_domain::constraints::Constraints {
            maximum_repair_queue_entries: maximum,
            ..Default::default()
        },
    );
    World::new(store).await
}

fn report(world: &World, machines: &[Machine]) {
    let revision = world.leader_state.lock().unwrap().store.revision;
    report_asked_at(world, machines, revision);
}

/// An answer to a question at a revision of the store.
fn report_asked_at(world: &World, machines: &[Machine], revision: i64) {
    let state = world.leader_state.lock().unwrap().store.state();
    world.reported.publish(Arc::new(Reports {
        machines: Arc::new(machines.to_vec()),
        at: now(),
        received: Instant::now(),
        query: state.reports_query().unwrap(),
        revision,
    }));
}

#[tokio::test(start_paused = true)]
async fn a_report_becomes_an_entry_once() {
    let mut world = world(3).await;
    world.begin().await;
    let reports = [machine(1, 1, 50.0), machine(2, 2, 50.0)];
    report(&world, &reports);
    world.until("two entries", |state| state.repair.entries.len() == 2).await;
    report(&world, &reports);
    tokio::time::sleep(Duration::from_secs(100)).await;
    let entry = world.entry(0).unwrap();
    assert_eq!((entry.address.as_str(), entry.operation.as_str()), ("10.0.0.1", "unreachable"));
    assert_eq!((entry.machine_type.as_str(), entry.status), ("iDRAC", RepairStatus::Queued));
    assert!(world.entry(2).is_none());
}

#[tokio::test(start_paused = true)]
async fn failing_rack_is_held_without_repairs() {
    let mut world = world(10).await;
    world.begin().await;
    report(&world, &[machine(1, 3, 50.0), machine(2, 3, 51.0), machine(3, 3, 52.0), machine(4, 4, 50.0)]);
    world.until("the one entry of another rack", |state| state.repair.entries.len() == 1).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let state = world.leader_state.lock().unwrap().store.state();
    assert!(state.holds["3"].value.is_held());
    assert_eq!(state.repair.entries[&0].value.address, "10.0.0.4");
    // An operator adds an entry: it does not start either.
    world.change(|store| {
        store.entry(&crate::testing::queued(7, "10.0.0.1", "plain"));
    });
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert_eq!(world.entry(7).unwrap().status, RepairStatus::Queued);
    let held = BlockedBy::Held { rack: "3".to_owned() }.name();
    let events = world.events.0.lock().unwrap();
    let is_reported = |event: &madako_protocol::event::Event| matches!(event, madako_protocol::event::Event::RepairWaits { index: 7, reason, .. } if *reason == held);
    assert_eq!(events.iter().filter(|event| is_reported(event)).count(), 1, "{events:?}");
}

#[tokio::test(start_paused = true)]
async fn a_registry_that_forgets_how_long_machines_have_failed_holds_no_rack() {
    let mut world = world(10).await;
    world.begin().await;
    // They failed hours apart, so their rack is not held.
    report(&world, &[machine(1, 3, 50_000.0), machine(2, 3, 25_000.0), machine(3, 3, 50.0)]);
    world.until("an entry of each machine", |state| state.repair.entries.len() == 3).await;
    tokio::time::sleep(Duration::from_secs(100)).await;
    report(&world, &[machine(1, 3, 200.0), machine(2, 3, 200.0), machine(3, 3, 200.0)]);
    tokio::time::sleep(Duration::from_secs(25)).await;
    let state = world.leader_state.lock().unwrap().store.state();
    assert!(state.holds.get("3").is_none_or(|hold| !hold.value.is_held()), "{:?}", state.holds);
}

#[tokio::test(start_paused = true)]
async fn false_reports_for_many_machines_add_nothing() {
    let mut world = world(3).await;
    world.begin().await;
    let reports: Vec<Machine> = (1..=40).map(|id| machine(id, i64::from(id), 50.0)).collect();
    report(&world, &reports);
    tokio::time::sleep(Duration::from_secs(100)).await;
    let state = world.leader_state.lock().unwrap().store.state();
    assert!(state.repair.entries.is_empty());
    assert_eq!(world.leader_state.lock().unwrap().committed, []);
}

#[tokio::test(start_paused = true)]
async fn each_refusal_is_reported_once_and_not_per_poll() {
    let mut world = world(0).await;
    world.begin().await;
    let news = |world: &World| {
        let events = world.events.0.lock().unwrap();
        let news = events.iter().filter_map(|event| match event {
            madako_protocol::event::Event::Reports(news) => Some(news.clone()),
            _ => None,
        });
        news.collect::<Vec<_>>()
    };
    for _ in 0..20 {
        report(&world, &[machine(1, 1, 50.0), machine(2, 2, 50.0)]);
        tokio::time::sleep(Duration::from_secs(10)).await;
    }
    let shown = news(&world);
    assert_eq!(shown.len(), 1, "{shown:?}");
    let names: Vec<_> = shown[0].refused.iter().map(|refusal| refusal.reason.name()).collect();
    assert_eq!(names, ["too-many", "too-many"]);
    // One recovers: one change and one event.
    for _ in 0..20 {
        report(&world, &[machine(1, 1, 50.0)]);
        tokio::time::sleep(Duration::from_secs(10)).await;
    }
    let shown = news(&world);
    assert_eq!((shown.len(), &shown[1].cleared[..]), (2, &["s2".to_owned()][..]));
    assert_eq!(shown[1].refused, []);
}

#[tokio::test(start_paused = true)]
async fn a_rack_that_recovers_while_auto_repair_is_off_is_released_and_its_entries_start() {
    let mut world = world(10).await;
    world.begin().await;
    let rack = [machine(1, 3, 50.0), machine(2, 3, 51.0), machine(3, 3, 52.0)];
    report(&world, &rack);
    world.until("the rack is held", |state| state.holds.contains_key("3")).await;
    world.change(|store| {
        store.text(keys::AUTO_REPAIR_DISABLED, "true");
        store.entry(&crate::testing::queued(7, "10.0.0.1", "plain"));
    });
    // Failed polls change nothing: the hold stays.
    tokio::time::sleep(Duration::from_secs(1_000)).await;
    assert_eq!(world.entry(7).unwrap().status, RepairStatus::Queued);
    report(&world, &rack);
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert_eq!(world.entry(7).unwrap().status, RepairStatus::Queued);

    report(&world, &[rack[0].clone(), rack[1].clone(), machine(4, 4, 50.0)]);
    world.until("the rack is released", |state| state.holds.is_empty()).await;
    world
        .until("its command to end", |state| {
            !state.repair.records.known.is_empty() && state.repair.records.unfinished.is_empty()
        })
        .await;
    assert_eq!(world.ran(), ["reset 10.0.0.1"]);
    assert!(world.entry(0).is_none(), "nothing is added");
}

#[tokio::test(start_paused = true)]
async fn a_new_leader_waits_for_reports_and_begins_nothing_in_failed_racks() {
    let mut world = world(10).await;
    for (index, address) in [(7, "10.0.0.1"), (8, "10.0.0.4")] {
        world.change(|store| store.entry(&crate::testing::queued(index, address, "plain")));
    }
    world.change(|store| store.rack("10.0.0.4", "4"));
    world.begin().await;
    // The registry is slow.
    tokio::time::sleep(Duration::from_secs(25)).await;
    assert_eq!(world.ran(), [""; 0]);
    report(&world, &[machine(1, 3, 50.0), machine(2, 3, 51.0), machine(3, 3, 52.0)]);
    world.until_status(8, RepairStatus::Processing).await;
    tokio::time::sleep(Duration::from_secs(1_000)).await;
    assert_eq!(world.ran(), ["reset 10.0.0.4"]);
    assert_eq!(world.entry(7).unwrap().status, RepairStatus::Queued);
}

#[tokio::test(start_paused = true)]
async fn a_registry_that_stays_away_or_is_not_asked_blocks_no_repair() {
    type Setting = fn(&mut World);
    let settings: [(&str, Setting, u64); 5] = [
        ("it stays away", |_| {}, 30),
        ("it answers another question", |world| report(world, &[]), 30),
        ("racks are not held", |world| world.arguments.hold = None, 0),
        (
            "auto-repair is off",
            |world| world.change(|store| store.text(keys::AUTO_REPAIR_DISABLED, "true")),
            0,
        ),
        (
            "there is none",
            |world| {
                let key = keys::SABAKAN_URL.to_owned();
                world.change(|store| store.write(&[madako_domain::store::Write::Delete { key }]));
            },
            0,
        ),
    ];
    for (case, setting, least) in settings {
        let mut world = world(10).await;
        setting(&mut world);
        world.change(|store| {
            if case == "it answers another question" {
                store.text(keys::SABAKAN_URL, "http://another");
            }
            store.entry(&crate::testing::queued(7, "10.0.0.1", "plain"));
        });
        let begun = Instant::now();
        world.begin().await;
        world.until_status(7, RepairStatus::Processing).await;
        let took = begun.elapsed().as_secs();
        assert!((least..least + 5).contains(&took), "{case}: it began after {took} s");
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_older_than_the_removal_of_an_entry_does_not_bring_it_back() {
    let mut world = world(10).await;
    world.change(|store| {
        store.entry(&crate::testing::queued(0, "10.0.0.1", "plain"));
        store.text(keys::REPAIRS_WRITE_INDEX, "1");
        store.text(keys::REPAIRS_DISABLED, "true");
    });
    world.begin().await;
    let reports = [machine(1, 1, 50.0), machine(2, 2, 50.0)];
    report(&world, &reports);
    world.until("an entry of the other machine", |state| state.repair.entries.len() == 2).await;
    let requested = world.leader_state.lock().unwrap().store.revision;
    // The entry is removed, and no new answer arrives, or an answer to an earlier question.
    world.change(|store| store.write(&[Write::Delete { key: keys::repair(0) }]));
    tokio::time::sleep(Duration::from_secs(15)).await;
    report_asked_at(&world, &reports, requested);
    tokio::time::sleep(Duration::from_secs(15)).await;
    let entries = |world: &World| world.leader_state.lock().unwrap().store.state().repair.entries.len();
    assert_eq!(entries(&world), 1);
    let is_reported = |event: &Event| matches!(event, Event::Reports(news) if news.refused.iter().any(|refusal| refusal.reason == Reason::JustRemoved));
    assert!(world.events.0.lock().unwrap().iter().any(is_reported));
    // The next answer still reports it.
    report(&world, &reports);
    world.until("its entry again", |state| state.repair.entries.len() == 2).await;
    assert_eq!(world.entry(2).unwrap().address, "10.0.0.1");
}

#[tokio::test(start_paused = true)]
async fn after_a_restart_an_answer_that_is_older_than_the_first_look_adds_nothing() {
    let mut world = world(10).await;
    let requested = world.leader_state.lock().unwrap().store.revision;
    // Removals in this revision were not observed.
    world.change(|store| store.text("anything", ""));
    report_asked_at(&world, &[machine(1, 1, 50.0)], requested);
    world.begin().await;
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert!(world.leader_state.lock().unwrap().store.state().repair.entries.is_empty());
    report(&world, &[machine(1, 1, 50.0)]);
    world.until("its entry", |state| state.repair.entries.len() == 1).await;
}

#[tokio::test(start_paused = true)]
async fn entry_waits_when_only_the_observation_shows_its_held_rack() {
    let mut world = world(10).await;
    world.begin().await;
    // Healthy by the registry, and no node of the cluster.
    observe(&world, vec![machine(20, 3, 1e6), machine(21, 4, 1e6)]);
    report(&world, &[machine(1, 3, 50.0), machine(2, 3, 51.0), machine(3, 3, 52.0)]);
    world.until("the rack is held", |state| state.holds.contains_key("3")).await;
    world.change(|store| {
        store.entry(&crate::testing::queued(7, "10.0.0.20", "plain"));
        store.entry(&crate::testing::queued(8, "10.0.0.21", "plain"));
    });
    world
        .until("the other to begin", |state| {
            state.repair.entries.get(&8).is_some_and(|item| item.value.status != RepairStatus::Queued)
        })
        .await;
    tokio::time::sleep(Duration::from_secs(25)).await;
    assert_eq!(world.entry(7).unwrap().status, RepairStatus::Queued);
    // The machine moves to another rack.
    observe(&world, vec![machine(20, 5, 1e6)]);
    world
        .until("it to begin", |state| {
            state.repair.entries.get(&7).is_some_and(|item| item.value.status != RepairStatus::Queued)
        })
        .await;
}

fn observe(world: &World, machines: Vec<Machine>) {
    let observation = Observation {
        machines: Arc::new(machines),
        addresses: Arc::default(),
        left_out: vec![],
        at: now(),
        received: Instant::now(),
        query: Query { url: 1, variables: 0 },
        held: None,
    };
    world.observed.publish(Arc::new(observation));
}

fn has_begun(index: i64) -> impl Fn(&ClusterState) -> bool {
    move |state| {
        state.repair.entries.get(&index).is_some_and(|item| item.value.status != RepairStatus::Queued)
    }
}

/// True if an event reported that an entry waits for a reason.
fn is_reported_waiting(world: &World, entry: i64, why: &str) -> bool {
    let events = world.events.0.lock().unwrap();
    let is_reported = |event: &Event| matches!(event, Event::RepairWaits { index, reason, .. } if *index == entry && *reason == why);
    events.iter().any(is_reported)
}

#[tokio::test(start_paused = true)]
async fn unreadable_hold_keeps_its_rack_held_until_it_is_corrected_or_removed() {
    const RELEASED: &str = r#"{"label":"rack","events":[],"released":[]}"#;
    for kept in ["", "garbage", r#"{"label":"rack","events":[{"since":"2026-01-0"#] {
        for mended in [Some(RELEASED), None] {
            let mut world = world(10).await;
            observe(&world, vec![machine(20, 3, 1e6), machine(21, 4, 1e6)]);
            world.change(|store| {
                store.text(&keys::repair_hold_key("3"), kept);
                store.entry(&crate::testing::queued(7, "10.0.0.20", "plain"));
                store.entry(&crate::testing::queued(8, "10.0.0.21", "plain"));
            });
            world.begin().await;
            world.until("the other to begin", has_begun(8)).await;
            tokio::time::sleep(Duration::from_secs(1_000)).await;
            assert_eq!(world.entry(7).unwrap().status, RepairStatus::Queued, "{kept:?}");
            assert!(is_reported_waiting(&world, 7, "hold-unreadable"));
            world.change(|store| match mended {
                Some(text) => store.text(&keys::repair_hold_key("3"), text),
                None => store.write(&[Write::Delete { key: keys::repair_hold_key("3") }]),
            });
            world.until("it to begin", has_begun(7)).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn while_a_rack_is_held_a_machine_of_unknown_rack_waits_for_an_observation() {
    const HELD: &str = r#"{"label":"rack","events":[{"since":"2026-01-02T03:00:00Z","machines":[
        {"changed":"2026-01-02T02:58:00Z","serial":"s1","address":"10.0.0.1"}]}]}"#;
    const RELEASED: &str = r#"{"label":"rack","released":[
        {"changed":"2026-01-02T02:58:00Z","serial":"s22","address":"10.0.0.22"}]}"#;
    let mut world = world(10).await;
    world.change(|store| {
        store.text(&keys::repair_hold_key("3"), HELD);
        store.text(&keys::repair_hold_key("9"), RELEASED);
        store.configure(&["c"], &["10.0.0.21"], crate::testing::REPAIR);
        store.rack("10.0.0.21", "4");
        for (index, machine) in [(6, 22), (7, 20), (8, 21)] {
            store.entry(&crate::testing::queued(index, &format!("10.0.0.{machine}"), "plain"));
        }
    });
    world.begin().await;
    // The registry does not answer.
    world.until("the node of another rack to begin", has_begun(8)).await;
    world.until("the machine that was reported in a rack that is not held", has_begun(6)).await;
    tokio::time::sleep(Duration::from_secs(50_000)).await;
    assert_eq!(world.entry(7).unwrap().status, RepairStatus::Queued);
    assert!(is_reported_waiting(&world, 7, "rack-unknown"));
    observe(&world, vec![machine(20, 5, 1e6)]);
    world.until("it to begin", has_begun(7)).await;
}

#[tokio::test(start_paused = true)]
async fn the_metric_of_refused_reports_is_right_and_0_while_nothing_is_asked_for_or_known() {
    const NAME: &str = "madako_reports_refused";
    let gauges = Gauges::default();
    // All tasks of this test run on this thread.
    let _guard = metrics::set_default_local_recorder(&gauges);
    let mut world = world(0).await;
    world.begin().await;
    let mut none = machine(9, 9, 50.0);
    none.spec.ipv4.clear();
    let reports = [machine(1, 1, 50.0), machine(2, 2, 50.0), none];
    let refused = [(format!("{NAME}{{no-address}}"), 1.0), (format!("{NAME}{{too-many}}"), 2.0)];
    let turned = |off: bool| {
        move |store: &mut Store| {
            if off {
                store.text(keys::AUTO_REPAIR_DISABLED, "true");
            } else {
                store.write(&[Write::Delete { key: keys::AUTO_REPAIR_DISABLED.to_owned() }]);
            }
        }
    };
    for round in 0..2 {
        report(&world, &reports);
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(gauges.shown(NAME), refused, "{round}");
        world.change(turned(true));
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(gauges.shown(NAME), [], "{round}");
        world.change(turned(false));
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(gauges.shown(NAME), refused, "{round}: the answer is good still");
        // The registry does not answer: after three polls the reports are too old.
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(gauges.shown(NAME), [], "{round}");
    }
}
