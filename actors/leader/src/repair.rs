//! Changes of the repair queue as transactions: judged by the invariants, fenced, and whole. Pure.

use madako_messages::actors::CommitError;
use madako_messages::invariants::repair::{begins, check_repair_change};
use madako_messages::keys;
use madako_messages::repair::change::{RepairChange, RepairWrite};
use madako_messages::state::ClusterState;
use madako_messages::store::{Condition, Epoch, Transaction};

/// The transaction of a change, judged on the newest state that was seen.
///
/// Whoever decided on an older state than the store's is refused by etcd: a change that registers a record compares the
/// counter of records, and every other one the entry or what is kept of it.
pub(crate) fn transaction(
    epoch: &Epoch,
    change: &RepairChange,
    state: &ClusterState,
) -> Result<Transaction, CommitError> {
    let registers = change.writes.iter().any(|write| match write {
        RepairWrite::Record(record) => !state.repair.records.unfinished.contains_key(&record.id),
        _ => false,
    });
    if registers && !compares(change, keys::RECORD_ID) {
        return Err(refused("it registers a record and does not compare their counter"));
    }
    let adds = change.writes.iter().any(|write| matches!(write, RepairWrite::Added(_)));
    if adds && !compares(change, keys::REPAIRS_WRITE_INDEX) {
        return Err(refused("it adds an entry and does not compare their counter"));
    }
    let maximum = state.constraints.as_ref().map_or(0, |it| it.value.maximum_repair_queue_entries);
    let cluster = state.cluster.as_ref().map(|cluster| &*cluster.value);
    let violations = check_repair_change(change, &state.repair, cluster, maximum);
    if !violations.is_empty() {
        return Err(CommitError::Invariant { violations });
    }
    let mut conditions = vec![epoch.fence()];
    conditions.extend(change.conditions.iter().cloned());
    // Who belongs to the control plane was judged by: nobody does meanwhile.
    let same_cluster = state.unchanged(keys::CLUSTER);
    if begins(change, &state.repair) && !conditions.contains(&same_cluster) {
        conditions.push(same_cluster);
    }
    Ok(Transaction { conditions, writes: change.stored(&state.repair)? })
}

fn compares(change: &RepairChange, wanted: &str) -> bool {
    change
        .conditions
        .iter()
        .any(|condition| matches!(condition, Condition::Unchanged { key, .. } if key == wanted))
}

fn refused(why: &str) -> CommitError {
    CommitError::Encoding { why: why.to_owned() }
}
