//! Placement's resources: one cache, fed by one watch of the whole store.
//!
//! For: readers and followers of placement's resources.
//!
//! Guarantees, in addition to those of the port:
//! - There is one watch for any number of readers and followers. It sees every revision of the store, so a view at the
//!   store's revision is complete.
//! - [`fresh`](Objects::fresh) costs one small read of the store, which all waiting readers share. A reader that
//!   arrives during a read waits for the next one, because the store may have answered the running one already. It
//!   never waits for a revision of a store that was wiped or restored meanwhile, and never answers from the view of
//!   such a store.
//! - Of keys outside placement, only names and revisions are kept (by the watch, to recognize the store after an
//!   interruption), and their number.
//! - Concurrent transactions go to the store in one request; each has its own conditions and answer.
//! - A follower costs a cursor: pending changes are in one bounded ring. A follower that is too slow gets a gap. None
//!   delays another follower, the view or the store.
//!
//! Assumes: a user that may read and watch the whole key space; a store that raises its revision only with a change of
//! a key (in etcd, compactions and leases do not raise it).
//!
//! Does not: retry a transaction, or write anything by itself.
//!
//! `view` and `ring` are data without I/O, `feed` applies the watch's events to them, `freshness` reads the store's
//! revision, and `together` writes.

mod decode;
mod feed;
mod follower;
mod freshness;
mod ring;
mod source;
mod together;
mod view;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use async_trait::async_trait;
use madako_domain::placement::kind::ObjectKey;
use madako_domain::placement::objects::{Stored, UnreadResource};
use madako_domain::state::Fault;
use madako_domain::store::{Entry, Outcome, StoreError, Transaction};
use madako_protocol::feed::Task;
use madako_protocol::latest::{self, Publisher, Subscriber};
use madako_protocol::placement::objects::{Follower, FollowerGap, Objects, Selection};
use tokio::time::Instant;

use self::follower::Cursor;
use self::freshness::RevisionReader;
use self::source::Source;
use self::together::{LANES, Writer};
use self::view::View;
use crate::encryption::Encryption;
use crate::store::EtcdStore;

/// The resource at a key, or the fault of its value.
pub(crate) fn decode_entry(key: &str, entry: &Entry, encryption: &Encryption) -> Result<Arc<Stored>, String> {
    decode::decode(key, entry, encryption).map_err(|wrong| wrong.why)
}

pub struct CachedObjects {
    shared: Arc<CacheState>,
    source: Arc<dyn Source>,
    asker: RevisionReader,
    writer: Writer,
    _tasks: [Task; 2],
    _lanes: [Task; LANES],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Position {
    /// Number of lists so far; revisions of two generations cannot be compared. 0 before the first list.
    generation: u64,
    /// The store's revision that the view shows; 0 before the first list.
    revision: i64,
    /// True if the watch follows the store. While it does not, the store may have been replaced.
    attached: bool,
}

/// State that readers, followers and the feed share.
struct CacheState {
    view: RwLock<View>,
    /// Published after the view has changed.
    position: Publisher<Position>,
    /// Published when new changes are available to followers.
    news: Publisher<()>,
    /// Templates for new subscribers, which have received nothing.
    unseen: (Subscriber<Position>, Subscriber<()>),
    /// The error that keeps the watch from following the store.
    trouble: Mutex<Option<StoreError>>,
}

impl CacheState {
    fn new() -> Arc<Self> {
        let ((position, positions), (news, follows)) = (latest::channel(), latest::channel());
        position.publish(Position::default());
        let unseen = (positions, follows);
        Arc::new(Self { view: RwLock::default(), position, news, unseen, trouble: Mutex::default() })
    }

    fn newest_position(&self) -> Position {
        self.position.newest().unwrap_or_default()
    }

    /// Publishes the position of the view. Only the feed calls it.
    fn publish_position(&self, position: Position) {
        self.position.publish(position);
    }

    /// The position, and then each change of it.
    fn subscribe_positions(&self) -> Subscriber<Position> {
        self.unseen.0.clone()
    }

    /// Signals new changes for followers.
    fn subscribe_to_news(&self) -> Subscriber<()> {
        self.unseen.1.clone()
    }

    fn lock_trouble(&self) -> MutexGuard<'_, Option<StoreError>> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self) -> RwLockReadGuard<'_, View> {
        // Updates of the view do not panic; the next list replaces any inconsistent state.
        self.view.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, View> {
        self.view.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CachedObjects {
    /// Starts to watch the given store from its root. Needs a tokio runtime.
    #[must_use]
    pub fn start(store: &EtcdStore) -> Self {
        Self::with_source(Arc::new(store.with_absolute_keys()))
    }

    fn with_source(source: Arc<dyn Source>) -> Self {
        let shared = CacheState::new();
        let feed = Task::start(feed::run(Arc::clone(&source), Arc::clone(&shared)));
        let (asker, asking) = freshness::revision_reader(Arc::clone(&source), Arc::clone(&shared));
        let (writer, lanes) = together::start_writer(&source);
        let (_tasks, _lanes) = ([feed, Task::start(asking)], lanes.map(Task::start));
        Self { shared, source, asker, writer, _tasks, _lanes }
    }
}

impl Drop for CachedObjects {
    /// Ends all followers, because no further change will arrive.
    fn drop(&mut self) {
        self.shared.write().end();
        self.shared.news.publish(());
    }
}

#[async_trait]
impl Objects for CachedObjects {
    async fn refresh(&self) -> Result<i64, StoreError> {
        freshness::refresh_cache(&self.asker, &self.shared, self.source.deadline()).await
    }

    fn revision(&self) -> Option<i64> {
        Some(self.shared.read().revision()).filter(|revision| *revision > 0)
    }

    fn get(&self, key: &ObjectKey) -> Option<Arc<Stored>> {
        self.shared.read().get(&key.etcd_key())
    }

    fn list(&self, selection: Selection<'_>) -> (i64, Vec<Arc<Stored>>) {
        let prefix = match selection.namespace {
            Some(namespace) if selection.kind.namespaced() => {
                format!("{}{namespace}/", selection.kind.prefix())
            }
            _ => selection.kind.prefix().to_owned(),
        };
        let view = self.shared.read();
        (view.revision(), view.with_prefix(&prefix))
    }

    fn unread_resource(&self, key: &ObjectKey) -> Option<UnreadResource> {
        self.shared.read().unread_resource(&key.etcd_key())
    }

    fn faults(&self) -> Vec<Fault> {
        self.shared.read().faults()
    }

    fn follow_all(&self) -> (i64, Vec<Arc<Stored>>, Box<dyn Follower>) {
        let news = self.shared.subscribe_to_news();
        let view = self.shared.read();
        let cursor = Cursor::new(Arc::clone(&self.shared), news, view.generation(), view.ring().end_number());
        (view.revision(), view.all_objects(), Box::new(cursor))
    }

    fn follow(&self, after: i64) -> Result<Box<dyn Follower>, FollowerGap> {
        let news = self.shared.subscribe_to_news();
        let view = self.shared.read();
        // A revision that was reported for a former store is not valid for this one.
        if self.asker.reported_of_another_generation(after, view.generation(), Instant::now()) {
            return Err(view.gap_of_relisting());
        }
        let next = view.follow(after)?;
        Ok(Box::new(Cursor::new(Arc::clone(&self.shared), news, view.generation(), next)))
    }

    async fn commit(&self, transaction: Transaction) -> Result<Outcome, StoreError> {
        self.writer.commit(transaction).await
    }
}

#[cfg(test)]
mod tests;
