//! A fake of the operation runner.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use madako_protocol::actors::RunnerMessage;
use madako_protocol::mailbox::Envelope;
use ractor::{Actor, ActorProcessingErr, ActorRef};

/// An operation runner that prepares nodes for their reboots, or refuses with this reason.
pub(super) struct FakeRunner;

#[derive(Default)]
pub(super) struct Prepared {
    /// The nodes that it was asked to prepare.
    pub(super) asked: Vec<String>,
    /// The reason for which it refuses.
    pub(super) refusal: Option<String>,
    /// Time until it answers.
    pub(super) takes: Duration,
    /// Questions whose answer nothing awaits any more.
    pub(super) abandoned: usize,
}

pub(super) type Preparations = Arc<Mutex<Prepared>>;

impl Actor for FakeRunner {
    type Msg = Envelope<RunnerMessage>;
    type State = Preparations;
    type Arguments = Preparations;

    async fn pre_start(
        &self,
        _: ActorRef<Envelope<RunnerMessage>>,
        preparations: Preparations,
    ) -> Result<Preparations, ActorProcessingErr> {
        Ok(preparations)
    }

    async fn handle(
        &self,
        _: ActorRef<Envelope<RunnerMessage>>,
        envelope: Envelope<RunnerMessage>,
        preparations: &mut Preparations,
    ) -> Result<(), ActorProcessingErr> {
        let RunnerMessage::PrepareReboot { node, reply } = envelope.open() else { panic!("another message") };
        let (answer, takes) = {
            let mut prepared = preparations.lock().unwrap();
            prepared.asked.push(node);
            (prepared.refusal.clone().map_or(Ok(()), Err), prepared.takes)
        };
        let preparations = Arc::clone(preparations);
        tokio::spawn(async move {
            tokio::time::sleep(takes).await;
            if reply.send(answer).is_err() {
                preparations.lock().unwrap().abandoned += 1;
            }
        });
        Ok(())
    }
}
