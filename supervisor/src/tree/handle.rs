//! The face of a supervisor: what others ask of it, and what it answers.

use std::sync::Arc;
use std::time::Duration;

use ractor::{Actor, ActorCell, ActorRef, MessagingErr, SpawnErr, registry};
use tokio::sync::oneshot;

use super::actor::{Arguments, Command, Message, Supervisor};
use super::event::{Meltdown, StopOutcome};
use super::roster::{Control, Live};
use super::spec::{ChildId, ChildSpec, SupervisorSpec, actor_name};
use crate::limits::CALL_DEADLINE;

/// How a child is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Stop, wait up to the child's deadline, then kill. A supervisor stops its children so, in reverse order.
    Graceful,
    /// Kill, everything below it too: handlers are cancelled in mid-await, no `post_stop` runs.
    Now,
}

/// The supervisor has ended, is ending, or did not answer in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the supervisor has ended")]
pub struct Ended;

/// Why a child was not added.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddError {
    /// A child has that id: it runs, waits for a restart, or has not ended yet.
    #[error("there is a child {0} already")]
    Duplicate(ChildId),
    /// It was removed before its first start came to an end.
    #[error("child {0} was removed while it started")]
    Removed(ChildId),
    /// The supervisor takes no more children.
    #[error("child was not added")]
    Ended(#[source] Ended),
}

/// Why a child was not stopped.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StopError {
    /// No child has that id.
    #[error("there is no child {0}")]
    Unknown(ChildId),
    /// The supervisor ended, with its children, before it answered.
    #[error("child was not stopped")]
    Ended(#[source] Ended),
}

/// How the first start of an added child went.
#[derive(Debug, Clone)]
pub enum FirstStart {
    /// It runs.
    Running(ActorCell),
    /// It failed; the child stays, and is tried again by its policy.
    Failed(String),
}

/// A supervisor's children in the order of their starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreeStatus {
    /// The supervisor.
    pub supervisor: ChildId,
    /// Its children.
    pub children: Vec<ChildStatus>,
}

/// One child.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChildStatus {
    /// Its id.
    pub id: ChildId,
    /// What it does.
    pub state: ChildState,
    /// Restarts since it was added, those that failed included.
    pub restarts: u64,
    /// How it ended the last time that it failed.
    pub last_error: Option<String>,
    /// The children of a child that is a supervisor and answers.
    pub below: Option<TreeStatus>,
}

/// What a child does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChildState {
    /// Its turn to start has not come.
    Waiting,
    /// It is being started.
    Starting,
    /// It runs.
    Running,
    /// It failed and is started again after this time.
    Backoff(Duration),
    /// It is being removed.
    Stopping,
}

pub(super) type Reply<T> = oneshot::Sender<T>;

/// Refers to a supervisor that runs, or ran.
#[derive(Debug, Clone)]
pub struct SupervisorRef(ActorRef<Message>);

impl SupervisorRef {
    /// The supervisor that is registered as `<instance>/<id>`.
    #[must_use]
    pub fn find(instance: &str, id: &str) -> Option<Self> {
        registry::where_is(actor_name(instance, id)).and_then(Self::from_cell)
    }

    /// The supervisor behind a cell, if it is one.
    #[must_use]
    pub fn from_cell(cell: ActorCell) -> Option<Self> {
        (cell.is_message_type_of::<Message>() == Some(true)).then(|| Self(cell.into()))
    }

    /// Its cell, for `spawn_linked`, names, states.
    #[must_use]
    pub fn cell(&self) -> ActorCell {
        self.0.get_cell()
    }

    /// Adds a child at the end and starts it. Answers after its first start, which its start deadline bounds.
    ///
    /// # Errors
    /// See [`AddError`]; a start that failed is no error, it is tried again.
    pub async fn add_child(&self, child: ChildSpec) -> Result<FirstStart, AddError> {
        let (reply, answer) = oneshot::channel();
        self.send(Command::Add(Box::new(child), reply)).map_err(AddError::Ended)?;
        answer.await.map_err(|_| AddError::Ended(Ended))?
    }

