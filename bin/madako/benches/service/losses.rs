//! Measures the loss and return of dependencies: of the leader among etcd's members, and of the registry.

use std::time::Duration;

use anyhow::Context as _;
use etcd_client::Client;
use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;
use tokio::time::{Instant, sleep, timeout};

use crate::processes::{Etcd, PATIENCE};
use crate::scene::Scene;
use crate::table::{Table, Times, format_time};
use crate::witness::Witness;

const SAMPLES: usize = 6;
/// No lease expires meanwhile.
const TTL: &str = "60s";
/// Target for a commit after etcd has lost its leader.
const ELECTED: Duration = Duration::from_secs(5);
/// The scene's time between polls.
const INTERVAL: Duration = Duration::from_secs(1);
/// Target for the time from a poll's beginning to its commit, after the registry's port is open again.
const COMMITTED: Duration = Duration::from_millis(200);
/// Pause before a refused write is repeated, as an operator would, only faster.
const AGAIN: Duration = Duration::from_millis(10);

pub(crate) async fn measure_losses(mut chance: ChaCha8Rng, table: &mut Table) -> anyhow::Result<()> {
    let times = leader_of_etcd(&mut chance).await?;
    table.add_times(
        "commit of a constraint that was changed after `kill -9` of etcd's leader, three members",
        ELECTED,
        &times,
    );
    let (times, polls) = measure_registry_loss(&mut chance).await?;
    table.add_row(
        "commit after the registry was unreachable for 3 to 4 polls, from its return",
        "one poll",
        format!("at the latest by poll {polls}; every {}: {times}", format_time(INTERVAL)),
        Some(polls == 1 && times.maximum() <= INTERVAL + COMMITTED),
    );
    Ok(())
}

async fn leader_of_etcd(chance: &mut ChaCha8Rng) -> anyhow::Result<Times> {
    let (mut scene, mut members) = Scene::with_three_etcds(60, TTL).await?;
    let _instance = scene.start_instance()?;
    let installed = scene.install(20).await;
    scene.explain(installed)?;
    let mut times = Times::default();
    for _ in 0..SAMPLES {
        let leads = find_leader(&members).await?;
        // The witness uses a member that stays, so that its own reconnection is not measured.
        scene.witness = Witness::new(&members[(leads + 1) % members.len()].endpoint).await?;
        scene.witness.wait_until_workers(scene.workers).await?;
        sleep(Duration::from_secs(1).mul_f64(chance.random())).await;
        let wanted = scene.workers + 1;
        let began = Instant::now();
        members[leads].kill().await?;
        let written = async {
            while scene.set_constraints(wanted).await.is_err() {
                sleep(AGAIN).await;
            }
        };
        timeout(PATIENCE, written).await.context("etcd takes no write after an election")?;
        let committed = scene.witness.wait_until_workers(wanted).await;
        times.add(scene.explain(committed)? - began);
        members[leads].start_again()?;
        find_leader(&members).await?;
    }
    Ok(times)
}

/// Index of etcd's leader, once all members answer and agree.
async fn find_leader(members: &[Etcd]) -> anyhow::Result<usize> {
    let agreed = async {
        loop {
            let mut said = Vec::new();
            for member in members {
                said.extend(read_leader(member).await);
            }
            let leaders: Vec<usize> = (0..said.len()).filter(|at| said[*at].0 == said[*at].1).collect();
            if let [leads] = leaders[..]
                && said.len() == members.len()
                && said.iter().all(|(_, leader)| *leader == said[leads].0)
            {
                return leads;
            }
            sleep(AGAIN).await;
        }
    };
    timeout(PATIENCE, agreed).await.context("etcd's members do not agree on a leader")
}

/// The ids of a member and of its leader, if it answers.
async fn read_leader(member: &Etcd) -> Option<(u64, u64)> {
    let mut client = Client::connect([&member.endpoint], None).await.ok()?;
    let status = client.status().await.ok()?;
    Some((status.header()?.member_id(), status.leader()))
}

/// Times from the registry's return to the commit, and the maximum number of polls.
async fn measure_registry_loss(chance: &mut ChaCha8Rng) -> anyhow::Result<(Times, usize)> {
    let mut scene = Scene::with_etcd(60, TTL).await?;
    let _instance = scene.start_instance()?;
    let installed = scene.install(20).await;
    scene.explain(installed)?;
    // Retired workers must not be replaced, which would be another commit.
    scene.set_constraints(20 - SAMPLES).await?;
    let mut times = Times::default();
    let mut most = 0;
    for _ in 0..SAMPLES {
        let address = scene.witness.untainted_worker(chance.random_range(0..1_000))?;
        scene.registry.refuse_connections(true);
        sleep(INTERVAL * 3 + INTERVAL.mul_f64(chance.random())).await;
        scene.registry.retire(&address)?;
        let back = Instant::now();
        scene.registry.refuse_connections(false);
        let committed = scene.witness.wait_until_tainted(&address).await;
        let committed = scene.explain(committed)?;
        times.add(committed - back);
        most = most.max(scene.registry.requests_between(back, committed).len());
    }
    Ok((times, most))
}
