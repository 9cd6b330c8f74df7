//! The simulated data center as a process: a registry of machines, the API server of a simulated Kubernetes with these
//! machines as nodes, a provider of metrics, and a control API for faults.
//!
//! Guarantees: every answer that the service may act on, every change from outside, and every request to the registry
//! other than a search is in the journal before the answer is sent. A restart with the same journal restores machines,
//! nodes and pods.
//!
//! Does not: authenticate requests to the control API. It is meant for loopback and the namespaces of runs, and refuses
//! other addresses.

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
    Datacenter, DatacenterConfig, RandomWalkMetric, Rates, SimulatedPrometheus, SimulatedRegistry,
};
use madako_json::input::InputError;
use madako_protocol::ports::Clock;
use time::OffsetDateTime;
use tokio::net::TcpListener;

pub(crate) use self::caller::monotonic_nanoseconds;
pub use self::control::{
    ClockChange, CorruptionSwitch, ListedMachine, PowerState, RepairRequest, StateRequest,
};
pub use self::journal::{Journal, JournalError, Line, LineContent, read_journal};
pub(crate) use self::kubernetes::{PROTECTED, base_path_of_instance};
use self::tap::AnswerTap;
pub use self::tap::CorruptAnswer;
use crate::network::{RANGE_SHOWN, is_in_run_range};

/// Start-up time of a machine after its power returns.
const INITIALIZE_TAKES: Duration = Duration::from_secs(5);
/// Time between two turning points of a metric, and its bounds.
const PACE: Duration = Duration::from_secs(40);
const BOUNDS: (f64, f64) = (5.0, 95.0);

#[derive(Debug, Clone)]
pub struct Settings {
    pub registry: Option<SocketAddr>,
    pub prometheus: Option<SocketAddr>,
    /// Address of the control API: on loopback, or reachable only from a run's namespaces.
    pub control: SocketAddr,
    pub machines: u32,
    pub racks: u32,
    pub metrics: Vec<String>,
    pub seed: u64,
    pub journal: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub enum DatacenterError {
    /// The control API must be on loopback or in a run's namespaces.
    #[error("the control API cannot listen on {0}: expected an address of loopback or of {RANGE_SHOWN}")]
    Open(SocketAddr),
    #[error("a server of the simulated data center cannot listen on {0}")]
    Listen(SocketAddr, #[source] io::Error),
    /// Settings that make no data center.
    #[error(transparent)]
    Settings(#[from] InputError),
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error("an HTTP server of the simulated data center ended before the run did")]
    Served(#[source] io::Error),
}

/// Name of the metric of a cluster's free share.
#[must_use]
pub fn metric_of(cluster: &str) -> String {
    format!("free_{}", cluster.replace('-', "_"))
}

/// Serves until the future is dropped.
pub async fn serve(settings: Settings, clock: Arc<dyn Clock>) -> Result<(), DatacenterError> {
    let control_ip = settings.control.ip();
    if !control_ip.is_loopback() && !is_in_run_range(control_ip) {
        return Err(DatacenterError::Open(settings.control));
    }
    let before = read_journal(&settings.journal)?;
    let journal = Journal::open(&settings.journal, Arc::clone(&clock))?;
    let start = match before.first() {
        Some(line) => line.wall_clock_time(),
        None => journal.write(LineContent::Started)?,
    };
    let registry = SimulatedRegistry::new(recorded_machines(&settings, start, &before)?, Arc::clone(&clock));
    let tap = Arc::new(AnswerTap::new(journal));
    let prometheus = SimulatedPrometheus::new(settings.seed, clock, wandering_metrics(&settings.metrics));
    let control_router = control::make_router(registry.clone(), Arc::clone(&tap), &before);
    let mut servers = Vec::new();
    if let Some(address) = settings.registry {
        let api =
            kubernetes::ApiServer::new(settings.seed, registry.clone(), Arc::clone(&tap), start, &before);
        let answers = guard::guard_router(registry.router(), &tap).merge(api.make_router());
        servers.push((address, tap::tap_router(answers, &tap)));
    }
    if let Some(address) = settings.prometheus {
        servers.push((address, tap::tap_router(prometheus.router(), &tap)));
    }
    let mut running = tokio::task::JoinSet::new();
    let listener = listen(settings.control).await?;
    running.spawn(async move { axum::serve(listener, control_router).await });
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

/// Rebuilds the machines from the journal: every change is repeated at its time.
fn recorded_machines(
    settings: &Settings,
    start: OffsetDateTime,
    journal: &[Line],
) -> Result<Datacenter, DatacenterError> {
    let storage = settings.machines / 3;
    let roles = [("compute", settings.machines - storage), ("storage", storage)];
    // A broken machine stays broken until a repair or an operator changes it.
    let rates = Rates { initialize_takes: Some(INITIALIZE_TAKES), ..Rates::no_events() };
    let config = DatacenterConfig {
        boot: false,
        rates,
        ..DatacenterConfig::new(settings.seed, start, settings.racks, &roles)
    };
    let mut datacenter = Datacenter::new(config)?;
    for line in journal {
        datacenter.advance(line.wall_clock_time());
        // A change that was refused then is refused again.
        match &line.what {
            LineContent::Power { rack, on: true } => drop(datacenter.power_on(*rack)),
            LineContent::Power { rack, on: false } => drop(datacenter.kill_rack(*rack)),
            LineContent::State { serial, state, .. } => drop(datacenter.set_state(serial, *state)),
            _ => {}
        }
    }
    Ok(datacenter)
}

fn wandering_metrics(names: &[String]) -> Vec<RandomWalkMetric> {
    let (least, greatest) = BOUNDS;
    names.iter().map(|name| RandomWalkMetric { name: name.clone(), least, greatest, pace: PACE }).collect()
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
        let fresh = recorded_machines(&settings, start, &[]).unwrap();
        assert_eq!(fresh.machines().len(), 12);
        let journal = [line(0, LineContent::Started), line(5, LineContent::Power { rack: 1, on: false })];
        let dark = recorded_machines(&settings, start, &journal).unwrap();
        let unreachable = |datacenter: &Datacenter| {
            let all = datacenter.machines();
            all.iter().filter(|machine| machine.status.state == MachineState::Unreachable).count()
        };
        assert_eq!((unreachable(&fresh), unreachable(&dark)), (0, 4));
    }
}
