//! Judges each revision of the store: I1, I3 to I6, I8 and I12, with the predicates that the leader uses.
//!
//! Assumes: revisions come whole and in order, with keys of the service without its prefix.
//!
//! Does not: know which observation a plan was made from. The world passes a function that evaluates the candidates.

use std::collections::{BTreeMap, BTreeSet};

use madako_domain::cluster::Cluster;
use madako_domain::constraints::Constraints;
use madako_domain::invariants::repair::busy_api_servers;
use madako_domain::invariants::{
    ClusterChange, EpochLifetime, Id, Violation, WrittenKey, check_cluster_change, check_one_writer,
};
use madako_domain::keys;
use madako_domain::repair::queue::RepairQueue;
use madako_domain::store::Entry;
use serde::de::DeserializeOwned;

pub type Stored = BTreeMap<String, Entry>;

/// A key that a revision writes, with its entry; `None`: the revision deletes it.
pub type Change = (String, Option<Entry>);

/// Evaluates a committed cluster against the addresses of an observation.
pub type ByObservation<'a> = &'a dyn Fn(&BTreeSet<String>) -> Vec<Violation>;

/// JSON at a key, if it is readable.
#[must_use]
pub fn read_json<T: DeserializeOwned>(stored: &Stored, key: &str) -> Option<T> {
    serde_json::from_slice(&stored.get(key)?.value).ok()
}

/// The repairs and reboots among stored entries; `before` is the queue of the previous revision.
#[must_use]
pub fn decode_queue(stored: &Stored, before: Option<&RepairQueue>) -> RepairQueue {
    RepairQueue::decode(stored, before, &mut Vec::new())
}

pub fn with_prefix<'a>(stored: &'a Stored, prefix: &'a str) -> impl Iterator<Item = (&'a String, &'a Entry)> {
    stored.range(prefix.to_owned()..).take_while(move |(key, _)| key.starts_with(prefix))
}

#[must_use]
pub fn new_violation(invariant: Id, revision: i64, what: &str) -> Violation {
    Violation { invariant, what: format!("revision {revision}: {what}") }
}

#[derive(Debug, Default)]
pub struct RevisionVerdict {
    /// Invariants that had something to judge.
    pub judged: Vec<Id>,
    pub violations: Vec<Violation>,
}

/// The stored clusters and the terms of leaders.
#[derive(Debug, Default)]
pub struct Clusters {
    stored: Stored,
    /// Revision of the template that the newest cluster was made from.
    made_from: i64,
    terms: Vec<EpochLifetime>,
    /// Instances that candidates' keys name, by their epochs.
    writers: BTreeMap<i64, String>,
}

impl Clusters {
    /// Begins with the contents of a store.
    #[must_use]
    pub fn from_stored(stored: Stored) -> Self {
        Self { stored, ..Self::default() }
    }

    /// The entries after the last revision.
    #[must_use]
    pub fn stored(&self) -> &Stored {
        &self.stored
    }

    /// The terms of leaders so far.
    #[must_use]
    pub fn terms(&self) -> &[EpochLifetime] {
        &self.terms
    }

    #[must_use]
    pub fn current_cluster(&self) -> Option<Cluster> {
        read_json(&self.stored, keys::CLUSTER)
    }

    /// True if the newest cluster was made from the stored template, by the order of their revisions.
    #[must_use]
    pub fn is_template_applied(&self) -> bool {
        self.made_from == template_revision(&self.stored)
    }

