//! The state of the service and its surroundings, computed from the facts observed so far.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use madako_domain::cluster::Cluster;
use madako_domain::constraints::Constraints;
use madako_domain::keys;
use madako_domain::record::Record;
use madako_domain::repair::hold::Hold;
use madako_domain::repair::{RepairQueueEntry, RepairStatus, RepairStepStatus};
use madako_domain::status::{OperationPhase, ServerStatus};
use serde::de::DeserializeOwned;
use serde_json::Value as Json;

use crate::fact::{Change, Command, Fact, FactTime, FaultPlace, MachineReport, RegistryQuestion};

/// Remembered answers of the registry: a quarter of an hour with two requests a minute.
const ANSWERS: usize = 32;

/// Prefix of placement's clusters.
const CLUSTERS: &str = "/kubernetes/clusters/";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoredValue {
    pub(crate) bytes: Arc<[u8]>,
    pub(crate) created: i64,
    pub(crate) modified: i64,
    /// Time of the last change of the value.
    pub(crate) since: FactTime,
}

impl StoredValue {
    pub(crate) fn read<T: DeserializeOwned>(&self) -> Option<T> {
        serde_json::from_slice(&self.bytes).ok()
    }
}

/// A key that a revision wrote, with its values before and after.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WrittenKey {
    pub(crate) key: String,
    pub(crate) before: Option<StoredValue>,
    pub(crate) after: Option<StoredValue>,
}

impl WrittenKey {
    /// The values before and after as `T`.
    pub(crate) fn read<T: DeserializeOwned>(&self) -> (Option<T>, Option<T>) {
        (self.before.as_ref().and_then(StoredValue::read), self.after.as_ref().and_then(StoredValue::read))
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Leader {
    pub(crate) instance: String,
    pub(crate) epoch: i64,
    pub(crate) since: FactTime,
}

#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) at: FactTime,
    pub(crate) instance: String,
    pub(crate) question: RegistryQuestion,
    pub(crate) machines: Arc<Vec<MachineReport>>,
}

impl Answer {
    pub(crate) fn machine_at(&self, address: &str) -> Option<&MachineReport> {
        self.machines.iter().find(|machine| machine.address == address)
    }
}

/// A step of a repair in the cluster configuration.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct RepairStepRule {
    pub(crate) watch: Duration,
}

/// The repair section of the cluster configuration.
#[derive(Debug, Clone, Default)]
pub(crate) struct RepairRules {
    pub(crate) max_concurrent: u64,
    steps: BTreeMap<(String, String), Vec<RepairStepRule>>,
}

impl RepairRules {
    /// Does not use the service's own reader, which may be at fault.
    fn read(cluster: &StoredValue) -> Self {
        let repair = cluster.read::<Json>().unwrap_or_default()["repair"].take();
        let list = |value: &Json| value.as_array().cloned().unwrap_or_default();
        let text = |value: &Json| value.as_str().unwrap_or_default().to_owned();
        let mut steps = BTreeMap::new();
        for procedure in list(&repair["repair_procedures"]) {
            for operation in list(&procedure["repair_operations"]) {
                let read = |step: &Json| RepairStepRule {
                    watch: Duration::from_secs(step["watch_seconds"].as_u64().unwrap_or(0)),
                };
                let all: Vec<RepairStepRule> = list(&operation["repair_steps"]).iter().map(read).collect();
                for machine_type in list(&procedure["machine_types"]) {
                    steps.insert((text(&machine_type), text(&operation["operation"])), all.clone());
                }
            }
        }
        Self { max_concurrent: repair["max_concurrent_repairs"].as_u64().unwrap_or(1), steps }
    }

    /// `None`: the entry's operation is unknown.
    pub(crate) fn steps_of_entry(&self, entry: &RepairQueueEntry) -> Option<&[RepairStepRule]> {
        self.steps.get(&(entry.machine_type.clone(), entry.operation.clone())).map(Vec::as_slice)
    }
}

#[derive(Debug, Clone)]
pub(crate) struct QueueItem {
    pub(crate) entry: RepairQueueEntry,
    pub(crate) since: FactTime,
    /// The step whose command was announced last, and the time of that.
    pub(crate) commanded: Option<(u32, FactTime)>,
}

