//! `madako auto-repair`: repairs that the registry asks for.

mod plan;

use clap::Subcommand;
use madako_messages::ports::Clock;

use crate::cli::Global;
use crate::failure::Failure;

/// Switches repairs that sabakan asks for, or shows what they would be.
#[derive(Debug, Subcommand)]
#[command(arg_required_else_help = true)]
pub(crate) enum Command {
    Plan(plan::Args),
}

/// Runs the command.
pub(crate) async fn run(command: Command, _global: &Global, clock: &dyn Clock) -> Result<(), Failure> {
    match command {
        Command::Plan(args) => plan::run(&args, clock),
    }
}
