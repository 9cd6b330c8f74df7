//! Judges repairs from outside: the queue at every revision of the store, and every command with an effect when it
//! begins.
//!
//! Does not: judge steps that users wrote.

mod judged;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use etcd_client::{Event, EventType, GetOptions, KeyValue};
use madako_datacenter_sim::Fault;
use madako_datacenter_sim::host::{BOOT_CHECK, HEALTH_CHECK, REBOOT, RESET, SimulatedHost};
use madako_domain::cluster::Cluster;
use madako_domain::invariants::{Id, Violation};
use madako_domain::keys;
use madako_domain::reboot::RebootStatus;
use madako_domain::repair::queue::RepairQueue;
use madako_domain::repair::{RepairQueueEntry, RepairStatus, RepairStepStatus};
use madako_domain::store::Entry;
use madako_judges::history::Change;
use madako_judges::{Command, Exemption, Exemptions, Fact};
use madako_protocol::event::Event as ActorEvent;
use madako_protocol::host::{Host, HostCommand, HostEnd, HostError, HostOutcome};
use madako_protocol::permit::Permit;
use madako_protocol::ports::RegistryMachines;

use self::judged::{JudgedRepairs, leader_revision, new_violation};
use crate::drains::Drains;
use crate::facts::Facts;
use crate::history::History;
use crate::holding::HoldExemption;

use crate::revisions::follow_revisions;
use crate::store_process::StoreProcess;
use crate::world::PREFIX;

/// Maximum runs of one record: the configuration of the simulation allows one retry.
pub const ATTEMPTS: u32 = 2;

/// Numbers of observed events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RepairCounts {
    /// Commands with an effect that began.
    pub commands: u64,
    /// Retries among them.
    pub retried: u64,
    pub cut_off: u64,
    /// Commands of unknown outcome.
    pub unknown: u64,
    pub succeeded: u64,
    pub failed: u64,
    /// Entries that the service added.
    pub requested: u64,
    pub held: u64,
    /// Answers of the registry that show healthy machines as broken.
    pub false_answers: u64,
    /// Answers of a registry whose clock was set.
    pub shifted_answers: u64,
    /// Deleted records.
    pub collected: u64,
    /// Revisions with a rebooting control plane node and a waiting repair of another one.
    pub beside_reboots: u64,
    pub reboots: u64,
    /// Racks that had to be held according to answers of the registry.
    pub to_be_held: u64,
    pub drained: u64,
    pub drains_given_up: u64,
    /// Completed restarts of members of etcd.
    pub restarted: u64,
}

/// Clones share their state.
#[derive(Clone)]
pub struct RepairJudge {
    judged: Arc<Mutex<JudgedRepairs>>,
    history: History,
    drains: Drains,
    facts: Facts,
}

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

/// The change of a key by an event, with the key relative to [`PREFIX`].
pub fn change_of(event: &Event) -> Change {
    let kv = event.kv().unwrap();
    (key_of(kv), (event.event_type() == EventType::Put).then(|| entry_of(kv)))
}

/// The stored keys and their revision; `None` if the store does not answer.
async fn read_entries(store: &StoreProcess) -> Option<(BTreeMap<String, Entry>, i64)> {
    let mut client = store.connect_client().await?;
    let answer = client.get(PREFIX, Some(GetOptions::new().with_prefix())).await.ok()?;
    let entries = answer.kvs().iter().map(|kv| (key_of(kv), entry_of(kv))).collect();
    Some((entries, answer.header()?.revision()))
}

impl RepairJudge {
    pub fn new(history: History, drains: Drains) -> Self {
        Self { judged: Arc::default(), history, drains, facts: Facts::default() }
    }

    /// Reports the revisions of users to `facts`.
    #[must_use]
    pub fn with_facts(self, facts: Facts) -> Self {
        Self { facts, ..self }
    }

    /// Watches the store with its own client.
    pub async fn watch(self, store: StoreProcess) {
        follow_revisions(store, PREFIX, change_of, |revision, changes| {
            self.judge_revision(revision, changes)
        })
        .await;
    }

