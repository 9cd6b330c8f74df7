//! `madako repair-queue`: shows and changes the queue of machines that wait for repair.

mod add;
mod explain;
mod release;

use clap::Subcommand;
use madako_domain::keys;
use madako_domain::repair::{RepairQueueEntry, RepairStatus};
use madako_protocol::ports::Clock;
use madako_protocol::store::Store;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::cli::Global;
use crate::commands::machine::list::address_order;
use crate::commands::node::list::age_cell;
use crate::commands::queue::{self, parse_index};
use crate::commands::settings::{is_enabled, switch_setting};
use crate::failure::Failure;
use crate::list::{AsList, Cell, CkeListArgs, List, Tone};
use crate::output::OutputArgs;

/// Shows or changes the queue of machine repairs.
#[derive(Debug, Subcommand)]
#[command(arg_required_else_help = true)]
pub(crate) enum Command {
    /// Enables the repair queue.
    #[command(after_help = "Example:\n  madako repair-queue enable")]
    Enable,
    /// Disables the repair queue: drains and repair commands stop, health checks go on, and entries can still be
    /// deleted.
    #[command(after_help = "Example:\n  madako repair-queue disable")]
    Disable,
    /// Shows whether the repair queue is enabled: true or false.
    #[command(after_help = "Example:\n  madako repair-queue is-enabled")]
    IsEnabled(OutputArgs),
    /// Adds an entry for the repair of a machine.
    ///
    /// The cluster configuration must have a repair procedure for the type of the machine, with that operation.
    #[command(after_help = "Example:\n  madako repair-queue add unreachable iDRAC 10.0.1.7")]
    Add {
        /// Name of the operation
        operation: String,
        /// Type of the machine, which chooses the procedure
        machine_type: String,
        /// Address of the machine
        address: String,
    },
    /// Shows all entries, including finished ones.
    #[command(
        after_help = "Examples:\n  madako repair-queue list\n  madako repair-queue list -o wide --sort-by since --watch"
    )]
    List(CkeListArgs),
    /// Requests the removal of an entry, and shows the entry; the leader removes it.
    #[command(after_help = "Example:\n  madako repair-queue delete 12")]
    Delete {
        /// Number of the entry
        #[arg(value_parser = parse_index)]
        index: i64,
    },
    /// Requests the removal of every entry that succeeded or failed, and shows their numbers.
    #[command(after_help = "Example:\n  madako repair-queue delete-finished")]
    DeleteFinished(OutputArgs),
    /// Requests the removal of every entry that neither succeeded nor failed, and shows their numbers.
    #[command(after_help = "Example:\n  madako repair-queue delete-unfinished")]
    DeleteUnfinished(OutputArgs),
    /// Ends the back-off of every entry with an aborted drain, so that the leader retries it at once, and shows these
    /// entries.
    #[command(after_help = "Example:\n  madako repair-queue reset-backoff")]
    ResetBackoff,
    Explain(explain::Args),
    Release(release::Args),
}

pub(crate) async fn run(
    command: Command,
    global: &Global,
    store: &dyn Store,
    clock: &dyn Clock,
) -> Result<(), Failure> {
    match command {
        Command::Enable => switch_setting(store, keys::REPAIRS_DISABLED, false).await,
        Command::Disable => switch_setting(store, keys::REPAIRS_DISABLED, true).await,
        Command::IsEnabled(args) => is_enabled(&args, store, keys::REPAIRS_DISABLED).await,
        Command::Add { operation, machine_type, address } => {
            add::run(RepairQueueEntry::new(operation, machine_type, address), store).await
        }
        Command::List(args) => queue::show_list::<RepairQueueEntry>(&args, store, list_columns()).await,
        Command::Delete { index } => queue::remove(store, index, mark_deleted).await,
        Command::DeleteFinished(args) => {
            let mark = |entry: &mut RepairQueueEntry| entry.is_finished() && mark_deleted(entry);
            queue::remove_all(&args, store, "deleted", mark).await
        }
        Command::DeleteUnfinished(args) => {
            let mark = |entry: &mut RepairQueueEntry| !entry.is_finished() && mark_deleted(entry);
            queue::remove_all(&args, store, "deleted", mark).await
        }
        Command::ResetBackoff => queue::reset_backoff::<RepairQueueEntry>(store).await,
        Command::Explain(args) => explain::run(&args, global, store, clock).await,
        Command::Release(args) => release::run(&args, store).await,
    }
}

/// Requests the removal of an entry; false: it was requested before.
pub(crate) fn mark_deleted(entry: &mut RepairQueueEntry) -> bool {
    !std::mem::replace(&mut entry.deleted, true)
}

pub(crate) fn list_columns() -> List {
    let columns = ["INDEX", "ADDRESS", "TYPE", "OPERATION", "STATUS", "STEP", "SINCE", "BACK-OFF"];
    List::new(&columns, &["NODE"])
}

impl AsList for Vec<RepairQueueEntry> {
    fn list(&self, now: OffsetDateTime) -> List {
        let mut list = list_columns();
        for entry in self {
            let removed = if entry.deleted { ", to be removed" } else { "" };
            list.add(vec![
                Cell::new(entry.index.to_string()).with_order(entry.index),
                Cell::new(&entry.address).with_order(address_order(Some(&entry.address))),
                entry.machine_type.as_str().into(),
                entry.operation.as_str().into(),
                Cell::new(format!("{}{removed}", entry.status)).with_tone(tone_of_status(&entry.status)),
                Cell::new(format!("{} {}", entry.step, entry.step_status)),
                age_cell(entry.last_transition_time, now),
                queue::backoff_cell(entry.drain_backoff_expire, now),
                entry.nodename.as_str().into(),
            ]);
        }
        list
    }
}

fn tone_of_status(status: &RepairStatus) -> Tone {
    match status {
        RepairStatus::Succeeded => Tone::Good,
        RepairStatus::Failed => Tone::Bad,
        RepairStatus::Processing => Tone::Notice,
        _ => Tone::Plain,
    }
}

/// The number and the progress of an entry, such as `#12 processing 1 watching`.
pub(crate) fn describe_step(entry: &RepairQueueEntry) -> String {
    let progress = match entry.is_finished() {
        true => String::new(),
        false => format!(" {} {}", entry.step, entry.step_status),
    };
    format!("#{} {}{progress}", entry.index, entry.status)
}

/// A time to the second; empty for `None`.
pub(crate) fn format_time(time: Option<OffsetDateTime>) -> String {
    let whole = time.map(|time| time.replace_nanosecond(0).unwrap_or(time));
    whole.and_then(|time| time.format(&Rfc3339).ok()).unwrap_or_default()
}
