//! Judges placement by the store's revisions: I11, with the predicate of the gate.
//!
//! When all is calm, nothing is left to do: each application that fits a cluster is bound, and each deleted object is
//! gone (I12).
//!
//! Each application that a revision binds is judged with the cluster stored before that revision. The decision may have
//! used any value that a metric had in the run; the most permissive value counts.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use madako_domain::invariants::BindingEvidence;
use madako_domain::invariants::{Id, PlacementChange, Violation, placed_where_allowed};
use madako_domain::placement::fit::{Compared, Offer, unmet};
use madako_domain::placement::kind::{Kind, ObjectKey};
use madako_domain::placement::kubernetes::{Application, Cluster};
use madako_domain::placement::metadata::ResourceRef;
use madako_domain::placement::metrics::MetricsObserved;
use madako_domain::placement::object_value::{Object, Resource as _};
use madako_domain::placement::objects::Stored;
use madako_domain::store::{Condition, Write};
use time::OffsetDateTime;

use super::Verdicts;
use crate::observer::{Change, Revision};

/// `calm`: whether the run was calm after the last revision.
pub fn judge(revisions: &[Revision], calm: bool, verdicts: &mut Verdicts) {
    let mut objects: BTreeMap<ObjectKey, Arc<Stored>> = BTreeMap::new();
    for revision in revisions {
        let mut after = Vec::new();
        for change in &revision.changes {
            let Some(key) = ObjectKey::from_etcd_key(&change.key) else { continue };
            let stored = match &change.value {
                None => None,
                Some(value) => match read(&key, change, value, revision.revision) {
                    Some(stored) => Some(Arc::new(stored)),
                    None => {
                        let what = format!("revision {}: {key} cannot be read", revision.revision);
                        verdicts.broken("placement", what);
                        continue;
                    }
                },
            };
            after.push((key, stored));
        }
        for stored in after.iter().filter_map(|(_, stored)| stored.as_ref()) {
            if stored.key.kind == Kind::Application {
                application(revision.revision, stored, &objects, verdicts);
            }
        }
        for (key, stored) in after {
            match stored {
                Some(stored) => objects.insert(key, stored),
                None => objects.remove(&key),
            };
        }
    }
    if calm {
        settled(&objects, verdicts);
    }
}

/// Judges the final state. Values of metrics do not matter: no constraint in a run names a metric.
fn settled(objects: &BTreeMap<ObjectKey, Arc<Stored>>, verdicts: &mut Verdicts) {
    for stored in objects.values() {
        let Some(application) = Application::of(&stored.object) else { continue };
        verdicts.judged(Id::I12, 1);
        let key = &stored.key;
        if application.metadata.deleted.is_some() {
            let what = format!("{key} was deleted, and is still there at the end");
            verdicts.violated(&Violation { invariant: Id::I12, what });
            continue;
        }
        if application.status.scheduled_to.is_some() {
            continue;
        }
        let none = BTreeMap::new();
        let fits = |cluster: &&Arc<Stored>| {
            Cluster::of(&cluster.object).is_some_and(|cluster| {
                let offer = Offer::of_cluster(cluster, None, &none, Compared::Value);
                unmet(application, cluster, &offer).is_empty()
            })
        };
        if let Some(cluster) = objects.values().find(fits) {
            let what = format!("{key} is bound to nothing at the end, though it fits on {}", cluster.key);
            verdicts.violated(&Violation { invariant: Id::I12, what });
        }
    }
}

fn read(key: &ObjectKey, change: &Change, value: &[u8], revision: i64) -> Option<Stored> {
    let text = std::str::from_utf8(value).ok()?;
    Some(Stored {
        key: key.clone(),
        create_revision: change.created,
        mod_revision: revision,
        object: Object::from_stored(key.kind, text).ok()?,
        wire: Bytes::copy_from_slice(value),
    })
}

fn application(
    revision: i64,
    stored: &Arc<Stored>,
    objects: &BTreeMap<ObjectKey, Arc<Stored>>,
    verdicts: &mut Verdicts,
) {
    let key = &stored.key;
    let scheduled_to = |stored: &Stored| {
        Application::of(&stored.object)?.status.scheduled_to.as_ref().and_then(ResourceRef::key)
    };
    let before = objects.get(key);
    let (former, to) = (before.and_then(|before| scheduled_to(before)), scheduled_to(stored));
    let mut evidence = Vec::new();
    if former != to {
        verdicts.judged(Id::I11, 1);
        let Some((to, before)) = to.zip(before) else {
            let what = format!("revision {revision}: {key} is not bound to {former:?} any more");
            return verdicts.violated(&Violation { invariant: Id::I9, what });
        };
        let Some(cluster) = objects.get(&to) else {
            let what = format!("revision {revision}: {key} is bound to {to}, which does not exist");
            return verdicts.violated(&Violation { invariant: Id::I11, what });
        };
        let cloud = Cluster::of(&cluster.object)
            .and_then(|cluster| cluster.status.scheduled_to.as_ref())
            .and_then(ResourceRef::key)
            .and_then(|cloud| objects.get(&cloud).cloned());
        evidence.push(BindingEvidence {
            application: Arc::clone(before),
            cluster: Arc::clone(cluster),
            cloud,
            metrics: Some(Arc::new(MetricsObserved {
                revision,
                at: OffsetDateTime::UNIX_EPOCH,
                metrics: BTreeMap::new(),
            })),
            compared: Compared::Value,
        });
    }
    let write = Write::Put { key: key.etcd_key(), value: stored.wire.clone(), lease: 0 };
    let compared = Condition::Unchanged {
        key: key.etcd_key(),
        revision: before.map_or(0, |before| before.mod_revision),
    };
    let found = placed_where_allowed(&PlacementChange {
        conditions: std::slice::from_ref(&compared),
        writes: std::slice::from_ref(&write),
        evidence: &evidence,
        stored: &|key| objects.get(key).cloned(),
    });
    for violation in found.violations {
        let what = format!("revision {revision}: {}", violation.what);
        verdicts.violated(&Violation { invariant: violation.invariant, what });
    }
}

#[cfg(test)]
mod tests;