    pub fn judge_revision(&self, revision: i64, changes: Vec<Change>) {
        let mut judged = self.judged.lock().unwrap();
        let clustered = changes.iter().any(|(key, _)| key == keys::CLUSTER);
        let now = self.history.now();
        let JudgedRepairs { holding, entries, unheld, .. } = &mut *judged;
        for began in holding.judge_revision(revision, entries, &changes, now) {
            if began.excuse.is_none() {
                self.history.note("repairs", format_args!("revision {revision}: {}", began.what));
            }
            unheld.push((revision, began));
        }
        for invariant in judged.affected_invariants(&changes) {
            self.history.count_judgement(invariant);
        }
        let found = judged.judge_revision(revision, changes, now);
        if let Some(cluster) = judged.cluster.as_ref().filter(|_| clustered) {
            self.drains.follow(cluster);
        }
        for violation in found {
            self.history.note("repairs", format_args!("revision {revision}: {violation}"));
            judged.found.push((revision, violation));
        }
    }

    /// A user wrote `revision`. `added`: index of a new entry, if its addition was acknowledged.
    pub fn note_user_write(&self, revision: i64, added: Option<i64>) {
        self.facts.report(&Fact::ByUser { revision });
        let mut judged = self.judged.lock().unwrap();
        judged.users.insert(revision);
        if let Some(index) = added {
            judged.acknowledged.insert(revision, index);
        }
    }

    pub fn take_event(&self, name: &str, event: &ActorEvent) {
        let (now, mut judged) = (self.history.now(), self.judged.lock().unwrap());
        match event {
            ActorEvent::Elected { epoch } => judged.holding.note_election(name, *epoch, now),
            ActorEvent::ActorFailed { .. } => judged.holding.record_failure(name, now),
            ActorEvent::Reported { .. } => judged.holding.note_publication(name, now),
            _ => {}
        }
    }

    /// Takes an answer of the registry to an instance about machines to repair, and the faults of the registry at that
    /// time.
    pub fn record_answer(&self, name: &str, fetched: &RegistryMachines, faults: &[Fault]) {
        let mut judged = self.judged.lock().unwrap();
        let is_false = |fault: &Fault| matches!(fault, Fault::FalseReports(_));
        judged.counts.false_answers += u64::from(faults.iter().any(is_false));
        judged.counts.shifted_answers +=
            u64::from(faults.iter().any(|fault| matches!(fault, Fault::ClockSet(_))));
        let machines = fetched.machines.iter().chain(&fetched.left_out).cloned().collect();
        judged.holding.record_answer(name, machines);
    }

    /// A user deleted all leader keys now; this epoch led until then.
    pub fn note_deposed(&self, epoch: i64) {
        self.judged.lock().unwrap().deposed.insert(epoch, self.history.now());
    }

    /// Judges the instances that report at one moment that they lead, with their epochs. A leader knows the end of its
    /// lease before another instance is elected.
    pub fn judge_reported_leaders(&self, leaders: &[(&str, i64)]) {
        if leaders.is_empty() {
            return;
        }
        self.history.count_judgement(Id::I1);
        let (now, mut judged) = (self.history.now(), self.judged.lock().unwrap());
        let knowing = leaders.iter().filter(|(_, epoch)| !judged.is_loss_unobservable(*epoch, now));
        let leaders: Vec<&(&str, i64)> = knowing.collect();
        let [first, second, ..] = leaders[..] else { return };
        let instances: Vec<String> =
            leaders.iter().map(|(name, epoch)| format!("{name} in {epoch}")).collect();
        if judged.lead_together.insert((first.1, second.1)) {
            let found = new_violation(Id::I1, format!("they lead at once: {}", instances.join(", ")));
            self.history.note("repairs", &found);
            let revision = judged.revision;
            judged.found.push((-revision, found));
        }
    }

    /// True if any entry is in this state.
    pub fn is_somewhere(&self, status: &RepairStatus, step_status: &RepairStepStatus) -> bool {
        let judged = self.judged.lock().unwrap();
        let is = |entry: &RepairQueueEntry| entry.status == *status && entry.step_status == *step_status;
        judged.queue.entries.values().any(|item| is(&item.value))
    }

    #[must_use]
    pub fn count_unfinished(&self) -> usize {
        let judged = self.judged.lock().unwrap();
        judged.queue.entries.values().filter(|item| !item.value.is_finished()).count()
    }

    /// The unfinished records, each as its id and operation.
    #[must_use]
    pub fn unfinished_records(&self) -> Vec<String> {
        let judged = self.judged.lock().unwrap();
        let records = judged.queue.records.unfinished.iter();
        records.map(|(id, item)| format!("record {id} of {}", item.value.operation)).collect()
    }

