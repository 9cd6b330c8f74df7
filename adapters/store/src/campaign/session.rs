//! The session of a candidate for leadership: a lease, its key, and the time for which it counts as valid. Pure except
//! for the type of the clock.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use madako_domain::canary::{Canary, is_planted};
use madako_domain::store::Epoch;
use tokio::time::Instant;

use crate::limits::{LONGEST_MARGIN, LONGEST_TTL, RENEW_AFTER, TTL_MARGIN};

/// A lease as the store granted it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Session {
    pub(super) lease: i64,
    /// By this process's clock. The lease cannot expire earlier, because the store starts to count after the request was sent.
    pub(super) valid_until: Instant,
    pub(super) renew_at: Instant,
    ttl: Duration,
}

impl Session {
    /// A lease that was requested at `sent`. `None` if the TTL in the answer is invalid.
    pub(super) fn from_grant(lease: i64, ttl: i64, sent: Instant) -> Option<Self> {
        if !(1..=LONGEST_TTL).contains(&ttl) {
            return None;
        }
        let mut session =
            Self { lease, valid_until: sent, renew_at: sent, ttl: Duration::from_secs(ttl.unsigned_abs()) };
        session.note_renewal(sent);
        Some(session)
    }

    /// Records a renewal by a request that was sent at `sent`.
    pub(super) fn note_renewal(&mut self, sent: Instant) {
        self.valid_until = sent + (self.ttl - safety_margin(self.ttl));
        if is_planted(Canary::EndlessTerm) {
            self.valid_until += 10 * self.ttl;
        }
        self.renew_at = sent + self.ttl / RENEW_AFTER;
    }

    /// Time for one attempt to renew: a third of the time between the first attempt and the end.
    pub(super) fn shorten_timeout(&self, timeout: Duration) -> Duration {
        timeout.min(self.ttl / (2 * RENEW_AFTER))
    }
}

fn safety_margin(ttl: Duration) -> Duration {
    (ttl / TTL_MARGIN).min(LONGEST_MARGIN)
}

/// Valid epochs with the end of their validity. All clones read it; campaigns write it.
#[derive(Clone, Default)]
pub(crate) struct ValidEpochs(Arc<Mutex<BTreeMap<(i64, i64), Instant>>>);

impl fmt::Debug for ValidEpochs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ValidEpochs")
    }
}

impl ValidEpochs {
    /// End of an epoch's validity. `None`: the epoch is over.
    pub(crate) fn valid_until(&self, epoch: &Epoch) -> Option<Instant> {
        let until = *self.lock_epochs().get(&(epoch.number, epoch.lease))?;
        (Instant::now() < until).then_some(until)
    }

    pub(super) fn extend_epoch(&self, epoch: &Epoch, until: Instant) {
        self.lock_epochs().insert((epoch.number, epoch.lease), until);
    }

    pub(super) fn end(&self, epoch: &Epoch) {
        self.lock_epochs().remove(&(epoch.number, epoch.lease));
    }

    fn lock_epochs(&self) -> std::sync::MutexGuard<'_, BTreeMap<(i64, i64), Instant>> {
        // No code panics while it holds the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_session_is_valid_for_less_than_its_lease_from_the_request() {
        let sent = Instant::now();
        tokio::time::advance(Duration::from_secs(1)).await;
        for (ttl, margin) in [(2, 200), (10, 1000), (60, 5000), (3600, 5000)] {
            let session = Session::from_grant(1, ttl, sent).unwrap();
            let whole = Duration::from_secs(ttl.unsigned_abs());
            assert_eq!(session.valid_until, sent + whole - Duration::from_millis(margin), "{ttl}");
            assert!(
                session.renew_at + session.shorten_timeout(Duration::from_secs(2)) * 2 < session.valid_until
            );
        }
        for ttl in [0, -1, i64::MAX] {
            assert_eq!(Session::from_grant(1, ttl, sent), None, "{ttl}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn epoch_ends_at_its_time_without_an_event() {
        let epochs = ValidEpochs::default();
        let epoch = Epoch { number: 7, key: "leader//1".into(), lease: 1 };
        assert_eq!(epochs.valid_until(&epoch), None);
        let until = Instant::now() + Duration::from_secs(3);
        epochs.extend_epoch(&epoch, until);
        assert_eq!(epochs.valid_until(&epoch), Some(until));
        assert_eq!(epochs.valid_until(&Epoch { number: 8, ..epoch.clone() }), None);
        tokio::time::advance(Duration::from_secs(3)).await;
        assert_eq!(epochs.valid_until(&epoch), None);
    }
}
