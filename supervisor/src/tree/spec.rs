//! Specification of supervisors and children: ids, starts, restart policy, deadlines.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use ractor::{Actor, ActorCell, ActorProcessingErr, SpawnErr};

use super::actor::{Arguments, Supervisor};
use super::event::{BudgetExceeded, EventSink};
use super::policy::{Backoff, Budget};
use super::roster::{LiveChild, StartedActor, SupervisorControl};
use crate::limits::{ACTOR_STOP_DEADLINE, KILL_GRACE, START_DEADLINE, SUPERVISOR_STOP_DEADLINE};

/// Name of a child, unique within its supervisor.
pub type ChildId = Arc<str>;

/// Registered name of an instance's actor: ractor's registry is global to the process, and several instances may run
/// in it.
#[must_use]
pub fn actor_name(instance: &str, id: &str) -> String {
    format!("{instance}/{id}")
}

/// The ends of a child that count as failures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Restart {
    /// Every end that the supervisor did not request.
    Permanent,
    /// A panic, an error and a kill. A normal end removes the child.
    Transient,
}

/// Action when a child's own budget is exceeded.
#[derive(Clone)]
pub enum BudgetAction {
    /// The supervisor melts down.
    Escalate,
    /// Removes the child and calls the function once the child is gone; the supervisor continues. The function runs
    /// in the supervisor's task: it must not block, and may send messages.
    Report(Arc<dyn Fn(BudgetExceeded) + Send + Sync>),
}

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Another actor of this process has its name.
    #[error("the actor cannot start: another actor of this process has the name {0} already")]
    NameTaken(String),
    /// Its `pre_start` or its start function failed or panicked.
    #[error("the start of the actor failed")]
    Failed(#[source] ActorProcessingErr),
    /// Its start exceeded this time and was cancelled.
    #[error("the start of the actor did not end within {0:?}")]
    Deadline(Duration),
    /// It was removed, or its supervisor ended, during its start.
    #[error("the start of the actor was cancelled, because the actor was removed or its supervisor ends")]
    Cancelled,
}

impl From<SpawnErr> for StartError {
    fn from(error: SpawnErr) -> Self {
        match error {
            SpawnErr::ActorAlreadyRegistered(name) => Self::NameTaken(name),
            SpawnErr::StartupFailed(error) => Self::Failed(error),
            other @ SpawnErr::ActorAlreadyStarted => Self::Failed(Box::new(other)),
        }
    }
}

pub(super) type StartFuture = Pin<Box<dyn Future<Output = Result<LiveChild, StartError>> + Send>>;
type StartFn = Arc<dyn Fn(ActorCell) -> StartFuture + Send + Sync>;

#[derive(Clone)]
pub struct ChildSpec {
    pub(super) id: ChildId,
    pub(super) label: ChildId,
    pub(super) restart: Restart,
    pub(super) backoff: Option<Backoff>,
    pub(super) own: Option<(Budget, BudgetAction)>,
    pub(super) start_deadline: Duration,
    pub(super) stop_deadline: Duration,
    pub(super) start: StartFn,
}

impl ChildSpec {
    /// A permanent child. `start` starts it as a child of the given supervisor (`Ok(spawn_linked(..).await?.into())`;
    /// an unlinked actor is linked). Each restart calls `start` again.
    pub fn new<F, Fut>(id: impl Into<ChildId>, start: F) -> Self
    where
        F: Fn(ActorCell) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<StartedActor, StartError>> + Send + 'static,
    {
        Self::with_start(
            id.into(),
            ACTOR_STOP_DEADLINE,
            Arc::new(move |supervisor| {
                let started = start(supervisor);
                Box::pin(async move { Ok(LiveChild::for_actor(started.await?)) })
            }),
        )
    }

    /// A permanent child that runs an actor from `make` under the name `<instance>/<id>`.
    pub fn for_actor<A: Actor>(
        instance: &str,
        id: impl Into<ChildId>,
        make: impl Fn() -> (A, A::Arguments) + Send + Sync + 'static,
    ) -> Self {
        let id = id.into();
        let name = actor_name(instance, &id);
        Self::new(id, move |supervisor| {
            let (actor, arguments) = make();
            let name = name.clone();
            async move { Ok(A::spawn_linked(Some(name), actor, arguments, supervisor).await?.into()) }
        })
    }