    /// True if an entry of the reboot queue waits for the boot of this node.
    fn awaits_boot(&self, node: &str) -> bool {
        let judged = self.judged.lock().unwrap();
        let mut of_node = judged.queue.reboots.values().filter(|item| item.value.node == node);
        of_node.any(|item| item.value.status == RebootStatus::Rebooting)
    }

    /// Records an effect: any action except polls, health checks of unfinished repairs, and boot checks of
    /// rebooting nodes.
    fn note_action(&self, what: String) {
        self.judged.lock().unwrap().acted = Some((self.history.now(), what));
    }

    /// Time and description of the last effect: a command, a write to Kubernetes, a health check without an
    /// unfinished repair, or a boot check of a node that does not reboot.
    #[must_use]
    pub fn last_effect(&self) -> Option<(Duration, String)> {
        self.judged.lock().unwrap().acted.clone()
    }

    /// True while a command runs.
    pub fn is_running(&self) -> bool {
        !self.judged.lock().unwrap().running.is_empty()
    }

    pub fn counts(&self) -> RepairCounts {
        let judged = self.judged.lock().unwrap();
        // The revisions that users wrote are complete only now.
        let by_us = judged.added.iter().filter(|(revision, _)| !judged.users.contains(revision));
        let requested = by_us.map(|(_, count)| count).sum();
        RepairCounts { requested, to_be_held: judged.holding.machines_to_hold, ..judged.counts }
    }

    /// True if a violation is known. A revision counts as the service's until its user reports it.
    #[must_use]
    pub fn has_findings(&self) -> bool {
        !self.find_violations().is_empty()
    }

    /// Violations so far. A revision counts as the service's until its user reports it.
    #[must_use]
    pub fn find_violations(&self) -> Vec<Violation> {
        let judged = self.judged.lock().unwrap();
        let held = |(revision, _): &&(i64, Violation)| !judged.users.contains(revision);
        let mut found: Vec<Violation> =
            judged.found.iter().filter(held).map(|(_, violation)| violation.clone()).collect();
        let unheld =
            judged.unheld.iter().filter(|(revision, began)| judged.counts_against_us(*revision, began));
        let known = unheld.filter(|(_, began)| began.excuse.is_none());
        found.extend(known.map(|(_, began)| new_violation(Id::I7, began.what.clone())));
        found
    }

    #[must_use]
    pub fn exemptions(&self) -> Exemptions {
        let judged = self.judged.lock().unwrap();
        let mut exemptions = judged.exemptions.clone();
        for _ in judged.found.iter().filter(|(revision, _)| judged.users.contains(revision)) {
            exemptions.used_once(Exemption::ByUser);
        }
        judged.standing.count_standing(self.history.now(), &mut exemptions);
        for (_, began) in
            judged.unheld.iter().filter(|(revision, began)| judged.counts_against_us(*revision, began))
        {
            match began.excuse {
                Some(HoldExemption::Forgotten(forgotten_for)) => {
                    exemptions.record_use(Exemption::ForgottenReports, forgotten_for);
                }
                Some(HoldExemption::UncertainFailures) => exemptions.used_once(Exemption::UncertainFailures),
                None => {}
            }
        }
        exemptions
    }

    /// All violations at the end of a run, when every repair must have ended.
    pub fn finish(&self) -> Vec<Violation> {
        let mut found = self.find_violations();
        let judged = self.judged.lock().unwrap();
        for (revision, index) in &judged.acknowledged {
            if !judged.is_addition_observed(*index, *revision) {
                found.push(new_violation(Id::I9, format!("entry {index} of revision {revision} was lost")));
            }
        }
        for item in judged.queue.entries.values().filter(|item| !item.value.is_finished()) {
            let entry = &item.value;
            found.push(new_violation(
                Id::I12,
                format!(
                    "the quiet period ends with entry {} for {} in {:?} {:?}, step {}",
                    entry.index, entry.address, entry.status, entry.step_status, entry.step
                ),
            ));
        }
        self.history.count_judgement(Id::I17);
        found.extend(self.drains.nodes_left_cordoned());
        found
    }

