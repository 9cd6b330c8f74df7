//! State of the judge of repairs, and its rules for each revision and for each command that begins.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use madako_datacenter_sim::host::RESET;
use madako_domain::cluster::Cluster;
use madako_domain::invariants::repair::busy_api_servers;
use madako_domain::invariants::{Id, Violation};
use madako_domain::keys;
use madako_domain::record::{Record, RecordStatus};
use madako_domain::repair::queue::RepairQueue;
use madako_domain::repair::{RepairQueueEntry, RepairStatus, RepairStepStatus};
use madako_domain::store::Entry;
use madako_judges::standing::{StandingViolations, check_added_records};
use madako_judges::{Exemption, Exemptions};

use super::{ATTEMPTS, RepairCounts};
use crate::holding::{HoldJudge, UnheldEntry};
use crate::requests;
use crate::world::SESSION_TTL;

const OURS: [&str; 4] = [keys::REPAIRS, keys::REPAIR_KEPT, keys::RECORDS, keys::REPAIR_HOLDS];

/// Step number of an entry's success command.
const SUCCESS_STEP: u32 = u32::MAX;

pub(super) fn new_violation(invariant: Id, what: String) -> Violation {
    Violation { invariant, what }
}

#[derive(Default)]
pub(super) struct JudgedRepairs {
    pub(super) entries: BTreeMap<String, Entry>,
    pub(super) queue: RepairQueue,
    pub(super) cluster: Option<Cluster>,
    /// Violations by revision. Those of effects have a negative revision, which no user can have written.
    pub(super) found: Vec<(i64, Violation)>,
    /// Compares stored holds with the answers of the registry.
    pub(super) holding: HoldJudge,
    pub(super) unheld: Vec<(i64, UnheldEntry)>,
    /// Revisions that users wrote: their violations are not the service's.
    pub(super) users: BTreeSet<i64>,
    pub(super) acknowledged: BTreeMap<i64, i64>,
    /// Number of entries that each revision added, whether the service or a user wrote it.
    pub(super) added: BTreeMap<i64, u64>,
    pub(super) counts: RepairCounts,
    /// Epoch and number of runs of each record.
    pub(super) runs: BTreeMap<i64, (i64, u32)>,
    /// Record of each step, by the entry's number and create revision: one revision may add several entries.
    pub(super) steps: BTreeMap<(i64, i64, u32), i64>,
    pub(super) running: Vec<String>,
    /// Time and description of the last effect.
    pub(super) acted: Option<(Duration, String)>,
    pub(super) revision: i64,
    /// Epochs whose leader key a user deleted, with the time: they cannot know that until their lease would have ended.
    pub(super) deposed: BTreeMap<i64, Duration>,
    /// Violations of the last judged state of the queue.
    pub(super) standing: StandingViolations,
    pub(super) exemptions: Exemptions,
    /// Pairs of epochs that led at once; each is reported once.
    pub(super) lead_together: BTreeSet<(i64, i64)>,
}

impl JudgedRepairs {
    /// A violation if an effect's epoch does not lead; `None` if it leads, or cannot know yet that it does not.
    pub(super) fn check_leader(
        &mut self,
        epoch: i64,
        entries: &BTreeMap<String, Entry>,
        now: Duration,
    ) -> Option<Violation> {
        let leader = leader_revision(entries);
        if leader == Some(epoch) {
            return None;
        }
        if self.is_loss_unobservable(epoch, now) {
            let lasted = self.deposed.get(&epoch).map_or(now, |at| now.saturating_sub(*at));
            self.exemptions.record_use(Exemption::Deposed, lasted);
            return None;
        }
        Some(new_violation(Id::I1, format!("epoch {epoch} acts while {leader:?} leads")))
    }

    /// True if the service began the entry, and wrote a revision after which it knows why the rack must be held.
    pub(super) fn counts_against_us(&self, revision: i64, began: &UnheldEntry) -> bool {
        let ours = |revision: &i64| !self.users.contains(revision);
        ours(&revision) && began.if_ours.as_ref().is_none_or(|any| any.iter().any(ours))
    }

    /// True if a user deleted the key of this epoch, and its lease would not have ended yet.
    pub(super) fn is_loss_unobservable(&self, epoch: i64, now: Duration) -> bool {
        self.deposed.get(&epoch).is_some_and(|at| now < *at + SESSION_TTL)
    }

    /// Violations of a rule for new leaders: a leader ends the unfinished records of earlier ones before it writes its
    /// status.
    fn unfinished_foreign_records(&self) -> Vec<Violation> {
        let keys = self
            .entries
            .range(keys::LEADER.to_owned()..)
            .take_while(|(key, _)| key.starts_with(keys::LEADER));
        let Some(epoch) = keys.map(|(_, entry)| entry.create_revision).min() else { return Vec::new() };
        let earlier = self.queue.records.unfinished.iter().filter(|(_, item)| item.created < epoch);
        earlier
            .map(|(id, _)| {
                let what = format!("epoch {epoch} begins while record {id} of an earlier one is unfinished");
                new_violation(Id::I10, what)
            })
            .collect()
    }

