//! What the registry's reports lead to.

use std::sync::Arc;
use std::time::Duration;

use madako_messages::keys;
use madako_messages::machine::Machine;
use madako_messages::repair::RepairStatus;
use madako_messages::repair::report::Reports;
use tokio::time::Instant;

use super::world::World;
use crate::machines::{machine, now};
use crate::outlook::Obstacle;
use crate::testing::Store;

async fn world(maximum: i64) -> World {
    let mut store = Store::new(&["10.0.0.250"], &["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"]);
    store.text(keys::SABAKAN_URL, "http://registry");
    store.put(
        keys::CONSTRAINTS,
        &madako_messages::constraints::Constraints {
            maximum_repair_queue_entries: maximum,
            ..Default::default()
        },
    );
    World::new(store).await
}

fn report(world: &World, machines: &[Machine]) {
    let state = world.gate.lock().unwrap().store.state();
    world.reported.publish(Arc::new(Reports {
        machines: Arc::new(machines.to_vec()),
        at: now(),
        seen: Instant::now(),
        query: state.reports_query().unwrap(),
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
async fn a_rack_that_fails_is_held_and_repairs_nobody() {
    let mut world = world(10).await;
    world.begin().await;
    report(&world, &[machine(1, 3, 50.0), machine(2, 3, 51.0), machine(3, 3, 52.0), machine(4, 4, 50.0)]);
    world.until("the one entry of another rack", |state| state.repair.entries.len() == 1).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let state = world.gate.lock().unwrap().store.state();
    assert!(state.holds["3"].value.is_held());
    assert_eq!(state.repair.entries[&0].value.address, "10.0.0.4");
    // Somebody adds one by hand: it does not start either.
    world.change(|store| {
        store.entry(&crate::testing::queued(7, "10.0.0.1", "plain"));
    });
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert_eq!(world.entry(7).unwrap().status, RepairStatus::Queued);
    let held = Obstacle::Held { rack: "3".to_owned() }.name();
    let events = world.events.0.lock().unwrap();
    let told = |event: &madako_messages::event::Event| matches!(event, madako_messages::event::Event::RepairWaits { index: 7, reason, .. } if *reason == held);
    assert_eq!(events.iter().filter(|event| told(event)).count(), 1, "{events:?}");
}

#[tokio::test(start_paused = true)]
async fn false_reports_for_many_machines_add_nothing() {
    let mut world = world(3).await;
    world.begin().await;
    let reports: Vec<Machine> = (1..=40).map(|id| machine(id, i64::from(id), 50.0)).collect();
    report(&world, &reports);
    tokio::time::sleep(Duration::from_secs(100)).await;
    let state = world.gate.lock().unwrap().store.state();
    assert!(state.repair.entries.is_empty());
    assert_eq!(world.gate.lock().unwrap().committed, []);
}
