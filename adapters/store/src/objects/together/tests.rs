//! Tests of the grouping of concurrent transactions, over a scripted store.

use std::sync::Mutex as Locked;

use async_trait::async_trait;
use bytes::Bytes;
use proptest::prelude::*;
use tokio::task::yield_now;

use super::*;
use crate::encryption::Encryption;
use crate::watch::{FeedEvent, WatchedKeys};

/// A store that records requests and answers on demand.
struct RecordingSource {
    /// Keys of each request.
    sent: Locked<Vec<Vec<String>>>,
    /// One permit per answer.
    goes_on: tokio::sync::Semaphore,
    /// A key whose requests fail, and the kind of the failure.
    poison: Option<(&'static str, StoreErrorKind)>,
}

impl RecordingSource {
    fn poisoned(poison: Option<(&'static str, StoreErrorKind)>) -> Arc<Self> {
        Arc::new(Self { sent: Locked::default(), goes_on: tokio::sync::Semaphore::new(0), poison })
    }

    fn sent(&self) -> Vec<Vec<String>> {
        self.sent.lock().unwrap().clone()
    }

    async fn answered(&self, transactions: &[Transaction]) -> Result<Vec<Outcome>, StoreError> {
        let keys: Vec<String> = transactions.iter().map(key).collect();
        self.sent.lock().unwrap().push(keys.clone());
        self.goes_on.acquire().await.unwrap().forget();
        if let Some((_, kind)) = self.poison.filter(|(poison, _)| keys.iter().any(|key| key == poison)) {
            let why = "it is poison".to_owned();
            return Err(StoreError { operation: "test".to_owned(), kind, why });
        }
        let outcome = |transaction: &Transaction| match &transaction.conditions[0] {
            Condition::Unchanged { revision: 0, .. } => Outcome::Committed { revision: 7 },
            _ => Outcome::Refused { failed: transaction.conditions.clone() },
        };
        Ok(transactions.iter().map(outcome).collect())
    }
}

#[async_trait]
impl Source for RecordingSource {
    fn watch(&self, _: WatchedKeys) -> mpsc::Receiver<FeedEvent> {
        unreachable!("writers do not watch")
    }

    async fn revision(&self) -> Result<i64, StoreError> {
        unreachable!("writers do not read")
    }

    async fn commit(&self, transaction: Transaction) -> Result<Outcome, StoreError> {
        Ok(self.answered(&[transaction]).await?.remove(0))
    }

    async fn commit_together(&self, transactions: Vec<Transaction>) -> Result<Vec<Outcome>, StoreError> {
        self.answered(&transactions).await
    }

    fn encryption(&self) -> Encryption {
        Encryption::default()
    }

