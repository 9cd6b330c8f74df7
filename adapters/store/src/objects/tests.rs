//! Tests of the cache of placement's resources over a scripted store, on paused time.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;
use std::time::Duration;

use bytes::Bytes;
use madako_domain::placement::kind::Kind;
use madako_domain::placement::objects::Change;
use madako_domain::store::{Entry, KeyChange, Snapshot, StoreErrorKind};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::*;
use crate::encryption::Encryption;
use crate::watch::{DatedChange, FeedEvent, WatchedKeys};

const DEADLINE: Duration = Duration::from_secs(2);

type Question = oneshot::Sender<Result<i64, StoreError>>;

/// A store with scripted answers.
struct Script {
    seen: Mutex<Option<mpsc::Receiver<FeedEvent>>>,
    questions: mpsc::UnboundedSender<Question>,
}

#[async_trait]
impl Source for Script {
    fn watch(&self, _: WatchedKeys) -> mpsc::Receiver<FeedEvent> {
        self.seen.lock().unwrap().take().expect("one watch, however many read")
    }

    async fn revision(&self) -> Result<i64, StoreError> {
        let (answer, answered) = oneshot::channel();
        self.questions.send(answer).unwrap();
        answered.await.unwrap()
    }

    async fn commit(&self, _: Transaction) -> Result<Outcome, StoreError> {
        Ok(Outcome::Committed { revision: 1 })
    }

    fn encryption(&self) -> Encryption {
        Encryption::default()
    }

    async fn commit_together(&self, transactions: Vec<Transaction>) -> Result<Vec<Outcome>, StoreError> {
        Ok(vec![Outcome::Committed { revision: 1 }; transactions.len()])
    }

    fn deadline(&self) -> Duration {
        DEADLINE
    }
}

/// The test's side of the script.
struct Fixture {
    objects: Arc<CachedObjects>,
    seen: mpsc::Sender<FeedEvent>,
    questions: mpsc::UnboundedReceiver<Question>,
}

fn cache() -> Fixture {
    let (seen, watched) = mpsc::channel(16);
    let (sender, questions) = mpsc::unbounded_channel();
    let script = Script { seen: Mutex::new(Some(watched)), questions: sender };
    Fixture { objects: Arc::new(CachedObjects::with_source(Arc::new(script))), seen, questions }
}

fn entry(name: &str, revision: i64) -> Entry {
    let value = format!(
        r#"{{"metadata": {{"name": "{name}", "uid": "{revision}", "created": "2026-01-01T00:00:00",
            "modified": "2026-01-01T00:00:00"}}, "rules": []}}"#
    );
    Entry { value: Bytes::from(value), create_revision: revision, mod_revision: revision, lease: 0 }
}

fn put(name: &str, revision: i64) -> DatedChange {
    let change = KeyChange { key: format!("/core/roles/{name}"), entry: Some(entry(name, revision)) };
    DatedChange { revision, change }
}

impl Fixture {
    async fn see(&self, seen: FeedEvent) {
        self.seen.send(seen).await.unwrap();
    }

    async fn list(&self, revision: i64, names: &[&str], cause: &'static str) {
        let entries: BTreeMap<_, _> =
            names.iter().map(|name| (format!("/core/roles/{name}"), entry(name, revision))).collect();
        self.see(FeedEvent::Listed { snapshot: Snapshot { revision, entries }, others: 3, cause }).await;
        let objects = Arc::clone(&self.objects);
        until(move || objects.revision() == Some(revision)).await;
    }

    async fn change(&self, revision: i64, names: &[&str]) {
        let changes = names.iter().map(|name| put(name, revision)).collect();
        self.see(FeedEvent::Changed { revision, changes }).await;
    }

    async fn interrupt(&self) {
        let operation = "watch of every key".to_owned();
        let why = "the connection is gone".to_owned();
        self.see(FeedEvent::Interrupted(StoreError { operation, kind: StoreErrorKind::Unavailable, why }))
            .await;
    }

    fn read(&self) -> tokio::task::JoinHandle<Result<i64, StoreError>> {
        let objects = Arc::clone(&self.objects);
        tokio::spawn(async move { objects.refresh().await })
    }

