//! Clients of the kind `registry`: they search for machines in the registry, and change machine states.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use http::Method;
use madako_domain::machine::MachineState;
use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;
use serde_json::json;
use tokio::sync::watch;

use crate::datacenter::{ListedMachine, StateRequest};
use crate::history::{Event, History};
use crate::pace::ClientPace;
use crate::web::{self, WebRequest};

/// Time limit of one request.
const WITHIN: Duration = Duration::from_secs(5);
/// One in this many machines may be broken by these clients at a time, so that the cluster can go on.
const BROKEN_OF: usize = 10;
/// One in this many changes heals: most machines are left to repairs, which take some ten seconds with a drain.
const HEALS_ONE_OF: u32 = 5;
const SEARCH: &str = "query { searchMachines(having: null, notHaving: null) { spec { serial } } }";

/// The two addresses of the registry: through the network for searches, and past it for changes of machines.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RegistryAddresses {
    pub(crate) registry: SocketAddr,
    pub(crate) control: SocketAddr,
}

/// Works about `rate` times a second until `stop`; then heals all machines that it broke.
pub(crate) async fn run_client(
    ways: RegistryAddresses,
    rate: f64,
    history: History,
    mut chance: ChaCha8Rng,
    stop: watch::Receiver<bool>,
) {
    let mut pace = ClientPace::new(rate, 1.0, stop);
    let mut ours = BTreeSet::new();
    while pace.wait_for_next_call(&mut chance).await {
        if chance.random_range(0..2_u32) == 0 {
            change_machine(ways.control, &mut ours, &mut chance).await;
        } else {
            search_machines(ways.registry, &history).await;
        }
    }
    heal_machines(ways.control).await;
}

async fn search_machines(at: SocketAddr, history: &History) {
    let body = json!({"query": SEARCH});
    let why = match web::send_request(at, WebRequest::send(&Method::POST, "/graphql", &body, WITHIN)).await {
        Ok(answer) if answer.status.is_success() && answer.json()["data"]["searchMachines"].is_array() => {
            None
        }
        Ok(answer) => Some(format!("status {}, or no list", answer.status)),
        Err(error) => Some(error.to_string()),
    };
    history.note(Event::Searched { why });
}

/// Breaks one machine, or heals a broken one; does nothing while the registry does not answer. `ours` has the serials
/// of the machines broken by these clients.
async fn change_machine(at: SocketAddr, ours: &mut BTreeSet<String>, chance: &mut ChaCha8Rng) {
    let Some(machines) = list_machines(at).await else { return };
    let is_ours = |machine: &&ListedMachine| is_broken(machine) && ours.contains(&machine.serial);
    let broken: Vec<&ListedMachine> = machines.iter().filter(is_ours).collect();
    let well: Vec<&ListedMachine> =
        machines.iter().filter(|machine| machine.state == MachineState::Healthy).collect();
    let heals = chance.random_range(0..HEALS_ONE_OF) == 0;
    let full = broken.len() * BROKEN_OF >= machines.len();
    let (all, state) = match (heals, full, chance.random_range(0..2_u32)) {
        (true, ..) => (broken, MachineState::Healthy),
        (false, true, _) => return,
        (false, false, 0) => (well, MachineState::Unreachable),
        (false, false, _) => (well, MachineState::Unhealthy),
    };
    if all.is_empty() {
        return;
    }
    let machine = all[chance.random_range(0..all.len())];
    ours.insert(machine.serial.clone());
    set_machine_state(at, machine, state).await;
}

fn is_broken(machine: &ListedMachine) -> bool {
    matches!(machine.state, MachineState::Unhealthy | MachineState::Unreachable)
}

/// Addresses of the broken machines; empty while the registry does not answer.
pub(crate) async fn broken_machines(at: SocketAddr) -> BTreeSet<String> {
    let machines = list_machines(at).await.unwrap_or_default();
    machines.into_iter().filter(is_broken).filter_map(|machine| machine.address).collect()
}

async fn heal_machines(at: SocketAddr) {
    let Some(machines) = list_machines(at).await else { return };
    for machine in machines.iter().filter(|machine| is_broken(machine)) {
        set_machine_state(at, machine, MachineState::Healthy).await;
    }
}

pub(crate) async fn list_machines(at: SocketAddr) -> Option<Vec<ListedMachine>> {
    let answer = web::send_request(at, WebRequest::get("/machines", WITHIN)).await.ok()?;
    serde_json::from_slice(&answer.body).ok()
}

/// Has no effect if the registry's rules refuse it or the registry does not answer.
pub(crate) async fn set_machine_state(at: SocketAddr, machine: &ListedMachine, state: MachineState) {
    let body = json!(StateRequest { machine: machine.serial.clone(), state, held: false });
    let _ = web::send_request(at, WebRequest::send(&Method::POST, "/state", &body, WITHIN)).await;
}
