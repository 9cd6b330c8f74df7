//! The number of messages in an actor's mailbox: a growing mailbox shows a stuck actor.
//!
//! Guarantees: a message counts from its sending until its handler begins, or until it is lost with its actor.

use metrics::{Gauge, describe_gauge, gauge};

const WAITING: &str = "madako_actor_mailbox_messages";

/// Describes the metric to the recorder.
pub fn describe_metrics() {
    describe_gauge!(WAITING, "Messages in the mailboxes of actors of this name.");
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
    waiting: Waiting,
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
        let gauge = gauge!(WAITING, "actor" => M::ACTOR);
        gauge.increment(1.0);
        Self { message, waiting: Waiting(gauge) }
    }
}

/// Increments the gauge for its lifetime.
#[derive(Debug)]
struct Waiting(Gauge);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}
