//! Simulated clients of the registry: they search machines, take some out of service and bring them back. Sometimes
//! they spoil entries by mistake.

use std::net::Ipv4Addr;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use madako_datacenter_sim::{GRAPHQL_PATH, InMemoryHttp, SimulatedRegistry};
use madako_domain::machine::MachineState;
use madako_protocol::ports::{HttpMethod, HttpRequest, HttpTransport, Registry as _};
use madako_sabakan::SabakanRegistry;
use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::Instant;

use super::seeded_generator;
use super::simulated_clients::{CallCounts, period_of, wait_for_next};
use crate::checker::Checker;
use crate::corruption::CorruptedTransport;
use crate::history::History;
use crate::network::Endpoint;
use crate::routed::LinkedTransport;
use crate::world::{INTERVAL, World};

/// Maximum share of machines that the clients keep out of service at a time.
const BROKEN_PERCENT: usize = 8;

/// One in this many requests to the registry changes a state.
const CHANGES: u32 = 6;

/// Deadline of a request.
const PATIENCE: Duration = Duration::from_secs(10);

const URL: &str = "http://registry.invalid";

/// Mean time between two mistakes, if clients send requests often enough for it.
const BETWEEN_MISTAKES: Duration = Duration::from_secs(25 * 60);

/// Number of polls that a mistake lasts: more than the removal guard waits for.
const MISTAKE_POLLS: Range<f64> = 5.0..10.0;

type Transport = LinkedTransport<CorruptedTransport<InMemoryHttp>>;

/// A machine without addresses in the registry, by mistake.
struct RegistryMistake {
    until: Instant,
    serial: String,
    addresses: Vec<Ipv4Addr>,
}

pub(super) struct RegistryClients {
    search: SabakanRegistry<Transport>,
    transport: Arc<Transport>,
    registry: SimulatedRegistry,
    /// Sets the machines of the cluster.
    checker: Checker,
    history: History,
    chance: ChaCha8Rng,
    /// Serials of machines that the clients took out of service.
    broken: Vec<String>,
    mistakes: Vec<RegistryMistake>,
    pub(super) calls: CallCounts,
}

impl RegistryClients {
    pub(super) fn new(world: &World, seed: u64) -> Self {
        let link = world.network.link(Endpoint::People, Endpoint::Registry);
        let inner = world.corruption.spoil_transport(Arc::new(world.registry.open_in_memory_transport()));
        let transport = Arc::new(LinkedTransport::new(inner, link, Arc::clone(&world.requests.registry)));
        Self {
            search: SabakanRegistry::new(Arc::clone(&transport)),
            transport,
            registry: world.registry.clone(),
            checker: world.checker.clone(),
            history: world.history.clone(),
            chance: seeded_generator(seed, 10),
            broken: Vec::new(),
            mistakes: Vec::new(),
            calls: CallCounts::default(),
        }
    }

    /// Sends `rate` requests a second until `stop` is true.
    pub(super) async fn act_until_stopped(mut self, rate: f64, mut stop: watch::Receiver<bool>) -> Self {
        let mistakes = period_of(rate, BETWEEN_MISTAKES);
        while wait_for_next(rate, &mut self.chance, &mut stop).await {
            self.calls.made += 1;
            self.end_mistakes(Instant::now());
            if self.chance.random_bool(mistakes) {
                self.make_a_mistake();
                continue;
            }
            if self.chance.random_range(0..CHANGES) > 0 {
                let found = self.search.machines(&format!("{URL}{GRAPHQL_PATH}"), None).await;
                self.calls.failed += u64::from(found.is_err());
                continue;
            }
            let (serial, state) = self.choose_machine();
            let done = self.set_state(&serial, state).await;
            self.calls.failed += u64::from(!done);
            self.history.note("registry", format_args!("{serial} is to be {state:?}: {done}"));
        }
        self
    }

