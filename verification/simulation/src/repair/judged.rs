//! What the judge of repairs knows, and what it makes of each revision and of each command that begins.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use madako_datacenter_sim::host::RESET;
use madako_domain::cluster::Cluster;
use madako_domain::invariants::repair::{one_api_server, one_repair_a_machine, records};
use madako_domain::invariants::{Id, Violation};
use madako_domain::keys;
use madako_domain::repair::queue::RepairQueue;
use madako_domain::repair::{RepairQueueEntry, RepairStatus};
use madako_domain::store::Entry;
use madako_judges::{Exemption, Exemptions};

use super::{ATTEMPTS, Seen};
use crate::drains::changed;
use crate::holding::{Holding, Unheld};
use crate::requests;
use crate::world::SESSION_TTL;

/// Where repairs are kept.
const OURS: [&str; 4] = [keys::REPAIRS, keys::REPAIR_KEPT, keys::RECORDS, keys::REPAIR_HOLDS];

/// The number under which a success command counts as a step of its entry.
const SUCCESS_STEP: u32 = u32::MAX;

pub(super) fn violation(invariant: Id, what: String) -> Violation {
    Violation { invariant, what }
}

#[derive(Default)]
pub(super) struct Judged {
    pub(super) entries: BTreeMap<String, Entry>,
    pub(super) queue: RepairQueue,
    pub(super) cluster: Option<Cluster>,
    /// Violations that a revision brought.
    pub(super) found: Vec<(i64, Violation)>,
    /// What answers of the registry ask for, and entries that began in spite of it.
    pub(super) holding: Holding,
    pub(super) unheld: Vec<(i64, Unheld)>,
    /// Revisions that users wrote: what these spoil is not held against the service.
    pub(super) users: BTreeSet<i64>,
    pub(super) acknowledged: BTreeMap<i64, i64>,
    /// How many entries a revision added, whoever wrote it.
    pub(super) added: BTreeMap<i64, u64>,
    pub(super) seen: Seen,
    /// Epoch and number of runs of each record.
    pub(super) runs: BTreeMap<i64, (i64, u32)>,
    /// The record of each step of each entry, by the entry's number and create revision: one revision may add several.
    pub(super) steps: BTreeMap<(i64, i64, u32), i64>,
    /// When each entry became what it is, by the world's clock.
    pub(super) entered: BTreeMap<i64, Duration>,
    /// Addresses of commands that run.
    pub(super) running: Vec<String>,
    /// What acted last, and when.
    pub(super) acted: Option<(Duration, String)>,
    /// The last revision that was judged.
    pub(super) revision: i64,
    /// Epochs that led until somebody deleted their key, and when that was: until their lease would have ended they cannot know.
    pub(super) deposed: BTreeMap<i64, Duration>,
    pub(super) exemptions: Exemptions,
    /// Epochs that were seen to go on beside each other.
    pub(super) lead_together: BTreeSet<(i64, i64)>,
}

impl Judged {
    /// Whoever acts must lead; `None`: it does, or cannot know yet that it does not.
    pub(super) fn leads(
        &mut self,
        epoch: i64,
        entries: &BTreeMap<String, Entry>,
        now: Duration,
    ) -> Option<Violation> {
        let leader = leader(entries);
        if leader == Some(epoch) {
            return None;
        }
        if self.cannot_know(epoch, now) {
            let lasted = self.deposed.get(&epoch).map_or(now, |at| now.saturating_sub(*at));
            self.exemptions.used(Exemption::Deposed, lasted);
            return None;
        }
        Some(violation(Id::I1, format!("epoch {epoch} acts while {leader:?} leads")))
    }

    /// Whether an epoch led, and may not know yet that somebody deleted its key.
    pub(super) fn cannot_know(&self, epoch: i64, now: Duration) -> bool {
        self.deposed.get(&epoch).is_some_and(|at| now < *at + SESSION_TTL)
    }

    /// A new leader writes its status, and nothing before that but the end of what an earlier one left unfinished.
    fn left_open(&self) -> Vec<Violation> {
        let keys = self
            .entries
            .range(keys::LEADER.to_owned()..)
            .take_while(|(key, _)| key.starts_with(keys::LEADER));
        let Some(epoch) = keys.map(|(_, entry)| entry.create_revision).min() else { return Vec::new() };
        let earlier = self.queue.records.unfinished.iter().filter(|(_, item)| item.created < epoch);
        earlier
            .map(|(id, _)| {
                let what = format!("epoch {epoch} begins while record {id} of an earlier one is unfinished");
                violation(Id::I10, what)
            })
            .collect()
    }

