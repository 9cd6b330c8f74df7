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

use madako_messages::canary::{Canary, is_planted};
use madako_messages::placement::kind::ObjectKey;
use madako_messages::placement::kubernetes::{Application, ApplicationState};
use madako_messages::placement::metadata::{CASCADE_DELETION, ResourceRef};
use madako_messages::placement::object_value::{Object, Resource as _};
use madako_messages::placement::objects::Stored;
use madako_messages::placement::timestamp::Timestamp;
use time::OffsetDateTime;

use crate::snapshot::Snapshot;

/// What is to be done.
#[derive(Debug, Default)]
pub struct Garbage<'a> {
    /// Dependents that are to be marked as deleted.
    pub mark: BTreeSet<&'a ObjectKey>,
    /// Deleted resources without dependents.
    pub finish: Vec<&'a Stored>,
    /// Applications that are bound elsewhere, and clusters in deletion that are to leave their owners.
    pub release: Vec<(&'a Stored, &'a ObjectKey)>,
    /// Resources that depend on each other in a circle.
    pub circular: BTreeSet<&'a ObjectKey>,
}

/// How one resource depends on another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tie {
    /// It goes along.
    Owned,
    /// It does not, but has to leave first.
    Runs,
    /// It has left.
    Left,
}

type Dependents<'a> = BTreeMap<&'a ObjectKey, Vec<(&'a Stored, Tie)>>;

/// Judges what is deleted.
#[must_use]
pub fn collect(snapshot: &Snapshot) -> Garbage<'_> {
    let deleted: Vec<&Stored> =
        snapshot.all().filter(|stored| stored.object.metadata().deleted.is_some()).collect();
    let mut garbage = Garbage::default();
    if deleted.is_empty() || is_planted(Canary::NothingCollected) {
        return garbage;
    }
    let dependents = dependents(snapshot);
    let roots: Vec<&ObjectKey> = deleted.iter().map(|stored| &stored.key).collect();
    let reached = reached(&roots, &dependents, &BTreeSet::new());
    garbage.circular = circular(&reached, &dependents);
    let reached = self::reached(&roots, &dependents, &garbage.circular);
    garbage.mark = reached
        .into_iter()
        .filter(|key| snapshot.get(key).is_some_and(|stored| stored.object.metadata().deleted.is_none()))
        .collect();
    for stored in deleted {
        if garbage.circular.contains(&stored.key) {
            continue;
        }
        let ties = dependents.get(&stored.key).map_or(&[][..], Vec::as_slice);
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

fn dependents(snapshot: &Snapshot) -> Dependents<'_> {
    let mut all: Dependents<'_> = BTreeMap::new();
    for stored in snapshot.all() {
        for owner in &stored.object.metadata().owners {
            let Some(owner) = owner.key().and_then(|key| snapshot.get(&key)) else { continue };
            let ties = all.entry(&owner.key).or_default();
            if !ties.iter().any(|(known, _)| known.key == stored.key) {
                ties.push((stored, tie(stored, &owner.key)));
            }
        }
    }
    all
}

fn tie(dependent: &Stored, owner: &ObjectKey) -> Tie {
    let Object::Application(application) = &dependent.object else { return Tie::Owned };
    let status = &application.status;
    let is =
        |reference: &Option<ResourceRef>| reference.as_ref().is_some_and(|reference| reference.is(owner));
    let elsewhere =
        status.scheduled_to.as_ref().and_then(|to| to.key()).is_some_and(|to| to.kind == owner.kind);
    if !elsewhere || is(&status.scheduled_to) {
        Tie::Owned
    } else if is(&status.running_on) {
        Tie::Runs
    } else {
        Tie::Left
    }
}

/// Everything that goes along with some resources, those included, without going through others.
fn reached<'a>(
    roots: &[&'a ObjectKey],
    dependents: &Dependents<'a>,
    without: &BTreeSet<&'a ObjectKey>,
) -> BTreeSet<&'a ObjectKey> {
    let mut reached = BTreeSet::new();
    let mut open: Vec<&ObjectKey> = roots.to_vec();
    while let Some(key) = open.pop() {
        if without.contains(key) || !reached.insert(key) {
            continue;
        }
        open.extend(owned(key, dependents));
    }
    reached
}

fn owned<'a>(key: &ObjectKey, dependents: &Dependents<'a>) -> Vec<&'a ObjectKey> {
    let ties = dependents.get(key).map_or(&[][..], Vec::as_slice);
    ties.iter().filter(|(_, tie)| *tie == Tie::Owned).map(|(dependent, _)| &dependent.key).collect()
}

/// What is left when everything without dependents, and then everything without owners, is taken away again and
/// again: circles, and what lies between two of them.
fn circular<'a>(reached: &BTreeSet<&'a ObjectKey>, dependents: &Dependents<'a>) -> BTreeSet<&'a ObjectKey> {
    let mut owners: BTreeMap<&ObjectKey, Vec<&ObjectKey>> = BTreeMap::new();
    let mut forward: BTreeMap<&ObjectKey, Vec<&ObjectKey>> = BTreeMap::new();
    for key in reached {
        for dependent in owned(key, dependents) {
            owners.entry(dependent).or_default().push(key);
            forward.entry(key).or_default().push(dependent);
        }
    }
    let left = trimmed(reached.clone(), &forward, &owners);
    trimmed(left, &owners, &forward)
}

/// Takes away what leads nowhere, until everything that is left leads to something that is left.
fn trimmed<'a>(
    mut left: BTreeSet<&'a ObjectKey>,
    leads_to: &BTreeMap<&'a ObjectKey, Vec<&'a ObjectKey>>,
    led_to_by: &BTreeMap<&'a ObjectKey, Vec<&'a ObjectKey>>,
) -> BTreeSet<&'a ObjectKey> {
    let degree = |key: &&'a ObjectKey, left: &BTreeSet<&'a ObjectKey>| {
        leads_to.get(key).map_or(0, |to| to.iter().filter(|to| left.contains(*to)).count())
    };
    let mut degrees: BTreeMap<&ObjectKey, usize> =
        left.iter().map(|key| (*key, degree(key, &left))).collect();
    let mut open: Vec<&ObjectKey> =
        degrees.iter().filter(|(_, degree)| **degree == 0).map(|(key, _)| *key).collect();
    while let Some(key) = open.pop() {
        left.remove(key);
        for before in led_to_by.get(key).into_iter().flatten() {
            if let Some(degree) = degrees.get_mut(before).filter(|degree| **degree > 0) {
                *degree -= 1;
                if *degree == 0 {
                    open.push(before);
                }
            }
        }
    }
    left
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
