//! Properties that hold after every step of random queues, clocks, drains, boots, upgrades, repairs and writes of ckecli.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use madako_domain::invariants::repair::{check_one_api_server, is_active};
use madako_domain::keys;
use madako_domain::reboot::{RebootQueueEntry, RebootSettings, RebootStatus};
use madako_domain::repair::command::{CommandEnd, CommandOutcome};
use madako_domain::repair::queue::RepairQueue;
use madako_domain::state::ClusterState;
use proptest::collection::vec;
use proptest::prelude::{Just, ProptestConfig, Strategy, any, prop_oneof};
use proptest::{prop_assert, prop_assert_eq, proptest};
use time::OffsetDateTime;

use crate::explain::config;
use crate::next_action::{Action, NextAction};
use crate::pass::{Drain, Live, View, next_actions, nodes};
use crate::testing::{NOW, REBOOT, Store};
use crate::transition::{Transition, end_command};
use madako_domain::limits::BOOT_TIMEOUT;

const CONTROL_PLANE: [&str; 3] = ["a", "b", "c"];
const WORKERS: [&str; 4] = ["w", "x", "y", "z"];
const NODES: [&str; 8] = ["a", "b", "c", "w", "x", "y", "z", "outside"];
const SLOTS: usize = 2;
/// The constraint `maximum-unreachable-nodes-for-reboot`.
const MAXIMUM_UNREACHABLE: usize = 1;

/// An event of the world. Numbers select among existing objects.
#[derive(Debug, Clone)]
enum Happening {
    /// A pass that performs all due actions. The second number: ckecli cancels that entry between decision and commit.
    Pass(f64, Option<usize>),
    Clock(u64),
    Add(usize),
    /// The operation runner requests a drain.
    Upgrade(usize),
    /// The kubelet of a drained node is updated, and the entry removed.
    Updated(usize),
    Cancel(usize),
    Drain(usize, u8),
    Boots(usize),
    Disable(bool),
    /// A repair begins on a node, as far as the invariants of repairs allow.
    Repair(usize),
    RepairEnds,
    Etcd(bool),
    Unreachable(usize, bool),
    Release,
    Leaves(usize, bool),
}

fn happening() -> impl Strategy<Value = Happening> {
    let node = 0..NODES.len();
    prop_oneof![
        12 => (0.0..1.0_f64, proptest::option::weighted(0.1, 0..8_usize)).prop_map(|(draw, late)| Happening::Pass(draw, late)),
        3 => (1..900_u64).prop_map(Happening::Clock),
        5 => node.clone().prop_map(Happening::Add),
        3 => node.clone().prop_map(Happening::Upgrade),
        2 => (0..8_usize).prop_map(Happening::Updated),
        1 => (0..8_usize).prop_map(Happening::Cancel),
        6 => (0..8_usize, 0..4_u8).prop_map(|(entry, how)| Happening::Drain(entry, how)),
        4 => (0..8_usize).prop_map(Happening::Boots),
        1 => any::<bool>().prop_map(Happening::Disable),
        1 => node.clone().prop_map(Happening::Repair),
        2 => Just(Happening::RepairEnds),
        1 => any::<bool>().prop_map(Happening::Etcd),
        1 => (node, any::<bool>()).prop_map(|(node, is)| Happening::Unreachable(node, is)),
        1 => Just(Happening::Release),
        1 => (0..WORKERS.len(), any::<bool>()).prop_map(|(worker, is)| Happening::Leaves(worker, is)),
    ]
}

struct World {
    store: Store,
    live: Live,
    now: OffsetDateTime,
    next_index: i64,
    workers: BTreeSet<&'static str>,
    /// Reboot commands by the create revision of their entry.
    rebooted: BTreeMap<i64, u32>,
    cancelled: BTreeSet<i64>,
}

impl World {
    fn new() -> Self {
        let mut world = Self {
            store: Store::default(),
            live: Live { host: true, kubernetes: true, ..Live::default() },
            now: NOW,
            next_index: 0,
            workers: WORKERS.into(),
            rebooted: BTreeMap::new(),
            cancelled: BTreeSet::new(),
        };
        world.configure();
        world
    }

    fn configure(&mut self) {
        let workers: Vec<&str> = self.workers.iter().copied().collect();
        let reboot = REBOOT.replace('{', &format!("{{\"max_concurrent_reboots\": {SLOTS}, "));
        self.store.configure(&CONTROL_PLANE, &workers, &reboot);
    }

    fn actions(&self, state: &ClusterState) -> Vec<NextAction> {
        let nodes = nodes(state.cluster.as_ref().map(|cluster| &*cluster.value));
        let config = config(state);
        next_actions(&View {
            queue: &state.repair,
            nodes: &nodes,
            config: config.as_ref(),
            settings: RebootSettings::default(),
            maximum_unreachable: MAXIMUM_UNREACHABLE,
            live: &self.live,
            now: self.now,
        })
    }

    fn index(&self, number: usize) -> Option<i64> {
        let state = self.store.state();
        let count = state.repair.reboots.len();
        (count > 0).then(|| state.repair.reboots.keys().nth(number % count).copied())?
    }

