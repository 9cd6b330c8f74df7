//! Property tests of the repair queue: properties that hold after every step of random fleets, queues, clocks, faults
//! and foreign writes.

use std::collections::{BTreeMap, BTreeSet};

use madako_domain::invariants::repair::{
    check_one_api_server, check_one_repair_a_machine, check_records, is_active,
};
use madako_domain::keys;
use madako_domain::reboot::RebootStatus;
use madako_domain::repair::command::{CommandEnd, CommandOutcome};
use madako_domain::repair::{RepairQueueEntry, RepairStatus, RepairStepStatus};
use madako_domain::state::ClusterState;
use proptest::collection::vec;
use proptest::prelude::{Just, ProptestConfig, Strategy, any, prop_oneof};
use proptest::{prop_assert, prop_assert_eq, proptest};
use time::{Duration, OffsetDateTime};

use crate::next_action::{Action, BlockedBy, Failure, NextAction};
use crate::pass::{Drain, Health, LeaderState, View, config, next_actions, nodes_of_queue};
use crate::racks::HeldBack;
use crate::testing::{NOW, REPAIR, Store, queued};
use crate::transition::{self, Transition};

const CONTROL_PLANE: [&str; 3] = ["a", "b", "c"];
const WORKERS: [&str; 3] = ["w", "x", "y"];
const MACHINES: [&str; 7] = ["a", "b", "c", "w", "x", "y", "outside"];
const OPERATIONS: [&str; 4] = ["unreachable", "plain", "empty", "missing"];

const FEWER: &str = r#"{"max_concurrent_repairs": 1, "repair_procedures": [{"machine_types": ["t"], "repair_operations": [
    {"operation": "unreachable", "health_check_command": ["check"],
     "repair_steps": [{"repair_command": ["reset"], "watch_seconds": 50}]},
    {"operation": "plain", "health_check_command": ["check"], "repair_steps": []}]}]}"#;

/// An event of the world. Numbers select among existing objects.
#[derive(Debug, Clone)]
enum Happening {
    /// A reconcile pass that performs the first due action.
    Pass,
    /// Time passes, or the clock is set back.
    Clock(i64),
    Add(usize, usize),
    Delete(usize),
    Health(usize, Option<bool>),
    Drain(usize, u8),
    /// The running command ends.
    Ends(u8),
    /// The leader dies with its command and its memory.
    Dies,
    Disable(bool),
    Hold(usize, bool),
    /// Kubernetes is configured, or no longer.
    Kubernetes(bool),
    /// The first reports are awaited, or no longer.
    Awaited(bool),
    Reboot(usize, bool),
    /// `ckecli` writes back an entry that it read earlier.
    Overwrite(usize, usize),
    Configure(bool, bool),
}

fn happening() -> impl Strategy<Value = Happening> {
    let any_index = 0..8_usize;
    prop_oneof![
        12 => Just(Happening::Pass),
        3 => (1..400_i64).prop_map(Happening::Clock),
        1 => (-3_700..3_700_i64).prop_map(Happening::Clock),
        3 => (0..MACHINES.len(), 0..OPERATIONS.len()).prop_map(|(machine, what)| Happening::Add(machine, what)),
        1 => any_index.clone().prop_map(Happening::Delete),
        3 => (0..MACHINES.len(), any::<Option<bool>>()).prop_map(|(machine, health)| Happening::Health(machine, health)),
        3 => (any_index.clone(), 0..5_u8).prop_map(|(index, how)| Happening::Drain(index, how)),
        4 => (0..4_u8).prop_map(Happening::Ends),
        1 => Just(Happening::Dies),
        1 => any::<bool>().prop_map(Happening::Disable),
        1 => (0..MACHINES.len(), any::<bool>()).prop_map(|(machine, held)| Happening::Hold(machine, held)),
        1 => (0..MACHINES.len(), any::<bool>()).prop_map(|(machine, is)| Happening::Reboot(machine, is)),
        1 => any::<bool>().prop_map(Happening::Kubernetes),
        1 => any::<bool>().prop_map(Happening::Awaited),
        2 => (any_index, 0..40_usize).prop_map(|(index, age)| Happening::Overwrite(index, age)),
        1 => (any::<bool>(), any::<bool>()).prop_map(|(steps, nodes)| Happening::Configure(steps, nodes)),
    ]
}

