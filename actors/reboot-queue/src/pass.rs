//! Computes the next action of every entry (CKE's `ChooseDrainedNodes` and `rebootOps`).
//!
//! Entries that end, and those under way, come first; then the queued entries in their order, workers before control
//! plane nodes. Each entry that begins in a pass counts for the entries after it, so all due actions of a pass may be
//! performed.
//!
//! A drain for the update of a kubelet takes part by the same rules. It ends when the node is empty: the operation runner
//! updates the kubelet, and removes the entry.
//!
//! # Slots
//! A worker holds one of the `max_concurrent_reboots` slots while it is drained or reboots, for at most the time limit
//! of a boot. A control plane node holds the whole queue until it has booted.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use madako_domain::canary::{Canary, is_planted};
use madako_domain::cluster::Cluster;
use madako_domain::invariants::repair::is_active;
use madako_domain::reboot::config::RebootConfig;
use madako_domain::reboot::{RebootQueueEntry, RebootSettings, RebootStatus};
use madako_domain::repair::queue::RepairQueue;
use madako_domain::repair::{RepairQueueEntry, RepairStatus, RepairStepStatus};
use madako_domain::state::ClusterState;
use time::OffsetDateTime;

use crate::limits::STUCK_REBOOTS;
use crate::next_action::{AbortReason, Action, BlockedBy, NextAction, Removal};
use crate::transition::PREPARE;

/// The nodes of the cluster by address; the value is true for a control plane node.
pub type Nodes<'a> = BTreeMap<&'a str, bool>;

/// The nodes of a cluster by address.
#[must_use]
pub fn nodes(cluster: Option<&Cluster>) -> Nodes<'_> {
    let nodes = cluster.into_iter().flat_map(|cluster| &cluster.nodes);
    nodes.map(|node| (node.address.as_str(), node.control_plane)).collect()
}

/// The nodes of the cluster that do not answer and do not reboot.
pub(crate) fn unreachable_nodes<'a>(
    nodes: &Nodes<'_>,
    queue: &RepairQueue,
    unreachable: &'a BTreeSet<String>,
) -> BTreeSet<&'a str> {
    let away: BTreeSet<&str> = queue.rebooting_nodes().map(|(node, _)| node).collect();
    let addresses = unreachable.iter().map(String::as_str);
    addresses.filter(|node| nodes.contains_key(node) && !away.contains(node)).collect()
}

/// The constraint `maximum-unreachable-nodes-for-reboot`.
pub(crate) fn maximum_unreachable(state: &ClusterState) -> usize {
    let maximum = state.constraints.as_ref().map_or(0, |it| it.value.maximum_unreachable_nodes_for_reboot);
    usize::try_from(maximum).unwrap_or(0)
}

/// Progress of the drain of an entry's node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Drain {
    /// An earlier leader began the drain, and the node is read until this time.
    Unseen {
        until: OffsetDateTime,
    },
    Runs {
        waits: Option<String>,
    },
    /// The node is empty: only pods that a drain leaves in place are left, and no volume is in use.
    Done,
    Failed {
        why: String,
    },
    /// The node is unreachable, and this pod of it has not ended.
    Unreachable {
        pod: String,
    },
}

/// State that only the leader has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Live {
    /// Progress of drains by the index of their entry; a missing one has not reported yet.
    pub drains: BTreeMap<i64, Drain>,
    /// Indexes of rebooting entries whose boot check printed `true` for the time of their last transition.
    pub booted: BTreeSet<i64>,
    /// Addresses of the nodes that do not answer.
    pub unreachable: BTreeSet<String>,
    /// The reason why etcd is not known to be good.
    pub etcd: Option<String>,
    /// Control plane nodes whose reboot would break invariant I13, with the violation.
    pub api: BTreeMap<String, String>,
    /// An operation on nodes is due or runs.
    pub operation_due: bool,
    /// Operations leave the kubelets of drained nodes as they are.
    pub leaves_kubelets: bool,
    /// This instance runs commands.
    pub host: bool,
    pub kubernetes: bool,
}

