//! Writes of many at a time, sent together.
//!
//! A transaction costs etcd and this process far more than the write in it: the request, the log, the wake-up of every
//! watch. So whoever comes while others are under way waits for them, and goes with all who wait in one request. Each
//! stays a transaction of its own inside it: its conditions decide about its writes alone, and its answer is its own. They
//! get one revision, as the writes of any transaction do.
//!
//! Guarantees: who is alone is sent at once; transactions that touch the same key never go together, nor any that has
//! many or large writes; one that the store refuses as it is (too large, not allowed) spoils no other one; one that
//! nobody waits for any longer is not sent any more.

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

/// One that waits to be sent.
struct Waiting {
    transaction: Transaction,
    reply: oneshot::Sender<Answer>,
}

/// The way to write.
pub(super) struct Writer {
    waiting: mpsc::Sender<Waiting>,
    patience: Duration,
}

/// A writer, and what must run for it.
pub(super) fn writer(source: &Arc<dyn Source>) -> (Writer, [impl Future<Output = ()> + Send + use<>; LANES]) {
    let (waiting, receiver) = mpsc::channel(MOST_WRITES_WAITING);
    let receiver = Arc::new(Mutex::new(receiver));
    // One request may be under way already, and one that is sent then takes a deadline of its own.
    let patience = source.deadline() * 2;
    let lane = |_| send(Arc::clone(source), Arc::clone(&receiver));
    (Writer { waiting, patience }, std::array::from_fn(lane))
}

impl Writer {
    /// Commits one transaction.
    pub(super) async fn commit(&self, transaction: Transaction) -> Answer {
        let committed = async {
            let (reply, answer) = oneshot::channel();
            self.waiting.send(Waiting { transaction, reply }).await.map_err(|_| ended())?;
            answer.await.map_err(|_| ended())?
        };
        timeout(self.patience, committed).await.unwrap_or_else(|_| Err(late(self.patience)))
    }
}

const OPERATION: &str = "transaction on placement's resources";

fn ended() -> StoreError {
    let why = "nobody writes to the store any longer".to_owned();
    // It may have been sent before.
    StoreError { operation: OPERATION.to_owned(), kind: StoreErrorKind::Unavailable, why }
}

fn late(patience: Duration) -> StoreError {
    let why = format!("no answer within {patience:?}");
    StoreError { operation: OPERATION.to_owned(), kind: StoreErrorKind::Deadline, why }
}

/// Sends what waits, one request after the other.
async fn send(source: Arc<dyn Source>, receiver: Arc<Mutex<mpsc::Receiver<Waiting>>>) {
    let mut waiting = VecDeque::new();
    loop {
        if waiting.is_empty() {
            let mut come = Vec::new();
            if receiver.lock().await.recv_many(&mut come, MOST_TOGETHER).await == 0 {
                return;
            }
            waiting.extend(come);
        }
        waiting.retain(|waiting: &Waiting| !waiting.reply.is_closed());
        if waiting.is_empty() {
            continue;
        }
        let (transactions, replies): (Vec<_>, Vec<_>) =
            take(&mut waiting).into_iter().map(|Waiting { transaction, reply }| (transaction, reply)).unzip();
        let answers = together(source.as_ref(), transactions).await;
        for (reply, answer) in replies.into_iter().zip(answers) {
            // Nobody waits any longer: what became of it is in the view.
            let _ = reply.send(answer);
        }
    }
}

/// The first that wait and can go together, in their order; the others stay.
fn take(waiting: &mut VecDeque<Waiting>) -> Vec<Waiting> {
    let mut taken: Vec<Waiting> = Vec::new();
    let (mut keys, mut bytes) = (BTreeSet::new(), 0);
    while let Some(next) = waiting.front() {
        let Transaction { conditions, writes } = &next.transaction;
        let own: BTreeSet<String> = touched(&next.transaction).map(str::to_owned).collect();
        let size: usize = writes.iter().map(size).sum();
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

fn touched(transaction: &Transaction) -> impl Iterator<Item = &str> {
    let compared = transaction.conditions.iter().map(Condition::compared);
    let written = transaction.writes.iter().map(|write| match write {
        Write::Put { key, .. } | Write::Delete { key } => key.as_str(),
    });
    compared.chain(written)
}

fn size(write: &Write) -> usize {
    match write {
        Write::Put { key, value, .. } => key.len() + value.len(),
        Write::Delete { key } => key.len(),
    }
}

/// What became of each.
async fn together(source: &dyn Source, mut transactions: Vec<Transaction>) -> Vec<Answer> {
    if transactions.len() == 1 {
        let alone = transactions.pop().into_iter().map(|transaction| source.commit(transaction));
        return futures::future::join_all(alone).await;
    }
    match source.commit_together(transactions.clone()).await {
        Ok(outcomes) => outcomes.into_iter().map(Ok).collect(),
        // It is one of them that cannot be taken, and nothing was written: each is asked for by itself.
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
