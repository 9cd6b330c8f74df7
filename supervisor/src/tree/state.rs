//! A supervisor's children and what becomes of them. Nothing here waits, but [`State::close`].

use std::collections::{BTreeMap, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use ractor::{ActorCell, ActorId, ActorRef, ActorStatus};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};

use super::actor::{Children, Message, Note, What};
use super::event::{BudgetExceeded, ChildExit, Meltdown, StopOutcome, TreeEvent, chain};
use super::handle::{AddError, ChildState, ChildStatus, FirstStart, Mode, Reply, StopError};
use super::policy::{Account, Waits};
use super::roster::{Control, HaltOnDrop, Live, until};
use super::spec::{ChildId, ChildSpec, Exceeded, Restart, StartError, SupervisorSpec};

const RESTARTS: &str = "madako_actor_restarts_total";
const UP: &str = "madako_actor_up";
const MELTDOWNS: &str = "madako_actor_meltdowns_total";

/// Describes the metrics of all supervisors to the recorder.
pub fn describe_metrics() {
    metrics::describe_counter!(RESTARTS, "Restarts of an actor after a failure.");
    metrics::describe_gauge!(UP, "Number of running actors with this label.");
    metrics::describe_counter!(MELTDOWNS, "Supervisors that ended because failures exceeded their budget.");
}

/// Where a child is in its life.
enum Phase {
    /// Its turn in the first start has not come.
    Waiting,
    /// Its start task runs.
    Starting,
    /// Its start task was told to give up.
    Cancelling,
    Running,
    /// A task waits for the end of its predecessor and for this time.
    Backoff(Instant),
    /// A task stops it.
    Stopping,
    /// It ended for good by itself; a task waits until everything below it is gone.
    Ending(End),
}

/// An end for good that nobody asked for.
enum End {
    Normal(Option<String>),
    GivenUp(BudgetExceeded),
}

/// One child.
struct Slot {
    spec: ChildSpec,
    phase: Phase,
    /// What the slot's task reports under; a report with another one is void.
    generation: u64,
    task: Option<Task>,
    /// The actor that runs, or the last one until it is known to be gone.
    live: Option<Live>,
    up: Option<Up>,
    started_at: Option<Instant>,
    waits: Waits,
    account: Option<Account>,
    restarts: u64,
    restarts_total: metrics::Counter,
    last_error: Option<String>,
    /// Cancels its start.
    cancel: watch::Sender<bool>,
    /// Turns its graceful stop into a kill.
    hurry: watch::Sender<bool>,
    added: Option<Reply<Result<FirstStart, AddError>>>,
    stopped: Vec<Reply<Result<StopOutcome, StopError>>>,
}

