//! Counts violations of I7, I8 and I10 in states of the repair queue, and of I10 in its records' ids.
//!
//! Guarantees: a violation counts when it begins, and again whenever a revision adds something to what it concerns:
//! another repair, another busy node, another record. A violation that ended and comes again counts again.
//!
//! A violation that merely stays is an exemption, [`Exemption::Standing`], with one use a violation.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use madako_domain::cluster::Cluster;
use madako_domain::invariants::repair::{
    check_one_api_server, check_one_repair_a_machine, check_records, is_active,
};
use madako_domain::invariants::{Id, Violation};
use madako_domain::repair::RepairStatus;
use madako_domain::repair::change::MAX_RECORDS;
use madako_domain::repair::queue::RepairQueue;

use crate::exemptions::{Exemption, Exemptions};

/// The violated invariants, each with its parts and the time at which its violation began.
#[derive(Debug, Default)]
pub struct StandingViolations(BTreeMap<Id, (BTreeSet<ConcernedPart>, Duration)>);

/// Something that a violation concerns.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum ConcernedPart {
    /// An entry of the queue, by its index and its create revision.
    Entry(i64, i64),
    /// A reboot, by the address of its node.
    Reboot(String),
    UnfinishedRecord(i64),
    KeptRecord(i64),
}

impl StandingViolations {
    /// The violations that this state of the queue adds to those of the state before.
    pub fn added_violations(
        &mut self,
        queue: &RepairQueue,
        cluster: Option<&Cluster>,
        now: Duration,
        exemptions: &mut Exemptions,
    ) -> Vec<Violation> {
        let before = std::mem::take(&mut self.0);
        let mut found = Vec::new();
        for violation in find_violations(queue, cluster) {
            let id = violation.invariant;
            let parts = parts_of_violation(id, queue, cluster);
            let stays = before.get(&id).filter(|(known, _)| parts.is_subset(known));
            let began = stays.map_or(now, |(_, began)| *began);
            if stays.is_none() {
                found.push(violation);
            }
            self.0.insert(id, (parts, began));
        }
        for (id, (_, began)) in before {
            if self.0.get(&id).is_none_or(|(_, since)| *since != began) && now > began {
                exemptions.record_use(Exemption::Standing, now - began);
            }
        }
        found
    }

    /// Adds the violations that stand at the end of a run.
    pub fn count_standing(&self, now: Duration, exemptions: &mut Exemptions) {
        for (_, began) in self.0.values().filter(|(_, began)| now > *began) {
            exemptions.record_use(Exemption::Standing, now - *began);
        }
    }
}

/// Violations of I7, I8 and I10 in a state of the queue.
fn find_violations(queue: &RepairQueue, cluster: Option<&Cluster>) -> Vec<Violation> {
    let mut found = check_one_repair_a_machine(queue);
    found.extend(check_one_api_server(queue, cluster));
    found.extend(check_records(queue));
    found
}

/// Violations of I10 by the records that a revision adds: each id is one more than the newest one.
#[must_use]
pub fn check_added_records(before: &RepairQueue, after: &RepairQueue) -> Vec<Violation> {
    let known = &before.records.known;
    let mut newest = known.keys().next_back().copied().unwrap_or(0);
    let mut found = Vec::new();
    for id in after.records.known.keys().filter(|id| !known.contains_key(id)) {
        if *id != newest + 1 {
            found
                .push(Violation { invariant: Id::I10, what: format!("record {id} follows record {newest}") });
        }
        newest = newest.max(*id);
    }
    found
}

/// Everything that a violation of this invariant can concern.
fn parts_of_violation(id: Id, queue: &RepairQueue, cluster: Option<&Cluster>) -> BTreeSet<ConcernedPart> {
    let runs = |index: &i64| queue.running_repair_of(*index).is_some();
    match id {
        Id::I7 => {
            let mut machines: BTreeMap<&str, BTreeSet<ConcernedPart>> = BTreeMap::new();
            for (index, item) in &queue.entries {
                if item.value.status == RepairStatus::Processing || runs(index) {
                    let part = ConcernedPart::Entry(*index, item.created);
                    machines.entry(&item.value.address).or_default().insert(part);
                }
            }
            machines.into_values().filter(|parts| parts.len() > 1).flatten().collect()
        }
        Id::I8 => {
            let nodes: BTreeSet<&str> = cluster
                .into_iter()
                .flat_map(Cluster::control_plane)
                .map(|node| node.address.as_str())
                .collect();
            let entries = queue.entries.iter().filter(|(index, item)| {
                nodes.contains(item.value.address.as_str()) && (is_active(&item.value) || runs(index))
            });
            let entries = entries.map(|(index, item)| ConcernedPart::Entry(*index, item.created));
            let reboots = queue.rebooting_nodes().map(|(node, _)| node).filter(|node| nodes.contains(node));
            entries.chain(reboots.map(|node| ConcernedPart::Reboot(node.to_owned()))).collect()
        }
        _ => {
            let (unfinished, known) = (&queue.records.unfinished, &queue.records.known);
            let unfinished = unfinished.keys().filter(|_| unfinished.len() > 1);
            let kept = known.keys().filter(|_| known.len() > MAX_RECORDS);
            let kept = kept.map(|id| ConcernedPart::KeptRecord(*id));
            unfinished.map(|id| ConcernedPart::UnfinishedRecord(*id)).chain(kept).collect()
        }
    }
}
