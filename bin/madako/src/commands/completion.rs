//! `madako completion`: completion scripts for shells.

use clap_complete::Shell;
use clap_complete::env::Shells;

use crate::complete::VARIABLE;
use crate::failure::Failure;
use crate::output::print_bytes;

/// Prints a script for the completion of madako commands in a shell.
///
/// Names of constraints, scenarios, machines, nodes, applications and clusters are completed as they are now: the shell asks
/// the program, which asks the store, the registry or the API for up to two seconds.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  madako completion bash > /etc/bash_completion.d/madako\n\n\
                        For the present shell only: . <(madako completion)")]
pub(crate) struct Args {
    /// Shell for which the script is
    #[arg(value_enum, default_value_t = Shell::Bash)]
    shell: Shell,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let shells = Shells::builtins();
    let name = args.shell.to_string();
    let shell = shells.completer(&name).ok_or_else(|| {
        Failure::bad_input(format_args!(
            "cannot print a completion script for the shell {name}: this version of madako has none"
        ))
    })?;
    let mut script = Vec::new();
    shell.write_registration(VARIABLE, "madako", "madako", "madako", &mut script)?;
    print_bytes(&script)
}
