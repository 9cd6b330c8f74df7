//! The state of a supervisor: its children and their transitions. Only [`State::close`] waits.

mod end;
mod slot;
mod start;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use madako_domain::canary::{Canary, is_planted};
use madako_protocol::telemetry::CountedGauge;
use ractor::{ActorCell, ActorId, ActorRef, ActorStatus};
use tokio::time::{Instant, sleep_until};

use self::slot::{ChildEnd, ChildSlot, Phase, Task};
use self::start::start_child;
use super::actor::{ChildReport, ChildReportKind, Children, Message};
use super::event::{BudgetExceeded, ChildExit, Meltdown, StopOutcome, TreeEvent, failure_reason};
use super::handle::{AddError, FirstStart, Reply};
use super::policy::Account;
use super::roster::{LiveChild, SupervisorControl};
use super::spec::{BudgetAction, ChildId, ChildSpec, Restart, SupervisorSpec};
use crate::telemetry::{madako_actor_meltdowns_total, madako_actor_up};

pub struct State {
    myself: ActorRef<Message>,
    spec: SupervisorSpec,
    control: Arc<SupervisorControl>,
    slots: BTreeMap<u64, ChildSlot>,
    by_id: BTreeMap<ChildId, u64>,
    by_actor: BTreeMap<ActorId, u64>,
    /// Ends that arrived before the report of the actor's start.
    early: BTreeMap<ActorId, ChildExit>,
    account: Account,
    /// First starts still to be made, in order; `first_now` is the one in progress.
    first: VecDeque<u64>,
    first_now: Option<u64>,
    ready: Vec<Reply<()>>,
    next_order: u64,
    next_generation: u64,
    meltdown: Option<Meltdown>,
}

impl State {
    pub(super) fn new(
        myself: ActorRef<Message>,
        mut spec: SupervisorSpec,
        control: Arc<SupervisorControl>,
    ) -> Result<Self, AddError> {
        let children = std::mem::take(&mut spec.children);
        // Registers the counter, so that it shows 0 before the first meltdown.
        madako_actor_meltdowns_total(spec.id.to_string()).increment(0);
        let mut state = Self {
            myself,
            account: Account::new(spec.budget),
            spec,
            control,
            slots: BTreeMap::new(),
            by_id: BTreeMap::new(),
            by_actor: BTreeMap::new(),
            early: BTreeMap::new(),
            first: VecDeque::new(),
            first_now: None,
            ready: Vec::new(),
            next_order: 0,
            next_generation: 0,
            meltdown: None,
        };
        for child in children {
            let order = state.insert(child)?;
            state.first.push_back(order);
        }
        Ok(state)
    }

    fn insert(&mut self, spec: ChildSpec) -> Result<u64, AddError> {
        if self.by_id.contains_key(&spec.id) {
            return Err(AddError::Duplicate(spec.id));
        }
        let order = self.next_order;
        self.next_order += 1;
        self.by_id.insert(Arc::clone(&spec.id), order);
        let slot = ChildSlot::new(spec, self.spec.backoff, self.spec.seed);
        self.slots.insert(order, slot);
        Ok(order)
    }

    pub(super) fn add(&mut self, spec: ChildSpec, reply: Reply<Result<FirstStart, AddError>>) {
        match self.insert(spec) {
            Ok(order) => {
                if let Some(slot) = self.slots.get_mut(&order) {
                    slot.added = Some(reply);
                }
                self.start(order);
            }
            // The caller may be gone, here and below.
            Err(error) => drop(reply.send(Err(error))),
        }
    }

    pub(super) fn reply_when_ready(&mut self, reply: Reply<()>) {
        self.ready.push(reply);
        self.answer_ready_waiters();
    }

    fn answer_ready_waiters(&mut self) {
        if self.first_now.is_none() && self.first.is_empty() {
            for reply in self.ready.drain(..) {
                let _ = reply.send(());
            }
        }
    }

    /// Begins the next first start, if none is in progress.
    pub(super) fn start_next(&mut self) {
        while self.first_now.is_none() {
            let Some(order) = self.first.pop_front() else { break };
            // A child that was removed in the meantime has no slot.
            if self.slots.contains_key(&order) {
                self.first_now = Some(order);
                self.start(order);
            }
        }
        self.answer_ready_waiters();
    }

    fn finish_first_start(&mut self, order: u64) {
        if self.first_now == Some(order) {
            self.first_now = None;
            self.start_next();
        }
    }

