//! The public interface of a supervisor: requests and answers.

use std::sync::Arc;
use std::time::Duration;

use ractor::{Actor, ActorCell, ActorRef, MessagingErr, SpawnErr, registry};
use tokio::sync::oneshot;

use super::actor::{Arguments, Command, Message, Supervisor};
use super::event::{Meltdown, StopOutcome};
use super::roster::{LiveChild, SupervisorControl};
use super::spec::{ChildId, ChildSpec, SupervisorSpec, actor_name};
use crate::limits::CALL_DEADLINE;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Stop, wait up to the child's deadline, then kill. A supervisor stops its children so, in reverse order.
    Graceful,
    /// Kill, including everything below: handlers are cancelled in mid-await, no `post_stop` runs.
    Now,
}

/// The supervisor has ended, is ending, or did not answer in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the supervisor of the actor has ended, is ending, or did not answer in time")]
pub struct SupervisorEnded;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddError {
    /// A child with that id runs, waits for a restart, or has not ended yet.
    #[error("cannot add the actor {0}: its supervisor has an actor of that name already")]
    Duplicate(ChildId),
    /// The child was removed before its first start ended.
    #[error("cannot add the actor {0}: another caller removed it during its start")]
    Removed(ChildId),
    /// The supervisor accepts no more children.
    #[error("cannot add the actor {child} to its supervisor")]
    Ended { child: ChildId, source: SupervisorEnded },
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StopError {
    #[error("cannot stop the actor {0}: its supervisor has no actor of that name")]
    Unknown(ChildId),
    #[error("cannot stop the actor {child}")]
    Ended { child: ChildId, source: SupervisorEnded },
}

/// Result of the first start of an added child.
#[derive(Debug, Clone)]
pub enum FirstStart {
    Running(ActorCell),
    /// It failed; the child stays, and is restarted by its policy.
    Failed(String),
}

/// Children in the order of their starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreeStatus {
    pub supervisor: ChildId,
    pub children: Vec<ChildStatus>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChildStatus {
    pub id: ChildId,
    pub state: ChildState,
    /// Restarts since the child was added, including failed ones.
    pub restarts: u64,
    pub last_error: Option<String>,
    /// Children of a nested supervisor that answers.
    pub below: Option<TreeStatus>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChildState {
    /// Its turn to start has not come.
    Waiting,
    Starting,
    Running,
    /// It failed; remaining time until its restart.
    Backoff(Duration),
    Stopping,
}

pub(super) type Reply<T> = oneshot::Sender<T>;

/// A reference to a running or ended supervisor.
#[derive(Debug, Clone)]
pub struct SupervisorRef(ActorRef<Message>);

impl SupervisorRef {
    /// Finds the supervisor registered as `<instance>/<id>`.
    #[must_use]
    pub fn find(instance: &str, id: &str) -> Option<Self> {
        registry::where_is(actor_name(instance, id)).and_then(Self::from_cell)
    }

    /// `None`: the cell does not belong to a supervisor.
    #[must_use]
    pub fn from_cell(cell: ActorCell) -> Option<Self> {
        (cell.is_message_type_of::<Message>() == Some(true)).then(|| Self(cell.into()))
    }

    #[must_use]
    pub fn cell(&self) -> ActorCell {
        self.0.get_cell()
    }

    /// Adds a child at the end and starts it. Answers after its first start, within its start deadline.
    ///
    /// # Errors
    /// See [`AddError`]; a failed start is not an error, as it is retried.
    pub async fn add_child(&self, child: ChildSpec) -> Result<FirstStart, AddError> {
        let (reply, answer) = oneshot::channel();
        let id = child.id.clone();
        let ended = |source| AddError::Ended { child: id, source };
        match self.send(Command::Add(Box::new(child), reply)) {
            Ok(()) => answer.await.unwrap_or_else(|_| Err(ended(SupervisorEnded))),
            Err(source) => Err(ended(source)),
        }
    }

    /// Removes a child. Answers when it and everything below it is gone, within its stop deadline plus the
    /// supervisor's kill grace. [`Mode::Now`] also hurries a graceful stop in progress.
    pub async fn stop_child(&self, id: &str, mode: Mode) -> Result<StopOutcome, StopError> {
        let (reply, answer) = oneshot::channel();
        let ended = |source| StopError::Ended { child: id.into(), source };
        self.send(Command::Stop(id.into(), mode, Some(reply))).map_err(ended)?;
        answer.await.map_err(|_| ended(SupervisorEnded))?
    }

    /// Requests the removal of a child without waiting; a missing child is not an error.
    ///
    /// # Errors
    /// [`SupervisorEnded`]; then its children end as well.
    pub fn request_stop(&self, id: &str, mode: Mode) -> Result<(), SupervisorEnded> {
        self.send(Command::Stop(id.into(), mode, None))
    }

    /// Answers when the first start of every initial child has succeeded or failed.
    pub async fn wait_until_ready(&self) -> Result<(), SupervisorEnded> {
        let (reply, answer) = oneshot::channel();
        self.send(Command::Ready(reply))?;
        answer.await.map_err(|_| SupervisorEnded)
    }

    pub async fn find_child(&self, id: &str) -> Result<Option<ActorCell>, SupervisorEnded> {
        let (reply, answer) = oneshot::channel();
        self.send(Command::Child(id.into(), reply))?;
        wait_for_answer(answer).await
    }

    /// Status of all children, including those of nested supervisors.
    ///
    /// # Errors
    /// [`SupervisorEnded`] for this supervisor; a nested supervisor that does not answer shows no children.
    pub async fn read_status(&self) -> Result<TreeStatus, SupervisorEnded> {
        let (reply, answer) = oneshot::channel();
        self.send(Command::Status(reply))?;
        let children = wait_for_answer(answer).await?;
        let mut status = TreeStatus { supervisor: children.supervisor, children: Vec::new() };
        for (mut child, cell) in children.children {
            if let Some(below) = cell.and_then(Self::from_cell) {
                child.below = Box::pin(below.read_status()).await.ok();
            }
            status.children.push(child);
        }
        Ok(status)
    }

    fn send(&self, command: Command) -> Result<(), SupervisorEnded> {
        self.0.send_message(Message::from(command)).map_err(|_: MessagingErr<Message>| SupervisorEnded)
    }
}

async fn wait_for_answer<T>(answer: oneshot::Receiver<T>) -> Result<T, SupervisorEnded> {
    match tokio::time::timeout(CALL_DEADLINE, answer).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(_)) | Err(_) => Err(SupervisorEnded),
    }
}

