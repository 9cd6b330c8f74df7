//! The supervisor's actor: its mailbox, and the translation of ractor's events into calls of its state.

use std::sync::Arc;

use ractor::{Actor, ActorCell, ActorProcessingErr, ActorRef, SupervisionEvent};

use super::event::{ChildExit, Meltdown, StopOutcome, failure_reason, shorten_reason};
use super::handle::{AddError, ChildStatus, FirstStart, Mode, Reply, StopError};
use super::roster::{LiveChild, SupervisorControl};
use super::spec::{ChildId, ChildSpec, StartError, SupervisorSpec};
use super::state::State;

/// ractor's text in place of a reason when an actor was killed or its task cancelled.
const KILLED: [&str; 2] = ["killed", "actor_task_cancelled"];

/// The supervisor actor. [`Tree`](super::Tree) and [`ChildSpec::for_supervisor`] start it.
#[derive(Debug)]
pub struct Supervisor;

pub struct Arguments {
    pub(super) spec: SupervisorSpec,
    pub(super) control: Arc<SupervisorControl>,
}

/// A message to a supervisor; [`SupervisorRef`](super::SupervisorRef) sends it.
pub struct Message(SupervisorMessage);

enum SupervisorMessage {
    Command(Command),
    Note(ChildReport),
}

/// Requests from outside.
pub(super) enum Command {
    Add(Box<ChildSpec>, Reply<Result<FirstStart, AddError>>),
    Stop(ChildId, Mode, Option<Reply<Result<StopOutcome, StopError>>>),
    Ready(Reply<()>),
    Child(ChildId, Reply<Option<ActorCell>>),
    Status(Reply<Children>),
}

/// Answer to [`Command::Status`]; the cells are those of nested supervisors, which the caller asks in turn.
pub(super) struct Children {
    pub(super) supervisor: ChildId,
    pub(super) children: Vec<(ChildStatus, Option<ActorCell>)>,
}

/// Report of a supervisor's own task about a child. A report with an old generation is void.
pub(super) struct ChildReport {
    pub(super) order: u64,
    pub(super) generation: u64,
    pub(super) kind: ChildReportKind,
}

pub(super) enum ChildReportKind {
    Started(Result<LiveChild, StartError>),
    /// The back-off is over and the predecessor is gone.
    Due,
    Stopped(StopOutcome),
    /// The child ended for good by itself and is gone.
    Gone,
}

impl From<Command> for Message {
    fn from(command: Command) -> Self {
        Self(SupervisorMessage::Command(command))
    }
}

impl From<ChildReport> for Message {
    fn from(note: ChildReport) -> Self {
        Self(SupervisorMessage::Note(note))
    }
}

impl Actor for Supervisor {
    type Msg = Message;
    type State = State;
    type Arguments = Arguments;

    async fn pre_start(
        &self,
        myself: ActorRef<Message>,
        arguments: Arguments,
    ) -> Result<State, ActorProcessingErr> {
        Ok(State::new(myself, arguments.spec, arguments.control)?)
    }

    async fn post_start(
        &self,
        _myself: ActorRef<Message>,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        state.start_next();
        Ok(())
    }

    async fn handle(
        &self,
        _myself: ActorRef<Message>,
        message: Message,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match message.0 {
            SupervisorMessage::Note(note) => state.note(note),
            SupervisorMessage::Command(Command::Add(spec, reply)) => state.add(*spec, reply),
            SupervisorMessage::Command(Command::Stop(id, mode, reply)) => state.stop(&id, mode, reply),
            SupervisorMessage::Command(Command::Ready(reply)) => state.reply_when_ready(reply),
            // The caller may be gone.
            SupervisorMessage::Command(Command::Child(id, reply)) => drop(reply.send(state.find_child(&id))),
            SupervisorMessage::Command(Command::Status(reply)) => drop(reply.send(state.status())),
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        _myself: ActorRef<Message>,
        event: SupervisionEvent,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match event {
            SupervisionEvent::ActorFailed(cell, error) => {
                let exit = match error.downcast::<Meltdown>() {
                    Ok(meltdown) => ChildExit::Meltdown(meltdown),
                    Err(error) => ChildExit::Failed(failure_reason(error.as_ref())),
                };
                state.handle_exit(&cell, exit);
            }
            SupervisionEvent::ActorTerminated(cell, _, reason) => {
                let exit = match reason {
                    Some(reason) if KILLED.contains(&reason.as_str()) => ChildExit::Killed,
                    reason => ChildExit::Ended(reason.map(shorten_reason)),
                };
                state.handle_exit(&cell, exit);
            }
            SupervisionEvent::ActorStarted(_) | SupervisionEvent::ProcessGroupChanged(_) => {}
        }
        Ok(())
    }

    /// Every orderly end arrives here, a meltdown too: ractor runs no `post_stop` after an error.
    async fn post_stop(
        &self,
        _myself: ActorRef<Message>,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match state.close().await {
            None => Ok(()),
            Some(meltdown) => Err(Box::new(meltdown)),
        }
    }
}
