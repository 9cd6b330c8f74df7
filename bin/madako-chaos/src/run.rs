//! `madako-chaos run`: a scenario on real processes.

use std::path::PathBuf;

use anyhow::{Context as _, anyhow};
use madako_chaos_harness::report::{Outcome, Report};
use madako_chaos_harness::{NetworkChoice, Options, Programs, RunError, WorldError, find_on_path};
use madako_console::{Format, print_note, show_value};
use madako_faults::{Scenario, Span, WRITTEN};

use crate::PROGRAM;
use crate::cli::Failure;
use crate::datacenter::SystemClock;
use crate::scenarios::with_faults;

/// The default scenario: processes can have all of its faults.
const DEFAULT_SCENARIO: &str = "two-minutes";
/// The longest run: a week.
const LONGEST: Span = Span::from_days(7);

/// Runs a scenario on real processes, and checks the invariants from outside.
///
/// The command starts the service's instances, a store and a simulated data center, each in a network namespace of its
/// own if the machine allows it. It injects the faults of the scenario while clients work, and waits until the system
/// is calm.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  madako-chaos run --seed 1 --for 2m\n  \
                        madako-chaos run --scenario leader-stands-still --seed 7 --for 10m --report chaos-report")]
pub(crate) struct RunArgs {
    /// File, or name of a shipped scenario; - is standard input
    #[arg(long, value_name = "FILE|NAME", default_value = DEFAULT_SCENARIO)]
    scenario: String,
    /// Seed of all random choices
    #[arg(long, value_name = "NUMBER")]
    seed: u64,
    /// Time in which faults begin; then the run waits for calm
    #[arg(long = "for", value_name = "DURATION", value_parser = parse_length)]
    length: Span,
    /// Additional fault, on one line; may be given several times
    #[arg(long = "fault", value_name = "FAULT")]
    faults: Vec<String>,
    /// File for a trace of all observations, one line each
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Kind of the network between processes
    #[arg(long, value_name = "KIND", value_enum, default_value_t)]
    network: Network,
    /// Directory for report, history and logs
    #[arg(long, value_name = "DIRECTORY")]
    report: Option<PathBuf>,
    /// The service's program [default: madako beside this program]
    #[arg(long, value_name = "FILE")]
    madako: Option<PathBuf>,
    /// Form of the output
    #[arg(short, long, value_name = "FORM", value_enum, default_value_t = Format::Table)]
    output: Format,
}

/// Kind of the network between processes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
enum Network {
    /// Namespaces if possible, otherwise proxies
    #[default]
    Auto,
    /// A network namespace for each process, in which nft drops packets; needs root, iproute2, nftables and util-linux
    Namespaces,
    /// Proxies on loopback
    Proxies,
}

fn parse_length(text: &str) -> Result<Span, String> {
    let span = Span::parse(text).filter(|span| (Span::from_seconds(1)..=LONGEST).contains(span));
    span.ok_or_else(|| format!("expected {WRITTEN}, from 1s to {LONGEST}"))
}

pub(crate) fn run(args: RunArgs) -> Result<(), Failure> {
    let scenario = with_faults(&args.scenario, &args.faults)?;
    if let Some(client) = scenario.clients.iter().find(|client| client.kind.is_simulated_only()) {
        let why = anyhow!(
            "clients: got {}, expected clients of real processes: placement, etcd-watch, registry; \
             `madako-chaos simulate` has the others",
            client.kind
        );
        return Err(Failure::BadInput(why));
    }
    if scenario.world.runs_operations() {
        let why = anyhow!(
            "world.operations: got {}, expected none: only `madako-chaos simulate` has nodes",
            scenario.world.operations
        );
        return Err(Failure::BadInput(why));
    }
    let programs = find_programs(args.madako, &scenario).map_err(Failure::NotInjected)?;
    let network = match args.network {
        Network::Auto => NetworkChoice::Auto,
        Network::Namespaces => NetworkChoice::Namespaces,
        Network::Proxies => NetworkChoice::Proxies,
    };
    let RunArgs { seed, length, report, trace, .. } = args;
    let options = Options { scenario, seed, length, network, programs, report, trace };
    let report = run_to_report(&options)?;
    show_value(args.output, &report, |report: &Report| report.to_string())?;
    fail_unless_passed(report.outcome, &report.reason_of_outcome())
}

fn fail_unless_passed(outcome: Outcome, why: &[String]) -> Result<(), Failure> {
    let no_pass = || anyhow!("the run did not pass: {}", why.join("; "));
    match outcome {
        Outcome::Passed => Ok(()),
        Outcome::Failed => Err(Failure::NoPass(no_pass())),
        Outcome::Skipped => Err(Failure::NotInjected(no_pass())),
    }
}

/// Runs the scenario to its end, or to a signal's.
fn run_to_report(options: &Options) -> Result<Report, Failure> {
    // A single thread that lives as long as this process: the kernel ends the children with the thread that started
    // them.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let tell = |line: &str| print_note(PROGRAM, line);
        tokio::select! {
            report = madako_chaos_harness::run(options, &SystemClock, &tell) => report.map_err(failure_of_run),
            () = wait_for_signal() => Err(Failure::NoPass(anyhow!("a signal ended the run before it had a result"))),
        }
    })
}

/// An unavailable network is something that the run needs and lacks.
fn failure_of_run(error: RunError) -> Failure {
    match error {
        RunError::World(WorldError::Network(_)) => Failure::NotInjected(error.into()),
        // As for a simulation: the scenario has more faults than allowed.
        RunError::Schedule(_) => Failure::BadInput(error.into()),
        error => Failure::NoPass(error.into()),
    }
}

async fn wait_for_signal() {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut interrupt), Ok(mut terminate)) =
        (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}

fn find_programs(madako: Option<PathBuf>, scenario: &Scenario) -> anyhow::Result<Programs> {
    let own = std::env::current_exe()
        .context("cannot read the path of this program, beside which the program madako is")?;
    let madako = madako.unwrap_or_else(|| own.with_file_name("madako"));
    if !madako.is_file() {
        return Err(anyhow!("{} does not exist: name the service's program with --madako", madako.display()));
    }
    let etcd = find_on_path("etcd");
    let etcd = match (etcd, scenario.world.store) {
        (Some(etcd), _) => etcd,
        (None, madako_faults::Store::Etcd) => {
            return Err(anyhow!("etcd is not installed, but the scenario needs it (Debian: etcd-server)"));
        }
        (None, madako_faults::Store::Embedded) => PathBuf::new(),
    };
    Ok(Programs { madako, etcd, own })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_passed_run_exits_with_0() {
        let why = ["I9 was broken 1 times".to_owned(), "faults: 0".to_owned()];
        assert!(fail_unless_passed(Outcome::Passed, &[]).is_ok());
        for (outcome, code) in [(Outcome::Failed, 1), (Outcome::Skipped, 3)] {
            let (is, error) = fail_unless_passed(outcome, &why).unwrap_err().into_parts();
            assert_eq!((is, error.to_string()), (code, format!("the run did not pass: {}", why.join("; "))));
        }
    }
}