    fn cancel(&mut self, index: i64) {
        let state = self.store.state();
        if let Some(item) = state.repair.reboots.get(&index) {
            self.store.entry(&RebootQueueEntry { status: RebootStatus::Cancelled, ..item.value.clone() });
            self.cancelled.insert(index);
        }
    }

    /// Decides once and performs each due action on that decision. Returns whether anything was committed.
    fn pass(&mut self, draw: f64, late: Option<usize>) -> bool {
        let state = self.store.state();
        let actions = self.actions(&state);
        if let Some(index) = late.and_then(|number| self.index(number)) {
            self.cancel(index);
        }
        let mut committed = false;
        for next in actions.iter().filter(|next| next.blocked_by.is_none()) {
            // Later changes of a pass are decided on the state after the earlier ones, as in the service.
            let present = self.store.state();
            let is_due = |due: &&NextAction| due.index == next.index && due.blocked_by.is_none();
            let again = self.actions(&present);
            let Some(again) = again.iter().find(is_due) else { continue };
            if again.action != next.action {
                continue;
            }
            let decided = if committed { &present } else { &state };
            let Some(transition) = Transition::new(decided, next.index, self.now) else { continue };
            let created = decided.repair.reboots[&next.index].created;
            let mut announced = None;
            let change = match &next.action {
                Action::Remove(removal) => transition.remove(*removal),
                Action::Drain => transition.drain(),
                Action::BackOff(why) => transition.back_off(&why.to_string(), draw),
                Action::Reboot => {
                    let (change, record) = transition.reboot();
                    announced = Some(record);
                    change
                }
                Action::LeaveToUpdate => transition.leave_to_update(),
                Action::AwaitBoot | Action::AwaitUpdate => continue,
            };
            if self.store.commit(&change) {
                if let Some(record) = announced {
                    let end = CommandEnd { how: CommandOutcome::Succeeded, text: String::new() };
                    let ended =
                        end_command(&self.store.state().repair, next.index, record, &end, self.now, 0.0)
                            .unwrap();
                    assert!(self.store.commit(&ended));
                }
                committed = true;
                self.live.drains.remove(&next.index);
                self.live.booted.remove(&next.index);
                if next.action == Action::Reboot {
                    *self.rebooted.entry(created).or_default() += 1;
                }
            }
        }
        committed
    }

    fn happen(&mut self, happening: &Happening) {
        match happening {
            Happening::Pass(draw, late) => {
                self.pass(*draw, *late);
            }
            Happening::Clock(seconds) => self.now += Duration::from_secs(*seconds),
            Happening::Add(node) => {
                self.store.reboot(self.next_index, NODES[*node], RebootStatus::Queued);
                self.next_index += 1;
            }
            Happening::Upgrade(node) => {
                self.store.reboot(-1 - self.next_index, NODES[*node], RebootStatus::Queued);
                self.next_index += 1;
            }
            Happening::Updated(number) => {
                if let Some(index) = self.index(*number)
                    && self.store.state().repair.reboots[&index].value.status == RebootStatus::Drained
                {
                    self.store.delete(&keys::reboot(index));
                }
            }
            Happening::Cancel(number) => {
                if let Some(index) = self.index(*number) {
                    self.cancel(index);
                }
            }
            Happening::Drain(number, how) => {
                let Some(index) = self.index(*number) else { return };
                let state = self.store.state();
                if state.repair.reboots[&index].value.status == RebootStatus::Draining {
                    let drain = match how {
                        0 | 1 => Drain::Done,
                        2 => Drain::Failed { why: "refused".to_owned() },
                        _ => Drain::Unreachable { pod: "a/b".to_owned() },
                    };
                    self.live.drains.insert(index, drain);
                }
            }
            Happening::Boots(number) => {
                if let Some(index) = self.index(*number)
                    && self.store.state().repair.reboots[&index].value.status == RebootStatus::Rebooting
                {
                    self.live.booted.insert(index);
                }
            }
            Happening::Disable(is) => self.store.text(keys::REBOOTS_DISABLED, &is.to_string()),
            Happening::Repair(node) => self.begin_repair(NODES[*node]),
            Happening::RepairEnds => self.store.delete(&keys::repair(0)),
            Happening::Etcd(is_good) => self.live.etcd = (!is_good).then(|| "down".to_owned()),
            Happening::Unreachable(node, true) => {
                self.live.unreachable.insert(NODES[*node].to_owned());
            }
            Happening::Unreachable(node, false) => {
                self.live.unreachable.remove(NODES[*node]);
            }
            Happening::Release => {
                let state = self.store.state();
                let all = state.repair.reboots.iter().map(|(index, item)| (*index, item.created));
                self.store.release(all.collect());
            }
            Happening::Leaves(worker, leaves) => {
                if *leaves {
                    self.workers.remove(WORKERS[*worker]);
                } else {
                    self.workers.insert(WORKERS[*worker]);
                }
                self.configure();
            }
        }
    }