    /// Evaluates a revision. `best` gets the instance that wrote a cluster, and evaluates it against the observations that it may be made
    /// from; `None`: there is no such observation.
    pub fn observe(
        &mut self,
        revision: i64,
        changes: &[Change],
        best: impl FnOnce(Option<&str>, ByObservation<'_>) -> Option<Vec<Violation>>,
    ) -> RevisionVerdict {
        let mut ruled = RevisionVerdict::default();
        let clustered = changes.iter().any(|(key, _)| key == keys::CLUSTER);
        let before = if clustered { self.stored.clone() } else { Stored::new() };
        for (key, entry) in changes {
            let known = match entry {
                Some(entry) => self.stored.insert(key.clone(), entry.clone()),
                None => self.stored.remove(key),
            };
            if key.starts_with(keys::LEADER) {
                self.note_candidate(revision, known.as_ref(), entry.as_ref());
            }
            if keys::NOTED.contains(&key.as_str()) {
                ruled.judged.push(Id::I12);
                if known.map(|known| known.value) == entry.as_ref().map(|entry| entry.value.clone()) {
                    let what = format!("writes {key} as it is there already");
                    ruled.violations.push(new_violation(Id::I12, revision, &what));
                }
            }
        }
        if clustered {
            self.judge_cluster(revision, &before, &mut ruled, best);
        }
        ruled
    }

    /// A candidate of an election comes or goes.
    fn note_candidate(&mut self, revision: i64, known: Option<&Entry>, entry: Option<&Entry>) {
        match (known, entry) {
            (None, Some(entry)) => {
                self.terms.push(EpochLifetime { epoch: revision, ended: None });
                self.writers.insert(revision, String::from_utf8_lossy(&entry.value).into_owned());
            }
            (Some(known), None) => {
                let is_its =
                    |term: &&mut EpochLifetime| term.epoch == known.create_revision && term.ended.is_none();
                if let Some(term) = self.terms.iter_mut().find(is_its) {
                    term.ended = Some(revision);
                }
            }
            _ => {}
        }
    }

    fn judge_cluster(
        &mut self,
        revision: i64,
        before: &Stored,
        ruled: &mut RevisionVerdict,
        best: impl FnOnce(Option<&str>, ByObservation<'_>) -> Option<Vec<Violation>>,
    ) {
        ruled.judged.extend([Id::I1, Id::I3, Id::I4, Id::I12]);
        // The service's own note of the template may be wrong.
        let template = template_revision(before);
        let made_from = std::mem::replace(&mut self.made_from, template);
        let Some(after) = self.current_cluster() else {
            ruled.violations.push(new_violation(Id::I6, revision, "the cluster is gone, or is none"));
            return;
        };
        let old: Option<Cluster> = read_json(before, keys::CLUSTER);
        let constraints: Constraints = read_json(before, keys::CONSTRAINTS).unwrap_or_default();
        // Records are of no account, and there may be a thousand.
        let counts = |key: &str| key.starts_with(keys::REPAIRS) || keys::is_reboot(key);
        let counted = before.iter().filter(|(key, _)| counts(key));
        let repairs = decode_queue(&counted.map(|(key, entry)| (key.clone(), entry.clone())).collect(), None);
        let judged_by = |observed: &BTreeSet<String>| {
            let change = ClusterChange {
                before: old.as_ref(),
                after: &after,
                constraints: &constraints,
                observed,
                template_changed: template != made_from,
                repairs: &repairs,
            };
            let found = check_cluster_change(&change).into_iter();
            found.map(|found| new_violation(found.invariant, revision, &found.what)).collect()
        };
        if old.is_some() {
            ruled.judged.push(Id::I5);
        }
        if [old.as_ref(), Some(&after)].iter().any(|cluster| !busy_api_servers(&repairs, *cluster).is_empty())
        {
            ruled.judged.push(Id::I8);
        }
        let last: serde_json::Value = read_json(&self.stored, keys::LAST_PLAN).unwrap_or_default();
        let epoch = last["epoch"].as_i64();
        let writer = epoch.and_then(|epoch| self.writers.get(&epoch)).map(String::as_str);
        let best = best(writer, &judged_by);
        if best.is_some() {
            ruled.judged.push(Id::I6);
        }
        ruled.violations.extend(best.unwrap_or_else(|| judged_by(&BTreeSet::new())));
        ruled.violations.extend(match epoch {
            Some(epoch) => check_one_writer(&[WrittenKey { revision, epoch }], &self.terms),
            None => vec![new_violation(Id::I1, revision, "no plan names the epoch that wrote the cluster")],
        });
    }
}

/// Revision of the stored template; 0: none is stored.
fn template_revision(stored: &Stored) -> i64 {
    stored.get(keys::SABAKAN_TEMPLATE).map_or(0, |template| template.mod_revision)
}

/// Creation revisions and leases of the candidates' keys. `base` is what keys of the service begin with in `stored`.
pub fn candidate_revisions<'a>(stored: &'a Stored, base: &str) -> impl Iterator<Item = (i64, i64)> + use<'a> {
    let leaders = format!("{base}{}", keys::LEADER);
    let from = stored.range(leaders.clone()..);
    from.take_while(move |(key, _)| key.starts_with(&leaders))
        .map(|(_, entry)| (entry.create_revision, entry.lease))
}

/// Evaluates the owner of placement before a revision decides about it: I1. The oldest candidate decides, and owns placement on the lease of
/// its key. `owner` has the value and the lease of its key.
#[must_use]
pub fn find_decider(
    revision: i64,
    prefix: &str,
    candidates: impl Iterator<Item = (i64, i64)>,
    owner: Option<(&[u8], i64)>,
) -> Option<Violation> {
    let leader = candidates.min().map(|(_, lease)| lease);
    let right =
        owner.is_some_and(|(by, lease)| by == prefix.as_bytes() && lease != 0 && Some(lease) == leader);
    let what = || {
        let by = owner.map(|(by, lease)| (String::from_utf8_lossy(by), lease));
        format!("placement was decided while the leader's lease was {leader:?} and its owner {by:?}")
    };
    (!right).then(|| new_violation(Id::I1, revision, &what()))
}
