//! Measures the time from a `kill -9` of the leader to the next leader's commit of a change that waits since then.

use std::time::Duration;

use anyhow::Context as _;
use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;
use tokio::time::{Instant, sleep};

use crate::handover::{start_three_instances, take_leader};
use crate::processes::Madako;
use crate::scene::Scene;
use crate::table::{Table, Times, format_time};
use crate::witness::Witness;

const SAMPLES: usize = 12;
/// etcd 3.4 grants no shorter lease with its default election time-out.
const TTL: Duration = Duration::from_secs(2);
const TTL_TEXT: &str = "2s";
/// Target for the work after the expiry of the dead leader's lease.
const BEYOND: Duration = Duration::from_millis(500);
/// Longest pause before the leader is killed; its lease is renewed at each third of the TTL.
const PAUSE: Duration = Duration::from_millis(1_400);

pub(crate) async fn measure_crash(mut chance: ChaCha8Rng, table: &mut Table) -> anyhow::Result<()> {
    let mut row = |name: &str, times: &Times| {
        let within = times.maximum() <= TTL + BEYOND;
        let measured = format!("{times} with a TTL of {}", format_time(TTL));
        table.add_row(name, format!("TTL + {}", format_time(BEYOND)), measured, Some(within));
    };
    row("first commit of the next leader after `kill -9`, etcd", &measure_crash_on_etcd(&mut chance).await?);
    let dialling = measure_crash_on_embedded(&mut chance).await?;
    row("the same, embedded store in the process of the next leader", &dialling);
    let restarted = measure_restarts(&mut chance).await?;
    row("the same, the process with the embedded store is killed and restarted at once", &restarted);
    Ok(())
}

/// Kills a leader, and demands one worker more at once.
async fn kill_leader(scene: &mut Scene, leader: Madako) -> anyhow::Result<Duration> {
    let began = Instant::now();
    leader.kill()?;
    scene.request_one_more_worker().await?;
    let committed = scene.witness.wait_until_workers(scene.workers).await?;
    leader.wait_for_end().await?;
    Ok(committed - began)
}

async fn measure_crash_on_etcd(chance: &mut ChaCha8Rng) -> anyhow::Result<Times> {
    let mut scene = Scene::with_etcd(60, TTL_TEXT).await?;
    let mut instances = start_three_instances(&mut scene).await?;
    let mut times = Times::default();
    for _ in 0..SAMPLES {
        sleep(PAUSE.mul_f64(chance.random())).await;
        let (_, leader) = take_leader(&mut scene, &mut instances)?;
        let took = kill_leader(&mut scene, leader).await;
        times.add(scene.explain(took)?);
        let instance = scene.start_instance()?;
        instances.push((scene.wait_for_candidate().await?, instance));
    }
    Ok(times)
}

/// The leader dials the store of another process, which becomes the next leader.
async fn measure_crash_on_embedded(chance: &mut ChaCha8Rng) -> anyhow::Result<Times> {
    let (mut scene, _host) = Scene::with_embedded_leader(60, TTL_TEXT).await?;
    scene.install(20).await?;
    let mut times = Times::default();
    for _ in 0..SAMPLES {
        scene.witness.catch_up();
        let hosts = scene.witness.leader().context("no instance leads")?.to_owned();
        let leader = scene.start_dialling_instance()?;
        let dials = scene.wait_for_candidate().await?;
        // The process with the store becomes the last candidate.
        scene.witness.delete(&hosts).await?;
        scene.wait_for_candidate().await?;
        anyhow::ensure!(scene.witness.leader() == Some(dials.as_str()), "another leads");
        // It works as leader before it is killed.
        scene.request_one_more_worker().await?;
        let works = scene.witness.wait_until_workers(scene.workers).await;
        scene.explain(works)?;
        sleep(PAUSE.mul_f64(chance.random())).await;
        let took = kill_leader(&mut scene, leader).await;
        times.add(scene.explain(took)?);
    }
    Ok(times)
}

/// The leader has the store; it is restarted at once, as a service manager would.
async fn measure_restarts(chance: &mut ChaCha8Rng) -> anyhow::Result<Times> {
    let (mut scene, mut leader) = Scene::with_embedded_leader(60, TTL_TEXT).await?;
    scene.install(20).await?;
    // Retired workers must not be replaced.
    scene.set_constraints(10).await?;
    let mut times = Times::default();
    for _ in 0..SAMPLES {
        sleep(PAUSE.mul_f64(chance.random())).await;
        let address = scene.witness.untainted_worker(chance.random_range(0..1_000))?;
        let began = Instant::now();
        leader.kill()?;
        // The store is down with it, so the waiting change is in the registry.
        scene.registry.retire(&address)?;
        leader.wait_for_end().await?;
        leader = scene.start_instance()?;
        scene.witness = Witness::new(&scene.endpoint).await?;
        let committed = scene.witness.wait_until_tainted(&address).await;
        times.add(scene.explain(committed)? - began);
    }
    Ok(times)
}
