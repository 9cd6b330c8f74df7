//! Cluster keeping, judged by the store's revisions and by what the registry answered: I1, I3 to I8, I10, I12.

use std::collections::{BTreeMap, BTreeSet};

use madako_messages::cluster::Cluster;
use madako_messages::constraints::Constraints;
use madako_messages::invariants::repair::{one_api_server, one_repair_a_machine, records};
use madako_messages::invariants::{
    ClusterChange, Id, Term, Violation, Written, check_cluster_change, one_writer,
};
use madako_messages::keys;
use madako_messages::placement::ownership;
use madako_messages::repair::queue::RepairQueue;
use madako_messages::store::Entry;

use super::Verdicts;
use crate::observer::{Change, PREFIX, Revision};

/// Judges all revisions. `answered` are the sets of addresses that the registry answered, each of which the leader may
/// have planned from.
pub fn judge(revisions: &[Revision], answered: &[BTreeSet<String>], verdicts: &mut Verdicts) {
    let mut judge = Judge { answered, ..Judge::default() };
    for revision in revisions {
        judge.revision(revision, verdicts);
    }
}

#[derive(Default)]
struct Judge<'a> {
    answered: &'a [BTreeSet<String>],
    /// What is stored, with the revision of the template's last change.
    stored: BTreeMap<String, Change>,
    template: i64,
    terms: Vec<Term>,
    queue: RepairQueue,
}

