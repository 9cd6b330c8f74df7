//! `madako-chaos`: scenarios of faults, for whoever writes them, and runs of them.

mod cli;
mod datacenter;
mod run;
mod scenarios;
mod simulate;

use std::process::ExitCode;

use madako_console::{is_closed_pipe, note, tell, tell_words};

use crate::cli::{Cli, Command};

/// A simulation is many small pieces of memory, taken and given back: with the system's allocator a fifth of its time goes there.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// What every message begins with.
const PROGRAM: &str = "madako-chaos";

fn main() -> ExitCode {
    // Before anything else: a run starts this same program for each of its processes.
    if let Some(code) = madako_chaos_harness::entry(std::env::args_os()) {
        return code;
    }
    let Cli { command } = match Cli::read(std::env::args_os()) {
        Ok(cli) => cli,
        Err(error) => return tell_words(PROGRAM, &error),
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
            note(PROGRAM, tell(&error));
            ExitCode::from(code)
        }
    }
}
