//! Transactions of the repair queue and the reboot queue: checked by invariants, fenced and complete. Pure.

use madako_domain::invariants::check_wave;
use madako_domain::invariants::repair::{begins_repair, check_repair_change};
use madako_domain::keys;
use madako_domain::repair::change::{RepairChange, RepairWrite};
use madako_domain::state::ClusterState;
use madako_domain::store::{Condition, Epoch, Transaction};
use madako_protocol::actors::CommitError;

/// Builds the transaction of a change and checks it against the newest observed state.
///
/// etcd rejects decisions on an older state: a start compares the counter of records; an end compares the record; any
/// other change compares the entry or its kept data.
pub(crate) fn repair_transaction(
    epoch: &Epoch,
    change: &RepairChange,
    state: &ClusterState,
) -> Result<Transaction, CommitError> {
    let registers = change.writes.iter().any(|write| match write {
        RepairWrite::Record(record) => !compares_key(change, &keys::record(record.id)),
        _ => false,
    });
    if registers && !compares_key(change, keys::RECORD_ID) {
        return Err(CommitError::CounterNotCompared { what: change.what, counter: keys::RECORD_ID });
    }
    let adds = change.writes.iter().any(|write| matches!(write, RepairWrite::Added(_)));
    if adds && !compares_key(change, keys::REPAIRS_WRITE_INDEX) {
        return Err(CommitError::CounterNotCompared {
            what: change.what,
            counter: keys::REPAIRS_WRITE_INDEX,
        });
    }
    let maximum = state.constraints.as_ref().map_or(0, |it| it.value.maximum_repair_queue_entries);
    let cluster = state.cluster.as_ref().map(|cluster| &*cluster.value);
    let mut violations = check_repair_change(change, &state.repair, cluster, maximum);
    violations.extend(change.writes.iter().filter_map(|write| match write {
        RepairWrite::Rollout(rollout) => check_wave(state.rollout.as_deref(), rollout),
        _ => None,
    }));
    if !violations.is_empty() {
        // A decision on an older state than this one is late, not wrong.
        let keys = keys_changed_since(change, state);
        return Err(if keys.is_empty() {
            CommitError::Invariant { violations }
        } else {
            CommitError::Conflict { keys }
        });
    }
    let mut conditions = vec![epoch.fencing_condition()];
    conditions.extend(change.conditions.iter().cloned());
    if begins_repair(change, &state.repair) {
        // The check used this control plane: no node joins it in the meantime.
        let same_cluster = state.require_unchanged(keys::CLUSTER);
        if !conditions.contains(&same_cluster) {
            conditions.push(same_cluster);
        }
        // It used both queues, whose actors decide at the same time.
        let is_reboot = change.writes.iter().any(|write| matches!(write, RepairWrite::Reboot(_)));
        let reboots = [keys::REBOOTS, keys::UPGRADE_DRAINS];
        let prefixes = is_reboot.then_some(keys::REPAIRS).into_iter().chain(reboots);
        conditions.extend(
            prefixes
                .map(|prefix| Condition::NoneSince { prefix: prefix.to_owned(), revision: state.revision }),
        );
    }
    Ok(Transaction { conditions, writes: change.encode_writes(&state.repair)? })
}

/// Keys that a change compares and whose state differs from the decision's.
fn keys_changed_since(change: &RepairChange, state: &ClusterState) -> Vec<String> {
    let is_another = |condition: &&Condition| match condition {
        Condition::Unchanged { key, revision } => {
            state.repair.revision_of(key).unwrap_or_else(|| state.revision_of(key)) != *revision
        }
        _ => false,
    };
    change.conditions.iter().filter(is_another).map(|condition| condition.compared_key().to_owned()).collect()
}

