//! The limits and time-outs of this crate, with unit and derivation.

use std::time::Duration;

/// Bytes to keep of each of a command's two outputs. The rest is read and discarded: a command that prints without
/// end must neither block on a full pipe nor fill memory.
pub const MAX_OUTPUT: usize = 4096;

/// Time between the end of a permit and the earliest end of the lease, in which a begun effect reaches its target.
pub const PERMIT_MARGIN: Duration = Duration::from_secs(1);

/// Pause before everything is listed again after missed changes: a slow follower must not loop without pause.
pub(crate) const RELIST_PAUSE: Duration = Duration::from_millis(100);

/// Time-out for the fetch from one provider. It is below the metrics interval of 15 s, so that a metrics round ends before the next. A
/// decision that needs a value which was never fetched waits about as long.
pub const PROVIDER_DEADLINE: Duration = Duration::from_secs(10);
/// Number of rounds for which the last valid value counts when `metric_max_age` is not set: two failed rounds
/// change nothing.
pub const MAX_AGE_INTERVALS: u32 = 3;

/// Time-out for the leader's answer to a commit: a few of the store's time-outs (2 s each by default).
pub const COMMIT_DEADLINE: Duration = Duration::from_secs(10);
/// Time-out for the leader's answer to a request for a permit, for which it contacts no other process.
pub const PERMIT_DEADLINE: Duration = Duration::from_secs(2);

const _: () = assert!(PERMIT_DEADLINE.as_millis() < COMMIT_DEADLINE.as_millis(), "a permit needs no store");
