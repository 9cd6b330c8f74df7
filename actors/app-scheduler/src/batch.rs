//! Splits a pass into few transactions within etcd's limits.
//!
//! Guarantees: a unit is in one transaction. Each write compares the revision that it was decided on, and each
//! binding also those of its cluster and of the cloud that the cluster inherits from, so that the committed state is
//! the evaluated one (invariant I11). A write that depends on all applications (that a cluster is unused) is a
//! transaction of its own and comes first, before this pass changes any application: it fails if an application was
//! written since.

use std::collections::BTreeMap;

use bytes::Bytes;
use madako_domain::canary::{Canary, is_planted};
use madako_domain::invariants::BindingEvidence;
use madako_domain::limits::{MOST_CONDITIONS, MOST_OPERATIONS};
use madako_domain::placement::change::{KeptState, PlacementMutation, StoredObject};
use madako_domain::placement::decision::Decision;
use madako_domain::placement::kind::ObjectKey;
use madako_protocol::actors::Mutation;
use time::OffsetDateTime;

use crate::config::SchedulerConfig;
use crate::draft::{Deletion, WriteKind, WriteUnit};
use crate::limits::PREFERRED_BYTES;
use crate::memory::{self, Memory};

#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// Conditions and writes of the commit, without evidence.
    pub(crate) change: PlacementMutation,
    /// Applications, and the clusters that this transaction binds them to.
    pub(crate) bindings: Vec<(ObjectKey, ObjectKey)>,
    /// Number of moves that count: moving bindings, and clusters created for a move.
    pub(crate) moves: u64,
    /// Decisions that this transaction makes effective.
    pub(crate) decisions: Vec<(ObjectKey, Decision)>,
    /// Resources whose deletion begins or ends here, and the rules.
    pub(crate) deletions: Vec<(ObjectKey, Deletion)>,
    /// Data of clusters that this transaction keeps.
    pub(crate) clusters: Vec<memory::MemoryChange>,
    /// Number of units by purpose.
    pub(crate) kinds: BTreeMap<WriteKind, u64>,
    /// Number of bindings that are moves.
    pub(crate) moved: u64,
    bytes: usize,
}

impl Batch {
    /// True if these additions fit. Leaves room for the count of moves.
    fn has_room_for(&self, conditions: usize, writes: usize, bytes: usize) -> bool {
        self.is_empty()
            || (self.change.applications.is_none()
                && self.change.unchanged.len() + conditions < MOST_CONDITIONS
                && self.change.objects.len() + self.change.kept.len() + writes < MOST_OPERATIONS
                && self.bytes + bytes <= PREFERRED_BYTES)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.change.objects.is_empty() && self.change.kept.is_empty()
    }

    pub(crate) fn make_mutation(&self, evidence: Vec<BindingEvidence>) -> Mutation {
        let mut change = PlacementMutation { evidence, ..self.change.clone() };
        if is_planted(Canary::UnconditionalWrite) {
            change.unchanged.clear();
        }
        Mutation::Placement(Box::new(change))
    }

    fn keep(&mut self, kept: KeptState, value: Option<Bytes>) {
        self.bytes += size_of_kept_state(&kept, value.as_ref());
        self.change.kept.insert(kept, value);
    }
}

fn size_of_kept_state(kept: &KeptState, value: Option<&Bytes>) -> usize {
    kept.key().len() + value.map_or(0, Bytes::len)
}

