//! `madako auto-repair`: automatic repairs of machines that the registry reports.

mod plan;

use clap::Subcommand;
use madako_domain::keys;
use madako_protocol::ports::Clock;
use madako_protocol::store::Store;

use crate::cli::Global;
use crate::commands::settings::{is_enabled, set_variables, show_variables, stored_setting, switch_setting};
use crate::failure::Failure;
use crate::input::read_text;
use crate::output::OutputArgs;

/// Switches automatic repairs of machines that sabakan reports, or shows them in advance.
#[derive(Debug, Subcommand)]
#[command(arg_required_else_help = true)]
pub(crate) enum Command {
    /// Enables automatic repairs of machines that sabakan reports.
    ///
    /// The leader adds machines to the repair queue up to the constraint maximum-repair-queue-entries, which is 0 by
    /// default.
    #[command(after_help = "Example:\n  madako auto-repair enable")]
    Enable,
    /// Disables automatic repairs of machines that sabakan reports: the leader adds no entries, and asks for reports
    /// only while a rack is held.
    #[command(after_help = "Example:\n  madako auto-repair disable")]
    Disable,
    /// Shows whether automatic repairs are enabled: true or false.
    #[command(after_help = "Example:\n  madako auto-repair is-enabled")]
    IsEnabled(OutputArgs),
    /// Stores the variables of the query for machines to repair.
    ///
    /// FILE contains a JSON object like this: {"having": {"states": ["UNREACHABLE"], "racks": [0, 1], "labels":
    /// [{"name": "foo", "value": "bar"}], "minDaysBeforeRetire": 90}, "notHaving": {"roles": ["boot"]}}.
    ///
    /// By default, the query selects machines that are UNHEALTHY or UNREACHABLE and whose role is not boot. Stored
    /// variables replace all defaults of the query: the service sends null for an absent field.
    #[command(after_help = "Example:\n  madako auto-repair set-variables variables.json")]
    SetVariables {
        /// Variables in JSON; - reads standard input
        file: String,
    },
    /// Shows the stored variables of the query.
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
        Command::Enable => switch_setting(&store()?, keys::AUTO_REPAIR_DISABLED, false).await,
        Command::Disable => switch_setting(&store()?, keys::AUTO_REPAIR_DISABLED, true).await,
        Command::IsEnabled(args) => is_enabled(&args, &store()?, keys::AUTO_REPAIR_DISABLED).await,
        Command::SetVariables { file } => set_variables(&read_text(&file)?, &store()?, VARIABLES).await,
        Command::GetVariables(args) => {
            let entry =
                stored_setting(&store()?, VARIABLES, "query variables", "auto-repair set-variables").await?;
            show_variables(&args, VARIABLES, &entry)
        }
        Command::Plan(args) => plan::run(&args, global, clock),
    }
}
