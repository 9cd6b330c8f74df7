//! Judges repairs from outside: the queue at every revision of the store, and every command that acts when it begins.
//!
//! What it does not judge: steps that users wrote themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use etcd_client::{Event, EventType, GetOptions, KeyValue};
use madako_datacenter_sim::Fault;
use madako_datacenter_sim::host::{HEALTH_CHECK, RESET, SimulatedHost};
use madako_messages::cluster::Cluster;
use madako_messages::event::Event as Told;
use madako_messages::host::{Host, HostCommand, HostError, HostOutcome};
use madako_messages::invariants::repair::{one_api_server, one_repair_a_machine, records};
use madako_messages::invariants::{Id, Violation};
use madako_messages::keys;
use madako_messages::permit::Permit;
use madako_messages::ports::Fetched;
use madako_messages::repair::queue::RepairQueue;
use madako_messages::repair::{RepairQueueEntry, RepairStatus, RepairStepStatus};
use madako_messages::store::Entry;

use crate::drains::{Drains, DrainsSeen, changed};
use crate::history::History;
use crate::holding::{Holding, Unheld};
use crate::requests;
use crate::revisions::every_revision;
use crate::store_process::StoreProcess;
use crate::world::{PREFIX, SESSION_TTL};

/// Runs that one record stands for at most: what the configuration of the simulation says (a retry).
pub const ATTEMPTS: u32 = 2;

/// Where repairs are kept.
const OURS: [&str; 4] = [keys::REPAIRS, keys::REPAIR_KEPT, keys::RECORDS, keys::REPAIR_HOLDS];

/// The number under which a success command counts as a step of its entry.
const SUCCESS_STEP: u32 = u32::MAX;

#[derive(Default)]
struct Judged {
    entries: BTreeMap<String, Entry>,
    queue: RepairQueue,
    cluster: Option<Cluster>,
    /// Violations that a revision brought.
    found: Vec<(i64, Violation)>,
    /// What answers of the registry ask for, and entries that began in spite of it.
    holding: Holding,
    unheld: Vec<(i64, Unheld)>,
    /// Revisions that users wrote: what these spoil is not held against the service.
    users: BTreeSet<i64>,
    acknowledged: BTreeMap<i64, i64>,
    /// How many entries a revision added, whoever wrote it.
    added: BTreeMap<i64, u64>,
    seen: Seen,
    /// Epoch and number of runs of each record.
    runs: BTreeMap<i64, (i64, u32)>,
    /// The record of each step of each entry, by the entry's number and create revision: one revision may add several.
    steps: BTreeMap<(i64, i64, u32), i64>,
    /// Addresses of commands that run.
    running: Vec<String>,
    /// The last revision that was judged.
    revision: i64,
    /// When somebody deleted the leader's keys: until its lease would have ended the leader cannot know.
    deposed: Option<Duration>,
}

/// How often things were seen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Seen {
    /// Commands that began and act.
    pub commands: u64,
    /// Of these, retries.
    pub retried: u64,
    /// Commands that were cut off.
    pub cut_off: u64,
    /// Commands whose outcome is not known.
    pub unknown: u64,
    /// Repairs that succeeded.
    pub succeeded: u64,
    /// Repairs that failed.
    pub failed: u64,
    /// Entries that the service added, and racks that it held.
    pub requested: u64,
    /// Racks that were held.
    pub held: u64,
    /// Answers that were false or by a clock that was set, and racks that answers asked to be held.
    pub false_answers: u64,
    /// Answers by a clock that was set.
    pub shifted_answers: u64,
    /// Racks that answers asked to be held.
    pub to_be_held: u64,
    /// What became of drains.
    pub drains: DrainsSeen,
}

/// Clones are the same judge.
#[derive(Clone)]
pub struct RepairJudge {
    judged: Arc<Mutex<Judged>>,
    history: History,
    drains: Drains,
}

fn violation(invariant: Id, what: String) -> Violation {
    Violation { invariant, what }
}

/// What a key holds, as the service reads it.
pub fn entry_of(kv: &KeyValue) -> Entry {
    Entry {
        value: kv.value().to_vec().into(),
        create_revision: kv.create_revision(),
        mod_revision: kv.mod_revision(),
        lease: kv.lease(),
    }
}

fn key_of(kv: &KeyValue) -> String {
    kv.key_str().unwrap().strip_prefix(PREFIX).unwrap().to_owned()
}

