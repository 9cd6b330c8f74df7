//! `madako-chaos datacenter`: the simulated data center as a process.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use madako_chaos_harness::datacenter::{Settings, serve};
use madako_protocol::ports::Clock;
use time::OffsetDateTime;

use crate::cli::Failure;

/// Serves a simulated data center: a registry of machines with the API server of their Kubernetes, and a provider of metrics.
///
/// The control API injects faults: POST /power, /state, /corrupt and /clock, GET /machines. It listens on loopback, or
/// at an address of 198.18.0.0/15, as in the namespaces of a run.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  madako-chaos datacenter --registry 127.0.0.1:10080 --control 127.0.0.1:10081 \
                        --machines 60 --racks 6 --seed 1 --journal datacenter.jsonl"
)]
pub(crate) struct DatacenterArgs {
    /// Listen address of the registry
    #[arg(long, value_name = "ADDRESS:PORT", required_unless_present = "prometheus")]
    registry: Option<SocketAddr>,
    /// Listen address of the metrics provider
    #[arg(long, value_name = "ADDRESS:PORT")]
    prometheus: Option<SocketAddr>,
    /// Listen address of the control API
    #[arg(long, value_name = "ADDRESS:PORT")]
    control: SocketAddr,
    /// Number of machines
    #[arg(long, value_name = "NUMBER", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    machines: u32,
    /// Number of racks
    #[arg(long, value_name = "NUMBER", default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    racks: u32,
    /// Names of the provider's metrics, separated by commas
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "")]
    metrics: Vec<String>,
    /// Seed of the history
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    /// Journal of answers and faults, one line each; a restart with it restores the state
    #[arg(long, value_name = "FILE")]
    journal: PathBuf,
}

pub(crate) struct SystemClock;

impl Clock for SystemClock {
    #[allow(clippy::disallowed_methods, reason = "the edge of a program: everything else takes a Clock")]
    fn now(&self) -> OffsetDateTime {
        OffsetDateTime::now_utc()
    }
}

pub(crate) fn run(args: DatacenterArgs) -> Result<(), Failure> {
    let settings = Settings {
        registry: args.registry,
        prometheus: args.prometheus,
        control: args.control,
        machines: args.machines,
        racks: args.racks,
        metrics: args.metrics.into_iter().filter(|name| !name.is_empty()).collect(),
        seed: args.seed,
        journal: args.journal,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let served = runtime.block_on(serve(settings, Arc::new(SystemClock)));
    served.map_err(|error| Failure::NoPass(error.into()))
}