/// All inputs of a decision.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    pub queue: &'a RepairQueue,
    pub nodes: &'a Nodes<'a>,
    /// The reboot configuration, or the obstacle in its place.
    pub config: Result<&'a RebootConfig, &'a BlockedBy>,
    pub settings: RebootSettings,
    /// The constraint `maximum-unreachable-nodes-for-reboot`.
    pub maximum_unreachable: usize,
    pub live: &'a Live,
    pub now: OffsetDateTime,
}

/// Slots and control plane nodes that the earlier entries of the pass hold, and overdue workers.
struct OccupiedSlots {
    /// Workers that hold a slot.
    workers: u32,
    /// A worker that is drained, reboots, or could begin.
    worker: Option<i64>,
    /// Control plane nodes that are drained, reboot or are repaired.
    control_plane: BTreeSet<String>,
    stuck: Vec<i64>,
}

/// Next action of every entry, in the order of service.
#[must_use]
pub fn next_actions(view: &View<'_>) -> Vec<NextAction> {
    let first = view.first_entries();
    let mut occupied = view.occupied_resources(&first);
    let mut entries: Vec<(i64, &RebootQueueEntry)> =
        view.queue.reboots.iter().map(|(index, item)| (*index, &item.value)).collect();
    let is_control_plane = |entry: &RebootQueueEntry| view.nodes.get(&*entry.node) == Some(&true);
    // A reboot brings the new kubelet as well, so that it comes before drains for upgrades.
    entries.sort_by_key(|(index, entry)| {
        (view.service_order(*index, entry), is_control_plane(entry), entry.is_upgrade(), index.unsigned_abs())
    });
    entries
        .into_iter()
        .map(|(index, entry)| {
            let (action, blocked_by) = view.next(index, entry, &first, &mut occupied);
            let blocked_by = view.blocks_all(entry.is_upgrade()).or(blocked_by);
            NextAction { index, node: entry.node.clone(), action, blocked_by }
        })
        .collect()
}