    /// Removes the addresses of one worker or of half the control plane for a while, so that the service cannot
    /// recognize these machines.
    fn make_a_mistake(&mut self) {
        let Some(cluster) = self.checker.current_cluster().filter(|_| self.mistakes.is_empty()) else {
            return;
        };
        let control_plane: Vec<&str> = cluster.control_plane().map(|node| node.address.as_str()).collect();
        let workers: Vec<&str> = cluster.workers().map(|node| node.address.as_str()).collect();
        let chosen = if workers.is_empty() || self.chance.random_range(0..3_u32) > 0 {
            &control_plane[..control_plane.len().div_ceil(2)]
        } else {
            &workers[self.chance.random_range(0..workers.len())..][..1]
        };
        let until = Instant::now() + INTERVAL.mul_f64(self.chance.random_range(MISTAKE_POLLS));
        for machine in self.registry.list_machines() {
            if !machine.address().is_some_and(|address| chosen.contains(&address)) {
                continue;
            }
            let addresses = machine.spec.ipv4.iter().filter_map(|address| address.parse().ok()).collect();
            let serial = machine.spec.serial;
            if self.registry.set_addresses(&serial, &[]).is_ok() {
                self.history.note("registry", format_args!("{serial} loses its addresses"));
                self.mistakes.push(RegistryMistake { until, serial, addresses });
            }
        }
    }

    /// Ends mistakes whose time is over.
    fn end_mistakes(&mut self, now: Instant) {
        let over = |mistake: &mut RegistryMistake| mistake.until <= now;
        for RegistryMistake { serial, addresses, .. } in
            self.mistakes.extract_if(.., over).collect::<Vec<_>>()
        {
            let mended = match self.registry.set_addresses(&serial, &addresses) {
                Ok(()) => "has its addresses again",
                // The machine was retired and removed meanwhile.
                Err(_) => "is not there any more",
            };
            self.history.note("registry", format_args!("{serial} {mended}"));
        }
    }

    fn choose_machine(&mut self) -> (String, MachineState) {
        let machines = self.registry.list_machines();
        let most = (machines.len() * BROKEN_PERCENT / 100).max(1);
        let mends = self.broken.len() >= most || self.chance.random_range(0..3_u32) == 0;
        if mends && !self.broken.is_empty() {
            return (self.broken.remove(0), MachineState::Healthy);
        }
        let machine = &machines[self.chance.random_range(0..machines.len())];
        let serial = machine.spec.serial.clone();
        let state = match self.chance.random_range(0..10_u32) {
            0 => MachineState::Retiring,
            1 | 2 => MachineState::Updating,
            3..6 => MachineState::Unreachable,
            _ => MachineState::Unhealthy,
        };
        if matches!(state, MachineState::Unhealthy | MachineState::Unreachable) {
            self.broken.push(serial.clone());
        }
        (serial, state)
    }

    async fn set_state(&self, serial: &str, state: MachineState) -> bool {
        let query = format!(
            "mutation {{ setMachineState(serial: {serial:?}, state: {}) {{ state }} }}",
            state.name().to_ascii_uppercase()
        );
        let request = HttpRequest {
            method: HttpMethod::Post,
            url: format!("{URL}{GRAPHQL_PATH}"),
            headers: vec![("Content-Type".to_owned(), "application/json".to_owned())],
            body: json!({"query": query}).to_string().into(),
            deadline: PATIENCE,
            max_response_bytes: 1024 * 1024,
        };
        // A refusal of sabakan is an answer; a truncated or malformed answer counts as a failure.
        match self.transport.send(request).await {
            Ok(answer) => {
                answer.status == 200 && serde_json::from_slice::<serde_json::Value>(&answer.body).is_ok()
            }
            Err(_) => false,
        }
    }

    /// Brings back all machines that the clients took out of service, and ends all mistakes.
    pub(super) fn restore_machines(&mut self) {
        for serial in std::mem::take(&mut self.broken) {
            let _refused = self.registry.set_state(&serial, MachineState::Healthy);
        }
        for mistake in &mut self.mistakes {
            mistake.until = Instant::now();
        }
        self.end_mistakes(Instant::now());
        self.history.note("registry", "rests");
    }
}