/// What is stored now, and at which revision; `None`: nobody can tell.
async fn standing(store: &StoreProcess) -> Option<(BTreeMap<String, Entry>, i64)> {
    let mut client = store.client().await?;
    let answer = client.get(PREFIX, Some(GetOptions::new().with_prefix())).await.ok()?;
    let entries = answer.kvs().iter().map(|kv| (key_of(kv), entry_of(kv))).collect();
    Some((entries, answer.header()?.revision()))
}

impl RepairJudge {
    /// Has seen nothing yet.
    pub fn new(history: History, drains: Drains) -> Self {
        Self { judged: Arc::default(), history, drains }
    }

    /// Watches the store over a client of its own.
    pub async fn watch(self, store: StoreProcess) {
        let read = |event: &Event| {
            let kv = event.kv().unwrap();
            (key_of(kv), (event.event_type() == EventType::Put).then(|| entry_of(kv)))
        };
        every_revision(store, PREFIX, read, |revision, changes| self.judge(revision, changes)).await;
    }

    /// Judges a revision.
    pub fn judge(&self, revision: i64, changes: Vec<(String, Option<Entry>)>) {
        let mut judged = self.judged.lock().unwrap();
        let clustered = changes.iter().any(|(key, _)| key == keys::CLUSTER);
        let now = self.history.now();
        let Judged { holding, entries, unheld, .. } = &mut *judged;
        for began in holding.judge(revision, entries, &changes, now) {
            self.history.note("repairs", format_args!("revision {revision}: {}", began.what));
            unheld.push((revision, began));
        }
        for invariant in judged.subjects(&changes) {
            self.history.judged(invariant);
        }
        let found = judged.judge(revision, changes);
        if let Some(cluster) = judged.cluster.as_ref().filter(|_| clustered) {
            self.drains.follow(cluster);
        }
        for violation in found {
            self.history.note("repairs", format_args!("revision {revision}: {violation}"));
            judged.found.push((revision, violation));
        }
    }

    /// A user wrote a revision; with the index of an entry when it was acknowledged as added.
    pub fn user_wrote(&self, revision: i64, added: Option<i64>) {
        let mut judged = self.judged.lock().unwrap();
        judged.users.insert(revision);
        if let Some(index) = added {
            judged.acknowledged.insert(revision, index);
        }
    }

    /// What an instance emits.
    pub fn heard(&self, name: &str, event: &Told) {
        let (now, mut judged) = (self.history.now(), self.judged.lock().unwrap());
        match event {
            Told::Elected { epoch } => judged.holding.elected(name, *epoch),
            Told::ActorFailed { .. } => judged.holding.failed(name, now),
            Told::Reported { .. } => judged.holding.published(name, now),
            _ => {}
        }
    }

    /// The registry answered an instance which machines should be repaired, with these faults.
    pub fn answered(&self, name: &str, fetched: &Fetched, faults: &[Fault]) {
        let mut judged = self.judged.lock().unwrap();
        let is_false = |fault: &Fault| matches!(fault, Fault::FalseReports(_));
        judged.seen.false_answers += u64::from(faults.iter().any(is_false));
        judged.seen.shifted_answers +=
            u64::from(faults.iter().any(|fault| matches!(fault, Fault::ClockSet(_))));
        let machines = fetched.machines.iter().chain(&fetched.left_out).cloned().collect();
        judged.holding.answered(name, machines);
    }

    /// Somebody deletes every leader key now.
    pub fn leader_keys_deleted(&self) {
        self.judged.lock().unwrap().deposed = Some(self.history.now());
    }

    /// Whether an entry is in this state.
    pub fn is_somewhere(&self, status: &RepairStatus, step_status: &RepairStepStatus) -> bool {
        let judged = self.judged.lock().unwrap();
        let is = |entry: &RepairQueueEntry| entry.status == *status && entry.step_status == *step_status;
        judged.queue.entries.values().any(|item| is(&item.value))
    }

    /// How many entries are not finished.
    #[must_use]
    pub fn unfinished(&self) -> usize {
        let judged = self.judged.lock().unwrap();
        judged.queue.entries.values().filter(|item| !item.value.is_finished()).count()
    }

    /// Whether a command runs.
    pub fn is_running(&self) -> bool {
        !self.judged.lock().unwrap().running.is_empty()
    }

    /// How often things were seen.
    pub fn seen(&self) -> Seen {
        let judged = self.judged.lock().unwrap();
        // Only now all that users wrote is known.
        let by_us = judged.added.iter().filter(|(revision, _)| !judged.users.contains(revision));
        let requested = by_us.map(|(_, count)| count).sum();
        Seen { requested, to_be_held: judged.holding.asked, ..judged.seen }
    }

