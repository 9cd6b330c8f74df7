//! Forecasts the reboots of the queue before the first cordon: waves with their nodes, blockers, and the expected
//! duration.
//!
//! For: operators, in a process that does not lead. The caller reads the store, the workloads of Kubernetes and the
//! answers to dry runs; this module computes the rest, and [`pods_to_ask`] names the pods whose dry runs it needs.
//!
//! # Assumes
//! Each drain with its boot takes as long as the median of those in the history; all blockers are gone when their nodes
//! are due. The leader also waits for etcd, operations on nodes and unreachable nodes: etcd counts as good, no operation
//! as due, and the nodes that do not report to Kubernetes as unreachable.
//!
//! # Does not
//! Forecast the state of budgets after the first evictions: notes name the budgets that several pods share.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use madako_domain::kubernetes::workload::Workloads;
use madako_domain::kubernetes::{EvictionOutcome, PodId};
use madako_domain::reboot::config::RebootConfig;
use madako_domain::reboot::{RebootQueueEntry, RebootSettings, RebootStatus};
use madako_domain::repair::queue::{Item, RepairQueue};
use madako_domain::state::ClusterState;
use time::OffsetDateTime;

use self::blockers::{NodeFindings, Pods, of_node, shared_budgets};
use self::schedule::{RunningReboot, Slot, Waiting, schedule};
use crate::explain::config;
use crate::limits::ASSUMED_REBOOT;
use crate::next_action::BlockedBy;
use crate::pass::{Live, View, maximum_unreachable, nodes};

mod blockers;
mod history;
mod output;
mod schedule;
#[cfg(test)]
mod tests;

pub use self::blockers::{Blocker, BlockerKind, BudgetState, Note, NoteKind, Owner};
pub use self::history::{History, KUBELET_RESTART, MeasuredDuration};
pub use self::output::{ExpectedDuration, Forecast, NodeDown, NodeForecast, Obstacle, UnderWay, Wave};

/// The answer to the dry run of an eviction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DryRun {
    /// The pod may go, or is gone.
    Accepted,
    /// A disruption budget forbids it now.
    Refused { why: String },
    /// The API server refused the request itself.
    Failed { why: String },
}

impl From<EvictionOutcome> for DryRun {
    fn from(outcome: EvictionOutcome) -> Self {
        match outcome {
            EvictionOutcome::Accepted | EvictionOutcome::Gone => Self::Accepted,
            EvictionOutcome::Refused { why } => Self::Refused { why },
        }
    }
}

/// All inputs of a forecast.
#[derive(Debug, Clone, Copy)]
pub struct ForecastInput<'a> {
    pub state: &'a ClusterState,
    /// Addresses of nodes that would be added to the queue.
    pub added: &'a [String],
    pub settings: RebootSettings,
    pub history: &'a History,
    pub workloads: &'a Workloads,
    /// The protected namespaces.
    pub protected: &'a BTreeSet<String>,
    /// Answers to dry runs by the uid of the pod. For a pod without an answer, the state of its budgets decides.
    pub answers: &'a BTreeMap<String, DryRun>,
    pub now: OffsetDateTime,
}

/// The queue with the added nodes, and the nodes of the cluster.
struct Queue<'a> {
    queue: RepairQueue,
    /// Index of the first added entry.
    added: i64,
    config: Result<RebootConfig, BlockedBy>,
    /// Names in Kubernetes by address.
    names: BTreeMap<&'a str, &'a str>,
    /// True for control plane nodes, by address.
    nodes: BTreeMap<&'a str, bool>,
}

impl<'a> Queue<'a> {
    fn new(input: &ForecastInput<'a>) -> Self {
        let mut queue = RepairQueue::clone(&input.state.repair);
        // Drains for upgrades have negative indexes.
        let added = queue.reboots.last_key_value().map_or(0, |(index, _)| index.saturating_add(1)).max(0);
        for (index, node) in (added..).zip(input.added) {
            let value = RebootQueueEntry { index, ..RebootQueueEntry::new(node.clone()) };
            queue.reboots.insert(index, Arc::new(Item { value, created: 0, revision: 0 }));
        }
        let cluster = input.state.cluster.as_ref().map(|cluster| &*cluster.value);
        let members = cluster.into_iter().flat_map(|cluster| &cluster.nodes);
        let names = members.map(|node| (node.address.as_str(), node.name())).collect();
        Self { queue, added, config: config(input.state), names, nodes: nodes(cluster) }
    }

    /// The entries that wait, with their nodes. Entries of nodes that left the cluster are removed without a reboot.
    fn waiting_entries(&self) -> Vec<&RebootQueueEntry> {
        let entries = self.queue.reboots.values().map(|item| &item.value);
        let waits = |entry: &&RebootQueueEntry| {
            !entry.is_upgrade()
                && !entry.is_under_way()
                && entry.status != RebootStatus::Cancelled
                && self.nodes.contains_key(entry.node.as_str())
        };
        entries.filter(waits).collect()
    }

    fn is_control_plane(&self, address: &str) -> bool {
        self.nodes.get(address) == Some(&true)
    }
}

