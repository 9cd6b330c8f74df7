//! What comes into an actor's mailbox by itself: the newest value of something, or a message after a while.
//!
//! Guarantees: at most one message of a feed is in the mailbox at any time; the receiver always gets
//! the newest value next; a value that is replaced before it was handled is never seen. A feed, and a message that
//! has not come yet, end with their handle or with the actor.

use std::time::Duration;

use ractor::ActorRef;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tracing::Instrument;

use crate::latest::Subscriber;
use crate::mailbox::{Addressed, Letter};

/// Travels with a message; dropping it tells the feed that the message was handled.
#[derive(Debug)]
pub struct Handled(#[allow(dead_code, reason = "it is its drop that tells")] oneshot::Sender<()>);

/// Makes the pair of a [`Handled`] and what waits for it.
#[must_use]
pub fn handled() -> (Handled, oneshot::Receiver<()>) {
    let (sender, receiver) = oneshot::channel();
    (Handled(sender), receiver)
}

/// A task that ends when this is dropped.
#[derive(Debug)]
pub struct Task(JoinHandle<()>);

impl Task {
    /// Starts a task on the current runtime, in the current span: it is part of what is being done.
    pub fn start(future: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(future.in_current_span()))
    }

    /// Whether it has ended by itself, or by a panic.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.0.is_finished()
    }

    /// Starts a task that begins something new: it is in no span but its own.
    pub fn start_anew(future: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(future))
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Forwards every newest value to an actor, the present one first. Each is handled in the span that it was set in.
pub fn forward<T, M>(
    mut values: Subscriber<T>,
    actor: ActorRef<Letter<M>>,
    wrap: impl Fn(T, Handled) -> M + Send + 'static,
) -> Task
where
    T: Clone + Send + Sync + 'static,
    M: Addressed + Send + 'static,
{
    Task::start_anew(async move {
        loop {
            let (value, span) = values.next_in_span().await;
            let Some(done) = span.in_scope(|| bring(&actor, |mark| wrap(value, mark))) else { return };
            // What is handled is not held on to until the next value comes.
            drop(span);
            let _ = done.await;
        }
    })
}

/// Tells an actor something after a while, unless the task is dropped before. It is handled in no span: a timer that is set
/// again and again would never leave the first one.
pub fn later<M: Addressed + Send + 'static>(actor: ActorRef<Letter<M>>, pause: Duration, message: M) -> Task {
    Task::start_anew(async move {
        tokio::time::sleep(pause).await;
        // The actor is gone: nobody is left to tell.
        let _ = actor.cast(message.into());
    })
}

/// Sends a message of a feed, and gives what ends, with an error as nothing is ever sent, when the mark is dropped: the
/// message was handled, or the actor is gone and the next message says so. `None`: it is gone already.
pub(crate) fn bring<M: Addressed + Send + 'static>(
    actor: &ActorRef<Letter<M>>,
    message: impl FnOnce(Handled) -> M,
) -> Option<oneshot::Receiver<()>> {
    let (mark, done) = handled();
    actor.cast(message(mark).into()).ok()?;
    Some(done)
}
