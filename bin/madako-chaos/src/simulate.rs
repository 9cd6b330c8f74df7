//! `madako-chaos simulate`: the whole service in this process, on simulated time, with the faults of a scenario.

#[cfg(debug_assertions)]
mod planting;

use std::collections::BTreeSet;
use std::fmt;
use std::fs::{self, File};
use std::io::BufWriter;
use std::num::ParseIntError;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use anyhow::Context as _;
use madako_console::{Format, Stopwatch, Table, print_note, show_value};
#[cfg(debug_assertions)]
use madako_domain::canary::{Canary, plant_canary};
use madako_domain::invariants::Id;
use madako_faults::{Count, Scenario, Span};
use madako_judges::Verdict;
use madako_simulation::planted::keep_quiet;
use madako_simulation::run::{Options, Outcome, Progress, Report, ShrunkScenario, shrink_scenario, simulate};
use serde_json::{Value, json};

use crate::PROGRAM;
use crate::cli::Failure;
use crate::scenarios::with_faults;

const DEFAULT: &str = "default";

/// Maximum number of runs that search for a smaller failing one: a hundred beginnings of faults take about as many.
const MOST_RUNS: u32 = 200;

/// Violations of one invariant that are shown; the report file has all.
const SHOWN: usize = 5;

/// Runs a scenario in a simulation: the whole service, its store, its registry and its clients in one process, on simulated
/// time.
///
/// One seed determines the whole run. The report of a failed run has the command that repeats it.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  madako-chaos simulate --seed 7 --for 2h\n  \
                        madako-chaos simulate --scenario short-storm --seed 1 --for 10m --trace trace.txt\n  \
                        madako-chaos simulate --seeds 1-100 -o json")]
pub(crate) struct SimulateArgs {
    /// Name of a shipped scenario, or file; - is standard input
    #[arg(long, value_name = "FILE|NAME", default_value = DEFAULT)]
    scenario: String,
    /// Seed of all random choices
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Runs a range of seeds, such as 1-100, with a line for each; to shrink a failed seed, run it alone
    #[arg(long, value_name = "FIRST-LAST", value_parser = parse_seeds,
          conflicts_with_all = ["seed", "trace", "report", "shrink_for"])]
    seeds: Option<(u64, u64)>,
    /// Simulated time in which faults happen
    #[arg(long = "for", value_name = "TIME", default_value = "2h", value_parser = Span::parse_argument)]
    length: Span,
    /// Additional fault, such as 'kill rack=3 at 2h for 30m'
    #[arg(long, value_name = "FAULT")]
    fault: Vec<String>,
    /// Injects only the faults with these numbers in the schedule; none injects no fault
    #[arg(long, value_name = "N,N,...", conflicts_with = "seeds")]
    only: Option<SelectedFaults>,
    /// Time limit, by the real clock, of the search for a smaller failing run; 0s skips the search
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = Span::parse_argument)]
    shrink_for: Span,
    /// Plants a bug in the service, to check that the run finds it
    #[cfg(debug_assertions)]
    #[arg(long, value_name = "NAME", value_parser = parse_canary)]
    canary: Option<Canary>,
    /// Lists the bugs that can be planted, and runs nothing
    #[cfg(debug_assertions)]
    #[arg(long, conflicts_with_all = ["canary", "trace", "report"])]
    canaries: bool,
    /// Ends a run at the first violation of an invariant
    #[arg(long)]
    until_wrong: bool,
    /// File for a trace of all events, one line each
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Directory for the report; created if it is missing
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
    /// Form of the output
    #[arg(short, long, value_name = "FORM", value_enum, default_value_t = Format::Table)]
    output: Format,
}

#[cfg(debug_assertions)]
fn parse_canary(text: &str) -> Result<Canary, String> {
    let names: Vec<&str> = Canary::ALL.iter().map(|canary| canary.name()).collect();
    let found = Canary::ALL.iter().find(|canary| canary.name() == text).copied();
    found.ok_or_else(|| format!("expected one of {}", names.join(", ")))
}

