//! Checks that the simulated user asked for each creation and each deletion of a placement resource.

use std::sync::Arc;

use madako_domain::invariants::Id;
use madako_domain::placement::kind::{Kind, ObjectKey};
use madako_domain::placement::metadata::{CASCADE_DELETION, ResourceRef};
use madako_domain::placement::objects::Stored;

use super::{JudgedPlacement, read_bound_cluster};

impl JudgedPlacement {
    /// Checks a written resource: the user asked for its creation or deletion, and it is still the same resource.
    pub(super) fn check_written(
        &mut self,
        revision: i64,
        stored: &Arc<Stored>,
        after: &[(ObjectKey, Option<Arc<Stored>>)],
    ) {
        let key = &stored.key;
        let before = self.stored_object(key);
        let metadata = stored.object.metadata();
        match &before {
            None => {
                let (requested, made) = self.wanted.entry(key.clone()).or_default();
                *made += 1;
                if *made > *requested {
                    self.record_violation(
                        Id::I9,
                        revision,
                        format_args!("{key} is created, and no client requested it"),
                    );
                }
            }
            Some(before) if before.object.metadata().uid != metadata.uid => {
                self.record_violation(Id::I9, revision, format_args!("{key} is replaced by another one"));
            }
            Some(_) => {}
        }
        let was_deleted = before.is_some_and(|before| before.object.metadata().deleted.is_some());
        if metadata.deleted.is_none() || was_deleted || self.deleting.contains(key) {
            return;
        }
        // A deletion of the owner to which it is bound deletes it too.
        let goes = |owner: &ObjectKey| {
            let now = after.iter().find(|(other, _)| other == owner).and_then(|(_, stored)| stored.clone());
            let owner = now.or_else(|| self.stored_object(owner));
            owner.is_some_and(|owner| owner.object.metadata().deleted.is_some())
        };
        let along = metadata.owners.iter().filter_map(ResourceRef::key).any(|owner| {
            let bound = key.kind != Kind::Application || read_bound_cluster(stored).as_ref() == Some(&owner);
            bound && goes(&owner)
        });
        if !along {
            self.record_violation(
                Id::I9,
                revision,
                format_args!("{key} is deleted, and no client requested that"),
            );
        }
    }

    /// Checks that a missing resource was deleted, and that no other resource depends on it.
    pub(super) fn check_deleted(
        &mut self,
        revision: i64,
        key: &ObjectKey,
        after: &[(ObjectKey, Option<Arc<Stored>>)],
    ) {
        let Some(before) = self.stored_object(key) else { return };
        self.counts.collected += 1;
        let metadata = before.object.metadata();
        let ours = metadata.finalizers.iter().all(|finalizer| finalizer == CASCADE_DELETION);
        if metadata.deleted.is_none() || !ours {
            self.record_violation(Id::I9, revision, format_args!("{key} is gone, and was not deleted"));
        }
        let left: Vec<ObjectKey> = self
            .objects
            .values()
            .filter(|other| {
                let gone = after.iter().any(|(key, stored)| *key == other.key && stored.is_none());
                let stored = after.iter().find(|(key, _)| *key == other.key).and_then(|(_, it)| it.as_ref());
                let owners = &stored.unwrap_or(other).object.metadata().owners;
                !gone && owners.iter().filter_map(ResourceRef::key).any(|owner| owner == *key)
            })
            .map(|other| other.key.clone())
            .collect();
        if let Some(left) = left.first() {
            self.record_violation(
                Id::I9,
                revision,
                format_args!("{key} is gone before {left}, which depends on it"),
            );
        }
    }
}
