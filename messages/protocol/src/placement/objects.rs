//! The port to placement's resources: a cache that a watch of the store fills, linearizable reads, and writes.
//!
//! For: the API, which reads the present state, and the actors of placement, which follow changes.
//!
//! Guarantees of every implementation of [`Objects`]:
//! - A view shows the store at exactly one revision.
//! - [`Objects::fresh`] waits until the view shows all writes, of whatever writer, that preceded the call.
//! - Changes arrive in the order of revisions, each once. A [`Follower`] that cannot deliver one ends with an error.
//! - An unreadable value is a [`Fault`] and affects no other value.
//!
//! Does not: decide, authorize, or retry a transaction.

use std::sync::Arc;

use async_trait::async_trait;
use madako_domain::placement::kind::{Kind, ObjectKey};
use madako_domain::placement::objects::{Change, Stored, UnreadResource};
use madako_domain::state::Fault;
use madako_domain::store::{Outcome, StoreError, Transaction};

/// The reason why a follower ended. Its user must list everything again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FollowerGap {
    /// The follower was too slow, and the changes that it has not taken are no longer stored.
    #[error(
        "the follower of placement resources missed changes: more than {limit} arrived since its last read; list the resources again"
    )]
    Lagged {
        /// Number of stored changes.
        limit: usize,
    },
    /// The store was replaced or compacted during the watch.
    #[error("the cache of placement resources was filled anew ({why}): list the resources again")]
    Relisted {
        /// The reason, in words.
        why: String,
    },
}

/// Follows the changes since a revision until it is dropped.
#[async_trait]
pub trait Follower: Send {
    /// The next changes in order: all changes of one or more revisions, never none. Cancel-safe: no change is lost.
    ///
    /// # Errors
    /// See [`FollowerGap`]; no changes follow it.
    async fn next(&mut self) -> Result<Vec<Arc<Change>>, FollowerGap>;
}

/// The selection of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Selection<'a> {
    /// Kind of the resources.
    pub kind: Kind,
    /// Only resources of this namespace.
    pub namespace: Option<&'a str>,
}

/// The port to placement's resources.
#[async_trait]
pub trait Objects: Send + Sync + 'static {
    /// Waits until the view shows the store as it was at the call, or later. Returns the store's revision at the time
    /// of the call (or slightly later), which the view has reached.
    ///
    /// # Errors
    /// The store did not answer, or the view did not catch up, within the store's deadline.
    async fn refresh(&self) -> Result<i64, StoreError>;

    /// The revision of the view; `None` before the first read of the store.
    fn revision(&self) -> Option<i64>;

    /// A resource of the view.
    fn get(&self, key: &ObjectKey) -> Option<Arc<Stored>>;

    /// The revision of the view and its resources of a kind, ordered by their etcd keys.
    fn list(&self, selection: Selection<'_>) -> (i64, Vec<Arc<Stored>>);

    /// The unreadable value at a resource's key, if there is one.
    fn unread_resource(&self, key: &ObjectKey) -> Option<UnreadResource>;

    /// The unreadable values of the view.
    fn faults(&self) -> Vec<Fault>;

    /// All resources of the view, with a follower that continues without a gap.
    fn follow_all(&self) -> (i64, Vec<Arc<Stored>>, Box<dyn Follower>);

    /// Follows every change after a revision that [`Objects::fresh`] returned.
    ///
    /// # Errors
    /// The changes since then are no longer stored.
    fn follow(&self, after: i64) -> Result<Box<dyn Follower>, FollowerGap>;

    /// Runs one transaction at the root of etcd, with absolute keys. Does not retry.
    ///
    /// # Errors
    /// See [`StoreErrorKind`](madako_domain::store::StoreErrorKind). A refused transaction is not an error.
    async fn commit(&self, transaction: Transaction) -> Result<Outcome, StoreError>;
}