    /// A nested supervisor, under its own id. A restart begins with the children of `spec`; children that were added
    /// at run time are not added again.
    #[must_use]
    pub fn for_supervisor(spec: SupervisorSpec) -> Self {
        let id = spec.id.clone();
        Self::with_start(
            id,
            SUPERVISOR_STOP_DEADLINE,
            Arc::new(move |supervisor| {
                let spec = spec.clone();
                Box::pin(async move {
                    let control = Arc::new(SupervisorControl::default());
                    let name = actor_name(&spec.instance, &spec.id);
                    let arguments = Arguments { spec, control: Arc::clone(&control) };
                    let started =
                        Supervisor::spawn_linked(Some(name), Supervisor, arguments, supervisor).await?;
                    Ok(LiveChild::for_supervisor(started.into(), control))
                })
            }),
        )
    }

    fn with_start(id: ChildId, stop_deadline: Duration, start: StartFn) -> Self {
        Self {
            label: Arc::clone(&id),
            id,
            restart: Restart::Permanent,
            backoff: None,
            own: None,
            start_deadline: START_DEADLINE,
            stop_deadline,
            start,
        }
    }

    #[must_use]
    pub fn id(&self) -> &ChildId {
        &self.id
    }

    /// The `actor` label in metrics; default: the id. Numerous children of one kind share a label.
    #[must_use]
    pub fn with_label(mut self, label: impl Into<ChildId>) -> Self {
        self.label = label.into();
        self
    }

    #[must_use]
    pub fn restart(mut self, restart: Restart) -> Self {
        self.restart = restart;
        self
    }

    /// Replaces the supervisor's back-off.
    #[must_use]
    pub fn with_backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = Some(backoff);
        self
    }

    /// Gives the child its own budget: its failures do not count for the supervisor's.
    #[must_use]
    pub fn own_budget(mut self, budget: Budget, exceeded: BudgetAction) -> Self {
        self.own = Some((budget, exceeded));
        self
    }

    /// A longer start counts as failed.
    #[must_use]
    pub fn start_deadline(mut self, deadline: Duration) -> Self {
        self.start_deadline = deadline;
        self
    }

    /// Time for a graceful end; then the child is killed.
    #[must_use]
    pub fn stop_deadline(mut self, deadline: Duration) -> Self {
        self.stop_deadline = deadline;
        self
    }
}

#[derive(Clone)]
pub struct SupervisorSpec {
    pub(super) instance: Arc<str>,
    pub(super) id: ChildId,
    pub(super) seed: u64,
    pub(super) backoff: Backoff,
    pub(super) budget: Budget,
    pub(super) kill_grace: Duration,
    pub(super) sink: EventSink,
    pub(super) children: Vec<ChildSpec>,
}

impl SupervisorSpec {
    /// Supervisor `id` of the instance, registered as `<instance>/<id>`. `seed` determines its jitter.
    #[must_use]
    pub fn new(instance: impl Into<Arc<str>>, id: impl Into<ChildId>, seed: u64, sink: EventSink) -> Self {
        Self {
            instance: instance.into(),
            id: id.into(),
            seed,
            backoff: Backoff::DEFAULT,
            budget: Budget::DEFAULT,
            kill_grace: KILL_GRACE,
            sink,
            children: Vec::new(),
        }
    }

    /// Adds a child; children start in this order.
    #[must_use]
    pub fn with_child(mut self, child: ChildSpec) -> Self {
        self.children.push(child);
        self
    }

    /// Back-off of children without their own.
    #[must_use]
    pub fn with_backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// Budget for the failures of all children without their own.
    #[must_use]
    pub fn with_budget(mut self, budget: Budget) -> Self {
        self.budget = budget;
        self
    }

    /// Time for a killed child to end before it counts as stuck.
    #[must_use]
    pub fn kill_grace(mut self, grace: Duration) -> Self {
        self.kill_grace = grace;
        self
    }
}
