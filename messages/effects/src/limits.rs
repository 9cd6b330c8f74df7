//! The limits and time-outs of this crate, with their units, and how they are derived.

use std::time::Duration;

use madako_protocol::limits::{COMMIT_DEADLINE, PERMIT_DEADLINE};

/// Pause before a transaction that failed is tried again; doubled up to [`RETRY_MOST`].
pub const RETRY_FIRST: Duration = Duration::from_millis(500);
/// Longest pause between tries.
pub const RETRY_MOST: Duration = Duration::from_secs(30);
/// When a commit counts as unanswered: its caller gives up after [`COMMIT_DEADLINE`], so its answer was lost.
pub(crate) const COMMIT_LOST: Duration = COMMIT_DEADLINE.saturating_add(Duration::from_secs(5));

/// Pause before a permit is asked for again. An asker that gets none for good is ended with the reign.
pub const PERMIT_PAUSE: Duration = Duration::from_secs(1);

/// When a question for a permit counts as unanswered: its asker gives up after [`PERMIT_DEADLINE`], so its answer was lost.
pub(crate) const PERMIT_LOST: Duration = PERMIT_DEADLINE.saturating_add(Duration::from_secs(1));

const _: () = assert!(RETRY_FIRST.as_millis() < RETRY_MOST.as_millis());
const _: () = assert!(PERMIT_LOST.as_millis() < COMMIT_LOST.as_millis(), "a permit needs no store");
