//! Kills an actor again and again, for scripted alert scenarios.

use std::time::Duration;

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
