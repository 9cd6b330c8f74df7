//! Outages of clusters.
//!
//! The seed determines the times, the durations (always longer than applications wait before they leave), and the
//! choice among the clusters with applications that can leave.

use std::sync::Arc;
use std::time::Duration;

use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use serde_json::Value;
use tokio::sync::mpsc;

use super::api::{ApiError, DemoApi};
use super::scene::SITES;
use super::{RESCHEDULE_AFTER, decision_line};

/// Time before the first outage: by then everything is bound and on screen.
const FIRST: Duration = Duration::from_secs(30);
/// Range of the time from a cluster's return to the next outage, in seconds.
const PAUSE_SECONDS: std::ops::Range<f64> = 30.0..50.0;
/// Range by which an outage exceeds [`RESCHEDULE_AFTER`], in seconds.
const BEYOND_SECONDS: std::ops::Range<f64> = 5.0..12.0;
/// Attempts to set the state: far longer than the restart of an actor takes.
const TRIES: u32 = 60;
/// Pause between two attempts.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// Runs outages until the receiver is dropped.
pub(super) async fn run(api: Arc<DemoApi>, seed: u64, say: mpsc::Sender<String>) {
    // Another stream than the one of the actors' faults.
    let mut chance = ChaCha8Rng::seed_from_u64(seed);
    chance.set_stream(1);
    tokio::time::sleep(FIRST).await;
    loop {
        let candidates = clusters_in_use(&api).await;
        let cluster = candidates[chance.random_range(0..candidates.len())];
        let stays = RESCHEDULE_AFTER + Duration::from_secs_f64(chance.random_range(BEYOND_SECONDS));
        if set_cluster_state(&api, cluster, "OFFLINE").await {
            if say.send(decision_line::describe_offline(cluster, RESCHEDULE_AFTER)).await.is_err() {
                return;
            }
            tokio::time::sleep(stays).await;
            if set_cluster_state(&api, cluster, "ONLINE").await
                && say.send(decision_line::describe_online(cluster)).await.is_err()
            {
                return;
            }
        }
        tokio::time::sleep(Duration::from_secs_f64(chance.random_range(PAUSE_SECONDS))).await;
    }
}

/// The clusters with an application that may move; all clusters if there is none or the API does not answer.
async fn clusters_in_use(api: &DemoApi) -> Vec<&'static str> {
    let applications = api.list("applications").await.unwrap_or_else(|error| {
        tracing::debug!(error = &error as &dyn std::error::Error, "applications cannot be listed");
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

/// True if the API accepted the state.
async fn set_cluster_state(api: &DemoApi, cluster: &str, state: &str) -> bool {
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
        tracing::error!(error, cluster, state, "the demo cannot set the state of a cluster");
    }
    false
}
