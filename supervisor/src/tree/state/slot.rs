//! The state of one child, and the callers that wait for it.

use std::sync::Arc;

use madako_protocol::telemetry::{CountedGauge, Counter};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::telemetry::madako_actor_restarts_total;
use crate::tree::event::{BudgetExceeded, StopOutcome};
use crate::tree::handle::{AddError, ChildState, ChildStatus, FirstStart, Reply, StopError};
use crate::tree::policy::{Account, Backoff, RestartWaits};
use crate::tree::roster::LiveChild;
use crate::tree::spec::ChildSpec;

pub(super) enum Phase {
    /// Its turn in the first start has not come.
    Waiting,
    Starting,
    /// Its start task was cancelled.
    Cancelling,
    Running,
    /// A task waits for the end of its predecessor and for this time.
    Backoff(Instant),
    Stopping,
    /// It ended for good by itself; a task waits until everything below it is gone.
    Ending(ChildEnd),
}

pub(super) enum ChildEnd {
    Normal(Option<String>),
    GivenUp(BudgetExceeded),
}

pub(super) struct ChildSlot {
    pub(super) spec: ChildSpec,
    pub(super) phase: Phase,
    /// Generation of the slot's task; reports of other generations are void.
    pub(super) generation: u64,
    pub(super) task: Option<Task>,
    /// The running actor, or the last one until it is known to be gone.
    pub(super) live: Option<LiveChild>,
    /// Counts the running actor.
    pub(super) up: Option<CountedGauge>,
    pub(super) started_at: Option<Instant>,
    pub(super) waits: RestartWaits,
    pub(super) account: Option<Account>,
    pub(super) restarts: u64,
    pub(super) restarts_total: Counter,
    pub(super) last_error: Option<String>,
    pub(super) cancel: watch::Sender<bool>,
    /// Turns its graceful stop into a kill.
    pub(super) hurry: watch::Sender<bool>,
    pub(super) added: Option<Reply<Result<FirstStart, AddError>>>,
    pub(super) stopped: Vec<Reply<Result<StopOutcome, StopError>>>,
}

/// Aborts its task when dropped.
pub(super) struct Task(pub(super) JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl ChildSlot {
    /// A child before its first start; `backoff` applies if `spec` has none.
    pub(super) fn new(spec: ChildSpec, backoff: Backoff, seed: u64) -> Self {
        let backoff = spec.backoff.unwrap_or(backoff);
        Self {
            phase: Phase::Waiting,
            generation: 0,
            task: None,
            live: None,
            up: None,
            started_at: None,
            waits: RestartWaits::new(backoff, seed, &spec.id),
            account: spec.own.as_ref().map(|(budget, _)| Account::new(*budget)),
            restarts: 0,
            // Registers the counter, so that it shows 0 before the first restart.
            restarts_total: madako_actor_restarts_total(spec.label.to_string()),
            last_error: None,
            cancel: watch::Sender::new(false),
            hurry: watch::Sender::new(false),
            added: None,
            stopped: Vec::new(),
            spec,
        }
    }

    /// Status of the child without nested children.
    pub(super) fn status(&self, now: Instant) -> ChildStatus {
        let state = match &self.phase {
            Phase::Waiting => ChildState::Waiting,
            Phase::Starting => ChildState::Starting,
            Phase::Running => ChildState::Running,
            Phase::Backoff(until) => ChildState::Backoff(until.saturating_duration_since(now)),
            Phase::Cancelling | Phase::Stopping | Phase::Ending(_) => ChildState::Stopping,
        };
        ChildStatus {
            id: Arc::clone(&self.spec.id),
            state,
            restarts: self.restarts,
            last_error: self.last_error.clone(),
            below: None,
        }
    }
}
