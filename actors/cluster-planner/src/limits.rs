//! Limits and time-outs of this crate, with units and derivations.

use std::time::Duration;

/// A worker is removed when its machine has been retired for *more* than this time. CKE's default
/// (`DefaultWaitRetiredSeconds`), and the default of `--retire-wait`.
pub const DEFAULT_RETIRE_WAIT: Duration = Duration::from_secs(300);

/// Maximum wait for the first answer, which delays the first plan of an epoch. A healthy API server answers within a
/// second.
pub(crate) const FIRST_READ_WITHIN: Duration = Duration::from_secs(10);

/// An observation older than this many poll intervals is not planned on (design, section 5).
pub(crate) const STALE_AFTER_POLLS: u32 = 3;
/// Added to an age limit, so that it has passed at every clock's granularity.
pub(crate) const JUST_AFTER: Duration = Duration::from_millis(1);
/// Pause before a failed commit is retried; doubled up to [`RETRY_MOST`]. A restarted store is back within a
/// second.
pub(crate) const RETRY_FIRST: Duration = Duration::from_millis(500);
/// Maximum pause between retries. The next poll triggers an attempt anyway.
pub(crate) const RETRY_MOST: Duration = Duration::from_secs(30);

/// Addresses named in a message; further ones are only counted, as a line of a screen has no room for more.
pub(crate) const ADDRESSES_NAMED: usize = 8;

/// Bytes of a date with its time and offset.
pub(crate) const LONGEST_DATE: usize = "2006-01-02T15:04:05+07:00".len();

const _: () = assert!(
    RETRY_FIRST.as_millis() < RETRY_MOST.as_millis() && JUST_AFTER.as_millis() < RETRY_FIRST.as_millis()
);
