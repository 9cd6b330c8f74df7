//! A pass as few transactions, each within what etcd takes.
//!
//! Guarantees: what belongs together is in one transaction; each write compares the revision that it was decided on,
//! and each binding that of its cluster and of the cloud that the cluster inherits from, so that what was judged
//! is what is committed (invariant I11). What stands on all applications (that a cluster is not used) is a transaction of
//! its own and the first, before this pass changes any: it is refused if one was written since.

use std::collections::BTreeMap;

use bytes::Bytes;
use madako_messages::actors::{BindingEvidence, Mutation};
use madako_messages::canary::{Canary, is_planted};
use madako_messages::keys;
use madako_messages::placement::decision::Decision;
use madako_messages::placement::kind::{Kind, ObjectKey};
use madako_messages::placement::limits::{MOST_BYTES, MOST_CONDITIONS, MOST_OPERATIONS};
use madako_messages::store::{Condition, Write};
use time::OffsetDateTime;

use crate::config::SchedulerConfig;
use crate::draft::{Unit, What};
use crate::memory::{Kept, Memory};

/// Bytes of keys and values in one transaction. One unit alone may be greater: an application has at most 1 MiB when
/// the API takes it, and its decision little.
const PREFERRED_BYTES: usize = 1 << 20;

const _: () = assert!(PREFERRED_BYTES < MOST_BYTES, "a full transaction has room for the count of moves");

/// One transaction.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Batch {
    /// Resources that must still have these revisions; 0: that must not exist.
    pub(crate) conditions: BTreeMap<ObjectKey, i64>,
    /// Resources that are written; `None`: deleted.
    pub(crate) objects: BTreeMap<ObjectKey, Option<Bytes>>,
    /// No application may have been written after this revision.
    pub(crate) applications: Option<i64>,
    /// What is kept of moves must still have this revision; 0: nothing may be kept.
    pub(crate) moves_revision: Option<i64>,
    /// What is kept below the prefix, by relative keys; `None`: deleted.
    pub(crate) kept: BTreeMap<String, Option<Bytes>>,
    /// Applications, and the clusters that they are bound to by this.
    pub(crate) bindings: Vec<(ObjectKey, ObjectKey)>,
    /// How many moves count: bindings that are moves, and clusters that are created for one.
    pub(crate) moves: u64,
    /// Decisions that become true by this.
    pub(crate) decisions: Vec<(ObjectKey, Decision)>,
    /// What is remembered of clusters from then on.
    pub(crate) clusters: Vec<Kept>,
    /// What it is for, and how many of each.
    pub(crate) what: BTreeMap<What, u64>,
    /// How many of the bindings are moves.
    pub(crate) moved: u64,
    bytes: usize,
}

impl Batch {
    /// Whether there is room for so much more. Room for the count of moves is left.
    fn takes(&self, conditions: usize, writes: usize, bytes: usize) -> bool {
        self.is_empty()
            || (self.applications.is_none()
                && self.conditions.len() + conditions < MOST_CONDITIONS
                && self.objects.len() + self.kept.len() + writes < MOST_OPERATIONS
                && self.bytes + bytes <= PREFERRED_BYTES)
    }

    /// Whether nothing is in it.
    pub(crate) fn is_empty(&self) -> bool {
        self.objects.is_empty() && self.kept.is_empty()
    }

    /// What the leader is asked to commit, with the prefix of what is kept.
    pub(crate) fn mutation(&self, prefix: &str, evidence: Vec<BindingEvidence>) -> Mutation {
        let conditions = self
            .conditions
            .iter()
            .filter(|_| !is_planted(Canary::UnconditionalWrite))
            .map(|(key, revision)| Condition::Unchanged { key: key.etcd_key(), revision: *revision });
        let moves = self.moves_revision.map(|revision| {
            let key = format!("{prefix}{}", keys::PLACEMENT_MOVES);
            Condition::Unchanged { key, revision }
        });
        let applications = self.applications.map(|revision| {
            let prefix = Kind::Application.prefix().to_owned();
            Condition::NoneSince { prefix, revision }
        });
        let objects = self.objects.iter().map(|(key, value)| (key.etcd_key(), value));
        let kept = self.kept.iter().map(|(key, value)| (format!("{prefix}{key}"), value));
        let writes = objects.chain(kept).map(|(key, value)| match value {
            Some(value) => Write::Put { key, value: value.clone(), lease: 0 },
            None => Write::Delete { key },
        });
        Mutation::Placement {
            what: "placement",
            conditions: conditions.chain(moves).chain(applications).collect(),
            writes: writes.collect(),
            evidence,
        }
    }

