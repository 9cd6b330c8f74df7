//! The newest value of a source for several subscribers, without a queue.
//!
//! Guarantees: waiting subscribers are woken in FIFO order, so that simulations are reproducible
//! (`tokio::sync::watch` wakes in random order). A subscriber never sees a value that was replaced before it read. A
//! value carries the span in which it was published, so that its consequences can be attributed to it.
//! Assumes: values are cheap to clone.

use std::fmt;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tracing::Span;

struct SharedValue<T> {
    newest: Mutex<NewestValue<T>>,
    ring: Notify,
}

/// The number of published values, and the last value with its span.
type NewestValue<T> = (u64, Option<(T, Span)>);

impl<T> SharedValue<T> {
    // No code panics while it holds the lock, so a poisoned value is consistent.
    fn lock(&self) -> MutexGuard<'_, NewestValue<T>> {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Publishes values. Clones publish to the same subscribers.
pub struct Publisher<T>(Arc<SharedValue<T>>);

/// Reads the newest value and waits for newer ones. Each clone remembers separately which value it saw.
pub struct Subscriber<T> {
    shared: Arc<SharedValue<T>>,
    last_version: u64,
}

impl<T> Clone for Publisher<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Clone for Subscriber<T> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), last_version: self.last_version }
    }
}

impl<T> fmt::Debug for Publisher<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Publisher").finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Subscriber<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscriber").field("seen", &self.last_version).finish_non_exhaustive()
    }
}

/// A publisher and a subscriber, without a value yet.
#[must_use]
pub fn channel<T: Clone>() -> (Publisher<T>, Subscriber<T>) {
    let shared = Arc::new(SharedValue { newest: Mutex::new((0, None)), ring: Notify::new() });
    (Publisher(Arc::clone(&shared)), Subscriber { shared, last_version: 0 })
}

impl<T: Clone> Publisher<T> {
    /// Replaces the newest value and wakes all subscribers.
    pub fn publish(&self, value: T) {
        {
            let mut newest = self.0.lock();
            newest.0 += 1;
            newest.1 = Some((value, Span::current()));
        }
        self.0.ring.notify_waiters();
    }

    /// The newest value; `None` before the first.
    #[must_use]
    pub fn newest(&self) -> Option<T> {
        self.0.lock().1.as_ref().map(|(value, _)| value.clone())
    }
}

impl<T: Clone> Subscriber<T> {
    /// The newest value; `None` before the first. It does not count as seen.
    #[must_use]
    pub fn newest(&self) -> Option<T> {
        self.shared.lock().1.as_ref().map(|(value, _)| value.clone())
    }

    /// Waits for a value that this subscriber has not seen. Without a publisher it waits for ever.
    pub async fn next(&mut self) -> T {
        self.next_in_span().await.0
    }

    /// As [`Subscriber::next`], with the span in which the value was published.
    pub async fn next_in_span(&mut self) -> (T, Span) {
        loop {
            let mut rung = pin!(self.shared.ring.notified());
            // From here on no wake-up is missed.
            rung.as_mut().enable();
            {
                let newest = self.shared.lock();
                if let (version, Some(newest)) = &*newest
                    && *version != self.last_version
                {
                    self.last_version = *version;
                    return newest.clone();
                }
            }
            rung.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn replaced_value_is_never_observed() {
        let (publisher, mut subscriber) = channel();
        publisher.publish(1);
        publisher.publish(2);
        assert_eq!(subscriber.next().await, 2);
        let waits = tokio::spawn(async move { subscriber.next().await });
        tokio::task::yield_now().await;
        publisher.publish(3);
        assert_eq!(waits.await.unwrap(), 3);
    }

    #[tokio::test]
    async fn waiters_are_woken_in_fifo_order() {
        let (publisher, subscriber) = channel();
        let woken = Arc::new(Mutex::new(Vec::new()));
        let waiters: Vec<_> = (0..20)
            .map(|number| {
                let (mut subscriber, woken) = (subscriber.clone(), Arc::clone(&woken));
                tokio::spawn(async move {
                    subscriber.next().await;
                    woken.lock().unwrap().push(number);
                })
            })
            .collect();
        tokio::task::yield_now().await;
        publisher.publish(());
        for waiter in waiters {
            waiter.await.unwrap();
        }
        assert_eq!(*woken.lock().unwrap(), (0..20).collect::<Vec<_>>());
    }
}
