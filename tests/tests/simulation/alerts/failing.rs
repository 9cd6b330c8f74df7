//! Faults for scripted alert scenarios: actors that are killed again and again, and faults of simulated systems.

use std::time::Duration;

use madako_datacenter_sim::{Fault, FaultSwitch};
use madako_supervisor::instance::{LEADER, REIGN};
use madako_supervisor::nodes::NODES;
use madako_supervisor::tree::SupervisorRef;
use tokio::time::{Instant, sleep};

/// Kills an actor whenever it runs, at most once per `pause`.
pub async fn fail(root: &SupervisorRef, name: &str, pause: Duration, until: Instant) {
    let mut last = Instant::now() - pause;
    while Instant::now() < until {
        let parent = match name {
            LEADER | "http" | "placement-api" | REIGN => Some(root.clone()),
            _ => supervisor(root, REIGN).await,
        };
        let parent = match parent {
            Some(reign) if name.starts_with("node/") => supervisor(&reign, NODES).await,
            parent => parent,
        };
        let cell = match parent {
            Some(parent) => parent.find_child(name).await.ok().flatten(),
            None => None,
        };
        if let Some(cell) = cell.filter(|_| last.elapsed() >= pause) {
            cell.kill();
            last = Instant::now();
        }
        sleep(Duration::from_millis(20)).await;
    }
}

async fn supervisor(parent: &SupervisorRef, name: &str) -> Option<SupervisorRef> {
    parent.find_child(name).await.ok().flatten().and_then(SupervisorRef::from_cell)
}

/// Sets the named fault; `well` clears all faults.
pub fn set_fault(switch: &FaultSwitch, how: &[&str]) {
    let fault = match how {
        ["well"] => return switch.clear_all(),
        ["refuses"] => Fault::RefuseConnections,
        ["hangs"] => Fault::Hang,
        ["shrinks", percent] => Fault::ShrinkList(percent.parse().unwrap()),
        ["duplicates", machines] => Fault::DuplicateAddresses(machines.parse().unwrap()),
        ["forgets", "addresses", machines] => Fault::WithoutAddress(machines.parse().unwrap()),
        _ => panic!("no such fault: {how:?}"),
    };
    switch.set(fault);
}
