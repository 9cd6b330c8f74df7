//! The simulated registry, served on loopback by this process, and when the poller asked it.

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

/// When the poller asked. It is told from the repair queue's question by its variables: that one always says which states it is
/// about, and the scene's variables do not.
#[derive(Clone, Default)]
struct Asked(Arc<Mutex<Vec<Instant>>>);

impl Asked {
    fn noted(&self) -> MutexGuard<'_, Vec<Instant>> {
        // Nothing panics while it is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hear(&self, variables: &QueryVariables) {
        if variables.having.as_ref().is_none_or(|having| having.states.is_none()) {
            self.noted().push(Instant::now());
        }
    }
}

/// A registry of machines to which nothing happens by itself.
pub(crate) struct Registry {
    simulated: SimulatedRegistry,
    asked: Asked,
    pub(crate) url: String,
    _server: Task,
}

impl Registry {
    /// So many machines, of compute, storage and gpu as 6 to 3 to 1; a machine that boots the others a rack.
    pub(crate) async fn serve(machines: u32) -> anyhow::Result<Self> {
        let (storage, gpu) = (machines * 3 / 10, machines / 10);
        let roles = [("compute", machines - storage - gpu), ("storage", storage), ("gpu", gpu)];
        let config = DatacenterConfig::new(3, SystemClock.now(), machines.div_ceil(RACK), &roles);
        let simulated = SimulatedRegistry::new(Datacenter::new(config)?, Arc::new(SystemClock));
        let asked = Asked::default();
        let hears = asked.clone();
        simulated.hear_searches(Box::new(move |variables| hears.hear(variables)));
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

    /// Retires the machine with this address: its node is to be tainted. Returns when that was done.
    pub(crate) fn retire(&self, address: &str) -> anyhow::Result<Instant> {
        let machines = self.simulated.machines();
        let machine = machines.iter().find(|machine| machine.address() == Some(address));
        let serial = &machine.context("a node without a machine")?.spec.serial;
        self.simulated.set_state(serial, MachineState::Retiring)?;
        Ok(Instant::now())
    }

    /// Takes no connections any more and cuts those that are there, or takes them again.
    pub(crate) fn refuse(&self, refuse: bool) {
        let switch = self.simulated.faults();
        match refuse {
            true => switch.set(Fault::RefuseConnections),
            false => switch.clear(&Fault::RefuseConnections),
        }
    }

    /// The poller's questions after a moment and up to another, oldest first.
    pub(crate) fn asked(&self, after: Instant, until: Instant) -> Vec<Instant> {
        let asked = |at: &Instant| (after..=until).contains(at);
        self.asked.noted().iter().copied().filter(asked).collect()
    }

    /// Waits until the poller has asked so many more times.
    pub(crate) async fn polls(&self, count: usize) -> anyhow::Result<()> {
        let enough = self.asked.noted().len() + count;
        let asked = async {
            while self.asked.noted().len() < enough {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(crate::processes::PATIENCE * 2, asked).await.context("the registry is not asked")
    }
}
