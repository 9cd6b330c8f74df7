//! `madako ssh forget`: deletes the pinned host key of a node.

use madako_domain::host_key::PinnedKey;
use madako_domain::keys;
use madako_protocol::store::Store;
use serde_json::json;

use crate::access::{concurrent_change_failure, decode, get_entry, remove_if};
use crate::failure::Failure;
use crate::output::{OutputArgs, Table, escape_unprintable, print_text, show_value};

pub(super) async fn run(address: &str, output: OutputArgs, store: &dyn Store) -> Result<(), Failure> {
    let key = keys::host_key(address);
    let entry = get_entry(store, &key).await?.ok_or_else(|| {
        Failure::failed(format_args!("no host key of {address} is pinned, so there is none to forget"))
    })?;
    // An unreadable value would keep the node unreachable.
    let pinned = decode::<PinnedKey>(&key, &entry).ok();
    if !remove_if(store, &key, &entry).await? {
        return Err(concurrent_change_failure(&key));
    }
    let (fingerprint, serial) = match &pinned {
        Some(pinned) => (pinned.host_key.fingerprint.as_str(), pinned.serial.as_str()),
        None => ("an unreadable value", ""),
    };
    let Some(format) = output.output else {
        let machine = if serial.is_empty() { String::new() } else { format!(" of the machine {serial}") };
        return print_text(&format!(
            "{address}: forgot {}{}\n",
            escape_unprintable(fingerprint),
            escape_unprintable(&machine)
        ));
    };
    show_value(format, &json!({ "address": address, "forgotten": pinned }), |_| {
        let mut table = Table::new(["ADDRESS", "FORGOTTEN", "SERIAL"]);
        table.add_row([address.to_owned(), fingerprint.to_owned(), serial.to_owned()]);
        table.to_text()
    })
}
