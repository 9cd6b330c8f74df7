//! Garbage collection (Krake's `krake/controller/gc.py`).
//!
//! Guarantees: a deleted resource disappears when its finalizers and its dependents are gone, dependents first. All
//! direct and indirect dependents are marked as deleted. An application that is bound elsewhere is not a cluster's
//! dependent, even if a former binding left the cluster among its owners (Krake deletes such an application): it is
//! released, and the cluster waits while the application still runs there. Resources in dependency cycles are left
//! alone, as in Krake, and reported.
//!
//! Does not: remove finalizers other than its own, or question a deletion.

use std::collections::{BTreeMap, BTreeSet};

use madako_domain::canary::{Canary, is_planted};
use madako_domain::placement::dependents::{DeletionSet, DependentRelation, Dependents};
use madako_domain::placement::kind::ObjectKey;
use madako_domain::placement::kubernetes::{Application, ApplicationState};
use madako_domain::placement::metadata::CASCADE_DELETION;
use madako_domain::placement::object_value::{Object, Resource as _};
use madako_domain::placement::objects::Stored;
use madako_json::krake::timestamp::Timestamp;
use time::OffsetDateTime;

use crate::snapshot::Snapshot;

#[derive(Debug, Default)]
pub struct Garbage<'a> {
    /// Dependents to mark as deleted, each with its deleted owner.
    pub mark: BTreeMap<&'a ObjectKey, &'a ObjectKey>,
    /// Deleted resources without dependents.
    pub finish: Vec<&'a Stored>,
    /// Applications that are bound elsewhere, and the deleted clusters to remove from their owners.
    pub release: Vec<(&'a Stored, &'a ObjectKey)>,
    pub circular: BTreeSet<&'a ObjectKey>,
}

#[must_use]
pub fn collect_garbage(snapshot: &Snapshot) -> Garbage<'_> {
    let deleted: Vec<&Stored> =
        snapshot.all().filter(|stored| stored.object.metadata().deleted.is_some()).collect();
    let mut garbage = Garbage::default();
    if deleted.is_empty() || is_planted(Canary::NothingCollected) {
        return garbage;
    }
    let dependents = Dependents::find_among(snapshot.all(), |key| snapshot.get(key));
    let roots: Vec<&ObjectKey> = deleted.iter().map(|stored| &stored.key).collect();
    let DeletionSet { reached, circular } = dependents.deleted_with(&roots);
    let stays = |key: &ObjectKey| snapshot.get(key).is_some_and(|it| it.object.metadata().deleted.is_none());
    garbage.mark = reached.into_iter().filter_map(|(key, owner)| Some((key, owner?))).collect();
    garbage.mark.retain(|key, _| stays(key));
    garbage.circular = circular;
    for stored in deleted {
        if garbage.circular.contains(&stored.key) {
            continue;
        }
        let ties = dependents.get(&stored.key);
        let left = ties.iter().filter(|(_, tie)| *tie == DependentRelation::Left);
        garbage.release.extend(left.map(|(application, _)| (*application, &stored.key)));
        let finalizers = &stored.object.metadata().finalizers;
        let ours = finalizers.last().is_none_or(|last| last == CASCADE_DELETION);
        if ours && ties.iter().all(|(_, tie)| *tie == DependentRelation::Left) {
            garbage.finish.push(stored);
        }
    }
    garbage
}

/// Marks a resource as deleted, as the API does on a request.
pub fn mark_deleted(object: &mut Object, now: OffsetDateTime) {
    if let Object::Application(application) = object
        && application.spec.hooks.iter().any(|hook| hook == "shutdown")
    {
        application.status.state = ApplicationState::WaitingForCleaning;
    }
    let metadata = object.metadata_mut();
    metadata.deleted = Some(Timestamp::new(now));
    metadata.finalizers.push(CASCADE_DELETION.to_owned());
}

/// Removes the collector's finalizer. Returns whether no finalizer is left.
pub fn finish_deletion(object: &mut Object) -> bool {
    let finalizers = &mut object.metadata_mut().finalizers;
    while finalizers.last().is_some_and(|last| last == CASCADE_DELETION) {
        finalizers.pop();
    }
    finalizers.is_empty()
}

/// Removes a cluster from the owners of an application that is bound elsewhere.
pub fn remove_owner(object: &mut Object, from: &ObjectKey) {
    if Application::from_object(object).is_some() {
        object.metadata_mut().owners.retain(|owner| !owner.refers_to(from));
    }
}