fn parse_seeds(text: &str) -> Result<(u64, u64), String> {
    let parsed =
        text.split_once('-').and_then(|(first, last)| Some((first.parse().ok()?, last.parse().ok()?)));
    parsed
        .filter(|(first, last)| first <= last)
        .ok_or_else(|| "expected FIRST-LAST, such as 1-100".to_owned())
}

pub(crate) fn run(args: &SimulateArgs) -> Result<(), Failure> {
    #[cfg(debug_assertions)]
    if args.canaries {
        return planting::list_bugs(args.output);
    }
    let scenario = with_faults(&args.scenario, &args.fault)?;
    keep_quiet();
    #[cfg(debug_assertions)]
    plant_canary(args.canary);
    match args.seeds {
        Some((first, last)) => simulate_seeds(args, &scenario, first..=last),
        None => simulate_once(args, &scenario),
    }
}

fn simulate_once(args: &SimulateArgs, scenario: &Scenario) -> Result<(), Failure> {
    let trace = args.trace.as_deref().map(create_file).transpose().map_err(Failure::NoPass)?;
    let only = args.only.as_ref().map(|only| only.0.clone());
    let began = Stopwatch::start();
    let options = Options {
        trace: trace.map(|file| Box::new(BufWriter::new(file)) as madako_simulation::history::Trace),
        only,
        progress: Some(progress_printer(args.length)),
        until_wrong: args.until_wrong,
    };
    let report = simulate(scenario, args.seed, args.length, options)
        .map_err(|error| Failure::BadInput(error.into()))?;
    let took = began.elapsed();
    let smaller = shrink_failed_run(args, scenario, &report)?;
    let result = RunResult { report: &report, args, took, smaller: smaller.as_ref() };
    if let Some(directory) = &args.report {
        result.write(directory).map_err(Failure::NoPass)?;
    }
    show_value(args.output, &result.to_json(), |_| result.to_text())?;
    result.exit_result()
}

/// The smallest run that fails in the same way; `None`: this run did not fail, or the user asked for none.
fn shrink_failed_run(
    args: &SimulateArgs,
    scenario: &Scenario,
    report: &Report,
) -> Result<Option<ShrunkScenario>, Failure> {
    let limit = args.shrink_for.duration();
    if report.failure_texts().is_empty() || limit.is_zero() || args.only.is_some() {
        return Ok(None);
    }
    print_note(
        PROGRAM,
        format!("seed {} did not pass; searching for a smaller run that also fails", report.seed),
    );
    let began = Stopwatch::start();
    let shrunk =
        shrink_scenario(scenario, report.clone(), |runs| runs < MOST_RUNS && began.elapsed() < limit);
    shrunk.map(Some).map_err(|error| Failure::BadInput(error.into()))
}

fn simulate_seeds(
    args: &SimulateArgs,
    scenario: &Scenario,
    seeds: std::ops::RangeInclusive<u64>,
) -> Result<(), Failure> {
    let mut lines = Vec::new();
    let (mut failed, mut skipped) = (Vec::new(), Vec::new());
    for seed in seeds {
        let began = Stopwatch::start();
        let options = Options { until_wrong: args.until_wrong, ..Options::default() };
        let report = simulate(scenario, seed, args.length, options)
            .map_err(|error| Failure::BadInput(error.into()))?;
        let result = RunResult { report: &report, args, took: began.elapsed(), smaller: None };
        match report.overall_outcome() {
            Outcome::Passed => {}
            Outcome::Skipped => skipped.push(seed),
            Outcome::Failed => failed.push(seed),
        }
        print_note(PROGRAM, result.summary_line());
        lines.push(result.to_json());
    }
    let count = lines.len();
    show_value(args.output, &lines, |_| {
        format!("{} of {count} seeds passed\n", count - failed.len() - skipped.len())
    })?;
    if !failed.is_empty() {
        return Err(Failure::NoPass(anyhow::anyhow!("the simulation failed with the seeds {failed:?}")));
    }
    if !skipped.is_empty() {
        return Err(Failure::NotInjected(anyhow::anyhow!(
            "not every fault could be injected with the seeds {skipped:?}"
        )));
    }
    Ok(())
}