    /// Whether something was violated so far, as far as is known who wrote what.
    #[must_use]
    pub fn found_something(&self) -> bool {
        !self.found().is_empty()
    }

    /// What was violated so far, as far as is known who wrote what.
    #[must_use]
    pub fn found(&self) -> Vec<Violation> {
        let judged = self.judged.lock().unwrap();
        let held = |(revision, _): &&(i64, Violation)| !judged.users.contains(revision);
        let mut found: Vec<Violation> =
            judged.found.iter().filter(held).map(|(_, violation)| violation.clone()).collect();
        let ours = |revision: &i64| !judged.users.contains(revision);
        let handled = |began: &Unheld| began.if_ours.as_ref().is_none_or(|any| any.iter().any(ours));
        let unheld = judged.unheld.iter().filter(|(revision, began)| ours(revision) && handled(began));
        found.extend(unheld.map(|(_, began)| violation(Id::I7, began.what.clone())));
        found
    }

    /// Every violation, when the run is over and every repair must have ended.
    pub fn finish(&self) -> Vec<Violation> {
        let mut found = self.found();
        let judged = self.judged.lock().unwrap();
        for (revision, index) in &judged.acknowledged {
            if !judged.steps_known(*index, *revision) {
                found.push(violation(Id::I9, format!("entry {index} of revision {revision} was lost")));
            }
        }
        for item in judged.queue.entries.values().filter(|item| !item.value.is_finished()) {
            let entry = &item.value;
            found.push(violation(
                Id::I12,
                format!(
                    "peace ends with entry {} for {} in {:?} {:?}, step {}",
                    entry.index, entry.address, entry.status, entry.step_status, entry.step
                ),
            ));
        }
        found.extend(self.drains.left_cordoned());
        found
    }

    /// What the store shows: now, or, when it is gone or full, what it showed last.
    async fn shown(&self, store: &StoreProcess) -> (BTreeMap<String, Entry>, i64) {
        match standing(store).await {
            Some(standing) => standing,
            None => {
                let judged = self.judged.lock().unwrap();
                (judged.entries.clone(), judged.revision)
            }
        }
    }

    /// Something is about to be written to Kubernetes.
    pub async fn writes_to_kubernetes(&self, store: &StoreProcess, permit: &Permit, what: &str) {
        let (entries, revision) = self.shown(store).await;
        self.history.judged(Id::I1);
        let mut judged = self.judged.lock().unwrap();
        if let Some(Violation { invariant, what: why }) =
            judged.leads(permit.epoch(), &entries, self.history.now())
        {
            let what = format!("{what}: {why}");
            self.history.note("repairs", &what);
            judged.found.push((-revision, violation(invariant, what)));
        }
    }

    /// A command is about to act. Gives its place among those that run.
    pub async fn begins(
        &self,
        store: &StoreProcess,
        permit: &Permit,
        program: &str,
        address: &str,
    ) -> Acting {
        let (entries, revision) = self.shown(store).await;
        let queue = RepairQueue::decode(&entries, None, &mut Vec::new());
        let mut judged = self.judged.lock().unwrap();
        let mut found = Vec::new();
        judged.seen.commands += 1;
        self.history.judged(Id::I1);
        self.history.judged(Id::I10);
        let epoch = permit.epoch();
        found.extend(judged.leads(epoch, &entries, self.history.now()));
        if let Some(other) = judged.running.first() {
            found.push(violation(Id::I10, format!("{program} {address} runs beside one for {other}")));
        }
        let cluster =
            entries.get(keys::CLUSTER).and_then(|entry| serde_json::from_slice::<Cluster>(&entry.value).ok());
        found.extend(judged.announced(&queue, epoch, program, address, |index, step| {
            self.drains.undrained(cluster.as_ref()?, &queue.entries.get(&index)?.value, step)
        }));
        for violation in found {
            self.history.note("repairs", &violation);
            judged.found.push((-revision, violation));
        }
        judged.running.push(address.to_owned());
        Acting { judge: self.clone(), address: address.to_owned(), ended: false }
    }
}