    /// Removes a child. Answers when it and everything below it is gone, which its stop deadline and the
    /// supervisor's kill grace bound. [`Mode::Now`] also hurries a graceful stop that is under way.
    ///
    /// # Errors
    /// See [`StopError`].
    pub async fn stop_child(&self, id: &str, mode: Mode) -> Result<StopOutcome, StopError> {
        let (reply, answer) = oneshot::channel();
        self.send(Command::Stop(id.into(), mode, Some(reply))).map_err(StopError::Ended)?;
        answer.await.map_err(|_| StopError::Ended(Ended))?
    }

    /// Asks for the removal of a child and does not wait; one that does not exist is no error.
    ///
    /// # Errors
    /// [`Ended`]; then its children end as well.
    pub fn request_stop(&self, id: &str, mode: Mode) -> Result<(), Ended> {
        self.send(Command::Stop(id.into(), mode, None))
    }

    /// Answers when every child that the supervisor began with has been started, or has failed to start.
    ///
    /// # Errors
    /// [`Ended`].
    pub async fn ready(&self) -> Result<(), Ended> {
        let (reply, answer) = oneshot::channel();
        self.send(Command::Ready(reply))?;
        answer.await.map_err(|_| Ended)
    }

    /// The child that runs under this id.
    ///
    /// # Errors
    /// [`Ended`].
    pub async fn child(&self, id: &str) -> Result<Option<ActorCell>, Ended> {
        let (reply, answer) = oneshot::channel();
        self.send(Command::Child(id.into(), reply))?;
        within_deadline(answer).await
    }

    /// What its children do, those of supervisors below included.
    ///
    /// # Errors
    /// [`Ended`] for this supervisor; one below that does not answer shows no children.
    pub async fn status(&self) -> Result<TreeStatus, Ended> {
        let (reply, answer) = oneshot::channel();
        self.send(Command::Status(reply))?;
        let children = within_deadline(answer).await?;
        let mut status = TreeStatus { supervisor: children.supervisor, children: Vec::new() };
        for (mut child, cell) in children.children {
            if let Some(below) = cell.and_then(Self::from_cell) {
                child.below = Box::pin(below.status()).await.ok();
            }
            status.children.push(child);
        }
        Ok(status)
    }

    fn send(&self, command: Command) -> Result<(), Ended> {
        self.0.send_message(Message::from(command)).map_err(|_: MessagingErr<Message>| Ended)
    }
}

async fn within_deadline<T>(answer: oneshot::Receiver<T>) -> Result<T, Ended> {
    match tokio::time::timeout(CALL_DEADLINE, answer).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(_)) | Err(_) => Err(Ended),
    }
}

/// A supervisor without a supervisor: the whole tree below it.
#[derive(Debug)]
pub struct Tree {
    root: SupervisorRef,
    live: Live,
    control: Arc<Control>,
    kill_grace: Duration,
}

impl Tree {
    /// Starts a root. Its children are started in the background; see [`SupervisorRef::ready`].
    ///
    /// # Errors
    /// A name that is taken, or two children with one id.
    pub async fn start(spec: SupervisorSpec) -> Result<Self, SpawnErr> {
        let control = Arc::new(Control::default());
        let kill_grace = spec.kill_grace;
        let name = actor_name(&spec.instance, &spec.id);
        let arguments = Arguments { spec, control: Arc::clone(&control) };
        let (root, task) = Supervisor::spawn(Some(name), Supervisor, arguments).await?;
        let live = Live::supervisor((root.clone(), task).into(), Arc::clone(&control));
        Ok(Self { root: SupervisorRef(root), live, control, kill_grace })
    }

    /// The root.
    #[must_use]
    pub fn root(&self) -> &SupervisorRef {
        &self.root
    }

    /// Stops the tree in reverse order; after `deadline` what is left is killed.
    pub async fn stop(&self, deadline: Duration) -> StopOutcome {
        let mut hurry = self.control.hurried();
        self.live.stop(deadline, &mut hurry, self.kill_grace).await
    }

    /// Ends the tree at once, as [`Mode::Now`] does.
    pub async fn kill(&self) -> StopOutcome {
        self.live.halt();
        self.stop(Duration::ZERO).await
    }

    /// Waits until nothing of the tree is left: it was stopped (`None`), or melted down.
    pub async fn ended(&self) -> Option<Meltdown> {
        self.live.gone().await;
        self.control.meltdown()
    }
}
