//! `madako machine`: the machines of the registry, with their parts in the cluster.

mod known;
pub(crate) mod list;
mod show;

use std::collections::BTreeSet;

use clap::Subcommand;
use madako_protocol::ports::Clock as _;
use madako_protocol::store::Store;
use madako_supervisor::clock::SystemClock;

use crate::access::open_store;
use crate::cli::Global;
use crate::failure::Failure;

/// Shows the machines of the registry: state, part in the cluster, repairs, and why each has its part.
///
/// The commands read the store and ask sabakan once. They change nothing.
#[derive(Debug, Subcommand)]
#[command(arg_required_else_help = true)]
pub(crate) enum Command {
    List(list::Args),
    Show(show::Args),
}

/// Addresses and serials of all machines of the registry.
///
/// # Errors
/// The store or the registry does not answer.
pub(crate) async fn read_machine_names(store: &dyn Store) -> Result<Vec<String>, Failure> {
    let known = known::read_known_machines(true, store, SystemClock.now()).await?;
    Ok(known.machines.into_iter().flat_map(|machine| [machine.address, machine.serial]).flatten().collect())
}

/// The selectors of machines that a plan knows: addresses, racks and roles.
///
/// # Errors
/// The store or the registry does not answer.
pub(crate) async fn read_machine_selectors(store: &dyn Store) -> Result<Vec<String>, Failure> {
    let known = known::read_known_machines(false, store, SystemClock.now()).await?;
    let groups: BTreeSet<String> = known
        .machines
        .iter()
        .flat_map(|machine| {
            let rack = machine.rack.map(|rack| format!("rack={rack}"));
            [rack, machine.role.as_ref().map(|role| format!("role={role}"))]
        })
        .flatten()
        .collect();
    let addresses = known.machines.into_iter().filter_map(|machine| machine.address);
    Ok(groups.into_iter().chain(addresses).collect())
}

pub(crate) async fn run(command: Command, global: &Global) -> Result<(), Failure> {
    let store = open_store(global)?;
    match command {
        Command::List(args) => list::run(&args, &store).await,
        Command::Show(args) => show::run(&args, &store).await,
    }
}
