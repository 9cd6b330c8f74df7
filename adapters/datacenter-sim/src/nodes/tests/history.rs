//! Property tests: random histories of simulated nodes and their etcd.

use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use tokio::time::timeout;

use super::*;
use crate::nodes::{NodeFact, NodeFault, NodePlace};

const FAULTS: [NodeFault; 6] = [
    NodeFault::Kill,
    NodeFault::Cut,
    NodeFault::Pause,
    NodeFault::Delay,
    NodeFault::DiskFull,
    NodeFault::EngineDown,
];

fn place(fleet: &Fleet, chance: &mut ChaCha8Rng) -> NodePlace {
    if chance.random_range(0..3) == 0 {
        NodePlace::Rack(chance.random_range(0..3))
    } else {
        NodePlace::Address(fleet.all.choose(chance).unwrap().clone())
    }
}

fn action(address: &str, chance: &mut ChaCha8Rng) -> NodeAction {
    match chance.random_range(0..6) {
        0 => NodeAction::StopContainer(Container::Etcd.into()),
        1 => NodeAction::PullImage { image: format!("image:{}", chance.random_range(0..9)) },
        2 => NodeAction::CreateVolume { name: "v".to_owned() },
        3 => NodeAction::RemoveVolume { name: "v".to_owned() },
        4 => files(),
        _ => NodeAction::RunContainer { spec: etcd(address, &Initial::None), restart: false },
    }
}

/// A history of actions, some of which lose their caller, of faults, and of writes.
async fn history(seed: u64) -> (Vec<NodeFact>, Duration) {
    let began = Instant::now();
    let fleet = Fleet::seeded(seed, 5);
    fleet.bootstrap().await;
    let mut chance = ChaCha8Rng::seed_from_u64(seed);
    let mut active = Vec::new();
    for _ in 0..150 {
        match chance.random_range(0..8) {
            0 => {
                let fault = (place(&fleet, &mut chance), *FAULTS.choose(&mut chance).unwrap());
                fleet.nodes.begin(&fault.0, fault.1);
                active.push(fault);
            }
            1 if !active.is_empty() => {
                let (place, fault) = active.swap_remove(chance.random_range(0..active.len()));
                fleet.nodes.end(&place, fault);
            }
            2 => fleet.nodes.reset(&place(&fleet, &mut chance)),
            3 => drop(fleet.nodes.write(&fleet.all).await),
            _ => {
                let address = fleet.all.choose(&mut chance).unwrap();
                let patience = Duration::from_millis(chance.random_range(1..2000));
                let action = action(address, &mut chance);
                drop(timeout(patience, fleet.act(address, &action)).await);
            }
        }
    }
    for (place, fault) in active {
        fleet.nodes.end(&place, fault);
    }
    sleep(Duration::from_secs(120)).await;
    for address in &fleet.all {
        fleet.start(address, &Initial::None).await.unwrap();
    }
    sleep(A_WHILE).await;
    assert!(fleet.members().await.iter().all(EtcdMember::is_in_sync), "faults end without a trace");
    (fleet.nodes.facts_since(0), began.elapsed())
}

#[tokio::test(start_paused = true)]
async fn equal_seeds_have_equal_histories() {
    let mut all = Vec::new();
    for seed in 1..=12 {
        let first = history(seed).await;
        assert_eq!(first, history(seed).await);
        all.push(first.0);
    }
    assert!(all.iter().enumerate().all(|(number, facts)| !all[..number].contains(facts)));
}

#[tokio::test(start_paused = true)]
async fn no_fault_loses_an_acknowledged_write_or_ends_an_effect_without_a_fact() {
    for seed in 20..40 {
        let (facts, _) = history(seed).await;
        let (mut open, mut lost) = (std::collections::BTreeSet::new(), 0);
        for fact in &facts {
            match &fact.what {
                Observed::Began(effect) => assert!(open.insert(effect.number)),
                Observed::Applied { effect, .. } | Observed::Dropped { effect, .. } => {
                    assert!(open.remove(&effect.number), "{fact:?}");
                }
                Observed::Etcd(EtcdFact::WriteLost { .. } | EtcdFact::Formed { second: true, .. }) => {
                    lost += 1
                }
                Observed::Etcd(_) | Observed::Kubernetes(_) => {}
            }
        }
        assert_eq!((open.len(), lost), (0, 0), "seed {seed}");
        let times: Vec<Duration> = facts.iter().map(|fact| fact.at).collect();
        assert!(times.is_sorted());
    }
}
