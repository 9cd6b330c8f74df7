//! All of placement's resources at one revision, and online states of clusters from changes between snapshots.

use std::collections::BTreeMap;
use std::sync::Arc;

use madako_domain::placement::kind::{Kind, ObjectKey};
use madako_domain::placement::kubernetes::Cluster;
use madako_domain::placement::object_value::Resource;
use madako_domain::placement::objects::{Change, Stored};

use crate::creation::is_up;

/// Resources in the order of their keys.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    revision: i64,
    objects: BTreeMap<ObjectKey, Arc<Stored>>,
    standings: BTreeMap<ObjectKey, OnlineHistory>,
}

/// Online state of a cluster, from every observed change.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct OnlineHistory {
    /// It was online at some time.
    pub(crate) was_up: bool,
    /// Revision since which it is continuously not online, as far as known; `None`: it is online.
    pub(crate) down_since: Option<i64>,
}

impl OnlineHistory {
    fn next(before: Option<Self>, up: bool, revision: i64) -> Self {
        let Self { was_up, down_since } = before.unwrap_or_default();
        Self { was_up: was_up || up, down_since: (!up).then(|| down_since.unwrap_or(revision)) }
    }
}

#[derive(Debug)]
pub struct TypedResource<'a, T> {
    pub stored: &'a Stored,
    pub value: &'a T,
}

impl<T> Clone for TypedResource<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for TypedResource<'_, T> {}

impl Snapshot {
    #[must_use]
    pub fn new(revision: i64, objects: impl IntoIterator<Item = Arc<Stored>>) -> Self {
        let mut snapshot = Self { revision, ..Self::default() };
        for stored in objects {
            snapshot.watch(&stored);
            snapshot.objects.insert(stored.key.clone(), stored);
        }
        snapshot
    }

    pub fn apply(&mut self, changes: &[Arc<Change>]) {
        for change in changes {
            self.revision = self.revision.max(change.revision);
            match &change.after {
                Some(stored) => {
                    self.watch(stored);
                    self.objects.insert(change.key.clone(), Arc::clone(stored));
                }
                None => {
                    self.standings.remove(&change.key);
                    self.objects.remove(&change.key);
                }
            }
        }
    }

    /// Records the online state: a later change may hide it from the next pass.
    fn watch(&mut self, stored: &Stored) {
        if let Some(cluster) = Cluster::from_object(&stored.object) {
            let before = self.standings.get(&stored.key).copied();
            let standing = OnlineHistory::next(before, is_up(cluster.status.state), stored.mod_revision);
            self.standings.insert(stored.key.clone(), standing);
        }
    }

    pub(crate) fn online_history(&self, cluster: &ObjectKey) -> OnlineHistory {
        self.standings.get(cluster).copied().unwrap_or_default()
    }

    #[must_use]
    pub fn without(mut self, keys: &[ObjectKey]) -> Self {
        for key in keys {
            self.objects.remove(key);
        }
        self
    }

    /// A snapshot with some resources replaced.
    #[must_use]
    pub(crate) fn with(mut self, objects: Vec<Arc<Stored>>) -> Self {
        for stored in objects {
            self.objects.insert(stored.key.clone(), stored);
        }
        self
    }

    #[must_use]
    pub fn revision(&self) -> i64 {
        self.revision
    }

    #[must_use]
    pub fn get(&self, key: &ObjectKey) -> Option<&Stored> {
        self.objects.get(key).map(Arc::as_ref)
    }

    #[must_use]
    pub fn shared(&self, key: &ObjectKey) -> Option<Arc<Stored>> {
        self.objects.get(key).cloned()
    }

    #[must_use]
    pub fn typed<T: Resource>(&self, key: &ObjectKey) -> Option<TypedResource<'_, T>> {
        let stored = self.get(key)?;
        Some(TypedResource { stored, value: T::from_object(&stored.object)? })
    }

    pub fn all(&self) -> impl Iterator<Item = &Stored> {
        self.objects.values().map(Arc::as_ref)
    }

    /// In the order of keys.
    pub fn of<'a, T: Resource + 'a>(&'a self) -> impl Iterator<Item = TypedResource<'a, T>> {
        let first = ObjectKey { kind: T::KIND, namespace: None, name: String::new() };
        self.objects
            .range(first..)
            .take_while(|(key, _)| key.kind == T::KIND)
            .filter_map(|(_, stored)| Some(TypedResource { stored, value: T::from_object(&stored.object)? }))
    }

    #[must_use]
    pub fn count(&self, kind: Kind) -> usize {
        let first = ObjectKey { kind, namespace: None, name: String::new() };
        self.objects.range(first..).take_while(|(key, _)| key.kind == kind).count()
    }
}
