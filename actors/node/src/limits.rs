//! Limits of this crate, with units and derivations.

use std::time::Duration;

/// Pause after the first failed connection. A restarted sshd is back within a second or two.
pub(crate) const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Maximum pause between two attempts to connect: a repaired node is back in the next minute.
pub(crate) const MAX_PAUSE: Duration = Duration::from_secs(60);
/// Requests that wait for the first connection or for their turn. The operation runner has one read and one action
/// for each node; an operator's command adds a few.
pub(crate) const MAX_WAITING: usize = 16;

const _: () = assert!(FIRST_PAUSE.as_millis() < MAX_PAUSE.as_millis());
