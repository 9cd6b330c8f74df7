//! Deletes the entries of ended repairs from the demo's repair queue, as an operator does.
//!
//! An ended entry keeps its place in the queue and holds back further repairs of its machine, so that the repairs of the
//! demo would end with the last free place.

use std::time::Duration;

use madako_console::count_with_noun;
use madako_domain::repair::RepairQueueEntry;
use madako_protocol::store::Store;

use super::world::REPAIRS;
use crate::commands::queue::{QueueEntry as _, change_entry, queue_entries};
use crate::commands::repair_queue::mark_deleted;
use crate::failure::Failure;

/// Time between two looks at the queue: repairs take longer.
pub(crate) const PAUSE: Duration = Duration::from_secs(5);
/// Places that ended entries may take: half of all, so that the newest ones can be listed for a while.
const MOST_ENDED: u64 = REPAIRS as u64 / 2;

/// Requests the removal of all ended entries if they take half of the places. Returns the line of the demo, if there is
/// something to say.
pub(crate) async fn delete_ended_repairs(store: &dyn Store) -> Option<String> {
    match delete_if_many(store).await {
        Ok(0) => None,
        Ok(count) => {
            let ended = count_with_noun(count, "ended repair", "ended repairs");
            Some(format!("the demo deletes {ended} from the queue, as an operator does"))
        }
        Err(failure) => {
            Some(format!("the demo cannot delete ended repairs: {}", failure.message().unwrap_or_default()))
        }
    }
}

async fn delete_if_many(store: &dyn Store) -> Result<u64, Failure> {
    let entries = queue_entries::<RepairQueueEntry>(store).await?;
    let ended: Vec<_> = entries.iter().filter(|entry| entry.is_finished() && !entry.deleted).collect();
    if (ended.len() as u64) < MOST_ENDED {
        return Ok(0);
    }
    let mut deleted = 0;
    for entry in ended {
        let key = RepairQueueEntry::key(entry.index);
        let changed = change_entry::<RepairQueueEntry>(store, &key, mark_deleted).await?;
        deleted += u64::from(changed.is_some_and(|(is_changed, _)| is_changed));
    }
    Ok(deleted)
}