    /// The stored keys and their revision, or the last known ones while the store is down or its disk is full.
    async fn shown_entries(&self, store: &StoreProcess) -> (BTreeMap<String, Entry>, i64) {
        match read_entries(store).await {
            Some(standing) => standing,
            None => {
                let judged = self.judged.lock().unwrap();
                (judged.entries.clone(), judged.revision)
            }
        }
    }

    /// Judges a write to Kubernetes, or an effect on a node, before it is sent.
    pub async fn judge_effect(&self, store: &StoreProcess, permit: &Permit, what: &str) {
        self.note_action(what.to_owned());
        let (entries, revision) = self.shown_entries(store).await;
        self.history.count_judgement(Id::I1);
        let mut judged = self.judged.lock().unwrap();
        if let Some(Violation { invariant, what: why }) =
            judged.check_leader(permit.epoch(), &entries, self.history.now())
        {
            let what = format!("{what}: {why}");
            self.history.note("repairs", &what);
            judged.found.push((-revision, new_violation(invariant, what)));
        }
    }

    /// Judges a reboot command before it runs: a record announces it, its entry reboots, and I16 holds. The command
    /// counts as running until the result is dropped.
    pub async fn begin_reboot(&self, store: &StoreProcess, permit: &Permit, address: &str) -> RunningCommand {
        self.note_action(format!("{REBOOT} {address}"));
        let (entries, revision) = self.shown_entries(store).await;
        let queue = RepairQueue::decode(&entries, None, &mut Vec::new());
        let mut judged = self.judged.lock().unwrap();
        let (epoch, now) = (permit.epoch(), self.history.now());
        let mut found: Vec<Violation> = judged.check_leader(epoch, &entries, now).into_iter().collect();
        self.history.count_judgement(Id::I1);
        if let Some(other) = judged.running.first() {
            found.push(new_violation(Id::I10, format!("{REBOOT} {address} runs beside one for {other}")));
        }
        // After a user deleted this leader's key, a successor may have ended the record, which this leader cannot know.
        if leader_revision(&entries) == Some(epoch) || !judged.is_loss_unobservable(epoch, now) {
            let is_announced = queue.records.unfinished.values().any(|item| {
                item.value.operation == "reboot-reboot" && item.value.targets == [address.to_owned()]
            });
            // A cancellation may come between the announcement and the command.
            let mut of_node = queue.reboots.values().filter(|item| item.value.node == address);
            let reboots = of_node
                .any(|item| matches!(item.value.status, RebootStatus::Rebooting | RebootStatus::Cancelled));
            if !is_announced || !reboots {
                found
                    .push(new_violation(Id::I10, format!("{REBOOT} {address} runs without an announcement")));
            }
            self.history.count_judgement(Id::I16);
            if let Some(left) = self.drains.check_emptied(address) {
                found.push(new_violation(
                    Id::I16,
                    format!("{REBOOT} {address} meets a node that is not drained: {left}"),
                ));
            }
        }
        judged.counts.reboots += 1;
        self.note_running(&mut judged, revision, found, address)
    }

    /// Judges a command before it runs. The command counts as running until the result is dropped.
    pub async fn begin_command(
        &self,
        store: &StoreProcess,
        permit: &Permit,
        program: &str,
        address: &str,
    ) -> RunningCommand {
        self.note_action(format!("{program} {address}"));
        let (entries, revision) = self.shown_entries(store).await;
        let queue = RepairQueue::decode(&entries, None, &mut Vec::new());
        let mut judged = self.judged.lock().unwrap();
        let mut found = Vec::new();
        judged.counts.commands += 1;
        self.history.count_judgement(Id::I1);
        self.history.count_judgement(Id::I10);
        let epoch = permit.epoch();
        found.extend(judged.check_leader(epoch, &entries, self.history.now()));
        if let Some(other) = judged.running.first() {
            found.push(new_violation(Id::I10, format!("{program} {address} runs beside one for {other}")));
        }
        let cluster =
            entries.get(keys::CLUSTER).and_then(|entry| serde_json::from_slice::<Cluster>(&entry.value).ok());
        // After a user deleted this leader's key, a successor may have ended the record, which this leader cannot know.
        if leader_revision(&entries) == Some(epoch) || !judged.is_loss_unobservable(epoch, self.history.now())
        {
            found.extend(judged.check_announced(&queue, epoch, program, address, |index, step| {
                self.drains.check_drained(cluster.as_ref()?, &queue.entries.get(&index)?.value, step)
            }));
        }
        self.note_running(&mut judged, revision, found, address)
    }

