//! Clusters that go offline now and then, and come back.
//!
//! The seed says when, for how long (always longer than applications wait before they leave), and which of those that
//! something would have to leave.

use std::sync::Arc;
use std::time::Duration;

use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use serde_json::Value;
use tokio::sync::mpsc;

use super::api::{Api, ApiError};
use super::scene::SITES;
use super::{RESCHEDULE_AFTER, tell};

/// Time before the first: everything is bound and has been looked at.
const FIRST: Duration = Duration::from_secs(30);
/// Shortest and longest time from a cluster's return to the next outage, in seconds.
const PAUSE_SECONDS: std::ops::Range<f64> = 30.0..50.0;
/// How much longer than [`RESCHEDULE_AFTER`] one stays offline, in seconds.
const BEYOND_SECONDS: std::ops::Range<f64> = 5.0..12.0;
/// How often the state is tried to be set: for far longer than an actor takes to come back.
const TRIES: u32 = 60;
/// Pause between two tries.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// Takes clusters away and brings them back, until nobody listens any more.
pub(super) async fn run(api: Arc<Api>, seed: u64, say: mpsc::Sender<String>) {
    // Other numbers than those that the faults of actors are drawn from.
    let mut chance = ChaCha8Rng::seed_from_u64(seed);
    chance.set_stream(1);
    tokio::time::sleep(FIRST).await;
    loop {
        let candidates = inhabited(&api).await;
        let cluster = candidates[chance.random_range(0..candidates.len())];
        let stays = RESCHEDULE_AFTER + Duration::from_secs_f64(chance.random_range(BEYOND_SECONDS));
        if set(&api, cluster, "OFFLINE").await {
            if say.send(tell::offline(cluster, RESCHEDULE_AFTER)).await.is_err() {
                return;
            }
            tokio::time::sleep(stays).await;
            if set(&api, cluster, "ONLINE").await && say.send(tell::online(cluster)).await.is_err() {
                return;
            }
        }
        tokio::time::sleep(Duration::from_secs_f64(chance.random_range(PAUSE_SECONDS))).await;
    }
}

/// The clusters that something is bound to that may move; all of them if there is none, or nobody can say.
async fn inhabited(api: &Api) -> Vec<&'static str> {
    let applications = api.list("applications").await.unwrap_or_else(|error| {
        tracing::debug!(error = &error as &dyn std::error::Error, "applications cannot be looked at");
        Vec::new()
    });
    let moves = |application: &&Value| application["spec"]["constraints"]["migration"] != false;
    let homes: Vec<&Value> = applications
        .iter()
        .filter(moves)
        .map(|application| &application["status"]["scheduled_to"]["name"])
        .collect();
    let all = SITES.iter().map(|site| site.name);
    let inhabited: Vec<&str> = all.clone().filter(|name| homes.iter().any(|home| *home == name)).collect();
    if inhabited.is_empty() { all.collect() } else { inhabited }
}

/// Whether the API took it.
async fn set(api: &Api, cluster: &str, state: &str) -> bool {
    let mut last: Option<ApiError> = None;
    for _ in 0..TRIES {
        match api.set_state(cluster, state).await {
            Ok(()) => return true,
            Err(error) => last = Some(error),
        }
        tokio::time::sleep(RETRY_PAUSE).await;
    }
    if let Some(error) = last {
        let error = &error as &dyn std::error::Error;
        tracing::error!(error, cluster, state, "the demo cannot say what became of a cluster");
    }
    false
}