    /// Which invariants these changes give something to judge.
    pub(super) fn subjects(&self, changes: &[(String, Option<Entry>)]) -> Vec<Id> {
        let touches = |prefix: &str| changes.iter().any(|(key, _)| key.starts_with(prefix));
        let mut subjects = Vec::new();
        if touches(keys::REPAIRS) {
            subjects.push(Id::I7);
            let is_control_plane = |entry: &RepairQueueEntry| {
                self.cluster
                    .as_ref()
                    .is_some_and(|cluster| cluster.control_plane().any(|node| node.address == entry.address))
            };
            let entries = changes.iter().filter_map(|(_, entry)| entry.as_ref());
            if entries.filter_map(requests::read).any(|entry| is_control_plane(&entry)) {
                subjects.push(Id::I8);
            }
        }
        if touches(keys::RECORDS) {
            subjects.push(Id::I10);
        }
        subjects
    }

    pub(super) fn judge(
        &mut self,
        revision: i64,
        changes: Vec<(String, Option<Entry>)>,
        now: Duration,
    ) -> Vec<Violation> {
        self.revision = revision;
        let mut found = Vec::new();
        let (mut touched, mut clustered) = (false, false);
        let begins = changes.iter().any(|(key, entry)| key == keys::STATUS && entry.is_some());
        // A transition may write a part of what it is about as it was; all of it is a write for nothing.
        let is_ours = |key: &str| OURS.iter().any(|prefix| key.starts_with(prefix));
        let same = |(key, after): &(String, Option<Entry>)| {
            self.entries.get(key).map(|entry| &entry.value) == after.as_ref().map(|entry| &entry.value)
        };
        if changes.iter().all(|change| is_ours(&change.0) && same(change)) {
            let keys: Vec<&str> = changes.iter().map(|(key, _)| key.as_str()).collect();
            found.push(violation(Id::I12, format!("{} are written as they are there", keys.join(", "))));
        }
        found.extend(requests::wrong(&self.entries, &changes));
        self.added.insert(revision, requests::added(&self.entries, &changes));
        self.seen.held += requests::newly_held(&self.entries, &changes);
        let mut newest = self.queue.records.known.keys().next_back().copied().unwrap_or(0);
        for (key, entry) in changes {
            clustered |= key == keys::CLUSTER;
            let before = self.entries.get(&key);
            let is_entry = key.starts_with(keys::REPAIRS);
            let of_queue = [keys::RECORDS, keys::REPAIR_KEPT, keys::REBOOTS];
            touched |= is_entry || of_queue.iter().any(|prefix| key.starts_with(prefix));
            self.seen.collected +=
                u64::from(key.starts_with(keys::RECORDS) && before.is_some() && entry.is_none());
            let read = |entry: &Entry| serde_json::from_slice::<RepairQueueEntry>(&entry.value).ok();
            match (before, &entry) {
                (Some(before), None) if is_entry && !read(before).is_some_and(|before| before.deleted) => {
                    found.push(violation(Id::I9, format!("{key} goes and nobody asked for it")));
                }
                (Some(before), Some(after)) if is_entry && became_another(read(before), read(after)) => {
                    found.push(violation(Id::I9, format!("{key} becomes another entry")));
                }
                (None, Some(_)) if key.starts_with(keys::RECORDS) => {
                    let id = key.strip_prefix(keys::RECORDS).and_then(|id| i64::from_str_radix(id, 16).ok());
                    if id != Some(newest + 1) {
                        found.push(violation(Id::I10, format!("{key} follows record {newest}")));
                    }
                    newest = id.unwrap_or(newest).max(newest);
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
            let before: BTreeSet<String> =
                states(&self.queue, cluster).into_iter().map(|violation| violation.what).collect();
            found.extend(
                states(&after, cluster).into_iter().filter(|violation| !before.contains(&violation.what)),
            );
            for (index, item) in &after.entries {
                let before = self.queue.entries.get(index).filter(|before| before.created == item.created);
                if let Some(before) = before.filter(|before| before.revision != item.revision) {
                    let lasted = now.saturating_sub(self.entered.get(index).copied().unwrap_or(now));
                    let wrong = changed(&before.value, &item.value, lasted, &mut self.seen.drains);
                    found.extend(wrong.into_iter().map(|what| violation(Id::I7, what)));
                }
                let stays = |before: &RepairQueueEntry| {
                    (&before.status, &before.step_status) == (&item.value.status, &item.value.step_status)
                };
                if !before.is_some_and(|before| stays(&before.value)) {
                    self.entered.insert(*index, now);
                }
                let was = self.queue.entries.get(index).map(|item| &item.value.status);
                if was != Some(&item.value.status) && !self.users.contains(&revision) {
                    self.seen.succeeded += u64::from(item.value.status == RepairStatus::Succeeded);
                    self.seen.failed += u64::from(item.value.status == RepairStatus::Failed);
                }
            }
            self.seen.beside_reboots += u64::from(waits_beside_a_reboot(&after, cluster));
            for (id, item) in &self.queue.records.unfinished {
                let gone = !after.records.unfinished.contains_key(id);
                let unknown = gone
                    && self.entries.get(&keys::record(*id)).is_some_and(|entry| {
                        String::from_utf8_lossy(&entry.value).contains("outcome unknown")
                    });
                self.seen.unknown += u64::from(unknown && item.value.operation == "repair-execute");
            }
            self.queue = after;
        }
        if begins {
            found.extend(self.left_open());
        }
        found
    }

    /// Whether the store showed an entry that a user was told is there.
    pub(super) fn steps_known(&self, index: i64, revision: i64) -> bool {
        let next = self.queue.write_index.map_or(0, |(next, _)| next);
        let is_there = self.queue.entries.get(&index).is_some_and(|item| item.created == revision);
        // One that went was deleted, which is judged where it goes.
        index < next && (is_there || !self.queue.entries.contains_key(&index))
    }

    /// That a command was announced, and was not run before.
    /// `undrained` says why a step of an entry may not begin on its node.
    pub(super) fn announced(
        &mut self,
        queue: &RepairQueue,
        epoch: i64,
        program: &str,
        address: &str,
        undrained: impl FnOnce(i64, u32) -> Option<String>,
    ) -> Vec<Violation> {
        let about = |what: &str| violation(Id::I7, format!("{program} {address} in epoch {epoch}: {what}"));
        let (Some((record, item)), 1) =
            (queue.records.unfinished.first_key_value(), queue.records.unfinished.len())
        else {
            let count = queue.records.unfinished.len();
            return vec![violation(Id::I10, format!("{program} {address} begins with {count} records"))];
        };
        let mut found = Vec::new();
        if !item.value.targets.iter().any(|target| target == address) {
            found.push(about(&format!("record {record} is of {:?}", item.value.targets)));
        }
        let (of, count) = self.runs.entry(*record).or_insert((epoch, 0));
        *count += 1;
        let again = *count > 1;
        self.seen.retried += u64::from(again);
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
                // A retry is part of the same command, whatever became of the node since it began.
                if !again && let Some(why) = undrained(step.0, step.2) {
                    found.push(about(&why));
                }
            }
            None => found.push(about("nothing is kept of it")),
        }
        found
    }
}

