//! Judges placement by the store's revisions: I11, with the predicate of the leader.
//!
//! When all is calm, nothing is left to do: each application that fits a cluster is bound, and each deleted object is
//! gone (I12).
//!
//! Each application that a revision binds is judged with the cluster stored before that revision. The decision may have
//! used any value that a metric had in the run; the most permissive value counts.

use std::collections::BTreeMap;
use std::sync::Arc;

use madako_domain::invariants::{Id, Violation};
use madako_domain::placement::kind::{Kind, ObjectKey};
use madako_domain::placement::objects::Stored;
use madako_judges::bindings::{Resources, find_misbound, find_unsettled, read_bound_cluster, read_resource};

use super::Verdicts;
use crate::observer::Revision;

/// `calm`: whether the run was calm after the last revision.
pub fn judge_placement(revisions: &[Revision], calm: bool, verdicts: &mut Verdicts) {
    let mut objects = Resources::new();
    for revision in revisions {
        let mut after = Vec::new();
        for change in &revision.changes {
            let Some(key) = ObjectKey::from_etcd_key(&change.key) else { continue };
            let stored = match &change.value {
                None => None,
                Some(value) => match read_resource(&key, value, change.created, revision.revision) {
                    Some(stored) => Some(stored),
                    None => {
                        let what = format!("revision {}: {key} cannot be read", revision.revision);
                        verdicts.count_violation("placement", what);
                        continue;
                    }
                },
            };
            after.push((key, stored));
        }
        for stored in after.iter().filter_map(|(_, stored)| stored.as_ref()) {
            if stored.key.kind == Kind::Application {
                check_application(revision.revision, stored, &objects, verdicts);
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
        judge_settled(&objects, verdicts);
    }
}

/// Evaluates the final state. Values of metrics are irrelevant: no application's constraints name a metric.
fn judge_settled(objects: &Resources, verdicts: &mut Verdicts) {
    verdicts.count_judged(Id::I12, objects.keys().filter(|key| key.kind == Kind::Application).count() as u64);
    find_unsettled(objects, &BTreeMap::new()).iter().for_each(|violation| verdicts.count_violated(violation));
}

fn check_application(revision: i64, stored: &Arc<Stored>, objects: &Resources, verdicts: &mut Verdicts) {
    let key = &stored.key;
    let former = objects.get(key).and_then(|before| read_bound_cluster(before));
    let to = read_bound_cluster(stored);
    let mut target = None;
    if former != to {
        verdicts.count_judged(Id::I11, 1);
        let Some(to) = to.filter(|_| objects.contains_key(key)) else {
            let what = format!("revision {revision}: {key} is not bound to {former:?} any more");
            return verdicts.count_violated(&Violation { invariant: Id::I9, what });
        };
        target = objects.get(&to);
        if target.is_none() {
            let what = format!("revision {revision}: {key} is bound to {to}, which does not exist");
            return verdicts.count_violated(&Violation { invariant: Id::I11, what });
        }
    }
    for Violation { invariant, what } in find_misbound((revision, stored), target, BTreeMap::new(), objects) {
        verdicts.count_violated(&Violation { invariant, what: format!("revision {revision}: {what}") });
    }
}

#[cfg(test)]
mod tests;
