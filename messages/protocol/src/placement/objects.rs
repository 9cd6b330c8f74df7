//! The port to placement's resources: a cache that a watch of the store feeds, fresh reads, and writes.
//!
//! For: the API, which reads as of now, and the actors of placement, which follow changes.
//!
//! Guarantees, of whatever implements [`Objects`]:
//! - a view shows the store as it was at exactly one revision;
//! - [`Objects::fresh`] waits until the view shows everything that was written, by whomever, before the call;
//! - changes come in the order of revisions, none twice, and a [`Follower`] that cannot be told of one ends with an
//!   error instead;
//! - a value that cannot be read fails nothing else: it is a [`Fault`].
//!
//! Does not: decide, authorize, or retry a transaction.

use std::sync::Arc;

use async_trait::async_trait;
use madako_domain::placement::kind::{Kind, ObjectKey};
use madako_domain::placement::objects::{Change, Stored, Unread};
use madako_domain::state::Fault;
use madako_domain::store::{Outcome, StoreError, Transaction};

/// Why a follower cannot go on. Whoever follows lists everything again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Gap {
    /// It was too slow, and what it did not take is not kept any longer.
    #[error("changes were missed: more than {limit} came since the last one that was taken")]
    Lagged {
        /// How many changes are kept.
        limit: usize,
    },
    /// The store was replaced or compacted under the watch.
    #[error("the store was listed anew: {why}")]
    Relisted {
        /// Why.
        why: String,
    },
}

/// Follows the changes since a revision. Dropping it ends it.
#[async_trait]
pub trait Follower: Send {
    /// The next changes, in order, all of one or more revisions; never empty. May be cancelled at any time without
    /// losing one.
    ///
    /// # Errors
    /// See [`Gap`]; nothing comes after it.
    async fn next(&mut self) -> Result<Vec<Arc<Change>>, Gap>;
}

/// What a view selects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Selection<'a> {
    /// The kind.
    pub kind: Kind,
    /// Only this namespace.
    pub namespace: Option<&'a str>,
}

/// Placement's resources.
#[async_trait]
pub trait Objects: Send + Sync + 'static {
    /// Waits until the view shows the store as it was when this was called, or later. Answers the store's revision at
    /// the time of the call (or a little later), which the view has reached.
    ///
    /// # Errors
    /// The store did not answer, or the view did not follow, within the store's deadline.
    async fn fresh(&self) -> Result<i64, StoreError>;

    /// The revision that the view shows; `None` before the store was read for the first time.
    fn revision(&self) -> Option<i64>;

    /// A resource in the view.
    fn get(&self, key: &ObjectKey) -> Option<Arc<Stored>>;

    /// All resources of a kind in the view, and the revision that they are of. Ordered by their keys in etcd.
    fn list(&self, selection: Selection<'_>) -> (i64, Vec<Arc<Stored>>);

    /// What the view has in place of a resource that cannot be read.
    fn unread(&self, key: &ObjectKey) -> Option<Unread>;

    /// Values of the view that cannot be read.
    fn faults(&self) -> Vec<Fault>;

    /// Everything in the view, and whoever follows what comes after it, without a gap.
    fn follow_all(&self) -> (i64, Vec<Arc<Stored>>, Box<dyn Follower>);

    /// Follows every change after a revision that [`Objects::fresh`] answered.
    ///
    /// # Errors
    /// The changes since then are not kept any longer.
    fn follow(&self, after: i64) -> Result<Box<dyn Follower>, Gap>;

    /// One transaction at the root of etcd, with absolute keys. Not retried.
    ///
    /// # Errors
    /// See [`StoreErrorKind`](crate::store::StoreErrorKind); a refused transaction is no error.
    async fn commit(&self, transaction: Transaction) -> Result<Outcome, StoreError>;
}
