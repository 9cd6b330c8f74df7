//! The number of messages in an actor's mailbox: a growing mailbox shows a stuck actor.
//!
//! Guarantees: a message counts from its sending until its handler begins, or until it is lost with its actor.

use crate::telemetry::CountedGauge;

crate::declare_metrics! {
    "Actors":
    gauge madako_actor_mailbox_messages(actor)
        "Waiting messages in the mailboxes of actors of this name. If more than a few wait for long, the actor is \
         stuck.";
}

/// The messages of one kind of actor.
pub trait Addressed {
    /// The actor's name in metrics and in the supervision tree.
    const ACTOR: &'static str;
}

/// A message in a mailbox.
#[derive(Debug)]
pub struct Envelope<M> {
    message: M,
    waiting: CountedGauge,
}

impl<M> Envelope<M> {
    /// Removes the message, which then no longer counts as waiting.
    pub fn open(self) -> M {
        let Self { message, waiting } = self;
        drop(waiting);
        message
    }
}

impl<M: Addressed> From<M> for Envelope<M> {
    fn from(message: M) -> Self {
        Self { message, waiting: CountedGauge::new(madako_actor_mailbox_messages(M::ACTOR)) }
    }
}
