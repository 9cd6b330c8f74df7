//! Detects a service that loops without waiting and so would keep a run at one moment of simulated time for ever.
//!
//! Counts handled messages and entries of the history. Guarantees: if one simulated second has more than the maximum, the
//! task that waits for this wakes within that second.
//!
//! Does not detect a loop that neither handles a message nor writes an entry of the history.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// Length of the counting window.
const MOMENT: Duration = Duration::from_secs(1);

struct PaceState {
    since: Instant,
    count: u64,
    ran_away: bool,
}

/// Counts messages and notes. Clones share their state.
#[derive(Clone)]
pub struct MessagePace {
    /// Maximum count within [`MOMENT`].
    most: u64,
    inner: Arc<Mutex<PaceState>>,
    rings: Arc<Notify>,
}

impl MessagePace {
    #[must_use]
    pub fn new(most: u64) -> Self {
        let inner = PaceState { since: Instant::now(), count: 0, ran_away: false };
        Self { most, inner: Arc::new(Mutex::new(inner)), rings: Arc::default() }
    }

    pub fn count(&self) {
        let now = Instant::now();
        let mut inner = self.inner.lock().unwrap();
        if now.duration_since(inner.since) >= MOMENT {
            (inner.since, inner.count) = (now, 0);
        }
        inner.count += 1;
        if inner.count > self.most && !inner.ran_away {
            inner.ran_away = true;
            self.rings.notify_one();
        }
    }

    /// A description of the loop, after a count above the maximum.
    #[must_use]
    pub fn describe_overrun(&self) -> Option<String> {
        let most = self.most;
        let message = || {
            format!(
                "the service loops without waiting: more than {most} messages and notes within a simulated second"
            )
        };
        self.inner.lock().unwrap().ran_away.then(message)
    }

    /// Returns after a count above the maximum. Supports one waiter at a time.
    pub async fn wait_until_overrun(&self) {
        while self.describe_overrun().is_none() {
            self.rings.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_too_many_requests_within_a_second_are_a_runaway() {
        let pace = MessagePace::new(10);
        for _ in 0..100 {
            pace.count();
            tokio::time::advance(Duration::from_millis(100)).await;
        }
        assert_eq!(pace.describe_overrun(), None);
        let waits = tokio::spawn({
            let pace = pace.clone();
            async move { pace.wait_until_overrun().await }
        });
        tokio::time::advance(Duration::from_secs(1)).await;
        (0..10).for_each(|_| pace.count());
        assert_eq!(pace.describe_overrun(), None);
        pace.count();
        waits.await.unwrap();
        assert!(pace.describe_overrun().is_some_and(|message| message.contains("more than 10")));
        // A later call returns too.
        pace.wait_until_overrun().await;
    }
}
