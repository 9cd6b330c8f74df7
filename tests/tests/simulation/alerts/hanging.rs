//! Test support: an actor that takes as long to handle a message as the message says.

use madako_protocol::mailbox::{Addressed, Envelope};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::time::{Instant, sleep_until};

/// A message whose handling ends at the given time.
pub struct Hangs(pub Instant);

impl Addressed for Hangs {
    const ACTOR: &'static str = "hanging";
}

pub struct Hanging;

impl Actor for Hanging {
    type Msg = Envelope<Hangs>;
    type State = ();
    type Arguments = ();

    async fn pre_start(&self, _: ActorRef<Self::Msg>, (): ()) -> Result<(), ActorProcessingErr> {
        Ok(())
    }

    async fn handle(
        &self,
        _: ActorRef<Self::Msg>,
        envelope: Envelope<Hangs>,
        (): &mut (),
    ) -> Result<(), ActorProcessingErr> {
        sleep_until(envelope.open().0).await;
        Ok(())
    }
}
