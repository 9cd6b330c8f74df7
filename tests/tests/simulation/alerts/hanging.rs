//! Test support: an actor that takes as long to handle a message as the message says.

use std::sync::Arc;

use madako_protocol::mailbox::{Addressed, Envelope};
use madako_protocol::ports::Clock;
use madako_supervisor::measured::Measured;
use madako_supervisor::tree::{ChildSpec, SupervisorRef};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::time::{Instant, sleep_until};

/// A message whose handling ends at the given time.
struct Hangs(Instant);

impl Addressed for Hangs {
    const ACTOR: &'static str = "hanging";
}

struct Hanging;

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

/// Adds an actor, with the usual measurements, that handles one message until `until` while others wait.
pub async fn hang(root: &SupervisorRef, clock: &Arc<dyn Clock>, until: Instant) {
    let clock = Arc::clone(clock);
    let spec = ChildSpec::for_actor("alerts", Hangs::ACTOR, move || {
        (Measured::new(Hanging, Hangs::ACTOR, &clock), ())
    });
    root.add_child(spec).await.unwrap();
    let cell = root.find_child(Hangs::ACTOR).await.unwrap().unwrap();
    let actor = ActorRef::<Envelope<Hangs>>::from(cell);
    for _ in 0..150 {
        actor.cast(Hangs(until).into()).unwrap();
    }
}
