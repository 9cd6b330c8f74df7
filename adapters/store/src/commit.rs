//! Sends transactions to etcd, and finds the conditions that failed.

use std::collections::BTreeMap;

use etcd_client::{Compare, CompareOp, GetOptions, PutOptions, Txn, TxnOp, TxnOpResponse, TxnResponse};
use madako_domain::canary::{Canary, is_planted};
use madako_domain::store::{Condition, Outcome, StoreError, StoreErrorKind, Transaction, Write};

use crate::connections::Connections;
use crate::limits::MOST_KEYS_NAMED;
use crate::namespace::Namespace;
use crate::telemetry::Operation;

/// Runs a transaction. Sends it once.
pub(crate) async fn commit_transaction(
    connections: &Connections,
    namespace: &Namespace,
    transaction: Transaction,
) -> Result<Outcome, StoreError> {
    let object = name_object(&transaction);
    let fail = |kind, why: &str| StoreError {
        operation: Operation::Commit.describe_on(&object),
        kind,
        why: why.to_owned(),
    };
    let impossible =
        |condition: &Condition| matches!(condition, Condition::Created { revision, .. } if *revision <= 0);
    if let Some(condition) = transaction.conditions.iter().find(|condition| impossible(condition)) {
        // In etcd a create revision of 0 means "does not exist", the opposite of this condition.
        return Err(fail(
            StoreErrorKind::Invalid,
            &format!("{condition:?} cannot hold: revisions are greater than 0"),
        ));
    }
    let txn = etcd_transaction(namespace, &transaction);
    let answer = connections
        .send_request(Operation::Commit, &object, connections.timeout(), |connection| {
            let txn = txn.clone();
            async move { connection.kv_client().txn(txn).await }
        })
        .await?;
    let revision = answer.header().map_or(0, |header| header.revision());
    commit_outcome(namespace, transaction, answer, revision)
        .ok_or_else(|| fail(StoreErrorKind::Other, UNREASONED))
}

/// Runs several transactions in one request, nested in one without conditions. Each has its own outcome; the committed
/// ones share a revision. Sends the request once. No two may touch the same key.
pub(crate) async fn commit_together(
    connections: &Connections,
    namespace: &Namespace,
    transactions: Vec<Transaction>,
) -> Result<Vec<Outcome>, StoreError> {
    // No keys, because the error of one transaction must not name the keys of others.
    let object = format!("{} transactions at a time", transactions.len());
    let nested: Vec<_> =
        transactions.iter().map(|transaction| TxnOp::txn(etcd_transaction(namespace, transaction))).collect();
    let all = Txn::new().and_then(nested);
    let answer = connections
        .send_request(Operation::Commit, &object, connections.timeout(), |connection| {
            let all = all.clone();
            async move { connection.kv_client().txn(all).await }
        })
        .await?;
    let revision = answer.header().map_or(0, |header| header.revision());
    // The store accepted the request, so its writes are unknown.
    let fail = |why: &str| StoreError {
        operation: Operation::Commit.describe_on(&object),
        kind: StoreErrorKind::Unavailable,
        why: why.to_owned(),
    };
    let answers = answer.op_responses();
    if answers.len() != transactions.len() {
        return Err(fail("the store's answer has a wrong number of transactions"));
    }
    let outcomes = transactions.into_iter().zip(answers).map(|(transaction, answer)| match answer {
        TxnOpResponse::Txn(answer) => {
            commit_outcome(namespace, transaction, answer, revision).ok_or_else(|| fail(UNREASONED))
        }
        _ => Err(fail("the store's answer is not about a transaction")),
    });
    outcomes.collect()
}

const UNREASONED: &str = "the store refused the transaction, although every condition holds";

