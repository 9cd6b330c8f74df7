//! What runs beside the mailbox, health checks aside: the command and the drains.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use madako_messages::actors::RepairMessage;
use madako_messages::feed::Task;
use madako_messages::invariants::repair::is_active;
use madako_messages::kubernetes::drain::DrainNews;
use madako_messages::repair::command::CommandEnd;
use madako_messages::repair::config::RepairOperation;
use madako_messages::repair::queue::Item;
use madako_messages::repair::{RepairQueueEntry, RepairStepStatus};
use madako_messages::state::ClusterState;
use tokio::sync::SetOnce;
use tokio::time::Instant;

use super::command::HEALTHY;
use super::{Announced, FIRST_LOOK, REPAIR, RepairState, SUCCESS, command, drain, telemetry};
use crate::round::{Drain, Health, later, places_of, since};

/// The command that runs.
pub(super) struct Running {
    pub(super) announced: Announced,
    /// Set to the reason when it is not to be tried again.
    stop: Arc<SetOnce<String>>,
    since: Instant,
    _task: Task,
}

/// A drain that runs.
pub(super) struct Draining {
    number: u64,
    pub(super) node: String,
    pub(super) state: Drain,
    /// How long what comes to a drained node may take to go.
    limit: Duration,
    _task: Task,
}

impl RepairState {
    /// Ends what the store says is not to go on.
    pub(super) fn clear(&mut self, state: &ClusterState) {
        let queue = &state.repair;
        self.checks.clear(queue, self.given.interval);
        let draining = |index: &i64| queue.entries.get(index).is_some_and(|item| is_drained(&item.value));
        let before = self.drains.len();
        self.drains.retain(|index, _| draining(index));
        self.begun.retain(draining);
        if self.drains.len() != before {
            self.look_at_nodes();
        }
        if let Some(running) = self.running.as_ref().filter(|running| running.announced.kind == REPAIR)
            && let Some(why) = self.against(state, running.announced.index)
        {
            // What stood in the way first is told, also when that is over before the next attempt was due.
            let _ = running.stop.set(why);
        }
    }

    /// Why a command that was announced some time ago is not started any more. A success command follows from the machine's
    /// health, which is asked whatever else is.
    pub(super) fn against_start(&self, state: &ClusterState, announced: &Announced) -> Option<String> {
        if announced.kind != REPAIR {
            return None;
        }
        let healthy = self.checks.believed().get(&announced.index) == Some(&Health::Healthy);
        self.against(state, announced.index).or_else(|| healthy.then(|| HEALTHY.to_owned()))
    }

    /// Why no attempt of a repair's command begins.
    fn against(&self, state: &ClusterState, index: i64) -> Option<String> {
        if state.repair.disabled {
            return Some("the repair queue was disabled".to_owned());
        }
        let Some(item) = state.repair.entries.get(&index).filter(|item| !item.value.deleted) else {
            return Some("the entry was deleted".to_owned());
        };
        if self.held.unplaced.contains(&item.value.address) {
            return Some("a rack is held, and nobody knows whether the machine stands in it".to_owned());
        }
        self.held.racks.get(&item.value.address).map(|rack| format!("the rack {rack} is held"))
    }

