//! Limits and time-outs of this crate, with units and derivations.

use std::time::Duration;

use madako_domain::limits::MOST_TRANSACTION_BYTES;

/// Bytes of keys and values in one transaction. A single unit may exceed it: the API limits an application to 1 MiB,
/// and its decision is small.
pub(crate) const PREFERRED_BYTES: usize = 1 << 20;

/// Pause before a failed commit is retried; doubled up to [`RETRY_MOST`]. A restarted store is back within a
/// second.
pub(crate) const RETRY_FIRST: Duration = Duration::from_millis(500);
/// Maximum pause between retries. A change triggers an attempt anyway.
pub(crate) const RETRY_MOST: Duration = Duration::from_secs(30);
/// A longer pass is followed by a pause of its own length, which leaves at least half of the time to the API.
pub(crate) const QUICK: Duration = Duration::from_millis(10);
/// Maximum timer sleep: clocks may be set, and a pass without changes is cheap.
pub(crate) const LONGEST_SLEEP: Duration = Duration::from_secs(3_600);
/// Maximum drift of two clocks, without steps, within the time that moves count for.
pub(crate) const CLOCK_DRIFT: Duration = Duration::from_secs(1);

/// Minimum time between two evaluations of one thing: a retry without a delay happens once a second.
pub(crate) const LEAST_PAUSE: Duration = Duration::from_secs(1);

/// Expired moves that are kept: by a fast clock all moves have expired, while the next leader with a right clock must
/// still count them.
pub(crate) const OLDER_MOVES: usize = 16;

const _: () =
    assert!(PREFERRED_BYTES < MOST_TRANSACTION_BYTES, "a full transaction has room for the count of moves");
const _: () =
    assert!(QUICK.as_millis() < LEAST_PAUSE.as_millis() && RETRY_FIRST.as_millis() < RETRY_MOST.as_millis());
