//! `madako ops`: shows the operations on nodes.

pub(crate) mod collected;
mod diff;
pub(crate) mod plan;
pub(crate) mod running;

use clap::Subcommand;
use serde::Deserialize;

use crate::access;
use crate::cli::Global;
use crate::failure::Failure;
use crate::limits::MAX_FILES_NAMED;
use crate::list::{Cell, List, ListArgs, Surface};

/// Shows the operations of the leader: the phase, what runs, what is next, what is held and why, and the nodes on which
/// no operation runs now.
///
/// The command asks the leader, whose address is in the store (madako/leader-url). The states are running, next, held,
/// unreachable (a node that does not answer) and backs-off (a node on which the last command failed). The documents are the
/// page of the leader.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  madako ops\n  madako ops --watch\n  madako ops -o wide --sort-by state")]
pub(crate) struct Args {
    #[command(flatten)]
    list: ListArgs,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Plan(plan::Args),
    Diff(diff::Args),
}

pub(crate) async fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    match &args.command {
        None => running::run(&args.list, &access::open_store(global)?).await,
        Some(_) if args.list.is_given() => Err(Failure::bad_input(
            "--sort-by and --watch belong to `madako ops` without a subcommand; give -o after `plan` or `diff`",
        )),
        Some(Command::Plan(args)) => plan::run(args, global).await,
        Some(Command::Diff(args)) => diff::run(args, global).await,
    }
}

/// An operation, as the page of the leader has it.
#[derive(Debug, Deserialize)]
struct ShownOperation {
    name: String,
    targets: Vec<String>,
    commands: Vec<ShownCommand>,
}

#[derive(Debug, Deserialize)]
struct ShownCommand {
    name: String,
    target: String,
}

#[derive(Debug, Deserialize)]
pub(crate) struct ShownHeld {
    pub(crate) what: String,
    pub(crate) reason: String,
    pub(crate) targets: Vec<String>,
    pub(crate) why: String,
}

/// Addresses for one line.
pub(crate) fn join_addresses(addresses: &[impl AsRef<str>]) -> String {
    let shown: Vec<&str> = addresses.iter().take(MAX_FILES_NAMED).map(AsRef::as_ref).collect();
    let more = addresses.len().saturating_sub(MAX_FILES_NAMED);
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    format!("{}{more}", shown.join(", "))
}

/// Operations below `heading` and held operations, each as a list unless there are none.
fn operation_tables(heading: &str, operations: &[ShownOperation], held: &[ShownHeld]) -> String {
    let mut next = List::new(&[heading, "TARGETS", "COMMAND", "OF"], &[]).with_whole_reasons();
    for operation in operations {
        let mut first = [operation.name.clone(), join_addresses(&operation.targets)];
        for command in &operation.commands {
            let [name, targets] = std::mem::take(&mut first).map(Cell::from);
            next.add(vec![name, targets, (&command.name).into(), (&command.target).into()]);
        }
    }
    let mut waiting = List::new(&["HELD", "REASON", "TARGETS", "WHY"], &[]).with_whole_reasons();
    for ShownHeld { what, reason, targets, why } in held {
        waiting.add(vec![what.into(), reason.into(), join_addresses(targets).into(), why.into()]);
    }
    let lists = [next, waiting].into_iter().filter(|list| !list.is_empty());
    lists.map(|list| format!("\n{}", list.to_text(false, Surface::for_output()))).collect()
}

#[cfg(test)]
mod tests {
    use super::join_addresses;

    #[test]
    fn a_long_list_is_shortened() {
        assert_eq!(join_addresses(&["a", "b"]), "a, b");
        assert_eq!(join_addresses(&["a", "b", "c", "d", "e", "f", "g"]), "a, b, c, d, e and 2 more");
        assert_eq!(join_addresses(&[""; 0]), "");
    }
}
