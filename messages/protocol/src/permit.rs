//! The right to act outside etcd (design, section 4).
//!
//! A write to etcd is fenced by etcd itself. A command on a host or a write to Kubernetes is not: whoever does one needs a
//! permit, which only the leader gives, only in an epoch that it holds, and only until that epoch's lease may have ended
//! by the leader's own clock, less a margin. Every port that has effects takes one and refuses to begin with one that ended.

use std::fmt;

use tokio::time::Instant;

pub use crate::limits::PERMIT_MARGIN;

/// A moment of the monotonic clock, for those who compare moments and ask no clock.
pub type Moment = Instant;

/// The right to begin effects in one epoch, until one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Permit {
    epoch: i64,
    until: Instant,
}

/// An effect was not begun: its permit had ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the permit of epoch {epoch} ended")]
pub struct PermitEnded {
    /// The epoch that it was given in.
    pub epoch: i64,
}

impl Permit {
    /// Gives a permit. For the leader alone, which knows until when it holds its epoch.
    #[must_use]
    pub fn give(epoch: i64, until: Instant) -> Self {
        Self { epoch, until }
    }

    /// The epoch that it was given in.
    #[must_use]
    pub fn epoch(&self) -> i64 {
        self.epoch
    }

    /// When it ends.
    #[must_use]
    pub fn until(&self) -> Instant {
        self.until
    }

    /// Whether an effect may begin now.
    ///
    /// # Errors
    /// The permit ended.
    pub fn check(&self, now: Instant) -> Result<(), PermitEnded> {
        if now < self.until { Ok(()) } else { Err(PermitEnded { epoch: self.epoch }) }
    }
}

impl fmt::Display for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "permit of epoch {}", self.epoch)
    }
}