    async fn question(&mut self) -> Question {
        timeout(DEADLINE, self.questions.recv()).await.expect("a question").unwrap()
    }

    fn names(&self) -> Vec<String> {
        let (_, all) = self.objects.list(Selection { kind: Kind::Role, namespace: None });
        all.iter().map(|stored| stored.key.name.clone()).collect()
    }
}

/// Yields to other tasks until the condition holds.
async fn until(is: impl Fn() -> bool) {
    for _ in 0..1000 {
        if is() {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("it did not come to be");
}

/// Lets other tasks run as far as they can without an advance of time.
async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

fn revisions(changes: &[Arc<Change>]) -> Vec<i64> {
    changes.iter().map(|change| change.revision).collect()
}

#[tokio::test(start_paused = true)]
async fn read_waits_until_the_view_reaches_the_revision_of_its_begin() {
    let mut fixture = cache();
    fixture.list(5, &["a"], "start").await;
    let read = fixture.read();
    fixture.question().await.send(Ok(7)).unwrap();
    settle().await;
    fixture.change(6, &["b"]).await;
    settle().await;
    assert!(!read.is_finished(), "the view is at revision 6");
    // Revision 7 belongs to a key outside placement.
    fixture.change(7, &[]).await;
    assert_eq!(read.await.unwrap().unwrap(), 7);
    assert_eq!(fixture.names(), ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn readers_share_a_question_that_began_after_all_of_them_came() {
    let mut fixture = cache();
    fixture.list(5, &[], "start").await;
    let first = fixture.read();
    let running = fixture.question().await;
    // They arrive during a read that the store may have answered already.
    let later: Vec<_> = (0..100).map(|_| fixture.read()).collect();
    settle().await;
    running.send(Ok(5)).unwrap();
    assert_eq!(first.await.unwrap().unwrap(), 5);
    assert!(later.iter().all(|read| !read.is_finished()));
    fixture.change(6, &["b"]).await;
    fixture.question().await.send(Ok(6)).unwrap();
    for read in later {
        assert_eq!(read.await.unwrap().unwrap(), 6);
    }
    assert!(fixture.questions.try_recv().is_err(), "one question for all of them");
}

#[tokio::test(start_paused = true)]
async fn a_read_does_not_wait_for_a_revision_of_a_former_store() {
    let mut fixture = cache();
    fixture.list(1000, &["old"], "start").await;
    // The answer came just before the store was wiped.
    let read = fixture.read();
    fixture.question().await.send(Ok(1001)).unwrap();
    settle().await;
    fixture.interrupt().await;
    fixture.list(5, &["new"], "other-store").await;
    fixture.question().await.send(Ok(5)).unwrap();
    assert_eq!(read.await.unwrap().unwrap(), 5);
    assert_eq!(fixture.names(), ["new"]);
}

#[tokio::test(start_paused = true)]
async fn a_read_is_not_answered_from_the_view_of_a_former_store() {
    let mut fixture = cache();
    fixture.list(1000, &["old"], "start").await;
    // The watch has not noticed yet that the store was wiped.
    let read = fixture.read();
    fixture.question().await.send(Ok(7)).unwrap();
    settle().await;
    assert!(!read.is_finished(), "7 is of another store than 1000");
    fixture.list(8, &["new"], "other-store").await;
    fixture.question().await.send(Ok(8)).unwrap();
    assert_eq!(read.await.unwrap().unwrap(), 8);

    // Nor while the store's identity is unknown, even at a matching revision.
    fixture.interrupt().await;
    let read = fixture.read();
    fixture.question().await.send(Ok(8)).unwrap();
    settle().await;
    assert!(!read.is_finished());
    fixture.see(FeedEvent::Resumed).await;
    assert_eq!(read.await.unwrap().unwrap(), 8);
}

#[tokio::test(start_paused = true)]
async fn a_read_ends_with_the_deadline() {
    let mut fixture = cache();
    let began = Instant::now();
    let error = {
        let read = fixture.read();
        fixture.question().await.send(Ok(5)).unwrap();
        read.await.unwrap().unwrap_err()
    };
    assert_eq!((error.kind, began.elapsed()), (StoreErrorKind::Deadline, DEADLINE));
    assert!(error.why.contains("could not be read"), "{error}");

    // The error names the known cause.
    fixture.interrupt().await;
    let read = fixture.read();
    fixture.question().await.send(Ok(5)).unwrap();
    let error = read.await.unwrap().unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Unavailable);
    assert!(
        error.why.ends_with("cannot complete the watch of every key in etcd: the connection is gone"),
        "{error}"
    );

    fixture.list(5, &[], "start").await;
    let read = fixture.read();
    fixture.question().await.send(Ok(6)).unwrap();
    let error = read.await.unwrap().unwrap_err();
    assert!(error.why.contains("at revision 5 and did not reach 6"), "{error}");

    // The store does not answer: neither the current reader nor one that waits for the next read exceeds the deadline.
    let began = Instant::now();
    let (first, second) = (fixture.read(), fixture.read());
    let _unanswered = fixture.question().await;
    for read in [first, second] {
        let error = read.await.unwrap().unwrap_err();
        assert!(error.why.contains("did not report its revision"), "{error}");
    }
    assert_eq!(began.elapsed(), DEADLINE);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_fails_its_readers() {
    let mut fixture = cache();
    fixture.list(5, &[], "start").await;
    let one = fixture.read();
    let question = fixture.question().await;
    let other = fixture.read();
    settle().await;
    let error = StoreError { operation: "o".into(), kind: StoreErrorKind::Denied, why: "w".into() };
    question.send(Err(error.clone())).unwrap();
    assert_eq!(one.await.unwrap().unwrap_err(), error);
    fixture.question().await.send(Ok(5)).unwrap();
    assert_eq!(other.await.unwrap().unwrap(), 5);
}

#[tokio::test(start_paused = true)]
async fn follower_receives_exactly_the_changes_after_its_revision() {
    let fixture = cache();
    fixture.list(5, &["a"], "start").await;
    fixture.change(6, &["b"]).await;
    fixture.change(7, &["c", "d"]).await;
    let objects = Arc::clone(&fixture.objects);
    until(move || objects.revision() == Some(7)).await;
    let mut early = fixture.objects.follow(5).unwrap();
    let mut late = fixture.objects.follow(6).unwrap();
    let (revision, all, mut new) = fixture.objects.follow_all();
    assert_eq!((revision, all.len()), (7, 4));
    assert_eq!(revisions(&early.next().await.unwrap()), [6, 7, 7]);
    assert_eq!(revisions(&late.next().await.unwrap()), [7, 7]);
    // The wait is cancelled, and no change is lost.
    assert!(timeout(Duration::from_secs(60), new.next()).await.is_err());
    fixture.change(8, &[]).await;
    fixture.change(9, &["a"]).await;
    for follower in [&mut early, &mut late, &mut new] {
        let taken = follower.next().await.unwrap();
        assert_eq!(revisions(&taken), [9]);
        assert_eq!(taken[0].before.as_ref().unwrap().mod_revision, 5);
    }
    assert_eq!(
        fixture.objects.follow(4).err(),
        Some(FollowerGap::Relisted { why: "it was read for the first time".into() })
    );
}

#[tokio::test(start_paused = true)]
async fn a_list_ends_followers_and_an_interruption_does_not() {
    let fixture = cache();
    let (revision, all, mut early) = fixture.objects.follow_all();
    assert_eq!((revision, all.len()), (0, 0));
    fixture.list(5, &["a"], "start").await;
    assert!(
        matches!(early.next().await, Err(FollowerGap::Relisted { .. })),
        "it saw nothing of the first list"
    );
    let mut follower = fixture.objects.follow(5).unwrap();
    fixture.interrupt().await;
    fixture.see(FeedEvent::Resumed).await;
    fixture.change(6, &["b"]).await;
    assert_eq!(revisions(&follower.next().await.unwrap()), [6]);
    fixture.list(6, &["a", "b"], "compacted").await;
    for _ in 0..2 {
        let why = "it was compacted beyond the last revision of the view".to_owned();
        assert_eq!(follower.next().await.unwrap_err(), FollowerGap::Relisted { why });
    }
}

#[tokio::test(start_paused = true)]
async fn revision_of_a_replaced_store_cannot_be_followed() {
    let mut fixture = cache();
    fixture.list(7, &["old"], "start").await;
    let read = fixture.read();
    fixture.question().await.send(Ok(7)).unwrap();
    let after = read.await.unwrap().unwrap();
    // Wiped and filled beyond that revision before the reader returns.
    fixture.list(3, &["new"], "other-store").await;
    for revision in 4..=9 {
        fixture.change(revision, &["b"]).await;
    }
    let objects = Arc::clone(&fixture.objects);
    until(move || objects.revision() == Some(9)).await;
    assert!(matches!(fixture.objects.follow(after), Err(FollowerGap::Relisted { .. })));
    assert!(fixture.objects.follow(8).is_ok());
    tokio::time::advance(DEADLINE).await;
    assert!(fixture.objects.follow(after).is_ok(), "the readers of the former store have met their deadline");
}

#[tokio::test(start_paused = true)]
async fn slow_follower_gets_a_gap_and_delays_no_other_follower() {
    const MOST: usize = 50;
    let fixture = cache();
    *fixture.objects.shared.write() = View::with_ring(ring::ChangeRing::with_limit(MOST));
    fixture.list(1, &[], "start").await;
    let mut slow = fixture.objects.follow(1).unwrap();
    let mut quick = fixture.objects.follow(1).unwrap();
    let mut taken = VecDeque::new();
    for last in (11..500).step_by(10) {
        let changes = (last - 9..=last).map(|revision| put("a", revision)).collect();
        fixture.see(FeedEvent::Changed { revision: last, changes }).await;
        while taken.back().is_none_or(|revision| *revision < last) {
            taken.extend(revisions(&quick.next().await.unwrap()));
        }
    }
    assert!(taken.iter().copied().eq(2..2 + taken.len() as i64), "each once, in order");
    assert!(taken.len() > MOST);
    for _ in 0..2 {
        assert_eq!(slow.next().await.unwrap_err(), FollowerGap::Lagged { limit: MOST });
    }
    assert_eq!(fixture.objects.follow(1).err(), Some(FollowerGap::Lagged { limit: MOST }));
}

#[tokio::test(start_paused = true)]
async fn one_bad_value_is_a_fault_and_fails_no_list() {
    let fixture = cache();
    fixture.list(1, &["a", "c"], "start").await;
    let mut bad = put("b", 2);
    bad.change.entry.as_mut().unwrap().value = Bytes::from_static(b"{\"metadata\": 1}");
    let mut odd = put("x", 2);
    odd.change.key = "/core/roles/x/y".into();
    fixture.see(FeedEvent::Changed { revision: 2, changes: vec![bad, odd] }).await;
    let objects = Arc::clone(&fixture.objects);
    until(move || objects.revision() == Some(2)).await;
    assert_eq!(fixture.names(), ["a", "c"]);
    let faults: Vec<_> = fixture.objects.faults().into_iter().map(|fault| fault.key).collect();
    assert_eq!(faults, ["/core/roles/b", "/core/roles/x/y"]);
}

#[tokio::test(start_paused = true)]
async fn followers_end_with_the_cache() {
    let fixture = cache();
    fixture.list(1, &[], "start").await;
    let mut follower = fixture.objects.follow(1).unwrap();
    drop(fixture);
    assert!(matches!(timeout(DEADLINE, follower.next()).await, Ok(Err(FollowerGap::Relisted { .. }))));
}

#[tokio::test(start_paused = true)]
async fn a_thousand_followers_each_get_every_change() {
    let fixture = cache();
    fixture.list(1, &[], "start").await;
    let followers: Vec<_> = (0..1000).map(|_| fixture.objects.follow(1).unwrap()).collect();
    let following: Vec<_> = followers
        .into_iter()
        .map(|mut follower| {
            tokio::spawn(async move {
                let mut observed = Vec::new();
                while observed.len() < 200 {
                    observed.extend(revisions(&follower.next().await.unwrap()));
                }
                observed
            })
        })
        .collect();
    for revision in 2..202 {
        fixture.change(revision, &["a"]).await;
    }
    for seen in following {
        assert!(seen.await.unwrap().into_iter().eq(2..202));
    }
}
