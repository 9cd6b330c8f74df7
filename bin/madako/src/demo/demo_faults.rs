//! Faults that the demo injects into its own actors, so that the user sees an actor fail and restart.
//!
//! Guarantees: the times and actors depend on the seed alone. An actor is killed through the tree that supervises it,
//! in the middle of its work and without notice. The recovery is the service's own.

use std::time::Duration;

use madako_supervisor::http::HTTP;
use madako_supervisor::instance::{FETCHER, Instance, LEADER, PLANNER, POLLER, REIGN, SCHEDULER};
use madako_supervisor::tree::{SupervisorEnded, SupervisorRef};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use tokio::time::Instant;

/// Time before the first fault: by then the first cluster is committed and on screen.
const FIRST: Duration = Duration::from_secs(20);
/// Range of the time between two faults, in seconds: far fewer faults than the restarts that a supervisor allows.
const PAUSE_SECONDS: std::ops::Range<f64> = 30.0..50.0;
/// Each fault draws one; a repeated name has twice the chance. After the end of the leader actor there is no leader until
/// its session expires, so that it is rare.
const VICTIMS: [&str; 10] =
    [PLANNER, POLLER, SCHEDULER, FETCHER, PLANNER, POLLER, SCHEDULER, FETCHER, HTTP, LEADER];

pub(crate) struct DemoFaults {
    chance: ChaCha8Rng,
    due: Instant,
}

impl DemoFaults {
    pub(crate) fn new(seed: u64) -> Self {
        Self { chance: ChaCha8Rng::seed_from_u64(seed), due: Instant::now() + FIRST }
    }

    /// Waits for the next fault. It stays due until [`DemoFaults::inject_fault`].
    pub(crate) async fn wait_until_due(&self) {
        tokio::time::sleep_until(self.due).await;
    }

    /// Kills the next actor, if it runs. Returns its name.
    pub(crate) async fn inject_fault(&mut self, instance: &Instance) -> Option<&'static str> {
        let victim = VICTIMS[self.chance.random_range(0..VICTIMS.len())];
        self.due = Instant::now() + Duration::from_secs_f64(self.chance.random_range(PAUSE_SECONDS));
        match kill(instance.root(), victim).await {
            Ok(true) => Some(victim),
            // The actor is about to start, or the service ends: there is nothing to show.
            Ok(false) | Err(SupervisorEnded) => None,
        }
    }
}

/// Kills an actor. Returns whether it ran.
///
/// # Errors
/// The service ends.
pub(crate) async fn kill(root: &SupervisorRef, actor: &str) -> Result<bool, SupervisorEnded> {
    let parent = match actor {
        POLLER | PLANNER | FETCHER | SCHEDULER => {
            root.find_child(REIGN).await?.and_then(SupervisorRef::from_cell)
        }
        _ => Some(root.clone()),
    };
    let Some(parent) = parent else { return Ok(false) };
    let cell = parent.find_child(actor).await?;
    if let Some(cell) = &cell {
        cell.kill();
    }
    Ok(cell.is_some())
}
