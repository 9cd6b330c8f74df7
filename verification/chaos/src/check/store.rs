//! Judges the clusters and the repair queue by the store's revisions and the registry's answers: I1, I3 to I8, I10,
//! I12.

use std::collections::{BTreeMap, BTreeSet};

use madako_domain::cluster::Cluster;
use madako_domain::constraints::Constraints;
use madako_domain::invariants::repair::{one_api_server, one_repair_a_machine, records};
use madako_domain::invariants::{
    ClusterChange, EpochLifetime, Id, Violation, Written, check_cluster_change, one_writer,
};
use madako_domain::keys;
use madako_domain::placement::ownership;
use madako_domain::repair::RepairStatus;
use madako_domain::repair::queue::RepairQueue;
use madako_domain::store::Entry;

use super::Verdicts;
use crate::history::Micros;
use crate::observer::{Change, PREFIX, Revision};

#[derive(Debug, Clone, Default)]
pub struct Answered {
    /// Times and addresses of the answers, the earliest first. Repeated equal answers are included at intervals.
    pub lists: Vec<(Micros, BTreeSet<String>)>,
    /// Maximum age of an answer when the plan made from it appears in the store: polls, deadlines, and time in which
    /// processes were stopped.
    pub oldest: Micros,
}

/// Judges all revisions, and the final state if the run is calm.
pub fn judge(revisions: &[Revision], answered: &Answered, calm: bool, verdicts: &mut Verdicts) {
    let mut judge = Judge {
        answered,
        stored: BTreeMap::new(),
        template: 0,
        made_from: 0,
        terms: Vec::new(),
        queue: RepairQueue::default(),
    };
    for revision in revisions {
        judge.revision(revision, verdicts);
    }
    if calm {
        judge.end(verdicts);
    }
}

struct Judge<'a> {
    answered: &'a Answered,
    stored: BTreeMap<String, Change>,
    /// Revision of the template's last change, and revision of the template that the newest cluster was made from.
    template: i64,
    made_from: i64,
    terms: Vec<EpochLifetime>,
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
            self.cluster(revision, &before, verdicts);
        }
        if ours.iter().any(|(key, _)| *key == keys::SABAKAN_TEMPLATE) {
            self.template = number;
        }
        if ours.iter().any(|(key, _)| key.starts_with(keys::PLACEMENT)) {
            self.decider(number, &before, verdicts);
        }
        for (key, change) in &ours {
            if keys::NOTED.contains(key) {
                verdicts.judged(Id::I12, 1);
                if before.get(&change.key).map(|known| &known.value) == Some(&change.value) {
                    let what = format!("writes {key} as it is there already");
                    verdicts.violated(&violation(Id::I12, number, &what));
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

    /// Follows the terms of leaders.
    fn follow(&mut self, number: i64, change: &Change, before: &BTreeMap<String, Change>) {
        let is_candidate = change.key.strip_prefix(PREFIX).is_some_and(|key| key.starts_with(keys::LEADER));
        if !is_candidate {
            return;
        }
        match (before.get(&change.key), &change.value) {
            (None, Some(_)) => self.terms.push(EpochLifetime { epoch: number, ended: None }),
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

    /// Judges the commit of a cluster: I1, and I3 to I6, I8 and I12 as the gate does.
    fn cluster(&mut self, revision: &Revision, before: &BTreeMap<String, Change>, verdicts: &mut Verdicts) {
        let number = revision.revision;
        for invariant in [Id::I1, Id::I3, Id::I4, Id::I8, Id::I12] {
            verdicts.judged(invariant, 1);
        }
        // The service's own note of the template's revision may be wrong, so it is not used.
        let made_from = std::mem::replace(&mut self.made_from, self.template);
        let Some(after) = self.json::<Cluster>(&self.stored, keys::CLUSTER) else {
            return verdicts.violated(&violation(Id::I6, number, "the cluster is gone, or is none"));
        };
        let old: Option<Cluster> = self.json(before, keys::CLUSTER);
        let constraints: Constraints = self.json(before, keys::CONSTRAINTS).unwrap_or_default();
        let repairs = queue(before, None);
        let judged_by = |observed: &BTreeSet<String>| {
            check_cluster_change(&ClusterChange {
                before: old.as_ref(),
                after: &after,
                constraints: &constraints,
                observed,
                template_changed: self.template != made_from,
                repairs: &repairs,
            })
        };
        if old.is_some() {
            verdicts.judged(Id::I5, 1);
        }
        // The plan may be made from any of the last answers; without an answer I4 cannot be judged.
        let Answered { lists, oldest } = self.answered;
        let recent = lists.iter().filter(|(at, _)| *at <= revision.at && at + oldest >= revision.at);
        let best = recent.map(|(_, observed)| judged_by(observed)).min_by_key(Vec::len);
        if best.is_some() {
            verdicts.judged(Id::I6, 1);
        }
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

    /// In the calm state the cluster is as the constraints demand, and no repair is under way.
    fn end(&self, verdicts: &mut Verdicts) {
        verdicts.judged(Id::I12, 1);
        let mut unmet = |what: String| verdicts.violated(&Violation { invariant: Id::I12, what });
        let constraints: Constraints = self.json(&self.stored, keys::CONSTRAINTS).unwrap_or_default();
        let Some(cluster) = self.json::<Cluster>(&self.stored, keys::CLUSTER) else {
            return unmet("in the end: there is no cluster".to_owned());
        };
        let (control_plane, workers) = (cluster.control_plane().count(), cluster.workers().count());
        let Constraints { control_plane_count, minimum_workers, .. } = constraints;
        if control_plane != control_plane_count as usize || workers < minimum_workers as usize {
            unmet(format!(
                "in the end: {control_plane} control plane nodes and {workers} workers, where {control_plane_count} and at \
                 least {minimum_workers} are wanted"
            ));
        }
        for (index, item) in &queue(&self.stored, None).entries {
            if item.value.status == RepairStatus::Processing {
                unmet(format!("in the end: repair {index} of {} is left in the middle", item.value.address));
            }
        }
    }

    /// Placement decisions come from the oldest candidate, whose leader key is on its own lease.
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

    /// I7, I8 and I10 of the current queue; a lasting violation is reported once.
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
