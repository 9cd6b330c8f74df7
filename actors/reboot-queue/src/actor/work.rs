//! Drains, boot checks and the reboot command, which run beside the mailbox.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use madako_domain::canary::{Canary, is_planted};
use madako_domain::cluster::Cluster;
use madako_domain::invariants::{check_cordon, check_drain};
use madako_domain::kubernetes::drain::{DrainNews, DrainPurpose};
use madako_domain::reboot::config::RebootConfig;
use madako_domain::reboot::{RebootQueueEntry, RebootStatus};
use madako_domain::repair::command::HealthAnswer;
use madako_domain::repair::queue::Item;
use madako_domain::state::ClusterState;
use madako_effects::{CordonCheck, DrainOrder, DrainRules, run_check};
use madako_protocol::actors::RebootMessage;
use madako_protocol::feed::Task;
use time::OffsetDateTime;
use tokio::time::Instant;
use tracing::{Instrument as _, info_span};

use super::RebootState;
use super::command::{RebootCommand, Stage};
use crate::explain::config;
use crate::limits::{CHECKS_AT_ONCE, FIRST_DRAIN_CHECK};
use crate::next_action::NextAction;
use crate::pass::{Drain, maximum_unreachable, nodes, unreachable_nodes};

pub(super) struct Draining {
    number: u64,
    node: String,
    progress: Drain,
    _task: Task,
}

/// Boot checks of rebooting entries: each once an interval.
#[derive(Default)]
pub(super) struct BootChecks {
    running: BTreeMap<i64, (u64, Task)>,
    /// Time and entry revision of the last check.
    last: BTreeMap<i64, (i64, Instant)>,
    booted: BTreeSet<i64>,
}

impl BootChecks {
    pub(super) fn booted_entries(&self) -> BTreeSet<i64> {
        self.booted.clone()
    }

    pub(super) fn note_answer(&mut self, index: i64, number: u64, answer: Option<&HealthAnswer>) {
        if self.running.get(&index).is_none_or(|(running, _)| *running != number) {
            return;
        }
        self.running.remove(&index);
        match answer {
            Some(HealthAnswer::Healthy) => {
                self.booted.insert(index);
            }
            Some(HealthAnswer::Failed(why)) => tracing::debug!(entry = index, why, "a boot check failed"),
            Some(HealthAnswer::Unhealthy) | None => {}
        }
    }

    /// Forgets entries that do not reboot any more, or whose last transition changed.
    fn clear(&mut self, state: &ClusterState) {
        let reboots = |index: &i64| {
            let item = state.repair.reboots.get(index)?;
            (item.value.status == RebootStatus::Rebooting).then_some(item.revision)
        };
        self.last.retain(|index, (revision, _)| reboots(index) == Some(*revision));
        self.running.retain(|index, _| self.last.contains_key(index));
        self.booted.retain(|index| self.last.contains_key(index));
    }
}

impl RebootState {
    /// Ends work that the store no longer asks for.
    pub(super) fn clear(&mut self, state: &ClusterState) {
        self.checks.clear(state);
        let drains = |index: &i64| {
            let is_draining =
                |item: &Arc<Item<RebootQueueEntry>>| item.value.status == RebootStatus::Draining;
            !state.repair.reboots_disabled && state.repair.reboots.get(index).is_some_and(is_draining)
        };
        self.drains.retain(|index, _| drains(index));
        self.begun.retain(|index| drains(index));
        if let Some(why) = self.effects.announced_effect().and_then(|command| command.find_obstacle(state)) {
            let actions = self.effects.withdraw(&why, Instant::now());
            self.perform(actions);
        }
    }

    /// The stage with which the reboot of a node begins.
    pub(super) fn first_stage(&self, state: &ClusterState, node: &str) -> Stage {
        let prepares = is_control_plane(state, node) && !is_planted(Canary::RebootMeetsApiServer);
        let runner = self.given.runner.clone().filter(|_| prepares);
        runner.map_or(Stage::Command, |runner| Stage::Prepare { runner })
    }

    pub(super) fn reboot_command(
        &self,
        state: &ClusterState,
        next: &NextAction,
        stage: Stage,
        record: i64,
    ) -> Option<RebootCommand> {
        let config = config(state).ok()?;
        let command = config.reboot.as_ref()?;
        Some(RebootCommand {
            stage,
            index: next.index,
            record,
            node: next.node.clone(),
            name: node_name(state, &next.node)?,
            words: command.for_machine(&next.node),
            deadline: command.timeout,
            attempts: config.attempts,
            interval: config.interval,
            is_prepared: false,
        })
    }

    /// Progress of all drains, including those that an earlier leader began and that were not read yet.
    pub(super) fn drain_progress(&self, state: &ClusterState) -> BTreeMap<i64, Drain> {
        let mut drains: BTreeMap<i64, Drain> =
            self.drains.iter().map(|(index, drain)| (*index, drain.progress.clone())).collect();
        for (index, _) in draining_entries(state).filter(|(index, _)| !self.begun.contains(index)) {
            drains.entry(*index).or_insert_with(|| self.unread_drain());
        }
        drains
    }

    fn unread_drain(&self) -> Drain {
        Drain::Unseen { until: self.given.clock.now() + FIRST_DRAIN_CHECK - self.began.elapsed() }
    }

    /// I17 of a cordon, and I15 of one with which a drain begins, by the newest state and the newest collection.
    fn cordon_check(&self, node: String) -> CordonCheck {
        let (newest, operations) = (self.given.state.clone(), self.given.operations.clone());
        Arc::new(move |begins| {
            let state = newest.newest()?;
            let found = operations.as_ref().filter(|_| begins).and_then(|operations| operations.newest());
            check_cordon(&node, &state).or_else(|| {
                let nodes = nodes(state.cluster.as_ref().map(|cluster| &*cluster.value));
                let unreachable = unreachable_nodes(&nodes, &state.repair, &found.as_ref()?.unreachable);
                check_drain(&node, &unreachable, maximum_unreachable(&state))
            })
        })
    }