/// A task that ends with its slot.
struct Task(JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Counts a running actor in the metrics for as long as it lives.
struct Up(metrics::Gauge);

impl Up {
    fn new(label: &ChildId) -> Self {
        let gauge = metrics::gauge!(UP, "actor" => label.to_string());
        gauge.increment(1.0);
        Self(gauge)
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}

/// See the module.
pub struct State {
    myself: ActorRef<Message>,
    spec: SupervisorSpec,
    control: Arc<Control>,
    slots: BTreeMap<u64, Slot>,
    by_id: BTreeMap<ChildId, u64>,
    by_actor: BTreeMap<ActorId, u64>,
    /// Ends of actors whose start has not been reported yet.
    early: BTreeMap<ActorId, ChildExit>,
    account: Account,
    /// First starts still to be made, in order; the one that is being made.
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
        control: Arc<Control>,
    ) -> Result<Self, AddError> {
        let children = std::mem::take(&mut spec.children);
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
        let backoff = spec.backoff.unwrap_or(self.spec.backoff);
        let slot = Slot {
            phase: Phase::Waiting,
            generation: 0,
            task: None,
            live: None,
            up: None,
            started_at: None,
            waits: Waits::new(backoff, self.spec.seed, &spec.id),
            account: spec.own.as_ref().map(|(budget, _)| Account::new(*budget)),
            restarts: 0,
            // Here already: it is to be seen with 0 before the first restart.
            restarts_total: metrics::counter!(RESTARTS, "actor" => spec.label.to_string()),
            last_error: None,
            cancel: watch::Sender::new(false),
            hurry: watch::Sender::new(false),
            added: None,
            stopped: Vec::new(),
            spec,
        };
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
            // A caller that has gone needs no answer, here and below.
            Err(error) => drop(reply.send(Err(error))),
        }
    }

    pub(super) fn when_ready(&mut self, reply: Reply<()>) {
        self.ready.push(reply);
        self.tell_ready();
    }

    fn tell_ready(&mut self) {
        if self.first_now.is_none() && self.first.is_empty() {
            for reply in self.ready.drain(..) {
                let _ = reply.send(());
            }
        }
    }

    /// Begins the next first start, if none is under way.
    pub(super) fn start_next(&mut self) {
        while self.first_now.is_none() {
            let Some(order) = self.first.pop_front() else { break };
            // One that was removed meanwhile has no slot.
            if self.slots.contains_key(&order) {
                self.first_now = Some(order);
                self.start(order);
            }
        }
        self.tell_ready();
    }

    fn first_start_over(&mut self, order: u64) {
        if self.first_now == Some(order) {
            self.first_now = None;
            self.start_next();
        }
    }

    /// Gives the slot a new generation and phase, and ends its former task.
    fn turn(&mut self, order: u64, phase: Phase) -> Option<(&mut Slot, u64)> {
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
        let Some((slot, generation)) = self.turn(order, Phase::Starting) else { return };
        let spec = slot.spec.clone();
        let cancelled = slot.cancel.subscribe();
        let in_flight = control.begin_start();
        slot.task = Some(Task(tokio::spawn(async move {
            let result = start_child(&spec, supervisor.get_cell(), cancelled, control.hurried()).await;
            if let Ok(live) = &result {
                control.insert(order, live.clone());
                if live.cell.get_status() >= ActorStatus::Stopping {
                    // So that its end is in the mailbox before its start is. Without a time limit this cannot fail.
                    let _ = live.cell.wait(None).await;
                }
            }
            drop(in_flight);
            tell(&supervisor, order, generation, What::Started(result));
        })));
    }

    pub(super) fn note(&mut self, note: Note) {
        let Note { order, generation, what } = note;
        let Some(slot) = self.slots.get_mut(&order).filter(|s| s.generation == generation) else { return };
        match what {
            What::Started(result) => {
                let cancelled = matches!(slot.phase, Phase::Cancelling);
                match (result, cancelled) {
                    (Ok(live), false) => self.started(order, live),
                    (Ok(live), true) => {
                        slot.live = Some(live);
                        self.begin_stop(order);
                    }
                    (Err(_), true) => self.remove(order, StopOutcome::Stopped),
                    (Err(error), false) => {
                        let exit = ChildExit::StartFailed(chain(&error));
                        if let Some(reply) = slot.added.take() {
                            let _ = reply.send(Ok(FirstStart::Failed(exit.to_string())));
                        }
                        self.failed(order, exit);
                    }
                }
                self.first_start_over(order);
                if !self.any_starting() {
                    self.early.clear();
                }
            }
            What::Due => {
                self.forget_live(order);
                if let Some(slot) = self.slots.get_mut(&order) {
                    slot.restarts += 1;
                    slot.restarts_total.increment(1);
                }
                self.start(order);
            }
            What::Stopped(outcome) => self.remove(order, outcome),
            What::Gone => self.end(order),
        }
    }

    fn started(&mut self, order: u64, live: Live) {
        let supervisor = Arc::clone(&self.spec.id);
        let Some(slot) = self.slots.get_mut(&order) else { return };
        let actor = live.cell.get_id();
        if let Some(reply) = slot.added.take() {
            let _ = reply.send(Ok(FirstStart::Running(live.cell.clone())));
        }
        slot.phase = Phase::Running;
        slot.task = None;
        slot.started_at = Some(Instant::now());
        slot.up = Some(Up::new(&slot.spec.label));
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
            self.ended(order, actor, exit);
        } else if ended {
            self.ended(order, actor, ChildExit::Ended(Some("before it was linked".into())));
        }
    }

    /// An actor linked to this one has ended.
    pub(super) fn exited(&mut self, cell: &ActorCell, exit: ChildExit) {
        let actor = cell.get_id();
        match self.by_actor.get(&actor) {
            Some(order) => self.ended(*order, actor, exit),
            // Its start has not been reported yet.
            None if self.any_starting() => drop(self.early.insert(actor, exit)),
            None => {}
        }
    }

    fn any_starting(&self) -> bool {
        self.slots.values().any(|slot| matches!(slot.phase, Phase::Starting | Phase::Cancelling))
    }

    fn ended(&mut self, order: u64, actor: ActorId, exit: ChildExit) {
        self.by_actor.remove(&actor);
        let Some(slot) = self.slots.get_mut(&order) else { return };
        slot.up = None;
        if !matches!(slot.phase, Phase::Running) {
            return;
        }
        match exit {
            ChildExit::Ended(reason) if slot.spec.restart == Restart::Transient => {
                self.begin_end(order, End::Normal(reason));
            }
            exit => self.failed(order, exit),
        }
    }

    fn failed(&mut self, order: u64, reason: ChildExit) {
        let now = Instant::now();
        let supervisor = Arc::clone(&self.spec.id);
        let Some(slot) = self.slots.get_mut(&order) else { return };
        let child = Arc::clone(&slot.spec.id);
        slot.last_error = Some(reason.to_string());
        let ran = slot.started_at.take().map_or(Duration::ZERO, |t| now.duration_since(t));
        let account = slot.account.as_mut().unwrap_or(&mut self.account);
        let budget = account.budget();
        let restart_in = account.charge(now).then(|| slot.waits.next(ran));
        tracing::warn!(%supervisor, %child, %reason, ?restart_in, "an actor failed");
        let event = TreeEvent::ChildFailed {
            supervisor: Arc::clone(&supervisor),
            child: Arc::clone(&child),
            reason: reason.clone(),
            restart_in,
        };
        let exceeded = BudgetExceeded { child, restarts: budget.restarts, window: budget.window, reason };
        let reported = matches!(slot.spec.own, Some((_, Exceeded::Report(_))));
        self.emit(event);
        match restart_in {
            Some(wait) => self.begin_backoff(order, now + wait),
            None if reported => self.begin_end(order, End::GivenUp(exceeded)),
            None => self.melt_down(Meltdown { supervisor, exceeded }),
        }
    }

    fn begin_backoff(&mut self, order: u64, until: Instant) {
        let supervisor = self.myself.clone();
        let Some((slot, generation)) = self.turn(order, Phase::Backoff(until)) else { return };
        let last = slot.live.clone();
        slot.task = Some(Task(tokio::spawn(async move {
            gone(last).await;
            sleep_until(until).await;
            tell(&supervisor, order, generation, What::Due);
        })));
    }

    fn begin_end(&mut self, order: u64, end: End) {
        let supervisor = self.myself.clone();
        let Some((slot, generation)) = self.turn(order, Phase::Ending(end)) else { return };
        let last = slot.live.clone();
        slot.task = Some(Task(tokio::spawn(async move {
            gone(last).await;
            tell(&supervisor, order, generation, What::Gone);
        })));
    }

    fn begin_stop(&mut self, order: u64) {
        let supervisor = self.myself.clone();
        let grace = self.spec.kill_grace;
        let ended = self.has_ended(order);
        let Some((slot, generation)) = self.turn(order, Phase::Stopping) else { return };
        slot.up = None;
        let live = slot.live.clone();
        let deadline = slot.spec.stop_deadline;
        let mut hurry = slot.hurry.subscribe();
        slot.task = Some(Task(tokio::spawn(async move {
            let outcome = match live {
                Some(live) => live.stop(deadline, &mut hurry, grace).await,
                None => StopOutcome::Stopped,
            };
            tell(&supervisor, order, generation, What::Stopped(outcome.of(ended)));
        })));
    }

    /// True if the slot's last actor came to its end before it was asked to.
    fn has_ended(&self, order: u64) -> bool {
        self.slots.get(&order).is_some_and(|s| matches!(s.phase, Phase::Backoff(_) | Phase::Ending(_)))
    }

    fn melt_down(&mut self, meltdown: Meltdown) {
        let supervisor = self.spec.id.to_string();
        tracing::error!(%supervisor, %meltdown, "a supervisor melts down");
        metrics::counter!(MELTDOWNS, "supervisor" => supervisor).increment(1);
        self.control.set_meltdown(meltdown.clone());
        self.emit(TreeEvent::Meltdown(meltdown.clone()));
        self.meltdown = Some(meltdown);
        // A stop goes before every event and message: the next thing that runs is `close`.
        self.myself.stop(None);
    }

    pub(super) fn stop(
        &mut self,
        id: &ChildId,
        mode: Mode,
        reply: Option<Reply<Result<StopOutcome, StopError>>>,
    ) {
        let order = self.by_id.get(id).copied();
        let Some((order, slot)) = order.and_then(|o| Some((o, self.slots.get_mut(&o)?))) else {
            if let Some(reply) = reply {
                let _ = reply.send(Err(StopError::Unknown(Arc::clone(id))));
            }
            return;
        };
        slot.stopped.extend(reply);
        if mode == Mode::Now {
            slot.hurry.send_replace(true);
        }
        match slot.phase {
            Phase::Waiting => self.remove(order, StopOutcome::Stopped),
            Phase::Starting => {
                slot.phase = Phase::Cancelling;
                slot.cancel.send_replace(true);
            }
            Phase::Running | Phase::Backoff(_) => self.begin_stop(order),
            Phase::Cancelling | Phase::Stopping | Phase::Ending(_) => {}
        }
    }

    /// The slot's actor and everything below it is gone.
    fn forget_live(&mut self, order: u64) {
        if let Some(live) = self.slots.get_mut(&order).and_then(|s| s.live.take()) {
            self.by_actor.remove(&live.cell.get_id());
            self.control.remove(live.cell.get_id());
        }
    }

    fn remove(&mut self, order: u64, outcome: StopOutcome) {
        if outcome != StopOutcome::Stuck {
            self.forget_live(order);
        }
        let Some(slot) = self.slots.remove(&order) else { return };
        self.by_id.remove(&slot.spec.id);
        let child = slot.spec.id;
        if outcome == StopOutcome::Stuck {
            tracing::error!(supervisor = %self.spec.id, %child, "an actor does not end though it was killed");
        }
        let supervisor = Arc::clone(&self.spec.id);
        self.emit(TreeEvent::ChildStopped { supervisor, child: Arc::clone(&child), outcome });
        if let Some(reply) = slot.added {
            let _ = reply.send(Err(AddError::Removed(child)));
        }
        for reply in slot.stopped {
            let _ = reply.send(Ok(outcome));
        }
    }

    fn end(&mut self, order: u64) {
        self.forget_live(order);
        let Some(slot) = self.slots.remove(&order) else { return };
        self.by_id.remove(&slot.spec.id);
        let supervisor = Arc::clone(&self.spec.id);
        match slot.phase {
            Phase::Ending(End::Normal(reason)) => {
                self.emit(TreeEvent::ChildEnded { supervisor, child: slot.spec.id, reason });
            }
            Phase::Ending(End::GivenUp(exceeded)) => {
                tracing::error!(%supervisor, %exceeded, "an actor is given up");
                self.emit(TreeEvent::ChildGivenUp { supervisor, exceeded: exceeded.clone() });
                if let Some((_, Exceeded::Report(report))) = &slot.spec.own {
                    report(exceeded);
                }
            }
            _ => {}
        }
        for reply in slot.stopped {
            let _ = reply.send(Ok(StopOutcome::Stopped));
        }
    }

    pub(super) fn child(&self, id: &ChildId) -> Option<ActorCell> {
        let slot = self.by_id.get(id).and_then(|order| self.slots.get(order))?;
        match (&slot.phase, &slot.live) {
            (Phase::Running, Some(live)) => Some(live.cell.clone()),
            _ => None,
        }
    }

    pub(super) fn status(&self) -> Children {
        let now = Instant::now();
        let children = self.slots.values().map(|slot| {
            let state = match &slot.phase {
                Phase::Waiting => ChildState::Waiting,
                Phase::Starting => ChildState::Starting,
                Phase::Running => ChildState::Running,
                Phase::Backoff(until) => ChildState::Backoff(until.saturating_duration_since(now)),
                Phase::Cancelling | Phase::Stopping | Phase::Ending(_) => ChildState::Stopping,
            };
            let status = ChildStatus {
                id: Arc::clone(&slot.spec.id),
                state,
                restarts: slot.restarts,
                last_error: slot.last_error.clone(),
                below: None,
            };
            let below = slot.live.as_ref().filter(|live| live.is_supervisor()).map(|live| live.cell.clone());
            (status, below)
        });
        Children { supervisor: Arc::clone(&self.spec.id), children: children.collect() }
    }

    /// Stops every child in reverse order and waits; returns the meltdown if that is why.
    pub(super) async fn close(&mut self) -> Option<Meltdown> {
        let grace = self.spec.kill_grace;
        let mut hurry = self.control.hurried();
        for slot in self.slots.values_mut() {
            // Its tasks end; what they stopped or started is stopped from here.
            slot.task = None;
        }
        // A start that blocks its thread must not keep the others from being stopped.
        let _ = timeout(grace, self.control.no_start_in_flight()).await;
        // The roster, not the slots: it has what was started but not yet reported.
        for entry in self.control.roster().into_iter().rev() {
            let deadline = self.slots.get(&entry.order).map_or(Duration::ZERO, |s| s.spec.stop_deadline);
            let ended = self.has_ended(entry.order);
            // Its end carries its state; here no mailbox is read any more, so that would be kept until the
            // supervisor itself is dropped. Unlinked, its state is dropped when it ends.
            let guard = HaltOnDrop(entry.live.clone());
            entry.live.cell.unlink(self.myself.get_cell());
            let outcome = entry.live.stop(deadline, &mut hurry, grace).await.of(ended);
            drop(guard);
            self.closed(entry.order, &entry.live, outcome);
        }
        while let Some((order, _)) = self.slots.last_key_value() {
            self.remove(*order, StopOutcome::Stopped);
        }
        self.emit(TreeEvent::Stopped { supervisor: Arc::clone(&self.spec.id) });
        self.meltdown.take()
    }

    fn closed(&mut self, order: u64, live: &Live, outcome: StopOutcome) {
        if outcome != StopOutcome::Stuck {
            self.control.remove(live.cell.get_id());
        }
        self.remove(order, outcome);
    }

    fn emit(&self, event: TreeEvent) {
        (self.spec.sink)(&event);
    }
}