impl Judged {
    /// Whoever acts must lead; `None`: it does, or cannot know yet that it does not.
    fn leads(&self, epoch: i64, entries: &BTreeMap<String, Entry>, now: Duration) -> Option<Violation> {
        let keys = entries.iter().filter(|(key, _)| key.starts_with(keys::LEADER));
        let leader = keys.map(|(_, entry)| entry.create_revision).min();
        let excused = self.deposed.is_some_and(|at| now < at + SESSION_TTL);
        (leader != Some(epoch) && !excused)
            .then(|| violation(Id::I1, format!("epoch {epoch} acts while {leader:?} leads")))
    }

    /// Which invariants these changes give something to judge.
    fn subjects(&self, changes: &[(String, Option<Entry>)]) -> Vec<Id> {
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

    fn judge(&mut self, revision: i64, changes: Vec<(String, Option<Entry>)>) -> Vec<Violation> {
        self.revision = revision;
        let mut found = Vec::new();
        let (mut touched, mut clustered) = (false, false);
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
        let newest = self.queue.records.known.keys().next_back().copied().unwrap_or(0);
        for (key, entry) in changes {
            clustered |= key == keys::CLUSTER;
            let before = self.entries.get(&key);
            let is_entry = key.starts_with(keys::REPAIRS);
            touched |= is_entry || key.starts_with(keys::RECORDS) || key.starts_with(keys::REPAIR_KEPT);
            let read = |entry: &Entry| serde_json::from_slice::<RepairQueueEntry>(&entry.value).ok();
            match (before, &entry) {
                (Some(before), None) if is_entry && !read(before).is_some_and(|before| before.deleted) => {
                    found.push(violation(Id::I9, format!("{key} goes and nobody asked for it")));
                }
                (None, Some(_)) if key.starts_with(keys::RECORDS) => {
                    let id = key.strip_prefix(keys::RECORDS).and_then(|id| i64::from_str_radix(id, 16).ok());
                    if id != Some(newest + 1) {
                        found.push(violation(Id::I10, format!("{key} follows record {newest}")));
                    }
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
                    let wrong = changed(&before.value, &item.value, &mut self.seen.drains);
                    found.extend(wrong.into_iter().map(|what| violation(Id::I7, what)));
                }
                let was = self.queue.entries.get(index).map(|item| &item.value.status);
                if was != Some(&item.value.status) && !self.users.contains(&revision) {
                    self.seen.succeeded += u64::from(item.value.status == RepairStatus::Succeeded);
                    self.seen.failed += u64::from(item.value.status == RepairStatus::Failed);
                }
            }
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
        found
    }

    /// Whether the store showed an entry that a user was told is there.
    fn steps_known(&self, index: i64, revision: i64) -> bool {
        let next = self.queue.write_index.map_or(0, |(next, _)| next);
        let is_there = self.queue.entries.get(&index).is_some_and(|item| item.created == revision);
        // One that went was deleted, which is judged where it goes.
        index < next && (is_there || !self.queue.entries.contains_key(&index))
    }

    /// That a command was announced, and was not run before.
    /// `undrained` says why a step of an entry may not begin on its node.
    fn announced(
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

/// What is wrong with a queue by itself.
fn states(queue: &RepairQueue, cluster: Option<&Cluster>) -> Vec<Violation> {
    let mut found = one_repair_a_machine(queue);
    found.extend(one_api_server(queue, cluster));
    found.extend(records(queue));
    found
}

/// A command that runs.
pub struct Acting {
    judge: RepairJudge,
    address: String,
    ended: bool,
}

impl Drop for Acting {
    fn drop(&mut self) {
        let mut judged = self.judge.judged.lock().unwrap();
        if let Some(at) = judged.running.iter().position(|address| *address == self.address) {
            judged.running.remove(at);
        }
        judged.seen.cut_off += u64::from(!self.ended);
    }
}

/// A host of an instance whose every command that acts is judged.
pub struct JudgedHost {
    /// The host itself.
    pub host: SimulatedHost,
    /// Who judges.
    pub judge: RepairJudge,
    /// How the judge reads the store.
    pub store: StoreProcess,
}

#[async_trait]
impl Host for JudgedHost {
    async fn run(&self, permit: &Permit, command: HostCommand) -> Result<HostOutcome, HostError> {
        let acts = command.words.first().is_some_and(|program| program != HEALTH_CHECK);
        if !acts {
            return self.host.run(permit, command).await;
        }
        permit.check(tokio::time::Instant::now())?;
        let (program, address) = (command.words[0].clone(), command.words.last().cloned().unwrap());
        let mut acting = self.judge.begins(&self.store, permit, &program, &address).await;
        let result = self.host.run(permit, command).await;
        acting.ended = true;
        result
    }
}
