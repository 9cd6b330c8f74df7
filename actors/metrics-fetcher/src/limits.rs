//! The limits and time-outs of this crate, with their units, and how they are derived.

use std::time::Duration;

/// Allowed values that a message lists.
pub(crate) const LISTED: usize = 10;

/// Of an interval, the part that a fetch may take at most, in percent: [`PROVIDER_DEADLINE`] of shorter rounds.
pub(crate) const DEADLINE_PERCENT: u32 = 67;
/// Providers that are asked at the same time: 16 of one namespace, 10 of those that failed last. With a deadline of 10 s,
/// even 24 that begin to hang in one namespace are all heard in a round.
pub const ROUNDS_AT_ONCE: usize = 32;

/// Characters of a name that a message repeats; names on providers may have any length.
pub(crate) const MOST_SHOWN: usize = 100;

/// Fetches that fail one after the other before rounds are skipped. As many as there are rounds in the time for
/// which a last good value counts: one slow answer changes nothing.
pub const FAILURES: u32 = 3;
/// Most rounds that are skipped one after the other: with rounds of 15 s, a provider that comes back is noticed
/// within a minute.
pub const MOST_SKIPPED: u32 = 3;

/// How long values are remembered.
pub const MEMORY: Duration = Duration::from_secs(3600);
/// Values that are remembered: one a second for an hour. A metric that changes its definition faster loses
/// its oldest ones.
pub const MOST_VALUES: usize = 3600;

const _: () = assert!(DEADLINE_PERCENT < 100, "each round is answered before the next one");
const _: () =
    assert!(MOST_VALUES as u64 >= MEMORY.as_secs(), "a value a second is remembered for the whole time");
