//! `madako-chaos`: checks scenarios of faults, and runs them.

mod cli;
mod datacenter;
mod run;
mod scenarios;
mod simulate;

use std::process::ExitCode;

use madako_console::{describe_error, is_closed_pipe, print_clap_error, print_note};

use crate::cli::{Cli, Command};

/// A simulation allocates many small pieces of memory: with the system's allocator that takes a fifth of its time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Prefix of every message.
const PROGRAM: &str = "madako-chaos";

fn main() -> ExitCode {
    // First of all: a run starts this same program for each of its processes.
    if let Some(code) = madako_chaos_harness::hidden_command_main(std::env::args_os()) {
        return code;
    }
    let Cli { command } = match Cli::read(std::env::args_os()) {
        Ok(cli) => cli,
        Err(error) => return print_clap_error(PROGRAM, &error),
    };
    let done = match command {
        Command::Scenarios(args) => scenarios::run(&args),
        Command::Simulate(args) => simulate::run(&args),
        Command::Run(args) => run::run(args),
        Command::Datacenter(args) => datacenter::run(args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let (code, error) = failure.into_parts();
            if is_closed_pipe(&error) {
                return ExitCode::SUCCESS;
            }
            print_note(PROGRAM, describe_error(&error));
            ExitCode::from(code)
        }
    }
}