/// Outcome of a transaction; `None` if the answer contradicts itself.
fn commit_outcome(
    namespace: &Namespace,
    transaction: Transaction,
    answer: TxnResponse,
    revision: i64,
) -> Option<Outcome> {
    if answer.succeeded() {
        return Some(Outcome::Committed { revision });
    }
    let found = compared_revisions(namespace, answer);
    let failed: Vec<_> =
        transaction.conditions.into_iter().filter(|condition| !is_condition_met(condition, &found)).collect();
    (!failed.is_empty()).then_some(Outcome::Refused { failed })
}

fn name_object(transaction: &Transaction) -> String {
    let mut keys: Vec<&str> = transaction
        .writes
        .iter()
        .map(|write| match write {
            Write::Put { key, .. } | Write::Delete { key } => key.as_str(),
        })
        .collect();
    let more = keys.len().saturating_sub(MOST_KEYS_NAMED);
    keys.truncate(MOST_KEYS_NAMED);
    match (keys.is_empty(), more) {
        (true, _) => "no key".to_owned(),
        (false, 0) => keys.join(", "),
        (false, more) => format!("{} and {more} more", keys.join(", ")),
    }
}

fn etcd_transaction(namespace: &Namespace, transaction: &Transaction) -> Txn {
    let compares: Vec<_> = transaction
        .conditions
        .iter()
        .take(if is_planted(Canary::FirstConditionOnly) { 1 } else { usize::MAX })
        .filter(|condition| {
            !(is_planted(Canary::UnfencedCommit) && matches!(condition, Condition::Created { .. }))
        })
        .map(|condition| match condition {
            Condition::Created { key, revision } => {
                Compare::create_revision(namespace.absolute_key(key), CompareOp::Equal, *revision)
            }
            Condition::Unchanged { key, revision } => {
                Compare::mod_revision(namespace.absolute_key(key), CompareOp::Equal, *revision)
            }
            Condition::NoneSince { prefix, revision } => {
                // For a prefix without keys the comparison uses revision 0.
                Compare::mod_revision(namespace.absolute_key(prefix), CompareOp::Less, revision + 1)
                    .with_prefix()
            }
        })
        .collect();
    let writes: Vec<_> = transaction
        .writes
        .iter()
        .map(|write| match write {
            Write::Put { key, value, lease } => TxnOp::put(
                namespace.absolute_key(key),
                value.to_vec(),
                Some(PutOptions::new().with_lease(*lease)),
            ),
            Write::Delete { key } => TxnOp::delete(namespace.absolute_key(key), None),
        })
        .collect();
    let reads: Vec<_> = transaction
        .conditions
        .iter()
        .map(|condition| {
            let options = GetOptions::new().with_keys_only();
            let options = match condition {
                Condition::Created { .. } | Condition::Unchanged { .. } => options,
                // One key with a later change fails the condition.
                Condition::NoneSince { revision, .. } => {
                    options.with_prefix().with_min_mod_revision(revision + 1).with_limit(1)
                }
            };
            TxnOp::get(namespace.absolute_key(condition.compared_key()), Some(options))
        })
        .collect();
    Txn::new().when(compares).and_then(writes).or_else(reads)
}

/// Create and mod revision of each compared key that exists.
fn compared_revisions(namespace: &Namespace, answer: TxnResponse) -> BTreeMap<String, (i64, i64)> {
    let mut found = BTreeMap::new();
    for response in answer.op_responses() {
        let TxnOpResponse::Get(got) = response else { continue };
        for kv in got.kvs() {
            if let Some(key) = namespace.relative_key(kv.key()) {
                found.insert(key, (kv.create_revision(), kv.mod_revision()));
            }
        }
    }
    found
}

fn is_condition_met(condition: &Condition, found: &BTreeMap<String, (i64, i64)>) -> bool {
    let at = found.get(condition.compared_key());
    match condition {
        Condition::Created { revision, .. } => at.is_some_and(|(created, _)| created == revision),
        Condition::Unchanged { revision, .. } => at.map_or(0, |(_, changed)| *changed) == *revision,
        Condition::NoneSince { prefix, revision } => {
            !found.iter().any(|(key, (_, changed))| key.starts_with(prefix) && changed > revision)
        }
    }
}