    fn keep(&mut self, key: String, value: Option<Bytes>) {
        self.bytes += key.len() + value.as_ref().map_or(0, Bytes::len);
        self.kept.insert(key, value);
    }
}

/// The relative key below a prefix for what is kept of a resource.
pub(crate) fn kept_key(prefix: &str, of: &ObjectKey) -> String {
    format!("{prefix}{}/{}", of.namespace.as_deref().unwrap_or_default(), of.name)
}

/// The transactions of a pass, in the order in which they are to be sent. `gone`: applications that do not exist any
/// more, and whose decisions are still kept.
///
/// # Errors
/// Something that is to be kept cannot be written as JSON.
pub(crate) fn batches(
    units: &[Unit],
    kept: &[Kept],
    gone: &[ObjectKey],
) -> Result<Vec<Batch>, serde_json::Error> {
    let mut all: Vec<Batch> = Vec::new();
    let (on_all, others): (Vec<&Unit>, Vec<&Unit>) =
        units.iter().partition(|unit| unit.applications.is_some());
    for unit in on_all {
        // One cluster each: what is refused holds up no other.
        all.push(Batch::default());
        add(&mut all, unit)?;
    }
    for unit in others {
        add(&mut all, unit)?;
    }
    for kept in kept {
        let key = kept_key(keys::PLACEMENT_CLUSTERS, &kept.cluster);
        let value = kept.memory.as_ref().map(serde_json::to_vec).transpose()?.map(Bytes::from);
        let batch = room(&mut all, 0, 1, key.len() + value.as_ref().map_or(0, Bytes::len));
        batch.keep(key, value);
        batch.clusters.push(kept.clone());
    }
    for application in gone {
        let key = kept_key(keys::PLACEMENT_DECISIONS, application);
        room(&mut all, 0, 1, key.len()).keep(key, None);
    }
    Ok(all)
}

fn room(all: &mut Vec<Batch>, conditions: usize, writes: usize, bytes: usize) -> &mut Batch {
    let full = all.last().is_none_or(|last| !last.takes(conditions, writes, bytes));
    if full {
        all.push(Batch::default());
    }
    let last = all.len() - 1;
    &mut all[last]
}

fn add(all: &mut Vec<Batch>, unit: &Unit) -> Result<(), serde_json::Error> {
    let objects: Vec<(&ObjectKey, Option<Bytes>)> = unit
        .writes
        .iter()
        .map(|write| (&write.key, write.object.as_ref().map(|object| Bytes::from(object.to_json()))))
        .collect();
    let decision = match &unit.decision {
        None => None,
        Some((application, decision)) => {
            let key = kept_key(keys::PLACEMENT_DECISIONS, application);
            Some((key, Bytes::from(serde_json::to_vec(decision)?)))
        }
    };
    let size =
        |key: &ObjectKey, value: &Option<Bytes>| key.etcd_key().len() + value.as_ref().map_or(0, Bytes::len);
    let bytes = objects.iter().map(|(key, value)| size(key, value)).sum::<usize>()
        + decision.as_ref().map_or(0, |(key, value)| key.len() + value.len());
    let conditions = unit.writes.len() + unit.basis.len();
    let batch = room(all, conditions, objects.len() + usize::from(decision.is_some()), bytes);
    batch.bytes += bytes;
    batch.conditions.extend(unit.writes.iter().map(|write| (write.key.clone(), write.revision)));
    batch.conditions.extend(unit.basis.iter().cloned());
    batch.applications = unit.applications;
    batch.objects.extend(objects.into_iter().map(|(key, value)| (key.clone(), value)));
    batch.kept.extend(decision.map(|(key, value)| (key, Some(value))));
    batch.decisions.extend(unit.decision.clone());
    batch.bindings.extend(unit.binding.clone());
    batch.moves += u64::from(unit.moves);
    batch.moved += u64::from(unit.moves && unit.binding.is_some());
    *batch.what.entry(unit.what).or_default() += 1;
    Ok(())
}

/// Adds to a transaction that moves applications how many moved when, with its own: who leads next goes on counting.
/// `revision`: that of what is kept, as `memory` shows it; a count that others changed is never overwritten.
///
/// # Errors
/// It cannot be written as JSON.
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
        batch.moves_revision = Some(revision);
        batch.keep(keys::PLACEMENT_MOVES.to_owned(), Some(serde_json::to_vec(&after.moves)?.into()));
    }
    Ok(())
}
