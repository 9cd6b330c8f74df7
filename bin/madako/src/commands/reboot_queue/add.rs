//! `madako reboot-queue add`: the whole file is checked before the first entry is added.

use std::collections::BTreeSet;

use madako_domain::cluster::Cluster;
use madako_domain::keys;
use madako_domain::reboot::RebootQueueEntry;
use madako_protocol::store::Store;

use crate::access::{decode, get_entry};
use crate::commands::queue::append;
use crate::failure::Failure;
use crate::input::{display_name, read_text};
use crate::limits::{MAX_PROBLEMS, MAX_REBOOTS_ADDED, REBOOTS_AT_ONCE};
use crate::output::{escape_unprintable, print_warning};

/// Adds an entry for each address of the file, in its order.
pub(super) async fn run(file: &str, store: &dyn Store) -> Result<(), Failure> {
    let stored = get_entry(store, keys::CLUSTER).await?.ok_or_else(missing_cluster_failure)?;
    let cluster: Cluster = decode(keys::CLUSTER, &stored)?;
    let nodes = read_nodes(file, &cluster)?;
    let mut entries: Vec<RebootQueueEntry> = nodes.into_iter().map(RebootQueueEntry::new).collect();
    let total = entries.len();
    for (number, chunk) in entries.chunks_mut(REBOOTS_AT_ONCE).enumerate() {
        let set = |entry: &mut RebootQueueEntry, index| entry.index = index;
        append(store, keys::REBOOTS_WRITE_INDEX, keys::reboot, chunk, set).await.map_err(|failure| {
            match number * REBOOTS_AT_ONCE {
                0 => failure,
                added => {
                    print_warning(format_args!("the first {added} of {total} entries were added"));
                    failure
                }
            }
        })?;
    }
    Ok(())
}

pub(super) fn missing_cluster_failure() -> Failure {
    Failure::failed(
        "no cluster configuration is stored, so there is no node to reboot (madako cluster set stores one)",
    )
}

/// The addresses of a file, all of which are nodes of the cluster.
pub(super) fn read_nodes(file: &str, cluster: &Cluster) -> Result<Vec<String>, Failure> {
    let text = read_text(file)?;
    let nodes: Vec<&str> = text.split_whitespace().take(MAX_REBOOTS_ADDED + 1).collect();
    if nodes.is_empty() || nodes.len() > MAX_REBOOTS_ADDED {
        let found = if nodes.is_empty() { "no address" } else { "more addresses" };
        return Err(Failure::bad_input(format_args!(
            "{}: {found}, expected 1 to {MAX_REBOOTS_ADDED} addresses of nodes",
            display_name(file)
        )));
    }
    let known: BTreeSet<&str> = cluster.nodes.iter().map(|node| node.address.as_str()).collect();
    let unknown: BTreeSet<&str> = nodes.iter().copied().filter(|node| !known.contains(node)).collect();
    if !unknown.is_empty() {
        let named: Vec<String> = unknown.iter().take(MAX_PROBLEMS).map(|node| shorten_name(node)).collect();
        let more = if unknown.len() > named.len() { ", and more" } else { "" };
        return Err(Failure::bad_input(format_args!(
            "{}: no node of the cluster has the address {}{more}; no entry was added",
            display_name(file),
            named.join(", ")
        )));
    }
    let mut distinct = BTreeSet::new();
    for node in nodes.iter().filter(|node| !distinct.insert(**node)) {
        print_warning(format_args!("{node} occurs more than once: its later entries wait for the first"));
    }
    Ok(nodes.into_iter().map(str::to_owned).collect())
}

fn shorten_name(node: &str) -> String {
    escape_unprintable(&node.chars().take(crate::limits::MAX_TEXT_SHOWN).collect::<String>())
}