fn create_file(path: &Path) -> anyhow::Result<File> {
    File::create(path).with_context(|| format!("cannot create the file {}", path.display()))
}

fn progress_printer(length: Span) -> Progress {
    let mut bar = madako_console::Progress::start(PROGRAM, "simulated", "s");
    Box::new(move |simulated| bar.advance(simulated.as_secs(), Some(length.duration().as_secs())))
}

/// A report with the inputs of its run.
struct RunResult<'a> {
    report: &'a Report,
    args: &'a SimulateArgs,
    took: Duration,
    smaller: Option<&'a ShrunkScenario>,
}

impl RunResult<'_> {
    fn simulated_per_real_time(&self) -> f64 {
        self.report.simulated.as_secs_f64() / self.took.as_secs_f64().max(f64::MIN_POSITIVE)
    }

    fn outcome_word(&self) -> &'static str {
        match self.report.overall_outcome() {
            Outcome::Passed => "passed",
            Outcome::Failed => "failed",
            Outcome::Skipped => "skipped: faults could not be injected",
        }
    }

    fn repeat_command(&self) -> String {
        self.command_with(self.args.only.as_ref(), self.args.length)
    }

    /// The command that repeats the smallest run that also failed.
    fn smaller_command(&self) -> Option<String> {
        self.smaller
            .map(|smaller| self.command_with(Some(&SelectedFaults(smaller.only.clone())), smaller.length))
    }

    fn command_with(&self, only: Option<&SelectedFaults>, length: Span) -> String {
        let mut command = "madako-chaos simulate".to_owned();
        if self.args.scenario != DEFAULT {
            command += &format!(" --scenario {}", quote_word(&self.args.scenario));
        }
        command += &format!(" --seed {} --for {length}", self.report.seed);
        for fault in &self.args.fault {
            command += &format!(" --fault {}", quote_word(fault));
        }
        #[cfg(debug_assertions)]
        if let Some(canary) = self.args.canary {
            command += &format!(" --canary {}", canary.name());
        }
        if let Some(only) = only {
            command += &format!(" --only {only}");
        }
        command
    }

    /// The result of a seed on one line.
    fn summary_line(&self) -> String {
        let Report { seed, counts, calm, history, .. } = self.report;
        let calm = calm.after.map_or_else(|| "never calm".to_owned(), |after| format!("calm after {after}"));
        let mut line = format!(
            "seed {seed}: {}, {} faults, {} leader changes, {} commits, {} refused, {calm}, history {:016x}, {:.0} simulated seconds a second",
            self.outcome_word(),
            counts.faults,
            counts.leader_changes,
            counts.commits,
            counts.refused_writes,
            history.0,
            self.simulated_per_real_time()
        );
        for why in self.failure_reasons().into_iter().take(SHOWN) {
            line += &format!("\n  {why}");
        }
        if self.report.overall_outcome() != Outcome::Passed {
            line += &format!("\n  repeat with: {}", self.repeat_command());
        }
        line
    }

    /// All reasons why the run fails.
    fn failure_reasons(&self) -> Vec<String> {
        let report = self.report;
        let mut why = Vec::new();
        for (id, verdict) in &report.invariants {
            why.extend(verdict.violations.iter().map(|what| format!("{}: {what}", id.name())));
        }
        for (promise, verdict) in &report.promises {
            why.extend(verdict.violations.iter().map(|what| format!("{}: {what}", promise.name())));
        }
        why.extend(report.untested.iter().map(|promise| format!("{}: not tested", promise.name())));
        why.extend(report.not_exercised.iter().map(|id| format!("{}: not exercised", id.name())));
        why.extend(report.calm.found.iter().map(|found| format!("at the end: {found}")));
        why.extend(report.shortfalls.iter().map(ToString::to_string));
        why.extend(
            report.skipped.iter().map(|skipped| format!("not injected: {}: {}", skipped.fault, skipped.why)),
        );
        why
    }

    fn to_json(&self) -> Value {
        let report = self.report;
        let counts: serde_json::Map<String, Value> = Count::ALL
            .iter()
            .map(|count| (count.to_string(), json!(report.counts.count_of(*count))))
            .collect();
        json!({
            "scenario": report.scenario,
            "seed": report.seed,
            "for": report.length,
            "passed": report.overall_outcome() == Outcome::Passed,
            "wrong": report.failure_texts(),
            "why_not": self.failure_reasons(),
            "invariants": report.invariants,
            "promises": object_by_name(report.promises.iter().map(|(promise, verdict)| (promise.name(), verdict))),
            "exemptions": object_by_name(report.exemptions.list_uses().into_iter().map(|(it, used)| (it.name(), used))),
            "not_exercised": report.not_exercised.iter().map(|id| id.name()).collect::<Vec<_>>(),
            "calm": {"after": report.calm.after, "within": report.calm.within},
            "counts": counts,
            "calls": report.calls,
            "refused": report.refused,
            "traffic": report.traffic,
            "draws": report.schedule.draws,
            "history": {"hash": format!("{:016x}", report.history.0), "lines": report.history.1},
            "simulated_seconds": report.simulated.as_secs_f64(),
            "simulated_seconds_a_second": self.simulated_per_real_time(),
            "command": self.repeat_command(),
            "smaller_command": self.smaller_command(),
        })
    }

    fn to_text(&self) -> String {
        let report = self.report;
        let mut text = format!(
            "{}: {} of scenario {}, seed {}\n\n",
            self.outcome_word(),
            report.length,
            report.scenario,
            report.seed
        );
        let mut table = Table::new(["INVARIANT", "VERDICT", "JUDGED"]);
        for (id, verdict) in &report.invariants {
            table.add_row([id.name().to_owned(), verdict_text(verdict), verdict.judged.to_string()]);
        }
        let calm = report.calm.after.map_or_else(|| "never".to_owned(), |after| format!("after {after}"));
        table.add_row(["calm".to_owned(), calm, format!("within {}", report.calm.within)]);
        text += &table.to_text();
        text += match report.invariants.get(&Id::I2) {
            Some(verdict) if verdict.judged > 0 => "\n",
            _ => "I2 was not tested: no operation stopped or removed a member of etcd.\n\n",
        };
        let mut table = Table::new(["PROMISE", "VERDICT", "JUDGED"]);
        for (promise, verdict) in &report.promises {
            table.add_row([promise.name().to_owned(), verdict_text(verdict), verdict.judged.to_string()]);
        }
        text += &table.to_text();
        text += "\n";
        let mut table = Table::new(["EXCUSED", "USES", "AT MOST", "LONGEST", "AT MOST", "WHY"]);
        for (exemption, used) in report.exemptions.list_uses() {
            let [lasted, longest] = exemption.format_durations(used);
            table.add_row([
                exemption.name().to_owned(),
                used.uses.to_string(),
                format!("{} an hour", exemption.max_per_hour()),
                lasted,
                longest,
                exemption.reason().to_owned(),
            ]);
        }
        text += &table.to_text();
        text += "\n";
        let mut table = Table::new(["COUNT", "IS"]);
        for count in Count::ALL {
            table.add_row([count.to_string(), report.counts.count_of(*count).to_string()]);
        }
        for (kind, (made, failed)) in &report.calls {
            table.add_row([format!("calls of {kind}"), format!("{made}, {failed} failed")]);
        }
        for (family, count) in &report.refused {
            table.add_row([format!("refused transactions of {family}"), count.to_string()]);
        }
        for (what, count) in &report.traffic {
            table.add_row([what.clone(), count.to_string()]);
        }
        text += &table.to_text();
        text += "\n";
        for draw in &report.schedule.draws {
            text += &format!("{draw}\n");
        }
        let why = self.failure_reasons();
        if !why.is_empty() {
            text += "\nReasons:\n";
            for why in why {
                text += &format!("  {why}\n");
            }
            text += &format!("Repeat with: {}\n", self.repeat_command());
        }
        if let (Some(smaller), Some(command)) = (self.smaller, self.smaller_command()) {
            text += &format!("\nAfter {} runs, this smaller run also fails: {command}\n", smaller.runs);
            for number in &smaller.only {
                let injection = smaller.report.schedule.injections.get(*number);
                let injection_text = injection.map(|it| {
                    let ends = it.ends.map(|ends| format!(" to {ends}")).unwrap_or_default();
                    format!("{} {} at {}{ends}", it.act, it.target, it.begins)
                });
                text += &format!("  {number}: {}\n", injection_text.unwrap_or_default());
            }
        }
        text += &format!(
            "\n{:.0} s simulated in {:.1} s: {:.0} simulated seconds a second. History {:016x}, {} lines.\n",
            report.simulated.as_secs_f64(),
            self.took.as_secs_f64(),
            self.simulated_per_real_time(),
            report.history.0,
            report.history.1
        );
        text
    }

    fn write(&self, directory: &Path) -> anyhow::Result<()> {
        fs::create_dir_all(directory)
            .with_context(|| format!("cannot create the directory {}", directory.display()))?;
        let put = |name: &str, text: String| {
            let path = directory.join(name);
            fs::write(&path, text)
                .with_context(|| format!("cannot write the file {} of the report", path.display()))
        };
        put("report.json", format!("{:#}\n", self.to_json()))?;
        put("report.txt", self.to_text())?;
        put("schedule.txt", self.report.schedule.to_string())?;
        put("last.txt", self.report.last.clone())
    }

    fn exit_result(&self) -> Result<(), Failure> {
        let failure = || {
            anyhow::anyhow!("seed {} did not pass; repeat with: {}", self.report.seed, self.repeat_command())
        };
        match self.report.overall_outcome() {
            Outcome::Passed => Ok(()),
            Outcome::Failed => Err(Failure::NoPass(failure())),
            Outcome::Skipped => Err(Failure::NotInjected(failure())),
        }
    }
}

