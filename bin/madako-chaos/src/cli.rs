//! The command line of `madako-chaos`: commands, options, and failures with their exit codes.

use std::ffi::OsString;

use clap::{Parser, Subcommand};

use crate::datacenter::DatacenterArgs;
use crate::run::RunArgs;
use crate::scenarios::ScenariosArgs;
use crate::simulate::SimulateArgs;

/// The exit codes of every command, for the help.
const EXIT_CODES: [(u8, &str); 4] = [
    (0, "done; a run passed"),
    (FAILED, "a run did not pass or did not start; standard output cannot be written"),
    (BAD_INPUT, "bad input: the command line, or a file"),
    (NOT_INJECTED, "a fault could not be injected, or a program that a run needs is not installed"),
];

const FAILED: u8 = 1;
const BAD_INPUT: u8 = 2;
const NOT_INJECTED: u8 = 3;

/// Runs scenarios of faults against Madako.
///
/// A scenario is a YAML file; docs/chaos.md describes the language.
#[derive(Debug, Parser)]
#[command(
    name = "madako-chaos",
    version,
    args_override_self = true,
    max_term_width = 100,
    subcommand_required = true,
    arg_required_else_help = true,
    after_help = madako_console::exit_codes(&EXIT_CODES)
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Scenarios(ScenariosArgs),
    Simulate(SimulateArgs),
    Run(RunArgs),
    Datacenter(DatacenterArgs),
}

impl Cli {
    /// Parses a command line that begins with the program's name.
    ///
    /// # Errors
    /// clap's error, or the requested help.
    pub(crate) fn read(
        line: impl IntoIterator<Item = impl Into<OsString> + Clone>,
    ) -> Result<Self, clap::Error> {
        Self::try_parse_from(line)
    }
}

#[derive(Debug)]
pub(crate) enum Failure {
    /// Standard output cannot be written.
    Output(std::io::Error),
    /// An argument or an input file is invalid.
    BadInput(anyhow::Error),
    /// A run failed or did not begin.
    NoPass(anyhow::Error),
    /// A fault could not be injected, and nothing else is wrong.
    NotInjected(anyhow::Error),
}

impl Failure {
    /// The exit code and the message.
    pub(crate) fn into_parts(self) -> (u8, anyhow::Error) {
        match self {
            Self::Output(error) => (FAILED, error.into()),
            Self::BadInput(error) => (BAD_INPUT, error),
            Self::NoPass(error) => (FAILED, error),
            Self::NotInjected(error) => (NOT_INJECTED, error),
        }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::Output(error)
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_clap_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_has_an_example_and_each_is_valid() {
        for command in Cli::command().get_subcommands() {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let examples: Vec<&str> = help.lines().filter_map(|line| line.strip_prefix("  ")).collect();
            assert!(!examples.is_empty(), "{} has no example", command.get_name());
            for example in examples {
                assert!(example.starts_with(&format!("madako-chaos {}", command.get_name())), "{example}");
                Cli::read(example.split_whitespace()).unwrap_or_else(|error| panic!("{example}: {error}"));
            }
        }
    }

    #[test]
    fn scenarios_are_listed_or_one_is_checked() {
        for good in ["--list", "--list -o json", "--check a.yml", "--check - --output table"] {
            let line = format!("madako-chaos scenarios {good}");
            assert!(Cli::read(line.split_whitespace()).is_ok(), "{line}");
        }
        for bad in ["", "--list --check a.yml", "--check", "a.yml", "--list -o xml"] {
            let line = format!("madako-chaos scenarios {bad}");
            assert!(Cli::read(line.split_whitespace()).is_err(), "{line}");
        }
    }
}
