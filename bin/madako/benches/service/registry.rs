//! The simulated registry, served on loopback by this process, and the times of the poller's requests.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use madako_datacenter_sim::{Datacenter, DatacenterConfig, Fault, GRAPHQL_PATH, SimulatedRegistry};
use madako_domain::machine::{MachineState, QueryVariables};
use madako_protocol::feed::Task;
use madako_protocol::ports::Clock;
use madako_supervisor::clock::SystemClock;
use tokio::net::TcpListener;
use tokio::time::Instant;

/// Machines in a rack.
const RACK: u32 = 40;

/// Times of the poller's requests. Their variables distinguish them from requests for reports: those always choose
/// states, and the scene's variables do not.
#[derive(Clone, Default)]
struct RequestTimes(Arc<Mutex<Vec<Instant>>>);

impl RequestTimes {
    fn lock_noted(&self) -> MutexGuard<'_, Vec<Instant>> {
        // No panic happens under the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record_request(&self, variables: &QueryVariables) {
        if variables.having.as_ref().is_none_or(|having| having.states.is_none()) {
            self.lock_noted().push(Instant::now());
        }
    }
}

/// A registry of machines that do not change by themselves.
pub(crate) struct Registry {
    simulated: SimulatedRegistry,
    asked: RequestTimes,
    pub(crate) url: String,
    _server: Task,
}

impl Registry {
    /// A registry of this many machines, of compute, storage and gpu as 6 to 3 to 1, with a boot server in each rack.
    pub(crate) async fn serve(machines: u32) -> anyhow::Result<Self> {
        let (storage, gpu) = (machines * 3 / 10, machines / 10);
        let roles = [("compute", machines - storage - gpu), ("storage", storage), ("gpu", gpu)];
        let config = DatacenterConfig::new(3, SystemClock.now(), machines.div_ceil(RACK), &roles);
        let simulated = SimulatedRegistry::new(Datacenter::new(config)?, Arc::new(SystemClock));
        let asked = RequestTimes::default();
        let hears = asked.clone();
        simulated.subscribe_searches(Box::new(move |variables| hears.record_request(variables)));
        let listener = TcpListener::bind("127.0.0.1:0").await.context("the registry cannot listen")?;
        let url = format!("http://{}{GRAPHQL_PATH}", listener.local_addr()?);
        let server = simulated.clone();
        let server = Task::start(async move {
            if let Err(error) = server.serve_tcp(listener).await {
                eprintln!("the registry ended: {error}");
            }
        });
        Ok(Self { simulated, asked, url, _server: server })
    }

    /// Retires the machine with this address, so that its node must get a taint. Returns the time of the change.
    pub(crate) fn retire(&self, address: &str) -> anyhow::Result<Instant> {
        let machines = self.simulated.list_machines();
        let machine = machines.iter().find(|machine| machine.address() == Some(address));
        let serial = &machine.context("a node without a machine")?.spec.serial;
        self.simulated.set_state(serial, MachineState::Retiring)?;
        Ok(Instant::now())
    }

    /// Refuses new connections and cuts the present ones, or accepts connections again.
    pub(crate) fn refuse_connections(&self, refuse: bool) {
        let switch = self.simulated.faults();
        match refuse {
            true => switch.set(Fault::RefuseConnections),
            false => switch.clear(&Fault::RefuseConnections),
        }
    }

    /// The poller's requests after `after` and up to `until`, oldest first.
    pub(crate) fn requests_between(&self, after: Instant, until: Instant) -> Vec<Instant> {
        let asked = |at: &Instant| (after..=until).contains(at);
        self.asked.lock_noted().iter().copied().filter(asked).collect()
    }

    /// Waits until the poller has sent `count` more requests.
    pub(crate) async fn wait_for_polls(&self, count: usize) -> anyhow::Result<()> {
        let enough = self.asked.lock_noted().len() + count;
        let asked = async {
            while self.asked.lock_noted().len() < enough {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(crate::processes::PATIENCE * 2, asked).await.context("the registry is not asked")
    }
}
