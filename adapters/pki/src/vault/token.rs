//! The token of a login at Vault: how long it may be used, and when it is renewed.

use std::time::Duration;

use madako_domain::canary::{Canary, is_planted};
use madako_protocol::secret::Secret;
use tokio::time::Instant;

use super::client::Auth;
use crate::limits::{RENEWAL_PAUSE, RENEWED_AFTER, VAULT_DEADLINE};

/// A token, and its lease as far as this process knows.
pub(crate) struct Token {
    pub(crate) text: Secret,
    /// Begin of the request that gave or renewed it: the lease began later.
    since: Instant,
    /// Zero: it has no end.
    lease: Duration,
    renewable: bool,
    /// No renewal before this time.
    renew_at: Instant,
}

/// The next step of a caller that needs a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenStep {
    Use,
    Renew,
    LogIn,
}

impl Token {
    /// The token of an answer to a request that began at `since`.
    pub(crate) fn new(auth: Auth, since: Instant) -> Self {
        let lease = Duration::from_secs(auth.lease_duration);
        let text = Secret::new(auth.client_token);
        Self { text, since, lease, renewable: auth.renewable, renew_at: since + lease / RENEWED_AFTER }
    }

    /// A token is used only if the request ends before the lease does, whatever the request takes.
    pub(crate) fn step(&self, now: Instant) -> TokenStep {
        let age = now.saturating_duration_since(self.since);
        if self.lease.is_zero() {
            return TokenStep::Use;
        }
        if age + VAULT_DEADLINE >= self.lease && !is_planted(Canary::TokenPastItsEnd) {
            return TokenStep::LogIn;
        }
        if self.renewable && now >= self.renew_at { TokenStep::Renew } else { TokenStep::Use }
    }

    /// Notes a renewal that failed for another reason than the token.
    pub(crate) fn note_failed_renewal(&mut self, now: Instant) {
        self.renew_at = now + RENEWAL_PAUSE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(lease: u64, renewable: bool, since: Instant) -> Token {
        Token::new(Auth { client_token: "t".to_owned(), lease_duration: lease, renewable }, since)
    }

    #[test]
    fn a_token_is_renewed_in_its_second_half_and_never_used_after_its_end() {
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let hour = token(3600, true, begun);
        for (seconds, expected) in [
            (0, TokenStep::Use),
            (1799, TokenStep::Use),
            (1800, TokenStep::Renew),
            (3589, TokenStep::Renew),
            (3590, TokenStep::LogIn),
            (9999, TokenStep::LogIn),
        ] {
            assert_eq!(hour.step(at(seconds)), expected, "after {seconds} s");
        }
        let fixed = token(3600, false, begun);
        assert_eq!((fixed.step(at(3589)), fixed.step(at(3590))), (TokenStep::Use, TokenStep::LogIn));
        assert_eq!(token(0, false, begun).step(at(1 << 30)), TokenStep::Use, "a root token has no end");
        assert_eq!(token(5, true, begun).step(begun), TokenStep::LogIn, "a request could outlast the token");
    }

    #[test]
    fn a_failed_renewal_pauses_and_the_token_stays_in_use() {
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let mut hour = token(3600, true, begun);
        hour.note_failed_renewal(at(1800));
        assert_eq!((hour.step(at(1829)), hour.step(at(1830))), (TokenStep::Use, TokenStep::Renew));
        hour.note_failed_renewal(at(3589));
        assert_eq!(hour.step(at(3590)), TokenStep::LogIn);
    }
}
