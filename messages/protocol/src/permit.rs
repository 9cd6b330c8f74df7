//! The leader's permission to act outside etcd, valid until a moment.
//!
//! etcd itself fences the writes to etcd, but not commands on a host or writes to Kubernetes. Each of those needs a
//! permit. Only the leader gives permits, only in an epoch that it holds, and only until a margin before that epoch's
//! lease may end by the leader's own clock. Every port with effects takes a permit and refuses to begin with an
//! expired one.

use std::fmt;

use tokio::time::Instant;

pub use crate::limits::PERMIT_MARGIN;

/// A monotonic time, for code that compares times without reading a clock.
pub type Moment = Instant;

/// The right to begin effects in one epoch, until a monotonic time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Permit {
    epoch: i64,
    until: Instant,
}

/// The permit had expired; the effect did not begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the leader's permit of epoch {epoch} for this effect has ended")]
pub struct PermitEnded {
    /// Number of the leader's epoch that gave the permit.
    pub epoch: i64,
}

impl Permit {
    /// Gives a permit. Only the leader calls this; it knows until when it holds its epoch.
    #[must_use]
    pub fn give(epoch: i64, until: Instant) -> Self {
        Self { epoch, until }
    }

    /// Number of the leader's epoch that gave the permit.
    #[must_use]
    pub fn epoch(&self) -> i64 {
        self.epoch
    }

    /// The time at which the permit expires.
    #[must_use]
    pub fn expires_at(&self) -> Instant {
        self.until
    }

    /// Checks that an effect may begin at `now`.
    ///
    /// # Errors
    /// The permit has expired.
    pub fn check(&self, now: Instant) -> Result<(), PermitEnded> {
        if now < self.until { Ok(()) } else { Err(PermitEnded { epoch: self.epoch }) }
    }
}

impl fmt::Display for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "permit of epoch {}", self.epoch)
    }
}
