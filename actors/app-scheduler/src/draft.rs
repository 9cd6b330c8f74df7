//! Collects the changes of a pass, so that a resource that several rules change is written once.
//!
//! Guarantees: an unchanged resource is not written.

use std::collections::BTreeMap;

use madako_domain::placement::decision::Decision;
use madako_domain::placement::kind::{Kind, ObjectKey};
use madako_domain::placement::kubernetes::Application;
use madako_domain::placement::object_value::{Object, Resource};
use madako_domain::placement::objects::Stored;
use time::OffsetDateTime;

use crate::snapshot::{Snapshot, TypedResource};

#[derive(Debug, Clone, PartialEq)]
pub struct ObjectWrite {
    pub key: ObjectKey,
    /// Required present revision; 0: it must not exist.
    pub revision: i64,
    /// `None`: delete it.
    pub object: Option<Object>,
}

/// Writes of one transaction: all or none.
#[derive(Debug, Clone, PartialEq)]
pub struct WriteUnit {
    pub kind: WriteKind,
    pub writes: Vec<ObjectWrite>,
    /// Revisions of other resources that the decision depends on.
    pub basis: Vec<(ObjectKey, i64)>,
    /// Last revision of any application, for decisions that depend on all of them: no application may be bound to a
    /// cluster that is deleted.
    pub applications: Option<i64>,
    /// The decision on an application, kept with the writes.
    pub decision: Option<(ObjectKey, Decision)>,
    /// An application, and the cluster that the writes bind it to.
    pub binding: Option<(ObjectKey, ObjectKey)>,
    /// The binding is a move, or the writes create a cluster for a move.
    pub moves: bool,
    /// A resource whose deletion begins or ends, and the rule.
    pub deletion: Option<(ObjectKey, Deletion)>,
}

/// The rule that deletes a resource, for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Deletion {
    /// Deletion begins because an owner is being deleted.
    WithOwner { owner: ObjectKey },
    /// Deletion begins: the cluster was created for applications, and none used it for `deletion_retention`.
    Unused {
        /// Start of the present time without use.
        since: OffsetDateTime,
    },
    /// Deletion ends: no dependents and no finalizers are left.
    Done,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, strum::IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum WriteKind {
    /// An application is bound, fails, waits, or may be deployed.
    Application,
    /// A cluster is bound to a cloud, or a Magnum cluster to a project.
    Cluster,
    /// The metrics of a cluster, cloud or project begin or cease to fail.
    Metrics,
    /// Deletion of a cluster that was created for an application and is unused.
    #[strum(serialize = "unused-cluster")]
    Unused,
    Garbage,
}

madako_json::named!(WriteKind);

struct Entry {
    kind: WriteKind,
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

#[derive(Default)]
pub(crate) struct DraftedChanges(BTreeMap<ObjectKey, Entry>);

impl DraftedChanges {
    fn entry_of(&mut self, stored: &Stored, kind: WriteKind) -> &mut Entry {
        self.0.entry(stored.key.clone()).or_insert_with(|| Entry {
            kind,
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

    /// A resource to change; `None` if this pass deletes it.
    pub(crate) fn object_mut(&mut self, stored: &Stored, kind: WriteKind) -> Option<&mut Object> {
        self.entry_of(stored, kind).object.as_mut()
    }

    /// The same for a known type.
    pub(crate) fn edit_resource<T: Resource>(
        &mut self,
        resource: TypedResource<'_, T>,
        kind: WriteKind,
    ) -> Option<&mut T> {
        self.object_mut(resource.stored, kind).and_then(T::from_object_mut)
    }

    pub(crate) fn delete(&mut self, stored: &Stored, kind: WriteKind) {
        self.entry_of(stored, kind).object = None;
    }

    /// Writes another resource in the unit of a changed one.
    pub(crate) fn write_along(&mut self, with: &ObjectKey, write: ObjectWrite) {
        if let Some(entry) = self.0.get_mut(with) {
            entry.extra.push(write);
        }
    }

    /// Adds revisions that the change of a resource depends on.
    pub(crate) fn add_basis(&mut self, key: &ObjectKey, basis: impl Iterator<Item = (ObjectKey, i64)>) {
        if let Some(entry) = self.0.get_mut(key) {
            entry.basis.extend(basis);
        }
    }

    pub(crate) fn depend_on_all_applications(&mut self, key: &ObjectKey) {
        if let Some(entry) = self.0.get_mut(key) {
            entry.stands_on_all = true;
        }
    }

    pub(crate) fn record_decision(&mut self, key: &ObjectKey, decision: &Decision) {
        if let Some(entry) = self.0.get_mut(key) {
            entry.decision = Some(decision.clone());
        }
    }

    pub(crate) fn counts_as_move(&mut self, key: &ObjectKey) {
        if let Some(entry) = self.0.get_mut(key) {
            entry.moves = true;
        }
    }

    pub(crate) fn record_deletion(&mut self, key: &ObjectKey, by: Deletion) {
        if let Some(entry) = self.0.get_mut(key) {
            entry.deletion = Some(by);
        }
    }

    pub(crate) fn record_binding(&mut self, key: &ObjectKey, to: ObjectKey, moves: bool) {
        if let Some(entry) = self.0.get_mut(key) {
            entry.bound_to = Some(to);
            entry.moves = moves;
        }
    }

    /// Units to write. Applications come first, as they depend on revisions of clusters.
    pub(crate) fn into_units(self, snapshot: &Snapshot) -> Vec<WriteUnit> {
        let applications = snapshot.of::<Application>();
        let newest = applications.map(|resource| resource.stored.mod_revision).max().unwrap_or_default();
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
            Some(WriteUnit {
                kind: entry.kind,
                writes,
                basis: entry.basis.into_iter().collect(),
                applications: entry.stands_on_all.then_some(newest),
                binding: entry.bound_to.map(|to| (key.clone(), to)),
                deletion: entry.deletion.map(|by| (key.clone(), by)),
                decision: entry.decision.map(|decision| (key, decision)),
                moves: entry.moves,
            })
        });
        let (mut first, rest): (Vec<WriteUnit>, Vec<WriteUnit>) = units
            .partition(|unit| unit.writes.first().is_some_and(|write| write.key.kind == Kind::Application));
        first.extend(rest);
        first
    }
}
