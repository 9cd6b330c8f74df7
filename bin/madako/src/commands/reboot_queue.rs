//! `madako reboot-queue`: shows and changes the queue of nodes that wait for a graceful reboot.

mod add;
pub(crate) mod explain;
pub(crate) mod forecast;
mod release;

use clap::Subcommand;
use madako_domain::keys;
use madako_domain::reboot::{RebootQueueEntry, RebootStatus};
use madako_protocol::ports::Clock;
use madako_protocol::store::Store;
use time::OffsetDateTime;

use crate::cli::Global;
use crate::commands::machine::list::address_order;
use crate::commands::node::list::age_cell;
use crate::commands::queue::{self, parse_index};
use crate::commands::settings::{is_enabled, switch_setting};
use crate::failure::Failure;
use crate::list::{AsList, Cell, CkeListArgs, List, Tone};
use crate::output::OutputArgs;

/// Shows or changes the queue of node reboots.
///
/// The queue is CKE's. The leader drains each node, runs the configured reboot command, and removes the entry when the
/// configured boot check says that the node has booted.
#[derive(Debug, Subcommand)]
#[command(arg_required_else_help = true)]
pub(crate) enum Command {
    /// Enables the reboot queue.
    #[command(after_help = "Example:\n  madako reboot-queue enable")]
    Enable,
    /// Disables the reboot queue: its entries no longer count, and their nodes are uncordoned.
    #[command(after_help = "Example:\n  madako reboot-queue disable")]
    Disable,
    /// Shows whether the reboot queue is enabled: true or false.
    #[command(after_help = "Example:\n  madako reboot-queue is-enabled")]
    IsEnabled(OutputArgs),
    /// Adds an entry for each node in a file.
    ///
    /// The file has the addresses of nodes, separated by white space. If an address is not a node of the cluster, no entry
    /// is added. Entries are added 100 at a time; after an error, the message says how many were added.
    #[command(
        after_help = "Examples:\n  madako reboot-queue add nodes.txt\n  echo 10.0.1.7 | madako reboot-queue add -"
    )]
    Add {
        /// File with the addresses; - is standard input
        file: String,
    },
    /// Shows all entries.
    #[command(
        after_help = "Examples:\n  madako reboot-queue list\n  madako reboot-queue list -o table --sort-by since --watch"
    )]
    List(CkeListArgs),
    /// Cancels an entry, and shows the entry; the leader removes it, and uncordons its node.
    ///
    /// A reboot command that runs already is not stopped.
    #[command(after_help = "Example:\n  madako reboot-queue cancel 12")]
    Cancel {
        /// Number of the entry
        #[arg(value_parser = parse_index)]
        index: i64,
    },
    /// Cancels every entry, and shows their numbers.
    #[command(after_help = "Example:\n  madako reboot-queue cancel-all")]
    CancelAll(OutputArgs),
    /// Ends the back-off of every entry with an aborted drain, so that the leader retries it at once, and shows these
    /// entries.
    #[command(after_help = "Example:\n  madako reboot-queue reset-backoff")]
    ResetBackoff,
    Explain(explain::Args),
    Forecast(forecast::Args),
    Release(release::Args),
}

pub(crate) async fn run(
    command: Command,
    global: &Global,
    store: &dyn Store,
    clock: &dyn Clock,
) -> Result<(), Failure> {
    match command {
        Command::Enable => switch_setting(store, keys::REBOOTS_DISABLED, false).await,
        Command::Disable => switch_setting(store, keys::REBOOTS_DISABLED, true).await,
        Command::IsEnabled(args) => is_enabled(&args, store, keys::REBOOTS_DISABLED).await,
        Command::Add { file } => add::run(&file, store).await,
        Command::List(args) => queue::show_list::<RebootQueueEntry>(&args, store, list_columns()).await,
        Command::Cancel { index } => queue::remove(store, index, mark_cancelled).await,
        Command::CancelAll(args) => queue::remove_all(&args, store, "cancelled", mark_cancelled).await,
        Command::ResetBackoff => queue::reset_backoff::<RebootQueueEntry>(store).await,
        Command::Explain(args) => explain::run(&args, global, store, clock).await,
        Command::Forecast(args) => forecast::run(&args, global, store, clock).await,
        Command::Release(args) => release::run(&args, global, store, clock).await,
    }
}

pub(crate) fn list_columns() -> List {
    let columns = ["INDEX", "NODE", "STATUS", "SINCE", "ABORTED DRAINS", "BACK-OFF"];
    List::new(&columns, &[])
}

impl AsList for Vec<RebootQueueEntry> {
    fn list(&self, now: OffsetDateTime) -> List {
        let mut list = list_columns();
        for entry in self {
            let tone = match entry.status {
                RebootStatus::Queued => Tone::Plain,
                _ => Tone::Notice,
            };
            list.add(vec![
                Cell::new(entry.index.to_string()).with_order(entry.index),
                Cell::new(&entry.node).with_order(address_order(Some(&entry.node))),
                Cell::new(entry.status.to_string()).with_tone(tone),
                age_cell(entry.last_transition_time, now),
                Cell::new(entry.drain_backoff_count.to_string()).with_order(entry.drain_backoff_count.into()),
                queue::backoff_cell(entry.drain_backoff_expire, now),
            ]);
        }
        list
    }
}

/// Marks the entry; ckecli keeps the time of the last transition, too.
fn mark_cancelled(entry: &mut RebootQueueEntry) -> bool {
    std::mem::replace(&mut entry.status, RebootStatus::Cancelled) != RebootStatus::Cancelled
}
