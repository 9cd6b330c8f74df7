//! Group commit: concurrent writes share a request.
//!
//! A transaction costs etcd and this process far more than its writes: the request, the log, the wake-up of every
//! watch. Transactions that arrive while others are in progress therefore wait, and go in one request together. Each
//! remains a transaction of its own inside it, with its own conditions and answer. They share one revision, like the
//! writes of any transaction.
//!
//! Guarantees: a single transaction is sent at once. Transactions that touch the same key never share a request, nor do
//! transactions with many or large writes. A transaction that the store refuses (too large, not permitted) does not
//! affect the others. A transaction without a waiting caller is no longer sent.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use madako_domain::store::{Condition, Outcome, StoreError, StoreErrorKind, Transaction, Write};
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::time::timeout;

use super::source::Source;
pub(super) use crate::limits::LANES;
use crate::limits::{MOST_OPERATIONS, MOST_TOGETHER, MOST_TOGETHER_BYTES, MOST_WRITES_WAITING};

type Answer = Result<Outcome, StoreError>;

struct WaitingTransaction {
    transaction: Transaction,
    reply: oneshot::Sender<Answer>,
}

pub(super) struct Writer {
    waiting: mpsc::Sender<WaitingTransaction>,
    patience: Duration,
}

pub(super) fn start_writer(
    source: &Arc<dyn Source>,
) -> (Writer, [impl Future<Output = ()> + Send + use<>; LANES]) {
    let (waiting, receiver) = mpsc::channel(MOST_WRITES_WAITING);
    let receiver = Arc::new(Mutex::new(receiver));
    // A request may already be in progress, and the next one has its own deadline.
    let patience = source.deadline() * 2;
    let lane = |_| send_transactions(Arc::clone(source), Arc::clone(&receiver));
    (Writer { waiting, patience }, std::array::from_fn(lane))
}

impl Writer {
    pub(super) async fn commit(&self, transaction: Transaction) -> Answer {
        let committed = async {
            let (reply, answer) = oneshot::channel();
            self.waiting.send(WaitingTransaction { transaction, reply }).await.map_err(|_| sender_ended())?;
            answer.await.map_err(|_| sender_ended())?
        };
        timeout(self.patience, committed).await.unwrap_or_else(|_| Err(deadline_error(self.patience)))
    }
}

const OPERATION: &str = "transaction on placement's resources";

fn sender_ended() -> StoreError {
    let why = "the writer to the store has ended".to_owned();
    // The transaction may have been sent.
    StoreError { operation: OPERATION.to_owned(), kind: StoreErrorKind::Unavailable, why }
}

fn deadline_error(patience: Duration) -> StoreError {
    let why = format!("no answer within {patience:?}");
    StoreError { operation: OPERATION.to_owned(), kind: StoreErrorKind::Deadline, why }
}

/// Sends waiting transactions, one request after the other.
async fn send_transactions(
    source: Arc<dyn Source>,
    receiver: Arc<Mutex<mpsc::Receiver<WaitingTransaction>>>,
) {
    let mut waiting = VecDeque::new();
    loop {
        if waiting.is_empty() {
            let mut come = Vec::new();
            if receiver.lock().await.recv_many(&mut come, MOST_TOGETHER).await == 0 {
                return;
            }
            waiting.extend(come);
        }
        waiting.retain(|waiting: &WaitingTransaction| !waiting.reply.is_closed());
        if waiting.is_empty() {
            continue;
        }
        let (transactions, replies): (Vec<_>, Vec<_>) = take_compatible(&mut waiting)
            .into_iter()
            .map(|WaitingTransaction { transaction, reply }| (transaction, reply))
            .unzip();
        let answers = commit_together(source.as_ref(), transactions).await;
        for (reply, answer) in replies.into_iter().zip(answers) {
            // The caller may be gone; the view shows the result.
            let _ = reply.send(answer);
        }
    }
}

/// Takes the first waiting transactions that can share a request, in their order; the others stay.
fn take_compatible(waiting: &mut VecDeque<WaitingTransaction>) -> Vec<WaitingTransaction> {
    let mut taken: Vec<WaitingTransaction> = Vec::new();
    let (mut keys, mut bytes) = (BTreeSet::new(), 0);
    while let Some(next) = waiting.front() {
        let Transaction { conditions, writes } = &next.transaction;
        let own: BTreeSet<String> = list_keys_of_transaction(&next.transaction).map(str::to_owned).collect();
        let size: usize = writes.iter().map(size_of_write).sum();
        let small = conditions.len().max(writes.len()) <= MOST_OPERATIONS
            && size <= MOST_TOGETHER_BYTES
            && conditions.iter().all(|condition| matches!(condition, Condition::Unchanged { .. }));
        let joins = small
            && taken.len() < MOST_TOGETHER
            && bytes + size <= MOST_TOGETHER_BYTES
            && keys.is_disjoint(&own);
        if !(taken.is_empty() || joins) {
            break;
        }
        bytes += size;
        keys.extend(own);
        taken.extend(waiting.pop_front());
        if !small {
            break;
        }
    }
    taken
}

fn list_keys_of_transaction(transaction: &Transaction) -> impl Iterator<Item = &str> {
    let compared = transaction.conditions.iter().map(Condition::compared_key);
    let written = transaction.writes.iter().map(|write| match write {
        Write::Put { key, .. } | Write::Delete { key } => key.as_str(),
    });
    compared.chain(written)
}

fn size_of_write(write: &Write) -> usize {
    match write {
        Write::Put { key, value, .. } => key.len() + value.len(),
        Write::Delete { key } => key.len(),
    }
}

/// Commits the transactions; returns the answer of each.
async fn commit_together(source: &dyn Source, mut transactions: Vec<Transaction>) -> Vec<Answer> {
    if transactions.len() == 1 {
        let alone = transactions.pop().into_iter().map(|transaction| source.commit(transaction));
        return futures::future::join_all(alone).await;
    }
    match source.commit_together(transactions.clone()).await {
        Ok(outcomes) => outcomes.into_iter().map(Ok).collect(),
        // One of them is refused, and nothing was written: send each separately.
        Err(error) if matches!(error.kind, StoreErrorKind::Denied | StoreErrorKind::Invalid) => {
            let mut answers = Vec::with_capacity(transactions.len());
            for transaction in transactions {
                answers.push(source.commit(transaction).await);
            }
            answers
        }
        Err(error) => vec![Err(error); transactions.len()],
    }
}

#[cfg(test)]
mod tests;
