//! `madako-chaos run`: a scenario on real processes.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};
use madako_chaos_harness::report::{Outcome, Report};
use madako_chaos_harness::{Options, Programs};
use madako_console::{Format, note, read_text, show, shown};
use madako_faults::{Fault, MAX_BYTES, Scenario, Span, WRITTEN, shipped};

use crate::PROGRAM;
use crate::cli::Failure;
use crate::datacenter::SystemClock;

/// The scenario that is run where none is named: one that shows most within two minutes.
const DEFAULT_SCENARIO: &str = "short-storm";
/// The longest run: a week, which is longer than anybody waits.
const LONGEST: Span = Span::days(7);

/// Runs a scenario on real processes, and judges from outside what happened.
///
/// It starts the service's instances, a store, and a simulated data center, all on loopback; makes fail what the
/// scenario says, while clients go on working; and waits until everything is calm.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  madako-chaos run --seed 1 --for 2m\n  \
                        madako-chaos run --scenario leader-stands-still --seed 7 --for 10m --report chaos-report")]
pub(crate) struct RunArgs {
    /// A file, or the name of a scenario that ships; - is standard input
    #[arg(long, value_name = "FILE|NAME", default_value = DEFAULT_SCENARIO)]
    scenario: String,
    /// Chooses what is left to chance
    #[arg(long, value_name = "NUMBER")]
    seed: u64,
    /// How long faults begin; calm is waited for after that
    #[arg(long = "for", value_name = "DURATION", value_parser = parse_length)]
    length: Span,
    /// One more fault, on one line; may be given several times
    #[arg(long = "fault", value_name = "FAULT")]
    faults: Vec<String>,
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

fn parse_length(text: &str) -> Result<Span, String> {
    let span = Span::parse(text).filter(|span| (Span::seconds(1)..=LONGEST).contains(span));
    span.ok_or_else(|| format!("expected {WRITTEN}, from 1s to {LONGEST}"))
}

/// Runs the command.
pub(crate) fn run(args: RunArgs) -> Result<(), Failure> {
    let scenario = scenario(&args.scenario, &args.faults)?;
    let programs = programs(args.madako, &scenario).map_err(Failure::NotInjected)?;
    let options = Options { scenario, seed: args.seed, length: args.length, programs, report: args.report };
    let report = finished(&options).map_err(Failure::NoPass)?;
    show(args.output, &report, |report: &Report| report.to_string())?;
    match report.outcome {
        Outcome::Passed => Ok(()),
        Outcome::Failed => Err(Failure::NoPass(anyhow!("the run is no pass: {}", why(&report)))),
        Outcome::Skipped => Err(Failure::NotInjected(anyhow!("the run is no pass: {}", why(&report)))),
    }
}

fn why(report: &Report) -> String {
    let broken = report.verdicts.0.iter().filter(|(_, verdict)| verdict.broken > 0);
    let broken = broken.map(|(name, verdict)| format!("{name} was broken {} times", verdict.broken));
    let short = report.shortfalls.iter().map(ToString::to_string);
    broken.chain(short).collect::<Vec<_>>().join("; ")
}

/// Runs it to its end, or to a signal's.
fn finished(options: &Options) -> anyhow::Result<Report> {
    // On one thread, which lives as long as this process: what it starts ends with it.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let tell = |line: &str| note(PROGRAM, line);
        tokio::select! {
            report = madako_chaos_harness::run(options, &SystemClock, &tell) => Ok(report?),
            () = signalled() => Err(anyhow!("ended by a signal")),
        }
    })
}

async fn signalled() {
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

/// The scenario that is in a file or ships, with more faults.
pub(crate) fn scenario(named: &str, faults: &[String]) -> Result<Scenario, Failure> {
    let mut scenario = match shipped(named) {
        Some(shipped) => shipped.scenario().map_err(|error| Failure::BadInput(error.into()))?,
        None => {
            let text = read_text(named, MAX_BYTES).map_err(Failure::BadInput)?;
            let wrong = |error| Failure::BadInput(anyhow::Error::new(error).context(shown(named).to_owned()));
            Scenario::parse(&text).map_err(wrong)?
        }
    };
    for line in faults {
        let fault: Fault = line.parse().map_err(|error| {
            Failure::BadInput(anyhow::Error::new(error).context(format!("--fault {line:?}")))
        })?;
        scenario.add(fault).map_err(|error| Failure::BadInput(error.into()))?;
    }
    Ok(scenario)
}

fn programs(madako: Option<PathBuf>, scenario: &Scenario) -> anyhow::Result<Programs> {
    let own = std::env::current_exe().context("this program cannot be found")?;
    let madako = madako.unwrap_or_else(|| own.with_file_name("madako"));
    if !madako.is_file() {
        return Err(anyhow!("{} is not there: name the service's program with --madako", madako.display()));
    }
    let etcd = on_path("etcd");
    let etcd = match (etcd, scenario.world.store) {
        (Some(etcd), _) => etcd,
        (None, madako_faults::Store::Etcd) => {
            return Err(anyhow!(
                "etcd is not installed, and the scenario's store is one (Debian: etcd-server)"
            ));
        }
        (None, madako_faults::Store::Embedded) => PathBuf::new(),
    };
    Ok(Programs { madako, etcd, own })
}

fn on_path(program: &str) -> Option<PathBuf> {
    let places = std::env::var_os("PATH")?;
    std::env::split_paths(&places)
        .map(|place: PathBuf| place.join(program))
        .find(|file: &PathBuf| Path::is_file(file))
}