fn compares_key(change: &RepairChange, wanted: &str) -> bool {
    change
        .conditions
        .iter()
        .any(|condition| matches!(condition, Condition::Unchanged { key, .. } if key == wanted))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use madako_domain::cluster::{Cluster, Node};
    use madako_domain::invariants::Id;
    use madako_domain::record::Record;
    use madako_domain::repair::queue::{Item, RepairQueue};
    use madako_domain::repair::{RepairQueueEntry, RepairStatus, RepairStepStatus};
    use madako_domain::rollout::Rollout;
    use madako_domain::state::RevisedValue;
    use time::OffsetDateTime;

    use super::*;

    const CLUSTER: i64 = 6;

    fn epoch() -> Epoch {
        Epoch { number: 7, key: "leader//1f".to_owned(), lease: 0x1f }
    }

    fn entry(index: i64, address: &str, step_status: RepairStepStatus) -> RepairQueueEntry {
        RepairQueueEntry {
            index,
            status: RepairStatus::Processing,
            step_status,
            ..RepairQueueEntry::new("o", "t", address)
        }
    }

    /// A control plane of `a` and `b`: `a` is watched after the command of its repair, `b` waits.
    fn state() -> ClusterState {
        let node =
            |address: &str| Node { address: address.to_owned(), control_plane: true, ..Node::default() };
        let cluster = Cluster { nodes: vec![node("a"), node("b")], ..Cluster::default() };
        let entries = [entry(0, "a", RepairStepStatus::Watching), entry(1, "b", RepairStepStatus::Waiting)];
        let item = |value: RepairQueueEntry| (value.index, Arc::new(Item { value, created: 1, revision: 1 }));
        let mut repair =
            RepairQueue { entries: entries.into_iter().map(item).collect(), ..RepairQueue::default() };
        repair.records.next = Some((5, 3));
        let mut state = ClusterState {
            cluster: Some(RevisedValue { value: Arc::new(cluster), revision: CLUSTER }),
            repair: Arc::new(repair),
            ..ClusterState::default()
        };
        state.revisions.insert(keys::CLUSTER.to_owned(), CLUSTER);
        state
    }

    fn change(state: &ClusterState, entry: RepairQueueEntry) -> RepairChange {
        let mut record = Record::new(5, "o", Vec::new(), OffsetDateTime::UNIX_EPOCH);
        record.complete(OffsetDateTime::UNIX_EPOCH);
        RepairChange {
            what: "test",
            conditions: state.repair.require_unchanged_records().into_iter().collect(),
            writes: vec![RepairWrite::Entry(entry), RepairWrite::Record(record)],
        }
    }

    fn same_cluster() -> Condition {
        Condition::Unchanged { key: keys::CLUSTER.to_owned(), revision: CLUSTER }
    }

    #[test]
    fn every_change_is_fenced_by_the_leader_key() {
        let state = state();
        let change = change(&state, entry(0, "a", RepairStepStatus::Waiting));
        let transaction = repair_transaction(&epoch(), &change, &state).unwrap();
        let fence = Condition::Created { key: "leader//1f".to_owned(), revision: 7 };
        assert_eq!(transaction.conditions[0], fence);
        assert_eq!(transaction.conditions[1..], change.conditions, "and by what it was decided on");
    }

    #[test]
    fn decision_on_an_outdated_state_is_a_conflict_without_a_violation() {
        let mut state = state();
        // Its record has the number of a record that was registered in the meantime.
        let late = change(&state, entry(0, "a", RepairStepStatus::Waiting));
        let mut repair = (*state.repair).clone();
        repair.records.next = Some((6, 3));
        state.repair = Arc::new(repair.clone());
        let wrong = repair_transaction(&epoch(), &late, &state).unwrap_err();
        assert!(matches!(wrong, CommitError::Invariant { .. }), "nothing that it compares is newer: {wrong}");
        repair.records.next = Some((6, 8));
        state.repair = Arc::new(repair);
        let refused = repair_transaction(&epoch(), &late, &state).unwrap_err();
        let CommitError::Conflict { keys } = refused else { panic!("{refused}") };
        assert_eq!(keys, [keys::RECORD_ID]);
    }

    #[test]
    fn entry_with_a_number_taken_by_another_client_is_a_conflict() {
        let mut state = state();
        let mut repair = (*state.repair).clone();
        repair.write_index = Some((2, 4));
        state.repair = Arc::new(repair.clone());
        let of_w = RepairQueueEntry { index: 2, ..RepairQueueEntry::new("o", "t", "w") };
        let adds = RepairChange {
            what: "test",
            conditions: repair.write_index_unchanged().into_iter().collect(),
            writes: vec![RepairWrite::Added(of_w.clone())],
        };
        repair.entries.insert(2, Arc::new(Item { value: of_w, created: 9, revision: 9 }));
        repair.write_index = Some((3, 9));
        state.repair = Arc::new(repair);
        let refused = repair_transaction(&epoch(), &adds, &state).unwrap_err();
        let CommitError::Conflict { keys } = refused else { panic!("{refused}") };
        assert_eq!(keys, [keys::REPAIRS_WRITE_INDEX]);
    }

    #[test]
    fn a_wave_beyond_the_roll_is_refused_and_one_on_an_outdated_state_is_a_conflict() {
        let mut state = state();
        let mut rollout = Rollout::new("k:1");
        state.rollout = Some(Arc::new(rollout.clone()));
        state.revisions.insert(keys::ROLLOUT.to_owned(), 5);
        rollout.begin_wave("kubelet", &["a".to_owned()]);
        let wave = |state: &ClusterState, rollout: &Rollout| RepairChange {
            what: "test",
            conditions: vec![state.require_unchanged(keys::ROLLOUT)],
            writes: vec![RepairWrite::Rollout(rollout.clone())],
        };
        let one = wave(&state, &rollout);
        assert!(repair_transaction(&epoch(), &one, &state).is_ok());
        rollout.begin_wave("kubelet", &["b".to_owned()]);
        let refused = repair_transaction(&epoch(), &wave(&state, &rollout), &state).unwrap_err();
        let CommitError::Invariant { violations } = refused else { panic!("{refused}") };
        assert_eq!(violations.iter().map(|violation| violation.invariant).collect::<Vec<_>>(), [Id::I15]);
        // An operator paused the roll after the decision.
        state.rollout = Some(Arc::new(Rollout { paused: true, ..Rollout::new("k:1") }));
        state.revisions.insert(keys::ROLLOUT.to_owned(), 9);
        let refused = repair_transaction(&epoch(), &one, &state).unwrap_err();
        assert!(matches!(refused, CommitError::Conflict { .. }), "{refused}");
    }

    #[test]
    fn the_end_of_a_record_that_has_ended_is_a_conflict() {
        let mut state = state();
        let mut repair = (*state.repair).clone();
        repair.records.known.insert(4, 9);
        state.repair = Arc::new(repair);
        let mut record = Record::new(4, "o", Vec::new(), OffsetDateTime::UNIX_EPOCH);
        record.complete(OffsetDateTime::UNIX_EPOCH);
        let decided_on = Condition::Unchanged { key: keys::record(4), revision: 7 };
        let ends = RepairChange {
            what: "test",
            conditions: vec![decided_on],
            writes: vec![RepairWrite::Record(record)],
        };
        let refused = repair_transaction(&epoch(), &ends, &state).unwrap_err();
        let CommitError::Conflict { keys } = refused else { panic!("{refused}") };
        assert_eq!(keys, [keys::record(4)]);
    }

    #[test]
    fn a_repair_begins_only_while_the_control_plane_is_the_one_that_it_was_judged_by() {
        let mut state = state();
        let begins = entry(1, "b", RepairStepStatus::Draining);
        let refused = repair_transaction(&epoch(), &change(&state, begins.clone()), &state).unwrap_err();
        let CommitError::Invariant { violations } = refused else { panic!("{refused}") };
        assert_eq!(violations.iter().map(|it| it.invariant).collect::<Vec<_>>(), [Id::I8]);
        let mut repair = (*state.repair).clone();
        repair.entries.remove(&0);
        state.repair = Arc::new(repair);
        let change = change(&state, begins);
        let transaction = repair_transaction(&epoch(), &change, &state).unwrap();
        assert_eq!(transaction.conditions.iter().filter(|it| **it == same_cluster()).count(), 1);
    }

    #[test]
    fn change_that_does_not_compare_its_counter_is_refused() {
        let state = state();
        let ends = entry(0, "a", RepairStepStatus::Waiting);
        let registers = RepairChange { conditions: Vec::new(), ..change(&state, ends) };
        let added = RepairWrite::Added(RepairQueueEntry { index: 2, ..RepairQueueEntry::new("o", "t", "w") });
        let adds = RepairChange { what: "test", conditions: Vec::new(), writes: vec![added] };
        for (change, counter) in [(registers, keys::RECORD_ID), (adds, keys::REPAIRS_WRITE_INDEX)] {
            let refused = repair_transaction(&epoch(), &change, &state).unwrap_err();
            assert_eq!(refused, CommitError::CounterNotCompared { what: "test", counter });
        }
    }
}