/// Starts a child and links it, within its deadline, unless it is cancelled.
async fn start_child(
    spec: &ChildSpec,
    supervisor: ActorCell,
    mut cancelled: watch::Receiver<bool>,
    mut hurried: watch::Receiver<bool>,
) -> Result<Live, StartError> {
    // The function is called within the future, so that a panic of its own is caught as well.
    let start = Arc::clone(&spec.start);
    let cell = supervisor.clone();
    let starting = AssertUnwindSafe(async move { start(cell).await }).catch_unwind();
    let result = tokio::select! {
        biased;
        () = until(&mut cancelled) => return Err(StartError::Cancelled),
        () = until(&mut hurried) => return Err(StartError::Cancelled),
        result = timeout(spec.start_deadline, starting) => result,
    };
    let live = match result {
        Err(_) => return Err(StartError::Deadline(spec.start_deadline)),
        Ok(Err(panic)) => return Err(StartError::Failed(panic_text(panic.as_ref()).into())),
        Ok(Ok(started)) => started?,
    };
    if live.cell.try_get_supervisor().map(|s| s.get_id()) != Some(supervisor.get_id()) {
        live.cell.link(supervisor);
    }
    Ok(live)
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string))
        .unwrap_or_else(|| "panicked with something that is no text".into())
}

async fn gone(live: Option<Live>) {
    if let Some(live) = live {
        live.gone().await;
    }
}

/// A supervisor that has ended needs no reports.
fn tell(supervisor: &ActorRef<Message>, order: u64, generation: u64, what: What) {
    let _ = supervisor.send_message(Message::from(Note { order, generation, what }));
}