    /// Invariants that these changes concern.
    pub(super) fn affected_invariants(&self, changes: &[(String, Option<Entry>)]) -> Vec<Id> {
        let touches = |prefix: &str| changes.iter().any(|(key, _)| key.starts_with(prefix));
        let mut subjects = Vec::new();
        if touches(keys::REPAIRS) {
            subjects.push(Id::I7);
        }
        let touches_queue = [keys::REPAIRS, keys::REBOOTS, keys::UPGRADE_DRAINS].into_iter().any(touches);
        if touches_queue && !busy_api_servers(&self.queue, self.cluster.as_ref()).is_empty() {
            subjects.push(Id::I8);
        }
        if touches(keys::RECORDS) {
            subjects.push(Id::I10);
        }
        subjects
    }

    pub(super) fn judge_revision(
        &mut self,
        revision: i64,
        changes: Vec<(String, Option<Entry>)>,
        now: Duration,
    ) -> Vec<Violation> {
        self.revision = revision;
        let mut found = Vec::new();
        let (mut touched, mut clustered) = (false, false);
        let begins = changes.iter().any(|(key, entry)| key == keys::STATUS && entry.is_some());
        // A transition may write some of its keys unchanged; a revision that changes none of its keys is superfluous.
        let is_ours = |key: &str| OURS.iter().any(|prefix| key.starts_with(prefix));
        let same = |(key, after): &(String, Option<Entry>)| {
            self.entries.get(key).map(|entry| &entry.value) == after.as_ref().map(|entry| &entry.value)
        };
        if changes.iter().all(|change| is_ours(&change.0) && same(change)) {
            let keys: Vec<&str> = changes.iter().map(|(key, _)| key.as_str()).collect();
            found.push(new_violation(Id::I12, format!("{} are written as they are there", keys.join(", "))));
        }
        found.extend(requests::find_violations(&self.entries, &changes));
        self.added.insert(revision, requests::count_added(&self.entries, &changes));
        self.counts.held += requests::count_new_holds(&self.entries, &changes);
        for (key, entry) in changes {
            clustered |= key == keys::CLUSTER;
            let before = self.entries.get(&key);
            let is_entry = key.starts_with(keys::REPAIRS);
            let of_queue = [keys::RECORDS, keys::REPAIR_KEPT, keys::REBOOTS, keys::UPGRADE_DRAINS];
            touched |= is_entry || of_queue.iter().any(|prefix| key.starts_with(prefix));
            self.counts.collected +=
                u64::from(key.starts_with(keys::RECORDS) && before.is_some() && entry.is_none());
            let restarted = |entry: &Entry| key.starts_with(keys::RECORDS) && is_restart(entry);
            let is_new = !before.is_some_and(restarted) && entry.as_ref().is_some_and(restarted);
            self.counts.restarted += u64::from(is_new);
            let read = |entry: &Entry| serde_json::from_slice::<RepairQueueEntry>(&entry.value).ok();
            match (before, &entry) {
                (Some(before), None) if is_entry && !read(before).is_some_and(|before| before.deleted) => {
                    found.push(new_violation(
                        Id::I9,
                        format!("{key} disappears without a request to delete it"),
                    ));
                }
                (Some(before), Some(after)) if is_entry && was_replaced(read(before), read(after)) => {
                    found.push(new_violation(Id::I9, format!("{key} becomes another entry")));
                }
                _ => {}
            }
            match entry {
                Some(entry) => self.entries.insert(key, entry),
                None => self.entries.remove(&key),
            };
        }
        if clustered {
            self.cluster = self
                .entries
                .get(keys::CLUSTER)
                .and_then(|entry| serde_json::from_slice::<Cluster>(&entry.value).ok());
        }
        if touched {
            let after = RepairQueue::decode(&self.entries, Some(&self.queue), &mut Vec::new());
            let cluster = self.cluster.as_ref();
            found.extend(check_added_records(&self.queue, &after));
            found.extend(self.standing.added_violations(&after, cluster, now, &mut self.exemptions));
            for (index, item) in &after.entries {
                let before = self.queue.entries.get(index).filter(|before| before.created == item.created);
                let drains = |entry: &RepairQueueEntry| {
                    entry.status == RepairStatus::Processing
                        && entry.step_status == RepairStepStatus::Draining
                };
                if before.is_some_and(|before| drains(&before.value)) && !drains(&item.value) {
                    let step_status = &item.value.step_status;
                    self.counts.drained += u64::from(*step_status == RepairStepStatus::Watching);
                    self.counts.drains_given_up += u64::from(*step_status == RepairStepStatus::Waiting);
                }
                let was = self.queue.entries.get(index).map(|item| &item.value.status);
                if was != Some(&item.value.status) && !self.users.contains(&revision) {
                    self.counts.succeeded += u64::from(item.value.status == RepairStatus::Succeeded);
                    self.counts.failed += u64::from(item.value.status == RepairStatus::Failed);
                }
            }
            self.counts.beside_reboots += u64::from(has_repair_waiting_for_reboot(&after, cluster));
            for (id, item) in &self.queue.records.unfinished {
                let gone = !after.records.unfinished.contains_key(id);
                let unknown = gone
                    && self.entries.get(&keys::record(*id)).is_some_and(|entry| {
                        String::from_utf8_lossy(&entry.value).contains("outcome unknown")
                    });
                self.counts.unknown += u64::from(unknown && item.value.operation == "repair-execute");
            }
            self.queue = after;
        }
        if begins {
            found.extend(self.unfinished_foreign_records());
        }
        found
    }

