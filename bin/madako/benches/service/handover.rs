//! Measures the change of leadership after a clean stop: three instances on etcd, and the leader gets SIGTERM.

use std::time::Duration;

use anyhow::Context as _;
use madako_domain::keys;
use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;
use tokio::time::{Instant, sleep};

use crate::processes::Madako;
use crate::scene::Scene;
use crate::table::{Table, Times};
use crate::witness::TimedChange;

const SAMPLES: usize = 10;
const AIM: Duration = Duration::from_millis(200);
/// Far longer than a hand-over: no lease expires here.
const TTL: &str = "60s";
/// Longest pause before the leader is stopped.
const PAUSE: Duration = Duration::from_millis(500);

/// Instances with the keys of their candidates.
pub(crate) type Instances = Vec<(String, Madako)>;

/// Three instances and a cluster.
pub(crate) async fn start_three_instances(scene: &mut Scene) -> anyhow::Result<Instances> {
    let mut instances = Instances::new();
    for _ in 0..3 {
        let instance = scene.start_instance()?;
        instances.push((scene.wait_for_candidate().await?, instance));
    }
    scene.install(20).await?;
    Ok(instances)
}

pub(crate) fn take_leader(scene: &mut Scene, instances: &mut Instances) -> anyhow::Result<(String, Madako)> {
    scene.witness.catch_up();
    let leader = scene.witness.leader().context("no instance leads")?;
    let place = instances.iter().position(|(key, _)| key == leader);
    Ok(instances.swap_remove(place.context("an unknown instance leads")?))
}

/// Times of one hand-over, from the signal.
struct HandOver {
    /// The leader key is gone, so that another key is the oldest.
    gone: Duration,
    /// The next leader has written its status, so that it knows that it leads.
    leads: Duration,
    commits: Duration,
}

pub(crate) async fn measure_handover(mut chance: ChaCha8Rng, table: &mut Table) -> anyhow::Result<()> {
    let mut scene = Scene::with_etcd(60, TTL).await?;
    let (mut gone, mut leads, mut commits) = (Times::default(), Times::default(), Times::default());
    let mut instances = start_three_instances(&mut scene).await?;
    for _ in 0..SAMPLES {
        sleep(PAUSE.mul_f64(chance.random())).await;
        let (key, leader) = take_leader(&mut scene, &mut instances)?;
        let measured = measure_hand_over(&mut scene, &key, leader).await;
        let measured = scene.explain(measured)?;
        gone.add(measured.gone);
        leads.add(measured.leads);
        commits.add(measured.commits);
        let instance = scene.start_instance()?;
        instances.push((scene.wait_for_candidate().await?, instance));
    }
    table.add_times(
        "handover after a clean stop, etcd: until the next leader writes its status",
        AIM,
        &leads,
    );
    table.add_note("part of this: until the leader key is deleted", &gone);
    table.add_note("from the signal until the next leader's first commit", &commits);
    Ok(())
}

async fn measure_hand_over(scene: &mut Scene, key: &str, leader: Madako) -> anyhow::Result<HandOver> {
    let began = Instant::now();
    leader.send_sigterm()?;
    // Each key has its own watch, so that the next leader's status may arrive before the end of the old key.
    let next = |seen: &TimedChange| {
        let lease = seen.entry.as_ref().filter(|_| seen.key == keys::STATUS).map(|entry| entry.lease);
        lease.is_some_and(|lease| keys::leader(lease) != key)
    };
    let mut led = None;
    let is_gone = |seen: &TimedChange| seen.key == key && seen.entry.is_none();
    let gone = scene
        .witness
        .wait_for_change("the leader key is gone", |_, seen| {
            led = led.or_else(|| next(seen).then_some(seen.at));
            is_gone(seen)
        })
        .await?
        .at;
    // Not earlier: the stopping leader could still commit it.
    scene.request_one_more_worker().await?;
    let leads = match led {
        Some(at) => at,
        None => scene.witness.wait_for_change("the next leader's status", |_, seen| next(seen)).await?.at,
    };
    let commits = scene.witness.wait_until_workers(scene.workers).await?;
    anyhow::ensure!(leader.wait_for_end().await?, "the leader did not end cleanly");
    Ok(HandOver { gone: gone - began, leads: leads - began, commits: commits - began })
}