    /// Gives the slot a new generation and phase, and ends its previous task.
    fn begin_phase(&mut self, order: u64, phase: Phase) -> Option<(&mut ChildSlot, u64)> {
        self.next_generation += 1;
        let generation = self.next_generation;
        let slot = self.slots.get_mut(&order)?;
        slot.generation = generation;
        slot.phase = phase;
        slot.task = None;
        Some((slot, generation))
    }

    fn start(&mut self, order: u64) {
        let supervisor = self.myself.clone();
        let control = Arc::clone(&self.control);
        let Some((slot, generation)) = self.begin_phase(order, Phase::Starting) else { return };
        let spec = slot.spec.clone();
        let cancelled = slot.cancel.subscribe();
        let in_flight = control.begin_start();
        slot.task = Some(Task(tokio::spawn(async move {
            let result =
                start_child(&spec, supervisor.get_cell(), cancelled, control.watch_end_request()).await;
            if let Ok(live) = &result {
                control.insert(order, live.clone());
                if live.cell.get_status() >= ActorStatus::Stopping {
                    // Ensures that the end is in the mailbox before the start. Without a time limit this cannot fail.
                    let _ = live.cell.wait(None).await;
                }
            }
            drop(in_flight);
            report_child(&supervisor, order, generation, ChildReportKind::Started(result));
        })));
    }

    pub(super) fn note(&mut self, note: ChildReport) {
        let ChildReport { order, generation, kind: what } = note;
        let Some(slot) = self.slots.get_mut(&order).filter(|s| s.generation == generation) else { return };
        match what {
            ChildReportKind::Started(result) => {
                let cancelled = matches!(slot.phase, Phase::Cancelling);
                match (result, cancelled) {
                    (Ok(live), false) => self.handle_start(order, live),
                    (Ok(live), true) => {
                        slot.live = Some(live);
                        self.begin_stop(order);
                    }
                    (Err(_), true) => self.remove(order, StopOutcome::Stopped),
                    (Err(error), false) => {
                        let exit = ChildExit::StartFailed(failure_reason(&error));
                        if let Some(reply) = slot.added.take() {
                            let _ = reply.send(Ok(FirstStart::Failed(exit.to_string())));
                        }
                        self.handle_failure(order, exit);
                    }
                }
                self.finish_first_start(order);
                if !self.is_any_starting() {
                    self.early.clear();
                }
            }
            ChildReportKind::Due => {
                self.forget_live(order);
                if let Some(slot) = self.slots.get_mut(&order) {
                    slot.restarts += 1;
                    slot.restarts_total.increment(1);
                }
                if !is_planted(Canary::ForgottenRestart) {
                    self.start(order);
                }
            }
            ChildReportKind::Stopped(outcome) => self.remove(order, outcome),
            ChildReportKind::Gone => self.end(order),
        }
    }

    fn handle_start(&mut self, order: u64, live: LiveChild) {
        let supervisor = Arc::clone(&self.spec.id);
        let Some(slot) = self.slots.get_mut(&order) else { return };
        let actor = live.cell.get_id();
        if let Some(reply) = slot.added.take() {
            let _ = reply.send(Ok(FirstStart::Running(live.cell.clone())));
        }
        slot.phase = Phase::Running;
        slot.task = None;
        slot.started_at = Some(Instant::now());
        slot.up = Some(CountedGauge::new(madako_actor_up(slot.spec.label.to_string())));
        let ended = live.cell.get_status() >= ActorStatus::Stopped;
        slot.live = Some(live);
        let child = Arc::clone(&slot.spec.id);
        let event = match slot.restarts {
            0 => TreeEvent::ChildStarted { supervisor, child },
            restarts => TreeEvent::ChildRestarted { supervisor, child, restarts },
        };
        self.by_actor.insert(actor, order);
        self.emit(event);
        if let Some(exit) = self.early.remove(&actor) {
            self.handle_end(order, actor, exit);
        } else if ended {
            self.handle_end(order, actor, ChildExit::Ended(Some("before it was linked".into())));
        }
    }

    /// Handles the end of a linked actor.
    pub(super) fn handle_exit(&mut self, cell: &ActorCell, exit: ChildExit) {
        let actor = cell.get_id();
        match self.by_actor.get(&actor) {
            Some(order) => self.handle_end(*order, actor, exit),
            // The report of its start has not arrived yet.
            None if self.is_any_starting() => drop(self.early.insert(actor, exit)),
            None => {}
        }
    }

    fn is_any_starting(&self) -> bool {
        self.slots.values().any(|slot| matches!(slot.phase, Phase::Starting | Phase::Cancelling))
    }