struct World {
    store: Store,
    now: OffsetDateTime,
    live: LeaderState,
    health: BTreeMap<&'static str, bool>,
    held: HeldBack,
    /// The running command: entry and record.
    running: Option<(i64, i64)>,
    /// Every started repair command: create revision of the entry, and step.
    started: BTreeSet<(i64, u32)>,
    /// Every started success command, by create revision of the entry.
    celebrated: BTreeSet<i64>,
    past: BTreeMap<i64, Vec<RepairQueueEntry>>,
    deleted: BTreeSet<i64>,
    /// A foreign client wrote entries: conflicts between entries are not this system's.
    spoiled: bool,
}

impl World {
    fn new() -> Self {
        Self {
            store: Store::new(&CONTROL_PLANE, &WORKERS),
            now: NOW,
            live: LeaderState { host: true, kubernetes: true, ..LeaderState::default() },
            health: BTreeMap::new(),
            held: HeldBack::default(),
            running: None,
            started: BTreeSet::new(),
            celebrated: BTreeSet::new(),
            past: BTreeMap::new(),
            deleted: BTreeSet::new(),
            spoiled: false,
        }
    }

    fn next_actions(&mut self) -> Vec<NextAction> {
        let state = self.store.state();
        let known = |address: &str| {
            let healthy = *self.health.get(address)?;
            Some(if healthy { Health::Healthy } else { Health::Unhealthy })
        };
        let entries = state.repair.entries.iter();
        self.live.health =
            entries.filter_map(|(index, item)| Some((*index, known(&item.value.address)?))).collect();
        let nodes = nodes_of_queue(state.cluster.as_ref().map(|cluster| &*cluster.value), &state.repair);
        let config = config(&state);
        next_actions(&View {
            queue: &state.repair,
            nodes: &nodes,
            config: config.as_ref().map(|config| *config),
            held: &self.held,
            live: &self.live,
            now: self.now,
        })
    }

    /// The shell's work in one pass.
    fn pass(&mut self) {
        let state = self.store.state();
        let runs = self.running.map(|(_, record)| record);
        if let Some(change) = transition::cancel_unfinished(&state.repair, runs, self.now) {
            assert!(self.store.commit(&change));
            return;
        }
        let actions = self.next_actions();
        let Some((index, next)) = actions.iter().find_map(|it| Some((it.index, it.due()?.clone()))) else {
            if let Some(change) = transition::forget_kept_state(&state.repair) {
                assert!(self.store.commit(&change));
            }
            return;
        };
        self.may_begin(&state, index, &next);
        let created = state.repair.entries[&index].created;
        let transition = Transition::new(&state, index, "node", self.now).expect("it is there");
        let change = match next {
            Action::Nothing => unreachable!("it is never due"),
            Action::Remove => transition.remove(),
            Action::Restore => transition.restore().expect("something is missing in it"),
            Action::Succeed { command: false } => transition.finish(RepairStatus::Succeeded, 0, "healthy"),
            Action::Succeed { command: true } => {
                assert!(self.celebrated.insert(created), "the success command runs twice");
                let (change, record) = transition.finish_with_command();
                self.running = Some((index, record));
                change
            }
            Action::Fail(Failure::NoStepLeft { step } | Failure::NoCommand { step }) => {
                transition.finish(RepairStatus::Failed, step, "no step")
            }
            Action::Drain { step } => transition.drain(step),
            Action::Abandon(why) => transition.abandon(&why.to_string(), 0.5),
            Action::Execute { step } => {
                assert!(self.started.insert((created, step)), "step {step} of entry {index} runs twice");
                assert!(!state.repair.disabled, "a command runs in a disabled queue");
                assert!(
                    !self.held.racks.contains_key(&state.repair.entries[&index].value.address),
                    "a command runs in a rack that is held"
                );
                let (change, record) = transition.execute(step);
                assert!(self.running.is_none(), "two commands at once");
                self.running = Some((index, record));
                change
            }
        };
        assert!(self.store.commit(&change), "no other client wrote");
        let drained = self.store.state();
        self.live
            .drains
            .retain(|index, _| drained.repair.entries.get(index).is_some_and(|item| is_active(&item.value)));
    }