/// The pods whose evictions a disruption budget may refuse so that their drain is aborted: protected pods that a budget
/// selects, on the nodes of the forecast.
#[must_use]
pub fn pods_to_ask(input: &ForecastInput<'_>) -> Vec<PodId> {
    let queue = Queue::new(input);
    let pods = Pods::new(input.workloads, input.protected, input.now);
    let addresses: BTreeSet<&str> =
        queue.waiting_entries().into_iter().map(|entry| entry.node.as_str()).collect();
    let names = addresses.into_iter().filter_map(|address| queue.names.get(address));
    let of_node =
        |name: &&str| pods.pods_on_node(name).filter(|pod| pods.is_guarded(pod)).collect::<Vec<_>>();
    names.flat_map(of_node).map(|pod| pod.pod.id.clone()).collect()
}

#[must_use]
pub fn forecast(input: &ForecastInput<'_>) -> Forecast {
    let queue = Queue::new(input);
    let pods = Pods::new(input.workloads, input.protected, input.now);
    let nodes_down = nodes_down(&queue, &pods);
    let live = Live {
        unreachable: unreachable_nodes(&queue, &pods),
        host: true,
        kubernetes: true,
        ..Live::default()
    };
    let view = View {
        queue: &queue.queue,
        nodes: &queue.nodes,
        config: queue.config.as_ref(),
        settings: input.settings,
        maximum_unreachable: maximum_unreachable(input.state),
        live: &live,
        now: input.now,
    };
    let (drains, boots) = (input.history.drains(), input.history.boots());
    let medians = drains.zip(boots).map(|(drain, boot)| (drain.median_seconds, boot.median_seconds));
    let slowest = drains.zip(boots).map(|(drain, boot)| (drain.worst_seconds, boot.worst_seconds));
    let unknown = match (drains, boots) {
        (Some(_), Some(_)) => None,
        (None, _) => Some("no drain with its reboot is in the history"),
        (_, None) => Some("no boot after a reboot is in the history"),
    };
    let waiting = queue.waiting_entries();
    let times = RebootTimes { view: &view, queue: &queue, waiting: &waiting, now: input.now };
    let slots = times.schedule(medians);
    let waves =
        plan_waves(&Slots { slots: &slots, are_timed: medians.is_some() }, &times, &pods, input.answers);
    let obstacles = find_obstacles(&view, &queue);
    let is_blocked = (!obstacles.is_empty() && !waiting.is_empty())
        || waves.iter().flat_map(|wave| &wave.nodes).any(|node| !node.blockers.is_empty());
    Forecast {
        is_blocked,
        obstacles,
        nodes_down,
        under_way: times.under_way(medians),
        waves,
        duration: ExpectedDuration {
            drains,
            boots,
            aborted_drains: input.history.aborted_drains(),
            expected_seconds: medians.map(|_| times.end(&slots, medians)),
            worst_seconds: slowest.map(|_| times.end(&times.schedule(slowest), slowest)),
            unknown,
        },
        dry_runs: input.answers.len(),
    }
}

/// The obstacles to all reboots, with control plane nodes that do not boot.
fn find_obstacles(view: &View<'_>, queue: &Queue<'_>) -> Vec<Obstacle> {
    let mut obstacles = view.obstacles();
    for item in queue.queue.reboots.values() {
        if view.is_overdue(&item.value) && queue.is_control_plane(&item.value.node) {
            obstacles
                .push(BlockedBy::BootOverdue { since: view.transition_time(&item.value), keeps_slot: true });
        }
    }
    obstacles.iter().map(|found| Obstacle { name: found.name(), why: found.to_string() }).collect()
}

/// The nodes of the cluster that are not ready, in the order of their addresses.
fn nodes_down(queue: &Queue<'_>, pods: &Pods<'_>) -> Vec<NodeDown> {
    let down = queue.names.iter().filter_map(|(address, name)| {
        let why = match pods.nodes.get(name) {
            None => "Kubernetes has no such node",
            Some(node) => match node.ready {
                Some(true) => return None,
                Some(false) => "the kubelet reports that the node is not ready",
                None => "the kubelet does not report",
            },
        };
        Some(NodeDown { node: (*address).to_owned(), why })
    });
    down.collect()
}

fn unreachable_nodes(queue: &Queue<'_>, pods: &Pods<'_>) -> BTreeSet<String> {
    let is_silent = |name: &str| pods.nodes.get(name).is_some_and(|node| node.ready.is_none());
    let silent = queue.names.iter().filter(|(_, name)| is_silent(name));
    silent.map(|(address, _)| (*address).to_owned()).collect()
}

/// The queue with its times.
struct RebootTimes<'a> {
    view: &'a View<'a>,
    queue: &'a Queue<'a>,
    waiting: &'a [&'a RebootQueueEntry],
    now: OffsetDateTime,
}

/// Seconds of a drain and of a boot.
type ExpectedSeconds = Option<(u64, u64)>;