/// A drain or command that a revision begins for an entry of the repair queue.
#[derive(Debug, Clone)]
pub(crate) struct BegunWork {
    pub(crate) entry: RepairQueueEntry,
    pub(crate) before: RepairQueueEntry,
    /// [`QueueItem::commanded`] before the revision.
    pub(crate) commanded: Option<(u32, FactTime)>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PlacedCluster {
    pub(crate) state: String,
    pub(crate) metrics: BTreeSet<String>,
    pub(crate) deleted: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct FaultState {
    holds: u32,
    of_clock: u32,
    changed: FactTime,
    clock_changed: Option<FactTime>,
    /// Beginning of the first fault of those that hold now.
    since: FactTime,
}

#[derive(Default)]
pub(crate) struct ObservedWorld {
    pub(crate) values: BTreeMap<String, StoredValue>,
    pub(crate) cluster: Option<Cluster>,
    pub(crate) rules: RepairRules,
    pub(crate) entries: BTreeMap<i64, QueueItem>,
    pub(crate) leader: Option<Leader>,
    pub(crate) answers: VecDeque<Answer>,
    /// Running commands by address and purpose, each with its beginning.
    pub(crate) running: BTreeMap<(String, Command), FactTime>,
    pub(crate) placed: BTreeMap<String, PlacedCluster>,
    pub(crate) begun: Vec<BegunWork>,
    /// For each key of placement, the revisions that wrote it.
    pub(crate) versions: BTreeMap<String, Vec<i64>>,
    /// The nodes that do not answer, each with the time since which.
    pub(crate) silent: BTreeMap<String, FactTime>,
    troubles: BTreeMap<FaultPlace, FaultState>,
    leaderless_since: Option<FactTime>,
    /// Durations of the faults of a place, or of the time without a leader, that the last fact ended.
    pub(crate) pauses: Vec<Duration>,
}

impl ObservedWorld {
    /// Takes in a fact. Returns the keys that it wrote.
    pub(crate) fn observe(&mut self, at: FactTime, fact: &Fact) -> Vec<WrittenKey> {
        self.begun.clear();
        self.pauses.clear();
        match fact {
            Fact::Stored { revision, changes } => return self.take_revision(at, *revision, changes),
            Fact::Answered { instance, question, machines } => {
                if self.answers.len() == ANSWERS {
                    self.answers.pop_front();
                }
                let (instance, machines) = (instance.clone(), Arc::clone(machines));
                self.answers.push_back(Answer { at, instance, question: *question, machines });
            }
            Fact::Began { command, address, .. } => {
                self.running.insert((address.clone(), *command), at);
            }
            Fact::Ended { command, address, .. } => {
                self.running.remove(&(address.clone(), *command));
            }
            Fact::Silent(silent) => self.silent.clone_from(silent),
            Fact::Troubled { place, clock, begins } => {
                let trouble = self.troubles.entry(place.clone()).or_default();
                let held = trouble.holds + trouble.of_clock > 0;
                let count = if *clock { &mut trouble.of_clock } else { &mut trouble.holds };
                *count = if *begins { *count + 1 } else { count.saturating_sub(1) };
                if *clock {
                    trouble.clock_changed = Some(at);
                } else {
                    trouble.changed = at;
                }
                match (held, trouble.holds + trouble.of_clock > 0) {
                    (false, true) => trouble.since = at,
                    (true, false) => self.pauses.push(at.saturating_sub(trouble.since)),
                    _ => {}
                }
            }
            _ => {}
        }
        Vec::new()
    }

    fn take_revision(&mut self, at: FactTime, revision: i64, changes: &[Change]) -> Vec<WrittenKey> {
        let mut written = Vec::with_capacity(changes.len());
        for Change { key, value } in changes {
            let before = self.values.remove(key);
            let created = before.as_ref().map_or(revision, |before| before.created);
            let after = value.as_ref().map(|bytes| StoredValue {
                bytes: Arc::clone(bytes),
                created,
                modified: revision,
                since: at,
            });
            if let Some(after) = &after {
                self.values.insert(key.clone(), after.clone());
            }
            if key.starts_with('/') {
                self.versions.entry(key.clone()).or_default().push(revision);
            }
            written.push(WrittenKey { key: key.clone(), before, after });
        }
        for WrittenKey { key, after, .. } in &written {
            if key == keys::CLUSTER {
                self.cluster = after.as_ref().and_then(StoredValue::read);
                self.rules = after.as_ref().map(RepairRules::read).unwrap_or_default();
            } else if key.starts_with(CLUSTERS) {
                match after.as_ref().and_then(StoredValue::read::<Json>) {
                    Some(cluster) => drop(self.placed.insert(key.clone(), read_placed_cluster(&cluster))),
                    None => drop(self.placed.remove(key)),
                }
            }
        }
        if written.iter().any(|written| written.key.starts_with(keys::LEADER)) {
            self.update_leader(at);
        }
        self.record_repair_writes(at, &written);
        written
    }

    fn update_leader(&mut self, at: FactTime) {
        let keys = self.values.range(keys::LEADER.to_owned()..);
        let candidates = keys.take_while(|(key, _)| key.starts_with(keys::LEADER));
        let oldest = candidates.min_by_key(|(_, value)| value.created);
        let leader = oldest.map(|(_, value)| Leader {
            instance: String::from_utf8_lossy(&value.bytes).into_owned(),
            epoch: value.created,
            since: at,
        });
        let same = |leader: &Leader| self.leader.as_ref().is_some_and(|old| old.epoch == leader.epoch);
        if leader.as_ref().is_some_and(same) {
            return;
        }
        self.leader = leader;
        match self.leader {
            None => self.leaderless_since = self.leaderless_since.or(Some(at)),
            Some(_) => self.pauses.extend(self.leaderless_since.take().map(|since| at.saturating_sub(since))),
        }
    }

    fn record_repair_writes(&mut self, at: FactTime, written: &[WrittenKey]) {
        // The beginning has its own record: complete for a drain, unfinished for a command.
        let begins = |record: Record| match &*record.operation {
            "repair-execute" if record.is_unfinished() => Some((RepairStepStatus::Watching, record)),
            "repair-drain-start" => Some((RepairStepStatus::Draining, record)),
            _ => None,
        };
        let begun = written
            .iter()
            .filter(|written| written.key.starts_with(keys::RECORDS) && written.before.is_none())
            .find_map(|written| written.read::<Record>().1.and_then(begins));
        for written in written.iter().filter(|written| written.key.starts_with(keys::REPAIRS)) {
            let (before, after) = written.read::<RepairQueueEntry>();
            let Some(entry) = after else {
                if let Some(before) = before {
                    self.entries.remove(&before.index);
                }
                continue;
            };
            let same = written.before.is_some();
            let old = self.entries.get(&entry.index).filter(|_| same).cloned();
            let mut commanded = old.as_ref().and_then(|old| old.commanded);
            if let (Some((step_status, record)), Some(before)) = (&begun, before)
                && entry.step_status == *step_status
                && record.targets.contains(&entry.address)
            {
                self.begun.push(BegunWork { entry: entry.clone(), before, commanded });
                if *step_status == RepairStepStatus::Watching {
                    commanded = Some((entry.step, at));
                }
            }
            let stays = |old: &QueueItem| {
                (&old.entry.status, &old.entry.step_status, old.entry.step)
                    == (&entry.status, &entry.step_status, entry.step)
            };
            let since = old.as_ref().filter(|old| stays(old)).map_or(at, |old| old.since);
            self.entries.insert(entry.index, QueueItem { entry, since, commanded });
        }
    }

    /// The time since which the switch is on; `None`: off.
    pub(crate) fn switched_on_since(&self, key: &str) -> Option<FactTime> {
        self.values.get(key).filter(|value| &*value.bytes == b"true").map(|value| value.since)
    }

    pub(crate) fn current_constraints(&self) -> Constraints {
        self.values.get(keys::CONSTRAINTS).and_then(StoredValue::read).unwrap_or_default()
    }

    /// True if an operation on nodes is due, by the leader's phase: plans and repairs wait for it.
    pub(crate) fn is_operation_due(&self) -> bool {
        use OperationPhase::{
            EtcdBoot, EtcdMaintain, EtcdStart, EtcdWait, K8sMaintain, K8sStart, Rivers, StopControlPlane,
            Upgrade,
        };
        let status = self.values.get(keys::STATUS).and_then(StoredValue::read::<ServerStatus>);
        let is_due = |status: ServerStatus| {
            matches!(
                status.phase,
                Upgrade
                    | Rivers
                    | EtcdBoot
                    | EtcdStart
                    | EtcdWait
                    | EtcdMaintain
                    | K8sStart
                    | K8sMaintain
                    | StopControlPlane
            )
        };
        status.is_some_and(is_due)
    }

    pub(crate) fn holds_a_rack(&self) -> bool {
        let holds = self.values.range(keys::REPAIR_HOLDS.to_owned()..);
        let mut holds = holds.take_while(|(key, _)| key.starts_with(keys::REPAIR_HOLDS));
        holds.any(|(_, value)| value.read::<Hold>().is_none_or(|hold| hold.is_held()))
    }

    pub(crate) fn last_answer(&self, instance: &str, question: RegistryQuestion) -> Option<&Answer> {
        let of = |answer: &&Answer| answer.question == question && answer.instance == instance;
        self.answers.iter().rev().find(of)
    }

    /// The leader's last observation of the machines.
    pub(crate) fn last_machine_answer(&self) -> Option<&Answer> {
        self.last_answer(&self.leader.as_ref()?.instance, RegistryQuestion::Machines)
    }

    /// True if the place has a fault, or had one since the given time.
    pub(crate) fn is_troubled(&self, place: &FaultPlace, since: FactTime) -> bool {
        let troubled = |trouble: &FaultState| {
            trouble.holds > 0 || trouble.changed >= since && trouble.changed > FactTime::ZERO
        };
        self.troubles.get(place).is_some_and(troubled)
    }

    /// Time of the last beginning or end of a fault of the place.
    pub(crate) fn note_trouble_change(&self, place: &FaultPlace) -> FactTime {
        self.troubles.get(place).map_or(FactTime::ZERO, |trouble| trouble.changed)
    }

    /// Time of the last beginning or end of a fault of any place.
    pub(crate) fn time_of_last_fault(&self) -> FactTime {
        self.troubles.values().map(|trouble| trouble.changed).max().unwrap_or(FactTime::ZERO)
    }

    /// [`ObservedWorld::is_troubled`] for the leader and the store; true as well if the leader changed since.
    pub(crate) fn is_leading_troubled(&self, since: FactTime) -> bool {
        let leader = |leader: &Leader| {
            leader.since > since || self.is_troubled(&FaultPlace::Instance(leader.instance.clone()), since)
        };
        self.leader.as_ref().is_none_or(leader) || self.is_troubled(&FaultPlace::Store, since)
    }

    /// True if the clock of an instance or of the registry is wrong, or was since the given time.
    pub(crate) fn is_clock_wrong(&self, since: FactTime) -> bool {
        let wrong = |trouble: &FaultState| {
            trouble.of_clock > 0 || trouble.clock_changed.is_some_and(|changed| changed >= since)
        };
        // A former leader may have written the judged value.
        let counts = |place: &FaultPlace| matches!(place, FaultPlace::Instance(_) | FaultPlace::Registry);
        self.troubles.iter().any(|(place, trouble)| counts(place) && wrong(trouble))
    }

    /// True if the leader, the store and the given places are free of faults now.
    pub(crate) fn is_quiet(&self, places: &[FaultPlace]) -> bool {
        let holds = |place: &FaultPlace| {
            self.troubles.get(place).is_some_and(|trouble| trouble.holds + trouble.of_clock > 0)
        };
        let leader = self.leader.as_ref().map(|leader| FaultPlace::Instance(leader.instance.clone()));
        leader.is_some_and(|leader| !holds(&leader))
            && !holds(&FaultPlace::Store)
            && !places.iter().any(holds)
    }

    /// True if every place has been free of faults since the given time.
    pub(crate) fn is_undisturbed(&self, since: FactTime) -> bool {
        self.troubles.keys().all(|place| !self.is_troubled(place, since))
    }

    /// True if the entry is in its drain, or in the watch after its command.
    pub(crate) fn is_under_way(&self, item: &QueueItem, at: FactTime, slack: Duration) -> bool {
        self.is_certainly_under_way(item) || self.watched_until(item).is_some_and(|(_, end)| end > at + slack)
    }

    /// True if the entry is under way whatever the clocks show: in its drain, or in its command.
    pub(crate) fn is_certainly_under_way(&self, item: &QueueItem) -> bool {
        let commands = || self.running.contains_key(&(item.entry.address.clone(), Command::Repair));
        item.entry.status == RepairStatus::Processing
            && match item.entry.step_status {
                RepairStepStatus::Draining => true,
                RepairStepStatus::Watching => commands(),
                _ => false,
            }
    }

    /// Beginning and end of the watch after the entry's command; `None`: it is not watched.
    pub(crate) fn watched_until(&self, item: &QueueItem) -> Option<(FactTime, FactTime)> {
        let QueueItem { entry, commanded, .. } = item;
        if entry.status != RepairStatus::Processing || entry.step_status != RepairStepStatus::Watching {
            return None;
        }
        let (step, since) = (*commanded)?;
        Some((since, since + self.rules.steps_of_entry(entry)?.get(step as usize)?.watch))
    }
}

fn read_placed_cluster(cluster: &Json) -> PlacedCluster {
    let metrics = cluster["spec"]["metrics"].as_array().cloned().unwrap_or_default();
    let names = metrics.iter().filter_map(|metric| metric["name"].as_str().map(str::to_owned));
    PlacedCluster {
        state: cluster["status"]["state"].as_str().unwrap_or_default().to_owned(),
        metrics: names.collect(),
        deleted: !cluster["metadata"]["deleted"].is_null(),
    }
}

/// True if a revision commits a plan: users write the cluster without the key of its reasons.
pub(crate) fn is_plan(written: &[WrittenKey]) -> bool {
    [keys::CLUSTER, keys::LAST_PLAN]
        .iter()
        .all(|key| written.iter().any(|written| written.key == *key && written.after.is_some()))
}

/// True if a revision changes an input of planning other than the cluster.
pub(crate) fn changes_planning_inputs(written: &[WrittenKey]) -> bool {
    let inputs = [
        keys::SABAKAN_TEMPLATE,
        keys::CONSTRAINTS,
        keys::SABAKAN_DISABLED,
        keys::SABAKAN_URL,
        keys::SABAKAN_VARIABLES,
    ];
    written.iter().any(|written| inputs.contains(&&*written.key))
}
