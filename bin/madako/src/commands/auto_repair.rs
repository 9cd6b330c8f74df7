//! `madako auto-repair`: repairs on the registry's reports.

mod plan;

use clap::Subcommand;
use madako_domain::keys;
use madako_protocol::ports::Clock;
use madako_protocol::store::Store;

use crate::cli::Global;
use crate::commands::settings::{is_enabled, set_variables, show_variables, stored, switch};
use crate::failure::Failure;
use crate::input::read_text;
use crate::output::OutputArgs;

/// Switches repairs that sabakan asks for, or shows what they would be.
#[derive(Debug, Subcommand)]
#[command(arg_required_else_help = true)]
pub(crate) enum Command {
    /// Switches repairs that sabakan asks for on.
    ///
    /// Machines are added to the repair queue only as far as the constraint maximum-repair-queue-entries allows; it
    /// allows none by default.
    #[command(after_help = "Example:\n  madako auto-repair enable")]
    Enable,
    /// Switches repairs that sabakan asks for off: nothing is added, and it is asked only while a rack is held.
    #[command(after_help = "Example:\n  madako auto-repair disable")]
    Disable,
    /// Shows whether repairs that sabakan asks for are on: true or false.
    #[command(after_help = "Example:\n  madako auto-repair is-enabled")]
    IsEnabled(OutputArgs),
    /// Stores the variables of the query that chooses machines to be repaired.
    ///
    /// FILE holds a JSON object like this:
    /// {"having": {"states": ["UNREACHABLE"], "racks": [0, 1], "labels": [{"name": "foo", "value": "bar"}],
    /// "minDaysBeforeRetire": 90}, "notHaving": {"roles": ["boot"]}}.
    ///
    /// While none are stored, machines are chosen that are UNHEALTHY or UNREACHABLE and whose role is not boot. Stored
    /// variables replace that as a whole: what is absent is sent as null.
    #[command(after_help = "Example:\n  madako auto-repair set-variables variables.json")]
    SetVariables {
        /// Variables in JSON; - reads standard input
        file: String,
    },
    /// Shows the variables of the query that are stored.
    #[command(after_help = "Example:\n  madako auto-repair get-variables")]
    GetVariables(OutputArgs),
    Plan(plan::Args),
}

/// `store` opens the store, which commands on files do not need.
pub(crate) async fn run<S: Store>(
    command: Command,
    global: &Global,
    store: impl FnOnce() -> Result<S, Failure>,
    clock: &dyn Clock,
) -> Result<(), Failure> {
    const VARIABLES: &str = keys::AUTO_REPAIR_VARIABLES;
    match command {
        Command::Enable => switch(&store()?, keys::AUTO_REPAIR_DISABLED, false).await,
        Command::Disable => switch(&store()?, keys::AUTO_REPAIR_DISABLED, true).await,
        Command::IsEnabled(args) => is_enabled(&args, &store()?, keys::AUTO_REPAIR_DISABLED).await,
        Command::SetVariables { file } => set_variables(&read_text(&file)?, &store()?, VARIABLES).await,
        Command::GetVariables(args) => {
            let entry = stored(&store()?, VARIABLES, "variables are", "auto-repair set-variables").await?;
            show_variables(&args, VARIABLES, &entry)
        }
        Command::Plan(args) => plan::run(&args, global, clock),
    }
}
