//! Placement at the gate: who owns it, and its mutations as transactions at the root of etcd.
//!
//! Guarantees: every transaction compares the leader key's create revision and the owner of placement, so that neither
//! a deposed leader nor another prefix decides; and the revisions of everything that its bindings were judged by, so
//! that what is committed is what was judged (invariant I11).

use std::sync::Arc;

use madako_domain::invariants::{Judged, PlacementChange, judged_by, placed_where_allowed};
use madako_domain::limits::MOST_OPERATIONS;
use madako_domain::placement::change::PlacementMutation;
use madako_domain::placement::kind::ObjectKey;
use madako_domain::placement::objects::Stored;
use madako_domain::placement::ownership;
use madako_domain::placement::ownership::{Ownership, Step, fence};
use madako_domain::store::{Epoch, Outcome, Transaction};
use madako_protocol::actors::CommitError;
use madako_protocol::placement::objects::Objects;
use madako_protocol::store::Store;
use tokio::sync::watch;

use crate::limits::MOST_CLAIMS;

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

/// The transaction of a mutation, at the root, after the invariant was checked.
pub(crate) fn transaction(
    epoch: &Epoch,
    prefix: &str,
    owner: &Ownership,
    change: &PlacementMutation,
    stored: &dyn Fn(&ObjectKey) -> Option<Arc<Stored>>,
) -> Result<Transaction, CommitError> {
    let owned =
        owner.condition().ok_or_else(|| CommitError::Conflict { keys: vec![ownership::KEY.to_owned()] })?;
    if let Some(key) = change.misnamed() {
        return Err(CommitError::ForeignKey { key: key.etcd_key() });
    }
    let (given, writes, evidence) = (change.conditions(prefix), change.writes(prefix), &change.evidence);
    let Judged { violations, changed } =
        placed_where_allowed(&PlacementChange { conditions: &given, writes: &writes, evidence, stored });
    if !violations.is_empty() {
        return Err(CommitError::Invariant { violations });
    }
    if !changed.is_empty() {
        return Err(CommitError::Conflict { keys: changed });
    }
    let mut conditions = vec![fence(prefix, epoch), owned];
    conditions.extend(given);
    for judged in judged_by(evidence) {
        match conditions.iter().find(|condition| condition.compared() == judged.compared()) {
            None => conditions.push(judged),
            Some(known) if *known == judged => {}
            // Two of its parts were decided on two revisions of one resource.
            Some(_) => return Err(CommitError::Conflict { keys: vec![judged.compared().to_owned()] }),
        }
    }
    for (operations, count) in [("comparisons", conditions.len()), ("writes", writes.len())] {
        if count > MOST_OPERATIONS {
            return Err(CommitError::TooLarge {
                what: "placement",
                operations,
                count,
                most: MOST_OPERATIONS,
            });
        }
    }
    Ok(Transaction { conditions, writes })
}

#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;