    /// Keeps the violations, and the command as running.
    fn note_running(
        &self,
        judged: &mut JudgedRepairs,
        revision: i64,
        found: Vec<Violation>,
        address: &str,
    ) -> RunningCommand {
        for violation in found {
            self.history.note("repairs", &violation);
            judged.found.push((-revision, violation));
        }
        judged.running.push(address.to_owned());
        RunningCommand { judge: self.clone(), address: address.to_owned(), ended: false }
    }
}

/// A running command. The drop counts it as cut off unless `ended` is set.
pub struct RunningCommand {
    judge: RepairJudge,
    address: String,
    ended: bool,
}

impl Drop for RunningCommand {
    fn drop(&mut self) {
        let mut judged = self.judge.judged.lock().unwrap();
        if let Some(at) = judged.running.iter().position(|address| *address == self.address) {
            judged.running.remove(at);
        }
        judged.counts.cut_off += u64::from(!self.ended);
    }
}

/// The host of an instance, whose commands with an effect are judged.
pub struct JudgedHost {
    pub host: SimulatedHost,
    pub judge: RepairJudge,
    /// Source of the judge's reads.
    pub store: StoreProcess,
    /// The instance, and the receiver of the facts about it.
    pub fact_sink: (String, Facts),
}

/// A command whose beginning was reported as a fact. The drop reports its end, without success if it was cut off.
struct AnnouncedCommand {
    facts: Facts,
    instance: String,
    command: Command,
    address: String,
    good: bool,
    ended: bool,
}

impl AnnouncedCommand {
    fn begin((instance, facts): &(String, Facts), command: Command, address: &str) -> Self {
        let (instance, address) = (instance.clone(), address.to_owned());
        facts.report(&Fact::Began { instance: instance.clone(), command, address: address.clone() });
        Self { facts: facts.clone(), instance, command, address, good: false, ended: false }
    }
}

impl Drop for AnnouncedCommand {
    fn drop(&mut self) {
        // A health check that was cut off has no result.
        if self.command == Command::HealthCheck && !self.ended {
            return;
        }
        let Self { instance, command, address, good, .. } = self;
        let (instance, address) = (std::mem::take(instance), std::mem::take(address));
        self.facts.report(&Fact::Ended { instance, command: *command, address, good: *good });
    }
}

#[async_trait]
impl Host for JudgedHost {
    async fn run(&self, permit: &Permit, command: HostCommand) -> Result<HostOutcome, HostError> {
        permit.check(tokio::time::Instant::now())?;
        self.fact_sink.1.note_permit(&self.fact_sink.0, permit, &self.store);
        let (program, address) = (command.words[0].clone(), command.words.last().cloned().unwrap());
        let exited = |result: &Result<HostOutcome, HostError>| {
            result.as_ref().is_ok_and(|outcome| outcome.end == HostEnd::Exited { code: 0 })
        };
        if program == BOOT_CHECK {
            // The last word is the time since which the node should have booted.
            let node = command.words.get(1).map_or("", String::as_str);
            if !self.judge.awaits_boot(node) {
                self.judge.note_action(format!("{program} {node}"));
            }
            return self.host.run(permit, command).await;
        }
        if program == REBOOT {
            let mut acting = self.judge.begin_reboot(&self.store, permit, &address).await;
            let result = self.host.run(permit, command).await;
            acting.ended = true;
            return result;
        }
        if program == HEALTH_CHECK {
            if self.judge.count_unfinished() == 0 {
                self.judge.note_action(format!("{program} {address}"));
            }
            let mut announced = AnnouncedCommand::begin(&self.fact_sink, Command::HealthCheck, &address);
            let result = self.host.run(permit, command).await;
            let says = |outcome: &HostOutcome| outcome.stdout.trim() == "true";
            announced.good = exited(&result) && result.as_ref().is_ok_and(says);
            announced.ended = true;
            return result;
        }
        let mut acting = self.judge.begin_command(&self.store, permit, &program, &address).await;
        let kind = if program == RESET { Command::Repair } else { Command::Success };
        let mut announced = AnnouncedCommand::begin(&self.fact_sink, kind, &address);
        let result = self.host.run(permit, command).await;
        (acting.ended, announced.good) = (true, exited(&result));
        result
    }
}

#[cfg(test)]
mod tests;