    /// The repair queue begins no second control plane node, and no node that drains or reboots.
    fn begin_repair(&mut self, node: &str) {
        let state = self.store.state();
        let is_control_plane = |node: &str| CONTROL_PLANE.contains(&node);
        let busy = |(other, _): (&str, &RebootQueueEntry)| {
            other == node || (is_control_plane(other) && is_control_plane(node))
        };
        if !state.repair.entries.contains_key(&0) && !state.repair.rebooting_nodes().any(busy) {
            self.store.repair(0, node);
        }
    }

    /// Entries that hold a slot, and control plane nodes under way, of the cluster.
    fn under_way(&self, queue: &RepairQueue) -> (usize, usize) {
        let under_way = queue.reboots.values().map(|item| &item.value).filter(|entry| entry.is_under_way());
        let (mut workers, mut control_plane) = (0, 0);
        for entry in under_way {
            let since = entry.last_transition_time.unwrap();
            let overdue = entry.status == RebootStatus::Rebooting && since + BOOT_TIMEOUT < self.now;
            if CONTROL_PLANE.contains(&&*entry.node) {
                control_plane += 1;
            } else if self.workers.contains(&*entry.node) && !overdue {
                workers += 1;
            }
        }
        (workers, control_plane)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn reboots_keep_their_promises(happenings in vec(happening(), 1..80)) {
        let mut world = World::new();
        for happening in &happenings {
            let before = world.store.state();
            let (workers_before, control_before) = world.under_way(&before.repair);
            world.happen(happening);
            let state = world.store.state();
            let queue = &state.repair;

            // I8, over both queues.
            let cluster = state.cluster.as_ref().map(|cluster| &*cluster.value);
            prop_assert_eq!(check_one_api_server(queue, cluster), None);

            // A worker that returned to the cluster may exceed the slots; no pass adds one.
            let (workers, control_plane) = world.under_way(queue);
            prop_assert!(workers <= SLOTS.max(workers_before) || matches!(happening, Happening::Leaves(..)));
            if matches!(happening, Happening::Pass(..)) && (workers > workers_before || control_plane > control_before) {
                prop_assert!(workers == 0 || control_plane == 0, "workers and a control plane node at once");
            }

            // I15: no drain begins beyond the limit of unreachable nodes that do not reboot.
            let is_draining = |queue: &RepairQueue, index: &i64| {
                queue.reboots.get(index).is_some_and(|item| item.value.status == RebootStatus::Draining)
            };
            let begins = |index: &i64| is_draining(queue, index) && !is_draining(&before.repair, index);
            if queue.reboots.keys().any(begins) {
                let away: BTreeSet<&str> = queue.rebooting_nodes().map(|(node, _)| node).collect();
                let is_other = |node: &&String| {
                    let is_node = CONTROL_PLANE.contains(&&***node) || world.workers.contains(&***node);
                    is_node && !away.contains(&***node)
                };
                let unreachable = world.live.unreachable.iter().filter(is_other).count();
                prop_assert!(unreachable <= MAXIMUM_UNREACHABLE, "{} nodes are unreachable", unreachable);
            }

            // A node has one entry under way, and none while it is repaired.
            let mut nodes = BTreeSet::new();
            for (node, _) in queue.rebooting_nodes() {
                prop_assert!(nodes.insert(node), "{} twice", node);
            }
            let repaired = queue.entries.values().filter(|item| is_active(&item.value));
            for item in repaired {
                prop_assert!(!nodes.contains(&*item.value.address));
            }

            // A cancel is never overwritten, and no command runs twice for an entry.
            for (index, item) in &queue.reboots {
                let is_cancelled = item.value.status == RebootStatus::Cancelled;
                prop_assert_eq!(is_cancelled, world.cancelled.contains(index));
            }
            prop_assert!(world.rebooted.values().all(|count| *count == 1));
        }

        // Calm: passes with unchanged inputs come to rest, and then write nothing.
        for _ in 0..20 {
            if !world.pass(0.5, None) {
                break;
            }
        }
        let revision = world.store.revision;
        world.pass(0.5, None);
        prop_assert_eq!(world.store.revision, revision);
    }

    #[test]
    fn every_entry_has_one_next_action(happenings in vec(happening(), 1..40)) {
        let mut world = World::new();
        for happening in &happenings {
            world.happen(happening);
        }
        let state = world.store.state();
        let actions = world.actions(&state);
        let indexes: BTreeSet<i64> = actions.iter().map(|next| next.index).collect();
        prop_assert_eq!(indexes.len(), actions.len());
        prop_assert!(state.repair.reboots.keys().eq(indexes.iter()));
        for next in &actions {
            let awaits = matches!(next.action, Action::AwaitBoot | Action::AwaitUpdate);
            prop_assert!(!awaits || next.blocked_by.is_some(), "the boot check or the runner decides");
            let reboots = matches!(next.action, Action::Reboot | Action::AwaitBoot);
            prop_assert!(!reboots || next.index >= 0, "an upgrade reboots no node");
        }
    }
}
