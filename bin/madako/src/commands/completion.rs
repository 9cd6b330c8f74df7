//! `madako completion`: completion scripts for shells.

use clap::CommandFactory;
use clap_complete::Shell;

use crate::cli::Cli;
use crate::failure::Failure;
use crate::output::print_bytes;

/// Prints a script for the completion of madako commands in a shell.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  madako completion bash > /etc/bash_completion.d/madako\n\n\
                        For the present shell only: . <(madako completion)")]
pub(crate) struct Args {
    /// The shell
    #[arg(value_enum, default_value_t = Shell::Bash)]
    shell: Shell,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "madako", &mut script);
    print_bytes(&script)
}
