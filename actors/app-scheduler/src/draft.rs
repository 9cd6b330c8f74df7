//! What a pass changes, collected: resources that several rules touch are written once.
//!
//! Guarantees: what comes out as it was is not written.

use std::collections::BTreeMap;

use madako_domain::placement::decision::Decision;
use madako_domain::placement::kind::{Kind, ObjectKey};
use madako_domain::placement::kubernetes::Application;
use madako_domain::placement::object_value::{Object, Resource};
use madako_domain::placement::objects::Stored;
use time::OffsetDateTime;

use crate::snapshot::{Seen, Snapshot};

/// A resource that is to be written.
#[derive(Debug, Clone, PartialEq)]
pub struct ObjectWrite {
    /// Which.
    pub key: ObjectKey,
    /// The revision that it must still have; 0: it must not exist.
    pub revision: i64,
    /// What it is to be; `None`: it is to be deleted.
    pub object: Option<Object>,
}

/// Writes that belong together: all are done, or none.
#[derive(Debug, Clone, PartialEq)]
pub struct Unit {
    /// What they are for.
    pub what: What,
    /// The writes.
    pub writes: Vec<ObjectWrite>,
    /// Revisions of other resources that the decision stands on.
    pub basis: Vec<(ObjectKey, i64)>,
    /// The last revision of an application that the decision stands on, where it stands on all of them: that none of
    /// them is bound to a cluster that goes.
    pub applications: Option<i64>,
    /// The decision on an application, to be kept with them.
    pub decision: Option<(ObjectKey, Decision)>,
    /// An application and the cluster that it is bound to by this.
    pub binding: Option<(ObjectKey, ObjectKey)>,
    /// Whether that binding is a move, or a cluster is created for one.
    pub moves: bool,
    /// A resource whose deletion begins or ends with this, and by which rule.
    pub deletion: Option<(ObjectKey, Deletion)>,
}

/// The rule by which a resource is deleted, for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Deletion {
    /// Its deletion begins: this owner of it is being deleted.
    WithOwner {
        /// The owner.
        owner: ObjectKey,
    },
    /// Its deletion begins: it was created for applications, and none has used it for long enough.
    Unused {
        /// Since when.
        since: OffsetDateTime,
    },
    /// It is gone: nothing depends on it any more, and no finalizer is left.
    Done,
}

/// What a write is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum What {
    /// An application is bound, fails, waits, or may be deployed.
    Application,
    /// A cluster is bound to a cloud, or a Magnum cluster to a project.
    Cluster,
    /// The metrics of a cluster, cloud or project fail, or can be had again.
    Metrics,
    /// A cluster that was created for an application is not used any more.
    Unused,
    /// Something is deleted, or one step nearer to it.
    Garbage,
}

impl What {
    /// A short name for a metric's label.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Application => "application",
            Self::Cluster => "cluster",
            Self::Metrics => "metrics",
            Self::Unused => "unused-cluster",
            Self::Garbage => "garbage",
        }
    }
}

struct Entry {
    what: What,
    revision: i64,
    object: Option<Object>,
    extra: Vec<ObjectWrite>,
    stands_on_all: bool,
    basis: BTreeMap<ObjectKey, i64>,
    decision: Option<Decision>,
    bound_to: Option<ObjectKey>,
    moves: bool,
    deletion: Option<Deletion>,
}

/// What a pass changes.
#[derive(Default)]
pub(crate) struct Draft(BTreeMap<ObjectKey, Entry>);

impl Draft {
    fn entry(&mut self, stored: &Stored, what: What) -> &mut Entry {
        self.0.entry(stored.key.clone()).or_insert_with(|| Entry {
            what,
            revision: stored.mod_revision,
            object: Some(stored.object.clone()),
            extra: Vec::new(),
            stands_on_all: false,
            basis: BTreeMap::new(),
            decision: None,
            bound_to: None,
            moves: false,
            deletion: None,
        })
    }

    /// A resource, to be changed; `None` if this pass deletes it.
    pub(crate) fn object(&mut self, stored: &Stored, what: What) -> Option<&mut Object> {
        self.entry(stored, what).object.as_mut()
    }

    /// The same of a known type.
    pub(crate) fn edit<T: Resource>(&mut self, seen: Seen<'_, T>, what: What) -> Option<&mut T> {
        self.object(seen.stored, what).and_then(T::of_mut)
    }

    /// Deletes a resource.
    pub(crate) fn delete(&mut self, stored: &Stored, what: What) {
        self.entry(stored, what).object = None;
    }

    /// Writes another resource together with one that is changed already.
    pub(crate) fn along(&mut self, with: &ObjectKey, write: ObjectWrite) {
        if let Some(entry) = self.0.get_mut(with) {
            entry.extra.push(write);
        }
    }

    /// Says what the change of a resource stands on.
    pub(crate) fn stand_on(&mut self, key: &ObjectKey, basis: impl Iterator<Item = (ObjectKey, i64)>) {
        if let Some(entry) = self.0.get_mut(key) {
            entry.basis.extend(basis);
        }
    }

    /// Says that a change stands on what all applications are.
    pub(crate) fn stand_on_all(&mut self, key: &ObjectKey) {
        if let Some(entry) = self.0.get_mut(key) {
            entry.stands_on_all = true;
        }
    }

    /// Keeps a decision with a change.
    pub(crate) fn decided(&mut self, key: &ObjectKey, decision: &Decision) {
        if let Some(entry) = self.0.get_mut(key) {
            entry.decision = Some(decision.clone());
        }
    }

    /// Says that a change counts as a move.
    pub(crate) fn counts_as_move(&mut self, key: &ObjectKey) {
        if let Some(entry) = self.0.get_mut(key) {
            entry.moves = true;
        }
    }

    /// Says by which rule a change deletes the resource.
    pub(crate) fn deletes(&mut self, key: &ObjectKey, by: Deletion) {
        if let Some(entry) = self.0.get_mut(key) {
            entry.deletion = Some(by);
        }
    }

    /// Says that a change is a binding.
    pub(crate) fn binds(&mut self, key: &ObjectKey, to: ObjectKey, moves: bool) {
        if let Some(entry) = self.0.get_mut(key) {
            entry.bound_to = Some(to);
            entry.moves = moves;
        }
    }

    /// What is to be written: applications first, as they stand on the revisions of clusters.
    pub(crate) fn into_units(self, snapshot: &Snapshot) -> Vec<Unit> {
        let applications = snapshot.of::<Application>();
        let newest = applications.map(|seen| seen.stored.mod_revision).max().unwrap_or_default();
        let units = self.0.into_iter().filter_map(|(key, entry)| {
            let same = entry
                .object
                .as_ref()
                .is_some_and(|object| snapshot.get(&key).is_some_and(|stored| stored.object == *object));
            if same && entry.extra.is_empty() {
                return None;
            }
            let write = ObjectWrite { key: key.clone(), revision: entry.revision, object: entry.object };
            let mut writes = vec![write];
            writes.extend(entry.extra);
            Some(Unit {
                what: entry.what,
                writes,
                basis: entry.basis.into_iter().collect(),
                applications: entry.stands_on_all.then_some(newest),
                binding: entry.bound_to.map(|to| (key.clone(), to)),
                deletion: entry.deletion.map(|by| (key.clone(), by)),
                decision: entry.decision.map(|decision| (key, decision)),
                moves: entry.moves,
            })
        });
        let (mut first, rest): (Vec<Unit>, Vec<Unit>) = units
            .partition(|unit| unit.writes.first().is_some_and(|write| write.key.kind == Kind::Application));
        first.extend(rest);
        first
    }
}