    fn handle_end(&mut self, order: u64, actor: ActorId, exit: ChildExit) {
        self.by_actor.remove(&actor);
        let Some(slot) = self.slots.get_mut(&order) else { return };
        slot.up = None;
        if !matches!(slot.phase, Phase::Running) {
            return;
        }
        match exit {
            ChildExit::Ended(reason) if slot.spec.restart == Restart::Transient => {
                self.begin_end(order, ChildEnd::Normal(reason));
            }
            exit => self.handle_failure(order, exit),
        }
    }

    fn handle_failure(&mut self, order: u64, reason: ChildExit) {
        let now = Instant::now();
        let supervisor = Arc::clone(&self.spec.id);
        let Some(slot) = self.slots.get_mut(&order) else { return };
        let child = Arc::clone(&slot.spec.id);
        slot.last_error = Some(reason.to_string());
        let ran = slot.started_at.take().map_or(Duration::ZERO, |t| now.duration_since(t));
        let account = slot.account.as_mut().unwrap_or(&mut self.account);
        let budget = account.budget();
        let restart_in = account.charge_restart(now).then(|| slot.waits.next(ran));
        tracing::warn!(%supervisor, %child, %reason, ?restart_in, "an actor failed");
        let event = TreeEvent::ChildFailed {
            supervisor: Arc::clone(&supervisor),
            child: Arc::clone(&child),
            reason: reason.clone(),
            restart_in,
        };
        let exceeded = BudgetExceeded { child, restarts: budget.restarts, window: budget.window, reason };
        let reported = matches!(slot.spec.own, Some((_, BudgetAction::Report(_))));
        self.emit(event);
        match restart_in {
            Some(wait) => self.begin_backoff(order, now + wait),
            None if reported => self.begin_end(order, ChildEnd::GivenUp(exceeded)),
            None => self.melt_down(Meltdown { supervisor, exceeded }),
        }
    }

    fn begin_backoff(&mut self, order: u64, until: Instant) {
        let supervisor = self.myself.clone();
        let Some((slot, generation)) = self.begin_phase(order, Phase::Backoff(until)) else { return };
        let last = slot.live.clone();
        slot.task = Some(Task(tokio::spawn(async move {
            wait_until_ended(last).await;
            sleep_until(until).await;
            report_child(&supervisor, order, generation, ChildReportKind::Due);
        })));
    }

    fn begin_end(&mut self, order: u64, end: ChildEnd) {
        let supervisor = self.myself.clone();
        let Some((slot, generation)) = self.begin_phase(order, Phase::Ending(end)) else { return };
        let last = slot.live.clone();
        slot.task = Some(Task(tokio::spawn(async move {
            wait_until_ended(last).await;
            report_child(&supervisor, order, generation, ChildReportKind::Gone);
        })));
    }

    fn melt_down(&mut self, meltdown: Meltdown) {
        let supervisor = self.spec.id.to_string();
        tracing::error!(%supervisor, %meltdown, "a supervisor melts down");
        madako_actor_meltdowns_total(supervisor).increment(1);
        self.control.set_meltdown(meltdown.clone());
        self.emit(TreeEvent::Meltdown(meltdown.clone()));
        self.meltdown = Some(meltdown);
        // A stop precedes all events and messages: `close` runs next.
        self.myself.stop(None);
    }

    pub(super) fn find_child(&self, id: &ChildId) -> Option<ActorCell> {
        let slot = self.by_id.get(id).and_then(|order| self.slots.get(order))?;
        match (&slot.phase, &slot.live) {
            (Phase::Running, Some(live)) => Some(live.cell.clone()),
            _ => None,
        }
    }

    pub(super) fn status(&self) -> Children {
        let now = Instant::now();
        let children = self.slots.values().map(|slot| {
            let status = slot.status(now);
            let below = slot.live.as_ref().filter(|live| live.is_supervisor()).map(|live| live.cell.clone());
            (status, below)
        });
        Children { supervisor: Arc::clone(&self.spec.id), children: children.collect() }
    }

    fn emit(&self, event: TreeEvent) {
        (self.spec.sink)(&event);
    }
}

async fn wait_until_ended(live: Option<LiveChild>) {
    if let Some(live) = live {
        live.wait_until_ended().await;
    }
}

/// An ended supervisor needs no reports.
fn report_child(supervisor: &ActorRef<Message>, order: u64, generation: u64, what: ChildReportKind) {
    let _ = supervisor.send_message(Message::from(ChildReport { order, generation, kind: what }));
}