    /// True if a drain, a command or a health watch is under way for an entry.
    fn is_under_way(&self, state: &ClusterState, entry: &RepairQueueEntry) -> bool {
        if !is_active(entry) {
            return false;
        }
        let config = state.repair_config.as_ref().expect("every configuration here is readable");
        let watch = config
            .operation_for(entry)
            .ok()
            .and_then(|it| it.step(entry.step))
            .map_or(Duration::ZERO, |step| step.watch.try_into().expect("none is that long"));
        let since = entry.last_transition_time.unwrap_or(OffsetDateTime::UNIX_EPOCH);
        let runs = self.running.is_some_and(|(index, _)| index == entry.index);
        runs || entry.step_status == RepairStepStatus::Draining
            || (!watch.is_zero() && since + watch >= self.now)
    }

    /// Asserts that no step begins beyond the slots or while the first reports are awaited.
    fn may_begin(&self, state: &ClusterState, index: i64, next: &Action) {
        if !matches!(next, Action::Drain { .. } | Action::Execute { .. }) {
            return;
        }
        let entries = &state.repair.entries;
        assert!(self.live.reports_awaited.is_none(), "entry {index} begins before the reports");
        if self.is_under_way(state, &entries[&index].value) {
            return;
        }
        let others = entries.values().filter(|item| self.is_under_way(state, &item.value)).count();
        let maximum = state.repair_config.as_ref().expect("it is readable").max_concurrent as usize;
        assert!(others < maximum, "entry {index} begins beside {others} others");
    }

    /// Checks that an entry waits for a slot only while all slots belong to entries that proceed or will do so by
    /// themselves.
    fn lost_slots(&mut self) -> Option<String> {
        let actions = self.next_actions();
        let state = self.store.state();
        let maximum = actions.iter().find_map(|action| match &action.blocked_by {
            Some(BlockedBy::Slots { maximum }) => Some(*maximum as usize),
            _ => None,
        })?;
        let works = |action: &&NextAction| {
            let does = matches!(
                action.action,
                Action::Drain { .. } | Action::Execute { .. } | Action::Abandon(_) | Action::Fail(_)
            );
            let celebrates = matches!(action.blocked_by, Some(BlockedBy::SuccessCommandRuns { .. }));
            // The machine recovered during a drain or watch: the next write frees the slot.
            let ends = matches!(action.action, Action::Succeed { .. })
                && self.is_under_way(&state, &state.repair.entries[&action.index].value);
            (does || celebrates || ends)
                && action.blocked_by.as_ref().is_none_or(BlockedBy::is_part_of_every_repair)
        };
        let working = actions.iter().filter(works).count();
        (working < maximum).then(|| format!("{working} of {maximum} slots are used: {actions:?}"))
    }

    fn happens(&mut self, happening: &Happening) {
        let entries: Vec<(i64, RepairQueueEntry)> = {
            let state = self.store.state();
            state.repair.entries.iter().map(|(index, item)| (*index, item.value.clone())).collect()
        };
        let chosen = |number: usize| entries.get(number).cloned();
        match happening {
            Happening::Pass => self.pass(),
            Happening::Clock(seconds) => self.now += Duration::seconds(*seconds),
            Happening::Add(machine, operation) => {
                let index = i64::try_from(self.past.len()).unwrap();
                let entry = queued(index, MACHINES[*machine], OPERATIONS[*operation]);
                self.past.insert(index, Vec::new());
                self.store.entry(&entry);
            }
            Happening::Delete(number) => {
                if let Some((index, entry)) = chosen(*number) {
                    self.deleted.insert(index);
                    self.store.entry(&RepairQueueEntry { deleted: true, ..entry });
                }
            }
            Happening::Health(machine, health) => {
                self.health.remove(MACHINES[*machine]);
                self.health.extend(health.map(|health| (MACHINES[*machine], health)));
            }
            Happening::Drain(number, how) => {
                if let Some((index, _)) = chosen(*number) {
                    let drain = match how {
                        0 => Drain::Runs { waits: None },
                        1 => Drain::Done,
                        2 => Drain::Unseen { until: self.now + Duration::seconds(60) },
                        3 => Drain::Undone {
                            until: self.now + Duration::seconds(60),
                            waits: "a pod".to_owned(),
                        },
                        _ => Drain::Failed { why: "refused".to_owned() },
                    };
                    self.live.drains.insert(index, drain);
                }
            }
            Happening::Ends(how) => {
                let Some((index, record)) = self.running.take() else { return };
                let how = match how {
                    0 => CommandOutcome::Failed,
                    1 => CommandOutcome::Unknown,
                    2 => CommandOutcome::Stopped,
                    _ => CommandOutcome::Succeeded,
                };
                let end = CommandEnd { how, text: "ended".to_owned() };
                let state = self.store.state();
                let change = transition::end_command(&state, index, record, &end, self.now);
                assert!(self.store.commit(&change.expect("the record has not ended")));
            }
            Happening::Dies => {
                self.running = None;
                self.live.drains.clear();
            }
            Happening::Disable(disabled) => {
                self.store.text(keys::REPAIRS_DISABLED, if *disabled { "true" } else { "false" });
            }
            Happening::Hold(machine, held) => {
                self.held.racks.remove(MACHINES[*machine]);
                if *held {
                    self.held.racks.insert(MACHINES[*machine].to_owned(), "3".to_owned());
                }
            }
            Happening::Kubernetes(is) => self.live.kubernetes = *is,
            Happening::Awaited(is) => {
                self.live.reports_awaited = is.then(|| self.now + Duration::seconds(180));
            }
            Happening::Reboot(machine, is) => {
                // CKE does not begin a reboot of an API server while another is under repair.
                let state = self.store.state();
                let free = state.repair.entries.values().all(|item| !is_active(&item.value));
                let status = if *is && free { RebootStatus::Draining } else { RebootStatus::Queued };
                self.store.reboot(0, MACHINES[*machine], status);
            }
            Happening::Overwrite(number, age) => {
                let Some((index, entry)) = chosen(*number) else { return };
                let past = &self.past[&index];
                let Some(older) = past.len().checked_sub(*age + 1).map(|at| past[at].clone()) else { return };
                self.spoiled = true;
                self.store.entry(&RepairQueueEntry { deleted: entry.deleted, ..older });
            }
            Happening::Configure(steps, nodes) => {
                let repair = if *steps { FEWER } else { REPAIR };
                let workers = if *nodes { &WORKERS[..1] } else { &WORKERS[..] };
                self.store.configure(&CONTROL_PLANE, workers, repair);
            }
        }
    }

