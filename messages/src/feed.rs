//! Latest-wins feeds into an actor's mailbox.
//!
//! Guarantees: at most one message of a feed is in the mailbox at any time; the receiver always gets
//! the newest value next; a value that is replaced before it was handled is never seen. The feed ends
//! with its handle or with the actor.

use ractor::ActorRef;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

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
    /// Starts a task on the current runtime.
    pub fn start(future: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(future))
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Forwards every newest value to an actor, the present one first.
pub fn forward<T, M>(
    mut values: Subscriber<T>,
    actor: ActorRef<Letter<M>>,
    wrap: impl Fn(T, Handled) -> M + Send + 'static,
) -> Task
where
    T: Clone + Send + Sync + 'static,
    M: Addressed + Send + 'static,
{
    Task::start(async move {
        loop {
            let value = values.next().await;
            let (mark, done) = handled();
            if actor.cast(wrap(value, mark).into()).is_err() {
                return;
            }
            // An error is the mark being dropped: handled, or the actor is gone and the next cast says so.
            let _ = done.await;
        }
    })
}
