//! The limits and time-outs of this crate, with their units, and how they are derived.

use std::time::Duration;

/// How long a machine must have been retired before its worker is removed: *more* than this.
/// CKE's default (its `DefaultWaitRetiredSeconds`), and ours for `--retire-wait`.
pub const DEFAULT_RETIRE_WAIT: Duration = Duration::from_secs(300);

/// Longest wait for the first answer, with which a reign's first plan waits. An API server that works answers in a second.
pub(crate) const FIRST_LOOK: Duration = Duration::from_secs(10);

/// An observation older than this many poll intervals is not planned on (design, section 5).
pub(crate) const STALE_AFTER_POLLS: u32 = 3;
/// An observation that is this much older than it may be is too old on every clock's granularity.
pub(crate) const JUST_AFTER: Duration = Duration::from_millis(1);
/// Pause before a commit that failed is tried again; doubled up to [`RETRY_MOST`].
pub(crate) const RETRY_FIRST: Duration = Duration::from_millis(500);
/// Longest pause between tries. The next poll tries anyway.
pub(crate) const RETRY_MOST: Duration = Duration::from_secs(30);

/// Addresses named in a message before the rest is only counted: more would not fit on a screen's line.
pub(crate) const ADDRESSES_NAMED: usize = 8;

/// Bytes of a date with its time and offset.
pub(crate) const LONGEST_DATE: usize = "2006-01-02T15:04:05+07:00".len();

const _: () = assert!(
    RETRY_FIRST.as_millis() < RETRY_MOST.as_millis() && JUST_AFTER.as_millis() < RETRY_FIRST.as_millis()
);