    /// True if the store showed an entry whose addition was acknowledged to a user.
    pub(super) fn is_addition_observed(&self, index: i64, revision: i64) -> bool {
        let next = self.queue.write_index.map_or(0, |(next, _)| next);
        let is_there = self.queue.entries.get(&index).is_some_and(|item| item.created == revision);
        // A missing entry was deleted; the judge evaluated its deletion.
        index < next && (is_there || !self.queue.entries.contains_key(&index))
    }

    /// Violations of two rules: a command is announced before it runs, and is not run again. `undrained` returns the
    /// reason why a step of an entry may not begin on its node.
    pub(super) fn check_announced(
        &mut self,
        queue: &RepairQueue,
        epoch: i64,
        program: &str,
        address: &str,
        undrained: impl FnOnce(i64, u32) -> Option<String>,
    ) -> Vec<Violation> {
        let about =
            |what: &str| new_violation(Id::I7, format!("{program} {address} in epoch {epoch}: {what}"));
        let (Some((record, item)), 1) =
            (queue.records.unfinished.first_key_value(), queue.records.unfinished.len())
        else {
            let count = queue.records.unfinished.len();
            return vec![new_violation(Id::I10, format!("{program} {address} begins with {count} records"))];
        };
        let mut found = Vec::new();
        if !item.value.targets.iter().any(|target| target == address) {
            found.push(about(&format!("record {record} is of {:?}", item.value.targets)));
        }
        let (of, count) = self.runs.entry(*record).or_insert((epoch, 0));
        *count += 1;
        let again = *count > 1;
        self.counts.retried += u64::from(again);
        if *of != epoch {
            found.push(about(&format!("record {record} was run in epoch {of} already")));
        }
        if *count > ATTEMPTS {
            found.push(about(&format!("record {record} is run {count} times")));
        }
        let step = queue.kept.iter().find_map(|(index, kept)| {
            let kept = &kept.value;
            match &kept.started {
                Some(started) if program == RESET && started.record == *record => {
                    Some((*index, kept.entry, started.step))
                }
                _ if program != RESET && kept.finishing == Some(*record) => {
                    Some((*index, kept.entry, SUCCESS_STEP))
                }
                _ => None,
            }
        });
        match step {
            Some(step) => {
                let first = *self.steps.entry(step).or_insert(*record);
                if first != *record {
                    found.push(about(&format!("step {step:?} was run by record {first} already")));
                }
                // A retry belongs to the same command, even if the node changed since that began.
                if !again && let Some(why) = undrained(step.0, step.2) {
                    found.push(about(&why));
                }
            }
            None => found.push(about("nothing is kept of it")),
        }
        found
    }
}

/// Epoch of the leader, which is the oldest candidate.
pub(super) fn leader_revision(entries: &BTreeMap<String, Entry>) -> Option<i64> {
    let keys = entries.iter().filter(|(key, _)| key.starts_with(keys::LEADER));
    keys.map(|(_, entry)| entry.create_revision).min()
}

/// True if another request replaced an entry.
fn was_replaced(before: Option<RepairQueueEntry>, after: Option<RepairQueueEntry>) -> bool {
    before.zip(after).is_some_and(|(before, after)| {
        (before.operation, before.machine_type, before.address)
            != (after.operation, after.machine_type, after.address)
    })
}

/// True if a control plane node reboots while the repair of another one waits.
fn has_repair_waiting_for_reboot(queue: &RepairQueue, cluster: Option<&Cluster>) -> bool {
    let control_plane: BTreeSet<&str> = cluster
        .iter()
        .flat_map(|cluster| cluster.control_plane())
        .map(|node| node.address.as_str())
        .collect();
    let reboots = queue.rebooting_nodes().map(|(node, _)| node).find(|node| control_plane.contains(node));
    let waits = |entry: &RepairQueueEntry| {
        let queued = entry.status == RepairStatus::Queued && !entry.deleted;
        queued && control_plane.contains(entry.address.as_str()) && reboots != Some(entry.address.as_str())
    };
    reboots.is_some() && queue.entries.values().any(|item| waits(&item.value))
}

/// True if a record shows a completed restart of a member of etcd.
fn is_restart(entry: &Entry) -> bool {
    let record = serde_json::from_slice::<Record>(&entry.value);
    record.is_ok_and(|it| it.operation == "etcd-restart" && it.status == RecordStatus::Completed)
}
