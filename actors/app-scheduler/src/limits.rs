//! The limits and time-outs of this crate, with their units, and how they are derived.

use std::time::Duration;

use madako_domain::limits::MOST_TRANSACTION_BYTES;

/// Bytes of keys and values in one transaction. One unit alone may be greater: an application has at most 1 MiB when
/// the API takes it, and its decision little.
pub(crate) const PREFERRED_BYTES: usize = 1 << 20;

/// Pause before a commit that failed is tried again; doubled up to [`RETRY_MOST`].
pub(crate) const RETRY_FIRST: Duration = Duration::from_millis(500);
/// Longest pause between tries. Any change tries anyway.
pub(crate) const RETRY_MOST: Duration = Duration::from_secs(30);
/// A pass that took longer is followed by a pause as long as it took: the API has half of the time at least.
pub(crate) const QUICK: Duration = Duration::from_millis(10);
/// Longest sleep of the timer: clocks may be set, and a look that finds nothing to do costs little.
pub(crate) const LONGEST_SLEEP: Duration = Duration::from_secs(3_600);
/// How far two clocks come apart within the time that moves count for, while none is set.
pub(crate) const CLOCK_DRIFT: Duration = Duration::from_secs(1);

/// The least time between two looks at the same thing: a retry without a delay is one a second.
pub(crate) const LEAST_PAUSE: Duration = Duration::from_secs(1);

/// Moments with moves that are kept though they do not count any more by the leader's clock: by a clock that is ahead all moves
/// are long past, and the next leader with a right clock must still count them.
pub(crate) const OLDER_MOVES: usize = 16;

const _: () =
    assert!(PREFERRED_BYTES < MOST_TRANSACTION_BYTES, "a full transaction has room for the count of moves");
const _: () =
    assert!(QUICK.as_millis() < LEAST_PAUSE.as_millis() && RETRY_FIRST.as_millis() < RETRY_MOST.as_millis());
