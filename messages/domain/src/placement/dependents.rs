//! Which resources are deleted with another one, by `metadata.owners` (Krake's `krake/controller/gc.py`).
//!
//! For: the garbage collection, which decides by it, and the API, which tells before a deletion what it takes along.
//!
//! Guarantees: an application that is bound elsewhere is not a cluster's dependent, though a former binding may have
//! left the cluster among its owners (in Krake it goes along). Resources that depend on each other in a circle, and
//! what lies between two circles, are no part of what goes.

use std::collections::{BTreeMap, BTreeSet};

use super::kind::ObjectKey;
use super::metadata::ResourceRef;
use super::object_value::Object;
use super::objects::Stored;

/// How one resource depends on another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tie {
    /// It is deleted with its owner.
    Owned,
    /// It is bound elsewhere and still runs there: the owner waits until it has left.
    Runs,
    /// It is bound elsewhere and has left.
    Left,
}

/// The dependents of every owner that exists.
#[derive(Debug, Default)]
pub struct Dependents<'a>(BTreeMap<&'a ObjectKey, Vec<(&'a Stored, Tie)>>);

/// What a deletion takes along.
#[derive(Debug, Default)]
pub struct Going<'a> {
    /// The roots, and everything that goes with them: each with the owner that it goes with.
    pub reached: BTreeMap<&'a ObjectKey, Option<&'a ObjectKey>>,
    /// Resources that depend on each other in a circle, and stay.
    pub circular: BTreeSet<&'a ObjectKey>,
}

impl<'a> Dependents<'a> {
    /// The dependents among `all` resources; `get` finds one of them.
    #[must_use]
    pub fn among(
        all: impl IntoIterator<Item = &'a Stored>,
        get: impl Fn(&ObjectKey) -> Option<&'a Stored>,
    ) -> Self {
        let mut dependents = Self::default();
        for stored in all {
            for owner in &stored.object.metadata().owners {
                let Some(owner) = owner.key().and_then(|key| get(&key)) else { continue };
                let ties = dependents.0.entry(&owner.key).or_default();
                if !ties.iter().any(|(known, _)| known.key == stored.key) {
                    ties.push((stored, tie(stored, &owner.key)));
                }
            }
        }
        dependents
    }

    /// The dependents of one resource.
    #[must_use]
    pub fn of(&self, owner: &ObjectKey) -> &[(&'a Stored, Tie)] {
        self.0.get(owner).map_or(&[], Vec::as_slice)
    }

    /// Everything that goes when `roots` are deleted, however deep.
    #[must_use]
    pub fn going_with(&self, roots: &[&'a ObjectKey]) -> Going<'a> {
        let reached = self.reached(roots, &BTreeSet::new());
        let circular = self.circular(reached.into_keys().collect());
        Going { reached: self.reached(roots, &circular), circular }
    }

    /// What is reached from `roots` without going through `without`.
    fn reached(
        &self,
        roots: &[&'a ObjectKey],
        without: &BTreeSet<&'a ObjectKey>,
    ) -> BTreeMap<&'a ObjectKey, Option<&'a ObjectKey>> {
        let mut reached = BTreeMap::new();
        let mut open: Vec<(&ObjectKey, Option<&ObjectKey>)> =
            roots.iter().map(|root| (*root, None)).collect();
        while let Some((key, owner)) = open.pop() {
            if without.contains(key) || reached.contains_key(key) {
                continue;
            }
            reached.insert(key, owner);
            open.extend(self.owned(key).map(|dependent| (dependent, Some(key))));
        }
        reached
    }

    fn owned(&self, key: &ObjectKey) -> impl Iterator<Item = &'a ObjectKey> {
        self.of(key).iter().filter(|(_, tie)| *tie == Tie::Owned).map(|(dependent, _)| &dependent.key)
    }

    /// What is left when everything without dependents, and then everything without owners, is taken away again and
    /// again: circles, and what lies between two of them.
    fn circular(&self, reached: BTreeSet<&'a ObjectKey>) -> BTreeSet<&'a ObjectKey> {
        let mut owners: BTreeMap<&ObjectKey, Vec<&ObjectKey>> = BTreeMap::new();
        let mut forward: BTreeMap<&ObjectKey, Vec<&ObjectKey>> = BTreeMap::new();
        for key in &reached {
            for dependent in self.owned(key) {
                owners.entry(dependent).or_default().push(key);
                forward.entry(key).or_default().push(dependent);
            }
        }
        let left = trimmed(reached, &forward, &owners);
        trimmed(left, &owners, &forward)
    }
}

fn tie(dependent: &Stored, owner: &ObjectKey) -> Tie {
    let Object::Application(application) = &dependent.object else { return Tie::Owned };
    let status = &application.status;
    let is =
        |reference: &Option<ResourceRef>| reference.as_ref().is_some_and(|reference| reference.is(owner));
    let elsewhere =
        status.scheduled_to.as_ref().and_then(ResourceRef::key).is_some_and(|to| to.kind == owner.kind);
    if !elsewhere || is(&status.scheduled_to) {
        Tie::Owned
    } else if is(&status.running_on) {
        Tie::Runs
    } else {
        Tie::Left
    }
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
