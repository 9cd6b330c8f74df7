//! `madako rehearse`: simulates the service on a copy of the running system while faults happen to it. Changes nothing.
//!
//! Flow: [`inputs`] reads the running system once, through read-only clients; then the copy is simulated on a runtime
//! of its own with simulated time; [`show_value`] reports the result.

mod inputs;
mod show;

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use madako_console::{Stopwatch, display_name, read_text};
use madako_faults::{Expectations, Fault, MAX_BYTES, SHIPPED, Scenario, Span, World, find_shipped};
use madako_json::input::InputError;
use madako_protocol::ports::Clock;
use madako_simulation::history::Trace;
use madako_simulation::planted::keep_quiet;
use madako_simulation::run::rehearsal::{Assumptions, check_targets, rehearse_schedule, world_of_copy};
use madako_simulation::run::{Options, Outcome, Progress, SimulateError};
use madako_supervisor::config::Config;
use tokio::runtime::Runtime;
use tracing::subscriber::NoSubscriber;

use self::show::RehearsalView;
use crate::cli::{Global, whole_number};
use crate::failure::Failure;
use crate::output::{Format, PROGRAM, show_value};
use crate::serve_args::{INTERVALS, SESSION_TTLS, parse_bounded};

/// Bounds of the duration of a repair command: below, nothing is visible; above, every deadline is over.
const COMMANDS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(24 * 3600));

/// Simulates faults on a copy of the running system, and reports the reactions of the service; changes nothing.
///
/// The command reads the store, the registry and the metrics providers once. Then the service runs on the copy in
/// simulated time, with simulated machines, commands, drains and metrics that start in the copied state. Nodes are left
/// out: no operations run, and faults reach machines through the registry alone. The report lists plans, repairs, moved
/// applications, the time until nothing changes any more, and the assumptions.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  madako rehearse --for 1d --scenario rack-power-loss\n  \
                        madako rehearse --for 30d --seed 7 --scenario storm.yml -o json")]
pub(crate) struct RehearseArgs {
    /// Simulated time in which faults happen
    #[arg(long = "for", value_name = "TIME", default_value = "2h", value_parser = Span::parse_argument)]
    length: Span,
    /// Seed of all random choices
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// A fault, such as 'kill rack=3 at 2h for 30m'; may be given several times
    #[arg(long, value_name = "FAULT")]
    fault: Vec<String>,
    /// File with faults, or name of a shipped scenario; of its world only the number of instances counts
    #[arg(long, value_name = "FILE|NAME")]
    scenario: Option<String>,
    /// Time between polls of the registry [default: as the running system has it, or 1m]
    #[arg(long, value_name = "DURATION", value_parser = |text: &str| parse_bounded(text, INTERVALS))]
    interval: Option<Duration>,
    /// Time to live of the leader's session [default: as the running system has it, or 60s]
    #[arg(long, value_name = "DURATION", value_parser = |text: &str| parse_bounded(text, SESSION_TTLS))]
    session_ttl: Option<Duration>,
    /// Mean duration of a repair command
    #[arg(long, value_name = "DURATION", value_parser = |text: &str| parse_bounded(text, COMMANDS), default_value = "10s",
          help_heading = "Assumptions")]
    command_takes: Duration,
    /// Percentage of repair commands that heal their machine
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent, default_value = "100", help_heading = "Assumptions")]
    heals: u8,
    /// Maximum change of a metric each minute, in percent of its range
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent, default_value = "1", help_heading = "Assumptions")]
    walk: u8,
    /// File for a trace of all events, one line each
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Form of the output
    #[arg(short, long, value_name = "FORM", value_enum, default_value_t = Format::Table)]
    output: Format,
}

fn parse_percent(text: &str) -> Result<u8, String> {
    whole_number(text, 0..=100).and_then(|number| u8::try_from(number).map_err(|error| error.to_string()))
}

