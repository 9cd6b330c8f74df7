//! Measures the time from a change to its commit: of the constraints, which are watched, and in the registry, which is
//! polled.

use std::time::Duration;

use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;
use tokio::time::sleep;

use crate::scene::Scene;
use crate::size;
use crate::table::{Table, Times, format_time};

const SAMPLES: usize = 20;
/// Target for the commit of a changed constraint.
const AIM: Duration = Duration::from_millis(200);
/// The scene's time between polls.
const INTERVAL: Duration = Duration::from_secs(1);
/// Polls before memory is measured, so that growth by poll would show.
const POLLS: usize = 30;
/// Longest pause before a constraint is changed: no multiple of another interval.
const PAUSE: Duration = Duration::from_millis(170);
/// No lease expires during the measurement of commits.
const TTL: &str = "60s";

pub(crate) async fn measure_changes(mut chance: ChaCha8Rng, table: &mut Table) -> anyhow::Result<()> {
    for (machines, workers) in [(60, 20), (1_000, 880)] {
        let mut scene = Scene::with_etcd(machines, TTL).await?;
        let instance = scene.start_instance()?;
        let measured = measure_constraint_changes(&mut scene, workers, &mut chance).await;
        let name = format!("commit after a changed constraint, etcd, {machines} machines");
        table.add_times(name, AIM, &scene.explain(measured)?);
        let measured = measure_registry_changes(&mut scene, &mut chance).await;
        scene.explain(measured)?.fill(machines, table);
        drop(instance);
    }
    for (machines, workers) in [(60, 20), (1_000, 880)] {
        let (mut scene, instance) = Scene::with_embedded_leader(machines, TTL).await?;
        let measured = measure_constraint_changes(&mut scene, workers, &mut chance).await;
        let name = format!("commit after a changed constraint, embedded store, {machines} machines");
        table.add_times(name, AIM, &scene.explain(measured)?);
        if machines == 1_000 {
            scene.registry.wait_for_polls(POLLS).await?;
            size::add_memory_row(&scene, &instance, table)?;
        }
    }
    Ok(())
}

/// Demands one worker more, repeatedly.
async fn measure_constraint_changes(
    scene: &mut Scene,
    workers: usize,
    chance: &mut ChaCha8Rng,
) -> anyhow::Result<Times> {
    scene.install(workers).await?;
    let mut times = Times::default();
    for _ in 0..SAMPLES {
        sleep(PAUSE.mul_f64(chance.random())).await;
        let began = scene.request_one_more_worker().await?;
        times.add(scene.witness.wait_until_workers(scene.workers).await? - began);
    }
    Ok(times)
}

#[derive(Default)]
struct PolledRegistry {
    from_change: Times,
    from_poll: Times,
    /// Maximum polls from a change to its commit.
    polls: usize,
}

impl PolledRegistry {
    fn fill(&self, machines: u32, table: &mut Table) {
        table.add_row(
            format!("commit after a change in the registry, {machines} machines"),
            "by the next poll",
            format!(
                "at the latest by poll {}; every {}: {}",
                self.polls,
                format_time(INTERVAL),
                self.from_change
            ),
            Some(self.polls == 1 && self.from_poll.maximum() < INTERVAL),
        );
        table.add_note("part of this: from the poll to the commit", &self.from_poll);
    }
}

/// Retires machines at random times between two polls.
async fn measure_registry_changes(
    scene: &mut Scene,
    chance: &mut ChaCha8Rng,
) -> anyhow::Result<PolledRegistry> {
    // So many that retired workers need no replacement, which would be another commit.
    let enough = scene.workers - SAMPLES;
    scene.set_constraints(enough).await?;
    let mut measured = PolledRegistry::default();
    for _ in 0..SAMPLES {
        sleep(INTERVAL.mul_f64(chance.random())).await;
        let address = scene.witness.untainted_worker(chance.random_range(0..1_000))?;
        let changed = scene.registry.retire(&address)?;
        let committed = scene.witness.wait_until_tainted(&address).await?;
        let polls = scene.registry.requests_between(changed, committed);
        let observed = *polls.first().ok_or_else(|| anyhow::anyhow!("committed without a poll"))?;
        measured.from_change.add(committed - changed);
        measured.from_poll.add(committed - observed);
        measured.polls = measured.polls.max(polls.len());
    }
    Ok(measured)
}
