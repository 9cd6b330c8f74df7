//! Placement at the gate: who owns it, and its mutations as transactions at the root of etcd.
//!
//! Guarantees: every transaction compares the leader key's create revision and the owner of placement, so that neither
//! a deposed leader nor another prefix decides; and the revisions of everything that its bindings were judged by, so
//! that what is committed is what was judged (invariant I11).

use std::sync::Arc;

use madako_messages::actors::{BindingEvidence, CommitError};
use madako_messages::invariants::{Judged, PlacementChange, judged_by, placed_where_allowed};
use madako_messages::placement::kind::ObjectKey;
use madako_messages::placement::limits::MOST_OPERATIONS;
use madako_messages::placement::objects::{Objects, Stored};
use madako_messages::placement::ownership::{self, Ownership, Step, fence};
use madako_messages::store::{Condition, Epoch, Outcome, Store, Transaction, Write};
use tokio::sync::watch;

/// How often the owner's key may change between a look at it and the claim, before that is tried later.
const MOST_CLAIMS: usize = 3;

/// What the leader of an instance that decides about placement is given.
#[derive(Clone)]
pub struct PlacementGate {
    /// The store at its root.
    pub root: Arc<dyn Store>,
    /// Placement's resources, as the bindings of a transaction are judged by them.
    pub objects: Arc<dyn Objects>,
    /// What the keys of this instance's leaders begin with.
    pub prefix: String,
    /// Where it is told who owns placement.
    pub ownership: watch::Sender<Ownership>,
}

/// Claims placement for an epoch, unless another prefix owns it.
pub(crate) async fn claim(gate: &PlacementGate, epoch: &Epoch) -> Result<Ownership, CommitError> {
    for _ in 0..MOST_CLAIMS {
        let found = gate.root.list(ownership::KEY).await.map_err(CommitError::Store)?;
        match ownership::step(found.entries.get(ownership::KEY), &gate.prefix, epoch) {
            Step::Settled(settled) => return Ok(settled),
            Step::Claim(transaction) => {
                match gate.root.commit(transaction).await.map_err(CommitError::Store)? {
                    Outcome::Committed { revision } => return Ok(Ownership::Ours { revision }),
                    Outcome::Refused { failed } if failed.contains(&fence(&gate.prefix, epoch)) => break,
                    // Somebody else wrote the key meanwhile: look again.
                    Outcome::Refused { .. } => {}
                }
            }
        }
    }
    Ok(Ownership::Unknown)
}

/// What a mutation of placement consists of.
#[derive(Clone, Copy)]
pub(crate) struct Proposed<'a> {
    pub(crate) conditions: &'a [Condition],
    pub(crate) writes: &'a [Write],
    pub(crate) evidence: &'a [BindingEvidence],
}

/// The transaction of a mutation, at the root, after the invariant was checked.
pub(crate) fn transaction(
    epoch: &Epoch,
    prefix: &str,
    owner: &Ownership,
    proposed: Proposed<'_>,
    stored: &dyn Fn(&ObjectKey) -> Option<Arc<Stored>>,
) -> Result<Transaction, CommitError> {
    let Proposed { conditions: given, writes, evidence } = proposed;
    let owned =
        owner.condition().ok_or_else(|| CommitError::Conflict { keys: vec![ownership::KEY.to_owned()] })?;
    let kept = format!("{prefix}madako/");
    let foreign = |key: &str| ObjectKey::from_etcd_key(key).is_none() && !key.starts_with(&kept);
    if let Some(key) = writes.iter().map(written).find(|key| foreign(key)) {
        return Err(CommitError::Encoding { why: format!("placement does not write {key}") });
    }
    let Judged { violations, changed } =
        placed_where_allowed(&PlacementChange { conditions: given, writes, evidence, stored });
    if !violations.is_empty() {
        return Err(CommitError::Invariant { violations });
    }
    if !changed.is_empty() {
        return Err(CommitError::Conflict { keys: changed });
    }
    let mut conditions = vec![fence(prefix, epoch), owned];
    conditions.extend(given.iter().cloned());
    for judged in judged_by(evidence) {
        match conditions.iter().find(|condition| condition.compared() == judged.compared()) {
            None => conditions.push(judged),
            Some(known) if *known == judged => {}
            // Two of its parts were decided on two revisions of one resource.
            Some(_) => return Err(CommitError::Conflict { keys: vec![judged.compared().to_owned()] }),
        }
    }
    for (what, count) in [("comparisons", conditions.len()), ("writes", writes.len())] {
        if count > MOST_OPERATIONS {
            let why = format!("it has {count} {what}; etcd takes {MOST_OPERATIONS}");
            return Err(CommitError::Encoding { why });
        }
    }
    Ok(Transaction { conditions, writes: writes.to_vec() })
}

fn written(write: &Write) -> &str {
    match write {
        Write::Put { key, .. } | Write::Delete { key } => key,
    }
}

#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;
