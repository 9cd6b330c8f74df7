//! The limits and time-outs of this crate, with unit and derivation.

use std::time::Duration;

use madako_protocol::limits::{COMMIT_DEADLINE, PERMIT_DEADLINE};

/// Pause before the first retry of a failed transaction; doubled up to [`RETRY_MOST`]. A restarted store is back
/// within a second.
pub const RETRY_FIRST: Duration = Duration::from_millis(500);
/// Maximum pause between retries: an operator who has repaired the store waits no longer for the next one.
pub const RETRY_MOST: Duration = Duration::from_secs(30);
/// Time after which a commit counts as unanswered. Its caller gives up after [`COMMIT_DEADLINE`], so the answer was
/// lost.
pub(crate) const COMMIT_LOST: Duration = COMMIT_DEADLINE.saturating_add(Duration::from_secs(5));

/// Pause between polls of a drain. Pods have 30 s to end by default.
pub(crate) const DRAIN_POLL: Duration = Duration::from_secs(5);

/// Pause before the next request for a permit. The end of the reign stops a requester that never gets one.
pub const PERMIT_PAUSE: Duration = Duration::from_secs(1);

/// Attempts at an effect whose permit ends before the answer. A new permit usually lasts longer than a write at an API server may
/// take; a server that does not answer must not keep the effect for good.
pub(crate) const EFFECT_TRIES: u32 = 3;

/// Time after which a request for a permit counts as unanswered. Its caller gives up after [`PERMIT_DEADLINE`], so
/// the answer was lost.
pub(crate) const PERMIT_LOST: Duration = PERMIT_DEADLINE.saturating_add(Duration::from_secs(1));

const _: () = assert!(RETRY_FIRST.as_millis() < RETRY_MOST.as_millis());
const _: () = assert!(PERMIT_LOST.as_millis() < COMMIT_LOST.as_millis(), "a permit needs no store");