    fn remember(&mut self) {
        let state = self.store.state();
        for (index, item) in &state.repair.entries {
            let past = self.past.entry(*index).or_default();
            if past.last() != Some(&item.value) {
                past.push(item.value.clone());
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, max_shrink_time: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn invariants_hold_after_any_sequence_of_events(happenings in vec(happening(), 1..160)) {
        let mut world = World::new();
        for happening in &happenings {
            world.happens(happening);
            world.remember();
            let state = world.store.state();
            let cluster = state.cluster.as_ref().map(|cluster| &*cluster.value);
            if !world.spoiled {
                prop_assert_eq!(check_one_repair_a_machine(&state.repair), []);
                prop_assert_eq!(check_one_api_server(&state.repair, cluster), None);
            }
            prop_assert_eq!(check_records(&state.repair), []);
            prop_assert_eq!(world.lost_slots(), None);
            // I9: an entry disappears only on request.
            for index in world.past.keys() {
                let there = state.repair.entries.contains_key(index);
                prop_assert!(there || world.deleted.contains(index), "entry {} is lost", index);
            }
        }
    }

    #[test]
    fn after_recovery_every_entry_ends_or_names_its_obstacle_and_writes_stop(
        happenings in vec(happening(), 1..120),
    ) {
        let mut world = World::new();
        for happening in &happenings {
            world.happens(happening);
            world.remember();
        }
        world.happens(&Happening::Disable(false));
        world.happens(&Happening::Configure(false, false));
        world.happens(&Happening::Reboot(0, false));
        world.happens(&Happening::Kubernetes(true));
        world.happens(&Happening::Awaited(false));
        world.held.racks.clear();
        world.health = MACHINES.iter().map(|machine| (*machine, false)).collect();
        for _ in 0..200 {
            world.happens(&Happening::Ends(3));
            for index in world.past.keys().copied().collect::<Vec<_>>() {
                world.live.drains.insert(index, Drain::Done);
            }
            world.happens(&Happening::Pass);
            world.happens(&Happening::Pass);
            world.happens(&Happening::Clock(60));
        }
        let revision = world.store.revision;
        for action in world.next_actions() {
            let ended = action.action == Action::Nothing;
            let waits = action.blocked_by.as_ref().is_some_and(|blocked_by| blocked_by.name() == "missing");
            prop_assert!(ended || waits, "{:?}", action);
        }
        for _ in 0..20 {
            world.happens(&Happening::Pass);
        }
        prop_assert_eq!(world.store.revision, revision, "I12");
    }
}