    pub(super) fn operation<'s>(
        &self,
        state: &'s ClusterState,
        index: i64,
    ) -> Option<(&'s RepairOperation, &'s str)> {
        let entry = &state.repair.entries.get(&index)?.value;
        let operation = state.repair_config.as_ref()?.of(entry).ok()?;
        Some((operation, &entry.address))
    }

    pub(super) fn success_command(&self, state: &ClusterState, index: i64, record: i64) -> Option<Announced> {
        let (operation, address) = self.operation(state, index)?;
        let command = operation.success.as_ref()?;
        Some(Announced {
            index,
            record,
            words: command.for_machine(address),
            deadline: command.timeout,
            attempts: 1,
            interval: Duration::ZERO,
            health: None,
            kind: SUCCESS,
        })
    }

    pub(super) fn repair_command(
        &self,
        state: &ClusterState,
        index: i64,
        step: u32,
        record: i64,
    ) -> Option<Announced> {
        let (operation, address) = self.operation(state, index)?;
        let step = operation.step(step)?;
        let command = step.command.as_ref()?;
        Some(Announced {
            index,
            record,
            words: command.for_machine(address),
            deadline: command.timeout,
            attempts: step.attempts,
            interval: step.interval,
            health: operation.health_check.as_ref().map(|check| (check.for_machine(address), check.timeout)),
            kind: REPAIR,
        })
    }

    /// Starts a command that was announced.
    pub(super) fn run(&mut self, announced: Announced) {
        self.unsure = None;
        let Some(host) = self.given.host.clone() else { return };
        let stop = Arc::new(SetOnce::new());
        let order = command::Order {
            host,
            permits: self.permits(),
            words: announced.words.clone(),
            deadline: announced.deadline,
            attempts: announced.attempts,
            interval: announced.interval,
            health: announced.health.clone().map(|(words, deadline)| command::HealthCheck {
                words,
                deadline,
                round: self.given.interval,
            }),
            stop: Arc::clone(&stop),
        };
        let (actor, record) = (self.myself.clone(), announced.record);
        let task = Task::start(async move {
            let end = order.carry_out().await;
            // The actor is gone: its successor finds the record unfinished.
            let _ = actor.cast(RepairMessage::Ran { record, end }.into());
        });
        self.running = Some(Running { announced, stop, since: Instant::now(), _task: task });
    }

    pub(super) fn ran(&mut self, record: i64, end: CommandEnd) {
        let Some(running) = self.running.take_if(|running| running.announced.record == record) else {
            return;
        };
        telemetry::ran(running.announced.kind, end.how.name(), running.since.elapsed());
        self.ended = Some((running.announced.index, record, end));
    }

    /// How far drains are, those too that nobody looked at yet.
    pub(super) fn drains_seen(&self, state: &ClusterState) -> BTreeMap<i64, Drain> {
        let mut seen: BTreeMap<i64, Drain> =
            self.drains.iter().map(|(index, drain)| (*index, drain.state.clone())).collect();
        let entries = state.repair.entries.iter();
        let taken_over =
            entries.filter(|(index, item)| is_drained(&item.value) && !self.begun.contains(index));
        for (index, _) in taken_over {
            seen.entry(*index).or_insert_with(|| self.unseen());
        }
        seen
    }

    /// A drain that was taken over from an earlier leader.
    fn unseen(&self) -> Drain {
        Drain::Unseen { until: later(self.began.0, FIRST_LOOK) }
    }

    /// Starts the drains that the store announces and nobody carries out.
    pub(super) fn start_drains(&mut self, state: &ClusterState) {
        let (Some(kubernetes), Some(config)) = (self.given.kubernetes.clone(), state.repair_config.clone())
        else {
            return;
        };
        let draining: Vec<(i64, Arc<Item<RepairQueueEntry>>)> = state
            .repair
            .entries
            .iter()
            .filter(|(index, item)| is_drained(&item.value) && !self.drains.contains_key(index))
            .map(|(index, item)| (*index, Arc::clone(item)))
            .collect();
        if draining.is_empty() {
            return;
        }
        let places = places_of(state.cluster.as_ref().map(|cluster| &*cluster.value), &state.repair);
        let nodes: BTreeSet<String> = self.drains.values().map(|drain| drain.node.clone()).collect();
        let now = self.given.clock.now();
        for (index, item) in draining {
            let Some(place) = places.get(item.value.address.as_str()) else { continue };
            let node = place.name.to_owned();
            if nodes.contains(&node) || self.cordons.is_uncordoned(&node) {
                continue;
            }
            let number = self.take_number();
            let resumed = !self.begun.contains(&index);
            let order = drain::Order {
                kubernetes: Arc::clone(&kubernetes),
                permits: self.permits(),
                node: node.clone(),
                config: Arc::clone(&config),
                resumed,
                late: resumed && later(since(&item.value), config.eviction_timeout) < now,
            };
            let actor = self.myself.clone();
            let task = Task::start(async move {
                let tell = |news| {
                    // The actor is gone: its successor drains.
                    let _ = actor.cast(RepairMessage::Drained { index, drain: number, news }.into());
                };
                order.carry_out(tell).await;
            });
            let state = if resumed { self.unseen() } else { Drain::Runs { waits: None } };
            let limit = config.eviction_timeout;
            self.drains.insert(index, Draining { number, node, state, limit, _task: task });
        }
    }

    pub(super) fn drained(&mut self, index: i64, number: u64, news: DrainNews) {
        let now = self.given.clock.now();
        let Some(drain) = self.drains.get_mut(&index).filter(|drain| drain.number == number) else { return };
        drain.state = match (news, &drain.state) {
            (DrainNews::Waits(waits), Drain::Done) => Drain::Undone { until: later(now, drain.limit), waits },
            (DrainNews::Waits(waits), Drain::Undone { until, .. }) => Drain::Undone { until: *until, waits },
            (DrainNews::Waits(waits), _) => Drain::Runs { waits: Some(waits) },
            (DrainNews::Done, _) => Drain::Done,
            (DrainNews::Failed(why), _) => Drain::Failed { why },
        };
    }
}

/// Whether an entry says that its node is being drained.
fn is_drained(entry: &RepairQueueEntry) -> bool {
    is_active(entry) && entry.step_status == RepairStepStatus::Draining
}