impl<'a> View<'a> {
    /// The entry of each node that comes first.
    fn first_entries(&self) -> BTreeMap<&'a str, i64> {
        let mut first: BTreeMap<&str, i64> = BTreeMap::new();
        for (index, item) in self.queue.reboots.range(0..).chain(self.queue.reboots.range(..0)) {
            if item.value.status != RebootStatus::Cancelled {
                first.entry(&item.value.node).or_insert(*index);
            }
        }
        // An entry under way counts before an older one that another program put beside it.
        for (index, item) in self.queue.reboots.iter().rev() {
            if item.value.is_under_way() {
                first.insert(&item.value.node, *index);
            }
        }
        first
    }

    /// The obstacles to every drain that is not begun yet, whatever entry is next.
    pub(crate) fn obstacles(&self) -> Vec<BlockedBy> {
        let stuck = self.occupied_resources(&self.first_entries()).stuck;
        let slots = self.config.is_ok_and(|config| config.max_concurrent == 0);
        let slots = slots.then_some(BlockedBy::Slots { maximum: 0 });
        let gate = self.find_gate(&stuck, false);
        self.blocks_all(false).into_iter().chain(gate).chain(slots).collect()
    }

    /// The obstacle to every action on reboots or on drains for upgrades. As in CKE, no reboot is removed without both
    /// commands.
    fn blocks_all(&self, is_upgrade: bool) -> Option<BlockedBy> {
        if self.queue.reboots_disabled {
            return Some(BlockedBy::Disabled);
        }
        match self.config {
            Err(blocked_by) => Some(blocked_by.clone()),
            Ok(_) if is_upgrade => None,
            Ok(config) if config.reboot.is_none() => Some(BlockedBy::NoCommand { field: "reboot_command" }),
            Ok(config) if config.boot_check.is_none() => {
                Some(BlockedBy::NoCommand { field: "boot_check_command" })
            }
            Ok(_) => None,
        }
    }

    /// The reason to remove an entry.
    fn decide_removal(&self, index: i64, entry: &RebootQueueEntry) -> Option<Removal> {
        if entry.status == RebootStatus::Cancelled {
            Some(Removal::Cancelled)
        } else if !self.nodes.contains_key(&*entry.node) {
            Some(Removal::Left)
        } else if entry.is_upgrade() && self.live.leaves_kubelets {
            Some(Removal::NoUpdate)
        } else if entry.status == RebootStatus::Rebooting && self.live.booted.contains(&index) {
            Some(Removal::Booted)
        } else {
            None
        }
    }

    /// Order of service: removals, entries under way, queued entries.
    fn service_order(&self, index: i64, entry: &RebootQueueEntry) -> u8 {
        match (self.decide_removal(index, entry), entry.is_under_way()) {
            (Some(_), _) => 0,
            (None, true) => 1,
            (None, false) => 2,
        }
    }

    pub(crate) fn transition_time(&self, entry: &RebootQueueEntry) -> OffsetDateTime {
        // A time of a clock that was ahead counts from now.
        entry.last_transition_time.unwrap_or(OffsetDateTime::UNIX_EPOCH).min(self.now)
    }

    pub(crate) fn is_overdue(&self, entry: &RebootQueueEntry) -> bool {
        entry.status == RebootStatus::Rebooting
            && self.transition_time(entry) + self.settings.boot_timeout < self.now
    }

    /// The control plane nodes, slots and stuck workers before any entry begins.
    fn occupied_resources(&self, first: &BTreeMap<&str, i64>) -> OccupiedSlots {
        let is_control_plane = |address: &str| self.nodes.get(address) == Some(&true);
        let repaired = self.queue.entries.iter().filter(|(index, item)| {
            is_active(&item.value) || self.queue.running_repair_of(**index).is_some()
        });
        let repaired = repaired.map(|(_, item)| item.value.address.as_str());
        let mut occupied = OccupiedSlots {
            workers: 0,
            worker: None,
            control_plane: repaired.filter(|address| is_control_plane(address)).map(str::to_owned).collect(),
            stuck: Vec::new(),
        };
        for (index, item) in &self.queue.reboots {
            let entry = &item.value;
            if !entry.is_under_way()
                || self.decide_removal(*index, entry).is_some()
                || first[&*entry.node] != *index
            {
                continue;
            }
            if is_control_plane(&entry.node) {
                occupied.control_plane.insert(entry.node.clone());
            } else if self.is_overdue(entry) {
                if self.queue.reboots_released.entries.get(index) != Some(&item.created) {
                    occupied.stuck.push(*index);
                }
            } else {
                occupied.workers += 1;
                occupied.worker = occupied.worker.or(Some(*index));
            }
        }
        occupied
    }

    fn next(
        &self,
        index: i64,
        entry: &RebootQueueEntry,
        first: &BTreeMap<&str, i64>,
        occupied: &mut OccupiedSlots,
    ) -> (Action, Option<BlockedBy>) {
        if let Some(removal) = self.decide_removal(index, entry) {
            return (Action::Remove(removal), None);
        }
        if let Some(other) = first.get(&*entry.node).filter(|other| **other != index) {
            return (Action::Drain, Some(BlockedBy::SameNode { index: *other }));
        }
        let is_control_plane = self.nodes.get(&*entry.node) == Some(&true);
        match entry.status {
            RebootStatus::Draining => self.decide_draining(index, entry, is_control_plane, occupied),
            RebootStatus::Drained => self.decide_drained(entry),
            RebootStatus::Rebooting => {
                let blocked_by = if self.is_overdue(entry) {
                    BlockedBy::BootOverdue {
                        since: self.transition_time(entry),
                        keeps_slot: is_control_plane,
                    }
                } else {
                    BlockedBy::Booting { until: self.transition_time(entry) + self.settings.boot_timeout }
                };
                (Action::AwaitBoot, Some(blocked_by))
            }
            _ => {
                let blocked_by = self.decide_queued(index, entry, is_control_plane, occupied);
                if blocked_by.is_none() && self.blocks_all(entry.is_upgrade()).is_none() {
                    if is_control_plane {
                        occupied.control_plane.insert(entry.node.clone());
                    } else {
                        occupied.workers += 1;
                    }
                }
                (Action::Drain, blocked_by)
            }
        }
    }

    fn decide_draining(
        &self,
        index: i64,
        entry: &RebootQueueEntry,
        is_control_plane: bool,
        occupied: &mut OccupiedSlots,
    ) -> (Action, Option<BlockedBy>) {
        if is_control_plane
            && let Some(other) = occupied.control_plane.iter().find(|other| **other != entry.node)
        {
            // Another program began both: this one gives way, so that the other one can end.
            let action = Action::BackOff(AbortReason::ControlPlane { address: other.clone() });
            occupied.control_plane.remove(&entry.node);
            return (action, None);
        }
        let timeout = self.config.map_or(Duration::ZERO, |config| config.eviction_timeout);
        let until = self.transition_time(entry) + timeout;
        let next = if entry.is_upgrade() { Action::LeaveToUpdate } else { Action::Reboot };
        // The preparation for the reboot follows the drain, and has a time limit of its own.
        if let Some(record) = self.preparation_of(&entry.node) {
            return (next, Some(BlockedBy::CommandRuns { record }));
        }
        let waits = match self.live.drains.get(&index) {
            Some(Drain::Done) if entry.is_upgrade() => return (next, None),
            Some(Drain::Runs { .. }) if is_planted(Canary::RebootNotDrained) => {
                return (next, self.reboot_waits(&entry.node, is_control_plane));
            }
            Some(Drain::Done) => {
                return match self.reboot_waits(&entry.node, is_control_plane) {
                    // The failed member or API server may need a repair, and control plane nodes are away one at a time.
                    Some(waits @ (BlockedBy::EtcdNotGood { .. } | BlockedBy::ApiNotAvailable { .. }))
                        if until < self.now =>
                    {
                        (Action::BackOff(AbortReason::Timeout { waits: Some(waits.to_string()) }), None)
                    }
                    waits => (next, waits),
                };
            }
            Some(Drain::Failed { why }) => {
                return (Action::BackOff(AbortReason::Impossible { why: why.clone() }), None);
            }
            Some(Drain::Unreachable { pod }) => {
                return (Action::BackOff(AbortReason::Unreachable { pod: pod.clone() }), None);
            }
            Some(Drain::Runs { waits }) => waits.clone(),
            // CKE looks whether the node is empty before it looks at the time.
            Some(Drain::Unseen { until }) if *until > self.now => {
                let blocked_by = if self.live.kubernetes {
                    BlockedBy::Draining { until: *until, waits: None }
                } else {
                    BlockedBy::NoKubernetes
                };
                return (next, Some(blocked_by));
            }
            Some(Drain::Unseen { .. }) | None => None,
        };
        if until < self.now {
            return (Action::BackOff(AbortReason::Timeout { waits }), None);
        }
        let blocked_by =
            if self.live.kubernetes { BlockedBy::Draining { until, waits } } else { BlockedBy::NoKubernetes };
        (next, Some(blocked_by))
    }

    /// The record of the preparation that runs for the reboot of a node.
    fn preparation_of(&self, node: &str) -> Option<i64> {
        let mut unfinished = self.queue.records.unfinished.iter();
        let found = unfinished.find(|(_, item)| {
            item.value.operation == PREPARE && item.value.targets.iter().any(|target| target == node)
        });
        found.map(|(record, _)| *record)
    }

    /// A drained node is given up when its kubelet is not updated within the time limit of a boot: its slot may be needed by
    /// others, and its pods may need the node. An operation that runs may be that update.
    fn decide_drained(&self, entry: &RebootQueueEntry) -> (Action, Option<BlockedBy>) {
        let until = self.transition_time(entry) + self.settings.boot_timeout;
        if until >= self.now {
            return (Action::AwaitUpdate, Some(BlockedBy::Updating { until }));
        }
        let record = self.queue.records.unfinished.keys().next();
        let blocked_by = record.map(|record| BlockedBy::CommandRuns { record: *record });
        (Action::BackOff(AbortReason::NotUpdated), blocked_by)
    }

    /// The obstacle to the reboot of an empty node. The reboot of a control plane node takes its member of etcd and its
    /// API server away.
    fn reboot_waits(&self, node: &str, is_control_plane: bool) -> Option<BlockedBy> {
        if !self.live.host {
            return Some(BlockedBy::NoHost);
        }
        // I10: one record is unfinished at a time.
        if let Some(record) = self.queue.records.unfinished.keys().next() {
            return Some(BlockedBy::CommandRuns { record: *record });
        }
        if let Some(why) = self.live.etcd.as_ref().filter(|_| is_control_plane) {
            return Some(BlockedBy::EtcdNotGood { why: why.clone() });
        }
        self.api_waits(node)
    }

    fn api_waits(&self, node: &str) -> Option<BlockedBy> {
        let violation = self.live.api.get(node)?.clone();
        Some(BlockedBy::ApiNotAvailable { violation })
    }

    fn decide_queued(
        &self,
        index: i64,
        entry: &RebootQueueEntry,
        is_control_plane: bool,
        occupied: &mut OccupiedSlots,
    ) -> Option<BlockedBy> {
        if let Some(until) = entry.drain_backoff_expire.filter(|until| *until > self.now) {
            return Some(BlockedBy::BackOff { until, count: entry.drain_backoff_count });
        }
        if !is_control_plane && self.blocks_all(entry.is_upgrade()).is_none() {
            // Control plane nodes wait for it even while it has an obstacle, as in CKE.
            occupied.worker = occupied.worker.or(Some(index));
        }
        if let Some(repair) = self.repair_entry_of_node(&entry.node) {
            return Some(BlockedBy::Repaired { index: repair });
        }
        if let Some(address) = occupied.control_plane.first() {
            return Some(BlockedBy::ControlPlaneBusy { address: address.clone() });
        }
        let maximum = self.config.map_or(0, |config| config.max_concurrent);
        if is_control_plane {
            if let Some(index) = occupied.worker {
                return Some(BlockedBy::WorkersFirst { index });
            }
        } else if occupied.workers >= maximum {
            return Some(BlockedBy::Slots { maximum });
        }
        let api_waits = || self.api_waits(&entry.node).filter(|_| !entry.is_upgrade());
        self.find_gate(&occupied.stuck, entry.is_upgrade()).or_else(api_waits)
    }

    /// The obstacle to every new drain. An upgrade needs no command on the host.
    fn find_gate(&self, stuck: &[i64], is_upgrade: bool) -> Option<BlockedBy> {
        if stuck.len() >= STUCK_REBOOTS {
            return Some(BlockedBy::Stuck { indexes: stuck.to_vec() });
        }
        if !self.live.kubernetes {
            return Some(BlockedBy::NoKubernetes);
        }
        if !self.live.host && !is_upgrade {
            return Some(BlockedBy::NoHost);
        }
        if self.live.operation_due {
            return Some(BlockedBy::OperationDue);
        }
        if let Some(why) = &self.live.etcd {
            return Some(BlockedBy::EtcdNotGood { why: why.clone() });
        }
        let mut repairs = self.queue.entries.iter().filter(|(_, item)| self.is_waiting_repair(&item.value));
        if let Some((index, _)) = repairs.next() {
            return Some(BlockedBy::RepairsFirst { index: *index });
        }
        let nodes = unreachable_nodes(self.nodes, self.queue, &self.live.unreachable);
        let maximum = self.maximum_unreachable;
        let blocked = || BlockedBy::TooManyUnreachable {
            nodes: nodes.iter().map(|node| (*node).to_owned()).collect(),
            maximum,
        };
        (nodes.len() > maximum).then(blocked)
    }

    /// The begun repair of a node: its next drain must not meet that of a reboot.
    pub(crate) fn repair_entry_of_node(&self, node: &str) -> Option<i64> {
        let mut begun =
            self.queue.entries.iter().filter(|(_, item)| {
                item.value.status == RepairStatus::Processing && item.value.address == node
            });
        begun.next().map(|(index, _)| *index)
    }

    /// True for an unfinished repair that does not back off (CKE: queued ones count, even while the repair queue is
    /// disabled).
    fn is_waiting_repair(&self, entry: &RepairQueueEntry) -> bool {
        let backs_off = entry.status == RepairStatus::Processing
            && entry.step_status == RepairStepStatus::Waiting
            && entry.drain_backoff_expire.is_some_and(|until| until > self.now);
        !entry.is_finished() && !entry.deleted && !backs_off
    }
}

#[cfg(test)]
mod tests;