impl Judge<'_> {
    fn revision(&mut self, revision: &Revision, verdicts: &mut Verdicts) {
        let number = revision.revision;
        let before = self.stored.clone();
        for change in &revision.changes {
            self.follow(number, change, &before);
            match change.value {
                Some(_) => self.stored.insert(change.key.clone(), change.clone()),
                None => self.stored.remove(&change.key),
            };
        }
        let ours: Vec<(&str, &Change)> = revision
            .changes
            .iter()
            .filter_map(|change| Some((change.key.strip_prefix(PREFIX)?, change)))
            .collect();
        if ours.iter().any(|(key, _)| *key == keys::CLUSTER) {
            self.cluster(number, &before, verdicts);
        }
        if ours.iter().any(|(key, _)| *key == keys::SABAKAN_TEMPLATE) {
            self.template = number;
        }
        if ours.iter().any(|(key, _)| key.starts_with(keys::PLACEMENT)) {
            self.decider(number, &before, verdicts);
        }
        for (key, change) in &ours {
            if *key == keys::REMOVAL_GUARD {
                verdicts.judged(Id::I12, 1);
                if before.get(&change.key).map(|known| &known.value) == Some(&change.value) {
                    verdicts.violated(&violation(
                        Id::I12,
                        number,
                        "writes the guard's state that is there already",
                    ));
                }
            }
        }
        let is_repair = |key: &str| {
            [keys::REPAIRS, keys::REPAIR_KEPT, keys::RECORDS, keys::REBOOTS]
                .iter()
                .any(|prefix| key.starts_with(prefix))
        };
        if ours.iter().any(|(key, _)| is_repair(key)) {
            self.repairs(number, verdicts);
        }
    }

    /// Keeps the terms of leaders.
    fn follow(&mut self, number: i64, change: &Change, before: &BTreeMap<String, Change>) {
        let is_candidate = change.key.strip_prefix(PREFIX).is_some_and(|key| key.starts_with(keys::LEADER));
        if !is_candidate {
            return;
        }
        match (before.get(&change.key), &change.value) {
            (None, Some(_)) => self.terms.push(Term { epoch: number, ended: None }),
            (Some(known), None) => {
                let term =
                    self.terms.iter_mut().find(|term| term.epoch == known.created && term.ended.is_none());
                if let Some(term) = term {
                    term.ended = Some(number);
                }
            }
            _ => {}
        }
    }

    fn json<T: serde::de::DeserializeOwned>(
        &self,
        stored: &BTreeMap<String, Change>,
        key: &str,
    ) -> Option<T> {
        let change = stored.get(&format!("{PREFIX}{key}"))?;
        serde_json::from_slice(change.value.as_deref()?).ok()
    }

    /// A cluster is committed: I1, and I3 to I6, I8 and I12 as the gate judges them.
    fn cluster(&self, number: i64, before: &BTreeMap<String, Change>, verdicts: &mut Verdicts) {
        for invariant in [Id::I1, Id::I3, Id::I4, Id::I5, Id::I6, Id::I8, Id::I12] {
            verdicts.judged(invariant, 1);
        }
        let Some(after) = self.json::<Cluster>(&self.stored, keys::CLUSTER) else {
            return verdicts.violated(&violation(Id::I6, number, "the cluster is gone, or is none"));
        };
        let old: Option<Cluster> = self.json(before, keys::CLUSTER);
        let constraints: Constraints = self.json(before, keys::CONSTRAINTS).unwrap_or_default();
        let generated = before.get(&format!("{PREFIX}{}", keys::CLUSTER_REVISION));
        let generated: i64 = generated
            .and_then(|change| std::str::from_utf8(change.value.as_deref()?).ok()?.parse().ok())
            .unwrap_or(0);
        let repairs = queue(before, None);
        let judged_by = |observed: &BTreeSet<String>| {
            check_cluster_change(&ClusterChange {
                before: old.as_ref(),
                after: &after,
                constraints: &constraints,
                observed,
                template_changed: self.template != generated,
                repairs: &repairs,
            })
        };
        // Any answer may be the one that it was planned from; without one there is nothing to be honest about.
        let best = self.answered.iter().map(judged_by).min_by_key(Vec::len);
        for found in best.unwrap_or_else(|| judged_by(&BTreeSet::new())) {
            verdicts.violated(&violation(found.invariant, number, &found.what));
        }
        let last: serde_json::Value = self.json(&self.stored, keys::LAST_PLAN).unwrap_or_default();
        match last["epoch"].as_i64() {
            Some(epoch) => {
                for found in one_writer(&[Written { revision: number, epoch }], &self.terms) {
                    verdicts.violated(&found);
                }
            }
            None => verdicts.violated(&violation(Id::I1, number, "nobody says who wrote the cluster")),
        }
    }

    /// Placement was decided: by the oldest candidate, who owns it on its own lease.
    fn decider(&self, number: i64, before: &BTreeMap<String, Change>, verdicts: &mut Verdicts) {
        verdicts.judged(Id::I1, 1);
        let leaders = format!("{PREFIX}{}", keys::LEADER);
        let leader = before
            .range(leaders.clone()..)
            .take_while(|(key, _)| key.starts_with(&leaders))
            .min_by_key(|(_, change)| change.created)
            .map(|(_, change)| change.lease);
        let owner = before.get(ownership::KEY);
        let right = owner.is_some_and(|owner| {
            owner.value.as_deref() == Some(PREFIX.as_bytes())
                && owner.lease != 0
                && Some(owner.lease) == leader
        });
        if !right {
            let owner = owner.map(|owner| owner.lease);
            let what = format!(
                "placement was decided while the leader's lease was {leader:?} and its owner's {owner:?}"
            );
            verdicts.violated(&violation(Id::I1, number, &what));
        }
    }

    /// I7, I8 and I10 of the queue as it is now: what was so before is told once.
    fn repairs(&mut self, number: i64, verdicts: &mut Verdicts) {
        for invariant in [Id::I7, Id::I8, Id::I10] {
            verdicts.judged(invariant, 1);
        }
        let cluster: Option<Cluster> = self.json(&self.stored, keys::CLUSTER);
        let after = queue(&self.stored, Some(&self.queue));
        let states = |queue: &RepairQueue| {
            let mut found = one_repair_a_machine(queue);
            found.extend(one_api_server(queue, cluster.as_ref()));
            found.extend(records(queue));
            found
        };
        let before: BTreeSet<String> = states(&self.queue).into_iter().map(|found| found.what).collect();
        for found in states(&after).into_iter().filter(|found| !before.contains(&found.what)) {
            verdicts.violated(&violation(found.invariant, number, &found.what));
        }
        self.queue = after;
    }
}

fn queue(stored: &BTreeMap<String, Change>, before: Option<&RepairQueue>) -> RepairQueue {
    let entry = |change: &Change| Entry {
        value: change.value.clone().unwrap_or_default().into(),
        create_revision: change.created,
        mod_revision: change.modified,
        lease: change.lease,
    };
    let entries = stored
        .iter()
        .filter_map(|(key, change)| Some((key.strip_prefix(PREFIX)?.to_owned(), entry(change))))
        .collect();
    RepairQueue::decode(&entries, before, &mut Vec::new())
}

fn violation(invariant: Id, revision: i64, what: &str) -> Violation {
    Violation { invariant, what: format!("revision {revision}: {what}") }
}

#[cfg(test)]
mod tests;
