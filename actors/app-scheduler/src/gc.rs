//! Garbage collection (Krake's `krake/controller/gc.py`; issue 4, section 4).
//!
//! Guarantees: a deleted resource goes when its finalizers and its dependents are gone, dependents first; what
//! depends on it is marked as deleted, however deep. An application that is bound elsewhere is not a cluster's
//! dependent, though a former binding may have left it among its owners (in Krake it goes along): it is released,
//! and while it still runs there, the cluster waits. Resources that depend on each other in a circle are left
//! alone, as in Krake, and named.
//!
//! Does not: remove other finalizers than its own, or judge what was deleted.

use std::collections::{BTreeMap, BTreeSet};

use madako_domain::canary::{Canary, is_planted};
use madako_domain::placement::dependents::{Dependents, Going, Tie};
use madako_domain::placement::kind::ObjectKey;
use madako_domain::placement::kubernetes::{Application, ApplicationState};
use madako_domain::placement::metadata::CASCADE_DELETION;
use madako_domain::placement::object_value::{Object, Resource as _};
use madako_domain::placement::objects::Stored;
use madako_json::krake::timestamp::Timestamp;
use time::OffsetDateTime;

use crate::snapshot::Snapshot;

/// What is to be done.
#[derive(Debug, Default)]
pub struct Garbage<'a> {
    /// Dependents that are to be marked as deleted, each with the owner that it goes with.
    pub mark: BTreeMap<&'a ObjectKey, &'a ObjectKey>,
    /// Deleted resources without dependents.
    pub finish: Vec<&'a Stored>,
    /// Applications that are bound elsewhere, and clusters in deletion that are to leave their owners.
    pub release: Vec<(&'a Stored, &'a ObjectKey)>,
    /// Resources that depend on each other in a circle.
    pub circular: BTreeSet<&'a ObjectKey>,
}

/// Judges what is deleted.
#[must_use]
pub fn collect(snapshot: &Snapshot) -> Garbage<'_> {
    let deleted: Vec<&Stored> =
        snapshot.all().filter(|stored| stored.object.metadata().deleted.is_some()).collect();
    let mut garbage = Garbage::default();
    if deleted.is_empty() || is_planted(Canary::NothingCollected) {
        return garbage;
    }
    let dependents = Dependents::among(snapshot.all(), |key| snapshot.get(key));
    let roots: Vec<&ObjectKey> = deleted.iter().map(|stored| &stored.key).collect();
    let Going { reached, circular } = dependents.going_with(&roots);
    let stays = |key: &ObjectKey| snapshot.get(key).is_some_and(|it| it.object.metadata().deleted.is_none());
    garbage.mark = reached.into_iter().filter_map(|(key, owner)| Some((key, owner?))).collect();
    garbage.mark.retain(|key, _| stays(key));
    garbage.circular = circular;
    for stored in deleted {
        if garbage.circular.contains(&stored.key) {
            continue;
        }
        let ties = dependents.of(&stored.key);
        let left = ties.iter().filter(|(_, tie)| *tie == Tie::Left);
        garbage.release.extend(left.map(|(application, _)| (*application, &stored.key)));
        let finalizers = &stored.object.metadata().finalizers;
        let ours = finalizers.last().is_none_or(|last| last == CASCADE_DELETION);
        if ours && ties.iter().all(|(_, tie)| *tie == Tie::Left) {
            garbage.finish.push(stored);
        }
    }
    garbage
}

/// Marks a resource as deleted, as the API does when somebody asks for it.
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

/// Takes the collector's finalizer away. Whether nothing is left that the resource waits for.
pub fn finished(object: &mut Object) -> bool {
    let finalizers = &mut object.metadata_mut().finalizers;
    while finalizers.last().is_some_and(|last| last == CASCADE_DELETION) {
        finalizers.pop();
    }
    finalizers.is_empty()
}

/// Takes a cluster from the owners of an application that is bound elsewhere.
pub fn release(object: &mut Object, from: &ObjectKey) {
    if Application::of(object).is_some() {
        object.metadata_mut().owners.retain(|owner| !owner.is(from));
    }
}
