//! `madako ssh`: the host keys of nodes.

use clap::Subcommand;
use madako_domain::host_key::PinnedKey;
use madako_domain::keys;
use madako_protocol::store::Store;
use serde_json::json;

use crate::access::{changed_meanwhile, decode, get, remove_if};
use crate::failure::Failure;
use crate::output::{OutputArgs, Table, print, printable, show};

/// Manages the host keys of nodes.
#[derive(Debug, Subcommand)]
#[command(arg_required_else_help = true)]
pub(crate) enum Command {
    /// Forgets the host key that the service pinned at the first connection to an address.
    ///
    /// The service refuses a node with another host key than the pinned one. After this command it pins the key that the
    /// node has at the next connection. A new machine at an address needs no command: the service knows it by its serial.
    #[command(after_help = "Example:\n  madako ssh forget 10.0.0.11")]
    Forget {
        /// Address of the node
        address: String,
        #[command(flatten)]
        output: OutputArgs,
    },
}

pub(crate) async fn run(command: Command, store: &dyn Store) -> Result<(), Failure> {
    let Command::Forget { address, output } = command;
    let key = keys::host_key(&address);
    let entry = get(store, &key)
        .await?
        .ok_or_else(|| Failure::failed(format_args!("no host key of {address} is pinned")))?;
    // An unreadable value would keep the node unreachable.
    let pinned = decode::<PinnedKey>(&key, &entry).ok();
    if !remove_if(store, &key, &entry).await? {
        return Err(changed_meanwhile(&key));
    }
    let (fingerprint, serial) = match &pinned {
        Some(pinned) => (pinned.host_key.fingerprint.as_str(), pinned.serial.as_str()),
        None => ("an unreadable value", ""),
    };
    let Some(format) = output.output else {
        let machine = if serial.is_empty() { String::new() } else { format!(" of the machine {serial}") };
        return print(&format!("{address}: forgot {}{}\n", printable(fingerprint), printable(&machine)));
    };
    show(format, &json!({ "address": address, "forgotten": pinned }), |_| {
        let mut table = Table::new(["ADDRESS", "FORGOTTEN", "SERIAL"]);
        table.row([address.clone(), fingerprint.to_owned(), serial.to_owned()]);
        table.text()
    })
}
