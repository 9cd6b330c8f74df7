//! What waits in an actor's mailbox, counted: a mailbox that grows is an actor that is stuck.
//!
//! Guarantees: a message counts from when it is sent until its handler begins, or until it is lost with its actor.

use metrics::{Gauge, describe_gauge, gauge};

const WAITING: &str = "madako_actor_mailbox_messages";

/// Describes the metric to the recorder.
pub fn describe_metrics() {
    describe_gauge!(WAITING, "Messages in the mailboxes of actors of this name.");
}

/// Messages that go to one kind of actor.
pub trait Addressed {
    /// The actor's name in metrics, as in the supervision tree.
    const ACTOR: &'static str;
}

/// A message on its way.
#[derive(Debug)]
pub struct Letter<M> {
    message: M,
    waiting: Waiting,
}

impl<M> Letter<M> {
    /// Takes the message out: it does not wait any more.
    pub fn open(self) -> M {
        let Self { message, waiting } = self;
        drop(waiting);
        message
    }
}

impl<M: Addressed> From<M> for Letter<M> {
    fn from(message: M) -> Self {
        let gauge = gauge!(WAITING, "actor" => M::ACTOR);
        gauge.increment(1.0);
        Self { message, waiting: Waiting(gauge) }
    }
}

/// Counts for as long as it lives.
#[derive(Debug)]
struct Waiting(Gauge);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}