    /// Starts the drains that the store announces and that do not run yet.
    pub(super) fn start_drains(&mut self, state: &ClusterState) {
        let (Some(kubernetes), Ok(config)) = (self.given.kubernetes.clone(), config(state)) else { return };
        if state.repair.reboots_disabled {
            return;
        }
        let missing: Vec<(i64, RebootQueueEntry)> = draining_entries(state)
            .filter(|(index, _)| !self.drains.contains_key(index))
            .map(|(index, item)| (*index, item.value.clone()))
            .collect();
        for (index, entry) in missing {
            let Some(node) = node_name(state, &entry.node) else { continue };
            // A node has one drain at a time, whatever other programs write.
            if self.drains.values().any(|drain| drain.node == node) {
                continue;
            }
            let resumed = !self.begun.contains(&index);
            let since = entry.last_transition_time.unwrap_or(OffsetDateTime::UNIX_EPOCH);
            let order = DrainOrder {
                kubernetes: Arc::clone(&kubernetes),
                permits: self.runner.permits().clone(),
                node: node.clone(),
                rules: self.drain_rules(&config),
                resumed,
                late: resumed && since + config.eviction_timeout < self.given.clock.now(),
                check: self.cordon_check(node.clone()),
            };
            let (number, actor) = (self.take_number(), self.myself.clone());
            let span = info_span!("drain", entry = index, node);
            let carried_out = async move {
                let tell = |news| {
                    // The actor is gone: its successor drains.
                    let _ = actor.cast(RebootMessage::Drained { index, drain: number, news }.into());
                };
                order.carry_out(tell).await;
            };
            let task = Task::start_anew(carried_out.instrument(span));
            let progress = if resumed { self.unread_drain() } else { Drain::Runs { waits: None } };
            self.drains.insert(index, Draining { number, node, progress, _task: task });
        }
    }

    fn drain_rules(&self, config: &RebootConfig) -> DrainRules {
        DrainRules {
            purpose: DrainPurpose::Reboot,
            protected_namespaces: config.protected_namespaces.clone(),
            evict_attempts: config.evict_attempts,
            evict_interval: config.evict_interval,
            cordon_first: self.given.settings.cordon_first,
        }
    }

    pub(super) fn note_drain_news(&mut self, index: i64, number: u64, news: DrainNews) {
        let Some(drain) = self.drains.get_mut(&index).filter(|drain| drain.number == number) else { return };
        drain.progress = match news {
            DrainNews::Waits(waits) => Drain::Runs { waits: Some(waits) },
            DrainNews::Done => Drain::Done,
            DrainNews::Failed(why) => Drain::Failed { why },
            DrainNews::Unreachable(pod) => Drain::Unreachable { pod: pod.to_string() },
        };
    }

    /// Starts the due boot checks, the oldest first.
    pub(super) fn start_checks(&mut self, state: &ClusterState) {
        let (Some(host), Ok(config)) = (self.given.host.clone(), config(state)) else { return };
        let Some(command) = config.boot_check.as_ref().filter(|_| !state.repair.reboots_disabled) else {
            return;
        };
        let commanded = self.effects.announced_effect().map(|command| command.index);
        let mut due: Vec<_> = state
            .repair
            .reboots
            .iter()
            .filter(|(index, item)| {
                item.value.status == RebootStatus::Rebooting
                    && commanded != Some(**index)
                    && !self.checks.running.contains_key(index)
                    && !self.checks.booted.contains(index)
            })
            .map(|(index, item)| (self.checks.last.get(index).map(|(_, at)| *at), *index, item))
            .filter(|(last, ..)| last.is_none_or(|at| at.elapsed() >= self.given.interval))
            .collect();
        due.sort_by_key(|(last, index, _)| (*last, *index));
        let free = CHECKS_AT_ONCE.saturating_sub(self.checks.running.len());
        for (_, index, item) in due.into_iter().take(free) {
            let since = item.value.last_transition_time.map_or(0, OffsetDateTime::unix_timestamp);
            let mut words = command.for_machine(&item.value.node);
            words.push(since.to_string());
            let (number, actor) = (self.take_number(), self.myself.clone());
            let check = run_check(Arc::clone(&host), self.runner.permits().clone(), words, command.timeout);
            let task = Task::start_anew(async move {
                let answer = check.await;
                // The actor is gone: the answer is not needed.
                let _ = actor.cast(RebootMessage::Checked { index, check: number, answer }.into());
            });
            self.checks.last.insert(index, (item.revision, Instant::now()));
            self.checks.running.insert(index, (number, task));
        }
    }
}

fn draining_entries(state: &ClusterState) -> impl Iterator<Item = (&i64, &Arc<Item<RebootQueueEntry>>)> {
    state.repair.reboots.iter().filter(|(_, item)| item.value.status == RebootStatus::Draining)
}

fn is_control_plane(state: &ClusterState, address: &str) -> bool {
    state.cluster.iter().flat_map(|cluster| cluster.value.control_plane()).any(|node| node.address == address)
}

/// Name of the Node object of an address.
fn node_name(state: &ClusterState, address: &str) -> Option<String> {
    let cluster: &Cluster = &state.cluster.as_ref()?.value;
    let node = cluster.nodes.iter().find(|node| node.address == address)?;
    Some(node.name().to_owned())
}
