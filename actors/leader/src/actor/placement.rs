//! Checks and commits the changes of placement: its ownership, and its mutations as transactions at the root of etcd.
//!
//! Guarantees: every transaction compares the leader key's create revision and the owner of placement, so that
//! neither a deposed leader nor another prefix decides. It also compares the revisions of all inputs of its bindings,
//! so that the committed state is the evaluated one (invariant I11).

use std::sync::Arc;

use madako_domain::invariants::{BindingCheck, PlacementChange, check_allowed_bindings, evidence_conditions};
use madako_domain::limits::MOST_OPERATIONS;
use madako_domain::placement::change::PlacementMutation;
use madako_domain::placement::kind::ObjectKey;
use madako_domain::placement::objects::Stored;
use madako_domain::placement::ownership;
use madako_domain::placement::ownership::{Ownership, Step, ownership_fence};
use madako_domain::store::{Epoch, Outcome, Transaction};
use madako_protocol::actors::CommitError;
use madako_protocol::placement::objects::Objects;
use madako_protocol::store::Store;
use tokio::sync::watch;

use crate::limits::MOST_CLAIMS;

/// Ports of a leader whose instance decides about placement.
#[derive(Clone)]
pub struct PlacementAccess {
    /// The store without this instance's prefix.
    pub root: Arc<dyn Store>,
    /// Resources for the evaluation of bindings.
    pub objects: Arc<dyn Objects>,
    /// Key prefix of this instance's leaders.
    pub prefix: String,
    pub ownership: watch::Sender<Ownership>,
}

pub(crate) async fn claim_ownership(
    access: &PlacementAccess,
    epoch: &Epoch,
) -> Result<Ownership, CommitError> {
    for _ in 0..MOST_CLAIMS {
        let found = access.root.list(ownership::KEY).await.map_err(CommitError::Store)?;
        match ownership::next_step(found.entries.get(ownership::KEY), &access.prefix, epoch) {
            Step::Settled(settled) => return Ok(settled),
            Step::Claim(transaction) => {
                match access.root.commit(transaction).await.map_err(CommitError::Store)? {
                    Outcome::Committed { revision } => return Ok(Ownership::Ours { revision }),
                    Outcome::Refused { failed }
                        if failed.contains(&ownership_fence(&access.prefix, epoch)) =>
                    {
                        break;
                    }
                    // Another client wrote the key in the meantime: read it again.
                    Outcome::Refused { .. } => {}
                }
            }
        }
    }
    Ok(Ownership::Unknown)
}

/// Checks the invariant and builds the transaction at the root.
pub(crate) fn placement_transaction(
    epoch: &Epoch,
    prefix: &str,
    owner: &Ownership,
    change: &PlacementMutation,
    stored: &dyn Fn(&ObjectKey) -> Option<Arc<Stored>>,
) -> Result<Transaction, CommitError> {
    let owned =
        owner.condition().ok_or_else(|| CommitError::Conflict { keys: vec![ownership::KEY.to_owned()] })?;
    if let Some(key) = change.find_misnamed_object() {
        return Err(CommitError::ForeignKey { key: key.etcd_key() });
    }
    let (given, writes, evidence) = (change.conditions(prefix), change.writes(prefix), &change.evidence);
    let BindingCheck { violations, changed } =
        check_allowed_bindings(&PlacementChange { conditions: &given, writes: &writes, evidence, stored });
    if !violations.is_empty() {
        return Err(CommitError::Invariant { violations });
    }
    if !changed.is_empty() {
        return Err(CommitError::Conflict { keys: changed });
    }
    let mut conditions = vec![ownership_fence(prefix, epoch), owned];
    conditions.extend(given);
    for compared in evidence_conditions(evidence) {
        match conditions.iter().find(|condition| condition.compared_key() == compared.compared_key()) {
            None => conditions.push(compared),
            Some(known) if *known == compared => {}
            // Two parts of the mutation were decided on two revisions of one resource.
            Some(_) => return Err(CommitError::Conflict { keys: vec![compared.compared_key().to_owned()] }),
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
