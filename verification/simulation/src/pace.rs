//! Whether simulated time goes on: a service that goes round in a circle without waiting for anything would keep a run for ever
//! at one moment.
//!
//! Guarantees: more than so much within one simulated second is told to whoever waits for it, while that second still lasts.
//!
//! Does not: see a loop that nothing is noted of and no actor handles a message in.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// How long is looked at.
const MOMENT: Duration = Duration::from_secs(1);

struct Inner {
    since: Instant,
    count: u64,
    ran_away: bool,
}

/// Counts what happens. Clones are the same.
#[derive(Clone)]
pub struct Pace {
    /// How much may happen within [`MOMENT`].
    most: u64,
    inner: Arc<Mutex<Inner>>,
    rings: Arc<Notify>,
}

impl Pace {
    /// More than so much within a simulated second is too much. Begins now.
    #[must_use]
    pub fn new(most: u64) -> Self {
        let inner = Inner { since: Instant::now(), count: 0, ran_away: false };
        Self { most, inner: Arc::new(Mutex::new(inner)), rings: Arc::default() }
    }

    /// Something happened.
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

    /// Whether too much happened within a simulated second; what is told of it then.
    #[must_use]
    pub fn ran_away(&self) -> Option<String> {
        let most = self.most;
        let told = || format!("it goes round: more than {most} messages and notes within a simulated second");
        self.inner.lock().unwrap().ran_away.then(told)
    }

    /// Returns when too much happened. One waits at a time.
    pub async fn runs_away(&self) {
        while self.ran_away().is_none() {
            self.rings.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_what_happens_within_a_second_is_too_much() {
        let pace = Pace::new(10);
        for _ in 0..100 {
            pace.count();
            tokio::time::advance(Duration::from_millis(100)).await;
        }
        assert_eq!(pace.ran_away(), None);
        let waits = tokio::spawn({
            let pace = pace.clone();
            async move { pace.runs_away().await }
        });
        tokio::time::advance(Duration::from_secs(1)).await;
        (0..10).for_each(|_| pace.count());
        assert_eq!(pace.ran_away(), None);
        pace.count();
        waits.await.unwrap();
        assert!(pace.ran_away().is_some_and(|told| told.contains("more than 10")));
        // Whoever asks later is told as well.
        pace.runs_away().await;
    }
}
