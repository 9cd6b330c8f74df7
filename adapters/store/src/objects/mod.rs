//! Placement's resources: one cache that one watch of the whole store feeds.
//!
//! For: everybody who reads placement's resources, and who follows their changes.
//!
//! Guarantees, beside those of the port:
//! - one watch, however many read or follow; it sees every revision of the store, so that a view whose revision is that
//!   of the store shows all of it;
//! - [`fresh`](Objects::fresh) costs one small read of the store, which all who wait share: whoever comes while one is
//!   under way waits for the next, since the running one may have been answered before it came. It never waits for a
//!   revision of a store that was wiped or restored meanwhile, and never answers from the view of one;
//! - of keys that are none of placement's only names and revisions are kept (by the watch, to know the store again),
//!   and how many there are;
//! - transactions that come at a time go to the store in one request, each with conditions and an answer of its own;
//! - a follower costs a cursor: the changes that wait for it are those of one ring, which is bounded. One that is too
//!   slow is told so; none ever holds up another, the view or the store.
//!
//! Assumes: a user that may read and watch the whole key space. What changed only in revisions of the store that no key
//! has (there are none in etcd: compactions and leases do not raise it) would never be seen.
//!
//! Does not: retry a transaction, or write anything by itself.
//!
//! `view` and `ring` are data without I/O, `feed` brings what the watch sees to them, `freshness` asks the store, and
//! `together` writes.

mod decode;
mod feed;
mod follower;
mod freshness;
mod ring;
mod source;
mod telemetry;
mod together;
mod view;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use async_trait::async_trait;
use madako_domain::placement::kind::ObjectKey;
use madako_domain::placement::objects::{Stored, Unread};
use madako_domain::state::Fault;
use madako_domain::store::{Entry, Outcome, StoreError, Transaction};
use madako_protocol::feed::Task;
use madako_protocol::latest::{self, Publisher, Subscriber};
use madako_protocol::placement::objects::{Follower, Gap, Objects, Selection};
use tokio::time::Instant;

use self::follower::Cursor;
use self::freshness::Asker;
use self::source::Source;
use self::together::{LANES, Writer};
use self::view::View;
use crate::sealing::Sealing;
use crate::store::EtcdStore;

pub(crate) use self::telemetry::describe;

/// The resource that a key holds, or what is wrong with it.
pub(crate) fn decoded(key: &str, entry: &Entry, sealing: &Sealing) -> Result<Arc<Stored>, String> {
    decode::decode(key, entry, sealing).map_err(|wrong| wrong.why)
}

/// The cache of placement's resources.
pub struct CachedObjects {
    shared: Arc<Shared>,
    source: Arc<dyn Source>,
    asker: Asker,
    writer: Writer,
    _tasks: [Task; 2],
    _lanes: [Task; LANES],
}

/// Where the view stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Position {
    /// How often everything was listed; revisions of two generations cannot be compared. 0: never.
    generation: u64,
    /// The store's revision that the view shows; 0 before the first list.
    revision: i64,
    /// Whether the watch follows the store: without that nobody knows whether it is still the same store.
    attached: bool,
}

/// What readers, followers and the feed share.
struct Shared {
    view: RwLock<View>,
    /// Told after the view has changed.
    position: Publisher<Position>,
    /// Told after followers have something to take.
    news: Publisher<()>,
    /// Who waits begins as a clone of these, which saw nothing.
    unseen: (Subscriber<Position>, Subscriber<()>),
    /// Why the watch does not follow the store now.
    trouble: Mutex<Option<StoreError>>,
}

impl Shared {
    fn new() -> Arc<Self> {
        let ((position, positions), (news, follows)) = (latest::channel(), latest::channel());
        position.publish(Position::default());
        let unseen = (positions, follows);
        Arc::new(Self { view: RwLock::default(), position, news, unseen, trouble: Mutex::default() })
    }

    /// Where the view stands.
    fn position(&self) -> Position {
        self.position.newest().unwrap_or_default()
    }

    /// Tells where the view stands now; only the feed does.
    fn stands(&self, position: Position) {
        self.position.publish(position);
    }

    /// The position, and then each change of it.
    fn positions(&self) -> Subscriber<Position> {
        self.unseen.0.clone()
    }

    /// Tells of what followers have to take.
    fn follows(&self) -> Subscriber<()> {
        self.unseen.1.clone()
    }

    fn trouble(&self) -> MutexGuard<'_, Option<StoreError>> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self) -> RwLockReadGuard<'_, View> {
        // The view is changed by steps that do not panic; whatever a panic left behind is replaced by the next list.
        self.view.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, View> {
        self.view.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CachedObjects {
    /// Starts to watch the store that this one reaches, from its root. Needs a runtime.
    #[must_use]
    pub fn start(store: &EtcdStore) -> Self {
        Self::over(Arc::new(store.at_root()))
    }

    fn over(source: Arc<dyn Source>) -> Self {
        let shared = Shared::new();
        let feed = Task::start(feed::run(Arc::clone(&source), Arc::clone(&shared)));
        let (asker, asking) = freshness::asker(Arc::clone(&source), Arc::clone(&shared));
        let (writer, lanes) = together::writer(&source);
        let (_tasks, _lanes) = ([feed, Task::start(asking)], lanes.map(Task::start));
        Self { shared, source, asker, writer, _tasks, _lanes }
    }
}

impl Drop for CachedObjects {
    /// Nobody follows for ever what nobody feeds.
    fn drop(&mut self) {
        self.shared.write().end();
        self.shared.news.publish(());
    }
}

#[async_trait]
impl Objects for CachedObjects {
    async fn fresh(&self) -> Result<i64, StoreError> {
        freshness::fresh(&self.asker, &self.shared, self.source.deadline()).await
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
        (view.revision(), view.below(&prefix))
    }

    fn unread(&self, key: &ObjectKey) -> Option<Unread> {
        self.shared.read().unread(&key.etcd_key())
    }

    fn faults(&self) -> Vec<Fault> {
        self.shared.read().faults()
    }

    fn follow_all(&self) -> (i64, Vec<Arc<Stored>>, Box<dyn Follower>) {
        let news = self.shared.follows();
        let view = self.shared.read();
        let cursor = Cursor::new(Arc::clone(&self.shared), news, view.generation(), view.ring().end());
        (view.revision(), view.all(), Box::new(cursor))
    }

    fn follow(&self, after: i64) -> Result<Box<dyn Follower>, Gap> {
        let news = self.shared.follows();
        let view = self.shared.read();
        // A number that a reader was told of a former store says nothing about this one.
        if self.asker.told_of_another(after, view.generation(), Instant::now()) {
            return Err(view.relisted());
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