/// Transactions of a pass, in the order of sending. `gone`: applications that no longer exist and whose decisions are
/// still kept.
///
/// # Errors
/// Data to keep cannot be written as JSON.
pub(crate) fn split_into_batches(
    units: &[WriteUnit],
    kept: &[memory::MemoryChange],
    gone: &[ObjectKey],
) -> Result<Vec<Batch>, serde_json::Error> {
    let mut all: Vec<Batch> = Vec::new();
    let (on_all, others): (Vec<&WriteUnit>, Vec<&WriteUnit>) =
        units.iter().partition(|unit| unit.applications.is_some());
    for unit in on_all {
        // One cluster each: a rejection delays no other.
        all.push(Batch::default());
        add_unit(&mut all, unit)?;
    }
    for unit in others {
        add_unit(&mut all, unit)?;
    }
    for kept in kept {
        let cluster = KeptState::Cluster(kept.cluster.clone());
        let value = kept.memory.as_ref().map(serde_json::to_vec).transpose()?.map(Bytes::from);
        let batch = batch_with_room(&mut all, 0, 1, size_of_kept_state(&cluster, value.as_ref()));
        batch.keep(cluster, value);
        batch.clusters.push(kept.clone());
    }
    for application in gone {
        let decision = KeptState::Decision(application.clone());
        batch_with_room(&mut all, 0, 1, size_of_kept_state(&decision, None)).keep(decision, None);
    }
    Ok(all)
}

fn batch_with_room(all: &mut Vec<Batch>, conditions: usize, writes: usize, bytes: usize) -> &mut Batch {
    let full = all.last().is_none_or(|last| !last.has_room_for(conditions, writes, bytes));
    if full {
        all.push(Batch::default());
    }
    let last = all.len() - 1;
    &mut all[last]
}

fn add_unit(all: &mut Vec<Batch>, unit: &WriteUnit) -> Result<(), serde_json::Error> {
    let objects: Vec<(&ObjectKey, Option<StoredObject>)> = unit
        .writes
        .iter()
        .map(|write| (&write.key, write.object.as_ref().map(StoredObject::from_object)))
        .collect();
    let decision = match &unit.decision {
        None => None,
        Some((application, decision)) => {
            Some((KeptState::Decision(application.clone()), Bytes::from(serde_json::to_vec(decision)?)))
        }
    };
    let object_size = |(key, object): &(&ObjectKey, Option<StoredObject>)| {
        key.etcd_key().len() + object.as_ref().map_or(0, StoredObject::size)
    };
    let bytes = objects.iter().map(object_size).sum::<usize>()
        + decision.as_ref().map_or(0, |(kept, value)| size_of_kept_state(kept, Some(value)));
    let conditions = unit.writes.len() + unit.basis.len();
    let batch = batch_with_room(all, conditions, objects.len() + usize::from(decision.is_some()), bytes);
    batch.bytes += bytes;
    let change = &mut batch.change;
    change.unchanged.extend(unit.writes.iter().map(|write| (write.key.clone(), write.revision)));
    change.unchanged.extend(unit.basis.iter().cloned());
    change.applications = unit.applications;
    change.objects.extend(objects.into_iter().map(|(key, object)| (key.clone(), object)));
    change.kept.extend(decision.map(|(kept, value)| (kept, Some(value))));
    batch.decisions.extend(unit.decision.clone());
    batch.bindings.extend(unit.binding.clone());
    batch.deletions.extend(unit.deletion.clone());
    batch.moves += u64::from(unit.moves);
    batch.moved += u64::from(unit.moves && unit.binding.is_some());
    *batch.kinds.entry(unit.kind).or_default() += 1;
    Ok(())
}

/// Adds the history of moves, including this transaction's, so that the next leader continues to count. `revision`:
/// that of the history in `memory`; a concurrent change of the count is never overwritten.
///
/// # Errors
/// The history cannot be written as JSON.
pub(crate) fn count_moves(
    batch: &mut Batch,
    memory: &Memory,
    revision: i64,
    config: &SchedulerConfig,
    now: OffsetDateTime,
) -> Result<(), serde_json::Error> {
    if batch.moves > 0 {
        let mut after = memory.clone();
        after.note_moves(batch.moves, config.reschedule_after, now);
        batch.change.moves_revision = Some(revision);
        batch.keep(KeptState::Moves, Some(serde_json::to_vec(&after.moves)?.into()));
    }
    Ok(())
}