impl RebootTimes<'_> {
    /// Entries under way that hold a slot, with their expected ends.
    fn reboots_under_way(&self, takes: ExpectedSeconds) -> Vec<(i64, RunningReboot)> {
        let (drain, boot) = takes.unwrap_or((0, ASSUMED_REBOOT.as_secs()));
        let entries = self.queue.queue.reboots.iter().map(|(index, item)| (*index, &item.value));
        let holds = |(_, entry): &(i64, &RebootQueueEntry)| {
            entry.is_under_way()
                && !self.view.is_overdue(entry)
                && self.queue.nodes.contains_key(entry.node.as_str())
        };
        let begun = entries.filter(holds).map(|(index, entry)| {
            let all = if entry.status == RebootStatus::Draining { drain + boot } else { boot };
            let passed = Duration::try_from(self.now - self.view.transition_time(entry)).unwrap_or_default();
            let node = entry.node.clone();
            let is_control_plane = self.queue.is_control_plane(&node);
            let ends = Duration::from_secs(all).saturating_sub(passed);
            (index, RunningReboot { node, is_control_plane, ends })
        });
        begun.collect()
    }

    fn schedule(&self, takes: ExpectedSeconds) -> Vec<Slot> {
        let begun: Vec<RunningReboot> =
            self.reboots_under_way(takes).into_iter().map(|(_, begun)| begun).collect();
        let waiting = self.waiting.iter().map(|entry| Waiting {
            node: entry.node.clone(),
            is_control_plane: self.queue.is_control_plane(&entry.node),
            not_before: entry
                .drain_backoff_expire
                .and_then(|until| Duration::try_from(until - self.now).ok())
                .unwrap_or_default(),
        });
        let workers = self.view.config.map_or(1, |config| config.max_concurrent).max(1);
        let each = takes.map_or(ASSUMED_REBOOT, |(drain, boot)| Duration::from_secs(drain + boot));
        schedule(&begun, &waiting.collect::<Vec<_>>(), workers, each)
    }

    /// Seconds until everything has ended.
    fn end(&self, slots: &[Slot], takes: ExpectedSeconds) -> u64 {
        let begun = self.reboots_under_way(takes).into_iter().map(|(_, begun)| begun.ends);
        begun.chain(slots.iter().map(|slot| slot.ends)).max().unwrap_or_default().as_secs()
    }

    fn under_way(&self, takes: ExpectedSeconds) -> Vec<UnderWay> {
        let ends: BTreeMap<i64, u64> = self
            .reboots_under_way(takes)
            .into_iter()
            .map(|(index, begun)| (index, begun.ends.as_secs()))
            .collect();
        let entries = self.queue.queue.reboots.iter().filter(|(_, item)| item.value.is_under_way());
        let shown = entries.map(|(index, item)| UnderWay {
            index: *index,
            node: item.value.node.clone(),
            status: item.value.status.to_string(),
            ends_after_seconds: takes.and_then(|_| ends.get(index).copied()),
        });
        shown.collect()
    }
}

struct Slots<'a> {
    slots: &'a [Slot],
    /// False: their times are assumed, and only their order counts.
    are_timed: bool,
}

fn plan_waves(
    slots: &Slots<'_>,
    times: &RebootTimes<'_>,
    pods: &Pods<'_>,
    answers: &BTreeMap<String, DryRun>,
) -> Vec<Wave> {
    let config = times.view.config.ok();
    let together = slots.slots.chunk_by(|one, other| one.begins == other.begins);
    let wave = |(number, slots_of_wave): (usize, &[Slot])| {
        let mut nodes = Vec::with_capacity(slots_of_wave.len());
        let mut found_pods: Vec<NodeFindings<'_>> = Vec::with_capacity(slots_of_wave.len());
        for slot in slots_of_wave {
            let entry = times.waiting[slot.entry];
            let name = times.queue.names.get(entry.node.as_str()).copied().unwrap_or(&entry.node);
            let mut found = pods.inspect(name, config, answers);
            if let Some(repair) = times.view.repair_entry_of_node(&entry.node) {
                let why = BlockedBy::Repaired { index: repair }.to_string();
                found.blockers.insert(0, of_node(BlockerKind::Repaired, why));
            }
            nodes.push(NodeForecast {
                index: Some(entry.index).filter(|index| *index < times.queue.added),
                node: entry.node.clone(),
                pods: found.ending,
                blockers: std::mem::take(&mut found.blockers),
                notes: std::mem::take(&mut found.notes),
            });
            found_pods.push(found);
        }
        let seconds = |at: Option<Duration>| at.filter(|_| slots.are_timed).map(|at| at.as_secs());
        Wave {
            number: number + 1,
            is_control_plane: nodes.iter().any(|node| times.queue.is_control_plane(&node.node)),
            begins_after_seconds: seconds(slots_of_wave.iter().map(|slot| slot.begins).min()),
            ends_after_seconds: seconds(slots_of_wave.iter().map(|slot| slot.ends).max()),
            nodes,
            notes: shared_budgets(&found_pods),
        }
    };
    together.enumerate().map(wave).collect()
}