    fn deadline(&self) -> Duration {
        Duration::from_secs(2)
    }
}

fn put(key: &str, revision: i64, bytes: usize) -> Transaction {
    let value = Bytes::from(vec![b'x'; bytes]);
    Transaction {
        conditions: vec![Condition::Unchanged { key: key.to_owned(), revision }],
        writes: vec![Write::Put { key: key.to_owned(), value, lease: 0 }],
    }
}

fn key(transaction: &Transaction) -> String {
    list_keys_of_transaction(transaction).next().unwrap().to_owned()
}

struct Writers {
    store: Arc<RecordingSource>,
    writer: Arc<Writer>,
    _lanes: [madako_protocol::feed::Task; LANES],
}

fn writers(store: Arc<RecordingSource>) -> Writers {
    let source: Arc<dyn Source> = store.clone();
    let (writer, lanes) = start_writer(&source);
    Writers { store, writer: Arc::new(writer), _lanes: lanes.map(madako_protocol::feed::Task::start) }
}

impl Writers {
    async fn write(&self, key: &str, revision: i64) -> tokio::task::JoinHandle<Answer> {
        let (writer, transaction) = (Arc::clone(&self.writer), put(key, revision, 1));
        let task = tokio::spawn(async move { writer.commit(transaction).await });
        // Let it be sent before the next one.
        for _ in 0..10 {
            yield_now().await;
        }
        task
    }
}

#[tokio::test(start_paused = true)]
async fn waiting_writes_share_the_next_transaction() {
    let writers = writers(RecordingSource::poisoned(None));
    let mut tasks = Vec::new();
    for (key, revision) in [("a", 0), ("b", 0), ("c", 0), ("d", 3), ("e", 0)] {
        tasks.push(writers.write(key, revision).await);
    }
    assert_eq!(writers.store.sent(), [["a"], ["b"]], "as many as there are lanes, each at once");
    writers.store.goes_on.add_permits(3);
    let mut committed = Vec::new();
    for task in tasks {
        committed.push(matches!(task.await.unwrap().unwrap(), Outcome::Committed { revision: 7 }));
    }
    assert_eq!(writers.store.sent()[2], ["c", "d", "e"]);
    assert_eq!(committed, [true, true, true, false, true], "each is answered for itself");
}

#[tokio::test(start_paused = true)]
async fn a_refused_transaction_does_not_affect_the_others() {
    let writers = writers(RecordingSource::poisoned(Some(("d", StoreErrorKind::Invalid))));
    let mut tasks = Vec::new();
    for key in ["a", "b", "c", "d", "e"] {
        tasks.push(writers.write(key, 0).await);
    }
    writers.store.goes_on.add_permits(10);
    let mut ok = Vec::new();
    for task in tasks {
        ok.push(task.await.unwrap().is_ok());
    }
    assert_eq!(ok, [true, true, true, false, true]);
    assert_eq!(writers.store.sent()[2..], [vec!["c", "d", "e"], vec!["c"], vec!["d"], vec!["e"]]);
}

#[tokio::test(start_paused = true)]
async fn writes_of_a_request_with_an_unknown_outcome_fail_and_are_not_resent() {
    for kind in [StoreErrorKind::Unavailable, StoreErrorKind::Deadline] {
        let writers = writers(RecordingSource::poisoned(Some(("d", kind))));
        let mut tasks = Vec::new();
        for key in ["a", "b", "c", "d", "e"] {
            tasks.push(writers.write(key, 0).await);
        }
        writers.store.goes_on.add_permits(10);
        let mut kinds = Vec::new();
        for task in tasks {
            kinds.push(task.await.unwrap().map_err(|error| error.kind).err());
        }
        assert_eq!(kinds, [None, None, Some(kind), Some(kind), Some(kind)]);
        assert_eq!(writers.store.sent()[2..], [["c", "d", "e"]]);
    }
}

#[tokio::test(start_paused = true)]
async fn writes_of_one_key_are_sent_in_the_order_in_which_they_came() {
    let writers = writers(RecordingSource::poisoned(None));
    let mut tasks = Vec::new();
    for (key, revision) in [("x", 0), ("y", 0), ("a", 0), ("b", 0), ("a", 7), ("c", 0)] {
        tasks.push(writers.write(key, revision).await);
    }
    writers.store.goes_on.add_permits(10);
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    assert_eq!(
        writers.store.sent()[2..],
        [vec!["a", "b"], vec!["a", "c"]],
        "never two of a key in one request"
    );
}

#[tokio::test(start_paused = true)]
async fn waiting_writes_fail_immediately_when_the_writer_ends() {
    let under_way = writers(RecordingSource::poisoned(None));
    let writer = Arc::clone(&under_way.writer);
    let mut tasks = Vec::new();
    // Two are sent, one waits.
    for key in ["a", "b", "c"] {
        tasks.push(under_way.write(key, 0).await);
    }
    let begun = tokio::time::Instant::now();
    drop(under_way);
    for task in tasks {
        assert_eq!(task.await.unwrap().unwrap_err().kind, StoreErrorKind::Unavailable);
    }
    let error = writer.commit(put("d", 0, 1)).await.unwrap_err();
    assert_eq!((error.kind, begun.elapsed()), (StoreErrorKind::Unavailable, Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn abandoned_writes_are_not_sent() {
    let writers = writers(RecordingSource::poisoned(None));
    let first = [writers.write("a", 0).await, writers.write("b", 0).await];
    let given_up = writers.write("c", 0).await;
    let kept = writers.write("d", 0).await;
    given_up.abort();
    assert!(given_up.await.unwrap_err().is_cancelled());
    writers.store.goes_on.add_permits(3);
    for task in first {
        task.await.unwrap().unwrap();
    }
    kept.await.unwrap().unwrap();
    assert_eq!(writers.store.sent()[2..], [["d"]]);
}

#[tokio::test(start_paused = true)]
async fn a_writer_waits_no_longer_than_two_requests_take() {
    let writers = writers(RecordingSource::poisoned(None));
    let error = writers.write("a", 0).await.await.unwrap().unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Deadline);
}

proptest! {
    /// Only small transactions with different keys share a request; every transaction is sent, in the order of arrival.
    #[test]
    fn compatible_transactions_share_a_request_within_its_limits(
        all in prop::collection::vec((0..40_u32, prop_oneof![9 => 1..2_000_usize, 1 => Just(MOST_TOGETHER_BYTES)]), 0..120),
    ) {
        let mut waiting: VecDeque<WaitingTransaction> = all
            .iter()
            .map(|(key, bytes)| WaitingTransaction { transaction: put(&key.to_string(), 0, *bytes), reply: oneshot::channel().0 })
            .collect();
        let mut sent = Vec::new();
        while !waiting.is_empty() {
            let taken = take_compatible(&mut waiting);
            let keys: Vec<String> = taken.iter().map(|waiting| key(&waiting.transaction)).collect();
            let bytes: usize = taken.iter().flat_map(|waiting| &waiting.transaction.writes).map(size_of_write).sum();
            prop_assert!(!taken.is_empty() && taken.len() <= MOST_TOGETHER);
            prop_assert!(taken.len() == 1 || bytes <= MOST_TOGETHER_BYTES);
            prop_assert_eq!(keys.iter().collect::<BTreeSet<_>>().len(), keys.len());
            sent.extend(keys);
        }
        let came: Vec<String> = all.iter().map(|(key, _)| key.to_string()).collect();
        prop_assert_eq!(sent, came);
    }
}
