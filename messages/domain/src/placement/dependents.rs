//! Resources that are deleted together with their owner, by `metadata.owners` (Krake's `krake/controller/gc.py`).
//!
//! For: the garbage collection, which decides with it, and the API, which lists all affected resources before a
//! deletion.
//!
//! Guarantees: an application that is bound elsewhere is not a dependent of a cluster, even if a former binding left
//! the cluster among its owners (Krake deletes the application). Resources in a cycle of owners, and resources
//! between two cycles, are not deleted.

use std::collections::{BTreeMap, BTreeSet};

use super::kind::ObjectKey;
use super::metadata::ResourceRef;
use super::object_value::Object;
use super::objects::Stored;

/// The relation of a dependent to its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DependentRelation {
    /// The dependent is deleted with its owner.
    Owned,
    /// The application is bound elsewhere and still runs on the owner: the owner's deletion waits until it has left.
    Runs,
    /// The application is bound elsewhere and has left the owner.
    Left,
}

/// The dependents of every existing owner.
#[derive(Debug, Default)]
pub struct Dependents<'a>(BTreeMap<&'a ObjectKey, Vec<(&'a Stored, DependentRelation)>>);

/// The resources that a deletion affects.
#[derive(Debug, Default)]
pub struct DeletionSet<'a> {
    /// The roots and all their dependents, each with the owner that led to it.
    pub reached: BTreeMap<&'a ObjectKey, Option<&'a ObjectKey>>,
    /// Resources in a cycle of owners, which stay.
    pub circular: BTreeSet<&'a ObjectKey>,
}

impl<'a> Dependents<'a> {
    /// The dependents among `all` resources; `get` looks up an owner.
    #[must_use]
    pub fn find_among(
        all: impl IntoIterator<Item = &'a Stored>,
        get: impl Fn(&ObjectKey) -> Option<&'a Stored>,
    ) -> Self {
        let mut dependents = Self::default();
        for stored in all {
            for owner in &stored.object.metadata().owners {
                let Some(owner) = owner.key().and_then(|key| get(&key)) else { continue };
                let ties = dependents.0.entry(&owner.key).or_default();
                if !ties.iter().any(|(known, _)| known.key == stored.key) {
                    ties.push((stored, relation_to_owner(stored, &owner.key)));
                }
            }
        }
        dependents
    }

    /// The dependents of one resource.
    #[must_use]
    pub fn get(&self, owner: &ObjectKey) -> &[(&'a Stored, DependentRelation)] {
        self.0.get(owner).map_or(&[], Vec::as_slice)
    }

    /// All resources that are deleted with `roots`, at any depth.
    #[must_use]
    pub fn deleted_with(&self, roots: &[&'a ObjectKey]) -> DeletionSet<'a> {
        let reached = self.reachable_from(roots, &BTreeSet::new());
        let circular = self.find_cycles(reached.into_keys().collect());
        DeletionSet { reached: self.reachable_from(roots, &circular), circular }
    }

    /// The resources reachable from `roots` without passing through `without`.
    fn reachable_from(
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
            open.extend(self.owned_keys(key).map(|dependent| (dependent, Some(key))));
        }
        reached
    }

    fn owned_keys(&self, key: &ObjectKey) -> impl Iterator<Item = &'a ObjectKey> {
        self.get(key)
            .iter()
            .filter(|(_, tie)| *tie == DependentRelation::Owned)
            .map(|(dependent, _)| &dependent.key)
    }

    /// The resources that remain after repeatedly removing those without dependents and then those without owners:
    /// cycles, and the resources between two cycles.
    fn find_cycles(&self, reached: BTreeSet<&'a ObjectKey>) -> BTreeSet<&'a ObjectKey> {
        let mut owners: BTreeMap<&ObjectKey, Vec<&ObjectKey>> = BTreeMap::new();
        let mut forward: BTreeMap<&ObjectKey, Vec<&ObjectKey>> = BTreeMap::new();
        for key in &reached {
            for dependent in self.owned_keys(key) {
                owners.entry(dependent).or_default().push(key);
                forward.entry(key).or_default().push(dependent);
            }
        }
        let left = trim_cycle(reached, &forward, &owners);
        trim_cycle(left, &owners, &forward)
    }
}

fn relation_to_owner(dependent: &Stored, owner: &ObjectKey) -> DependentRelation {
    let Object::Application(application) = &dependent.object else { return DependentRelation::Owned };
    let status = &application.status;
    let is = |reference: &Option<ResourceRef>| {
        reference.as_ref().is_some_and(|reference| reference.refers_to(owner))
    };
    let elsewhere =
        status.scheduled_to.as_ref().and_then(ResourceRef::key).is_some_and(|to| to.kind == owner.kind);
    if !elsewhere || is(&status.scheduled_to) {
        DependentRelation::Owned
    } else if is(&status.running_on) {
        DependentRelation::Runs
    } else {
        DependentRelation::Left
    }
}

/// Repeatedly removes the resources without successors, until every remaining one has a remaining successor.
fn trim_cycle<'a>(
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
