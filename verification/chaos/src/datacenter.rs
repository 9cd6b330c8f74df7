//! The simulated data center as a process of its own: a registry of machines, beside it the API server of a simulated
//! Kubernetes whose nodes they are, a provider of metrics, and a door for whoever makes them fail.
//!
//! Guarantees: every answer that the service may act on, every change from outside, and every request to the registry that is no search
//! is a line of the journal before it is given or told; started again on the same journal, machines, nodes and pods are as they were.
//!
//! Does not: keep anybody from the control door. It is meant for loopback and the namespaces of runs, and
//! refuses other addresses.

mod caller;
mod control;
mod guard;
mod journal;
mod kubernetes;
mod tap;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use madako_datacenter_sim::{
    Datacenter, DatacenterConfig, Rates, SimulatedPrometheus, SimulatedRegistry, Wandering,
};
use madako_json::input::InputError;
use madako_protocol::ports::Clock;
use time::OffsetDateTime;
use tokio::net::TcpListener;

pub(crate) use self::caller::monotonic;
pub use self::control::{Clocked, Corrupted, Listed, Powered, Repaired, Stated};
pub use self::journal::{Asked, Journal, JournalError, Line, What, read};
pub(crate) use self::kubernetes::{PROTECTED, path_of};
pub use self::tap::Spoilt;
use self::tap::Tap;
use crate::network::{RANGE_SHOWN, is_apart};

/// A machine that has power again starts.
const INITIALIZE_TAKES: Duration = Duration::from_secs(5);
/// Time between two turns of a metric, and its bounds.
const PACE: Duration = Duration::from_secs(40);
const BOUNDS: (f64, f64) = (5.0, 95.0);

/// What a data center is made of.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where the registry listens.
    pub registry: Option<SocketAddr>,
    /// Where the provider of metrics listens.
    pub prometheus: Option<SocketAddr>,
    /// Where it is controlled: on loopback, or at an address that only a run's namespaces have.
    pub control: SocketAddr,
    /// Machines.
    pub machines: u32,
    /// Racks.
    pub racks: u32,
    /// Names of the metrics.
    pub metrics: Vec<String>,
    /// Chooses its history.
    pub seed: u64,
    /// Where its journal is.
    pub journal: PathBuf,
}

/// Why there is no data center.
#[derive(Debug, thiserror::Error)]
pub enum DatacenterError {
    /// The control door must be out of strangers' reach.
    #[error("the control door cannot be on {0}: only addresses of loopback or of {RANGE_SHOWN}")]
    Open(SocketAddr),
    /// An address cannot be listened on.
    #[error("cannot listen on {0}")]
    Listen(SocketAddr, #[source] io::Error),
    /// The numbers do not make a data center.
    #[error(transparent)]
    Settings(#[from] InputError),
    /// The journal cannot be read or written.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A server ended.
    #[error("a server of the data center ended")]
    Served(#[source] io::Error),
}

/// The metric that tells how much of a cluster is free.
#[must_use]
pub fn metric_of(cluster: &str) -> String {
    format!("free_{}", cluster.replace('-', "_"))
}

/// Serves until the future is dropped.
///
/// # Errors
/// See [`DatacenterError`].
pub async fn serve(settings: Settings, clock: Arc<dyn Clock>) -> Result<(), DatacenterError> {
    let door = settings.control.ip();
    if !door.is_loopback() && !is_apart(door) {
        return Err(DatacenterError::Open(settings.control));
    }
    let before = read(&settings.journal)?;
    let journal = Journal::open(&settings.journal, Arc::clone(&clock))?;
    let start = match before.first() {
        Some(line) => line.time(),
        None => journal.write(What::Started)?,
    };
    let registry = SimulatedRegistry::new(machines(&settings, start, &before)?, Arc::clone(&clock));
    let tap = Arc::new(Tap::new(journal));
    let prometheus = SimulatedPrometheus::new(settings.seed, clock, wandering(&settings.metrics));
    let door = control::router(registry.clone(), Arc::clone(&tap), &before);
    let mut servers = Vec::new();
    if let Some(address) = settings.registry {
        let api =
            kubernetes::ApiServer::new(settings.seed, registry.clone(), Arc::clone(&tap), start, &before);
        let answers = guard::guarded(registry.router(), &tap).merge(api.router());
        servers.push((address, tap::tapped(answers, &tap)));
    }
    if let Some(address) = settings.prometheus {
        servers.push((address, tap::tapped(prometheus.router(), &tap)));
    }
    let mut running = tokio::task::JoinSet::new();
    let listener = listen(settings.control).await?;
    running.spawn(async move { axum::serve(listener, door).await });
    for (address, router) in servers {
        let listener = listen(address).await?;
        running.spawn(async move { axum::serve(listener, router).await });
    }
    match running.join_next().await {
        Some(Ok(Err(error))) => Err(DatacenterError::Served(error)),
        _ => Err(DatacenterError::Served(io::ErrorKind::UnexpectedEof.into())),
    }
}

async fn listen(address: SocketAddr) -> Result<TcpListener, DatacenterError> {
    TcpListener::bind(address).await.map_err(|error| DatacenterError::Listen(address, error))
}

/// The machines as the journal leaves them: what was done to them is done again, at the same times.
fn machines(
    settings: &Settings,
    start: OffsetDateTime,
    journal: &[Line],
) -> Result<Datacenter, DatacenterError> {
    let storage = settings.machines / 3;
    let roles = [("compute", settings.machines - storage), ("storage", storage)];
    // Broken machines stay so until somebody does something about it.
    let rates = Rates { initialize_takes: Some(INITIALIZE_TAKES), ..Rates::still() };
    let config = DatacenterConfig {
        boot: false,
        rates,
        ..DatacenterConfig::new(settings.seed, start, settings.racks, &roles)
    };
    let mut datacenter = Datacenter::new(config)?;
    for line in journal {
        datacenter.advance(line.time());
        // What was refused then is refused again.
        match &line.what {
            What::Power { rack, on: true } => drop(datacenter.power_on(*rack)),
            What::Power { rack, on: false } => drop(datacenter.kill_rack(*rack)),
            What::State { serial, state, .. } => drop(datacenter.set_state(serial, *state)),
            _ => {}
        }
    }
    Ok(datacenter)
}

fn wandering(names: &[String]) -> Vec<Wandering> {
    let (least, greatest) = BOUNDS;
    names.iter().map(|name| Wandering { name: name.clone(), least, greatest, pace: PACE }).collect()
}

#[cfg(test)]
mod tests {
    use madako_domain::machine::MachineState;

    use super::*;

    #[test]
    fn machines_are_as_the_journal_leaves_them() {
        let settings = Settings {
            registry: None,
            prometheus: None,
            control: ([127, 0, 0, 1], 1).into(),
            machines: 12,
            racks: 3,
            metrics: Vec::new(),
            seed: 1,
            journal: PathBuf::new(),
        };
        let start = OffsetDateTime::UNIX_EPOCH;
        let line = |seconds: i64, what| Line { at: seconds * 1_000_000, what };
        let fresh = machines(&settings, start, &[]).unwrap();
        assert_eq!(fresh.machines().len(), 12);
        let journal = [line(0, What::Started), line(5, What::Power { rack: 1, on: false })];
        let dark = machines(&settings, start, &journal).unwrap();
        let unreachable = |datacenter: &Datacenter| {
            let all = datacenter.machines();
            all.iter().filter(|machine| machine.status.state == MachineState::Unreachable).count()
        };
        assert_eq!((unreachable(&fresh), unreachable(&dark)), (0, 4));
    }
}
