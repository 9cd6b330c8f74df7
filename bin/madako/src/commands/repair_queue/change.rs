//! Changes of existing entries.

use madako_domain::keys;
use madako_domain::repair::RepairQueueEntry;
use madako_protocol::store::Store;
use serde_json::json;

use crate::commands::queue::{change_entry, entries};
use crate::failure::Failure;
use crate::output::{OutputArgs, Table, print, show};

fn mark_deleted(entry: &mut RepairQueueEntry) -> bool {
    !std::mem::replace(&mut entry.deleted, true)
}

/// Requests the removal of an entry.
pub(super) async fn delete(index: i64, store: &dyn Store) -> Result<(), Failure> {
    match change_entry(store, &keys::repair(index), mark_deleted).await? {
        Some((changed, entry)) => print(&match changed {
            true => format!("{}: to be removed\n", entry_name(&entry)),
            false => format!("{}: to be removed, as before\n", entry_name(&entry)),
        }),
        None => Err(Failure::failed(format_args!("the repair queue has no entry {index}"))),
    }
}

/// Requests the removal of all finished entries, or of all others.
pub(super) async fn delete_all(args: &OutputArgs, finished: bool, store: &dyn Store) -> Result<(), Failure> {
    let mut deleted = Vec::new();
    for entry in entries::<RepairQueueEntry>(store, keys::REPAIRS).await? {
        let mark = |entry: &mut RepairQueueEntry| entry.is_finished() == finished && mark_deleted(entry);
        if matches!(change_entry(store, &keys::repair(entry.index), mark).await?, Some((true, _))) {
            deleted.push(entry.index);
            if args.output.is_none() {
                // Printed one by one, as ckecli does: a later removal may fail.
                print(&format!("{}\n", entry.index))?;
            }
        }
    }
    match args.output {
        None => Ok(()),
        Some(format) => show(format, &json!({ "deleted": deleted }), |_| {
            let mut table = Table::new(["DELETED"]);
            for index in &deleted {
                table.row([index.to_string()]);
            }
            table.text()
        }),
    }
}

pub(super) async fn reset_backoff(store: &dyn Store) -> Result<(), Failure> {
    for entry in entries::<RepairQueueEntry>(store, keys::REPAIRS).await? {
        let reset = |entry: &mut RepairQueueEntry| {
            let waits = entry.drain_backoff_count != 0 || entry.drain_backoff_expire.is_some();
            entry.drain_backoff_count = 0;
            entry.drain_backoff_expire = None;
            waits
        };
        if let Some((true, entry)) = change_entry(store, &keys::repair(entry.index), reset).await? {
            print(&format!("{}: retried at once\n", entry_name(&entry)))?;
        }
    }
    Ok(())
}

fn entry_name(entry: &RepairQueueEntry) -> String {
    format!("entry {} ({} of {}, {})", entry.index, entry.operation, entry.address, entry.status)
}