/// The verdict on an invariant or a promise in words.
fn verdict_text(verdict: &Verdict) -> String {
    match (verdict.violations.len(), verdict.judged) {
        (0, 0) => "not exercised".to_owned(),
        (0, _) => "held".to_owned(),
        (count, _) => format!("violated, {count} times"),
    }
}

/// An object with a field for each name.
fn object_by_name<T: serde::Serialize>(things: impl Iterator<Item = (&'static str, T)>) -> Value {
    things.map(|(name, thing)| (name.to_owned(), json!(thing))).collect::<serde_json::Map<_, _>>().into()
}

/// Numbers of the beginnings of faults that happen.
#[derive(Debug, Clone, PartialEq, Eq)]
struct SelectedFaults(BTreeSet<usize>);

impl FromStr for SelectedFaults {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, ParseIntError> {
        if text == "none" {
            return Ok(Self(BTreeSet::new()));
        }
        text.split(',').map(str::parse).collect::<Result<_, _>>().map(Self)
    }
}

impl fmt::Display for SelectedFaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none");
        }
        let numbers: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&numbers.join(","))
    }
}

/// Quotes a word for a shell.
fn quote_word(word: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./=,:".contains(letter);
    if word.chars().all(plain) { word.to_owned() } else { format!("'{}'", word.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn option_for_selected_faults_parses_its_own_output() {
        for (numbers, told) in [(&[][..], "none"), (&[7], "7"), (&[0, 12, 3], "0,3,12")] {
            let only = SelectedFaults(numbers.iter().copied().collect());
            assert_eq!(only.to_string(), told);
            assert_eq!(told.parse(), Ok(only));
        }
        for wrong in ["", "1,", "all", "-1"] {
            assert!(wrong.parse::<SelectedFaults>().is_err(), "{wrong}");
        }
    }
}
