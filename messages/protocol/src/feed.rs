//! Feeds of an actor's mailbox: the newest value of a source, or a message after a delay.
//!
//! Guarantees: the mailbox has at most one message of a feed at any time. The receiver gets the newest value next and
//! never sees a value that was replaced before its turn. Feeds and delayed messages end with their handle or with the
//! actor.

use std::time::Duration;

use ractor::ActorRef;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tracing::Instrument;

use crate::latest::Subscriber;
use crate::mailbox::{Addressed, Envelope};

/// A mark in a message; dropping it tells the feed that the message was handled.
#[derive(Debug)]
pub struct HandledSignal {
    _open: oneshot::Sender<()>,
}

/// A [`HandledSignal`] and the receiver that waits for its drop.
#[must_use]
pub fn handled_signal() -> (HandledSignal, oneshot::Receiver<()>) {
    let (sender, receiver) = oneshot::channel();
    (HandledSignal { _open: sender }, receiver)
}

/// A task that ends when this handle is dropped.
#[derive(Debug)]
pub struct Task(JoinHandle<()>);

impl Task {
    /// Starts a task on the current runtime, in the current span, as a part of the present work.
    pub fn start(future: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(future.in_current_span()))
    }

    /// True if the task has returned or panicked.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.0.is_finished()
    }

    /// Starts a task for new work: it runs in its own span only.
    pub fn start_anew(future: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(future))
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Forwards the newest values to an actor, beginning with the present one. The actor handles each in the span in
/// which it was published.
pub fn forward_values<T, M>(
    mut values: Subscriber<T>,
    actor: ActorRef<Envelope<M>>,
    wrap: impl Fn(T, HandledSignal) -> M + Send + 'static,
) -> Task
where
    T: Clone + Send + Sync + 'static,
    M: Addressed + Send + 'static,
{
    Task::start_anew(async move {
        loop {
            let (value, span) = values.next_in_span().await;
            let Some(done) = span.in_scope(|| deliver_message(&actor, |mark| wrap(value, mark))) else {
                return;
            };
            // Drop the value before waiting for the next one.
            drop(span);
            let _ = done.await;
        }
    })
}

/// Sends a message to an actor after a delay, unless the task is dropped before. The actor handles it in no span: a
/// timer that is renewed again and again would never leave its first span.
pub fn send_later<M: Addressed + Send + 'static>(
    actor: ActorRef<Envelope<M>>,
    pause: Duration,
    message: M,
) -> Task {
    Task::start_anew(async move {
        tokio::time::sleep(pause).await;
        // If the actor has ended, the message has no receiver.
        let _ = actor.cast(message.into());
    })
}

/// Sends a message of a feed. The receiver ends (with an error, because no value is ever sent) when the mark is
/// dropped: the message was handled, or the actor ended and the next send fails. `None` if the actor has already
/// ended.
pub(crate) fn deliver_message<M: Addressed + Send + 'static>(
    actor: &ActorRef<Envelope<M>>,
    message: impl FnOnce(HandledSignal) -> M,
) -> Option<oneshot::Receiver<()>> {
    let (mark, done) = handled_signal();
    actor.cast(message(mark).into()).ok()?;
    Some(done)
}