/// The epoch of who leads: the oldest candidate's.
pub(super) fn leader(entries: &BTreeMap<String, Entry>) -> Option<i64> {
    let keys = entries.iter().filter(|(key, _)| key.starts_with(keys::LEADER));
    keys.map(|(_, entry)| entry.create_revision).min()
}

/// Whether an entry took the place of one that asked for something else.
fn became_another(before: Option<RepairQueueEntry>, after: Option<RepairQueueEntry>) -> bool {
    before.zip(after).is_some_and(|(before, after)| {
        (before.operation, before.machine_type, before.address)
            != (after.operation, after.machine_type, after.address)
    })
}

/// Whether a control plane node reboots, and another one's repair waits.
fn waits_beside_a_reboot(queue: &RepairQueue, cluster: Option<&Cluster>) -> bool {
    let control_plane: BTreeSet<&str> = cluster
        .iter()
        .flat_map(|cluster| cluster.control_plane())
        .map(|node| node.address.as_str())
        .collect();
    let reboots = queue.rebooting().map(|(node, _)| node).find(|node| control_plane.contains(node));
    let waits = |entry: &RepairQueueEntry| {
        let queued = entry.status == RepairStatus::Queued && !entry.deleted;
        queued && control_plane.contains(entry.address.as_str()) && reboots != Some(entry.address.as_str())
    };
    reboots.is_some() && queue.entries.values().any(|item| waits(&item.value))
}

/// What is wrong with a queue by itself.
fn states(queue: &RepairQueue, cluster: Option<&Cluster>) -> Vec<Violation> {
    let mut found = one_repair_a_machine(queue);
    found.extend(one_api_server(queue, cluster));
    found.extend(records(queue));
    found
}