/// Runs the command: the runtime reads the system, and the rehearsal has one of its own.
pub(crate) fn run(
    args: &RehearseArgs,
    global: &Global,
    clock: &dyn Clock,
    runtime: &Runtime,
) -> Result<(), Failure> {
    // Arguments are validated before the first connection, as far as possible.
    let faults = args.parse_faults()?;
    begin_in_time(&faults, args.length)?;
    let text = args.scenario.as_deref().map(scenario_text).transpose()?;
    let config = Config::load(global.config.as_deref())?;
    let inputs = runtime.block_on(inputs::gather_inputs(args, &config, clock))?;
    let copied = &inputs.copied;
    let scenario = args.play_rehearsal(faults, text, &world_of_copy(copied, &inputs.service))?;
    begin_in_time(&scenario.faults, args.length)?;
    check_targets(copied, &scenario)?;
    // As late as this: the trace of an earlier rehearsal stays until a new one begins.
    let trace = args.trace.as_deref().map(create_trace).transpose()?;

    let assumed = Assumptions {
        command_takes: args.command_takes,
        heals_percent: args.heals,
        walk_percent: f64::from(args.walk),
    };
    let options = Options { trace, progress: Some(progress_printer(args.length)), ..Options::default() };
    keep_quiet();
    let began = Stopwatch::start();
    // The simulated actors' logs are in the trace; the log belongs to the real process.
    let rehearsal = tracing::subscriber::with_default(NoSubscriber::default(), || {
        let (copied, service) = (inputs.copied.clone(), inputs.service.clone());
        rehearse_schedule(copied, service, assumed, &scenario, (args.seed, args.length), options)
    });
    let rehearsal = rehearsal.map_err(failure_before_start)?;
    let view = RehearsalView {
        args,
        scenario: &scenario,
        inputs: &inputs,
        rehearsal: &rehearsal,
        took: began.elapsed(),
    };
    show_value(args.output, &view.to_json(), |_| view.to_text())?;
    match rehearsal.overall_outcome() {
        Outcome::Passed => Ok(()),
        Outcome::Failed => {
            Err(Failure::failed(format_args!("the rehearsal failed: {}", view.failure_texts().join("; "))))
        }
        Outcome::Skipped => Err(Failure::NotRehearsed(anyhow::anyhow!(
            "the rehearsal could not inject every fault: {}",
            view.skipped_faults().join("; ")
        ))),
    }
}

/// An error of the arguments, or of the inputs.
fn failure_before_start(error: SimulateError) -> Failure {
    match error {
        SimulateError::Machines(_) | SimulateError::Contents(_) => Failure::NotRehearsed(error.into()),
        SimulateError::Trace(_) => Failure::Failed(error.into()),
        SimulateError::Etcd
        | SimulateError::TooShort { .. }
        | SimulateError::Schedule(_)
        | SimulateError::World(_) => Failure::BadInput(error.into()),
    }
}

/// The text of a scenario, and its name in messages.
fn scenario_text(name: &str) -> Result<(String, String), Failure> {
    match find_shipped(name) {
        Some(shipped) => Ok((name.to_owned(), shipped.text.to_owned())),
        None => {
            let named = |error: anyhow::Error| {
                let names: Vec<&str> = SHIPPED.iter().map(|shipped| shipped.name).collect();
                anyhow::anyhow!("{error:#}; the shipped scenarios are {}", names.join(", "))
            };
            let text = read_text(name, MAX_BYTES).map_err(|error| Failure::BadInput(named(error)))?;
            Ok((display_name(name).to_owned(), text))
        }
    }
}

/// Refuses faults that begin after the end of the rehearsal, and would be ignored silently.
fn begin_in_time(faults: &[Fault], length: Span) -> Result<(), Failure> {
    let late = faults.iter().filter_map(|fault| Some((fault, fault.when.first_time()?)));
    let late = late.filter(|(_, first)| *first >= length);
    let late: Vec<String> =
        late.map(|(fault, first)| format!("the fault \"{fault}\" would begin at {first}")).collect();
    if late.is_empty() {
        return Ok(());
    }
    Err(Failure::bad_input(format_args!(
        "{}, and the rehearsal ends after {length}: let it begin earlier, or rehearse for longer (--for)",
        late.join("; ")
    )))
}

fn create_trace(path: &Path) -> Result<Trace, Failure> {
    let file = File::create(path).with_context(|| format!("cannot create the file {}", path.display()));
    Ok(Box::new(BufWriter::new(file.map_err(Failure::BadInput)?)))
}

impl RehearseArgs {
    fn parse_faults(&self) -> Result<Vec<Fault>, InputError> {
        self.fault.iter().map(|line| Fault::parse(line)).collect()
    }

    /// The scenario for a world.
    fn play_rehearsal(
        &self,
        faults: Vec<Fault>,
        text: Option<(String, String)>,
        world: &World,
    ) -> Result<Scenario, Failure> {
        let mut scenario = match text {
            Some((name, text)) => Scenario::parse_in(&text, world)
                .map_err(|error| Failure::BadInput(anyhow::Error::new(error).context(name)))?,
            None => Scenario {
                name: "rehearsal".to_owned(),
                world: *world,
                clients: Vec::new(),
                faults: Vec::new(),
                expect: Expectations::default(),
            },
        };
        for fault in faults {
            scenario.add(fault)?;
        }
        Ok(scenario)
    }
}

fn progress_printer(length: Span) -> Progress {
    let mut bar = madako_console::Progress::start(PROGRAM, "rehearsed", "s");
    Box::new(move |simulated| bar.advance(simulated.as_secs(), Some(length.duration().as_secs())))
}
