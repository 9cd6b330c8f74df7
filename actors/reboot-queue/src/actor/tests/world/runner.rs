//! A fake of the operation runner.

use std::sync::{Arc, Mutex};

use madako_protocol::actors::RunnerMessage;
use madako_protocol::mailbox::Envelope;
use ractor::{Actor, ActorProcessingErr, ActorRef};

/// An operation runner that prepares nodes for their reboots, or refuses with this reason.
pub(super) struct FakeRunner;

/// The nodes that it was asked to prepare, and the reason for which it refuses.
pub(super) type Preparations = Arc<Mutex<(Vec<String>, Option<String>)>>;

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
        let mut preparations = preparations.lock().unwrap();
        preparations.0.push(node);
        let _ = reply.send(preparations.1.clone().map_or(Ok(()), Err));
        Ok(())
    }
}
