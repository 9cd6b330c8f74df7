//! The limits and time-outs of this crate, with their units, and how they are derived.

use std::time::Duration;

/// Greatest length of each of a command's two outputs that is kept, in bytes. The rest is read and thrown away: a command
/// that prints without end must neither block on a full pipe nor fill memory.
pub const MAX_OUTPUT: usize = 4096;

/// How long before the lease may end a permit does: time for an effect that was begun to reach its target.
pub const PERMIT_MARGIN: Duration = Duration::from_secs(1);

/// Pause before everything is listed again after changes were missed: a slow follower must not spin.
pub(crate) const RELIST_PAUSE: Duration = Duration::from_millis(100);

/// Time that a fetch of one provider has at most: within a round of 15 s, so that each round is answered before the
/// next. A decision that needs a value which was never fetched waits about as long.
pub const PROVIDER_DEADLINE: Duration = Duration::from_secs(10);
/// For how many rounds the last good value counts where `metric_max_age` is not set.
pub const MAX_AGE_INTERVALS: u32 = 3;

/// How long the leader may take to answer: a few of the store's time-outs (2 s each by default).
pub const COMMIT_DEADLINE: Duration = Duration::from_secs(10);
/// How long the leader may take to give a permit, for which it asks no other process.
pub const PERMIT_DEADLINE: Duration = Duration::from_secs(2);

const _: () = assert!(PERMIT_DEADLINE.as_millis() < COMMIT_DEADLINE.as_millis(), "a permit needs no store");