/// A supervisor without a parent, and the whole tree below it.
#[derive(Debug)]
pub struct Tree {
    root: SupervisorRef,
    live: LiveChild,
    control: Arc<SupervisorControl>,
    kill_grace: Duration,
}

impl Tree {
    /// Starts a root. Its children start in the background; see [`SupervisorRef::wait_until_ready`].
    ///
    /// # Errors
    /// A name is taken, or two children have one id.
    pub async fn start(spec: SupervisorSpec) -> Result<Self, SpawnErr> {
        let control = Arc::new(SupervisorControl::default());
        let kill_grace = spec.kill_grace;
        let name = actor_name(&spec.instance, &spec.id);
        let arguments = Arguments { spec, control: Arc::clone(&control) };
        let (root, task) = Supervisor::spawn(Some(name), Supervisor, arguments).await?;
        let live = LiveChild::for_supervisor((root.clone(), task).into(), Arc::clone(&control));
        Ok(Self { root: SupervisorRef(root), live, control, kill_grace })
    }

    #[must_use]
    pub fn root(&self) -> &SupervisorRef {
        &self.root
    }

    /// Stops the tree in reverse order; kills the rest after `deadline`.
    pub async fn stop(&self, deadline: Duration) -> StopOutcome {
        let mut hurry = self.control.watch_end_request();
        self.live.stop(deadline, &mut hurry, self.kill_grace).await
    }

    /// Ends the tree at once, as [`Mode::Now`] does.
    pub async fn kill(&self) -> StopOutcome {
        self.live.halt();
        self.stop(Duration::ZERO).await
    }

    /// Waits until nothing of the tree is left. `None`: it was stopped.
    pub async fn wait_for_end(&self) -> Option<Meltdown> {
        self.live.wait_until_ended().await;
        self.control.meltdown()
    }
}
